"""Which layers a worker owns, and whether several workers' layers make a whole model."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from dinnet.errors import UsageError


class LayerRange(NamedTuple):
    """Layers `first` to `last`, both included, counted from 0."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"

    @classmethod
    def parse(cls, text: str) -> LayerRange:
        """Read `A-B`.

        Raises:
            UsageError: It is no such range.
        """
        found = re.fullmatch(r"(\d{1,4})-(\d{1,4})", text)
        if found is None or int(found[1]) > int(found[2]):
            raise UsageError(f"layers {text!r}: give the first and the last layer, like 0-11")
        return cls(int(found[1]), int(found[2]))


def cover_faults(ranges: Iterable[LayerRange], layers: int) -> list[str]:
    """What keeps stages from joining to `layers` layers: missing, doubled and impossible ranges, by name.

    Equal ranges are replicas of one stage, and no fault.
    """
    owners = [0] * layers
    faults = []
    for part in sorted(set(ranges)):
        if part.last >= layers:
            faults.append(f"layers {part} do not exist in a model of {layers} layers")
        for layer in range(part.first, min(part.last + 1, layers)):
            owners[layer] += 1
    faults += [f"layers {part} are missing" for part in _runs(owners, lambda count: count == 0)]
    faults += [f"layers {part} are there twice" for part in _runs(owners, lambda count: count > 1)]
    return faults


def _runs(owners: list[int], wanted: object) -> Iterable[LayerRange]:
    assert callable(wanted)
    start = None
    for layer, count in enumerate([*owners, None]):
        fits = count is not None and wanted(count)
        if fits and start is None:
            start = layer
        elif not fits and start is not None:
            yield LayerRange(start, layer - 1)
            start = None


def joined_chains(ranges: Iterable[LayerRange], layers: int) -> list[tuple[LayerRange, ...]]:
    """All ways to join some of `ranges` to the layers 0 to `layers` - 1, without gap or overlap."""
    by_first: dict[int, set[LayerRange]] = {}
    for part in ranges:
        by_first.setdefault(part.first, set()).add(part)
    found: list[tuple[LayerRange, ...]] = []

    def extend(chain: tuple[LayerRange, ...], following: int) -> None:
        if following == layers:
            found.append(chain)
        for part in sorted(by_first.get(following, ())):
            extend((*chain, part), part.last + 1)

    extend((), 0)
    return found
