"""The walk over a ring block, on a block built by hand from linux/if_packet.h."""

from __future__ import annotations

import struct

import numpy as np

from dinnet.capture.packet import FRAME_DTYPE
from dinnet.capture.ring import walk_block

_ADDRESSES = bytes(range(1, 13))
_VLAN_VALID, _TPID_VALID = 0x10, 0x40
_MAC = 96  # offset of the packet from its header: tpacket3_hdr and sockaddr_ll end at 68


def _slot(packet: bytes, wire: int, sec: int, nsec: int, status: int = 1, tci: int = 0, tpid: int = 0) -> bytes:
    """A struct tpacket3_hdr, room, and the packet, padded to 16 bytes; the next offset is filled in later."""
    header = struct.pack("=6I2H2I2H8x", 0, sec, nsec, len(packet), wire, status, _MAC, _MAC + 14, 0, tci, tpid, 0)
    assert len(header) == 48
    slot = header + b"\xaa" * (_MAC - len(header)) + packet
    return slot + b"\xaa" * (-len(slot) % 16)


def _ring(slots: list[bytes], start: int) -> np.ndarray:
    body = b""
    for index, slot in enumerate(slots):
        following = len(slot) if index + 1 < len(slots) else 0
        body += struct.pack("=I", following) + slot[4:]
    first = 48
    descriptor = struct.pack("=6IQ4I", 1, 0, 1, len(slots), first, first + len(body), 9, 0, 0, 0, 0)
    assert len(descriptor) == 48
    data = b"\xbb" * start + descriptor + body
    return np.frombuffer(bytearray(data + b"\xbb" * (-len(data) % 16)), np.uint8)


def _walk(slots: list[bytes], *, start: int = 4096, link_type: int = 1, snaplen: int = 65535) -> list[tuple]:
    ring = _ring(slots, start)
    frames = np.zeros(len(slots) + 3, FRAME_DTYPE)
    times = np.zeros(len(slots) + 3, np.int64)
    count = walk_block(ring, ring.view(np.uint32), start, link_type, snaplen, frames, times)
    assert not frames[count:]["captured"].any()
    found = []
    for frame, time_ns in zip(frames[:count], times, strict=False):
        content = ring[frame["offset"] : frame["offset"] + frame["captured"]].tobytes()
        assert frame["time_us"] == time_ns // 1000
        assert frame["link_type"] == link_type
        found.append((content, int(frame["wire"]), int(time_ns)))
    return found


def test_packets_in_order_with_lengths_and_nanoseconds() -> None:
    first = _ADDRESSES + b"\x08\x00" + b"a" * 46
    second = _ADDRESSES + b"\x08\x00" + b"b" * 87
    assert _walk([_slot(first, 60, 1_764_500_000, 999_999_999), _slot(second, 1514, 3_000_000_000, 1)]) == [
        (first, 60, 1_764_500_000_999_999_999),
        (second, 1514, 3_000_000_000_000_000_001),  # after 2038: seconds are unsigned
    ]


def test_empty_block() -> None:
    assert _walk([]) == []


def test_vlan_tag_is_put_back() -> None:
    rest = b"\x08\x00" + b"x" * 46
    untagged = _slot(_ADDRESSES + rest, 60, 0, 0)
    # Priority 3, VLAN 42; the kernel of before 3.14 did not give the TPID.
    tagged = _slot(_ADDRESSES + rest, 60, 0, 0, 1 | _VLAN_VALID | _TPID_VALID, 0x602A, 0x88A8)
    old = _slot(_ADDRESSES + rest, 60, 0, 0, 1 | _VLAN_VALID, 0x002A)
    priority = _slot(_ADDRESSES + rest, 60, 0, 0, 1 | _VLAN_VALID | _TPID_VALID, 0, 0x8100)
    packets = _walk([untagged, tagged, old, priority])
    assert packets == [
        (_ADDRESSES + rest, 60, 0),
        (_ADDRESSES + b"\x88\xa8\x60\x2a" + rest, 64, 0),
        (_ADDRESSES + b"\x81\x00\x00\x2a" + rest, 64, 0),
        (_ADDRESSES + b"\x81\x00\x00\x00" + rest, 64, 0),
    ]


def test_snap_length_counts_the_tag() -> None:
    packet = _ADDRESSES + b"\x08\x00" + b"x" * 46
    [(content, wire, _)] = _walk([_slot(packet, 60, 0, 0, 1 | _VLAN_VALID | _TPID_VALID, 5, 0x8100)], snaplen=20)
    assert content == _ADDRESSES + b"\x81\x00\x00\x05\x08\x00" + b"xx"
    assert wire == 64


def test_tag_stays_out_of_what_is_no_ethernet_frame() -> None:
    ip = b"\x45\x00" + b"x" * 30
    flags = 1 | _VLAN_VALID | _TPID_VALID
    assert _walk([_slot(ip, 32, 0, 0, flags, 5, 0x8100)], link_type=101) == [(ip, 32, 0)]
    # Cut by the snap length inside the addresses: there is no place for it.
    assert _walk([_slot(_ADDRESSES[:10], 60, 0, 0, flags, 5, 0x8100)]) == [(_ADDRESSES[:10], 60, 0)]
