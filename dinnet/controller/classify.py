"""The classification loop of one switch: digests become verdicts, verdicts become marks, in batches."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from dinnet.controller.intent import CLASSES
from dinnet.controller.marks import UNCLASSIFIED, MarkBook
from dinnet.dataplane.diff import Changes
from dinnet.dataplane.errors import Failure, WriteFailed
from dinnet.dataplane.session import Session

if TYPE_CHECKING:
    from dinnet.classifier import Classifier
    from dinnet.controller.metrics import Metrics
    from dinnet.dataplane.digests import FlowRecords

_log: Final = logging.getLogger(__name__)
_MOST_LISTS: Final = 64  # of digests in one batch
_NAMES: Final = (*CLASSES, "unclassified")
_LONGEST_S: Final = 60.0  # a mark that seems to have taken longer tells of another clock
_AGAIN: Final = {"ALREADY_EXISTS": "insert", "NOT_FOUND": "modify"}


class Loop:
    """One switch's. `lock` keeps its writes and the token buckets' in order."""

    def __init__(self, name: str, book: MarkBook, classifier: Classifier, metrics: Metrics) -> None:
        self._name = name
        self._book = book
        self._classifier = classifier
        self._metrics = metrics
        self._dropped = 0
        self.lock = asyncio.Lock()

    async def run(self, session: Session, split_ports: Callable[[], frozenset[int]]) -> None:
        """Until the session breaks. Begins with what is marked already."""
        async with self.lock:
            self._book.adopt(await session.entries("microflow"))
        self._tell()
        while True:
            batch = [await session.digests.get()]
            came_s = time.monotonic()
            while len(batch) < _MOST_LISTS and not session.digests.empty():
                batch.append(session.digests.get_nowait())
            async with self.lock:
                await self._take(session, batch, split_ports(), came_s)
            if session.dropped != self._dropped:
                _log.warning("switch %s: %d messages came faster than work", self._name, session.dropped)
                self._dropped = session.dropped
                self._metrics.lost.labels(self._name).set(session.dropped)

    async def _take(
        self, session: Session, batch: list[FlowRecords], split_ports: frozenset[int], came_s: float
    ) -> None:
        records = np.concatenate([each.records for each in batch])
        ports = np.concatenate([each.ingress_ports for each in batch])
        verdicts = self._classifier.classify(records)
        decided = self._book.decide(records, verdicts, [port in split_ports for port in ports.tolist()])
        for class_id, count in self._book.classified.items():
            self._metrics.classified.labels(self._name, _NAMES[min(class_id, UNCLASSIFIED)]).inc(count)
        self._book.classified.clear()
        if decided.changes:
            await write_marks(session, self._book, decided.changes, self._refused)
            self._note_latency(records, decided.rows, came_s)
            self._tell()

    def _note_latency(self, records: NDArray[Any], rows: list[int], came_s: float) -> None:
        """By the switch's clock where it is one of this machine's, else from when the digest came in."""
        latency = self._metrics.latency.labels(self._name)
        clocks_us = (time.monotonic_ns() // 1000, time.time_ns() // 1000)
        since_came_us = (time.monotonic() - came_s) * 1_000_000
        for packet_us in (records["first_us"][rows] + records["duration_us"][rows].astype(np.int64)).tolist():
            taken_us = (clock - packet_us for clock in clocks_us)
            found = next((each for each in taken_us if 0 <= each < _LONGEST_S * 1_000_000), since_came_us)
            latency.observe(found / 1_000_000)

    async def age(self, session: Session) -> None:
        """Take away marks that the switch tells are idle, until the session breaks."""
        while True:
            idle = [await session.idle.get()]
            while not session.idle.empty():
                idle.append(session.idle.get_nowait())
            async with self.lock:
                await write_marks(session, self._book, self._book.idle(idle), self._refused)
            self._tell()

    def _refused(self, failures: int) -> None:
        self._metrics.refused.labels(self._name).inc(failures)

    def _tell(self) -> None:
        self._metrics.marks.labels(self._name).set(len(self._book))


async def write_marks(
    session: Session, book: MarkBook, changes: Changes, refused: Callable[[int], object] = lambda _: None
) -> None:
    """Write entries of marks. The switch may have, or lack, an entry against what is known of it: then once more.

    Raises:
        SessionLost: The connection broke.
    """
    if not changes:
        return
    failures = await _tried(session.apply(changes))
    again = Changes(
        insert=tuple(f.entity for f in failures if (f.operation, f.code) == ("modify", "NOT_FOUND")),
        modify=tuple(f.entity for f in failures if (f.operation, f.code) == ("insert", "ALREADY_EXISTS")),
    )
    rest = [f for f in failures if f.operation != "delete" and _AGAIN.get(f.code) != f.operation]
    if again:
        rest += await _tried(session.apply(again))
    if rest:
        _log.warning("%s: %d marks were refused; the first: %s", session.address, len(rest), rest[0])
        book.forget(failure.entity for failure in rest)
        refused(len(rest))


async def _tried(writing: Awaitable[None]) -> tuple[Failure, ...] | list[Failure]:
    try:
        await writing
    except WriteFailed as error:
        return list(error.failures)
    return []
