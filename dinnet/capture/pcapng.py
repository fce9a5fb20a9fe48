# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False, check-untyped-defs=False
# (numba infers the types of kernels from their arguments)
"""The pcapng format (draft-ietf-opsawg-pcapng): sections of blocks, interfaces described inside the file."""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dinnet.capture.errors import CaptureError
from dinnet.capture.memory import be16, be32, le16, le32
from dinnet.capture.parse import LINK_TYPES
from dinnet.capture.pcap import (
    DAMAGED,
    FOREIGN_LINK,
    FULL,
    HEADER_BLOCK,
    LARGE_BLOCK,
    MAX_FRAME_BYTES,
    NEED_MORE,
    refused_link,
)
from dinnet.capture.source import ByteSource
from dinnet.jit import compiled

_SECTION_HEADER: Final = 0x0A0D0D0A
_INTERFACE: Final = 1
_PACKET: Final = 2  # obsolete, still written by old tools
_SIMPLE_PACKET: Final = 3
_ENHANCED_PACKET: Final = 6

#: Bytes of a packet block without a packet.
_LEAST_PACKET_BYTES: Final = {_PACKET: 32, _SIMPLE_PACKET: 16, _ENHANCED_PACKET: 32}

#: Bounds what a hostile file can make the reader remember.
_MAX_INTERFACES: Final = 65_536
#: Section headers and interface descriptions are held whole; none is longer than this in earnest.
_MAX_HEADER_BYTES: Final = 1 << 22

_OPTION_END, _OPTION_TSRESOL, _OPTION_TSOFFSET = 0, 9, 14

#: What the walk needs to know of an interface. A time stamp t is, in microseconds,
#: t * multiply (resolutions up to 10^-6), t // divide (finer powers of ten), or by shift (powers of two).
_INTERFACE_DTYPE = np.dtype(
    [
        ("offset_us", "<i8"),
        ("multiply", "<u8"),
        ("divide", "<u8"),
        ("shift", "<i4"),  # -1 where the resolution is a power of ten
        ("link_type", "<u4"),
        ("snap_length", "<u4"),
        ("supported", "<u4"),
    ]
)


class PcapngReader:
    """Walks the blocks of a pcapng file; interfaces are kept for one section at a time."""

    format = "pcapng"

    def __init__(self, source: ByteSource) -> None:
        self.big_endian = False
        self.link_types: list[int] = []
        self.interfaces = 0
        self._table: NDArray[np.void] = np.zeros(16, _INTERFACE_DTYPE)
        self._section_interfaces = 0
        self._clock = np.zeros(1, np.int64)  # time of the last packet that had one
        self._read_header_block(source)

    def walk(self, source: ByteSource, frames: np.ndarray, first: int) -> tuple[int, int]:
        """Fill `frames[first:]`; returns (frames filled in all, why it stopped)."""
        count, position, status = _walk_pcapng(
            source.data,
            source.start,
            source.end,
            self.big_endian,
            self._table,
            self._section_interfaces,
            self._clock,
            frames,
            first,
        )
        source.consume(position - source.start)
        return count, status

    def advance(self, source: ByteSource, status: int) -> bool:
        """Get past what stopped the walk; False at the end of the capture."""
        if status == HEADER_BLOCK:
            return self._read_header_block(source)
        if status == FOREIGN_LINK:
            interface = self._packet_interface(source)
            link_type = int(self._table[interface]["link_type"])
            raise CaptureError(
                f"{source.name}: {refused_link(link_type)} of interface {interface} is not supported "
                f"(byte {source.offset})"
            )
        if status == DAMAGED:
            raise CaptureError(f"{source.name}: damaged block at byte {source.offset}: {self._why(source)}")
        if source.available < 12:
            return source.fill(12)
        length = self._word(source, 4)
        if status == LARGE_BLOCK:
            source.cut |= not source.skip(length)
            return not source.cut
        return source.fill(length)

    def _why(self, source: ByteSource) -> str:
        """What is wrong with the block at the window's start, of which 12 bytes are there at least."""
        kind, length = self._word(source, 0), self._word(source, 4)
        if length < 12 or length % 4:
            return f"its length is {length}"
        least = _LEAST_PACKET_BYTES[kind]
        if length < least:
            return f"its length {length} is too short for its type, which takes {least} bytes at least"
        if length > MAX_FRAME_BYTES:
            return f"its length is {length}: no capture tool writes a packet that long"
        interface = self._packet_interface(source)
        if interface >= self._section_interfaces:
            return f"its interface {interface} has no description"
        return f"its packet is longer than the block's {length} bytes"

    def _word(self, source: ByteSource, at: int) -> int:
        order = ">u4" if self.big_endian else "<u4"
        return int(np.frombuffer(source.data, order, 1, source.start + at)[0])

    def _packet_interface(self, source: ByteSource) -> int:
        kind = self._word(source, 0)
        if kind == _SIMPLE_PACKET:
            return 0
        word = self._word(source, 8)
        if kind == _PACKET:
            return word >> 16 if self.big_endian else word & 0xFFFF
        return word

    def _read_header_block(self, source: ByteSource) -> bool:
        """Read the section header or interface description at the window's start; False where it is cut."""
        if not source.fill(12):
            return False
        head = source.data[source.start : source.start + 12].tobytes()
        if head[:4] == b"\x0a\x0d\x0d\x0a":
            if head[8:] == b"\x1a\x2b\x3c\x4d":
                self.big_endian = True
            elif head[8:] == b"\x4d\x3c\x2b\x1a":
                self.big_endian = False
            else:
                raise CaptureError(f"{source.name}: damaged section header at byte {source.offset}")
        length = self._word(source, 4)
        if length < 12 or length % 4 or length > _MAX_HEADER_BYTES:
            raise CaptureError(f"{source.name}: damaged block at byte {source.offset}: its length is {length}")
        if not source.fill(length):
            return False
        block = source.data[source.start : source.start + length].tobytes()
        order = ">" if self.big_endian else "<"
        if head[:4] == b"\x0a\x0d\x0d\x0a":
            if length < 28:
                raise CaptureError(
                    f"{source.name}: damaged section header at byte {source.offset}: its length {length} is too short"
                )
            if struct.unpack_from(f"{order}H", block, 12)[0] != 1:
                raise CaptureError(f"{source.name}: unknown pcapng version at byte {source.offset}")
            self._section_interfaces = 0
        else:
            self._add_interface(source, block, order)
        source.consume(length)
        return True

    def _add_interface(self, source: ByteSource, block: bytes, order: str) -> None:
        if len(block) < 20:
            raise CaptureError(
                f"{source.name}: damaged interface description at byte {source.offset}: "
                f"its length {len(block)} is too short"
            )
        if self._section_interfaces == _MAX_INTERFACES:
            raise CaptureError(f"{source.name}: more than {_MAX_INTERFACES} interfaces in one section")
        if self._section_interfaces == len(self._table):
            grown = np.zeros(2 * len(self._table), _INTERFACE_DTYPE)
            grown[: len(self._table)] = self._table
            self._table = grown
        link_type, _reserved, snap_length = struct.unpack_from(f"{order}HHI", block, 8)
        resolution, offset_s = _time_options(block[16:-4], order)
        entry = self._table[self._section_interfaces]
        entry["link_type"] = link_type
        entry["snap_length"] = snap_length
        entry["supported"] = link_type in LINK_TYPES
        entry["offset_us"] = max(min(offset_s, 9 * 10**12), -9 * 10**12) * 1_000_000
        entry["multiply"] = entry["divide"] = 1
        entry["shift"] = -1
        exponent = resolution & 0x7F
        if resolution & 0x80:
            entry["shift"] = exponent
        elif exponent <= 6:
            entry["multiply"] = 10 ** (6 - exponent)
        else:
            # Beyond 10^-25 a 64-bit count of units is less than a microsecond in all.
            entry["divide"] = 10 ** min(exponent - 6, 19)
        self._section_interfaces += 1
        self.interfaces += 1
        if link_type not in self.link_types and len(self.link_types) < 64:
            self.link_types.append(link_type)


def _time_options(options: bytes, order: str) -> tuple[int, int]:
    """if_tsresol and if_tsoffset from an interface's options; their defaults are 6 and 0."""
    resolution, offset_s = 6, 0
    position = 0
    while position + 4 <= len(options):
        code, length = struct.unpack_from(f"{order}HH", options, position)
        position += 4
        value = options[position : position + length]
        if code == _OPTION_END or len(value) < length:
            break
        if code == _OPTION_TSRESOL and length == 1:
            resolution = value[0]
        elif code == _OPTION_TSOFFSET and length == 8:
            offset_s = struct.unpack(f"{order}q", value)[0]
        position += (length + 3) & ~3
    return resolution, offset_s


@compiled
def _microseconds(high, low, interface):
    """A 64-bit time stamp in an interface's own unit as microseconds since 1970, floored."""
    stamp = (np.uint64(high) << np.uint64(32)) | np.uint64(low)
    million = np.uint64(1_000_000)
    if interface.shift < 0:
        if interface.divide > np.uint64(1):
            whole = stamp // interface.divide
        else:
            whole = stamp * interface.multiply
    else:
        shift = np.uint64(interface.shift)
        if shift >= np.uint64(64):
            return interface.offset_us
        seconds = stamp >> shift
        fraction = stamp - (seconds << shift)
        if shift > np.uint64(44):  # keep fraction * 10^6 within 64 bits: drops parts of 2^-44 s
            fraction >>= shift - np.uint64(44)
            shift = np.uint64(44)
        whole = seconds * million + ((fraction * million) >> shift)
    return np.int64(whole & np.uint64(0x3FFFFFFFFFFFFFFF)) + interface.offset_us


@compiled
def _word(data, position, big_endian):
    return np.int64(be32(data, position)) if big_endian else np.int64(le32(data, position))


@compiled
def _walk_pcapng(data, start, end, big_endian, table, interfaces, clock, frames, first):
    count = first
    position = start
    limit = len(frames)
    while count < limit:
        if position + 12 > end:
            return count, position, NEED_MORE
        kind = _word(data, position, big_endian)
        if kind in (_SECTION_HEADER, _INTERFACE):
            return count, position, HEADER_BLOCK
        length = _word(data, position + 4, big_endian)
        if length < 12 or length & 3:
            return count, position, DAMAGED
        if kind not in (_ENHANCED_PACKET, _SIMPLE_PACKET, _PACKET):
            if position + length > end:
                return count, position, LARGE_BLOCK
            position += length
            continue
        if length > MAX_FRAME_BYTES:
            return count, position, DAMAGED
        if position + length > end:
            return count, position, NEED_MORE
        if kind == _SIMPLE_PACKET:
            interface_id = np.int64(0)
            header = 12
            wire = _word(data, position + 8, big_endian)
            captured = min(wire, length - 16)
            high = low = np.int64(0)
        else:
            header = 28
            if length < 32:
                return count, position, DAMAGED
            if kind == _PACKET:
                interface_id = np.int64(be16(data, position + 8)) if big_endian else np.int64(le16(data, position + 8))
            else:
                interface_id = _word(data, position + 8, big_endian)
            high = _word(data, position + 12, big_endian)
            low = _word(data, position + 16, big_endian)
            captured = _word(data, position + 20, big_endian)
            wire = _word(data, position + 24, big_endian)
        if length < header + 4 or captured > length - header - 4 or interface_id >= interfaces:
            return count, position, DAMAGED
        interface = table[interface_id]
        if not interface.supported:
            return count, position, FOREIGN_LINK
        frame = frames[count]
        if kind == _SIMPLE_PACKET:
            # No time stamp in this block: it counts as captured with the packet before it.
            frame.time_us = clock[0]
            if interface.snap_length and captured > interface.snap_length:
                captured = np.int64(interface.snap_length)
        else:
            frame.time_us = clock[0] = _microseconds(high, low, interface)
        frame.offset = position + header
        frame.captured = captured
        frame.wire = max(wire, captured)
        frame.link_type = interface.link_type
        position += length
        count += 1
    return count, position, FULL
