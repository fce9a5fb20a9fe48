"""The inference workloads on loopback: real ports in the labels, traffic that flows, budgets that hold."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from dinnet.errors import DinnetError
from dinnet.testbed.models import MODELS
from dinnet.testbed.traces import Request
from dinnet.testbed.workloads import inference
from dinnet.testbed.workloads.base import LabelLog, Profile, Workload

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
        self.tasks.add(asyncio.current_task())
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

        try:
            await asyncio.gather(copy(reader, onward_writer), copy(onward_reader, writer), return_exceptions=True)
        except asyncio.CancelledError:
            pass
        finally:
            for end in (writer, onward_writer):
                end.transport.abort()
                await asyncio.gather(end.wait_closed(), return_exceptions=True)


@asynccontextmanager
async def relayed(target: int) -> AsyncIterator[tuple[Relay, int]]:
    relay = Relay(target)
    server = await asyncio.start_server(relay.tcp, "127.0.0.1", 0)
    try:
        yield relay, server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in relay.tasks:
            task.cancel()
        await asyncio.gather(*relay.tasks, return_exceptions=True)


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


async def run(kind: type[Workload], given: Profile) -> tuple[list[dict[str, Any]], Relay]:
    """Serve and drive in one loop, through the relay for TCP."""
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(kind(given).serve("127.0.0.1", port.set_result))
    out = io.StringIO()
    try:
        async with relayed(await port) as (relay, relay_port):
            tcp = kind.name != "control/heartbeat-udp"
            target = relay_port if tcp else await port
            await asyncio.wait_for(kind(given).drive(("127.0.0.1", target), LabelLog(out)), given.duration_s + 15)
            labels = [json.loads(line) for line in out.getvalue().splitlines()]
            assert {label["dport"] for label in labels} == {target}
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    return labels, relay


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_workload_runs_and_labels_its_sockets(name: str) -> None:
    kind = WORKLOADS[name]
    labels, relay = asyncio.run(run(kind, profile()))
    assert labels
    for label in labels:
        assert label["transport"] == name
        assert label["group"] == kind.group
        assert label["t0_us"] <= label["t1_us"]
        assert label["src"] == label["dst"] == "127.0.0.1"
        assert label["large_model"] is (False if kind.group in ("prefill", "decode") else None)
        assert label["model"] == ("smollm2-135m" if kind.needs_model else "")
    if name == "control/heartbeat-udp":
        assert all(label["proto"] == "udp" for label in labels)
        return
    assert {label["sport"] for label in labels} == set(relay.ports)
    assert all(label["proto"] == "tcp" for label in labels)
    assert 1_000 < relay.sent <= BUDGET
    answered = [port for port, count in relay.ports.items() if count > 100]
    assert len(answered) >= len(labels) / 2


def test_nobody_there_is_an_error_that_names_the_server() -> None:
    kind = WORKLOADS["kv/raw-tcp-layerwise"]
    with pytest.raises(DinnetError, match=r"kv/raw-tcp-layerwise.*127\.0\.0\.1 port 9"):
        asyncio.run(kind(profile(duration_s=0.2)).drive(("127.0.0.1", 9), LabelLog(io.StringIO())))
