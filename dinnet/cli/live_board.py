"""What a live capture knows of its flows: those under way, the largest of those that ended, and sums by class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dinnet.flows.record import End
from dinnet.report.rows import CLASS_NAMES, ROW_DTYPE, Rows

_KEY_FIELDS: Final = (
    *("src_hi", "src_lo", "dst_hi", "dst_lo", "flow_label", "tunnel_id"),
    *("sport", "dport", "vlan", "inner_vlan", "proto"),
)
_KEY_DTYPE: Final = np.dtype([(name, ROW_DTYPE[name]) for name in _KEY_FIELDS])
_FIRST_SLOTS: Final = 1024
#: Ended flows are kept until there are this many, then only the largest of them stay.
_ENDED_KEPT: Final = 1024
_ENDED_LARGEST: Final = 128


@dataclass(frozen=True, slots=True)
class ClassSums:
    """Flows, packets and bytes by class, each of shape (classes,)."""

    flows: NDArray[np.int64]
    packets: NDArray[np.int64]
    bytes: NDArray[np.int64]


class FlowBoard:
    """Takes rows as they come; memory grows with the flows under way, not with those that were.

    A flow is on the board from its first checkpoint on, with its latest row.
    """

    def __init__(self) -> None:
        self._slot_of: dict[bytes, int] = {}
        self._free: list[int] = []
        self._rows: Rows = np.zeros(_FIRST_SLOTS, ROW_DTYPE)
        self._used = np.zeros(_FIRST_SLOTS, np.bool_)
        self._marked_bytes = np.zeros(_FIRST_SLOTS, np.uint64)
        self._rates = np.zeros(_FIRST_SLOTS, np.float64)
        self._ended: Rows = np.zeros(0, ROW_DTYPE)
        self._sums = ClassSums(*(np.zeros(len(CLASS_NAMES), np.int64) for _ in range(3)))

    def add(self, rows: Rows) -> None:
        """Take the rows that were emitted next, ROW_DTYPE (n,)."""
        keys = np.empty(len(rows), _KEY_DTYPE)
        for name in _KEY_FIELDS:
            keys[name] = rows[name]
        ends = (rows["end"] != End.LIVE).tolist()
        for index, key in enumerate(keys.view(f"V{_KEY_DTYPE.itemsize}").tolist()):
            if ends[index]:
                slot = self._slot_of.pop(key, None)
                if slot is not None:
                    self._used[slot] = False
                    self._free.append(slot)
            else:
                slot = self._slot_of.get(key)
                if slot is None:
                    slot = self._new_slot(key)
                self._rows[slot] = rows[index]
        ended = rows[rows["end"] != End.LIVE]
        if len(ended):
            _add_up(self._sums, ended)
            self._keep_largest(ended)

    def _new_slot(self, key: bytes) -> int:
        slot = self._free.pop() if self._free else len(self._slot_of)
        if slot >= len(self._rows):
            size = 2 * len(self._rows)
            self._rows = _grown(self._rows, size)
            self._used = _grown(self._used, size)
            self._marked_bytes = _grown(self._marked_bytes, size)
            self._rates = _grown(self._rates, size)
        self._slot_of[key] = slot
        self._used[slot] = True
        self._marked_bytes[slot] = 0
        self._rates[slot] = 0.0
        return slot

    def _keep_largest(self, ended: Rows) -> None:
        self._ended = np.concatenate([self._ended, ended])
        if len(self._ended) > _ENDED_KEPT:
            self._ended = self._ended[np.argsort(self._ended["bytes"])[-_ENDED_LARGEST:]]

    def tick(self, seconds: float) -> None:
        """Set the rates of the flows under way from what they moved in the last `seconds`."""
        moved = self._rows["bytes"] - np.minimum(self._marked_bytes, self._rows["bytes"])
        self._rates = np.where(self._used, moved / max(seconds, 1e-3), 0.0)
        self._marked_bytes = self._rows["bytes"].copy()

    @property
    def live(self) -> int:
        """Flows under way that have passed a checkpoint."""
        return len(self._slot_of)

    def busiest(self, count: int) -> tuple[Rows, NDArray[np.float64]]:
        """The flows under way with the highest rates, and the rates in bytes per second."""
        slots = np.flatnonzero(self._used)
        order = np.lexsort((self._rows["bytes"][slots], self._rates[slots]))[::-1][:count]
        return self._rows[slots[order]], self._rates[slots[order]]

    def largest(self, count: int) -> Rows:
        """The flows with the most bytes, of those that ended."""
        return self._ended[np.argsort(self._ended["bytes"], kind="stable")[::-1][:count]]

    def sums(self) -> ClassSums:
        """Sums over all flows; one under way counts as of its latest checkpoint."""
        sums = ClassSums(self._sums.flows.copy(), self._sums.packets.copy(), self._sums.bytes.copy())
        _add_up(sums, self._rows[self._used])
        return sums


def _grown(array: NDArray[Any], size: int) -> NDArray[Any]:
    grown = np.zeros(size, array.dtype)
    grown[: len(array)] = array
    return grown


def _add_up(sums: ClassSums, rows: Rows) -> None:
    np.add.at(sums.flows, rows["class_id"], 1)
    np.add.at(sums.packets, rows["class_id"], rows["packets"].astype(np.int64))
    np.add.at(sums.bytes, rows["class_id"], rows["bytes"].astype(np.int64))
