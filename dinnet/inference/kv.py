"""The KV cache: blocks of tokens, a pool of them for each layer, handed to requests and taken back."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from dinnet.errors import DinnetError
from dinnet.inference.layers import LayerRange


@dataclass(frozen=True, slots=True)
class KvShape:
    """What one token's keys and values look like; both ends of a hand-off must agree on it."""

    heads: int
    head_dim: int
    dtype: torch.dtype
    block_size: int

    def bytes_per_token(self, layers: int) -> int:
        return 2 * layers * self.heads * self.head_dim * self.dtype.itemsize


@dataclass(slots=True)
class _Held:
    slots: torch.Tensor  # [tokens], rows of the pool
    blocks: list[int]
    writers: int = 0
    closed: bool = False
    received: dict[int, int] = field(default_factory=dict)  # layer -> tokens that a hand-off has written


class KvPool:
    """Blocks of one worker. Safe to use from several threads.

    A request's blocks are all taken at its start. One that is freed while a hand-off writes to it keeps its blocks
    until the writer is done: they never belong to two requests.
    """

    def __init__(self, shape: KvShape, layers: LayerRange, blocks: int, device: str) -> None:
        self.shape, self.layers, self.blocks = shape, layers, blocks
        rows = blocks * shape.block_size
        self._store = {
            layer: torch.zeros(2, rows, shape.heads, shape.head_dim, dtype=shape.dtype, device=device)
            for layer in range(layers.first, layers.last + 1)
        }
        self._device = device
        self._free = list(range(blocks - 1, -1, -1))
        self._held: dict[str, _Held] = {}
        self._lock = threading.Lock()

    @property
    def free_blocks(self) -> int:
        with self._lock:
            return len(self._free)

    def reserve(self, key: str, tokens: int) -> bool:
        """Take blocks for `tokens` tokens; False when there are too few, and nothing is taken."""
        size = self.shape.block_size
        needed = -(-tokens // size)
        with self._lock:
            if key in self._held:
                raise DinnetError(f"request {key} holds blocks already")
            if needed > len(self._free):
                return False
            blocks = [self._free.pop() for _ in range(needed)]
            rows = torch.tensor(blocks).unsqueeze(1) * size + torch.arange(size)
            self._held[key] = _Held(rows.flatten()[:tokens].to(self._device), blocks)
            return True

    def free(self, key: str) -> None:
        """Give a request's blocks back, at once or when the last write to them is done."""
        with self._lock:
            held = self._held.get(key)
            if held is None:
                return
            held.closed = True
            if held.writers == 0:
                self._give_back(key, held)

    def _give_back(self, key: str, held: _Held) -> None:
        del self._held[key]
        self._free.extend(held.blocks)

    def slots(self, key: str, start: int, end: int) -> torch.Tensor:
        """Rows of a request's tokens `start` to `end` - 1."""
        return self._held[key].slots[start:end]

    def layer(self, layer: int) -> torch.Tensor:
        """Keys and values of a layer, [2, rows, heads, head_dim]."""
        return self._store[layer]

    def read(self, key: str, layer: int, start: int, end: int) -> torch.Tensor:
        """Keys and values of some tokens, [2, tokens, heads, head_dim]: a copy."""
        return self._store[layer].index_select(1, self.slots(key, start, end))

    def receive(self, key: str, layer: int, start: int, tensor: torch.Tensor) -> bool:
        """Write what a hand-off brings; False where the request is gone.

        Raises:
            DinnetError: It does not fit.
        """
        if layer not in self._store:
            raise DinnetError(f"layer {layer} is not one of {self.layers}")
        count = tensor.shape[1]
        if tensor.shape != (2, count, self.shape.heads, self.shape.head_dim) or tensor.dtype != self.shape.dtype:
            raise DinnetError(f"KV of shape {tuple(tensor.shape)} {tensor.dtype} does not fit this worker's")
        with self._writing(key) as held:
            if held is None:
                return False
            if start + count > len(held.slots):
                raise DinnetError(f"request {key}: KV of tokens {start} to {start + count - 1} is beyond its blocks")
            self._store[layer][:, held.slots[start : start + count]] = tensor.to(self._device)
            with self._lock:
                held.received[layer] = held.received.get(layer, 0) + count
        return True

    def received(self, key: str) -> int:
        """How many tokens a hand-off has brought for every layer."""
        with self._lock:
            held = self._held.get(key)
            if held is None:
                return 0
            return min(held.received.get(layer, 0) for layer in self._store)

    @contextmanager
    def _writing(self, key: str) -> Iterator[_Held | None]:
        with self._lock:
            held = self._held.get(key)
            if held is not None and held.closed:
                held = None
            if held is not None:
                held.writers += 1
        try:
            yield held
        finally:
            if held is not None:
                with self._lock:
                    held.writers -= 1
                    if held.closed and held.writers == 0:
                        self._give_back(key, held)


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of one request's tokens that a step computes."""

    key: str
    start: int
    count: int


class Step:
    """The pieces of one step, laid out one after the other, and the cache that they read and write."""

    def __init__(self, pool: KvPool, pieces: Sequence[Piece], device: str) -> None:
        self.pool, self.pieces = pool, pieces
        self.new_slots = torch.cat([pool.slots(p.key, p.start, p.start + p.count) for p in pieces])
        self.positions = torch.cat([torch.arange(p.start, p.start + p.count) for p in pieces]).unsqueeze(0).to(device)
        self.single = all(p.count == 1 for p in pieces)
        if self.single:
            lengths = torch.tensor([p.start + 1 for p in pieces])
            longest = int(lengths.max())
            self.padded = torch.zeros(len(pieces), longest, dtype=torch.long, device=device)
            for row, piece in enumerate(pieces):
                self.padded[row, : piece.start + 1] = pool.slots(piece.key, 0, piece.start + 1)
            self.lengths = lengths.to(device)

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What transformers' attention calls on its cache: keep [1, heads, tokens, head_dim] of both."""
        store = self.pool.layer(layer)
        store[0, self.new_slots] = keys[0].transpose(0, 1)
        store[1, self.new_slots] = values[0].transpose(0, 1)
        return keys, values
