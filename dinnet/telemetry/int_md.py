"""INT-MD over TCP/UDP (INT 2.1): the shim of section 5.7.2, the metadata header and the stack of 5.8."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Self

from dinnet.telemetry.metadata import Metadata, TelemetryError, words

SHIM_BYTES: Final = 4
HEADER_BYTES: Final = 12
VERSION: Final = 2
_HEADER_WORDS: Final = HEADER_BYTES // 4
_ALL: Final = 0xFFFF


class Kind(IntEnum):
    """What follows the shim (5.1)."""

    MD = 1
    DESTINATION = 2
    MX = 3


class NextProtocol(IntEnum):
    """What follows the stack (NPT)."""

    PAYLOAD = 0  # INT is told by DSCP or by a probe marker
    UDP_PAYLOAD = 1  # the shim holds the original destination port
    TRANSPORT = 2  # another transport header; the shim holds its IP protocol


@dataclass(frozen=True)
class Shim:
    """`length_words` counts what follows the shim: header and stack. `original` is a port, a protocol, or a DSCP."""

    kind: int
    next_protocol: int
    length_words: int
    original: int

    def encode(self) -> bytes:
        _check("shim", kind=(self.kind, 4), next_protocol=(self.next_protocol, 2), length_words=(self.length_words, 8))
        _check("shim", original=(self.original, 16 if self.next_protocol == NextProtocol.UDP_PAYLOAD else 8))
        return bytes((self.kind << 4 | self.next_protocol << 2, self.length_words)) + self.original.to_bytes(2)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Reserved bits are ignored.

        Raises:
            TelemetryError: There are fewer than 4 bytes, or NPT is none that 5.7.2 defines.
        """
        if len(data) < SHIM_BYTES:
            raise TelemetryError(f"an INT shim has {SHIM_BYTES} bytes, not {len(data)}")
        next_protocol = data[0] >> 2 & 3
        if next_protocol > NextProtocol.TRANSPORT:
            raise TelemetryError(f"next protocol type {next_protocol} of an INT shim is not defined")
        original = int.from_bytes(data[2:4])
        if next_protocol == NextProtocol.TRANSPORT:
            original &= 0xFF
        elif next_protocol == NextProtocol.PAYLOAD:
            original &= 0xFC
        return cls(data[0] >> 4, next_protocol, data[1], original)


@dataclass(frozen=True)
class Header:
    """The 12 bytes in front of the stack."""

    instructions: int
    hop_words: int  # Hop ML
    remaining_hops: int
    discard: bool = False
    hops_exceeded: bool = False
    mtu_exceeded: bool = False
    domain: int = 0
    domain_instructions: int = 0
    domain_flags: int = 0
    version: int = VERSION

    def encode(self) -> bytes:
        _check(
            "INT header", version=(self.version, 4), hop_words=(self.hop_words, 5),
            remaining_hops=(self.remaining_hops, 8), instructions=(self.instructions, 16), domain=(self.domain, 16),
            domain_instructions=(self.domain_instructions, 16), domain_flags=(self.domain_flags, 16),
        )  # fmt: skip
        flags = self.discard << 27 | self.hops_exceeded << 26 | self.mtu_exceeded << 25
        first = self.version << 28 | flags | self.hop_words << 8 | self.remaining_hops
        rest = (self.instructions, self.domain, self.domain_instructions, self.domain_flags)
        return first.to_bytes(4) + b"".join(number.to_bytes(2) for number in rest)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Reserved bits are ignored.

        Raises:
            TelemetryError: There are fewer than 12 bytes, or it is of another version.
        """
        if len(data) < HEADER_BYTES:
            raise TelemetryError(f"an INT-MD header has {HEADER_BYTES} bytes, not {len(data)}")
        first = int.from_bytes(data[:4])
        if first >> 28 != VERSION:
            raise TelemetryError(f"version {first >> 28} of INT-MD is not known, only {VERSION}")
        instructions, domain, asked, flags = (int.from_bytes(data[at : at + 2]) for at in (4, 6, 8, 10))
        discard, hops, mtu = (bool(first >> place & 1) for place in (27, 26, 25))
        return cls(instructions, first >> 8 & 0x1F, first & 0xFF, discard, hops, mtu, domain, asked, flags)


@dataclass(frozen=True)
class Stack:
    """Everything between the UDP header and what it was put in front of. The hop that the packet passed last is first.

    `source_only` is what the source alone added behind the hops for domain-specific instructions.
    """

    shim: Shim
    header: Header
    hops: tuple[Metadata, ...] = ()
    source_only: bytes = b""

    @classmethod
    def of(
        cls, header: Header, hops: tuple[Metadata, ...], original: int, next_protocol: int = NextProtocol.TRANSPORT
    ) -> Self:
        """A stack with the shim that belongs to it."""
        length = _HEADER_WORDS + header.hop_words * len(hops)
        return cls(Shim(Kind.MD, next_protocol, length, original), header, hops)

    def encode(self) -> bytes:
        """
        Raises:
            TelemetryError: The lengths contradict each other, or a value does not fit.
        """
        instructions, domain_bytes = self.header.instructions, _domain_words(self.header) * 4
        hops = b"".join(
            hop.encode(instructions & ~1) + b"\xff" * domain_bytes + _complement(hop, instructions) for hop in self.hops
        )
        length = HEADER_BYTES + len(hops) + len(self.source_only)
        if length != 4 * self.shim.length_words:
            raise TelemetryError(f"the shim says {self.shim.length_words} words where there are {length} bytes")
        return self.shim.encode() + self.header.encode() + hops + self.source_only

    @classmethod
    def decode(cls, data: bytes) -> tuple[Self, int]:
        """Read what follows a UDP header with INT's port; returns it and how many bytes it took.

        A domain's own metadata is skipped, where there is any.

        Raises:
            TelemetryError: It is no INT-MD, ends early, or its lengths contradict each other.
        """
        shim = Shim.decode(data)
        if shim.kind != Kind.MD:
            raise TelemetryError(f"the shim announces INT type {shim.kind}, not INT-MD")
        end = SHIM_BYTES + 4 * shim.length_words
        if shim.length_words < _HEADER_WORDS:
            raise TelemetryError(f"{shim.length_words} words are too few for an INT-MD header")
        if len(data) < end:
            raise TelemetryError(
                f"the shim says {shim.length_words} words, but {len(data) - SHIM_BYTES} bytes follow it"
            )
        header = Header.decode(data[SHIM_BYTES:])
        stack = data[SHIM_BYTES + HEADER_BYTES : end]
        domain_bytes = 4 * _domain_words(header)
        own = header.instructions & ~1
        step = 4 * header.hop_words
        if stack and not step:
            raise TelemetryError(f"{len(stack)} bytes of metadata of hops that add none")
        rest = len(stack) % step if step else 0
        if rest and not header.domain:
            raise TelemetryError(f"{len(stack)} bytes of metadata are no multiple of {header.hop_words} words")
        hops = []
        for at in range(0, len(stack) - rest, step or 1):
            hop = stack[at : at + step]
            ahead = 4 * words(own)
            tail = hop[ahead + domain_bytes :]
            hops.append(Metadata.decode(hop[:ahead] + tail, header.instructions))
        return cls(shim, header, tuple(hops), stack[len(stack) - rest :]), end


def _domain_words(header: Header) -> int:
    """Words of a domain's own metadata that each hop adds."""
    asked = words(header.instructions)
    if header.hop_words == asked:
        return 0
    if header.hop_words < asked or not header.domain:
        raise TelemetryError(f"{header.hop_words} words a hop, but {header.instructions:#06x} asks for {asked}")
    return header.hop_words - asked


def _complement(hop: Metadata, instructions: int) -> bytes:
    """The last word, which a domain's own metadata comes before."""
    return hop.encode(instructions & 1)


def _check(what: str, **fields: tuple[int, int]) -> None:
    for name, (value, width) in fields.items():
        if not 0 <= value < 1 << width:
            raise TelemetryError(f"{name} {value} of an {what} does not fit {width} bits")
