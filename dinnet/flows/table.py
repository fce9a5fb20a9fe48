"""The flow table: packet columns in, flow records out, memory in proportion to live flows."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from dinnet.capture.packet import Packets
from dinnet.errors import UsageError
from dinnet.flows import update as kernel
from dinnet.flows.record import COMMON_DTYPE, DIRECTION_DTYPE, RECORD_DTYPE, Records

Emit = Literal["last", "first", "all"]

_EMIT: Final = {"last": kernel.EMIT_LAST, "first": kernel.EMIT_FIRST, "all": kernel.EMIT_ALL}
_FIRST_ROWS: Final = 1 << 12
#: Address space for this many flows is set aside at the start; memory is taken as flows come.
_RESERVED_ROWS: Final = 1 << 23
_RECORDS_AT_ONCE: Final = 1 << 13


@dataclass(frozen=True)
class FlowOptions:
    """What a flow is, and when its records are emitted.

    Attributes:
        idle_timeout_s: A packet later than this after the flow's last one starts a new flow.
        active_timeout_s: A flow that has lasted this long is ended, and goes on as a new record.
        emit: "last": one record a flow, at its end. "first": one record, at the first checkpoint, or at
            the end where the flow has fewer packets. "all": every checkpoint, and the end.
        join_vlans: Leave VLAN IDs out of the flow key, so that a tag in one direction only does not split a flow.
        split_flow_labels: Put the IPv6 flow label into the key, for senders that set one per conversation
            over a shared connection. Both directions must use the same label.
    """

    idle_timeout_s: float = 120.0
    active_timeout_s: float = 1800.0
    emit: Emit = "last"
    join_vlans: bool = False
    split_flow_labels: bool = False

    def __post_init__(self) -> None:
        for name in ("idle_timeout_s", "active_timeout_s"):
            value = getattr(self, name)
            if not 0 < value <= 10**9:
                what = name.removesuffix("_s").replace("_", " ")
                raise UsageError(f"{what} must be more than 0 and at most 10**9 seconds, not {value}")
        if self.emit not in _EMIT:
            raise UsageError(f"emit must be one of {', '.join(_EMIT)}, not {self.emit!r}")


class FlowTable:
    """All flows that are under way."""

    def __init__(self, options: FlowOptions | None = None) -> None:
        self.options = options or FlowOptions()
        self._idle_us = round(self.options.idle_timeout_s * 1e6)
        self._active_us = round(self.options.active_timeout_s * 1e6)
        # A secret seed, so that nobody can make a capture whose flows all share one hash.
        self._seed = np.uint64(int.from_bytes(os.urandom(8)))
        self._state = np.zeros(kernel.STATE_WORDS, np.int64)
        self._slab = _reserve_rows(_RESERVED_ROWS)
        self._free = np.zeros(_FIRST_ROWS, np.int64)
        self._index = np.zeros(2 * _FIRST_ROWS, np.uint64)
        self._view_slab()
        self._hashes = np.zeros(0, np.uint32)
        self._swept_us: int | None = None
        self._since_sweep = 0

    @property
    def live(self) -> int:
        """Flows under way."""
        return int(self._state[kernel.LIVE])

    def update(self, packets: Packets) -> Records:
        """Add packets, PACKET_DTYPE (n,), in the order they were captured.

        Returns:
            The records that this emitted, RECORD_DTYPE (m,), in the order of the packets that caused them;
            then those of flows that the packets' clock has shown to be idle.
        """
        chunks = list(self._update(packets))
        return _join(chunks)

    def _update(self, packets: Packets) -> Iterator[Records]:
        if len(packets) == 0:
            return
        self._reserve(len(packets))
        if len(self._hashes) < len(packets):
            self._hashes = np.zeros(len(packets), np.uint32)
        first = 0
        while first < len(packets):
            words = _empty_records()
            first, count = kernel.update(
                packets, first, self._slab, self._common, self._sides, self._side_work, self._work,
                self._index, self._free, self._state, self._seed, self._idle_us, self._active_us,
                _EMIT[self.options.emit], self.options.join_vlans, self.options.split_flow_labels,
                self._hashes, words,
            )  # fmt: skip
            if count:
                yield _as_records(words, count)
        self._since_sweep += len(packets)
        yield from self._sweep_when_due(packets)

    def _sweep_when_due(self, packets: Packets) -> Iterator[Records]:
        """End idle flows by the packets' clock, at a cost in proportion to the packets seen.

        The clock is the earliest time in the batch, so that one packet stamped in the far future ends nothing.
        """
        now_us = int(packets["time_us"].min())
        if self._swept_us is None or now_us < self._swept_us:
            self._swept_us = now_us
        due = now_us - self._swept_us >= min(self._idle_us // 4, kernel.LINGER_US)
        if due and 4 * self._since_sweep >= self._state[kernel.USED_ROWS]:
            yield from self._sweep(now_us, everything=False)

    def expire(self, now_us: int) -> Records:
        """End the flows that are idle at `now_us` (microseconds since 1970): for live use, by a timer."""
        return _join(list(self._sweep(now_us, everything=False)))

    def flush(self, now_us: int | None = None) -> Iterator[Records]:
        """End all flows, a bounded number of records at a time.

        `now_us` is the capture's latest time stamp where the caller knows it: flows that were idle
        by then end as such.
        """
        yield from self._sweep(np.iinfo(np.int64).min // 2 if now_us is None else now_us, everything=True)

    def _sweep(self, now_us: int, *, everything: bool) -> Iterator[Records]:
        self._swept_us = now_us
        self._since_sweep = 0
        self._state[kernel.CURSOR] = 0
        while True:
            words = _empty_records()
            count = kernel.sweep(
                self._slab, self._common, self._work, self._index, self._free, self._state,
                now_us, self._idle_us, _EMIT[self.options.emit], everything, words,
            )  # fmt: skip
            if count:
                yield _as_records(words, count)
            if self._state[kernel.CURSOR] == 0:
                return

    def _reserve(self, packets: int) -> None:
        """Make room for as many new flows as there are packets."""
        needed = self.live + packets
        if len(self._slab) < needed:
            grown = _reserve_rows(2 * needed)
            used = int(self._state[kernel.USED_ROWS])
            grown[:used] = self._slab[:used]
            self._slab = grown
            self._view_slab()
        if len(self._free) < needed:
            free = np.zeros(2 * needed, np.int64)
            free[: len(self._free)] = self._free
            self._free = free
        if len(self._index) < 2 * needed:
            self._index = np.zeros(1 << (3 * needed - 1).bit_length(), np.uint64)
            kernel.reindex(self._index, self._work, int(self._state[kernel.USED_ROWS]))

    def _view_slab(self) -> None:
        """Typed views of the slab's columns; see `dinnet.flows.update`."""
        rows, stride, buffer = len(self._slab), kernel.ROW_BYTES, self._slab.data
        side = DIRECTION_DTYPE.itemsize
        after_record = RECORD_DTYPE.itemsize
        side_work = kernel.SIDE_WORK_DTYPE.itemsize
        self._common = np.ndarray((rows,), COMMON_DTYPE, buffer, 0, (stride,))
        self._sides = np.ndarray((rows, 2), DIRECTION_DTYPE, buffer, COMMON_DTYPE.itemsize, (stride, side))
        self._side_work = np.ndarray((rows, 2), kernel.SIDE_WORK_DTYPE, buffer, after_record, (stride, side_work))
        self._work = np.ndarray((rows,), kernel.WORK_DTYPE, buffer, after_record + 2 * side_work, (stride,))


def _reserve_rows(rows: int) -> NDArray[np.uint64]:
    """Rows of zeros that take memory only once they are used, in huge pages where there are any."""
    size = rows * kernel.ROW_BYTES
    while True:
        try:
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            break
        except OSError:
            # An address-space limit, or a kernel that does not overcommit: begin smaller.
            if size <= _FIRST_ROWS * kernel.ROW_BYTES or rows > _RESERVED_ROWS:
                raise
            size //= 2
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # A kernel without huge pages says no: then they are small ones.
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    usable = len(memory) // kernel.ROW_BYTES
    return np.frombuffer(memory, np.uint64, usable * kernel.ROW_WORDS).reshape(usable, kernel.ROW_WORDS)


def _empty_records() -> NDArray[np.uint64]:
    return np.empty((_RECORDS_AT_ONCE, kernel.RECORD_WORDS), np.uint64)


def _as_records(words: NDArray[np.uint64], count: int) -> Records:
    return words[:count].reshape(-1).view(RECORD_DTYPE)


def _join(chunks: list[Records]) -> Records:
    if len(chunks) == 1:
        return chunks[0]
    return np.concatenate(chunks) if chunks else np.zeros(0, RECORD_DTYPE)
