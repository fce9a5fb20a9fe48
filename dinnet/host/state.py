"""What a host should have, and the difference to what it has. Rates are bits per second."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal

#: The slices' root queueing discipline is 1:, which is what the embedded switch writes into skb->priority.
ROOT_HANDLE: Final = 0x0001_0000
SLICES: Final = 16
QUEUES: Final = 4
PRIORITIES: Final = 8
_FIRST_QUEUE: Final = 0x10


def class_id(slice_number: int, tc: int) -> int:
    """The HTB class of a queue. A packet with this in skb->priority goes there without any filter."""
    return ROOT_HANDLE | _FIRST_QUEUE + slice_number * QUEUES + tc


def queue_of(class_number: int) -> tuple[int, int] | None:
    """The reverse of `class_id`: slice and traffic class; None where it is no queue's class."""
    index = class_number - (ROOT_HANDLE | _FIRST_QUEUE)
    return divmod(index, QUEUES) if 0 <= index < SLICES * QUEUES else None


@dataclass(frozen=True, slots=True)
class Queue:
    """A traffic class inside a slice."""

    tc: int  # 0 to 3
    guarantee_bps: int
    ceiling_bps: int  # with what other queues leave idle
    priority: int  # who borrows first: 0 is the best, 7 the last
    target_delay_ms: float = 5.0


@dataclass(frozen=True, slots=True)
class Slice:
    """A share of a link."""

    number: int  # 0 to 15
    name: str
    guarantee_bps: int
    ceiling_bps: int
    queues: tuple[Queue, ...]


@dataclass(frozen=True, slots=True)
class Link:
    """The slices of what an interface sends. Packets that nothing selects a queue for go to the default queue."""

    device: str
    rate_bps: int
    slices: tuple[Slice, ...]
    overhead_bytes: int = 0  # on the wire, beside what the interface sees: 32 on a MACsec interface
    dscp: tuple[tuple[int, int, int], ...] = ()  # (DSCP, slice, tc): where skb->priority names no queue
    default_slice: int = 0
    default_tc: int = 0
    replace_foreign: bool = False  # take away a queueing discipline in the way that somebody else has set


@dataclass(frozen=True, slots=True)
class Route:
    """A route; with segments, into an SRv6 tunnel (RFC 8986, H.Encaps)."""

    destination: str  # a prefix
    via: str | None
    device: str | None
    table: int = 254
    metric: int = 0
    segments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HostState:
    """All that dinnet is to have made on a host; what it made that is not in here is taken away."""

    links: tuple[Link, ...] = ()
    routes: tuple[Route, ...] = ()


Action = Literal["add", "change", "delete"]
Kind = Literal["qdisc", "class", "leaf", "filter", "route", "macsec", "channel", "association"]


@dataclass(frozen=True, slots=True)
class Change:
    """One step from what a host has to what it should have."""

    action: Action
    kind: Kind
    where: str  # interface; for a route without one, its table
    what: str  # as tc or ip would print it
    before: str | None = None
    payload: Any = field(default=None, repr=False, compare=False)  # for the driver that made the plan


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that keeps a part of the desired state from coming true; the rest does."""

    where: str
    what: str
    advice: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}; {self.advice}"


@dataclass(frozen=True, slots=True)
class Plan:
    """Changes in the order to make them in."""

    changes: tuple[Change, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to change. There may be problems all the same."""
        return not self.changes


@dataclass(frozen=True, slots=True)
class QueueCounters:
    """What a queue has done since it was made, and what waits in it now."""

    device: str
    slice: int
    tc: int
    bytes: int
    packets: int
    drops: int
    backlog_bytes: int
    backlog_packets: int
    borrowed: int  # packets sent above the guarantee
    overlimits: int  # times the ceiling held it back
