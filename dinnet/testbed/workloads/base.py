"""What a workload is: real sockets between two hosts, and the sender's own word on what it sent."""

from __future__ import annotations

import json
import random
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import IO, TYPE_CHECKING, ClassVar, Literal

if TYPE_CHECKING:
    from dinnet.testbed.models import ModelShape
    from dinnet.testbed.traces import Request

Group = Literal["prefill", "decode", "control", "data", "other"]


@dataclass(frozen=True)
class Profile:
    """The circumstances that a workload runs under; the same profile gives the same traffic."""

    seed: int
    duration_s: float  # how long `drive` keeps starting new work; it returns soon after
    rate_bps: int  # of the bottleneck link, so that volumes can be chosen to fit the time
    model: ModelShape | None = None  # whose activations, KV cache and weights are moved
    requests: tuple[Request, ...] = ()  # arrivals with prompt and output lengths, in time order
    byte_budget: int = 64_000_000  # upper bound of what one run of the workload may send

    def rng(self, salt: str) -> random.Random:
        """A generator of its own for each use, so that one more draw in one place changes nothing elsewhere."""
        return random.Random(f"{self.seed}/{salt}")


@dataclass(frozen=True)
class Label:
    """One connection or UDP conversation, described by the side that opened it."""

    t0_us: int
    t1_us: int
    proto: Literal["tcp", "udp"]
    src: str
    sport: int
    dst: str
    dport: int
    group: Group
    transport: str
    model: str = ""
    streaming: bool | None = None
    first_request: bool | None = None
    large_model: bool | None = None


@dataclass
class LabelLog:
    """Appends labels to a JSON-lines file; a line is written when the connection has ended."""

    out: IO[str]
    open: dict[int, Label] = field(default_factory=dict)

    def write(self, label: Label) -> None:
        self.out.write(json.dumps(asdict(label)) + "\n")
        self.out.flush()


def label_socket(sock: socket.socket, opened_us: int, **described: object) -> Label:
    """The label of a connected socket: its 5-tuple from the kernel, its end now."""
    src, sport = sock.getsockname()[:2]
    dst, dport = sock.getpeername()[:2]
    proto = "tcp" if sock.type == socket.SOCK_STREAM else "udp"
    return Label(opened_us, now_us(), proto, src, sport, dst, dport, **described)  # type: ignore[arg-type]


def now_us() -> int:
    """The wall clock in microseconds since 1970: the clock that captures are stamped with."""
    return time.time_ns() // 1000


class Workload(ABC):
    """One way of carrying one kind of traffic.

    `serve` and `drive` run in two processes, each in its own network namespace. Neither may depend
    on a fixed port: `serve` binds to port 0 and tells the port that it got.
    """

    name: ClassVar[str]  # unique, "kind/transport", such as "kv/raw-tcp-layerwise"
    group: ClassVar[Group]
    needs_model: ClassVar[bool] = False
    volume: ClassVar[float] = 1.0  # its share of a scenario's bytes, against that of the other workloads

    def __init__(self, profile: Profile) -> None:
        self.profile = profile

    @abstractmethod
    async def serve(self, host: str, ready: Callable[[int], None]) -> None:
        """Bind to (`host`, 0), call `ready` with the port, answer until cancelled."""

    @abstractmethod
    async def drive(self, server: tuple[str, int], log: LabelLog) -> None:
        """Open connections to `server`, send the traffic, write one label per connection."""
