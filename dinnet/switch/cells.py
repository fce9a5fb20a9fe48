"""Cells of an array that belong to entries of a table."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Cells:
    """Which cells are free. The one that was freed first is used again first: by then no packet is at it any more."""

    def __init__(self, size: int, used: NDArray[np.uint32]) -> None:
        """Args:
        size: How many there are.
        used: Those that are taken, (n,).
        """
        free = np.ones(size, np.bool_)
        free[used] = False
        cells = np.flatnonzero(free).astype(np.uint32)
        self._queue = np.zeros(size, np.uint32)
        self._queue[: len(cells)] = cells
        self._first = 0
        self.free = len(cells)

    def take(self, count: int) -> NDArray[np.uint32]:
        """Up to `count` free cells."""
        count = min(count, self.free)
        taken = self._queue[(self._first + np.arange(count)) % len(self._queue)]
        self._first = (self._first + count) % len(self._queue)
        self.free -= count
        return taken

    def give_back(self, cells: NDArray[np.uint32]) -> None:
        """Free cells, (n,)."""
        self._queue[(self._first + self.free + np.arange(len(cells))) % len(self._queue)] = cells
        self.free += len(cells)
