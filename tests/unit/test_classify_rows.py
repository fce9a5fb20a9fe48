"""Rows from records and verdicts."""

from __future__ import annotations

import numpy as np
import pytest

from dinnet.classifier import CLASSES, VERDICT_DTYPE
from dinnet.flows.record import RECORD_DTYPE, End
from dinnet.report.rows import CLASS_NAMES, END_NAMES, UNKNOWN, flow_rows, protocol_name


def verdicts(*lines: tuple[int, float, float, float, float]) -> np.ndarray:
    return np.array(list(lines), VERDICT_DTYPE)


def test_names_are_the_classifiers_own() -> None:
    assert CLASS_NAMES == CLASSES
    assert [END_NAMES[reason] for reason in End] == ["live", "idle", "active", "fin", "rst", "reuse", "capture"]


def test_sums_of_both_directions_and_times() -> None:
    records = np.zeros(1, RECORD_DTYPE)
    records["fwd_packets"], records["rev_packets"] = 3, 2**32 - 1
    records["fwd_bytes"], records["rev_bytes"] = 100, 23
    records["first_us"], records["duration_us"] = -5, 12
    row = flow_rows(records, verdicts((0, 0.9, 0.5, 0.49, np.nan)), file=7)[0]
    assert row["packets"] == 2**32 + 2
    assert row["bytes"] == 123
    assert (row["first_us"], row["last_us"]) == (-5, 7)
    assert row["file"] == 7
    assert (row["streaming"], row["first_request"], row["large_model"]) == (1, 0, UNKNOWN)


def test_saturated_sums_stay_saturated() -> None:
    records = np.zeros(1, RECORD_DTYPE)
    records["fwd_bytes"], records["rev_bytes"] = 2**64 - 1, 5
    assert flow_rows(records, verdicts((3, 0.9, 0, 0, 0)))[0]["bytes"] == 2**64 - 1


def test_min_confidence_makes_unclassified_and_takes_the_other_answers_away() -> None:
    records = np.zeros(3, RECORD_DTYPE)
    said = verdicts((1, 0.89, 1.0, 1.0, 1.0), (1, 0.91, 1.0, 1.0, 1.0), (2, 0.95, 1.0, 1.0, 1.0))
    rows = flow_rows(records, said, min_confidence=0.9)
    assert [CLASS_NAMES[index] for index in rows["class_id"]] == ["unclassified", "decode", "control"]
    assert rows["streaming"].tolist() == [UNKNOWN, 1, UNKNOWN]
    assert rows["confidence"].tolist() == pytest.approx([0.89, 0.91, 0.95])


def test_gap_is_the_mean_over_both_directions() -> None:
    records = np.zeros(2, RECORD_DTYPE)
    records["fwd_bursts"], records["rev_bursts"] = [3, 1], [2, 0]
    records["fwd_gap_sum_us"], records["rev_gap_sum_us"] = [300, 0], [60, 0]
    gaps = flow_rows(records, verdicts((0, 1, 0, 0, 0), (0, 1, 0, 0, 0)))["gap_us"]
    assert gaps[0] == 120  # 360 microseconds in two gaps one way and one the other
    assert np.isnan(gaps[1])


def test_protocols_have_their_usual_names() -> None:
    assert [protocol_name(number) for number in (6, 17, 58, 132, 200)] == ["tcp", "udp", "icmp6", "sctp", "200"]
