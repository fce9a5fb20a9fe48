"""Write packets as pcapng (draft-ietf-opsawg-pcapng): one section, one interface, nanoseconds,
in the byte order of this machine.

Blocks are formatted by compiled code, a whole batch at a time, and handed to the kernel in one
unbuffered write: what has been written is readable up to the last whole packet at any moment.
"""

from __future__ import annotations

import errno
import os
import platform
import stat
import struct
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from dinnet import __version__
from dinnet.capture.packet import Frames
from dinnet.errors import DinnetError, reason
from dinnet.jit import compiled

_SECTION_HEADER: Final = 0x0A0D0D0A
_INTERFACE_DESCRIPTION: Final = 1
_INTERFACE_STATISTICS: Final = 5
_ENHANCED_PACKET: Final = 6
_BYTE_ORDER_MAGIC: Final = 0x1A2B3C4D
_LENGTH_UNKNOWN: Final = -1

_OPT_SHB_OS: Final = 3
_OPT_SHB_USERAPPL: Final = 4
_OPT_IF_NAME: Final = 2
_OPT_IF_TSRESOL: Final = 9
_OPT_ISB_STARTTIME: Final = 2
_OPT_ISB_ENDTIME: Final = 3
_OPT_ISB_IFRECV: Final = 4
_OPT_ISB_IFDROP: Final = 5

#: Bytes that an enhanced packet block adds to the padded packet data.
EPB_OVERHEAD: Final = 32

_DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


@compiled
def encode_packets(
    buf: NDArray[np.uint8],
    frames: Frames,
    times_ns: NDArray[np.int64],
    out: NDArray[np.uint8],
    out_words: NDArray[np.uint32],
) -> int:
    """Format enhanced packet blocks for interface 0 into `out`; the bytes used. `out_words` is `out` as words."""
    at = 0
    for i in range(frames.shape[0]):
        length = int(frames[i]["captured"])
        padded = (length + 3) & ~3
        stamp = int(times_ns[i])
        source = int(frames[i]["offset"])
        word = at >> 2
        end = at + 28 + padded
        out_words[word] = 6
        out_words[word + 1] = padded + 32
        out_words[word + 2] = 0
        out_words[word + 3] = stamp >> 32
        out_words[word + 4] = stamp & 0xFFFFFFFF
        out_words[word + 5] = length
        out_words[word + 6] = frames[i]["wire"]
        if length & 3:
            out_words[(end >> 2) - 1] = 0
        out[at + 28 : at + 28 + length] = buf[source : source + length]
        out_words[end >> 2] = padded + 32
        at = end + 4
    return at


def _option(code: int, value: bytes) -> bytes:
    return struct.pack("=HH", code, len(value)) + value + b"\0" * (-len(value) % 4)


def _block(kind: int, body: bytes) -> bytes:
    total = len(body) + 12
    return struct.pack("=II", kind, total) + body + struct.pack("=I", total)


def _timestamp(time_ns: int) -> bytes:
    return struct.pack("=II", time_ns >> 32, time_ns & 0xFFFFFFFF)


_END_OF_OPTIONS: Final = b"\0\0\0\0"


def _section_header() -> bytes:
    options = _option(_OPT_SHB_OS, f"{platform.system()} {platform.release()}".encode())
    options += _option(_OPT_SHB_USERAPPL, f"dinnet {__version__}".encode())
    return _block(
        _SECTION_HEADER, struct.pack("=IHHq", _BYTE_ORDER_MAGIC, 1, 0, _LENGTH_UNKNOWN) + options + _END_OF_OPTIONS
    )


def _interface_description(link_type: int, snaplen: int, name: str) -> bytes:
    options = _option(_OPT_IF_NAME, name.encode()) + _option(_OPT_IF_TSRESOL, b"\x09")
    return _block(_INTERFACE_DESCRIPTION, struct.pack("=HHI", link_type, 0, snaplen) + options + _END_OF_OPTIONS)


class PcapngWriter:
    """A pcapng file that grows by whole batches of packets.

    Args:
        path: where to write; an existing file is replaced.
        link_type: LINKTYPE number of the frames (1 = Ethernet, 101 = raw IP).
        snaplen: the most bytes kept of a packet, 0 for no limit.
        interface: name of the interface that the packets come from.

    Raises:
        DinnetError: the file cannot be created or written. On a full disk the file is cut back to
            its last whole packet and stays readable.
    """

    def __init__(self, path: Path | str, *, link_type: int, snaplen: int, interface: str) -> None:
        self.path = Path(path)
        self.packets = 0
        self._scratch = np.empty(0, np.uint8)
        self._first_ns: int | None = None
        self._last_ns = 0
        try:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise DinnetError(f"{self.path}: cannot write packets here: {reason(error)}") from error
        self._regular = stat.S_ISREG(os.fstat(self._fd).st_mode)
        self._size = 0
        try:
            self._append(_section_header() + _interface_description(link_type, snaplen, interface))
        except BaseException:
            self._close_fd()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close_fd()

    @property
    def closed(self) -> bool:
        return self._fd < 0

    @property
    def size(self) -> int:
        """Bytes of the file so far."""
        return self._size

    def write(self, buf: NDArray[np.uint8], frames: Frames, times_ns: NDArray[np.int64]) -> None:
        """Append packets, in the order given.

        Args:
            buf: bytes that hold the packets.
            frames: where each packet lies in `buf` and its two lengths, FRAME_DTYPE, shape (n,).
                Its microseconds are not used.
            times_ns: nanoseconds since 1970, shape (n,).
        """
        if len(frames) == 0:
            return
        padded = (frames["captured"].astype(np.int64) + 3) & ~3
        needed = int(padded.sum()) + EPB_OVERHEAD * len(frames)
        if needed > len(self._scratch):
            self._scratch = np.empty((needed + needed // 4) & ~3, np.uint8)
        used = encode_packets(buf, frames, times_ns, self._scratch, self._scratch.view(np.uint32))
        self._append(self._scratch[:used].data)
        self.packets += len(frames)
        if self._first_ns is None:
            self._first_ns = int(times_ns[0])
        self._last_ns = max(self._last_ns, int(times_ns[-1]))

    def close(self, *, received: int | None = None, dropped: int | None = None) -> None:
        """Close the file, with an interface statistics block where counts are given.

        Args:
            received: packets that the kernel saw, dropped ones included.
            dropped: packets that the kernel had no room for. They are noted as `isb_ifdrop`, the
                option that capture tools show as dropped packets.
        """
        if self.closed:
            return
        try:
            if received is not None or dropped is not None:
                self._append(self._statistics(received, dropped))
        finally:
            self._close_fd()

    def _statistics(self, received: int | None, dropped: int | None) -> bytes:
        options = b""
        if self._first_ns is not None:
            options += _option(_OPT_ISB_STARTTIME, _timestamp(self._first_ns))
            options += _option(_OPT_ISB_ENDTIME, _timestamp(self._last_ns))
        if received is not None:
            options += _option(_OPT_ISB_IFRECV, struct.pack("=Q", received))
        if dropped is not None:
            options += _option(_OPT_ISB_IFDROP, struct.pack("=Q", dropped))
        body = struct.pack("=I", 0) + _timestamp(self._last_ns) + options + _END_OF_OPTIONS
        return _block(_INTERFACE_STATISTICS, body)

    def _append(self, blocks: bytes | memoryview) -> None:
        view = memoryview(blocks)
        done = 0
        while done < len(view):
            try:
                done += os.write(self._fd, view[done:])
            except OSError as error:
                whole, packets = _whole_blocks(view, done)
                self._size += whole
                self.packets += packets
                self._cut_back()
                raise DinnetError(self._failure(error)) from error
        self._size += done

    def _cut_back(self) -> None:
        """Drop the part of a block that a failed write has left at the end."""
        if self._regular:
            with suppress(OSError):
                os.ftruncate(self._fd, self._size)
        self._close_fd()

    def _failure(self, error: OSError) -> str:
        if error.errno in _DISK_FULL:
            return f"{self.path}: disk full; the file holds the first {self.packets} packets: free some space"
        return f"{self.path}: writing packets failed after {self.packets}: {reason(error)}"

    def _close_fd(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def _whole_blocks(view: memoryview, written: int) -> tuple[int, int]:
    """Bytes of the whole blocks among the first `written` bytes, and how many of them are packets."""
    at = packets = 0
    while at + 8 <= written:
        kind, total = struct.unpack_from("=II", view, at)
        if at + total > written:
            break
        at += total
        packets += kind == _ENHANCED_PACKET
    return at, packets
