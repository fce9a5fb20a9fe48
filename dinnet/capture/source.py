"""Bytes from a file, a compressed file or a pipe, through one bounded buffer."""

from __future__ import annotations

import io
import queue
import sys
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from dinnet.capture.errors import CaptureError
from dinnet.capture.zstdframes import ZSTD_MAGIC, ZstdFrames
from dinnet.errors import reason

_BUFFER_BYTES: Final = 1 << 20
#: Files of at least this size are read (and decompressed) by a thread of their own.
_READ_AHEAD_FROM: Final = 1 << 23
_BLOCKS: Final = 4
#: Room before each block for what the block before it left over.
_HEADROOM: Final = 1 << 16
_ENDS_EARLY: Final = "it is cut: the compressed data ends before its end marker"
_GZIP_MAGIC: Final = b"\x1f\x8b"


class ByteSource:
    """A window on a byte stream: `data[start:end]` is what has been read and not yet consumed.

    The window moves forward by `consume` and is filled by `fill`; it grows only when one record
    needs it to. `offset` is the position of `data[start]` in the uncompressed stream.
    """

    def __init__(self, source: str | Path | BinaryIO) -> None:
        self.name = "standard input" if source == "-" else str(getattr(source, "name", source))
        self.size: int | None = None
        self.compression = ""
        self.cut = False  # the compressed stream ended before its end marker
        self.offset = 0
        self.start = 0
        self.end = 0
        self.eof = False
        self.data: NDArray[np.uint8] = np.empty(_BUFFER_BYTES, np.uint8)
        self._owned = False
        self._ahead: _ReadAhead | None = None
        self._frames: ZstdFrames | None = None
        self._raw: Any = self._open(source)
        self._stream: Any = self._raw
        try:
            self._detect_compression()
            if self.size is not None and self.size >= _READ_AHEAD_FROM:
                self._ahead = _ReadAhead(self._read_into)
        except BaseException:
            self.close()
            raise

    def _open(self, source: str | Path | BinaryIO) -> BinaryIO:
        if source == "-":
            return sys.stdin.buffer
        if not isinstance(source, (str, Path)):
            return source
        path = Path(source)
        try:
            if path.is_dir():
                raise CaptureError(f"{path} is a folder, not a capture: name the files in it")
            handle = path.open("rb", buffering=0)
            if path.is_file():
                self.size = path.stat().st_size
        except OSError as error:
            raise CaptureError(f"cannot open {path}: {reason(error)}") from error
        self._owned = True
        return handle

    def _detect_compression(self) -> None:
        self.fill(4)
        head = self.data[self.start : self.start + 4].tobytes()
        if head[:2] != _GZIP_MAGIC and head != ZSTD_MAGIC:
            return
        self._frames = ZstdFrames() if head == ZSTD_MAGIC else None
        peeked = _Peeked(self.data[self.start : self.end].tobytes(), self._raw, self._frames)
        buffered: Any = io.BufferedReader(peeked, 1 << 20)
        if self._frames is not None:
            import zstandard

            self.compression = "zstd"
            # Bounded memory: a frame may ask for a window of gigabytes; 128 MiB is zstd's own --long limit.
            decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 27)
            self._stream = decompressor.stream_reader(buffered, read_across_frames=True)
        else:
            self.compression = "gzip"
            self._stream = _Gunzip(buffered)
        self._compressed = peeked
        self.start = self.end = 0
        self.eof = False

    @property
    def available(self) -> int:
        """Bytes in the window."""
        return self.end - self.start

    @property
    def position(self) -> int:
        """Bytes taken from the file so far, compressed where it is: for progress."""
        return self._compressed.taken if self.compression else self.offset + self.available

    def consume(self, count: int) -> None:
        """Give up the first `count` bytes of the window."""
        self.start += count
        self.offset += count

    def fill(self, need: int = 1) -> bool:
        """Make at least `need` bytes available; False where the stream ends first.

        Views of `data` taken before are no longer valid.
        """
        if self.available >= need:
            return True
        if self.eof:
            return False
        if self._ahead is not None:
            return self._fill_from_blocks(self._ahead, need)
        rest = self.available
        if need > len(self.data) or rest == len(self.data):
            grown = np.empty(max(2 * len(self.data), 1 << (need - 1).bit_length()), np.uint8)
            grown[:rest] = self.data[self.start : self.end]
            self.data = grown
        elif self.start:
            # The tail may overlap its new place: NumPy handles that for basic slices.
            self.data[:rest] = self.data[self.start : self.end]
        self.start, self.end = 0, rest
        view = memoryview(self.data)  # type: ignore[arg-type]
        while self.end < need and not self.eof:
            got = self._read_into(view[self.end :])
            if got == 0:
                self.eof = True
            self.end += got
        return self.available >= need

    def _fill_from_blocks(self, ahead: _ReadAhead, need: int) -> bool:
        while self.available < need:
            block, count = ahead.next()
            if count == 0:
                self.eof = True
                return False
            rest = self.available
            if rest > _HEADROOM:
                grown = np.empty(_HEADROOM + rest + count, np.uint8)
                grown[_HEADROOM + rest :] = block[_HEADROOM : _HEADROOM + count]
                block, count = grown, rest + count
                block[_HEADROOM : _HEADROOM + rest] = self.data[self.start : self.end]
                rest = 0
            else:
                block[_HEADROOM - rest : _HEADROOM] = self.data[self.start : self.end]
            self.data = block
            self.start, self.end = _HEADROOM - rest, _HEADROOM + count
        return True

    def skip(self, count: int) -> bool:
        """Consume `count` bytes without holding them at once; False where the stream ends first."""
        while count > 0:
            step = min(count, self.available)
            self.consume(step)
            count -= step
            if count and not self.fill(1):
                return False
        return True

    def _read_into(self, view: memoryview) -> int:
        try:
            count: int = self._stream.readinto(view) or 0
            if count == 0 and self._frames is not None and not self._frames.whole:
                raise EOFError(_ENDS_EARLY)
            return count
        except (EOFError, zlib.error) as error:
            return self._cut(error)
        except OSError as error:
            raise CaptureError(f"{self.name}: reading stopped at byte {self.position}: {error}") from error
        except Exception as error:
            if type(error).__module__.startswith("zstandard"):
                return self._cut(error)
            raise

    def _cut(self, error: Exception) -> int:
        if self.offset + self.available == 0:
            raise CaptureError(f"{self.name}: not a readable {self.compression} file: {error}") from error
        self.cut = True
        return 0

    def close(self) -> None:
        """Close what this object opened."""
        if self._ahead is not None:
            self._ahead.close()
        stream = getattr(self, "_stream", None)
        if stream is not None and stream is not self._raw:
            stream.close()
        if self._owned:
            self._raw.close()


class _ReadAhead:
    """Fills blocks from a stream in a thread; a block is valid until the next but one is asked for."""

    def __init__(self, read_into: Callable[[memoryview], int]) -> None:
        self._read_into = read_into
        self._empty: queue.SimpleQueue[NDArray[np.uint8] | None] = queue.SimpleQueue()
        self._full: queue.SimpleQueue[tuple[NDArray[np.uint8], int] | BaseException] = queue.SimpleQueue()
        for _ in range(_BLOCKS):
            self._empty.put(np.empty(_HEADROOM + _BUFFER_BYTES, np.uint8))
        self._lent: list[NDArray[np.uint8]] = []
        self._thread = threading.Thread(target=self._read, name="capture file", daemon=True)
        self._thread.start()

    def next(self) -> tuple[NDArray[np.uint8], int]:
        """The next block and its byte count, 0 at the end of the stream; the bytes begin at _HEADROOM."""
        if len(self._lent) == 2:
            self._empty.put(self._lent.pop(0))
        item = self._full.get()
        if isinstance(item, BaseException):
            raise item
        self._lent.append(item[0])
        return item

    def _read(self) -> None:
        try:
            while (block := self._empty.get()) is not None:
                count = self._read_into(memoryview(block)[_HEADROOM:])  # type: ignore[arg-type]
                self._full.put((block, count))
                if count == 0:
                    return
        except BaseException as error:  # noqa: BLE001 - handed to the reader, which raises it
            self._full.put(error)

    def close(self) -> None:
        """End the thread; waits for at most one read."""
        self._empty.put(None)
        self._thread.join()


class _Gunzip:
    """Gzip members one after another. Unlike the standard library's file object, it gives all bytes before a cut."""

    def __init__(self, compressed: Any) -> None:
        self._compressed = compressed
        self._pending = b""
        self._member: Any = zlib.decompressobj(wbits=31)
        self._inside = False

    def readinto(self, view: memoryview) -> int:
        while True:
            if not self._pending:
                self._pending = self._compressed.read1(1 << 18)
                if not self._inside:
                    # Zero bytes may pad the file between and after members.
                    self._pending = self._pending.lstrip(b"\0")
                    if not self._pending and self._compressed.peek(1):
                        continue
            if not self._pending:
                if self._inside:
                    raise EOFError(_ENDS_EARLY)
                return 0
            self._inside = True
            data = self._member.decompress(self._pending, len(view))
            self._pending = self._member.unconsumed_tail
            if self._member.eof:
                self._pending = self._member.unused_data.lstrip(b"\0")
                self._member = zlib.decompressobj(wbits=31)
                self._inside = False
            if data:
                view[: len(data)] = data
                return len(data)

    def close(self) -> None:
        self._compressed.close()


class _Peeked(io.RawIOBase):
    """A raw stream whose first bytes were already taken; counts what is read, and shows it to a watcher."""

    def __init__(self, head: bytes, rest: BinaryIO, watcher: ZstdFrames | None) -> None:
        self._watcher = watcher
        self._head = head
        self._rest = rest
        self.taken = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        view = memoryview(buffer)
        if self._head:
            count = min(len(view), len(self._head))
            view[:count] = self._head[:count]
            self._head = self._head[count:]
        else:
            count = self._rest.readinto(view) or 0  # type: ignore[attr-defined]
        self.taken += count
        if self._watcher is not None:
            self._watcher.feed(view[:count])
        return count
