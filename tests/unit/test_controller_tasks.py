"""Switch tasks against P4Runtime servers whose data plane is a memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("finsy", reason="needs finsy, which brings P4Runtime's messages")
pytest.importorskip("prometheus_client", reason="needs prometheus-client")

from dinnet.classifier.model import CLASSES, VERDICT_DTYPE, Classifier
from dinnet.controller.intent import Intent
from dinnet.controller.metrics import Metrics
from dinnet.controller.switch_task import SwitchTask
from dinnet.dataplane.program import dinnet_program
from dinnet.dataplane.session import SessionOptions, connected
from dinnet.switch.memory import MemoryTarget
from dinnet.switch.server import ServerOptions, serving
from dinnet.switch.target import MeterConfig

TIMEOUT_S = 60


class Always(Classifier):
    """Every flow is decode: what the forest says is no matter of these tests."""

    def __init__(self) -> None:
        pass

    def classify(self, records: Any, threads: int = 1) -> Any:
        verdicts = np.zeros(len(records), VERDICT_DTYPE)
        verdicts["class_id"], verdicts["confidence"] = CLASSES.index("decode"), 0.9
        return verdicts


def intent(address: str, election_id: int = 5, **more: Any) -> Intent:
    return Intent.model_validate(
        {
            "controller": {"election_id": election_id, "resync_s": 0.2},
            "switches": {
                "s": {
                    "address": address,
                    "ports": {1: {"trusted": True}, 2: {}},
                    "routes": [{"to": "10.0.0.0/8", "drop": True}],
                    "rules": [{"slice": "bulk", "tc": 1, "priority": 4, "proto": "udp"}],
                }
            },
            "links": {"l": {"ends": ["s/2"], "rate": "100mbit", "police": True}},
            **more,
        }
    )


@asynccontextmanager
async def task_of(intent: Intent, classifier: Classifier | None = None) -> AsyncIterator[SwitchTask]:
    task = SwitchTask("s", intent, classifier, Metrics())
    running = asyncio.create_task(task.run())
    try:
        yield task
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def until(condition: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.01)
    assert condition(), what


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await body()

    asyncio.run(within())


def digest_row(number: int, **more: int) -> tuple[int, tuple[int, ...]]:
    (digest,) = dinnet_program().info.digests.values()
    values = {name: 0 for name, _ in digest.leaves}
    values |= {"src": 0xFFFF0A000001, "dst": 0xFFFF0A000002, "proto": 6, "sport": number, "dport": 80, "rev_packets": 1}
    return digest.id, tuple((values | more)[name] for name, _ in digest.leaves)


async def entries(address: str) -> list[Any]:
    async with connected(address, dinnet_program(), SessionOptions(election_id=0)) as session:
        return await session.entries("microflow")


def test_a_switch_becomes_as_wanted_and_then_no_round_changes_anything() -> None:
    async def body() -> None:
        async with serving(MemoryTarget(), ServerOptions("127.0.0.1:0")) as server:
            async with task_of(intent(server.address)) as task:
                await until(lambda: task.status.rounds >= 3, "three rounds")
                # 2 ports, a route, a rule, the digest, 4 policed slices
                assert task.status.changed == 9
                better = intent(server.address, classifier={"enabled": False})
                task.use(better)
                await until(lambda: task.status.changed == 10, "the digest is gone")
            async with task_of(better) as again:
                await until(lambda: again.status.rounds >= 2, "two rounds")
                assert again.status.changed == 0

    run(body)


class Rounding(MemoryTarget):
    """Meters with little precision, as switches have them."""

    def place_meters(self, meter: Any, first: int, values: Any) -> None:
        super().place_meters(
            meter, first, [value and MeterConfig(*(part // 1024 * 1024 for part in value)) for value in values]
        )

    def read_meters(self, meter: Any, first: int, count: int) -> Any:
        found = super().read_meters(meter, first, count)
        return [value and MeterConfig(*(part // 1024 * 1024 for part in value)) for value in found]


def test_meters_that_are_rounded_are_not_written_for_ever() -> None:
    async def body() -> None:
        async with (
            serving(Rounding(), ServerOptions("127.0.0.1:0")) as server,
            task_of(intent(server.address)) as task,
        ):
            await until(lambda: task.status.rounds >= 4, "four rounds")
            assert task.status.changed == 9

    run(body)


def test_the_standby_takes_over_and_changes_nothing() -> None:
    async def body() -> None:
        async with (
            serving(MemoryTarget(), ServerOptions("127.0.0.1:0")) as server,
            task_of(intent(server.address, 3)) as standby,
        ):
            await until(lambda: standby.status.rounds > 0, "the lower one is alone at first")
            changed = standby.status.changed
            async with task_of(intent(server.address, 9)) as first:
                await until(lambda: first.status.in_force, "the higher one is in charge")
                await until(lambda: standby.status.state == "standby", "the lower one gives way")
                rounds = standby.status.rounds
                assert first.status.changed == 0
            await until(lambda: standby.status.rounds > rounds, "the lower one takes over")
            assert standby.status.changed == changed

    run(body)


def test_a_second_one_with_the_same_election_id_waits_for_its_turn() -> None:
    async def body() -> None:
        async with (
            serving(MemoryTarget(), ServerOptions("127.0.0.1:0")) as server,
            task_of(intent(server.address)) as first,
        ):
            await until(lambda: first.status.in_force, "the first is in charge")
            async with task_of(intent(server.address)) as second:
                await until(lambda: second.status.errors > 1, "the second is refused")
                assert second.status.rounds == 0 and second.status.error
                rounds = first.status.rounds
                await until(lambda: first.status.rounds > rounds + 1, "the first goes on")
                assert first.status.errors == 0

    run(body)


def test_a_switch_that_comes_late_and_goes_and_comes_empty(tmp_path: Path) -> None:
    async def body() -> None:
        place = f"unix:{tmp_path}/p4rt"
        async with task_of(intent(place)) as task:
            await until(lambda: task.status.errors > 1, "nobody is there")
            for turn in (1, 2):
                async with serving(MemoryTarget(), ServerOptions(place)):
                    await until(lambda turn=turn: task.status.changed == 9 * turn, "all is there")  # type: ignore[misc]
                await until(lambda: not task.status.in_force, "it is gone")

    run(body)


def test_digests_become_marks_that_a_reconcile_round_leaves_alone() -> None:
    async def body() -> None:
        target = MemoryTarget()
        async with serving(target, ServerOptions("127.0.0.1:0")) as server:
            async with task_of(intent(server.address), Always()) as task:
                await until(lambda: task.status.in_force, "all is there")
                rows = [digest_row(number) for number in range(1, 301)]
                assert target.events is not None
                target.events.digests(rows[0][0], [row for _, row in rows])
                await until(lambda: len(task.book) == 300, "all are marked")
                rounds = task.status.rounds
                await until(lambda: task.status.rounds > rounds + 1, "another round")
                found = await entries(server.address)
                assert len(found) == 600
                assert {(each.action.slice, each.action.tc) for each in found} == {(1, 3)}
                target.events.digests(rows[0][0], [digest_row(number, end=3)[1] for number in range(1, 300)])
                await until(lambda: len(task.book) == 1, "those that ended have none")
                while len(await entries(server.address)) > 2:
                    await asyncio.sleep(0.01)
            async with task_of(intent(server.address), Always()) as again:
                await until(lambda: len(again.book) == 1, "the mark is taken over")
                assert len(await entries(server.address)) == 2

    run(body)


def test_a_flow_that_is_marked_already_is_modified_where_the_book_does_not_know_it() -> None:
    async def body() -> None:
        target = MemoryTarget()
        async with (
            serving(target, ServerOptions("127.0.0.1:0")) as server,
            task_of(intent(server.address), Always()) as task,
        ):
            await until(lambda: task.status.in_force, "all is there")
            assert target.events is not None
            id, row = digest_row(7)
            target.events.digests(id, [row])
            await until(lambda: len(task.book) == 1, "it is marked")
            task.book.marks.clear()
            target.events.digests(id, [row])
            await until(lambda: len(task.book) == 1, "it is marked again")
            await asyncio.sleep(0)
            async with asyncio.timeout(TIMEOUT_S):
                while {each.action.microflow_id for each in await entries(server.address)} != {2}:
                    await asyncio.sleep(0.01)

    run(body)
