# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False, check-untyped-defs=False
# (numba infers the types of kernels from their arguments)
"""The compiled engine that serves a random forest.

Answers equal scikit-learn's: a comparison takes the same branch for every float32 input, and leaf
probabilities differ by float32 rounding at most. Three things make it fast:

- a node is one 8-byte word: threshold (32 bits), column (8 bits), left child (24 bits). Siblings are
  neighbours, so the right child is the left one plus one, and stepping down needs no branch;
- float32 values are turned once a row into unsigned integers of the same order, so that threshold
  and column come out of one load and compare as integers;
- a leaf points at itself. Many rows step down one tree together (or, for a single row, all trees
  together), so that the processor waits for many loads at once instead of for one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numba import uint32, uint64
from numpy.typing import NDArray

from dinnet.errors import DinnetError, UsageError
from dinnet.jit import compiled

if TYPE_CHECKING:
    from sklearn.ensemble import RandomForestClassifier

#: In `ForestArrays.feature`: this node is a leaf.
LEAF: Final = 0xFFFF
#: Bounds of the packed node: columns of the matrix, nodes of a tree.
MAX_COLUMNS: Final = 1 << 8
MAX_TREE_NODES: Final = 1 << 24
MAX_DEPTH: Final = 64

_BLOCK: Final = 64  # rows that step down a tree together: their values fit the first-level cache beside the tree
_SPAN: Final = 4096  # rows for which a tree is loaded from memory once
FEW: Final = 24  # up to so many rows, stepping down all trees at once is faster
_ROWS_PER_THREAD: Final = 4096


@dataclass(frozen=True)
class ForestArrays:
    """A forest as plain arrays: what a model file holds.

    Trees lie one after another; `tree_start` (uint32, shape (trees + 1,)) tells where. In a tree, nodes are
    in breadth-first order, so children always come after their parent.
    """

    tree_start: NDArray[np.uint32]
    feature: NDArray[np.uint16]  # shape (nodes,): index into the model's feature list, or LEAF
    threshold: NDArray[np.float32]  # go left where value <= threshold
    left: NDArray[np.uint32]  # left child, counted from the tree's first node; for a leaf, its row in leaf_values
    leaf_values: NDArray[np.float32]  # shape (leaves, classes): probabilities

    NAMES = ("tree_start", "feature", "threshold", "left", "leaf_values")

    @classmethod
    def from_sklearn(cls, forest: RandomForestClassifier) -> ForestArrays:
        """The arrays of a fitted scikit-learn forest with one output."""
        starts, features, thresholds, lefts, values = [0], [], [], [], []
        leaves = 0
        for estimator in forest.estimators_:
            tree = estimator.tree_
            order = _breadth_first(tree.children_left, tree.children_right)
            position = np.empty(len(order), np.int64)
            position[order] = np.arange(len(order))
            is_leaf = tree.children_left[order] < 0
            n_leaves = int(is_leaf.sum())
            left = position[tree.children_left[order]]
            left[is_leaf] = np.arange(leaves, leaves + n_leaves)
            threshold = _largest_float32_up_to(tree.threshold[order])
            value = tree.value[order[is_leaf], 0, :]
            features.append(np.where(is_leaf, LEAF, tree.feature[order]).astype(np.uint16))
            thresholds.append(np.where(is_leaf, np.float32(0), threshold).astype(np.float32))
            lefts.append(left.astype(np.uint32))
            values.append((value / value.sum(axis=1, keepdims=True)).astype(np.float32))
            starts.append(starts[-1] + len(order))
            leaves += n_leaves
        return cls(
            np.array(starts, np.uint32),
            np.concatenate(features),
            np.concatenate(thresholds),
            np.concatenate(lefts),
            np.concatenate(values),
        )

    def check(self, n_features: int, n_classes: int, where: str) -> int:
        """The depth of the deepest tree; DinnetError where following the arrays could lead anywhere outside them."""

        def refuse(reason: str) -> DinnetError:
            return DinnetError(f"{where}: not a usable forest ({reason}); train the model again")

        kinds = (np.uint32, np.uint16, np.float32, np.uint32, np.float32)
        for name, kind in zip(self.NAMES, kinds, strict=True):
            array = getattr(self, name)
            if array.dtype != kind or array.ndim != (2 if name == "leaf_values" else 1):
                raise refuse(f"{name} is {array.dtype} with {array.ndim} dimensions")
        start = self.tree_start.astype(np.int64)
        nodes = len(self.feature)
        if len(self.threshold) != nodes or len(self.left) != nodes:
            raise refuse("arrays of different lengths")
        if len(start) < 2 or start[0] != 0 or start[-1] != nodes:
            raise refuse("trees do not cover the nodes")
        sizes = start[1:] - start[:-1]
        if sizes.min() < 1 or sizes.max() >= MAX_TREE_NODES:
            raise refuse("a tree is empty or too large")
        if self.leaf_values.shape[1] != n_classes:
            raise refuse(f"{self.leaf_values.shape[1]} classes instead of {n_classes}")

        own = np.arange(nodes) - np.repeat(start[:-1], sizes)
        size = np.repeat(sizes, sizes)
        is_leaf = self.feature == LEAF
        left = self.left.astype(np.int64)
        if np.any(left[is_leaf] >= len(self.leaf_values)):
            raise refuse("a leaf points past the leaf values")
        if np.any(self.feature[~is_leaf] >= n_features):
            raise refuse("a node looks at a feature that does not exist")
        # Children after their parent: no walk can return to a node.
        if np.any(left[~is_leaf] <= own[~is_leaf]) or np.any(left[~is_leaf] + 1 >= size[~is_leaf]):
            raise refuse("a child lies outside its tree or before its parent")
        if not np.all(np.isfinite(self.threshold)):
            raise refuse("a threshold is not a number")
        values = self.leaf_values
        if not (np.all(np.isfinite(values)) and np.all(values >= 0) and np.all(np.abs(values.sum(axis=1) - 1) < 1e-3)):
            raise refuse("leaf values are not probabilities")
        return self._depth(start[:-1], is_leaf, left, refuse)

    def _depth(self, roots: NDArray[Any], is_leaf: NDArray[Any], left: NDArray[Any], refuse: Any) -> int:
        base = np.repeat(roots, _sizes(self.tree_start))
        level = roots
        for depth in range(MAX_DEPTH + 1):
            inner = level[~is_leaf[level]]
            if not len(inner):
                return depth
            child = base[inner] + left[inner]
            level = np.concatenate([child, child + 1])
            if len(level) > len(is_leaf):
                raise refuse("two nodes share a child")
        raise refuse(f"deeper than {MAX_DEPTH}")


class Forest:
    """A forest ready to answer."""

    def __init__(self, arrays: ForestArrays, columns: Sequence[int], width: int, where: str = "forest") -> None:
        """Check `arrays` and pack them.

        `columns` tells for each of the model's features its column in the matrices given to `predict`, which have
        `width` columns. `where` is named in errors.
        """
        n_classes = arrays.leaf_values.shape[1] if arrays.leaf_values.ndim == 2 else 0
        depth = arrays.check(len(columns), n_classes, where)
        if not 0 < width <= MAX_COLUMNS or any(not 0 <= column < width for column in columns):
            raise DinnetError(f"{where}: columns outside a matrix of {width} (at most {MAX_COLUMNS})")
        self.n_classes = n_classes
        self.n_trees = len(arrays.tree_start) - 1
        self._width = width
        self._depth = depth
        self._starts = np.ascontiguousarray(arrays.tree_start[:-1])
        self._leaf_values = np.ascontiguousarray(arrays.leaf_values)
        self._nodes, self._leaf_of = _pack(arrays, np.array(columns, np.uint64))

    def predict(self, matrix: NDArray[np.float32], threads: int = 1) -> NDArray[np.float64]:
        """Class probabilities, shape (n, n_classes), of `matrix` (float32, shape (n, width)).

        The value of a NaN is that of a number above every threshold or below every one, by its sign bit.
        """
        if matrix.dtype != np.float32 or matrix.ndim != 2 or matrix.shape[1] != self._width:
            raise UsageError(f"a forest of {self._width} columns was given {matrix.dtype}{matrix.shape}")
        flags = matrix.flags
        if not (flags.c_contiguous and flags.writeable):
            matrix = matrix.copy()
        n = len(matrix)
        out = np.zeros((n, self.n_classes), np.float64)
        bits = matrix.view(np.uint32)
        if n <= FEW:
            _walk_trees(bits, self._nodes, self._starts, self._depth, self._leaf_of, self._leaf_values, out)
            return out
        threads = max(1, min(threads, n // _ROWS_PER_THREAD))
        if threads == 1:
            self._walk(bits, out)
            return out
        bounds = np.linspace(0, n, threads + 1).astype(int)
        with ThreadPoolExecutor(threads) as pool:
            parts = [pool.submit(self._walk, bits[a:b], out[a:b]) for a, b in pairwise(bounds)]
            for part in parts:
                part.result()
        return out

    def _walk(self, bits: NDArray[np.uint32], out: NDArray[np.float64]) -> None:
        _walk_rows(bits, self._nodes, self._starts, self._depth, self._leaf_of, self._leaf_values, out)


def _sizes(tree_start: NDArray[np.uint32]) -> NDArray[np.int64]:
    start = tree_start.astype(np.int64)
    return start[1:] - start[:-1]


def _breadth_first(left: NDArray[np.int64], right: NDArray[np.int64]) -> NDArray[np.int64]:
    levels = []
    level = np.zeros(1, np.int64)
    while len(level):
        levels.append(level)
        inner = level[left[level] >= 0]
        level = np.stack([left[inner], right[inner]], axis=1).ravel()
    return np.concatenate(levels)


def _largest_float32_up_to(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """x <= value has the same answer for every float32 x when value is rounded down to a float32."""
    rounded = values.astype(np.float32)
    return np.where(rounded > values, np.nextafter(rounded, np.float32(-np.inf)), rounded).astype(np.float32)


def _pack(arrays: ForestArrays, columns: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    """One word a node, and each node's row in the leaf values (0 for inner nodes)."""
    sizes = _sizes(arrays.tree_start)
    own = (np.arange(len(arrays.feature)) - np.repeat(arrays.tree_start[:-1].astype(np.int64), sizes)).astype(np.uint64)
    is_leaf = arrays.feature == LEAF
    bits = (arrays.threshold + np.float32(0)).view(np.uint32)  # + 0: minus zero equals zero
    key = np.where(bits >> 31 == 1, ~bits, bits | np.uint32(1 << 31))
    # Nothing is above all ones, so a leaf's step always goes "left": to itself.
    key = np.where(is_leaf, np.uint32(0xFFFFFFFF), key).astype(np.uint64)
    column = np.where(is_leaf, np.uint64(0), columns[np.where(is_leaf, 0, arrays.feature)])
    left = np.where(is_leaf, own, arrays.left.astype(np.uint64))
    nodes = ((key << np.uint64(32)) | (column << np.uint64(24)) | left).astype(np.uint64)
    return nodes, np.where(is_leaf, arrays.left, np.uint32(0)).astype(np.uint32)


@compiled
def _ordered(bits):
    """An unsigned integer with the order of the float32 that `bits` are of; both zeros are one."""
    if bits >> uint32(31):
        # Minus zero becomes zero's key: ~0x80000000 + 1.
        return ~bits + uint32(bits == uint32(0x80000000))
    return bits | uint32(0x80000000)


@compiled
def _step(nodes, base, at, keys, row):
    """The node that comes after `at` of the tree at `base` for the row whose keys begin at `row`."""
    node = nodes[base + uint64(at)]
    key = keys[row + ((node >> uint64(24)) & uint64(0xFF))]
    return uint32(node & uint64(0xFFFFFF)) + uint32(key > uint32(node >> uint64(32)))


@compiled
def _walk_rows(bits, nodes, starts, depth, leaf_of, leaf_values, out):
    """Many rows: add up the leaf values of all trees in `out` and divide by their number."""
    n, width = bits.shape
    trees = starts.shape[0]
    classes = leaf_values.shape[1]
    keys = np.empty(min(n, _SPAN) * width, np.uint32)
    at = np.empty(_BLOCK, np.uint32)
    for first in range(0, n, _SPAN):
        rows = min(_SPAN, n - first)
        k = uint64(0)
        for i in range(first, first + rows):
            for j in range(width):
                keys[k] = _ordered(bits[i, j])
                k += uint64(1)
        for t in range(trees):
            base = uint64(starts[t])
            for block in range(0, rows, _BLOCK):
                m = min(_BLOCK, rows - block)
                for i in range(m):
                    at[uint64(i)] = uint32(0)
                for _ in range(depth):
                    moved = uint32(0)
                    row = uint64(block * width)
                    for i in range(m):
                        old = at[uint64(i)]
                        new = _step(nodes, base, old, keys, row)
                        at[uint64(i)] = new
                        moved |= new ^ old
                        row += uint64(width)
                    if moved == 0:
                        break
                for i in range(m):
                    leaf = uint64(leaf_of[base + uint64(at[uint64(i)])])
                    for c in range(classes):
                        out[first + block + i, c] += leaf_values[leaf, c]
    for i in range(n):
        for c in range(classes):
            out[i, c] /= trees


@compiled
def _walk_trees(bits, nodes, starts, depth, leaf_of, leaf_values, out):
    """A few rows: the same sums in the same order, but all trees of a row step down together."""
    n, width = bits.shape
    trees = starts.shape[0]
    classes = leaf_values.shape[1]
    keys = np.empty(width, np.uint32)
    at = np.empty(trees, np.uint32)
    for i in range(n):
        for j in range(width):
            keys[uint64(j)] = _ordered(bits[i, j])
        for t in range(trees):
            at[uint64(t)] = uint32(0)
        for _ in range(depth):
            moved = uint32(0)
            for t in range(trees):
                old = at[uint64(t)]
                new = _step(nodes, uint64(starts[uint64(t)]), old, keys, uint64(0))
                at[uint64(t)] = new
                moved |= new ^ old
            if moved == 0:
                break
        for t in range(trees):
            leaf = uint64(leaf_of[uint64(starts[uint64(t)]) + uint64(at[uint64(t)])])
            for c in range(classes):
                out[i, c] += leaf_values[leaf, c]
        for c in range(classes):
            out[i, c] /= trees
