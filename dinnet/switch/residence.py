"""Percentiles of the histograms that the programs at the queues keep: steps of a quarter of an octave."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_PART_BITS: Final = 2  # an octave has 2 ** _PART_BITS steps
_PARTS: Final = 1 << _PART_BITS


def lower_bounds_ns(steps: int) -> NDArray[np.float64]:
    """The least value of each step, and the end of the last one, (steps + 1,).

    Values below 4 have a step each, 4 to 7 are reserved; from there on, step 4 * e + m begins at (4 + m) * 2**(e - 2).
    """
    number = np.arange(steps + 1)
    exponent, part = number >> _PART_BITS, number & _PARTS - 1
    bounds: NDArray[np.float64] = (_PARTS + part) * np.exp2(exponent - _PART_BITS)
    bounds[: 2 * _PARTS] = np.minimum(number[: 2 * _PARTS], _PARTS)
    return bounds


def percentile_ns(counts: NDArray[Any], share: float) -> float | None:
    """The value below which a share (0 to 1) of what was counted lies; None where nothing was.

    Within a step, values count as spread evenly: the result is off by a quarter of itself at most.

    Args:
        counts: (steps,), how many values lay in each.
        share: 0.99 for the 99th percentile.
    """
    total = int(counts.sum())
    if not total:
        return None
    bounds = lower_bounds_ns(len(counts))
    sums = np.cumsum(counts.astype(np.float64))
    wanted = share * total
    step = int(np.searchsorted(sums, wanted))
    while not counts[step]:  # a share of 0 lies before the first step that holds anything
        step += 1
    before = sums[step] - float(counts[step])
    return float(bounds[step] + (bounds[step + 1] - bounds[step]) * (wanted - before) / float(counts[step]))
