"""Reader, flow table and classifier in a line, with stand-ins for all three."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dinnet.classifier import VERDICT_DTYPE
from dinnet.errors import DinnetError
from dinnet.flows.record import RECORD_DTYPE, End
from dinnet.report.pipeline import CaptureFacts, Progress, Settings, classify_capture, ended, regroup
from dinnet.report.rows import ROW_DTYPE


def numbered(start: int, count: int) -> np.ndarray:
    records = np.zeros(count, RECORD_DTYPE)
    records["first_us"] = np.arange(start, start + count)
    return records


class FakeCapture:
    """Ten packets a batch; fails after `good` batches where `failing`."""

    def __init__(self, good: int, failing: bool) -> None:
        self.stats = SimpleNamespace(
            format="pcap", link_types=["ETHERNET"], interfaces=1, frames=0, frame_bytes=0, flow_packets=0, not_ip=0,
            malformed=0, cut=False, first_us=1, last_us=2,
        )  # fmt: skip
        self.position, self.size, self.warnings = 0, 1000, ["odd"]
        self._good, self._failing = good, failing

    def batches(self, keep: int = 1) -> Iterator[np.ndarray]:
        for _ in range(self._good):
            self.stats.frames += 10
            self.position += 100
            yield np.zeros(10)
        if self._failing:
            raise DinnetError("damaged")


class Judge:
    def __init__(self) -> None:
        self.asked: list[int] = []

    def classify(self, records: np.ndarray) -> np.ndarray:
        self.asked.append(len(records))
        return np.ones(len(records), VERDICT_DTYPE)


def meter(capture: Any, options: Any) -> Iterator[np.ndarray]:
    """A record a batch, and five more at the end, as a flow table does."""
    count = 0
    for _ in capture.batches(3):
        yield numbered(count, 1)
        count += 1
    yield numbered(count, 5)


def run(capture: FakeCapture, facts: CaptureFacts, seen: list[Progress]) -> Iterator[np.ndarray]:
    @contextmanager
    def open_source(source: str, *, tunnel: str) -> Iterator[FakeCapture]:
        assert (source, tunnel) == ("x.pcap", "outer")
        yield capture

    return classify_capture(
        "x.pcap",
        Settings(tunnel="outer"),
        Judge(),
        facts,
        file=3,
        on_progress=seen.append,
        open_source=open_source,
        meter=meter,
    )


def test_rows_facts_and_progress() -> None:
    facts, seen = CaptureFacts("x.pcap"), list[Progress]()
    rows = np.concatenate(list(run(FakeCapture(2, failing=False), facts, seen)))
    assert rows["first_us"].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert set(rows["file"]) == {3}
    assert (facts.frames, facts.rows, facts.flows, facts.warnings) == (20, 7, 7, ["odd"])
    assert [(step.position, step.frames) for step in seen] == [(100, 10), (200, 20)]


def test_damage_gives_the_rows_before_it_and_then_the_error() -> None:
    facts, rows = CaptureFacts("x.pcap"), []
    with pytest.raises(DinnetError, match="damaged"):
        rows += run(FakeCapture(1, failing=True), facts, [])
    assert np.concatenate(rows)["first_us"].tolist() == [0, 1, 2, 3, 4, 5]
    assert facts.frames == 10


def test_regroup_joins_and_cuts() -> None:
    blocks = [numbered(0, 3), numbered(3, 0), numbered(3, 9), numbered(12, 1)]
    groups = list(regroup(blocks, 4))
    assert [len(group) for group in groups] == [4, 4, 4, 1]
    assert np.concatenate(groups)["first_us"].tolist() == list(range(13))


def test_regroup_copies() -> None:
    reused = numbered(0, 2)

    def blocks() -> Iterator[np.ndarray]:
        yield reused
        reused["first_us"] = 99
        yield reused[:1]

    assert [list(group["first_us"]) for group in regroup(blocks(), 3)] == [[0, 1, 99]]


def test_with_every_checkpoint_only_ends_count_in_sums() -> None:
    rows = np.zeros(4, ROW_DTYPE)
    rows["end"] = [End.LIVE, End.LIVE, End.FIN, End.CAPTURE]
    assert len(ended(rows, "all")) == 2
    assert len(ended(rows, "first")) == 4
