"""When records of a flow are emitted on its way, with answers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from capturekit import back, row, run_table
from flowkit import SECOND, ends, only, sizes

from dinnet.errors import DinnetError
from dinnet.flows.record import End
from dinnet.flows.table import FlowOptions


def test_checkpoints_by_packet_count() -> None:
    records = run_table([row(n) for n in range(300)], emit="all")
    assert sizes(records) == [4, 8, 16, 32, 64, 128, 192, 256, 300]
    assert records["checkpoint"].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 8]
    assert ends(records) == [End.LIVE] * 8 + [End.CAPTURE]
    assert records["duration_us"].tolist() == [3, 7, 15, 31, 63, 127, 191, 255, 299]


def test_checkpoints_by_time_only_after_the_counted_ones() -> None:
    early = [row(n * 2 * SECOND) for n in range(10)]  # slow: the first ones still wait for their count
    assert sizes(run_table(early, emit="all")) == [4, 8, 10]
    start = [row(n) for n in range(64)]
    later = [row(63 + us) for us in (999_999, SECOND, SECOND + 1, 2 * SECOND - 1, 2 * SECOND, 5 * SECOND)]
    records = run_table(start + later, emit="all")
    assert sizes(records) == [4, 8, 16, 32, 64, 66, 69, 70, 70]
    assert records["checkpoint"].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 8]


def test_checkpoint_count_starts_anew_after_a_checkpoint_by_time() -> None:
    items = [row(n) for n in range(64)] + [row(2 * SECOND + n) for n in range(65)]
    assert sizes(run_table(items, emit="all")) == [4, 8, 16, 32, 64, 65, 129, 129]


def test_checkpoints_count_both_directions() -> None:
    items = [(row if n % 3 else back)(n) for n in range(9)]
    assert sizes(run_table(items, emit="all")) == [4, 8, 9]


def test_checkpoint_at_the_last_packet_is_followed_by_the_end() -> None:
    records = run_table([row(n) for n in range(8)], emit="all")
    assert sizes(records) == [4, 8, 8]
    assert ends(records) == [End.LIVE, End.LIVE, End.CAPTURE]


@pytest.mark.parametrize(("count", "want"), [(3, (3, End.CAPTURE, 0)), (4, (4, End.LIVE, 1)), (500, (4, End.LIVE, 1))])
def test_emit_first(count: int, want: tuple[int, int, int]) -> None:
    r = only(run_table([row(n) for n in range(count)], emit="first"))
    assert (r["fwd_packets"], r["end"], r["checkpoint"]) == want


def test_emit_last_is_the_default() -> None:
    r = only(run_table([row(n) for n in range(500)]))
    assert (r["fwd_packets"], r["checkpoint"], r["end"]) == (500, 5 + (500 - 64) // 64, End.CAPTURE)


def test_a_new_record_after_an_active_timeout_has_checkpoints_of_its_own() -> None:
    items = [row(n * SECOND) for n in range(20)]
    records = run_table(items, active_timeout_s=10, emit="all")
    assert sizes(records) == [4, 8, 10, 4, 8, 10]


@pytest.mark.parametrize(
    "bad",
    [{"emit": "sometimes"}, {"idle_timeout_s": 0.0}, {"idle_timeout_s": -1.0}, {"active_timeout_s": float("nan")}],
)
def test_impossible_options_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(DinnetError):
        FlowOptions(**bad)
