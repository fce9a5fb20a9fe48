"""What all workloads on TCP share: the server's accept loop, the plan of connections, budgets, labels."""

from __future__ import annotations

import asyncio
import math
import random
import socket
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import ClassVar

from dinnet.errors import DinnetError
from dinnet.testbed.models import MODELS, ModelShape
from dinnet.testbed.traces import Request, requests
from dinnet.testbed.workloads.base import LabelLog, Profile, Workload, label_socket, now_us
from dinnet.testbed.workloads.channel import BLOCK, DISCONNECTED, Channel, TlsChannel
from dinnet.testbed.workloads.compute import Accelerator

GRACE_S = 1.0  # that connections get to come to their end after the profile's duration
SHARE_OF_BUDGET = 0.75  # planned as payload; the rest is for heads, acknowledgements and handshakes


@dataclass(frozen=True)
class Job:
    """One request on a connection: when, what, and how many bytes may be spent on it."""

    at_s: float
    request: Request
    max_bytes: int
    ways: int = 1  # connections that share the request's bytes out among them


@dataclass(frozen=True)
class Session:
    """One connection's jobs, in time order, and a random generator of its own."""

    index: int
    jobs: tuple[Job, ...]
    rng: random.Random

    @property
    def max_bytes(self) -> int:
        return sum(job.max_bytes for job in self.jobs)

    @property
    def first_request(self) -> bool | None:
        """Whether its requests start conversations (True) or carry them on (False); None where mixed."""
        continued = {job.request.continued for job in self.jobs}
        return None if len(continued) > 1 else not continued.pop()


class Client:
    """The driving side during one run."""

    def __init__(self, workload: SocketWorkload, server: tuple[str, int], log: LabelLog) -> None:
        self.workload = workload
        self.server = server
        self.log = log
        self.opened = 0
        self._start = asyncio.get_running_loop().time()

    @property
    def left_s(self) -> float:
        """Time until no more work should be started."""
        return self.workload.profile.duration_s - (asyncio.get_running_loop().time() - self._start)

    async def until(self, at_s: float) -> None:
        """Wait for the moment `at_s` seconds after the start of the run."""
        await asyncio.sleep(max(0.0, self.left_s - (self.workload.profile.duration_s - at_s)))

    @asynccontextmanager
    async def connection(self, rng: random.Random, **described: object) -> AsyncIterator[Channel]:
        """Connect, say hello, and at the end write the label; `described` are fields of Label."""
        family = socket.AF_INET6 if ":" in self.server[0] else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        _set_buffers(sock, rng)
        opened_us = now_us()
        try:
            await asyncio.get_running_loop().sock_connect(sock, self.server)
        except BaseException:
            sock.close()
            raise
        self.opened += 1
        label = label_socket(sock, opened_us, **{**self.workload.description(), **described})
        try:
            async with self._channel(sock, rng) as channel:
                yield channel
        finally:
            self.log.write(replace(label, t1_us=now_us()))

    @asynccontextmanager
    async def _channel(self, sock: socket.socket, rng: random.Random) -> AsyncIterator[Channel]:
        try:
            reader, writer = await asyncio.open_connection(sock=sock, limit=BLOCK)
        except BaseException:
            sock.close()
            raise
        channel = self.workload.channel(reader, writer)
        try:
            _set_nodelay(writer, rng)
            await channel.handshake(True, rng)
            yield channel
            await channel.close()
        finally:
            await channel.drop()


class SocketWorkload(Workload):
    """A workload of TCP connections; subclasses say what one connection carries, on either side."""

    tls: ClassVar[bool] = False
    connections: ClassVar[tuple[int, int]] = (5, 30)
    per_connection: ClassVar[tuple[int, int]] = (1, 6)
    load: ClassVar[tuple[float, float]] = (0.15, 0.7)  # share of what the link can carry
    least_bytes: int = 32_768  # that a connection needs to be worth opening
    weighed_by: ClassVar[str] = "new_tokens"  # the attribute of Request that shares out the byte budget

    def __init__(self, profile: Profile) -> None:
        super().__init__(profile)
        self.rng = profile.rng(self.name)
        self.model: ModelShape = profile.model or self.rng.choice(list(MODELS.values()))
        self.accelerator = Accelerator.draw(self.rng, self.model)
        self._accepted = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @abstractmethod
    async def session(self, client: Client, session: Session) -> None:
        """Open a connection (or several) for the session's jobs and carry them out."""

    @abstractmethod
    async def answer(self, channel: Channel, rng: random.Random) -> None:
        """The server's side of one connection, until the peer ends it."""

    def channel(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Channel:
        return (TlsChannel if self.tls else Channel)(reader, writer)

    def description(self) -> dict[str, object]:
        """The label fields that all connections of this workload have in common."""
        described: dict[str, object] = {"group": self.group, "transport": self.name}
        if self.needs_model:
            described["model"] = self.model.name
            if self.group in ("prefill", "decode"):
                described["large_model"] = self.model.large
        return described

    async def serve(self, host: str, ready: Callable[[int], None]) -> None:
        """Bind to (`host`, 0), call `ready` with the port, answer until cancelled."""
        listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        _set_buffers(listener, self.profile.rng(f"{self.name}/listener"))
        server = await asyncio.start_server(self._connected, sock=listener, limit=BLOCK)
        try:
            ready(listener.getsockname()[1])
            await server.serve_forever()
        finally:
            server.close()
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Tasks of our own: asyncio reports a cancelled one of its own as a fault.
        self._accepted += 1
        task = asyncio.create_task(
            self._answer(reader, writer, self.profile.rng(f"{self.name}/answer/{self._accepted}"))
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rng: random.Random) -> None:
        channel = self.channel(reader, writer)
        try:
            _set_nodelay(writer, rng)
            await channel.handshake(False, rng)
            await self.answer(channel, rng)
            await channel.close()
        except DISCONNECTED:
            return  # how most conversations end: the peer has closed
        finally:
            await channel.drop()

    async def drive(self, server: tuple[str, int], log: LabelLog) -> None:
        """Carry the plan out; return within about a second after the profile's duration."""
        client = Client(self, server, log)
        tasks = [asyncio.create_task(self._session(client, session)) for session in self.plan()]
        try:
            await asyncio.wait(tasks, timeout=self.profile.duration_s + GRACE_S)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result
        if not client.opened:
            raise DinnetError(f"{self.name}: no connection to {server[0]} port {server[1]}; is the server running?")

    async def _session(self, client: Client, session: Session) -> None:
        await client.until(session.jobs[0].at_s)
        if client.left_s <= 0:  # a machine too busy to be on time: no connection rather than an idle one
            return
        try:
            await self.session(client, session)
        except DISCONNECTED:
            return  # lossy links and servers that stop end connections early; the label is written all the same

    def plan(self) -> list[Session]:
        """Share the profile's requests and bytes out to connections."""
        profile, rng = self.profile, self.profile.rng(f"{self.name}/plan")
        link_bytes = profile.rate_bps / 8 * profile.duration_s * rng.uniform(*self.load)
        volume = min(float(profile.byte_budget), link_bytes) * SHARE_OF_BUDGET
        most = max(1, min(self.connections[1], int(volume) // self.least_bytes))
        count = round(math.exp(rng.uniform(math.log(min(self.connections[0], most)), math.log(most))))
        single = rng.random() < 0.4 and self.per_connection[0] == 1
        sizes = [1 if single else rng.randint(*self.per_connection) for _ in range(count)]
        arrivals = self._requests(sum(sizes))
        weights = [max(1.0, float(getattr(request, self.weighed_by))) for request in arrivals]
        least = sum(weights) / len(weights) / 8  # so that short requests can afford their frame
        weights = [max(weight, least) for weight in weights]
        jobs = [
            Job(request.arrival_s, request, int(volume * weight / sum(weights)))
            for request, weight in zip(arrivals, weights, strict=True)
        ]
        # Jobs of both kinds are dealt out apart, so that most connections are of one kind.
        jobs.sort(key=lambda job: (job.request.continued, rng.random()))
        sessions, dealt = [], 0
        for index, size in enumerate(sizes):
            own = sorted(jobs[dealt : dealt + size], key=lambda job: job.at_s)
            dealt += size
            sessions.append(Session(index, tuple(own), self.profile.rng(f"{self.name}/session/{index}")))
        return sessions

    def _requests(self, count: int) -> list[Request]:
        """`count` requests that arrive within the first three quarters of the run."""
        profile = self.profile
        found = list(profile.requests[:count])
        if len(found) < count:
            more = requests(None, profile.seed, profile.duration_s, rate=count / profile.duration_s)
            found += (more * math.ceil(count / len(more)))[: count - len(found)]
        latest = 0.75 * profile.duration_s
        return [replace(request, arrival_s=request.arrival_s % latest) for request in found]


def _set_buffers(sock: socket.socket, rng: random.Random) -> None:
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        if size := rng.choice((0, 0, 0, 1 << 16, 1 << 18, 1 << 20, 1 << 22)):
            sock.setsockopt(socket.SOL_SOCKET, option, size)


def _set_nodelay(writer: asyncio.StreamWriter, rng: random.Random) -> None:
    # asyncio switches Nagle's algorithm off; many programs leave it on.
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, int(rng.random() < 0.8))
