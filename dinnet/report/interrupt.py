"""Ctrl-C and SIGTERM in the middle of a run: everything is cleaned up, also while a pipe is waited for."""

from __future__ import annotations

import io
import os
import select
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from dinnet.errors import DinnetError, reason

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_STDIN_DESCRIPTOR = 0


class Terminated(SystemExit):
    """SIGTERM came: leave as Ctrl-C does, cleaning up on the way."""


class _Wake:
    """The descriptor that becomes readable when a signal comes, while `interruptible` is in force."""

    descriptor: int | None = None


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn SIGTERM into an exception, and have signals end every wait of an `InterruptibleStream`."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Terminated(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    woken_before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    _Wake.descriptor = reading
    try:
        yield
    finally:
        _Wake.descriptor = None
        signal.set_wakeup_fd(woken_before)
        signal.signal(signal.SIGTERM, before)
        os.close(reading)
        os.close(writing)


class InterruptibleStream(io.RawIOBase):
    """A pipe that is read in a thread, and whose data ends when a signal comes.

    A plain read would go on waiting: signals are the main thread's, which waits for the reading one.
    """

    def __init__(self, descriptor: int, name: str, *, owned: bool) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._owned = owned
        self.name = name

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fill `buffer` with what is there; 0 at the end, or once a signal came."""
        wake = _Wake.descriptor
        if wake is not None:
            ready, _, _ = select.select([self._descriptor, wake], [], [])
            if wake in ready:
                return 0
        return os.readv(self._descriptor, [buffer])

    def close(self) -> None:
        if self._owned and not self.closed:
            os.close(self._descriptor)
        super().close()


def stream_or_path(name: str) -> str | InterruptibleStream:
    """What to open a capture by: "-" and what is no regular file become a stream that signals end.

    Raises:
        DinnetError: It cannot be opened.
    """
    if name == "-":
        return InterruptibleStream(_STDIN_DESCRIPTOR, "standard input", owned=False)
    try:
        if stat.S_ISFIFO(Path(name).stat().st_mode):
            return InterruptibleStream(os.open(name, os.O_RDONLY), name, owned=True)
    except OSError as error:
        raise DinnetError(f"{name}: cannot open: {reason(error)}") from error
    return name
