"""Telemetry Report 2.0: the group header of section 3.2 and the individual reports of 3.3."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Self

from dinnet.telemetry.metadata import Metadata, TelemetryError, words

VERSION: Final = 2
SEQUENCES: Final = 1 << 22
_GROUP_BYTES: Final = 8
_MAIN_WORDS: Final = 2
#: A report length of it, or of more words: the report extends to the end of the datagram.
_TO_THE_END: Final = 0xFF
#: Bits of RepMdBits that do not mean what they mean in an instruction bitmap: bit 0 is reserved, bit 15 another word.
_SHARED: Final = 0x7FFE
_NOTHING: Final = Metadata()


class ReportType(IntEnum):
    """RepType"""

    INNER_ONLY = 0
    INT = 1


class InnerType(IntEnum):
    """InType"""

    NONE = 0
    TLV = 1
    DOMAIN = 2
    ETHERNET = 3
    IPV4 = 4
    IPV6 = 5


@dataclass(frozen=True)
class DropReason:
    """Bit 15 of RepMdBits: the queue and why the packet was dropped there; reasons are the node's own numbers."""

    queue_id: int
    reason: int


@dataclass(frozen=True)
class Tlv:
    """One element of inner contents of type TLV; `kind` 0 is a domain's own, 1 to 3 are packets."""

    kind: int
    template: int
    data: bytes


@dataclass(frozen=True)
class Individual:
    """What a node tells about one packet."""

    inner_type: int
    inner: bytes = b""  # from the first header that `inner_type` names on
    report_type: int = ReportType.INT
    dropped: bool = False
    congested: bool = False
    tracked: bool = False
    intermediate: bool = False
    present: int = 0  # RepMdBits
    metadata: Metadata = _NOTHING
    drop: DropReason | None = None
    domain: int = 0
    domain_bits: int = 0
    domain_status: int = 0
    domain_metadata: bytes = b""

    def encode(self) -> bytes:
        """
        Raises:
            TelemetryError: A value does not fit, or parts are no multiple of 4 bytes.
        """
        if len(self.inner) % 4 or len(self.domain_metadata) % 4:
            raise TelemetryError("parts of a report are multiples of 4 bytes")
        own = self._metadata()
        main = b""
        if self.report_type == ReportType.INT:
            numbers = (self.present, self.domain, self.domain_bits, self.domain_status)
            main = b"".join(_number(number, 16, "a report's number").to_bytes(2) for number in numbers)
            main += own + self.domain_metadata
        elif own or self.domain_metadata:
            raise TelemetryError("only reports of type INT have metadata")
        length = (len(main) + len(self.inner)) // 4
        metadata_words = _number((len(own) + len(self.domain_metadata)) // 4, 8, "metadata length")
        flags = self.dropped << 7 | self.congested << 6 | self.tracked << 5 | self.intermediate << 4
        kinds = _number(self.report_type, 4, "report type") << 4 | _number(self.inner_type, 4, "inner type")
        return bytes((kinds, min(length, _TO_THE_END), metadata_words, flags)) + main + self.inner

    def _metadata(self) -> bytes:
        if self.present & 1 and self.drop is None:
            raise TelemetryError("bit 15 of RepMdBits announces a drop reason")
        reason = b""
        if self.present & 1 and self.drop is not None:
            queue = _number(self.drop.queue_id, 8, "queue id")
            reason = bytes((queue, _number(self.drop.reason, 8, "drop reason"), 0, 0))
        reserved = b"\xff" * 4 if self.present & 0x8000 else b""
        return reserved + self.metadata.encode(self.present & _SHARED) + reason

    @classmethod
    def decode(cls, data: bytes) -> tuple[Self, int]:
        """Read one report; returns it and how many bytes it took.

        Raises:
            TelemetryError: It ends early, contradicts itself, or is of a type that the specification reserves.
        """
        if len(data) < 4:
            raise TelemetryError(f"{len(data)} bytes are too few for a report's header")
        report_type, inner_type, length, metadata_words, flags = data[0] >> 4, data[0] & 15, *data[1:4]
        if report_type > ReportType.INT:
            raise TelemetryError(f"report type {report_type} is not known")
        if inner_type > InnerType.IPV6:
            raise TelemetryError(f"inner type {inner_type} is not known")
        end = len(data) if length == _TO_THE_END else 4 + 4 * length
        if end > len(data) or length == _TO_THE_END > (end - 4) // 4:
            raise TelemetryError(f"a report of {length} words where {len(data) - 4} bytes are left")
        dropped, congested, tracked, intermediate = (bool(flags & 0x80 >> place) for place in range(4))
        if report_type == ReportType.INNER_ONLY:
            return cls(inner_type, data[4:end], report_type, dropped, congested, tracked, intermediate), end
        start = 4 + 4 * (_MAIN_WORDS + metadata_words)
        if start > end:
            raise TelemetryError(f"{metadata_words} words of metadata in a report of {length} words")
        present, domain, domain_bits, status = (int.from_bytes(data[at : at + 2]) for at in (4, 6, 8, 10))
        own = 4 * words(present)
        if own > 4 * metadata_words or (own != 4 * metadata_words and not domain_bits):
            raise TelemetryError(f"{metadata_words} words of metadata, but {present:#06x} asks for {own // 4}")
        raw, drop = data[12 : 12 + own], None
        if present & 1:
            drop = DropReason(raw[-4], raw[-3])
            raw = raw[:-4]
        if present & 0x8000:
            raw = raw[4:]
        metadata = Metadata.decode(raw, present & _SHARED)
        domain_metadata = data[12 + own : start]
        return cls(
            inner_type, data[start:end], report_type, dropped, congested, tracked, intermediate, present, metadata,
            drop, domain, domain_bits, status, domain_metadata,
        ), end  # fmt: skip

    def tlvs(self) -> tuple[Tlv, ...]:
        """The elements of inner contents of type TLV.

        Raises:
            TelemetryError: They end early.
        """
        found, at = [], 0
        while at < len(self.inner):
            end = at + 4 + 4 * self.inner[at + 1] if at + 4 <= len(self.inner) else at + 4
            if end > len(self.inner):
                raise TelemetryError(f"an element of {end - at} bytes where {len(self.inner) - at} are left")
            found.append(
                Tlv(self.inner[at] >> 4, int.from_bytes(self.inner[at + 2 : at + 4]), self.inner[at + 4 : end])
            )
            at = end
        return tuple(found)


@dataclass(frozen=True)
class Report:
    """The payload of one datagram. Sequence numbers count a node's (and its subsystem's) datagrams, and wrap."""

    node_id: int
    sequence: int
    reports: tuple[Individual, ...]
    hardware_id: int = 0

    def encode(self) -> bytes:
        """
        Raises:
            TelemetryError: A value does not fit, or a long report is not the last one.
        """
        hardware, sequence = _number(self.hardware_id, 6, "hardware id"), _number(self.sequence, 22, "sequence number")
        first = VERSION << 28 | hardware << 22 | sequence
        parts = [report.encode() for report in self.reports]
        if any(part[1] == _TO_THE_END for part in parts[:-1]):
            raise TelemetryError("a report of 255 words or more must be the last of its datagram")
        return first.to_bytes(4) + _number(self.node_id, 32, "node id").to_bytes(4) + b"".join(parts)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a datagram.

        Raises:
            TelemetryError: It is no telemetry report of version 2.0, or one of its parts is damaged.
        """
        if len(data) < _GROUP_BYTES:
            raise TelemetryError(f"{len(data)} bytes are too few for a telemetry report")
        first = int.from_bytes(data[:4])
        if first >> 28 != VERSION:
            raise TelemetryError(f"version {first >> 28} of telemetry reports is not known, only {VERSION}")
        reports, at = [], _GROUP_BYTES
        while at < len(data):
            report, size = Individual.decode(data[at:])
            reports.append(report)
            at += size
        if not reports:
            raise TelemetryError("a telemetry report without a report")
        return cls(int.from_bytes(data[4:8]), first & SEQUENCES - 1, tuple(reports), first >> 22 & 0x3F)


def lost(before: int, now: int) -> int:
    """How many datagrams are missing between two sequence numbers, the second of which came later."""
    return (now - before - 1) % SEQUENCES


def _number(value: int, width: int, what: str) -> int:
    if not 0 <= value < 1 << width:
        raise TelemetryError(f"{what} {value} does not fit {width} bits")
    return value
