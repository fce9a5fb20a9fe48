from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier

from dinnet.classifier.forest import LEAF, Forest, ForestArrays
from dinnet.errors import DinnetError, UsageError

WIDTH = 12
FINITE_MAX = np.finfo(np.float32).max


def by_hand() -> ForestArrays:
    """Two trees: x0 <= 0.5 ? A : (x1 <= -2 ? B : A), and a single leaf."""
    return ForestArrays(
        tree_start=np.array([0, 5, 6], np.uint32),
        feature=np.array([0, LEAF, 1, LEAF, LEAF, LEAF], np.uint16),
        threshold=np.array([0.5, 0, -2, 0, 0, 0], np.float32),
        left=np.array([1, 0, 3, 1, 2, 3], np.uint32),
        leaf_values=np.array([[1, 0], [0, 1], [0.75, 0.25], [0.5, 0.5]], np.float32),
    )


@pytest.fixture(scope="module")
def fitted() -> RandomForestClassifier:
    rng = np.random.default_rng(5)
    matrix = rng.normal(size=(1500, WIDTH)).astype(np.float32)
    matrix[:, 3] = rng.integers(-3, 4, 1500)  # ties and zeros
    answers = (np.abs(matrix[:, 0]) + matrix[:, 3] > 1).astype(int) + 2 * (matrix[:, 5] > 0.3) + (matrix[:, 7] > 1)
    return RandomForestClassifier(30, max_depth=14, random_state=2, n_jobs=1).fit(matrix, answers)


def served(fitted: RandomForestClassifier) -> Forest:
    return Forest(ForestArrays.from_sklearn(fitted), range(WIDTH), WIDTH)


@pytest.mark.parametrize("rows", [1, 2, 24, 25, 63, 64, 65, 700, 5000])
def test_equals_sklearn(fitted: RandomForestClassifier, rows: int) -> None:
    matrix = np.random.default_rng(rows).normal(size=(rows, WIDTH)).astype(np.float32)
    expected = fitted.predict_proba(matrix)
    assert np.abs(served(fitted).predict(matrix) - expected).max() < 1e-6
    assert np.abs(served(fitted).predict(matrix, threads=3) - expected).max() < 1e-6


def test_equals_sklearn_on_thresholds_and_beside_them(fitted: RandomForestClassifier) -> None:
    """Every threshold of the forest in its own column, and the float32 values next to it on both sides."""
    rng = np.random.default_rng(11)
    rows = []
    for estimator in fitted.estimators_:
        tree = estimator.tree_
        for node in np.flatnonzero(tree.children_left >= 0):
            near = np.float32(tree.threshold[node])
            for edge in (near, np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf))):
                row = rng.normal(size=WIDTH).astype(np.float32)
                row[tree.feature[node]] = edge
                rows.append(row)
    matrix = np.array(rows, np.float32)
    assert len(matrix) > 3000
    assert np.abs(served(fitted).predict(matrix) - fitted.predict_proba(matrix)).max() < 1e-6


def test_equals_sklearn_on_extreme_values(fitted: RandomForestClassifier) -> None:
    edges = np.array([0.0, -0.0, FINITE_MAX, -FINITE_MAX, 1e-45, -1e-45], np.float32)
    matrix = np.random.default_rng(1).choice(edges, size=(3000, WIDTH))
    assert np.abs(served(fitted).predict(matrix) - fitted.predict_proba(matrix)).max() < 1e-6


def test_infinities_are_above_and_below_everything() -> None:
    forest = Forest(by_hand(), [0, 1], 2)
    inf = np.inf
    matrix = np.array([[inf, inf], [inf, -inf], [-inf, 0], [0.5, 0], [0.6, -2]], np.float32)
    first = np.array([[0.75, 0.25], [0, 1], [1, 0], [1, 0], [0, 1]])  # the first tree; the other one gives a half each
    np.testing.assert_allclose(forest.predict(matrix), (first + 0.5) / 2, atol=1e-9)


def test_threshold_that_no_float32_holds() -> None:
    """sklearn compares in float64: 0.1 in float32 is above the float64 0.1, so x = float32(0.1) goes right."""

    class Tree:
        children_left = np.array([1, -1, -1])
        children_right = np.array([2, -1, -1])
        feature = np.array([0, -2, -2])
        threshold = np.array([0.1, -2.0, -2.0])
        value = np.array([[[0.5, 0.5]], [[1.0, 0.0]], [[0.0, 1.0]]])

    class Holder:
        estimators_ = (type("Estimator", (), {"tree_": Tree})(),)

    forest = Forest(ForestArrays.from_sklearn(Holder()), [0], 1)  # type: ignore[arg-type]
    above = np.float32(0.1)
    below = np.nextafter(above, np.float32(0))
    assert float(below) < 0.1 < float(above)
    assert forest.predict(np.array([[below], [above]], np.float32))[:, 0].tolist() == [1.0, 0.0]


def test_columns_are_found_in_a_wider_matrix() -> None:
    narrow = Forest(by_hand(), [0, 1], 2)
    wide = Forest(by_hand(), [6, 2], 9)
    matrix = np.random.default_rng(0).normal(size=(200, 9)).astype(np.float32) * 3
    assert np.array_equal(wide.predict(matrix), narrow.predict(np.ascontiguousarray(matrix[:, [6, 2]])))


def test_single_equals_batch_bit_for_bit(fitted: RandomForestClassifier) -> None:
    matrix = np.random.default_rng(4).normal(size=(100, WIDTH)).astype(np.float32)
    forest = served(fitted)
    singles = np.concatenate([forest.predict(matrix[i : i + 1]) for i in range(len(matrix))])
    assert singles.tobytes() == forest.predict(matrix).tobytes()


def test_no_rows_and_wrong_shapes() -> None:
    forest = Forest(by_hand(), [0, 1], 2)
    assert forest.predict(np.zeros((0, 2), np.float32)).shape == (0, 2)
    for matrix in (np.zeros((3, 3), np.float32), np.zeros((3, 2)), np.zeros(2, np.float32)):
        with pytest.raises(UsageError):
            forest.predict(matrix)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"left": np.array([1, 0, 2, 1, 2, 3], np.uint32)}, "before its parent"),  # points at itself
        ({"left": np.array([1, 0, 0, 1, 2, 3], np.uint32)}, "before its parent"),  # back to the root
        ({"left": np.array([1, 0, 4, 1, 2, 3], np.uint32)}, "outside its tree"),  # right child in the next tree
        ({"left": np.array([2**32 - 1, 0, 3, 1, 2, 3], np.uint32)}, "outside its tree"),
        ({"left": np.array([1, 0, 3, 1, 2, 4], np.uint32)}, "past the leaf values"),
        ({"feature": np.array([0, LEAF, 2, LEAF, LEAF, LEAF], np.uint16)}, "feature that does not exist"),
        ({"threshold": np.array([np.nan, 0, -2, 0, 0, 0], np.float32)}, "not a number"),
        ({"threshold": np.array([0.5, 0, -2, 0, 0], np.float32)}, "different lengths"),
        ({"tree_start": np.array([0, 5, 7], np.uint32)}, "do not cover"),
        ({"tree_start": np.array([0, 6, 6], np.uint32)}, "empty"),
        ({"tree_start": np.array([0, 2**32 - 1, 6], np.uint32)}, "empty"),
        ({"tree_start": np.array([0], np.uint32)}, "do not cover"),
        ({"tree_start": np.array([0, 5, 6], np.int64)}, "tree_start is int64"),
        ({"leaf_values": np.full((4, 2), np.nan, np.float32)}, "not probabilities"),
        ({"leaf_values": np.full((4, 2), 0.9, np.float32)}, "not probabilities"),
        ({"leaf_values": np.ones(4, np.float32)}, "leaf_values is float32 with 1 dimensions"),
    ],
)
def test_hostile_arrays_are_refused(change: dict[str, np.ndarray], reason: str) -> None:
    with pytest.raises(DinnetError, match=reason):
        Forest(dataclasses.replace(by_hand(), **change), [0, 1], 2)


def test_too_deep_a_chain_is_refused() -> None:
    depth = 70
    nodes = 2 * depth + 1
    feature = np.array([0, LEAF] * depth + [LEAF], np.uint16)
    feature[0] = 0
    left = np.zeros(nodes, np.uint32)
    # Node 0 has children 1 (leaf) and 2; node 2 has 3 and 4; and so on.
    feature[:] = LEAF
    feature[0:-1:2] = 0
    left[0:-1:2] = np.arange(1, nodes, 2)
    arrays = ForestArrays(
        np.array([0, nodes], np.uint32), feature, np.zeros(nodes, np.float32), left, np.ones((1, 1), np.float32)
    )
    with pytest.raises(DinnetError, match="deeper"):
        Forest(arrays, [0], 1)


def test_nodes_shared_until_the_walk_explodes_are_refused() -> None:
    """Every node's children are the next two: each level doubles, without a cycle."""
    nodes = 60
    feature = np.zeros(nodes, np.uint16)
    feature[-2:] = LEAF
    left = np.minimum(np.arange(1, nodes + 1), nodes - 2).astype(np.uint32)
    left[-2:] = 0
    left[-3] = nodes - 2
    arrays = ForestArrays(
        np.array([0, nodes], np.uint32), feature, np.zeros(nodes, np.float32), left, np.ones((1, 1), np.float32)
    )
    with pytest.raises(DinnetError, match="share"):
        Forest(arrays, [0], 1)


def test_columns_outside_the_matrix_are_refused() -> None:
    with pytest.raises(DinnetError, match="columns"):
        Forest(by_hand(), [0, 2], 2)
    with pytest.raises(DinnetError, match="columns"):
        Forest(by_hand(), [0, 1], 300)
