"""What the pipeline does to a frame, in plain Python, written from the protocols' and the P4 program's rules.

An oracle for hostile packets: it shares no code with the switch. Tables are those that `tests/fuzz_switch.py` sets;
meters and INT's own actions are not in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

TAGS: Final = (0x8100, 0x88A8)
EXTENSIONS: Final = frozenset({0, 43, 60, 135, 139, 140, 44, 51})
MOST_EXTENSIONS: Final = 8
INT_PORT: Final = 4793


class Malformed(Exception):
    """The frame contradicts itself, or ends too early."""


@dataclass
class Parsed:
    """What tables look at. `version` 0: no IP packet."""

    version: int = 0
    l3: int = 14
    vlan: int = 0
    src: int = 0
    dst: int = 0
    proto: int = 0
    sport: int = 0
    dport: int = 0
    ttl: int = 0
    tos: int = 0
    is_later_fragment: bool = False

    @property
    def kind(self) -> str:
        """The cell of the counter `parsed`."""
        if not self.version:
            return "NOT_IP"
        return "FRAGMENT" if self.is_later_fragment else f"IPV{self.version}"


def number(frame: bytes, at: int, size: int) -> int:
    """`size` bytes in network order; the frame may end before them."""
    if at + size > len(frame):
        raise Malformed
    return int.from_bytes(frame[at : at + size])


def parse(frame: bytes) -> Parsed:
    """Raises: Malformed."""
    p = Parsed()
    kind, tags = number(frame, 12, 2), 0
    while kind in TAGS and tags < 2:
        tci, kind = number(frame, p.l3, 2), number(frame, p.l3 + 2, 2)
        if not tags:
            p.vlan = tci & 0xFFF
        p.l3 += 4
        tags += 1
    if kind == 0x0800:
        _ipv4(frame, p)
    elif kind == 0x86DD:
        _ipv6(frame, p)
    return p


def _ipv4(frame: bytes, p: Parsed) -> None:
    at = p.l3
    number(frame, at, 20)
    size, total = (frame[at] & 15) * 4, number(frame, at + 2, 2)
    if frame[at] >> 4 != 4 or size < 20 or total < size or at + size > len(frame):
        raise Malformed
    p.version, p.tos, p.ttl, p.proto = 4, frame[at + 1], frame[at + 8], frame[at + 9]
    p.src, p.dst = (0xFFFF << 32 | number(frame, at + place, 4) for place in (12, 16))
    fragment = number(frame, at + 6, 2)
    p.is_later_fragment = fragment & 0x1FFF != 0
    if p.is_later_fragment:
        return
    is_plain = fragment & 0x3FFF == 0
    at, rest = at + size, total - size
    if p.proto == 51:
        at, rest, p.proto, is_plain = *_skip(frame, at, rest, (number(frame, at + 1, 1) + 2) * 4), frame[at], False
    _transport(frame, p, at, rest, is_plain)


def _ipv6(frame: bytes, p: Parsed) -> None:
    at = p.l3
    number(frame, at, 40)
    rest = number(frame, at + 4, 2)
    if frame[at] >> 4 != 6 or rest > 65495:
        raise Malformed
    p.version, p.tos, p.ttl, p.proto = 6, number(frame, at, 2) >> 4 & 0xFF, frame[at + 7], frame[at + 6]
    p.src, p.dst = number(frame, at + 8, 16), number(frame, at + 24, 16)
    at += 40
    is_plain = True
    for _ in range(MOST_EXTENSIONS):
        if p.proto not in EXTENSIONS:
            break
        is_plain = False
        number(frame, at, 4)
        size = {44: 8, 51: (frame[at + 1] + 2) * 4}.get(p.proto, (frame[at + 1] + 1) * 8)
        is_fragment, offset, following = p.proto == 44, number(frame, at + 2, 2) & 0xFFF8, frame[at]
        at, rest = _skip(frame, at, rest, size)
        p.proto = following
        if is_fragment and offset:
            p.is_later_fragment = True
            return
    _transport(frame, p, at, rest, is_plain)


def _skip(frame: bytes, at: int, rest: int, size: int) -> tuple[int, int]:
    if rest < size or at + size > len(frame):
        raise Malformed
    return at + size, rest - size


def _transport(frame: bytes, p: Parsed, at: int, rest: int, is_plain: bool) -> None:
    least = {6: 20, 17: 8, 136: 8, 33: 4, 132: 4}.get(p.proto, 0)
    if not least:
        return
    if rest < least:
        raise Malformed
    number(frame, at, least)
    if p.proto == 6 and not 20 <= (frame[at + 12] >> 4) * 4 <= rest:
        raise Malformed
    p.sport, p.dport = number(frame, at, 2), number(frame, at + 2, 2)
    if p.proto == 17 and p.dport == INT_PORT and is_plain and number(frame, at + 4, 2) == rest and rest >= 24:
        _int(frame, p, at, rest)


def _int(frame: bytes, p: Parsed, at: int, rest: int) -> None:
    """INT-MD in front of another transport header: tables see that one."""
    number(frame, at + 8, 4)
    kind, words, inner = frame[at + 8], frame[at + 9], frame[at + 11]
    size, least = 12 + words * 4, 20 if inner == 6 else 8
    if kind >> 2 != 0b000110 or words < 3 or inner not in (6, 17) or rest < size + least:
        return
    number(frame, at + size, least)
    if inner == 6 and not 20 <= (frame[at + size + 12] >> 4) * 4 <= rest - size:
        return
    p.proto, p.sport, p.dport = inner, number(frame, at + size, 2), number(frame, at + size + 2, 2)


@dataclass
class Tables:
    """Routes are (version, network, prefix bits); everything else leaves by the same port, as it is."""

    routes: list[tuple[int, int, int]]
    macs: bytes  # destination and source that a route writes
    selects: list[tuple[int, dict[str, tuple[int, int]], int, int]]  # priority, {field: (value, mask)}, slice, tc
    microflows: dict[tuple[int, int, int, int, int, int], tuple[int, int]]  # src, dst, proto, sport, dport, vlan
    dscp: dict[int, int]  # by slice << 2 | tc
    counted: dict[str, int] = field(default_factory=dict)  # packets by cell of `parsed` and `drops`

    def pass_through(self, frame: bytes) -> bytes | None:
        """The frame as it leaves; None: it is dropped. Counts."""
        try:
            p = parse(frame)
        except Malformed:
            self._count("parsed MALFORMED")
            self._count("drops MALFORMED")
            return None
        self._count(f"parsed {p.kind}")
        out = bytearray(frame)
        if not p.version:
            return bytes(out)
        bits = 32 if p.version == 4 else 128
        dst = p.dst & ((1 << bits) - 1)
        if any(version == p.version and dst >> (bits - n) == net >> (bits - n) for version, net, n in self.routes):
            if p.ttl <= 1:
                self._count("drops TTL")
                return None
            out[:12] = self.macs
            _change(out, p, 8 if p.version == 4 else 7, p.ttl - 1)
        index = self._mark(p)
        tos = self.dscp.get(index, index) << 2 | p.tos & 3
        if tos != p.tos and p.version == 4:
            _change(out, p, 1, tos)
        elif tos != p.tos:
            out[p.l3] = 0x60 | tos >> 4
            out[p.l3 + 1] = (tos & 15) << 4 | out[p.l3 + 1] & 15
        return bytes(out)

    def _mark(self, p: Parsed) -> int:
        key = (p.src, p.dst, p.proto, p.sport, p.dport, p.vlan)
        if not p.is_later_fragment and key in self.microflows:
            slice_number, tc = self.microflows[key]
            return slice_number << 2 | tc
        matching = [
            (priority, slice_number << 2 | tc)
            for priority, match, slice_number, tc in self.selects
            if all(getattr(p, name) & mask == value for name, (value, mask) in match.items())
        ]
        return max(matching)[1] if matching else 0

    def _count(self, cell: str) -> None:
        self.counted[cell] = self.counted.get(cell, 0) + 1


def _change(out: bytearray, p: Parsed, place: int, value: int) -> None:
    """Set a byte of the IP header, and with IPv4 the checksum by RFC 1624, equation 3: HC' = ~(~HC + ~m + m')."""
    at = p.l3 + place
    shift = 0 if place % 2 else 8
    old, out[at] = out[at] << shift, value
    if p.version != 4:
        return
    total = (0xFFFF - number(out, p.l3 + 10, 2)) + (0xFFFF - old)
    total = (total & 0xFFFF) + (total >> 16) + (value << shift)
    total = (total & 0xFFFF) + (total >> 16)
    out[p.l3 + 10 : p.l3 + 12] = (0xFFFF - total).to_bytes(2)


def has_right_checksum(frame: bytes, l3: int) -> bool:
    """RFC 1071 over an IPv4 header."""
    size = (frame[l3] & 15) * 4
    total = sum(int.from_bytes(frame[at : at + 2]) for at in range(l3, l3 + size, 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total == 0xFFFF
