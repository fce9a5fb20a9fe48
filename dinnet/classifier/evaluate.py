"""How good a classifier is, counted on flows whose labels came from their senders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dinnet.classifier.corpus import GROUPS, LabelledRecords
from dinnet.classifier.model import CLASSES, Classifier, decide, sharpen
from dinnet.flows.record import CHECKPOINTS, End

#: The four classes of inference traffic, which macro-F1 is over.
N_CLASSES: Final = 4
#: Index (counted from 1) of the 16-packet checkpoint.
CHECKPOINT_16: Final = CHECKPOINTS.index(16) + 1
_BINS: Final = 10
_OTHER_OUTPUTS: Final = ("streaming", "first_request", "large_model")


@dataclass(frozen=True)
class Scores:
    """Counts and what follows from them, for one set of records."""

    confusion: NDArray[np.int64]  # shape (5, 5): true training group x verdict (see CLASSES)

    @property
    def support(self) -> NDArray[np.int64]:
        """Records of each true group, shape (5,)."""
        return np.asarray(self.confusion.sum(axis=1))

    @property
    def precision(self) -> NDArray[np.float64]:
        """Of those called a class, the part that is; shape (4,), NaN where nothing was called so."""
        return _divide(np.diag(self.confusion)[:N_CLASSES], self.confusion.sum(axis=0)[:N_CLASSES])

    @property
    def recall(self) -> NDArray[np.float64]:
        """Of a class's records, the part called so; unclassified counts as missed. NaN where there are none."""
        return _divide(np.diag(self.confusion)[:N_CLASSES], self.support[:N_CLASSES])

    @property
    def f1(self) -> NDArray[np.float64]:
        """2 TP / (2 TP + FP + FN) for each class, NaN where the class doesn't occur."""
        hits = np.diag(self.confusion)[:N_CLASSES]
        called = self.confusion.sum(axis=0)[:N_CLASSES]
        f1 = _divide(2 * hits, called + self.support[:N_CLASSES])
        return np.where(self.support[:N_CLASSES] > 0, f1, np.nan)

    @property
    def macro_f1(self) -> float:
        """Mean F1 over the classes that occur, NaN where none does."""
        f1 = self.f1
        return float(np.nanmean(f1)) if np.any(np.isfinite(f1)) else float("nan")

    @property
    def false_inference(self) -> float:
        """Of the records that are not inference, the part called prefill or decode."""
        return float(_divide(self.confusion[4, :2].sum(keepdims=True), self.support[4:])[0])

    @property
    def unclassified(self) -> float:
        """Of the inference records, the part that got no class."""
        return float(_divide(self.confusion[:4, 4].sum(keepdims=True), self.support[:4].sum(keepdims=True))[0])

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON; NaN as null."""
        return {
            "macro_f1": _plain(self.macro_f1),
            "classes": {
                name: {
                    "precision": _plain(self.precision[c]),
                    "recall": _plain(self.recall[c]),
                    "f1": _plain(self.f1[c]),
                    "support": int(self.support[c]),
                }
                for c, name in enumerate(CLASSES[:N_CLASSES])
            },
            "other_called_inference": _plain(self.false_inference),
            "other_support": int(self.support[4]),
            "confusion": {
                group: dict(zip(CLASSES, map(int, row), strict=True))
                for group, row in zip(GROUPS, self.confusion, strict=True)
            },
        }


def count(group: NDArray[np.uint8], class_id: NDArray[np.uint8]) -> Scores:
    """Scores of verdicts `class_id` against true groups, both shape (n,)."""
    cells = np.bincount(group.astype(np.int64) * 5 + class_id, minlength=25)
    return Scores(cells.reshape(5, 5))


def last_of_flow(flow: NDArray[Any]) -> NDArray[np.int64]:
    """Rows of each flow's last record; records of a flow are in time order."""
    _, from_end = np.unique(flow[::-1], return_index=True)
    return np.sort(len(flow) - 1 - from_end)


def calibration(group: NDArray[np.uint8], probabilities: NDArray[np.float64]) -> dict[str, Any]:
    """Reliability of the highest probability: bins of equal width and the expected calibration error.

    ECE = sum over bins of (records in bin / records) x |accuracy - mean confidence| (Guo et al. 2017, eq. 3).
    """
    confidence = probabilities.max(axis=1)
    right = probabilities.argmax(axis=1) == group
    which = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    number = np.bincount(which, minlength=_BINS)
    accuracy = _divide(np.bincount(which, weights=right, minlength=_BINS), number)
    mean = _divide(np.bincount(which, weights=confidence, minlength=_BINS), number)
    filled = number > 0
    error = float(np.sum(number[filled] * np.abs(accuracy - mean)[filled]) / max(len(group), 1))
    return {
        "error": error,
        "bins": [
            {"confidence": float(mean[b]), "accuracy": float(accuracy[b]), "records": int(number[b])}
            for b in np.flatnonzero(filled)
        ],
    }


def best_sharpness(group: NDArray[np.uint8], probabilities: NDArray[np.float64], weight: NDArray[np.float64]) -> float:
    """The exponent under which `sharpen` gives the least weighted log loss, to 0.05, between 0.5 and 4.

    `probabilities` (n, classes) must come from forests that did not train on the rows they judge.
    """
    rows = np.arange(len(group))

    def loss(sharpness: float) -> float:
        right = sharpen(probabilities, sharpness)[rows, group]
        return float(np.average(-np.log(np.maximum(right, 1e-9)), weights=weight))

    return float(min(np.arange(0.5, 4.001, 0.05).round(2), key=loss))


def binary_scores(truth: NDArray[np.int8], probability: NDArray[np.float64]) -> dict[str, Any]:
    """Accuracy, balanced accuracy and F1 of a yes/no output at 0.5; only rows with a true answer (0 or 1) count."""
    known = truth >= 0
    yes = truth[known] == 1
    said = probability[known] >= 0.5
    hits, rejects = int(np.sum(yes & said)), int(np.sum(~yes & ~said))
    n_yes, n_no = int(yes.sum()), int((~yes).sum())
    rates = [hits / n_yes] if n_yes else []
    rates += [rejects / n_no] if n_no else []
    return {
        "records": n_yes + n_no,
        "yes": n_yes,
        "accuracy": (hits + rejects) / (n_yes + n_no) if n_yes + n_no else None,
        "balanced_accuracy": float(np.mean(rates)) if rates else None,
        "f1": 2 * hits / (n_yes + int(said.sum())) if n_yes else None,
    }


def report(
    labelled: LabelledRecords,
    probabilities: Mapping[str, NDArray[np.float64]],
    threshold: float,
) -> dict[str, Any]:
    """All scores of one set of records, as plain numbers.

    `probabilities` holds (n, classes) arrays by output name. `flows` judges each flow once, by its last record;
    `checkpoint_16` the records of the 16-packet checkpoint; `records` every record. `flows_unrejected` is `flows`
    with the most probable group taken however low its probability: tells doubt from confusion.
    """
    by_class = probabilities["class"]
    class_id = decide(by_class, threshold)
    last = last_of_flow(labelled.flow)
    at_16 = np.flatnonzero(_at_checkpoint(labelled, CHECKPOINT_16))

    def scores(rows: NDArray[Any]) -> dict[str, Any]:
        return count(labelled.group[rows], class_id[rows]).as_dict()

    return {
        "n_flows": len(last),
        "n_records": len(labelled),
        "flows": scores(last),
        "flows_unrejected": count(labelled.group[last], decide(by_class[last], 0.0)).as_dict(),
        "checkpoint_16": scores(at_16),
        "records": scores(np.arange(len(labelled))),
        "by_checkpoint": _by_checkpoint(labelled, class_id),
        "calibration": calibration(labelled.group, by_class),
        "outputs": {
            name: binary_scores(getattr(labelled, name)[last], probabilities[name][last, 1])
            for name in _OTHER_OUTPUTS
            if name in probabilities
        },
        "by_transport": _by_name(labelled.transports, labelled.transport[last], labelled.group[last], class_id[last]),
        "by_model": _by_name(labelled.models, labelled.model[last], labelled.group[last], class_id[last]),
    }


def evaluate(
    classifier: Classifier, labelled: LabelledRecords, parts: Mapping[str, NDArray[np.bool_]], threads: int = 1
) -> dict[str, dict[str, Any]]:
    """A `report` of each part: name -> mask of shape (n,). Parts without records are left out."""
    probabilities = {name: classifier.probabilities(labelled.records, name, threads) for name in classifier.outputs}
    probabilities["class"] = sharpen(probabilities["class"], classifier.sharpness)
    return {
        name: report(labelled.select(mask), {key: p[mask] for key, p in probabilities.items()}, classifier.threshold)
        for name, mask in parts.items()
        if np.any(mask)
    }


def _at_checkpoint(labelled: LabelledRecords, index: int) -> NDArray[np.bool_]:
    live = labelled.records["end"] == int(End.LIVE)
    return np.asarray(live & (labelled.records["checkpoint"] == index))


def _by_checkpoint(labelled: LabelledRecords, class_id: NDArray[np.uint8]) -> list[dict[str, Any]]:
    """Scores of the records of each early checkpoint, of all later ones, and of ended flows."""
    checkpoint = labelled.records["checkpoint"]
    live = labelled.records["end"] == int(End.LIVE)
    parts = [(f"{packets} packets", live & (checkpoint == i)) for i, packets in enumerate(CHECKPOINTS, start=1)]
    parts += [("later", live & (checkpoint > len(CHECKPOINTS))), ("end", ~live)]
    rows = []
    for name, mask in parts:
        if np.any(mask):
            scores = count(labelled.group[mask], class_id[mask])
            right = int(np.trace(scores.confusion))
            rows.append(
                {
                    "checkpoint": name,
                    "records": int(mask.sum()),
                    "accuracy": right / int(mask.sum()),
                    "macro_f1": _plain(scores.macro_f1),
                    # Of the inference records only: for other traffic it is the right answer.
                    "unclassified": _plain(scores.unclassified),
                }
            )
    return rows


def _by_name(
    names: list[str], index: NDArray[Any], group: NDArray[np.uint8], class_id: NDArray[np.uint8]
) -> dict[str, dict[str, Any]]:
    """For each name: flows, the part judged right (other: unclassified), and the most frequent wrong verdict."""
    result = {}
    for i in np.unique(index):
        mask = index == i
        wrong = class_id[mask][class_id[mask] != group[mask]]
        result[names[i]] = {
            "flows": int(mask.sum()),
            "right": float(np.mean(class_id[mask] == group[mask])),
            "mistaken_for": CLASSES[int(np.bincount(wrong).argmax())] if len(wrong) else None,
        }
    return result


def _divide(part: NDArray[Any], whole: NDArray[Any]) -> NDArray[np.float64]:
    quotient = np.full(np.shape(part), np.nan)
    np.divide(part, whole, out=quotient, where=np.asarray(whole) > 0)
    return quotient


def _plain(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
