"""What slices are to the kernel: an HTB qdisc, classes, leaf queues and filters; written as tc prints them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final, Self

from dinnet.host.sizes import Clock, ticks_to_bytes
from dinnet.host.state import ROOT_HANDLE

#: tc prints it and nobody else sets it: it tells dinnet's root qdisc from others. All classes have an explicit quantum,
#: so that it has no other effect.
R2Q_SIGNATURE: Final = 0xDD1
LINK_CLASS: Final = ROOT_HANDLE | 1
_FIRST_SLICE: Final = 0x100
_LEAF_MAJOR: Final = 0xDD00
_LINK_PRIORITIES: Final = range(0xDD00, 0xDD80)  # filters that look at packets
_DEFAULT_PRIORITIES: Final = range(0xDD80, 0xDE00)  # the one for all the rest comes after them
_NODE: Final = 0xD00  # handles of filters: d00 + DSCP, and
_ARP_NODE: Final = 0xDA0
_ALL_NODE: Final = 0xDFF


class Protocol(IntEnum):
    """EtherTypes of filters."""

    ALL = 0x0003
    IP = 0x0800
    ARP = 0x0806
    IPV6 = 0x86DD


def slice_class(number: int) -> int:
    """The HTB class of a slice."""
    return ROOT_HANDLE | _FIRST_SLICE + number


def leaf_handle(class_number: int) -> int:
    """Handle of the queue in a class: dd10: in 1:10, and so on."""
    return (_LEAF_MAJOR | class_number & 0xFF) << 16


def is_slice_class(number: int) -> bool:
    """Whether it is a slice's."""
    return _FIRST_SLICE <= number ^ ROOT_HANDLE < _FIRST_SLICE + 16


def handle(number: int) -> str:
    """As tc writes it: 1:10, and dd10: where there is no minor part."""
    return f"{number >> 16:x}:{number & 0xFFFF:x}" if number & 0xFFFF else f"{number >> 16:x}:"


def rate_text(rate: int) -> str:
    """Bytes per second as tc prints them."""
    bits = rate * 8
    for unit, size in (("Gbit", 10**9), ("Mbit", 10**6), ("Kbit", 10**3)):
        if bits >= size and bits % size == 0:
            return f"{bits // size}{unit}"
    return f"{bits}bit"


@dataclass(frozen=True, slots=True)
class Root:
    """The HTB qdisc of an interface."""

    default: int = 0x10  # minor number of slice 0, tc 0; it cannot be changed later, so a filter sets another default

    def text(self) -> str:
        return f"qdisc htb {handle(ROOT_HANDLE)} root r2q {R2Q_SIGNATURE} default 0x{self.default:x}"


@dataclass(frozen=True, slots=True)
class HtbClass:
    """A class: the link, a slice or a queue. Rates are bytes per second, bursts are in the scheduler's ticks."""

    number: int
    parent: int
    rate: int
    ceil: int
    burst: int
    cburst: int
    quantum: int = 0  # of queues; the kernel does not tell others'
    priority: int = 0
    overhead: int = 0

    def without_turns(self) -> Self:
        """Without what only queues' classes use."""
        return replace(self, quantum=0, priority=0)

    def text(self, clock: Clock) -> str:
        burst, cburst = ticks_to_bytes(self.rate, self.burst, clock), ticks_to_bytes(self.ceil, self.cburst, clock)
        leaf = f"prio {self.priority} quantum {self.quantum} " if self.quantum else ""
        overhead = f" overhead {self.overhead}" if self.overhead else ""
        parent = "root" if self.parent == ROOT_HANDLE else f"parent {handle(self.parent)}"
        return (
            f"class htb {handle(self.number)} {parent} {leaf}rate {rate_text(self.rate)} "
            f"ceil {rate_text(self.ceil)} burst {burst}b cburst {cburst}b{overhead}"
        )


@dataclass(frozen=True, slots=True)
class Leaf:
    """The queue in a class: fq_codel with its times, or a plain FIFO with its room in bytes."""

    handle: int
    parent: int
    kind: str  # fq_codel, bfifo
    limit: int = 0
    target_us: int = 0
    interval_us: int = 0

    def text(self) -> str:
        rest = f"limit {self.limit}b"
        if self.kind == "fq_codel":
            rest = f"target {self.target_us / 1000:.2f}ms interval {self.interval_us / 1000:.2f}ms ecn"
        return f"qdisc {self.kind} {handle(self.handle)} parent {handle(self.parent)} {rest}"


@dataclass(frozen=True, slots=True)
class Filter:
    """Sends packets of a protocol (and, for IP, of a DSCP) to a class."""

    kind: str  # flower, u32
    protocol: Protocol
    priority: int
    handle: int
    target: int

    @property
    def node(self) -> int:
        """What tells it from other filters of its protocol; u32 puts the number of a hash table before it."""
        return self.handle & 0xFFF

    @property
    def dscp(self) -> int | None:
        return self.node - _NODE if self.protocol in (Protocol.IP, Protocol.IPV6) else None

    @property
    def is_ours(self) -> bool:
        """Whether dinnet made it, as its numbers tell."""
        if self.kind not in ("flower", "u32"):
            return False
        if self.protocol is Protocol.ALL:
            return self.priority in _DEFAULT_PRIORITIES and self.node == _ALL_NODE
        if self.protocol is Protocol.ARP:
            return self.priority in _LINK_PRIORITIES and self.node == _ARP_NODE
        return self.priority in _LINK_PRIORITIES and _NODE <= self.node < _NODE + 64

    def text(self) -> str:
        name = self.protocol.name.lower()
        match = f" dscp 0x{self.dscp:02x}" if self.dscp is not None else ""
        return (
            f"filter parent {handle(ROOT_HANDLE)} protocol {name} pref {self.priority} {self.kind} "
            f"handle {self.node:x}{match} classid {handle(self.target)}"
        )


def dscp_node(dscp: int) -> int:
    """Part of a filter's handle."""
    return _NODE + dscp


def node(protocol: Protocol) -> int:
    """Part of the handle of a filter without a DSCP."""
    return _ALL_NODE if protocol is Protocol.ALL else _ARP_NODE


def priorities(protocol: Protocol) -> range:
    """Those that dinnet's filters of a protocol may have."""
    return _DEFAULT_PRIORITIES if protocol is Protocol.ALL else _LINK_PRIORITIES


Object = Root | HtbClass | Leaf | Filter
