"""How a slice's bandwidth is shared."""

from __future__ import annotations

import pytest

pytest.importorskip("finsy", reason="needs finsy, which brings P4Runtime's messages")

from hypothesis import given
from hypothesis import strategies as st

from dinnet.controller.buckets import Capacities, Flow, Sharing, allocate, stepped
from dinnet.controller.intent import Intent
from dinnet.controller.marks import Key, Mark
from dinnet.dataplane.entity import address

NODES = st.integers(0, 5)
FLOWS = st.lists(st.tuples(NODES, NODES), max_size=40).map(
    lambda ends: [Flow(number, nodes) for number, nodes in enumerate(ends)]
)


@given(st.integers(0, 10**10), FLOWS, st.dictionaries(NODES, st.integers(0, 10**9)))
def test_no_sum_is_above_its_bound_and_nothing_is_left_that_somebody_could_have(
    total: int, flows: list[Flow], capacities: dict[int, int]
) -> None:
    rates = allocate(total, flows, capacities)
    assert rates.keys() == {flow.id for flow in flows}
    assert sum(rates.values()) <= total
    at = {node: sum(rates[flow.id] for flow in flows if node in flow.nodes) for node in capacities}
    assert all(at[node] <= most for node, most in capacities.items())
    # Max-min: each flow has a bottleneck that is full, up to rounding, and where nobody has more than it.
    for flow in flows:
        bounds = [(total, flows)]
        bounds += [(most, [f for f in flows if n in f.nodes]) for n, most in capacities.items() if n in flow.nodes]
        assert any(
            most - sum(rates[f.id] for f in sharing) < len(sharing)
            and all(rates[f.id] <= rates[flow.id] for f in sharing)
            for most, sharing in bounds
        )


def test_by_hand() -> None:
    flows = [Flow(1, (1, 9)), Flow(2, (1, 9)), Flow(3, (2, 9))]
    assert allocate(900, flows, {}) == {1: 300, 2: 300, 3: 300}
    assert allocate(900, flows, {1: 100}) == {1: 50, 2: 50, 3: 800}
    assert allocate(900, flows, {1: 100, 2: 70}) == {1: 50, 2: 50, 3: 70}
    assert allocate(900, [], {1: 100}) == {}


@given(st.integers(0, 10**12))
def test_steps_never_go_up_and_lose_little(rate: int) -> None:
    assert rate * 7 // 8 <= stepped(rate) <= rate


def test_reports_count_for_a_while() -> None:
    now = [100.0]
    told = Capacities(lambda: now[0])
    told.report("10.1.0.5", 8_000)
    assert told.current(10) == {address("10.1.0.5"): 1000}
    now[0] = 111.0
    assert told.current(10) == {}
    for node, bps in (("10.1.0", 8), ("10.1.0.5", 0), ("10.1.0.5", True), ("10.1.0.5", 1.5)):
        with pytest.raises(ValueError):
            told.report(node, bps)  # type: ignore[arg-type]


@given(st.integers(0, 30), st.integers(0, 60))
def test_with_newcomers_the_sum_is_not_above_the_slice(settled: int, newcomers: int) -> None:
    intent = Intent.model_validate({"token_buckets": {"slices": {"realtime": "80mbit"}}})
    sharing = Sharing(intent, lambda: None)
    keys = [Key(number, 1000, 6, 1, 2, 0, 0) for number in range(settled)]
    marks = [Mark({key}, 1, 3, 1, 0.9, number) for number, key in enumerate(keys)]
    found = sharing.round(marks, {})
    rates = [found[mark.id] for mark in marks] + [sharing.newcomer(1) for _ in range(newcomers)]
    # 1 byte/s is the least a bucket may have.
    assert sum(each.cir for each in rates if each is not None) <= 10_000_000 + newcomers
    assert None not in rates
    assert sharing.newcomer(3) is None
