"""Background on UDP: names, time, calls, games, downloads and measurements."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar, Final

from dinnet.testbed.workloads.base import Group, LabelLog, Workload, label_socket, now_us
from dinnet.testbed.workloads.channel import payload

# Bytes of an answer, answers to send, wait before the first, wait between two bursts, answers in a burst, spread of
# the bytes in percent: what the client's datagram asks of the server.
_ORDER: Final = struct.Struct("!HIIIHB")
_MAX_DATAGRAM: Final = 65_535
_MAX_ANSWERS: Final = 200_000
_STOP: Final = _ORDER.pack(0, 0, 0, 0, 0, 0)  # a burst of none: send this client nothing more


class Line:
    """The client's end of one UDP conversation."""

    def __init__(self, sock: socket.socket, rng: random.Random, max_bytes: int) -> None:
        self.sock = sock
        self.rng = rng
        self.left_bytes = max_bytes
        self.received = 0
        self.streaming = False

    def send(
        self, size: int, answer: int = 0, count: int = 1, *, think_s: float = 0.0, gap_s: float = 0.0,
        burst: int = 1, spread: int = 0,
    ) -> None:  # fmt: skip
        """Send one datagram of `size` bytes that asks for `count` answers of about `answer` bytes (0: for none)."""
        if not answer:
            count = 0
        elif self.left_bytes < answer * count:
            count = max(1, self.left_bytes // answer)
        self.left_bytes -= size + answer * count
        self.streaming |= count > 1
        order = _ORDER.pack(answer, count, int(think_s * 1e6), int(gap_s * 1e6), burst, spread)
        with suppress(BlockingIOError):  # a full queue loses a datagram
            self.sock.send(order + payload(max(0, size - _ORDER.size)))

    def stop(self) -> None:
        """Have the server end what it still sends."""
        if self.streaming:
            with suppress(OSError):
                self.sock.send(_STOP)

    async def receive(self, timeout_s: float) -> bool:
        """Wait for one datagram; False where none came in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.get_running_loop().sock_recv(self.sock, _MAX_DATAGRAM)
        except TimeoutError:
            return False
        self.received += 1
        return True

    async def drain(self) -> None:
        """Receive until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await loop.sock_recv(self.sock, _MAX_DATAGRAM)
            self.received += 1


class UdpBackground(Workload):
    """UDP conversations that start at random times; subclasses say how one goes."""

    group: ClassVar[Group] = "other"
    conversations: ClassVar[tuple[int, int]] = (3, 10)
    start_within: ClassVar[float] = 0.5

    @abstractmethod
    async def talk(self, line: Line) -> None:
        """One conversation; cut short when the time is up."""

    async def serve(self, host: str, ready: Callable[[int], None]) -> None:
        """Bind to (`host`, 0), call `ready` with the port, answer until cancelled."""
        loop = asyncio.get_running_loop()
        with socket.socket(_family(host), socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.bind((host, 0))
            ready(sock.getsockname()[1])
            rng = self.profile.rng(f"{self.name}/server")
            tasks: dict[Any, set[asyncio.Task[None]]] = {}
            while True:
                data, client = await loop.sock_recvfrom(sock, _MAX_DATAGRAM)
                if len(data) < _ORDER.size:
                    continue
                answer, count, think_us, gap_us, burst, spread = _ORDER.unpack_from(data)
                if not burst:
                    for task in tasks.pop(client, ()):
                        task.cancel()
                elif count == 1 and not think_us:
                    _answer(sock, client, answer)
                elif 0 < count <= _MAX_ANSWERS:
                    task = loop.create_task(
                        _answers(sock, client, answer, count, think_us / 1e6, gap_us / 1e6, burst, spread, rng)
                    )
                    tasks.setdefault(client, set()).add(task)

    async def drive(self, server: tuple[str, int], log: LabelLog) -> None:
        """Hold all conversations, write one label each."""
        rng = self.profile.rng(self.name)
        count = rng.randint(*self.conversations)
        end_s = asyncio.get_running_loop().time() + self.profile.duration_s
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                start_s = rng.uniform(0.0, self.start_within * self.profile.duration_s)
                group.create_task(self._conversation(server, log, start_s, end_s, count, number))

    async def _conversation(
        self, server: tuple[str, int], log: LabelLog, start_s: float, end_s: float, count: int, number: int
    ) -> None:
        rng = self.profile.rng(f"{self.name}/{number}")
        await asyncio.sleep(start_s)
        with socket.socket(_family(server[0]), socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            opened_us = now_us()
            sock.connect(server)
            line = Line(sock, rng, self.profile.byte_budget // count)
            with suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout_at(end_s):
                    await self.talk(line)
            line.stop()
            log.write(label_socket(sock, opened_us, group=self.group, transport=self.name))


class DnsUdp(UdpBackground):
    """Name look-ups, each from a port of its own; often IPv4 and IPv6 at once, some repeated."""

    name: ClassVar[str] = "dns/udp"
    conversations: ClassVar[tuple[int, int]] = (12, 30)
    start_within: ClassVar[float] = 0.95

    async def talk(self, line: Line) -> None:
        rng = line.rng
        query = rng.randint(32, 75)
        answer = min(1_232, round(rng.lognormvariate(0, 0.8) * 130) + 30)
        think_s = rng.choice((0.0, rng.lognormvariate(0, 1.0) * 0.012))
        for _ in range(rng.choice((1, 1, 1, 2, 2, 4))):
            line.send(query, answer, think_s=think_s)
            await line.receive(1.0)


class Ntp(UdpBackground):
    """Time requests: a burst of a few, then one at a time; all 48 bytes."""

    name: ClassVar[str] = "ntp/udp"
    conversations: ClassVar[tuple[int, int]] = (4, 14)

    async def talk(self, line: Line) -> None:
        for _ in range(line.rng.choice((1, 4, 4, 8))):
            line.send(48, 48)
            await line.receive(0.5)
            await asyncio.sleep(line.rng.choice((0.25, 0.5, 1.0)))


class Voip(UdpBackground):
    """A call: one RTP packet each 20 ms both ways, of constant size, or with pauses in speech."""

    name: ClassVar[str] = "voip/rtp"
    conversations: ClassVar[tuple[int, int]] = (2, 8)
    start_within: ClassVar[float] = 0.3

    async def talk(self, line: Line) -> None:
        rng = line.rng
        size, period_s = rng.choice(((172, 0.02), (172, 0.02), (92, 0.02), (252, 0.03), (72, 0.02)))
        spread = rng.choice((0, 0, 25))
        line.send(size, size, 5_000, gap_s=period_s, spread=spread)
        async with asyncio.TaskGroup() as group:
            group.create_task(line.drain())
            await _at_period(period_s, lambda: line.send(_spread(rng, size, spread)))


class Game(UdpBackground):
    """An online game: small inputs at the client's frame rate, states of the world at the server's."""

    name: ClassVar[str] = "game/udp"
    conversations: ClassVar[tuple[int, int]] = (2, 8)
    start_within: ClassVar[float] = 0.3

    async def talk(self, line: Line) -> None:
        rng = line.rng
        own, world = rng.randint(40, 90), rng.randint(90, 450)
        line.send(own, world, 5_000, gap_s=1 / rng.choice((20, 30, 64)), spread=40)
        async with asyncio.TaskGroup() as group:
            group.create_task(line.drain())
            await _at_period(1 / rng.choice((30, 60, 64)), lambda: line.send(_spread(rng, own, 15)))


class VideoCall(UdpBackground):
    """A conference: pictures in bursts of packets both ways, 15 to 30 a second."""

    name: ClassVar[str] = "video/conference"
    conversations: ClassVar[tuple[int, int]] = (1, 4)
    start_within: ClassVar[float] = 0.3

    async def talk(self, line: Line) -> None:
        rng = line.rng
        frame_s, packets = 1 / rng.choice((15, 25, 30)), rng.randint(2, 9)
        line.send(200, 1_110, 20_000, gap_s=frame_s, burst=packets, spread=8)

        def picture() -> None:
            for _ in range(max(1, round(packets * rng.lognormvariate(0, 0.35)))):
                line.send(_spread(rng, 1_110, 8))

        async with asyncio.TaskGroup() as group:
            group.create_task(line.drain())
            await _at_period(frame_s, picture)


class QuicDownload(UdpBackground):
    """A download over QUIC: padded first datagrams, full ones down, an acknowledgement for every few up."""

    name: ClassVar[str] = "web/quic-download"
    conversations: ClassVar[tuple[int, int]] = (3, 8)

    async def talk(self, line: Line) -> None:
        rng = line.rng
        size = rng.choice((1_200, 1_252, 1_350))
        line.send(1_200, 1_200, rng.randint(2, 4))
        await line.receive(0.5)
        line.send(1_200)
        line.send(80, 300)
        for _ in range(rng.randint(1, 6)):
            count = max(2, min(4_000, round(rng.lognormvariate(0, 1.2) * 90)))
            if line.left_bytes < size:
                return
            burst = rng.choice((4, 10, 16))
            gap_s = burst * size * 8 / (self.profile.rate_bps * rng.uniform(0.05, 0.4))
            line.send(rng.randint(90, 420), size, count, think_s=0.01, gap_s=gap_s, burst=burst)
            every, before = rng.choice((2, 2, 10)), line.received
            while line.received - before < count and await line.receive(0.4):
                if (line.received - before) % every == 0:
                    line.send(rng.randint(33, 42))
            await asyncio.sleep(rng.uniform(0.05, 0.6))


class Snmp(UdpBackground):
    """A monitoring system that walks the counters of a device."""

    name: ClassVar[str] = "snmp/udp"
    conversations: ClassVar[tuple[int, int]] = (3, 12)

    async def talk(self, line: Line) -> None:
        rng = line.rng
        for _ in range(rng.randint(2, 30)):
            line.send(rng.randint(70, 90), rng.choice((95, 120, 900, 1_380)), think_s=rng.uniform(0.0003, 0.004))
            await line.receive(1.0)


class Syslog(UdpBackground):
    """Log lines of devices, one way, as they happen."""

    name: ClassVar[str] = "logs/syslog-udp"
    conversations: ClassVar[tuple[int, int]] = (3, 12)

    async def talk(self, line: Line) -> None:
        rng = line.rng
        while True:
            for _ in range(rng.choice((1, 1, 2, 8))):
                line.send(min(1_024, round(rng.lognormvariate(0, 0.5) * 170)))
            await asyncio.sleep(rng.expovariate(4.0))


async def _at_period(period_s: float, act: Callable[[], Any]) -> None:
    """Call `act` each `period_s` until cancelled, without drifting."""
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        act()
        due += period_s
        await asyncio.sleep(max(0.0, due - loop.time()))


async def _answers(
    sock: socket.socket, client: Any, size: int, count: int, think_s: float, gap_s: float, burst: int,
    spread: int, rng: random.Random,
) -> None:  # fmt: skip
    loop = asyncio.get_running_loop()
    due = loop.time() + think_s
    sent = 0
    while sent < count:
        await asyncio.sleep(max(0.0, due - loop.time()))
        for _ in range(min(burst, count - sent)):
            if not _answer(sock, client, _spread(rng, size, spread)):
                return
            sent += 1
        due += gap_s


def _answer(sock: socket.socket, client: Any, size: int) -> bool:
    """Send one datagram; False where the client is gone."""
    try:
        sock.sendto(payload(size), client)
    except BlockingIOError:
        return True  # a full queue loses a datagram
    except OSError:
        return False
    return True


def _spread(rng: random.Random, size: int, percent: int) -> int:
    return size if not percent else max(20, round(size * (1 + rng.uniform(-percent, percent) / 100)))


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


DATAGRAMS = (DnsUdp, Ntp, Voip, Game, VideoCall, QuicDownload, Snmp, Syslog)
