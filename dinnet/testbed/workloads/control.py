"""What keeps a cluster together (class control): heartbeats, health, registration, metrics, dispatch, watches."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from dinnet.testbed.workloads import http1
from dinnet.testbed.workloads.base import LabelLog, Workload, label_socket, now_us
from dinnet.testbed.workloads.channel import Channel, payload
from dinnet.testbed.workloads.links import GrpcLink, GrpcUnaryLink, HttpLink, Link, LinkWorkload, RawLink, ZmqLink
from dinnet.testbed.workloads.session import Client, Session, SocketWorkload

EXCHANGE_BYTES = 1_200  # planned for the frames of one small exchange
VOLUME = 0.3


class Heartbeat(LinkWorkload):
    """A small report at a jittered interval, as long as the node lives."""

    group = "control"
    volume = VOLUME
    per_connection = (1, 1)
    interval_s: ClassVar[tuple[float, float]] = (0.05, 1.0)
    report_bytes: ClassVar[tuple[int, int]] = (0, 600)
    answered: ClassVar[float] = 0.7  # probability that a node's reports are answered

    async def session(self, client: Client, session: Session) -> None:
        rng = session.rng
        interval_s = rng.uniform(*self.interval_s)
        report = rng.randint(*self.report_bytes)
        answered = rng.random() < self.answered
        left = session.max_bytes
        async with self.connect(client, rng) as link:
            number = 0
            while client.left_s > 0 and (left := left - report - EXCHANGE_BYTES) > 0:
                number += 1
                load = round(rng.random(), 3)
                if answered or link.alternating:
                    await link.ask(report, beat=number, load=load, ack=True)
                else:
                    await link.send(report, beat=number, load=load)
                await asyncio.sleep(interval_s * rng.uniform(0.8, 1.2))

    async def reply(self, link: Link, rng: random.Random) -> None:
        while True:
            message = await link.receive()
            if link.alternating or message.about.get("ack"):
                await link.send(ok=True)


class HeartbeatTcp(Heartbeat):
    name = "control/heartbeat-tcp"
    link = RawLink


class HeartbeatZmq(Heartbeat):
    name = "control/heartbeat-zmq"
    link = ZmqLink


class GrpcHealth(Heartbeat):
    """grpc.health.v1: a question without content, an answer of a byte or two."""

    name = "control/grpc-health"
    link = GrpcUnaryLink
    interval_s = (0.2, 2.0)
    report_bytes = (0, 4)


class HttpHealth(Heartbeat):
    """GET /health by load balancers and orchestrators."""

    name = "control/http-health"
    link = HttpLink
    interval_s = (0.2, 2.0)
    report_bytes = (0, 0)


class Dispatch(LinkWorkload):
    """The scheduler places requests on workers: a small call each, answered when it is queued."""

    group = "control"
    volume = VOLUME

    async def session(self, client: Client, session: Session) -> None:
        rng = session.rng
        async with self.connect(client, rng) as link:
            for job in session.jobs:
                await client.until(job.at_s)
                if client.left_s <= 0:
                    return
                size = min(int(300 * rng.lognormvariate(0.0, 0.7)), max(0, job.max_bytes - EXCHANGE_BYTES))
                await link.ask(size, request=f"{rng.getrandbits(64):016x}", tokens=job.request.prompt_tokens)

    async def reply(self, link: Link, rng: random.Random) -> None:
        while True:
            await link.receive()
            await asyncio.sleep(rng.uniform(0.0003, 0.01))
            await link.send(rng.randint(0, 300), queued=True, position=rng.randint(0, 20))


class DispatchGrpc(Dispatch):
    name = "control/dispatch-grpc"
    link = GrpcUnaryLink
    per_connection = (2, 20)


class DispatchTcp(Dispatch):
    name = "control/dispatch-tcp"
    link = RawLink
    per_connection = (2, 20)


class Cancel(Dispatch):
    """A client has left: tell the node. Mostly a connection of its own."""

    name = "control/cancel-http"
    link = HttpLink
    per_connection = (1, 2)

    async def reply(self, link: Link, rng: random.Random) -> None:
        while True:
            await link.receive()
            await link.send()


class LongPoll(LinkWorkload):
    """Register with what the node can do, then ask for work again and again; an answer may take seconds."""

    name = "control/register-longpoll"
    group = "control"
    volume = VOLUME
    link = HttpLink
    per_connection = (1, 1)

    async def session(self, client: Client, session: Session) -> None:
        rng = session.rng
        left = session.max_bytes
        hold_s = rng.uniform(0.2, 2.0)
        async with self.connect(client, rng) as link:
            left -= (capabilities := min(rng.randint(500, 6000), left // 2))
            await link.ask(capabilities, register=True, hold_s=0)
            while client.left_s > 0 and (left := left - EXCHANGE_BYTES - 800) > 0:
                await link.ask(poll=True, hold_s=round(min(hold_s, client.left_s), 3))

    async def reply(self, link: Link, rng: random.Random) -> None:
        while True:
            hold_s = (await link.receive()).about["hold_s"]
            early = rng.random() < 0.3
            await asyncio.sleep(hold_s * (rng.random() if early else 1.0))
            await link.send(rng.randint(100, 800) if early else 0, work=early)


class Watch(LinkWorkload):
    """As etcd: a watch that the server reports changes on, and the client's lease keep-alives, on one stream."""

    name = "control/etcd-watch"
    group = "control"
    volume = VOLUME
    link = GrpcLink
    per_connection = (1, 1)

    async def session(self, client: Client, session: Session) -> None:
        rng = session.rng
        interval_s = rng.uniform(0.3, 2.0)
        left = session.max_bytes
        async with self.connect(client, rng) as link:
            await link.send(create=True, budget=left // 2, every_s=round(rng.uniform(0.1, 1.5), 3))
            reading = asyncio.create_task(self._read(link))
            try:
                while client.left_s > 0 and (left := left - EXCHANGE_BYTES) > session.max_bytes // 2:
                    await link.send(lease=session.index)
                    await asyncio.sleep(min(max(0.0, client.left_s), interval_s * rng.uniform(0.9, 1.1)))
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    @staticmethod
    async def _read(link: Link) -> None:
        while True:
            await link.receive()

    async def reply(self, link: Link, rng: random.Random) -> None:
        asked = (await link.receive()).about
        telling = asyncio.create_task(self._tell(link, rng, asked["budget"], asked["every_s"]))
        try:
            while True:
                await link.receive()
                await link.send(ttl=10)
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)

    @staticmethod
    async def _tell(link: Link, rng: random.Random, budget: int, every_s: float) -> None:
        while True:
            await asyncio.sleep(rng.expovariate(1 / every_s))
            size = rng.randint(80, 2500)
            budget -= size + EXCHANGE_BYTES
            if budget < 0:
                return
            await link.send(size, event="put", revision=rng.randint(1, 1 << 30))


class Scrape(SocketWorkload):
    """Prometheus: GET /metrics at an interval, text or gzip back, on a kept or a fresh connection."""

    name = "control/prometheus-scrape"
    group = "control"
    volume = VOLUME
    per_connection = (1, 1)
    kept_share: ClassVar[float] = 0.7  # of the scrapers that keep their connection
    typical_bytes: ClassVar[int] = 22_000

    async def session(self, client: Client, session: Session) -> None:
        rng = session.rng
        kept = rng.random() < self.kept_share
        interval_s = rng.uniform(0.5, 5.0)
        size = min(int(self.typical_bytes * rng.lognormvariate(0.0, 0.9)), 200_000)
        scrapes = max(1, min(int(client.left_s / interval_s) + 1, session.max_bytes // (size + EXCHANGE_BYTES)))
        size = min(size, max(0, session.max_bytes - EXCHANGE_BYTES))
        fields = f"User-Agent: Prometheus/2.54.1\r\nAccept: {'application/openmetrics-text;' * rng.randint(1, 4)}\r\n"
        message = http1.head("GET /metrics HTTP/1.1", fields + f"X-Size: {size}\r\n")
        while scrapes:
            async with client.connection(rng) as channel:
                while scrapes:
                    await channel.send(message)
                    await http1.skip_body(channel, await http1.read_head(channel))
                    scrapes -= 1
                    if scrapes:
                        await asyncio.sleep(min(max(0.0, client.left_s), interval_s))
                    if client.left_s <= 0:
                        return
                    if not kept:
                        break

    async def answer(self, channel: Channel, rng: random.Random) -> None:
        fields = http1.server_fields(rng)
        pieces = rng.random() < 0.3
        while True:
            asked = await http1.read_head(channel)
            size = int(int(asked.fields["x-size"]) * rng.uniform(0.97, 1.0))
            await asyncio.sleep(rng.uniform(0.0005, 0.02))  # collecting and writing the text
            if pieces:
                kind = {"content_type": "text/plain", "transfer_encoding": "chunked"}
                await channel.send(http1.head("HTTP/1.1 200 OK", fields, **kind))
                await http1.send_chunked(channel, size, 4096)
            else:
                message = http1.head("HTTP/1.1 200 OK", fields, content_type="text/plain", content_length=size)
                await http1.send_with_body(channel, message, size)


class FreshScrape(Scrape):
    """Scripts and agents that connect anew for each scrape of an engine with many series."""

    name = "control/metrics-fresh"
    kept_share = 0.0
    typical_bytes = 60_000


class Probe(SocketWorkload):
    """Liveness and readiness probes as orchestrators send them: a connection, a GET, a word, the end."""

    name = "control/http-probe"
    group = "control"
    volume = VOLUME
    per_connection = (1, 1)
    connections = (15, 60)

    async def session(self, client: Client, session: Session) -> None:
        rng = session.rng
        message = http1.head(
            "GET /health HTTP/1.1", f"User-Agent: kube-probe/1.{rng.randint(24, 33)}\r\nAccept: */*\r\n"
        )
        async with client.connection(rng) as channel:
            await channel.send(message)
            await http1.skip_body(channel, await http1.read_head(channel))

    async def answer(self, channel: Channel, rng: random.Random) -> None:
        fields, size = http1.server_fields(rng), rng.choice((0, 2, 15, 40))
        busy_s = rng.choice((0.0005, 0.005, 0.05))  # an event loop that also serves requests
        while True:
            await http1.read_head(channel)
            await asyncio.sleep(rng.expovariate(1 / busy_s))
            await http1.send_with_body(channel, http1.head("HTTP/1.1 200 OK", fields, content_length=size), size)


class TlsProbe(Probe):
    name = "control/https-probe"
    tls = True


class _Echo(asyncio.DatagramProtocol):
    """Answers a datagram whose first byte asks for it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def datagram_received(self, data: bytes, address: Any) -> None:
        if data[:1] == b"\x01":
            self._transport.sendto(data[:24], address)


class HeartbeatUdp(Workload):
    """Datagrams at a jittered interval, as membership protocols send them."""

    name = "control/heartbeat-udp"
    group = "control"
    volume = VOLUME

    async def serve(self, host: str, ready: Callable[[int], None]) -> None:
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(_Echo, (host, 0))
        try:
            ready(transport.get_extra_info("sockname")[1])
            await asyncio.Event().wait()
        finally:
            transport.close()

    async def drive(self, server: tuple[str, int], log: LabelLog) -> None:
        rng = self.profile.rng(f"{self.name}/plan")
        nodes = rng.randint(5, 30)
        async with asyncio.TaskGroup() as group:
            for node in range(nodes):
                group.create_task(self._node(server, log, node, self.profile.byte_budget // nodes))

    async def _node(self, server: tuple[str, int], log: LabelLog, node: int, left: int) -> None:
        rng = self.profile.rng(f"{self.name}/{node}")
        loop = asyncio.get_running_loop()
        end = loop.time() + self.profile.duration_s
        interval_s = rng.uniform(0.05, 1.0)
        size = rng.randint(24, 500)
        flag = b"\x01" if rng.random() < 0.7 else b"\x00"
        await asyncio.sleep(rng.uniform(0, interval_s))
        with socket.socket(socket.AF_INET6 if ":" in server[0] else socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.connect(server)
            label = label_socket(sock, now_us(), group=self.group, transport=self.name)
            try:
                while loop.time() < end and (left := left - size - 24) > 0:
                    # Refused: the peer is not up, which a heartbeat exists to find out.
                    with contextlib.suppress(ConnectionRefusedError, BlockingIOError):
                        sock.send(flag + payload(size - 1))
                    await asyncio.sleep(interval_s * rng.uniform(0.8, 1.2))
            finally:
                log.write(replace(label, t1_us=now_us()))


CONTROL: tuple[type[Workload], ...] = (
    HeartbeatTcp,
    HeartbeatZmq,
    HeartbeatUdp,
    GrpcHealth,
    HttpHealth,
    DispatchGrpc,
    DispatchTcp,
    Cancel,
    LongPoll,
    Watch,
    Scrape,
    FreshScrape,
    Probe,
    TlsProbe,
)
