"""What an intent says of slices, their queues, and which traffic belongs in them."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, Field

from dinnet.controller.intent_switch import STRICT
from dinnet.controller.values import Name, Network, RateBps, Share, Tc

Exceeding = Literal["degrade", "reroute", "drop"]


class Queue(BaseModel):
    """Shares are of the slice's guarantee and ceiling."""

    model_config = STRICT
    guarantee: Share
    ceiling: Share = 1.0
    priority: int = Field(ge=0, le=7)  # who borrows first: 0 is the best
    target_delay_ms: float = Field(default=5.0, gt=0, le=10_000)


#: tc 3 is for tokens, 2 for control, 1 for this slice's data, 0 for what is degraded or unknown.
_QUEUES: Final = {
    3: Queue(guarantee=0.35, priority=0, target_delay_ms=2),
    2: Queue(guarantee=0.1, priority=1, target_delay_ms=5),
    1: Queue(guarantee=0.45, priority=3, target_delay_ms=20),
    0: Queue(guarantee=0.1, priority=5, target_delay_ms=20),
}


class Exceed(BaseModel):
    """What becomes of packets above a token bucket."""

    model_config = STRICT
    microflow: Exceeding = "degrade"
    slice: Exceeding = "degrade"


class Slice(BaseModel):
    """Shares are of a link's rate."""

    model_config = STRICT
    number: int = Field(ge=0, le=15)
    guarantee: Share
    ceiling: Share = 1.0
    queues: dict[Tc, Queue] = Field(default=_QUEUES, min_length=1)
    exceed: Exceed = Exceed()


SLICES: Final = {
    "default": Slice(number=0, guarantee=0.1),
    "realtime": Slice(number=1, guarantee=0.5),
    "interactive": Slice(number=2, guarantee=0.2),
    "bulk": Slice(number=3, guarantee=0.1),
}


class Target(BaseModel):
    """A queue of a slice."""

    model_config = STRICT
    slice: Name
    tc: Tc


class Policy(BaseModel):
    """Which queue each class of traffic gets."""

    model_config = STRICT
    prefill: Target = Target(slice="realtime", tc=1)
    decode: Target = Target(slice="realtime", tc=3)
    control: Target = Target(slice="realtime", tc=2)
    data: Target = Target(slice="bulk", tc=1)
    inference: tuple[Network, ...] = ()  # where inference nodes are; none: nothing is known of that
    client_slice: Name | None = None  # prefill and decode with an end outside of `inference`; its tc stays


class Dscp(BaseModel):
    """A line of a network's own DSCP plan, both ways: how a mark is written, what a trusted DSCP means."""

    model_config = STRICT
    dscp: int = Field(ge=0, le=63)
    slice: Name
    tc: Tc


class LinkSlice(BaseModel):
    """What differs for a slice on one link."""

    model_config = STRICT
    guarantee: Share | None = None
    ceiling: Share | None = None


class Link(BaseModel):
    model_config = STRICT
    ends: tuple[str, ...] = Field(min_length=1, max_length=2)  # HOST/INTERFACE or SWITCH/PORT
    rate: RateBps
    slices: dict[Name, LinkSlice] = {}
    overhead_bytes: int = Field(default=0, ge=0, le=256)  # on the wire, beside what the interface sees
    police: bool = False  # slices' ceilings become token buckets at ends that are a switch's port
    replace_foreign: bool = False  # a queueing discipline in the way that somebody else has set is taken away
