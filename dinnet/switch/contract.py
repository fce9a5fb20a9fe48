"""What the eBPF program and Python agree on: the values of bpf/contract.h, by the names they have there."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple

import numpy as np

MARKS: Final = 64  # slice << 2 | traffic class
SLICES: Final = 16
_PACKET_AT: Final = 12  # in struct packet_event


class Action(IntEnum):
    """enum forward_action"""

    MISS = 0
    PORT = 1
    ROUTE = 2
    FLOOD = 3
    DROP = 4
    CONTROLLER = 5


class Exceed(IntEnum):
    """enum exceed_action"""

    DEGRADE = 0
    REROUTE = 1
    DROP = 2


class Bucket(IntEnum):
    """enum bucket: what a packet was above."""

    MICROFLOW = 1
    SLICE = 2


class Drop(IntEnum):
    """enum drop: cells of the counter of drops."""

    MALFORMED = 1
    NO_ROUTE = 2
    TTL = 3
    FORWARD = 4
    MICROFLOW = 5
    SLICE = 6
    MTU = 7  # longer than the egress interface takes; the embedded switch's own


class Parsed(IntEnum):
    """enum parsed: cells of the counter of parsed packets."""

    NOT_IP = 0
    IPV4 = 1
    IPV6 = 2
    FRAGMENT = 3
    MALFORMED = 4


class Event(IntEnum):
    """enum event_kind"""

    RECORD = 1
    PACKET_IN = 2
    QUEUE = 3


class Forward(NamedTuple):
    """Where packets go. Ethernet addresses are numbers of 48 bits."""

    action: Action
    port: int = 0  # FLOOD: the multicast group
    src: int = 0
    dst: int = 0


class Alternate(NamedTuple):
    """What becomes of packets above a token bucket. Addresses of 0 leave the packet's as they are."""

    action: Exceed
    port: int = 0
    src: int = 0
    dst: int = 0


class IntEvent(IntEnum):
    """enum int_event: cells of the counter of what INT did."""

    BEGUN = 0
    ADDED = 1
    ENDED = 2
    REPORTED = 3
    UNFIT = 4
    NO_ROOM = 5
    MTU = 6
    HOPS = 7
    FOREIGN = 8
    DISCARDED = 9
    REPORT_LOST = 10


class IntNode(NamedTuple):
    """What the switch is to INT packets that leave by a port."""

    node_id: int
    is_sink: bool = False
    mtu: int = 1500  # of IP packets on the link


class Collector(NamedTuple):
    """Where telemetry reports go. Ethernet and IPv4 addresses are numbers."""

    port: int  # that they leave by
    src_mac: int
    dst_mac: int
    src: int
    dst: int
    sport: int
    dport: int


class Port(NamedTuple):
    """A port and the interface behind it."""

    number: int
    ifindex: int
    trusted: bool = False
    flow_labels: bool = False


class Cell(NamedTuple):
    """A counter."""

    packets: int
    bytes: int


class PacketIn(NamedTuple):
    """A packet for the controller; longer ones than an event holds are cut off."""

    ingress_port: int
    data: bytes
    length: int


@dataclass(frozen=True)
class Sizes:
    """How much there is room for; None: as the P4 program says. Memory is taken at once for all but microflow keys."""

    microflows: int | None = None
    flows: int | None = None  # records under way, a power of two


def queue_event_dtype(note: np.dtype[Any]) -> np.dtype[Any]:
    """Struct queue_event, around its struct queue_note."""
    layout = {
        "names": ["kind", "dropped", "sequence", "egress_ns", "occupancy", "note"],
        "formats": ["u2", "u1", "u4", "u8", "u4", note],
        "offsets": [0, 2, 4, 8, 16, 24],
        "itemsize": 24 + note.itemsize,
    }
    return np.dtype(layout)  # type: ignore[call-overload, no-any-return]


def int_node_value(node: IntNode) -> tuple[int, ...]:
    """Struct int_node."""
    return node.node_id, node.mtu, node.is_sink, 1


def collector_value(to: Collector) -> tuple[Any, ...]:
    """Struct int_collector."""
    addresses = (int.from_bytes(number.to_bytes(4), "little") for number in (to.src, to.dst))
    return mac_value(to.dst_mac), mac_value(to.src_mac), *addresses, to.sport, to.dport, to.port, 0


def packet_in(data: bytes) -> PacketIn:
    port, length, tag_type, tag = (
        int.from_bytes(data[start:stop], "little") for start, stop in ((2, 4), (4, 8), (8, 10), (10, 12))
    )
    frame = data[_PACKET_AT : _PACKET_AT + length]
    if tag_type:  # put the tag back that the kernel took out
        frame = frame[:12] + tag_type.to_bytes(2) + tag.to_bytes(2) + frame[12:]
        length += 4
    return PacketIn(port, frame, length)


def mac_value(number: int) -> tuple[int, ...]:
    return tuple(number.to_bytes(6))


def cell_of(row: Any) -> Cell:
    return Cell(int(row["packets"]), int(row["bytes"]))
