"""One host, kept as the intent wants it: compare at each event and now and then, change what differs, for ever."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import Final

from dinnet.controller.desired import host_state
from dinnet.controller.intent import Intent
from dinnet.controller.metrics import Metrics
from dinnet.controller.status import DeviceStatus
from dinnet.controller.supervise import first_of, supervised
from dinnet.host.driver import Host
from dinnet.host.state import Change, Plan, QueueCounters

_log: Final = logging.getLogger(__name__)
_SETTLE_S: Final = 0.05  # events come in swarms: one look at the end of each


def line_of(change: Change) -> str:
    """A change as a line of a diff."""
    sign = {"add": "+", "change": "~", "delete": "-"}[change.action]
    before = f"  (was {change.before})" if change.before and change.action == "change" else ""
    return f"{sign} {change.where}: {change.what}{before}"


class HostTask:
    def __init__(self, name: str, intent: Intent, metrics: Metrics) -> None:
        self.status = DeviceStatus(name, "host")
        self.counters: list[QueueCounters] = []
        self.guarantees: dict[tuple[str, int, int], int] = {}  # bits a second, by link, slice and tc
        self._earlier: dict[tuple[str, int, int], int] = {}
        self._taken = (0.0, 0.0)  # when counters were read: before, last
        self._intent = intent
        self._metrics = metrics
        self._wake = asyncio.Event()

    def use(self, intent: Intent) -> None:
        """Another intent, in which this host is in the same place."""
        self._intent = intent
        self._wake.set()

    async def run(self) -> None:
        await supervised(self.status, self._kept)

    async def _kept(self) -> None:
        self.status.state = "connecting"
        host = await asyncio.to_thread(Host, self._intent.hosts[self.status.name].netns)
        self.status.state = "in charge"
        await first_of(self._watch(host), self._reconcile(host))

    async def _watch(self, host: Host) -> None:
        watch = await asyncio.to_thread(host.watch)
        with watch:
            async for _ in watch:
                self._wake.set()

    async def _reconcile(self, host: Host) -> None:
        name, metrics = self.status.name, self._metrics
        while True:
            self._wake.clear()
            try:
                plan = await asyncio.to_thread(self._round, host)
                self._count(await asyncio.to_thread(host.counters))
            except BaseException:
                metrics.errors.labels(name).inc()
                metrics.up.labels(name).set(0)
                raise
            self._note(plan)
            metrics.queues(name, self.counters)
            try:
                async with asyncio.timeout(self._intent.controller.resync_s):
                    await self._wake.wait()
                await asyncio.sleep(_SETTLE_S)
            except TimeoutError:
                pass

    def _count(self, counters: list[QueueCounters]) -> None:
        self._earlier = {(each.device, each.slice, each.tc): each.bytes for each in self.counters}
        self.counters = counters
        self._taken = self._taken[1], time.monotonic()

    def with_rates(self) -> Iterator[tuple[QueueCounters, float | None]]:
        """Each queue, and the bits a second that it sent between the last two readings."""
        duration_s = self._taken[1] - self._taken[0]
        for each in self.counters:
            before = self._earlier.get((each.device, each.slice, each.tc))
            is_known = before is not None and before <= each.bytes and self._taken[0] > 0 and duration_s > 0
            yield each, (each.bytes - (before or 0)) * 8 / duration_s if is_known else None

    def _round(self, host: Host) -> Plan:
        wanted = host_state(self._intent, self.status.name)
        self.guarantees = {
            (link.device, each.number, queue.tc): queue.guarantee_bps
            for link in wanted.links
            for each in link.slices
            for queue in each.queues
        }
        plan = host.plan(wanted)
        if plan.changes:
            host.apply(plan)
        return plan

    def _note(self, plan: Plan) -> None:
        name, status = self.status.name, self.status
        for problem in plan.problems:
            if str(problem) not in status.problems:
                _log.warning("host %s: %s", name, problem)
        lines = [line_of(change) for change in plan.changes]
        for line in lines:
            _log.info("host %s: %s", name, line)
        status.note(lines)
        status.rounds += 1
        status.problems = tuple(map(str, plan.problems))
        status.in_force, status.error = not plan.problems, ""
        self._metrics.runs.labels(name).inc()
        self._metrics.changes.labels(name).inc(len(lines))
        self._metrics.up.labels(name).set(int(status.in_force))
