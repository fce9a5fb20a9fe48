"""Where output goes: a file that appears whole or not at all, or standard output."""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dinnet.errors import DinnetError, UsageError, reason
from dinnet.parts import new_file
from dinnet.plain import PLAIN

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


_DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class OutputError(DinnetError):
    """Output could not be written."""


class Output(io.RawIOBase):
    """Writes to a file descriptor that someone else closes; every failure says where it happened.

    Formats for programs are UTF-8 everywhere; `encoding` is that of text for people.
    """

    def __init__(self, descriptor: int, name: str, encoding: str = "utf-8") -> None:
        super().__init__()
        self._descriptor = descriptor
        self._at = 0
        self.name = name
        self._encoding = encoding

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, data: ReadableBuffer, /) -> int:
        """Write all of `data`.

        Raises:
            OutputError: The system refused it (a full disk, a quota).
            BrokenPipeError: The reader of a pipe is gone.
        """
        view = memoryview(data).cast("B")
        total = len(view)
        try:
            while len(view):
                written = os.write(self._descriptor, view)
                view = view[written:]
        except BrokenPipeError:
            raise
        except OSError as error:
            raise _refused(self.name, error) from error
        self._at += total
        return total

    def write_text(self, text: str) -> None:
        """Write text for people; a character that the encoding lacks is replaced.

        Raises:
            OutputError, BrokenPipeError: As `write` does.
        """
        self.write(text.encode(self._encoding, PLAIN))

    def sync(self) -> None:
        """Have the system put everything on the disk, where it can."""
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise _refused(self.name, error) from error


def _refused(name: str, error: OSError) -> OutputError:
    advice = "free some space or write elsewhere" if error.errno in _DISK_FULL else "write elsewhere"
    return OutputError(f"{name}: cannot write: {reason(error)}; nothing was kept, {advice}")


@contextmanager
def standard_output() -> Iterator[Output]:
    """Standard output, by its descriptor, so that a full disk is noticed at the write itself."""
    sys.stdout.flush()
    yield Output(sys.stdout.fileno(), "standard output", sys.stdout.encoding or "utf-8")


@contextmanager
def atomic_output(path: Path) -> Iterator[Output]:
    """A file that takes its name only when the block ends well; until then `path` is as it was before.

    A symbolic link is followed. What is no regular file (a FIFO, /dev/stdout) is written to directly.

    Raises:
        UsageError: `path` is a folder.
        OutputError: The system refused to create, write or rename the file.
    """
    target = Path(os.path.realpath(path))
    mode = _mode_of(target, path)
    if mode is not None and not stat.S_ISREG(mode):
        with _special_file(target, path) as output:
            yield output
        return
    try:
        descriptor, part = new_file(target)
    except OSError as error:
        raise OutputError(f"{path}: cannot create a file in {target.parent}: {reason(error)}") from error
    output = Output(descriptor, str(path))
    try:
        yield output
        os.fchmod(descriptor, stat.S_IMODE(mode) if mode is not None else 0o666 & ~_umask())
        output.sync()
        try:
            part.replace(target)
        except OSError as error:
            raise _refused(str(path), error) from error
    except BaseException:
        with suppress(FileNotFoundError):
            part.unlink()
        raise
    finally:
        os.close(descriptor)  # last of all: it ends the lock
    _sync_folder(target.parent)


def _mode_of(target: Path, path: Path) -> int | None:
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        if not target.parent.is_dir():
            raise OutputError(f"{path}: the folder {target.parent} does not exist; create it first") from None
        return None
    except OSError as error:
        raise OutputError(f"{path}: cannot write: {reason(error)}") from error
    if stat.S_ISDIR(mode):
        raise UsageError(f"{path}: is a folder; give a file name")
    return mode


@contextmanager
def _special_file(target: Path, path: Path) -> Iterator[Output]:
    try:
        descriptor = os.open(target, os.O_WRONLY)
    except OSError as error:
        raise OutputError(f"{path}: cannot open: {reason(error)}") from error
    try:
        yield Output(descriptor, str(path))
    finally:
        os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    # The rename itself is on the disk only when the folder is. Some file systems refuse: nothing to be done.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_terminal(stream: Any) -> bool:
    """Whether a person looks at `stream`."""
    return bool(stream is not None and not stream.closed and stream.isatty())
