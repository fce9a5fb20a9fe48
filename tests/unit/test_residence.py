"""Percentiles from the histograms of residence times, against the values themselves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dinnet.switch.residence import lower_bounds_ns, percentile_ns

STEPS = 168


def step(value: int) -> int:
    """The definition: four times the place of the highest bit, and the two bits behind it; below 4 the value itself."""
    if value < 4:
        return value
    text = f"{value:b}"
    return min(4 * (len(text) - 1) + int(text[1:3], 2), STEPS - 1)


def histogram(values: list[int]) -> np.ndarray:  # type: ignore[type-arg]
    return np.bincount([step(value) for value in values], minlength=STEPS).astype(np.uint64)


def test_steps_begin_where_the_definition_says() -> None:
    bounds = lower_bounds_ns(STEPS)
    assert len(bounds) == STEPS + 1
    # By hand: 4, 5, 6, 7, then 8, 10, 12, 14, then 16, ...; 2**20 begins a step, and 1.25 * 2**20 the next one.
    assert bounds[:16].tolist() == [0, 1, 2, 3, 4, 4, 4, 4, 4, 5, 6, 7, 8, 10, 12, 14]
    assert bounds[80:84].tolist() == [1048576, 1310720, 1572864, 1835008]


@given(st.integers(0, 2**41 - 1))
def test_a_value_lies_in_its_step(value: int) -> None:
    bounds = lower_bounds_ns(STEPS)
    assert bounds[step(value)] <= value < bounds[step(value) + 1]


def test_nothing_counted_has_no_percentile() -> None:
    assert percentile_ns(np.zeros(STEPS, np.uint64), 0.5) is None


def test_by_hand() -> None:
    counts = np.zeros(STEPS, np.uint64)
    counts[80] = 100  # 1048576 up to 1310720
    assert percentile_ns(counts, 0.5) == 1048576 + 0.5 * 262144
    counts[84] = 100  # 2097152 up to 2621440
    assert percentile_ns(counts, 0.5) == 1310720
    assert percentile_ns(counts, 0.75) == 2097152 + 0.5 * 524288
    assert percentile_ns(counts, 0.0) == 1048576
    assert percentile_ns(counts, 1.0) == 2621440


@given(st.lists(st.integers(4, 2**40), min_size=1, max_size=200), st.sampled_from([0.01, 0.5, 0.9, 0.99, 1.0]))
def test_off_by_a_quarter_at_most(values: list[int], share: float) -> None:
    exact = float(np.quantile(values, share, method="inverted_cdf"))
    assert percentile_ns(histogram(values), share) == pytest.approx(exact, rel=0.25)
