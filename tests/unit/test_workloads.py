"""The inference workloads on loopback: real ports in the labels, traffic that flows, budgets that hold."""

from __future__ import annotations

import asyncio
import dataclasses
import http.client
import io
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from dinnet.errors import DinnetError
from dinnet.testbed.models import MODELS
from dinnet.testbed.traces import Request
from dinnet.testbed.workloads import catalogue, inference, session
from dinnet.testbed.workloads.base import LabelLog, Profile, Workload
from dinnet.testbed.workloads.channel import TlsChannel
from dinnet.testbed.workloads.data import RangeGet
from dinnet.testbed.workloads.kv import KV
from dinnet.testbed.workloads.session import SocketWorkload
from dinnet.testbed.workloads.tokens import TOKENS, NdjsonTokens, SseTokens

UDP = "control/heartbeat-udp"
WORKLOADS = {workload.name: workload for workload in inference()}
BUDGET = 600_000
REQUESTS = tuple(Request(0.02 * i, 60 + 17 * i, 4 + i, prefix_tokens=(i % 3) * 20) for i in range(30))


@dataclass
class Relay:
    """Stands between the two sides and counts what they really send, and from which ports."""

    target: int
    sent: int = 0
    ports: dict[int, int] = field(default_factory=dict)  # client port -> bytes both ways
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    async def tcp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self.tasks.add(task)
        port = writer.get_extra_info("peername")[1]
        self.ports[port] = 0
        onward_reader, onward_writer = await asyncio.open_connection("127.0.0.1", self.target)

        async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            try:
                while data := await source.read(65536):
                    self.sent += len(data)
                    self.ports[port] += len(data)
                    sink.write(data)
                    await sink.drain()
            except OSError:
                pass
            finally:
                sink.close()

        await asyncio.gather(copy(reader, onward_writer), copy(onward_reader, writer))
        await asyncio.gather(writer.wait_closed(), onward_writer.wait_closed(), return_exceptions=True)


@asynccontextmanager
async def relayed(target: int) -> AsyncIterator[tuple[Relay, int]]:
    relay = Relay(target)
    server = await asyncio.start_server(relay.tcp, "127.0.0.1", 0)
    try:
        yield relay, server.sockets[0].getsockname()[1]
    finally:
        server.close()
        if relay.tasks:  # they end by themselves once the clients have closed
            _, pending = await asyncio.wait(relay.tasks, timeout=10)
            assert not pending, "a client left its connection open"


def profile(**changed: Any) -> Profile:
    values = {
        "seed": 3,
        "duration_s": 0.7,
        "rate_bps": 200_000_000,
        "model": MODELS["smollm2-135m"],
        "requests": REQUESTS,
        "byte_budget": BUDGET,
    }
    return Profile(**{**values, **changed})


@asynccontextmanager
async def serving(kind: type[Workload], given: Profile, host: str = "127.0.0.1") -> AsyncIterator[int]:
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(kind(given).serve(host, port.set_result))
    try:
        yield await asyncio.wait_for(port, 5)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def run(kind: type[Workload], given: Profile) -> tuple[list[dict[str, Any]], Relay, int]:
    """Serve and drive in one loop, through the relay. Returns labels, relay, and the port driven against."""
    out = io.StringIO()
    async with serving(kind, given) as served, relayed(served) as (relay, relay_port):
        port = served if kind.name == UDP else relay_port
        await asyncio.wait_for(kind(given).drive(("127.0.0.1", port), LabelLog(out)), given.duration_s + 30)
    return [json.loads(line) for line in out.getvalue().splitlines()], relay, port


@pytest.fixture(scope="module")
def runs() -> dict[str, tuple[list[dict[str, Any]], Relay, int]]:
    """All workloads, sixteen at a time; on a busy machine their sessions get longer to come to an end."""

    async def everything() -> dict[str, tuple[list[dict[str, Any]], Relay, int]]:
        room = asyncio.Semaphore(16)

        async def one(kind: type[Workload]) -> tuple[list[dict[str, Any]], Relay, int]:
            async with room:
                return await run(kind, profile(duration_s=2.5))

        results = await asyncio.gather(*(one(kind) for kind in WORKLOADS.values()))
        return dict(zip(WORKLOADS, results, strict=True))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "GRACE_S", 15.0)
        return asyncio.run(everything())


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_workload_runs_and_labels_its_sockets(
    name: str, runs: dict[str, tuple[list[dict[str, Any]], Relay, int]]
) -> None:
    kind = WORKLOADS[name]
    labels, relay, port = runs[name]
    assert labels
    for label in labels:
        assert label["transport"] == name
        assert label["group"] == kind.group
        assert label["t0_us"] <= label["t1_us"]
        assert label["src"] == label["dst"] == "127.0.0.1"
        assert label["dport"] == port
        assert label["large_model"] is (False if kind.group in ("prefill", "decode") else None)
        assert label["model"] == ("smollm2-135m" if kind.needs_model else "")
        assert label["proto"] == ("udp" if name == UDP else "tcp")
    if name != UDP:
        ports = {label["sport"] for label in labels}
        assert ports <= set(relay.ports)
        # Without a label: only what was given up before it was established.
        assert sum(count for port, count in relay.ports.items() if port not in ports) == 0
        assert 1_000 < relay.sent <= BUDGET
        assert sum(count > 100 for count in relay.ports.values()) >= len(labels) / 2


def test_each_class_has_transports_enough_to_hold_some_out() -> None:
    count = {group: sum(kind.group == group for kind in WORKLOADS.values()) for group in ("prefill", "decode")}
    count |= {group: sum(kind.group == group for kind in WORKLOADS.values()) for group in ("control", "data")}
    assert min(count.values()) >= 6
    assert len(WORKLOADS) == len(inference())


def test_catalogue_adds_traffic_that_is_not_inference() -> None:
    everything = catalogue()
    assert set(WORKLOADS) < set(everything)
    assert {kind.group for name, kind in everything.items() if name not in WORKLOADS} == {"other"}


def test_labels_tell_streams_and_first_requests(runs: dict[str, tuple[list[dict[str, Any]], Relay, int]]) -> None:
    for kind in TOKENS:
        expected = not kind.name.startswith("tokens/whole-answer")
        assert {label["streaming"] for label in runs[kind.name][0]} == {expected}
    assert {label["streaming"] for label in runs["kv/raw-tcp-layerwise"][0]} == {None}
    first = profile(requests=tuple(dataclasses.replace(r, prefix_tokens=0) for r in REQUESTS))
    later = profile(requests=tuple(dataclasses.replace(r, prefix_tokens=r.prompt_tokens) for r in REQUESTS))
    for given, expected in ((first, True), (later, False)):
        planned = WORKLOADS["tokens/sse-http1"](given).plan()  # type: ignore[attr-defined]
        assert {one.first_request for one in planned} == {expected}


@pytest.mark.parametrize("kind", KV, ids=lambda kind: kind.name)
def test_kv_hand_off_moves_the_models_cache(kind: type[SocketWorkload]) -> None:
    """100 tokens of SmolLM2-135M by any transport: 30 layers x 2 x 3 heads x 64 x 2 bytes x 100 = 2,304,000."""
    single = type("Single", (kind,), {"connections": (1, 1), "per_connection": (1, 1), "load": (0.7, 0.7)})
    given = profile(
        requests=(Request(0.0, 130, 5, prefix_tokens=30),), rate_bps=10**9, byte_budget=20_000_000, duration_s=2.0
    )
    _, relay, _ = asyncio.run(run(single, given))
    assert 2_304_000 * 0.99 <= relay.sent <= 2_304_000 * 1.03


def test_plan_depends_on_the_profile_alone() -> None:
    kind = WORKLOADS["kv/raw-tcp-layerwise"]

    def planned(seed: int) -> list[Any]:
        return [one.jobs for one in kind(profile(seed=seed)).plan()]  # type: ignore[attr-defined]

    assert planned(1) == planned(1)
    assert planned(1) != planned(2)


@pytest.mark.parametrize(("kind", "media"), [(SseTokens, "text/event-stream"), (NdjsonTokens, "application/x-ndjson")])
def test_another_http_client_reads_the_token_stream(kind: type[SseTokens], media: str) -> None:
    given = profile()

    def ask(port: int) -> tuple[int, str | None, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            body = json.dumps({"new": 20, "max_tokens": 8, "stream": True})
            connection.request("POST", "/v1/chat/completions", body)
            answer = connection.getresponse()
            return answer.status, answer.headers["content-type"], answer.read()
        finally:
            connection.close()

    async def exchange() -> tuple[int, str | None, bytes]:
        async with serving(kind, given) as port:
            return await asyncio.to_thread(ask, port)

    status, content_type, body = asyncio.run(exchange())
    workload = kind(given)
    events = -(-8 // workload.every)
    assert (status, content_type) == (200, media)
    # Each token's text has 1 to 11 characters.
    assert events * workload.frame_bytes + 8 <= len(body) <= events * workload.frame_bytes + 88


def test_another_http_client_reads_a_range() -> None:
    def ask(port: int) -> tuple[int, int]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request("GET", "/model", headers={"Range": "bytes=1000-1500999"})
            answer = connection.getresponse()
            return answer.status, len(answer.read())
        finally:
            connection.close()

    async def exchange() -> tuple[int, int]:
        async with serving(RangeGet, profile()) as port:
            return await asyncio.to_thread(ask, port)

    assert asyncio.run(exchange()) == (206, 1_500_000)


def test_tls_like_records_have_the_lengths_of_tls_1_3() -> None:
    """20,000 bytes are a full record of 2^14 and one of 3,616, each with a 5-byte head, a type byte and a tag."""

    async def sent() -> bytes:
        near, far = socket.socketpair()
        far_reader, far_writer = await asyncio.open_connection(sock=far)
        channel = TlsChannel(*(await asyncio.open_connection(sock=near)))
        await channel.send(bytes(15_000), bytes(5_000))
        await channel.close()
        data = await far_reader.read(-1)
        far_writer.close()
        await far_writer.wait_closed()
        return data

    data = asyncio.run(sent())
    assert len(data) == 20_000 + 2 * (5 + 1 + 16)
    assert data[:5] == b"\x17\x03\x03" + (16_384 + 17).to_bytes(2, "big")
    assert data[16_406:16_411] == b"\x17\x03\x03" + (3_616 + 17).to_bytes(2, "big")


def test_udp_heartbeats_come_from_the_labelled_ports_and_keep_the_budget() -> None:
    received: list[tuple[int, int]] = []

    class Count(asyncio.DatagramProtocol):
        def datagram_received(self, data: bytes, address: Any) -> None:
            received.append((address[1], len(data)))

    async def beat() -> list[dict[str, Any]]:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(Count, ("127.0.0.1", 0))
        out = io.StringIO()
        try:
            port = transport.get_extra_info("sockname")[1]
            await WORKLOADS[UDP](profile(byte_budget=40_000)).drive(("127.0.0.1", port), LabelLog(out))
        finally:
            transport.close()
        return [json.loads(line) for line in out.getvalue().splitlines()]

    labels = asyncio.run(beat())
    assert len(labels) >= 5
    assert {port for port, _ in received} <= {label["sport"] for label in labels}
    assert len({port for port, _ in received}) >= len(labels) / 2
    assert sum(size for _, size in received) <= 40_000


def test_udp_heartbeat_is_answered_where_it_asks_for_it() -> None:
    async def ask() -> bytes:
        async with serving(WORKLOADS[UDP], profile()) as port:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)
                sock.connect(("127.0.0.1", port))
                sock.send(b"\x00" + bytes(99))
                sock.send(b"\x01" + bytes(99))
                return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(sock, 2000), 5)

    assert asyncio.run(ask()) == b"\x01" + bytes(23)


def test_nobody_there_is_an_error_that_names_the_server() -> None:
    kind = WORKLOADS["kv/raw-tcp-layerwise"]
    with pytest.raises(DinnetError, match=r"kv/raw-tcp-layerwise.*127\.0\.0\.1 port 9"):
        asyncio.run(kind(profile(duration_s=0.2)).drive(("127.0.0.1", 9), LabelLog(io.StringIO())))
