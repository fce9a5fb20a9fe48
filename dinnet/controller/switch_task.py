"""One switch, kept as the intent wants it: connect, win the election, compare, change what differs, for ever."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from dinnet.controller.buckets import Sharing
from dinnet.controller.classify import Loop, write_marks
from dinnet.controller.desired import switch_entities
from dinnet.controller.intent import Intent
from dinnet.controller.intent_switch import Switch
from dinnet.controller.marks import MarkBook
from dinnet.controller.metrics import Metrics
from dinnet.controller.status import DeviceStatus
from dinnet.controller.supervise import first_of, supervised
from dinnet.dataplane.client import ClientTls
from dinnet.dataplane.diff import Changes
from dinnet.dataplane.entity import Entity, Rates
from dinnet.dataplane.errors import SessionLost
from dinnet.dataplane.program import dinnet_program
from dinnet.dataplane.session import Session, SessionOptions, connected

if TYPE_CHECKING:
    from dinnet.classifier import Classifier

_log: Final = logging.getLogger(__name__)
#: The classification loop's: live marks are no part of the intent.
MARKS: Final = ("microflow",)
_ACTIONS: Final = ("degrade", "reroute", "drop")
_BUCKETS: Final = {1: "microflow", 2: "slice"}


def options_of(switch: Switch, election_id: int) -> SessionOptions:
    tls = ClientTls(switch.tls.ca, switch.tls.cert, switch.tls.key) if switch.tls else None
    return SessionOptions(device_id=switch.device_id, election_id=election_id, tls=tls)


class SwitchTask:
    def __init__(
        self,
        name: str,
        intent: Intent,
        classifier: Classifier | None,
        metrics: Metrics,
        newcomer: Callable[[int], Rates | None] = lambda _: None,
    ) -> None:
        self.status = DeviceStatus(name, "switch")
        self.book = MarkBook(intent, newcomer)
        self.session: Session | None = None  # while this controller is in charge
        self._intent = intent
        self._metrics = metrics
        self._wake = asyncio.Event()
        self._loop = Loop(name, self.book, classifier, metrics) if classifier is not None else None
        self._exceeded: dict[tuple[int, int, int], int] = {}

    def use(self, intent: Intent) -> None:
        """Another intent, in which this switch's address and the classifier are the same."""
        self._intent = intent
        self.book.use(intent)
        self._wake.set()

    async def run(self) -> None:
        await supervised(self.status, self._connected)

    async def _connected(self) -> None:
        name, intent = self.status.name, self._intent
        switch = intent.switches[name]
        self.status.state = "connecting"
        async with connected(
            switch.address, dinnet_program(), options_of(switch, intent.controller.election_id)
        ) as session:
            while True:
                if not session.is_primary:
                    self.status.state, self.status.error = "standby", ""
                    await session.compete()
                _log.info("switch %s: in charge", name)
                self.status.state = "in charge"
                await session.ensure_pipeline()
                self.session = session
                try:
                    parts = [session.wait_lost(), session.until_standby(), self._reconcile(session)]
                    if self._loop is not None:
                        parts += [self._loop.run(session, self._split_ports), self._loop.age(session)]
                    await first_of(*parts)
                finally:
                    self.session = None
                    self._metrics.up.labels(name).set(0)
                _log.info("switch %s: another controller is in charge", name)

    def _split_ports(self) -> frozenset[int]:
        ports = self._intent.switches[self.status.name].ports
        return frozenset(number for number, port in ports.items() if port.flow_labels)

    async def _reconcile(self, session: Session) -> None:
        name, status, metrics = self.status.name, self.status, self._metrics
        while True:
            self._wake.clear()
            wanted = switch_entities(self._intent, name)
            try:
                changes = await session.reconcile(wanted, without=MARKS)
            except BaseException:
                metrics.errors.labels(name).inc()
                raise
            lines = str(changes).splitlines()
            for line in lines:
                _log.info("switch %s: %s", name, line)
            status.note(lines)
            status.rounds += 1
            status.in_force, status.error = True, ""
            metrics.runs.labels(name).inc()
            metrics.changes.labels(name).inc(len(changes))
            metrics.up.labels(name).set(1)
            await self._count_exceeded(session)
            try:
                async with asyncio.timeout(self._intent.controller.resync_s):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _count_exceeded(self, session: Session) -> None:
        """Packets above token buckets: cells indexed by (slice * 4 + bucket) * 4 + what was done."""
        for index, count in enumerate(await session.counters("exceeded")):
            number, bucket, action = index >> 4, index >> 2 & 3, index & 3
            before = self._exceeded.get((number, bucket, action), 0)
            if count.packets > before and bucket in _BUCKETS and action < len(_ACTIONS):
                labels = (self.status.name, str(number), _BUCKETS[bucket], _ACTIONS[action])
                self._metrics.exceeded.labels(*labels).inc(count.packets - before)
            self._exceeded[number, bucket, action] = count.packets

    async def retune(self, sharing: Sharing, capacities: Mapping[int, int]) -> None:
        """Deal the token buckets of the marks anew.

        Raises:
            SessionLost: The connection broke.
        """
        if self._loop is not None:
            async with self._loop.lock:
                if self.session is not None:
                    changes = self.book.retune(sharing.round(self.book.marks.values(), capacities))
                    await write_marks(self.session, self.book, changes)


async def planned(switch: Switch, wanted: list[Entity] | None) -> Changes:
    """What a switch lacks or has too much, read without taking part in the election.

    Args:
        switch: It.
        wanted: What it should have; None: nothing of dinnet's, marks neither.

    Raises:
        SessionLost: It cannot be reached.
    """
    program = dinnet_program()
    async with connected(switch.address, program, options_of(switch, 0)) as session:
        if await session.running_cookie() != program.cookie:
            # The program in force is another one, or none: all entries are to come with this one.
            return Changes(insert=tuple(wanted or ()))
        if wanted is None:
            return await session.changes_to([])
        return await session.changes_to(wanted, without=MARKS)


async def cleared(switch: Switch, election_id: int) -> Changes:
    """Take everything of dinnet's out of a switch's tables.

    Raises:
        SessionLost: It cannot be reached, or another controller is in charge.
        WriteFailed: Some changes were refused.
    """
    program = dinnet_program()
    async with connected(switch.address, program, options_of(switch, election_id)) as session:
        if session.is_vacant:
            await session.compete()
        if not session.is_primary:
            raise SessionLost(f"{switch.address}: another controller with a higher election id is in charge; stop it")
        if await session.running_cookie() != program.cookie:
            return Changes()
        return await session.reconcile([])
