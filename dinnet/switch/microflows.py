"""The table of micro-flows, with a counter, a meter and the time of the last packet for each."""

from __future__ import annotations

import errno
import time
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dinnet.switch.bpfmap import Map, Put
from dinnet.switch.cells import Cells
from dinnet.switch.tokens import Rates, meters, rates_of

#: Up to this part of the cells is read one by one; more are read with all others.
_FEW: Final = 1 / 16


class Microflows:
    """Keys are arrays of struct microflow_key. Results are error numbers, one for each key, 0 where it worked."""

    def __init__(self, table: Map, state: Map, meter: Map) -> None:
        self._table = table
        self._state = state
        self._meter = meter
        _, values = table.all()
        self._cells = Cells(table.max_entries, values["state"])

    @property
    def key(self) -> np.dtype[Any]:
        """Layout of a key."""
        return self._table.key

    def insert(self, keys: NDArray[Any], marks: NDArray[Any], rates: list[Rates | None]) -> list[int]:
        """Add micro-flows: EEXIST where there is one, ENOSPC where there is no room.

        Args:
            keys: (n,)
            marks: (n,) with at least the fields id, slice, tc and idle_ns.
            rates: n meters.
        """
        values = self._values(marks, rates)
        cells = self._cells.take(len(keys))
        count = len(cells)
        values["state"][:count] = cells
        state = np.zeros(count, self._state.value)
        state["last_ns"] = time.monotonic_ns()
        self._state.put(cells, state)
        self._set_meters(cells, rates[:count])
        codes = self._table.put_each(keys[:count], values[:count], Put.NEW)
        unused = np.array([code != 0 for code in codes], np.bool_)
        self._free(cells[unused])
        codes += [errno.ENOSPC] * (len(keys) - count)
        if count < len(keys):  # what is there already is there, also when there is no room
            _, there = self._table.get(keys[count:])
            for number in np.flatnonzero(there).tolist():
                codes[count + number] = errno.EEXIST
        return [errno.ENOSPC if code in (errno.E2BIG, errno.ENOMEM) else code for code in codes]

    def modify(self, keys: NDArray[Any], marks: NDArray[Any], rates: list[Rates | None]) -> list[int]:
        """Change marks and meters; counters stay, and so does a meter that is set to what it is. ENOENT: not there."""
        old, there = self._table.get(keys)
        values = self._values(marks, rates)
        values["state"] = old["state"]
        found = np.flatnonzero(there)
        self._set_meters(old["state"][found], [rates[number] for number in found.tolist()], unless_same=True)
        codes = np.full(len(keys), errno.ENOENT)
        codes[found] = self._table.put_each(keys[found], values[found], Put.OLD)
        return [int(code) for code in codes]

    def delete(self, keys: NDArray[Any]) -> list[int]:
        """Remove micro-flows with their counters. ENOENT: not there."""
        old, there = self._table.get(keys)
        removed = self._table.delete(keys) & there
        self._free(old["state"][removed])
        return _codes(removed)

    def get(self, keys: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Struct microflow of each key, and which there are."""
        return self._table.get(keys)

    def all(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """All keys, and struct microflow of each."""
        return self._table.all()

    def states(self, values: NDArray[Any]) -> NDArray[Any]:
        """Counters and time of the last packet (monotonic clock): struct microflow_state of each struct microflow."""
        return self._read(self._state, values["state"])

    def rates(self, values: NDArray[Any]) -> list[Rates | None]:
        """The meter of each struct microflow."""
        out: list[Rates | None] = [None] * len(values)
        metered = np.flatnonzero(values["metered"])
        for number, rates in zip(
            metered.tolist(), rates_of(self._read(self._meter, values["state"][metered])), strict=True
        ):
            out[number] = rates
        return out

    def set_counters(self, keys: NDArray[Any], packets: NDArray[Any], sizes: NDArray[Any]) -> list[int]:
        """Set counters to packets and bytes. ENOENT: not there."""
        values, there = self._table.get(keys)
        state = self._read(self._state, values["state"][there])
        state["counter"]["packets"] = packets[there]
        state["counter"]["bytes"] = sizes[there]
        self._state.put(values["state"][there], state)
        return _codes(there)

    def clear(self) -> None:
        """Remove all micro-flows."""
        keys, _ = self._table.all()
        self.delete(keys)

    def _values(self, marks: NDArray[Any], rates: list[Rates | None]) -> NDArray[Any]:
        values = np.zeros(len(marks), self._table.value)
        for name in ("id", "slice", "tc", "idle_ns"):
            values[name] = marks[name]
        values["metered"] = [each is not None for each in rates]
        return values

    def _set_meters(self, cells: NDArray[np.uint32], rates: list[Rates | None], *, unless_same: bool = False) -> None:
        """Cells of None are left as they are: nothing looks at them."""
        chosen = [number for number, each in enumerate(rates) if each is not None]
        if unless_same:
            now = rates_of(self._read(self._meter, cells[chosen]))
            chosen = [number for number, old in zip(chosen, now, strict=True) if rates[number] != old]
        self._meter.put(cells[chosen], meters([rates[number] for number in chosen], self._meter.value))

    def _free(self, cells: NDArray[np.uint32]) -> None:
        self._state.put(cells, np.zeros(len(cells), self._state.value))
        self._meter.put(cells, np.zeros(len(cells), self._meter.value))
        self._cells.give_back(cells)

    def _read(self, source: Map, cells: NDArray[np.uint32]) -> NDArray[Any]:
        if len(cells) <= 64 + source.max_entries * _FEW:
            return source.get(cells)[0]
        keys, values = source.all()
        assert len(keys) == source.max_entries  # an array's are all there, in order
        return values[cells]


def _codes(found: NDArray[np.bool_]) -> list[int]:
    return [0 if there else errno.ENOENT for there in found.tolist()]
