"""Token buckets of micro-flows: a slice's bandwidth, and what inference nodes can take, shared by those that live.

A flow's two directions have a bucket each, of the same rate: links are full-duplex.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from dinnet.controller.desired import burst_bytes
from dinnet.controller.intent import Intent
from dinnet.controller.intent_slices import Slice
from dinnet.controller.marks import Mark
from dinnet.dataplane.entity import Rates, address

#: Of a slice, for flows that come between two rounds.
RESERVE: Final = 0.1
_KEPT_BITS: Final = 4  # of a rate: it follows changes in steps of 6 % and more, not each


class Flow(NamedTuple):
    id: int
    nodes: tuple[int, ...]  # addresses of its ends


def allocate(total: int, flows: Iterable[Flow], capacities: Mapping[int, int]) -> dict[int, int]:
    """Max-min fair rates: nobody can have more without somebody with less or as much having less.

    Progressive filling (Bertsekas and Gallager, Data Networks, section 6.5.2): all rates grow alike; those at a full
    node stay where they are. Rates are whole numbers, rounded down: no sum is above what it is bounded by.

    Args:
        total: That all flows share.
        flows: Each with the nodes that it ends at.
        capacities: Of nodes that have told one; the others have no bound.
    """
    open_flows = {flow.id: [node for node in flow.nodes if node in capacities] for flow in flows}
    rates = dict.fromkeys(open_flows, 0)
    left, left_at = total, dict(capacities)
    level = 0
    while open_flows:
        at: dict[int, int] = {}
        for nodes in open_flows.values():
            for node in set(nodes):
                at[node] = at.get(node, 0) + 1
        steps = {node: left_at[node] // count for node, count in at.items()}
        step = min(left // len(open_flows), *steps.values()) if steps else left // len(open_flows)
        level += step
        left -= step * len(open_flows)
        for node, count in at.items():
            left_at[node] -= step * count
        full = {node for node, count in at.items() if left_at[node] < count}
        is_over = left < len(open_flows)
        for id, nodes in list(open_flows.items()):
            if is_over or full.intersection(nodes):
                rates[id] = level
                del open_flows[id]
    return rates


def stepped(rate: int) -> int:
    """A rate rounded down to few bits, so that small changes of what is shared do not rewrite every bucket."""
    spare = max(0, rate.bit_length() - _KEPT_BITS)
    return rate >> spare << spare


class Capacities:
    """What inference nodes report, for as long as it counts; by the monotonic clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told: dict[int, tuple[int, float]] = {}

    def report(self, node: str, bps: int) -> None:
        """A node, by its address, can take so much.

        Raises:
            ValueError: It is no address, or no rate.
        """
        if isinstance(bps, bool) or not isinstance(bps, int) or not 0 < bps <= 10**13:
            raise ValueError("bps is a whole number of bits a second, above 0")
        self._told[address(node)] = bps // 8, self._clock()

    def current(self, ttl_s: float) -> dict[int, int]:
        """Bytes a second, by address."""
        end = self._clock() - ttl_s
        self._told = {node: told for node, told in self._told.items() if told[1] >= end}
        return {node: rate for node, (rate, _) in self._told.items()}


class Sharing:
    """The buckets of one switch."""

    def __init__(self, intent: Intent, wake: Callable[[], object]) -> None:
        self._wake = wake
        self.use(intent)

    def use(self, intent: Intent) -> None:
        self._settings = intent.token_buckets
        slices: Mapping[str, Slice] = intent.slices
        given = intent.token_buckets.slices if intent.token_buckets else {}
        self._totals = {slices[name].number: bps // 8 for name, bps in given.items()}
        self._reserves = {number: int(total * RESERVE) for number, total in self._totals.items()}

    def newcomer(self, slice_number: int) -> Rates | None:
        """The bucket of a flow until the next round: half of what is left for such."""
        if slice_number not in self._totals:
            return None
        half = self._reserves[slice_number] // 2
        self._reserves[slice_number] -= half
        self._wake()
        return self._rates(max(1, half))

    def round(self, marks: Iterable[Mark], capacities: Mapping[int, int]) -> dict[int, Rates | None]:
        """The bucket of each micro-flow, by its number."""
        by_slice: dict[int, list[Flow]] = {}
        found: dict[int, Rates | None] = {}
        for mark in {id(mark): mark for mark in marks}.values():
            if mark.slice not in self._totals:
                found[mark.id] = None
            elif mark.keys:
                key = next(iter(mark.keys))
                by_slice.setdefault(mark.slice, []).append(Flow(mark.id, (key.src, key.dst)))
        for number, total in self._totals.items():
            reserve = int(total * RESERVE)
            self._reserves[number] = reserve
            shares = allocate(total - reserve, by_slice.get(number, []), capacities)
            found.update({id: self._rates(max(1, stepped(rate))) for id, rate in shares.items()})
        return found

    def _rates(self, rate: int) -> Rates:
        assert self._settings is not None
        burst = burst_bytes(rate, self._settings.burst_ms / 1000)
        return Rates(rate, burst, rate, burst)
