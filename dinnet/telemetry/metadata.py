"""What a hop tells about a packet: the baseline metadata of INT 2.1 (sections 4 and 5.8).

The same words stand in the stack of an INT-MD packet and in a telemetry report's main contents.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntFlag
from typing import Any, Final, Self

import numpy as np


class TelemetryError(ValueError):
    """Bytes that are no telemetry, or values that have no encoding."""


class Instruction(IntFlag):
    """The instruction bitmap, and RepMdBits of a report; bit 0 is the highest."""

    NODE_ID = 1 << 15
    PORTS = 1 << 14
    HOP_LATENCY = 1 << 13
    QUEUE = 1 << 12
    INGRESS_TIME = 1 << 11
    EGRESS_TIME = 1 << 10
    INTERFACES = 1 << 9
    TX_UTILIZATION = 1 << 8
    BUFFER = 1 << 7
    CHECKSUM_COMPLEMENT = 1


#: Bits 9 to 14, each of which stands for one word that is not defined yet.
RESERVED: Final = 0xFFFF & ~int(sum(Instruction))
_LONG: Final = Instruction.INGRESS_TIME | Instruction.EGRESS_TIME | Instruction.INTERFACES
#: Fields in the order of the bits: name, and bits of width.
_LAYOUT: Final = {
    Instruction.NODE_ID: (("node_id", 32),),
    Instruction.PORTS: (("ingress_port", 16), ("egress_port", 16)),
    Instruction.HOP_LATENCY: (("hop_latency_ns", 32),),
    Instruction.QUEUE: (("queue_id", 8), ("queue_occupancy", 24)),
    Instruction.INGRESS_TIME: (("ingress_ns", 64),),
    Instruction.EGRESS_TIME: (("egress_ns", 64),),
    Instruction.INTERFACES: (("ingress_interface", 32), ("egress_interface", 32)),
    Instruction.TX_UTILIZATION: (("tx_utilization", 32),),
    Instruction.BUFFER: (("buffer_id", 8), ("buffer_occupancy", 24)),
    Instruction.CHECKSUM_COMPLEMENT: (("checksum_complement", 32),),
}


def words(instructions: int) -> int:
    """How many 4-byte words a hop adds for an instruction bitmap; a reserved bit counts as one (INT 2.1, 5.8)."""
    return (instructions & 0xFFFF).bit_count() + (instructions & int(_LONG)).bit_count()


@dataclass(frozen=True)
class Metadata:
    """One hop. None: not asked for, or the hop could not tell (all ones). Units of occupancies are the node's own."""

    node_id: int | None = None
    ingress_port: int | None = None
    egress_port: int | None = None
    hop_latency_ns: int | None = None
    queue_id: int | None = None
    queue_occupancy: int | None = None
    ingress_ns: int | None = None
    egress_ns: int | None = None
    ingress_interface: int | None = None
    egress_interface: int | None = None
    tx_utilization: int | None = None
    buffer_id: int | None = None
    buffer_occupancy: int | None = None
    checksum_complement: int | None = None

    def encode(self, instructions: int) -> bytes:
        """The words that a bitmap asks for; all ones for reserved bits.

        Raises:
            TelemetryError: A value does not fit its field, or is what stands for "unknown".
        """
        out = []
        for bit in range(16):
            asked = instructions & 1 << 15 - bit
            if asked & RESERVED:
                out.append(b"\xff" * 4)
            elif asked:
                number = bits = 0
                for name, width in _LAYOUT[Instruction(asked)]:
                    number = number << width | _encoded(name, getattr(self, name), width)
                    bits += width
                out.append(number.to_bytes(bits // 8))
        return b"".join(out)

    @classmethod
    def decode(cls, data: bytes, instructions: int) -> Self:
        """The reverse of `encode`; what stands for reserved bits is ignored.

        Raises:
            TelemetryError: `data` is of another length than the bitmap asks for.
        """
        if len(data) != 4 * words(instructions):
            raise TelemetryError(
                f"{len(data)} bytes of metadata, but {instructions:#06x} asks for {words(instructions)} words"
            )
        found: dict[str, int] = {}
        at = 0
        for bit in range(16):
            asked = instructions & 1 << 15 - bit
            if asked & RESERVED:
                at += 4
            elif asked:
                for name, width in _LAYOUT[Instruction(asked)]:
                    value = int.from_bytes(data[at : at + width // 8])
                    at += width // 8
                    if value != (1 << width) - 1:
                        found[name] = value
        return cls(**found)


def dtype(instructions: int) -> np.dtype[Any]:
    """One hop's words as a structured row, for whole stacks and many packets of one bitmap at once.

    Occupancies share a word with the identifier before them: `queue` and `buffer` are id << 24 | occupancy. Unknown
    values are all ones.
    """
    layout: list[tuple[str, str]] = []
    for bit in range(16):
        asked = instructions & 1 << 15 - bit
        if asked & RESERVED:
            layout.append((f"reserved_{bit}", ">u4"))
        elif asked in (Instruction.QUEUE, Instruction.BUFFER):
            layout.append((Instruction(asked).name.lower(), ">u4"))  # type: ignore[union-attr]
        elif asked:
            layout += [(name, f">u{width // 8}") for name, width in _LAYOUT[Instruction(asked)]]
    return np.dtype(layout)


def _encoded(name: str, value: int | None, width: int) -> int:
    unknown = (1 << width) - 1
    if value is None:
        return unknown
    if not 0 <= value < unknown:
        raise TelemetryError(f"{name} {value} does not fit {width} bits (of which all ones mean unknown)")
    return value


assert {name for each in _LAYOUT.values() for name, _ in each} == {field.name for field in fields(Metadata)}
