"""Telemetry reports on packets that were in a queue: what the pipeline noted of a packet, and how it left."""

from __future__ import annotations

import struct
from typing import Any, Final

from dinnet.telemetry.metadata import Instruction, Metadata
from dinnet.telemetry.report import DropReason, Individual, InnerType, Report

#: What is told of a packet that left a queue, and of one that was dropped there.
_TOLD: Final = (
    Instruction.PORTS | Instruction.HOP_LATENCY | Instruction.QUEUE | Instruction.INGRESS_TIME
    | Instruction.EGRESS_TIME | Instruction.INTERFACES
)  # fmt: skip
_TOLD_OF_DROPPED: Final = Instruction.PORTS | Instruction.INGRESS_TIME | Instruction.INTERFACES
_DROPPED_BIT: Final = 1
#: The drop reason of reports on what a kernel's queue dropped; the switch's own reasons are `contract.Drop`.
DROPPED_BY_QUEUE: Final = 128
_MOST_NS: Final = 0xFFFFFFFE
_MOST_PACKETS: Final = 0xFFFFFE
_ETHERNET_IPV4: Final = b"\x08\x00"


def report_of(event: Any) -> Report:
    """The report that a struct queue_event asks for; the packet's headers as they were when it came in.

    Hop latency is from ingress to leaving the queue, as egress time minus ingress time; occupancy is in packets of the
    queue that it found when it came into that.
    """
    note = event["note"]
    dropped = bool(event["dropped"])
    present = int(note["bits"]) & int(_TOLD_OF_DROPPED if dropped else _TOLD)
    queue = int(note["slice"]) << 2 | int(note["tc"])
    ingress_ns, egress_ns = int(note["ingress_ns"]), int(event["egress_ns"])
    ports = int(note["ingress_port"]), int(note["egress_port"])
    individual = Individual(
        InnerType.IPV4 if note["version"] == 4 else InnerType.IPV6,
        _as_it_came(note),
        dropped=dropped,
        tracked=True,
        present=present | (_DROPPED_BIT if dropped else 0),
        metadata=Metadata(
            ingress_port=ports[0],
            egress_port=ports[1],
            hop_latency_ns=min(egress_ns - ingress_ns, _MOST_NS),
            queue_id=queue,
            queue_occupancy=min(int(event["occupancy"]), _MOST_PACKETS),
            ingress_ns=ingress_ns,
            egress_ns=egress_ns,
            ingress_interface=ports[0],
            egress_interface=ports[1],
        ),
        drop=DropReason(queue, DROPPED_BY_QUEUE) if dropped else None,
    )
    return Report(int(note["node_id"]), int(event["sequence"]) & 0x3FFFFF, (individual,))


def frame_of(report: Report, collector: Any) -> bytes:
    """The Ethernet frame to a collector, by its struct int_collector; as the pipeline makes it."""
    payload = report.encode()
    udp = struct.pack(">HHHH", collector["sport"], collector["dport"], 8 + len(payload), 0)
    ends: bytes = collector["src"].tobytes() + collector["dst"].tobytes()
    head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(udp) + len(payload), 0, 0x4000, 64, 17, 0) + ends
    head = head[:10] + _checksum(head).to_bytes(2) + head[12:]
    stations: bytes = collector["dst_mac"].tobytes() + collector["src_mac"].tobytes()
    return stations + _ETHERNET_IPV4 + head + udp + payload


def _as_it_came(note: Any) -> bytes:
    """The noted headers with the DSCP and the hops that the packet came with."""
    head = bytearray(note["head"].tobytes()[: int(note["head_bytes"])])
    tos, ttl = int(note["tos"]), int(note["ttl"])
    if note["version"] == 4:
        size = (head[0] & 15) * 4
        head[1], head[8] = tos, ttl
        head[10:12] = bytes(2)
        head[10:12] = _checksum(bytes(head[:size])).to_bytes(2)
    else:
        head[0], head[1] = 0x60 | tos >> 4, (tos & 15) << 4 | head[1] & 15
        head[7] = ttl
    return bytes(head)


def _checksum(header: bytes) -> int:
    """RFC 1071."""
    total: int = sum(struct.unpack(f">{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
