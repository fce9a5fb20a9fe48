"""What the summary and the report need to know of all rows, gathered in bounded memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dinnet.flows.record import format_address
from dinnet.report.rows import CLASS_NAMES, ROW_DTYPE, Rows

CLASSES: Final = len(CLASS_NAMES)

_TALKER_DTYPE: Final = np.dtype([("hi", "<u8"), ("lo", "<u8"), ("bytes", "<f8"), ("flows", "<u8")])


def exact_sum(values: NDArray[np.uint64]) -> int:
    """Sum of unsigned 64-bit numbers that does not wrap."""
    low = int((values & np.uint64(0xFFFFFFFF)).sum(dtype=np.uint64))
    return (int((values >> np.uint64(32)).sum(dtype=np.uint64)) << 32) + low


@dataclass
class ClassTotals:
    """Flows, packets and bytes of each class."""

    flows: list[int] = field(default_factory=lambda: [0] * CLASSES)
    packets: list[int] = field(default_factory=lambda: [0] * CLASSES)
    bytes: list[int] = field(default_factory=lambda: [0] * CLASSES)

    def add(self, rows: Rows) -> None:
        for index in range(CLASSES):
            mine = rows["class_id"] == index
            self.flows[index] += int(mine.sum())
            self.packets[index] += exact_sum(rows["packets"][mine])
            self.bytes[index] += exact_sum(rows["bytes"][mine])


class Talkers:
    """The addresses with the most bytes, sent and received.

    Keeps at most `capacity` addresses: with more than that in the captures, a small one may be
    forgotten and counted from new, so that only the large ones are right.
    """

    def __init__(self, capacity: int = 1 << 17) -> None:
        self._capacity = capacity
        self._known = np.empty(0, _TALKER_DTYPE)
        self._waiting: list[NDArray[np.void]] = []
        self._waiting_count = 0

    def add(self, rows: Rows) -> None:
        for side in ("src", "dst"):
            part = np.empty(len(rows), _TALKER_DTYPE)
            part["hi"], part["lo"] = rows[f"{side}_hi"], rows[f"{side}_lo"]
            part["bytes"], part["flows"] = rows["bytes"], 1
            self._waiting.append(part)
        self._waiting_count += 2 * len(rows)
        if self._waiting_count >= self._capacity:
            self._merge()

    def _merge(self) -> None:
        entries = np.concatenate([self._known, *self._waiting])
        self._waiting, self._waiting_count = [], 0
        if not len(entries):
            return
        entries = entries[np.lexsort((entries["lo"], entries["hi"]))]
        new = np.ones(len(entries), bool)
        new[1:] = (entries["hi"][1:] != entries["hi"][:-1]) | (entries["lo"][1:] != entries["lo"][:-1])
        starts = np.flatnonzero(new)
        merged = entries[starts]
        merged["bytes"] = np.add.reduceat(entries["bytes"], starts)
        merged["flows"] = np.add.reduceat(entries["flows"], starts)
        if len(merged) > self._capacity:
            merged = merged[np.argpartition(merged["bytes"], -self._capacity // 2)[-self._capacity // 2 :]]
        self._known = merged

    def top(self, count: int) -> list[tuple[str, int, int]]:
        """The `count` largest: address, bytes, flows."""
        self._merge()
        order = np.lexsort((self._known["lo"], self._known["hi"], -self._known["bytes"]))[:count]
        return [
            (format_address(entry["hi"], entry["lo"]), int(entry["bytes"]), int(entry["flows"]))
            for entry in self._known[order]
        ]


class TimeStrip:
    """Bytes of each class over time, a flow's bytes spread evenly from its first to its last packet.

    Bins start at multiples of their width; the width doubles whenever the time covered needs more than `bins`.
    """

    def __init__(self, bins: int = 240) -> None:
        self._bins = bins
        self.width_us = 1
        self._first_bin = 0
        self.bytes = np.zeros((CLASSES, 0))

    @property
    def start_us(self) -> int:
        return self._first_bin * self.width_us

    def add(self, rows: Rows) -> None:
        if not len(rows):
            return
        self._cover(int(rows["first_us"].min()), int(rows["last_us"].max()))
        # All in bin units from the first bin on; a flow covers [first, last + 1) microseconds.
        begin = (rows["first_us"] - self.start_us) / self.width_us
        end = (rows["last_us"] + 1 - self.start_us) / self.width_us
        amount = rows["bytes"].astype(np.float64)
        inside = np.floor(begin) == np.floor((rows["last_us"] - self.start_us) / self.width_us)
        count = self.bytes.shape[1]
        flat = rows["class_id"][inside].astype(np.int64) * count + begin[inside].astype(np.int64)
        self.bytes += np.bincount(flat, amount[inside], CLASSES * count).reshape(CLASSES, count)
        for index in range(CLASSES):
            mine = ~inside & (rows["class_id"] == index)
            if mine.any():
                self.bytes[index] += _spread(begin[mine], end[mine], amount[mine], count)

    def _cover(self, first_us: int, last_us: int) -> None:
        if self.bytes.shape[1] == 0:
            self._first_bin = first_us // self.width_us
        low = min(self._first_bin, first_us // self.width_us)
        high = max(self._first_bin + self.bytes.shape[1], last_us // self.width_us + 1)
        while high - low > self._bins:
            self._halve()
            low = min(self._first_bin, first_us // self.width_us)
            high = max(self._first_bin + self.bytes.shape[1], last_us // self.width_us + 1)
        before, after = self._first_bin - low, high - self._first_bin - self.bytes.shape[1]
        self.bytes = np.pad(self.bytes, ((0, 0), (before, after)))
        self._first_bin = low

    def _halve(self) -> None:
        lead = self._first_bin % 2
        padded = np.pad(self.bytes, ((0, 0), (lead, (lead + self.bytes.shape[1]) % 2)))
        self.bytes = padded.reshape(CLASSES, -1, 2).sum(axis=2)
        self._first_bin //= 2
        self.width_us *= 2


def _spread(
    begin: NDArray[np.float64], end: NDArray[np.float64], amount: NDArray[np.float64], bins: int
) -> NDArray[np.float64]:
    """Bytes in each bin: the differences of the total at the bins' edges, a sum of ramps."""
    rate = amount / (end - begin)
    total = np.zeros(bins + 1)
    for at, sign in ((begin, 1.0), (end, -1.0)):
        edge = np.minimum(np.ceil(at).astype(np.int64), bins)
        slope = np.cumsum(np.bincount(edge, sign * rate, bins + 1))
        shift = np.cumsum(np.bincount(edge, sign * rate * at, bins + 1))
        total += slope * np.arange(bins + 1) - shift
    return np.maximum(np.diff(total), 0.0)


class TopRows:
    """The `count` rows with the largest key, all rows where `count` is 0."""

    def __init__(self, count: int, key: str = "bytes", descending: bool = True) -> None:
        self._count = count
        self._key = key
        self._descending = descending
        self._kept: list[Rows] = []
        self._kept_rows = 0
        self.seen = 0

    def add(self, rows: Rows) -> None:
        self.seen += len(rows)
        self._kept.append(rows.copy())
        self._kept_rows += len(rows)
        if self._count and self._kept_rows > 4 * self._count + 50_000:
            self._kept = [self.rows()]
            self._kept_rows = len(self._kept[0])

    def rows(self) -> Rows:
        """The rows kept, in order; equal ones in the order in which they came."""
        rows = np.concatenate([np.empty(0, ROW_DTYPE), *self._kept])
        keys = sort_keys(rows, self._key)
        order = np.argsort(-keys if self._descending else keys, kind="stable")
        return rows[order[: self._count] if self._count else order]


def sort_keys(rows: Rows, key: str) -> NDArray[np.float64]:
    """What rows are ordered by; NaN (no confidence) counts as less than everything."""
    if key == "duration":
        return np.asarray(rows["last_us"] - rows["first_us"], np.float64)
    if key == "class":
        return np.asarray(rows["class_id"], np.float64)
    name = {"first": "first_us", "last": "last_us"}.get(key, key)
    keys = np.asarray(rows[name], np.float64)
    return np.where(np.isnan(keys), -1.0, keys)


class Sample:
    """An even random sample of at most `capacity` rows of each class, the same on every run."""

    def __init__(self, capacity: int = 400) -> None:
        self._capacity = capacity
        self._random = np.random.default_rng(0)
        self._kept = [(np.empty(0), np.empty(0, ROW_DTYPE)) for _ in range(CLASSES)]

    def add(self, rows: Rows) -> None:
        draws = self._random.random(len(rows))
        for index in range(CLASSES):
            mine = rows["class_id"] == index
            if not mine.any():
                continue
            keys = np.concatenate([self._kept[index][0], draws[mine]])
            both = np.concatenate([self._kept[index][1], rows[mine]])
            order = np.argsort(keys, kind="stable")[: self._capacity]
            self._kept[index] = keys[order], both[order]

    def rows(self, index: int) -> Rows:
        return self._kept[index][1]


class Digest:
    """Everything above, fed together. `plots` adds what only the report needs."""

    HISTOGRAM_BINS: Final = 25

    def __init__(self, *, plots: bool = False) -> None:
        self.totals = ClassTotals()
        self.talkers = Talkers()
        self.strip = TimeStrip()
        self.plots = plots
        self.sample = Sample()
        self.top = TopRows(100)
        self.confidence = np.zeros((CLASSES, self.HISTOGRAM_BINS), np.int64)

    def add(self, rows: Rows) -> None:
        self.totals.add(rows)
        self.talkers.add(rows)
        self.strip.add(rows)
        if not self.plots:
            return
        self.sample.add(rows)
        self.top.add(rows)
        known = ~np.isnan(rows["confidence"])
        places = np.clip(rows["confidence"][known] * self.HISTOGRAM_BINS, 0, self.HISTOGRAM_BINS - 1).astype(np.int64)
        flat = rows["class_id"][known].astype(np.int64) * self.HISTOGRAM_BINS + places
        self.confidence += np.bincount(flat, minlength=self.confidence.size).reshape(self.confidence.shape)

    def as_dict(self) -> Mapping[str, Any]:
        """The summary as it stands in the JSON document."""
        return {
            "classes": {
                name: {
                    "flows": self.totals.flows[index],
                    "packets": self.totals.packets[index],
                    "bytes": self.totals.bytes[index],
                }
                for index, name in enumerate(CLASS_NAMES)
            },
            "top_talkers": [
                {"address": address, "bytes": amount, "flows": flows} for address, amount, flows in self.talkers.top(10)
            ],
            "bytes_over_time": {
                "start_us": self.strip.start_us,
                "step_us": self.strip.width_us,
                **{name: [round(value) for value in self.strip.bytes[i]] for i, name in enumerate(CLASS_NAMES)},
            },
        }
