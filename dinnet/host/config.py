"""What `dinnet host -c FILE` reads: links with slices and queues, and routes."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from dinnet.errors import DinnetError
from dinnet.host.check import check_state
from dinnet.host.state import HostState, Link, Queue, Route, Slice
from dinnet.yamlfile import load_yaml

_STRICT: Final = ConfigDict(extra="forbid", frozen=True)
_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)bit(?:/s)?", re.IGNORECASE)
_FACTORS: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def rate_bps(value: Any) -> int:
    """A rate in bits per second: a whole number, or a number with bit, kbit, mbit, gbit or tbit.

    Raises:
        ValueError: It is neither.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _RATE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is no rate: write bits per second, or as in 100mbit, 2.5gbit")
    return math.floor(float(match[1]) * _FACTORS[match[2].lower()] + 0.5)


Rate = Annotated[int, BeforeValidator(rate_bps), Field(ge=0)]


class _Queue(BaseModel):
    model_config = _STRICT
    guarantee: Rate
    ceiling: Rate | None = None  # None: the slice's
    priority: int = 3
    target_delay_ms: float = 5.0


class _Slice(BaseModel):
    model_config = _STRICT
    name: str
    guarantee: Rate
    ceiling: Rate | None = None  # None: the link's rate
    queues: dict[int, _Queue]  # by traffic class


class _Default(BaseModel):
    model_config = _STRICT
    slice: int = 0
    tc: int = 0


class _Dscp(BaseModel):
    model_config = _STRICT
    slice: int
    tc: int


class _Link(BaseModel):
    model_config = _STRICT
    rate: Rate
    overhead_bytes: int = 0
    slices: dict[int, _Slice]  # by number
    dscp: dict[int, _Dscp] = {}
    default: _Default = _Default()
    replace_foreign: bool = False


class _Route(BaseModel):
    model_config = _STRICT
    destination: str
    via: str | None = None
    device: str | None = None
    table: int = 254
    metric: int = 100
    segments: list[str] = []


class HostConfig(BaseModel):
    """A host."""

    model_config = _STRICT
    links: dict[str, _Link] = {}  # by interface
    routes: list[_Route] = []

    def state(self) -> HostState:
        """As the driver takes it."""
        links = (_link(device, each) for device, each in self.links.items())
        routes = (
            Route(each.destination, each.via, each.device, each.table, each.metric, tuple(each.segments))
            for each in self.routes
        )
        return HostState(tuple(links), tuple(routes))


def _link(device: str, link: _Link) -> Link:
    slices = []
    for number, each in link.slices.items():
        ceiling = link.rate if each.ceiling is None else each.ceiling
        queues = tuple(
            Queue(
                tc, queue.guarantee, ceiling if queue.ceiling is None else queue.ceiling, queue.priority,
                queue.target_delay_ms,
            )
            for tc, queue in each.queues.items()
        )  # fmt: skip
        slices.append(Slice(number, each.name, each.guarantee, ceiling, queues))
    dscp = tuple((number, each.slice, each.tc) for number, each in link.dscp.items())
    return Link(
        device, link.rate, tuple(slices), link.overhead_bytes, dscp, link.default.slice, link.default.tc,
        link.replace_foreign,
    )  # fmt: skip


def load_config(path: Path) -> HostState:
    """Read a host's description.

    Raises:
        DinnetError: It cannot be read, or what it wants is impossible; says where.
    """
    state = load_yaml(path, HostConfig).state()
    try:
        check_state(state)
    except DinnetError as error:
        raise DinnetError(f"{path}: {error}") from error
    return state
