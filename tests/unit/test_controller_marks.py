"""Which mark a micro-flow gets, and when it changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("finsy", reason="needs finsy, which brings P4Runtime's messages")

from dinnet.classifier.model import CLASSES, VERDICT_DTYPE
from dinnet.controller.intent import Intent
from dinnet.controller.marks import MarkBook
from dinnet.dataplane.diff import Changes
from dinnet.dataplane.entity import Rates, address
from dinnet.dataplane.tables import Microflow, SetMark
from dinnet.flows.record import RECORD_DTYPE, End

A, B, CLIENT = address("10.1.0.1"), address("10.2.0.1"), address("192.0.2.9")
PREFILL, DECODE, DATA, UNSURE = (CLASSES.index(name) for name in ("prefill", "decode", "data", "unclassified"))


def book(**parts: Any) -> MarkBook:
    return MarkBook(Intent.model_validate(parts))


def judged(
    book: MarkBook,
    verdict: int,
    confidence: float = 0.9,
    *,
    src: int = A,
    dst: int = B,
    end: End = End.LIVE,
    label: int = 0,
    split: bool = False,
) -> Changes:
    records = np.zeros(1, RECORD_DTYPE)
    for name, value in (("src", src), ("dst", dst)):
        records[f"{name}_hi"], records[f"{name}_lo"] = value >> 64, value & (1 << 64) - 1
    records["proto"], records["sport"], records["dport"], records["end"] = 6, 4000, 9000, end
    records["rev_packets"], records["flow_label"] = 1, label
    verdicts = np.zeros(1, VERDICT_DTYPE)
    verdicts["class_id"], verdicts["confidence"] = verdict, confidence
    return book.decide(records, verdicts, [split]).changes


def entry(slice: int, tc: int, id: int = 1, *, back: bool = False, **more: Any) -> Microflow:
    ends = {"src": B, "dst": A, "sport": 9000, "dport": 4000} if back else {}
    return Microflow(
        **{"src": A, "dst": B, "sport": 4000, "dport": 9000, **ends}, proto=6, vlan=0, flow_label=0,
        action=SetMark(slice, tc, id), **{"idle_timeout_ns": 60_000_000_000, **more},
    )  # fmt: skip


def test_a_sure_class_marks_both_directions_once() -> None:
    marks = book()
    changes = judged(marks, DECODE)
    assert set(changes.insert) == {entry(1, 3), entry(1, 3, back=True)}
    assert not changes.modify and not changes.delete
    assert not judged(marks, DECODE)
    assert len(marks) == 1


def test_what_is_unsure_gets_no_mark() -> None:
    marks = book()
    assert not judged(marks, UNSURE, 0.69)
    assert len(marks) == 0


def test_a_wrong_mark_is_put_right_at_the_next_checkpoint_that_is_sure() -> None:
    marks = book()
    judged(marks, PREFILL)
    changes = judged(marks, DATA, 0.95)
    assert set(changes.modify) == {entry(3, 1), entry(3, 1, back=True)}


def test_a_doubtful_change_needs_two_checkpoints_in_turn() -> None:
    marks = book()
    judged(marks, PREFILL)
    for _ in range(5):
        assert not judged(marks, DATA, 0.75)
        assert not judged(marks, PREFILL, 0.75)
    assert not judged(marks, DATA, 0.75)
    assert len(judged(marks, DATA, 0.75).modify) == 2


def test_a_mark_goes_after_two_unsure_checkpoints() -> None:
    marks = book()
    judged(marks, PREFILL)
    assert not judged(marks, UNSURE, 0.4)
    assert set(judged(marks, UNSURE, 0.4).delete) == {entry(1, 1), entry(1, 1, back=True)}
    assert len(marks) == 0


@pytest.mark.parametrize("end", [End.FIN, End.RST, End.IDLE, End.REUSE])
def test_a_flow_that_is_over_loses_its_mark(end: End) -> None:
    marks = book()
    judged(marks, PREFILL)
    assert len(judged(marks, PREFILL, end=end).delete) == 2
    assert not judged(marks, PREFILL, end=end)
    assert judged(marks, PREFILL).insert[0].action.microflow_id == 2


def test_clients_have_a_slice_of_their_own() -> None:
    marks = book(policy={"inference": ["10.0.0.0/8"], "client_slice": "interactive"})
    assert judged(marks, DECODE, src=CLIENT).insert[0].action == SetMark(2, 3, 1)
    assert judged(marks, DECODE).insert[0].action == SetMark(1, 3, 2)
    assert judged(marks, DATA, src=CLIENT, dst=A).insert[0].action == SetMark(3, 1, 3)


def test_a_flow_label_counts_where_the_port_says_so() -> None:
    assert {each.flow_label for each in judged(book(), DECODE, label=77).insert} == {0}
    assert {each.flow_label for each in judged(book(), DECODE, label=77, split=True).insert} == {77, 0}


def test_marks_of_a_controller_before_are_taken_over_and_not_written_again() -> None:
    marks = book()
    marks.adopt([entry(1, 3, 8), entry(1, 3, 8, back=True)])
    assert not judged(marks, DECODE)
    assert set(judged(marks, DATA).modify) == {entry(3, 1, 8), entry(3, 1, 8, back=True)}
    assert judged(marks, DECODE, src=CLIENT).insert[0].action.microflow_id == 9
    marks.adopt([])  # the switch has lost them all
    assert len(marks) == 0


def test_an_idle_direction_goes_alone_and_comes_back_with_its_packets() -> None:
    marks = book()
    judged(marks, DECODE)
    assert marks.idle([entry(1, 3, back=True)]).delete == (entry(1, 3, back=True),)
    assert judged(marks, DECODE).insert == (entry(1, 3, back=True),)


def test_buckets_that_give_come_before_those_that_take() -> None:
    marks = MarkBook(Intent(), lambda number: Rates(100, 1, 100, 1) if number == 1 else None)
    judged(marks, DECODE)
    judged(marks, DECODE, src=CLIENT)
    changes = marks.retune({1: Rates(150, 1, 150, 1), 2: Rates(50, 1, 50, 1)})
    assert [each.rates.cir for each in changes.modify] == [50, 50, 150, 150]
    assert not marks.retune({1: Rates(150, 1, 150, 1)})
    assert {each.rates for each in judged(marks, DATA).modify} == {None}
