# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False, check-untyped-defs=False
# (numba infers the types of kernels from their arguments)
"""The classic pcap format (draft-ietf-opsawg-pcap): a file header, then records."""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from dinnet.capture.errors import CaptureError
from dinnet.capture.memory import be32, le32
from dinnet.capture.parse import LINK_TYPES
from dinnet.capture.source import ByteSource
from dinnet.jit import compiled

#: A captured frame larger than this is taken for damage: the largest that any capture tool writes is 256 KiB.
MAX_FRAME_BYTES: Final = 1 << 24

_MICROSECONDS: Final = 0xA1B2C3D4
_NANOSECONDS: Final = 0xA1B23C4D

#: Formats that look alike and are not read: magic -> name.
OTHER_FORMATS: Final = {
    b"\xa1\xb2\xcd\x34": "a modified (Kuznetzov) pcap file",
    b"\x34\xcd\xb2\xa1": "a modified (Kuznetzov) pcap file",
    b"\xa1\xe2\xcb\x12": "a NAVTEL pcap file",
    b"\x12\xcb\xe2\xa1": "a NAVTEL pcap file",
    b"\xa1\xb2\xc3\xcd": "an Alexey Kuznetzov ss990915 pcap file",
    b"snoo": "a snoop file",
    b"BZh9": "a bzip2 file",
    b"\xfd7zX": "an xz file",
    b"PK\x03\x04": "a zip file",
}

#: What a walk over records stopped at.
NEED_MORE: Final = 0
FULL: Final = 1
DAMAGED: Final = 2
FOREIGN_LINK: Final = 3
HEADER_BLOCK: Final = 4
LARGE_BLOCK: Final = 5


#: Link types that are met now and then and are not read (tcpdump.org/linktypes.html), for messages.
_FOREIGN_LINK_TYPES: Final = {
    6: "IEEE802_5",
    8: "SLIP",
    10: "FDDI",
    100: "ATM_RFC1483",
    104: "C_HDLC",
    105: "IEEE802_11",
    107: "FRELAY",
    117: "PFLOG",
    119: "IEEE802_11_PRISM",
    127: "IEEE802_11_RADIOTAP",
    143: "DOCSIS",
    163: "IEEE802_11_AVS",
    187: "BLUETOOTH_HCI_H4",
    189: "USB_LINUX",
    192: "PPI",
    195: "IEEE802_15_4_WITHFCS",
    201: "BLUETOOTH_HCI_H4_WITH_PHDR",
    220: "USB_LINUX_MMAPPED",
    227: "CAN_SOCKETCAN",
    230: "IEEE802_15_4_NOFCS",
    239: "NFLOG",
    249: "USBPCAP",
    251: "BLUETOOTH_LE_LL",
    253: "NETLINK",
    258: "PKTAP",
}


def link_name(link_type: int) -> str:
    """How a link type is named in messages."""
    return LINK_TYPES.get(link_type) or _FOREIGN_LINK_TYPES.get(link_type) or f"LINKTYPE {link_type}"


def refused_link(link_type: int) -> str:
    """What a message says of a link type that is not read."""
    name = _FOREIGN_LINK_TYPES.get(link_type)
    return f"link type {link_type}{f' ({name})' if name else ''}"


class PcapReader:
    """Walks the records of a pcap file; `walk` fills frames from what is in the source's window."""

    def __init__(self, source: ByteSource) -> None:
        if not source.fill(24):
            raise CaptureError(f"{source.name}: the pcap header is cut after {source.available} of 24 bytes")
        head = source.data[source.start : source.start + 24].tobytes()
        self.big_endian = head[0] == 0xA1
        order = ">" if self.big_endian else "<"
        magic, major, minor, _zone, _sigfigs, snap_length, link = struct.unpack(f"{order}IHHiIII", head)
        if major != 2:
            raise CaptureError(f"{source.name}: pcap version {major}.{minor} is not known (2.4 is)")
        self.nanoseconds = magic == _NANOSECONDS
        self.snap_length = snap_length
        self.link_type = link & 0xFFFF  # the upper bits hold the length of a frame check sequence
        if self.link_type not in LINK_TYPES:
            raise CaptureError(f"{source.name}: {refused_link(self.link_type)} is not supported")
        self.link_types = [self.link_type]
        self.interfaces = 1
        self.format = "pcap (nanoseconds)" if self.nanoseconds else "pcap"
        source.consume(24)

    def walk(self, source: ByteSource, frames: np.ndarray, first: int) -> tuple[int, int]:
        """Fill `frames[first:]`; returns (frames filled in all, why it stopped)."""
        count, position, status = _walk_pcap(
            source.data, source.start, source.end, self.big_endian, self.nanoseconds, self.link_type, frames, first
        )
        source.consume(position - source.start)
        return count, status

    def advance(self, source: ByteSource, status: int) -> bool:
        """Get past what stopped the walk; False at the end of the capture."""
        if status == DAMAGED:
            raise CaptureError(
                f"{source.name}: damaged record at byte {source.offset}: no capture tool writes a frame that long"
            )
        need = 16
        if source.available >= 16:
            need += int(np.frombuffer(source.data, ">u4" if self.big_endian else "<u4", 1, source.start + 8)[0])
        return source.fill(need)


@compiled
def _walk_pcap(data, start, end, big_endian, nanoseconds, link_type, frames, first):
    count = first
    position = start
    limit = len(frames)
    while count < limit:
        if position + 16 > end:
            return count, position, NEED_MORE
        if big_endian:
            seconds = np.int64(be32(data, position))
            fraction = np.int64(be32(data, position + 4))
            captured = np.int64(be32(data, position + 8))
            wire = np.int64(be32(data, position + 12))
        else:
            seconds = np.int64(le32(data, position))
            fraction = np.int64(le32(data, position + 4))
            captured = np.int64(le32(data, position + 8))
            wire = np.int64(le32(data, position + 12))
        if captured > MAX_FRAME_BYTES:
            return count, position, DAMAGED
        if position + 16 + captured > end:
            return count, position, NEED_MORE
        frame = frames[count]
        frame.offset = position + 16
        frame.time_us = seconds * 1_000_000 + (fraction // 1000 if nanoseconds else fraction)
        frame.captured = captured
        frame.wire = max(wire, captured)  # a shorter length than was captured is a writer's mistake
        frame.link_type = link_type
        position += 16 + captured
        count += 1
    return count, position, FULL
