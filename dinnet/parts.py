"""Unfinished work beside its target: files and folders named `.TARGET.XXXXXXXX.part`.

Whoever makes a part holds a lock (flock) on it. The kernel takes the lock away when its holder dies, however it
dies: a part that can be locked is abandoned, and the next run for the same target removes it. Process numbers would
not tell: they are used again, and a container does not see those of its host.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_SUFFIX: Final = ".part"
#: Bytes of the target's name that are kept: names of 255 bytes are the longest, and ours adds 15.
_KEPT_BYTES: Final = 200
#: What `tempfile` puts in the middle.
_RANDOM: Final = "[a-z0-9_]{8}"


def new_file(target: Path) -> tuple[int, Path]:
    """A new empty file beside `target`, open for writing: descriptor and path.

    It is locked until the descriptor is closed, so give it its final name before that.

    Raises:
        OSError: It cannot be made.
    """
    remove_abandoned(target)
    while True:
        descriptor, name = tempfile.mkstemp(prefix=_prefix(target), suffix=_SUFFIX, dir=target.parent)
        if _lock(descriptor, Path(name)):
            return descriptor, Path(name)
        os.close(descriptor)


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A new empty folder beside `target`; it is removed with all that is in it when the block ends.

    Raises:
        OSError: It cannot be made.
    """
    remove_abandoned(target)
    folder, descriptor = _locked_folder(target)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _locked_folder(target: Path) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_prefix(target), suffix=_SUFFIX, dir=target.parent))
        with suppress(FileNotFoundError):  # taken for abandoned before it could be locked
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            if _lock(descriptor, folder):
                return folder, descriptor
            os.close(descriptor)


def remove_abandoned(target: Path) -> None:
    """Remove what killed runs left of their work on `target`."""
    pattern = re.compile(re.escape(_prefix(target)) + _RANDOM + re.escape(_SUFFIX))
    try:
        found = [path for path in target.parent.iterdir() if pattern.fullmatch(path.name)]
    except OSError:  # told by whoever then writes there
        return
    for path in found:
        with suppress(OSError):  # in use, or gone already
            _remove_if_abandoned(path)


def _remove_if_abandoned(path: Path) -> None:
    status = path.lstat()
    # A link, a FIFO or somebody else's file under such a name is none of ours.
    if status.st_uid != os.geteuid() or not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(descriptor, path):
            shutil.rmtree(path) if stat.S_ISDIR(status.st_mode) else path.unlink()
    finally:
        os.close(descriptor)


def _prefix(target: Path) -> str:
    return f".{os.fsdecode(os.fsencode(target.name)[:_KEPT_BYTES])}."


def _lock(descriptor: int, path: Path) -> bool:
    """Lock a new part; False where another run took it for abandoned in the moment before."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks, where nothing is ever taken for abandoned
        return True
    return _is_at(descriptor, path)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False
