"""The compiled forest against scikit-learn's own, in batches and for a single row.

The forest is the shipped model's where there is one with its scikit-learn objects, else one of the
same settings trained on made-up data (seeded). Both sides use one thread, then both use all cores.
All answers are compared first. ONNX Runtime joins where it and skl2onnx are installed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from harness import cannot_run, figure, in_turn, report

TOLERANCE = 1e-6


def _shipped(folder: Path) -> tuple[Any, np.ndarray[Any, Any]]:
    """The shipped class forest, and rows like those that it was trained on: between its own thresholds."""
    from dinnet.classifier.modelfile import read_sklearn

    forest = read_sklearn(folder)["class"]
    return forest, _rows_near_thresholds(forest, 100_000)


def _rows_near_thresholds(forest: Any, rows: int) -> np.ndarray[Any, Any]:
    """Rows whose values are drawn from the forest's thresholds, so that they spread over all of its leaves."""
    rng = np.random.default_rng(1)
    matrix = np.zeros((rows, forest.n_features_in_), np.float32)
    for column in range(matrix.shape[1]):
        known = [tree.tree_.threshold[tree.tree_.feature == column] for tree in forest.estimators_]
        thresholds = np.concatenate(known)
        if len(thresholds):
            matrix[:, column] = rng.choice(thresholds, rows) * rng.normal(1, 0.05, rows)
    return matrix


def _made_up() -> tuple[Any, np.ndarray[Any, Any]]:
    from sklearn.datasets import make_classification
    from sklearn.ensemble import RandomForestClassifier

    matrix, answers = make_classification(
        140_000, 79, n_informative=20, n_redundant=10, n_classes=5, n_clusters_per_class=4, class_sep=1.5,
        random_state=1,
    )  # fmt: skip
    matrix = matrix.astype(np.float32)
    forest = RandomForestClassifier(128, max_depth=16, min_samples_leaf=4, max_samples=0.5, n_jobs=-1, random_state=1)
    return forest.fit(matrix[:40_000], answers[:40_000]), matrix[40_000:]


def _onnx(forest: Any) -> Any:
    """An ONNX Runtime session of the forest, None where that is not installed."""
    try:
        import onnxruntime
        from skl2onnx import to_onnx
    except ImportError:
        return None
    model = to_onnx(forest, np.zeros((1, forest.n_features_in_), np.float32), options={"zipmap": False})
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _rows_per_s(predict: Callable[[Any], Any], matrix: Any) -> float:
    begin = time.perf_counter()
    predict(matrix)
    return len(matrix) / (time.perf_counter() - begin)


def _singles_per_s(predict: Callable[[Any], Any], rows: list[Any]) -> float:
    begin = time.perf_counter()
    for row in rows:
        predict(row)
    return len(rows) / (time.perf_counter() - begin)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--model", type=Path, help="model folder; by default the shipped one")
    arguments = parser.parse_args()
    try:
        import sklearn  # noqa: F401

        from dinnet.classifier.forest import Forest, ForestArrays
        from dinnet.classifier.modelfile import SKLEARN_FILE, default_folder
        from dinnet.errors import DinnetError
    except ImportError as error:
        cannot_run(f"{error.name} is not installed (dinnet[train])")
    folder = arguments.model or default_folder()
    shipped = (folder / SKLEARN_FILE).exists()
    try:
        sk, matrix = _shipped(folder) if shipped else _made_up()
    except DinnetError as error:
        cannot_run(str(error))
    # From scikit-learn's objects on both sides, so that both have the same columns.
    width = sk.n_features_in_
    ours = Forest(ForestArrays.from_sklearn(sk), range(width), width)
    session = _onnx(sk)

    def onnx_predict(rows: Any) -> Any:
        return session.run(None, {session.get_inputs()[0].name: rows})[1]

    sk.n_jobs = 1
    difference = float(np.abs(ours.predict(matrix) - sk.predict_proba(matrix)).max())
    singles = [matrix[i : i + 1].copy() for i in range(2_000)]
    for row in singles[:200]:
        difference = max(difference, float(np.abs(ours.predict(row) - sk.predict_proba(row)).max()))
    if difference > TOLERANCE:
        print(f"answers differ by {difference:.2g}", file=sys.stderr)
        return 1

    matrix = matrix[: arguments.rows]
    few = singles[:25]  # a peer's single row takes milliseconds
    cores = os.cpu_count() or 1

    def sklearn_batch() -> float:
        return _rows_per_s(sk.predict_proba, matrix)

    figures = []
    names = ["scikit-learn", *(["onnxruntime"] if session else [])]
    sides = [
        lambda: _rows_per_s(ours.predict, matrix),
        sklearn_batch,
        *([lambda: _rows_per_s(onnx_predict, matrix)] if session else []),
    ]
    results = in_turn(arguments.rounds, sides)
    figures += [
        figure(f"forest_batch_{name}", "rows/s", results[0], name, results[i + 1]) for i, name in enumerate(names)
    ]

    sides = [
        lambda: _singles_per_s(ours.predict, singles),
        lambda: _singles_per_s(sk.predict_proba, few),
        *([lambda: _singles_per_s(onnx_predict, singles)] if session else []),
    ]
    results = in_turn(arguments.rounds, sides)
    figures += [
        figure(f"forest_single_{name}", "rows/s", results[0], name, results[i + 1]) for i, name in enumerate(names)
    ]

    if cores > 1:
        sk.n_jobs = cores
        sides = [lambda: _rows_per_s(lambda rows: ours.predict(rows, cores), matrix), sklearn_batch]
        mine, theirs = in_turn(arguments.rounds, sides)
        figures.append(figure(f"forest_batch_{cores}_threads", "rows/s", mine, "scikit-learn", theirs))

    nodes = sum(tree.tree_.node_count for tree in sk.estimators_)
    report(
        figures,
        [
            f"{'shipped model' if shipped else 'made-up data'}: {len(sk.estimators_)} trees, {nodes:,} nodes, "
            f"{width} columns; {len(matrix):,} rows a batch; largest difference of any probability {difference:.1e}",
            f"a single row: {1e6 / figures[len(names)]['value']:.1f} us",
        ],
    )
    return 0


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=UserWarning)
    sys.exit(main())
