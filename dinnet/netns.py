"""Network namespaces of this machine."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dinnet.errors import DinnetError

NETNS_FOLDER: Final = Path("/var/run/netns")
_CLONE_NEWNET: Final = 0x40000000

_libc = ctypes.CDLL(None, use_errno=True)


def _setns(fd: int, what: str) -> None:
    if _libc.setns(fd, _CLONE_NEWNET) != 0:
        raise DinnetError(f"{what}: cannot enter the network namespace: {os.strerror(ctypes.get_errno())}")


@contextlib.contextmanager
def inside(namespace: str) -> Iterator[None]:
    """Run the calling thread in a named network namespace; sockets and children made in there stay there."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            there = os.open(NETNS_FOLDER / namespace, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise DinnetError(f"{namespace}: cannot open the network namespace: {error.strerror}") from error
        try:
            _setns(there, namespace)
        finally:
            os.close(there)
        try:
            yield
        finally:
            _setns(home, "the process's own namespace")
    finally:
        os.close(home)
