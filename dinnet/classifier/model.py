# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False, check-untyped-defs=False
# (numba infers the types of kernels from their arguments)
"""From flow records to verdicts: what everything that decides by class calls."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dinnet.classifier.forest import FEW, Forest
from dinnet.classifier.modelfile import ModelFile, default_folder, read_model
from dinnet.flows.features import FEATURE_NAMES, features
from dinnet.flows.record import RECORD_DTYPE, Records
from dinnet.jit import compiled

#: The verdicts, in the order of `class_id`.
CLASSES: Final = ("prefill", "decode", "control", "data", "unclassified")
UNCLASSIFIED: Final = len(CLASSES) - 1

VERDICT_DTYPE: Final = np.dtype(
    [
        ("class_id", "u1"),  # index into CLASSES
        ("confidence", "<f4"),  # highest probability of a training group, whether it passed the threshold or not
        ("streaming", "<f4"),  # probabilities; NaN where the class is neither prefill nor decode, or there is no forest
        ("first_request", "<f4"),
        ("large_model", "<f4"),
    ]
)
Verdicts = NDArray[np.void]
"""A structured array of VERDICT_DTYPE, shape (n,)."""

_CHUNK: Final = 32_768  # records whose features are in memory at once


class Classifier:
    """A loaded model."""

    def __init__(self, model: ModelFile, where: str = "model") -> None:
        columns = [FEATURE_NAMES.index(name) for name in model.features]
        width = len(FEATURE_NAMES)
        self.model = model
        self.threshold = model.threshold
        self.sharpness = model.sharpness
        self._forests = {
            name: Forest(arrays, columns, width, f"{where}: {name}") for name, arrays in model.forests.items()
        }
        self._classes = self._forests["class"]
        self._others = [name for name in self._forests if name != "class"]

    @classmethod
    def load(cls, path: Path | None = None) -> Classifier:
        """The model in folder `path`, by default the shipped one. DinnetError where it is missing or not usable."""
        folder = default_folder() if path is None else Path(path)
        return cls(read_model(folder), str(folder))

    def classify(self, records: Records, threads: int = 1) -> Verdicts:
        """Verdicts (VERDICT_DTYPE, shape (n,)) on `records` (RECORD_DTYPE, shape (n,))."""
        verdicts = np.empty(len(records), VERDICT_DTYPE)
        for start in range(0, len(records), _CHUNK):
            self._classify(records[start : start + _CHUNK], verdicts[start : start + _CHUNK], threads)
        return verdicts

    def warm_up(self) -> None:
        """Compile, or load, all the code that `classify` may come to need: now, and not at the first flow of a kind."""
        for count in (1, FEW + 1):  # a few records have code of their own
            records = np.zeros(count, RECORD_DTYPE)
            self.classify(records)
            for output in self._forests:
                self.probabilities(records, output)

    def probabilities(self, records: Records, output: str = "class", threads: int = 1) -> NDArray[np.float64]:
        """What the forest of one output says, shape (n, its classes): before calibration and any threshold.

        The classes are those of `dinnet.classifier.modelfile.OUTPUTS`; KeyError where the model lacks the output.
        """
        forest = self._forests[output]
        out = np.empty((len(records), forest.n_classes))
        for start in range(0, len(records), _CHUNK):
            chunk = slice(start, start + _CHUNK)
            out[chunk] = forest.predict(features(records[chunk]), threads)
        return out

    def calibrated(self, records: Records, threads: int = 1) -> NDArray[np.float64]:
        """Probabilities of the five groups, shape (n, 5), as verdicts are made from them."""
        return sharpen(self.probabilities(records, "class", threads), self.sharpness)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The outputs that this model has: "class" and some of streaming, first_request, large_model."""
        return tuple(self._forests)

    def _classify(self, records: Records, verdicts: Verdicts, threads: int) -> None:
        matrix = features(records)
        inference = _decide(self._classes.predict(matrix, threads), self.sharpness, self.threshold, verdicts)
        if not inference or not self._others:
            return
        # Most flows of a network are not inference: the other forests look at those that are.
        some = inference < len(matrix)
        rows = np.flatnonzero(verdicts["class_id"] < 2) if some else slice(None)
        chosen = matrix[rows]
        for name in self._others:
            verdicts[name][rows] = self._forests[name].predict(chosen, threads)[:, 1]


@compiled
def _decide(probabilities, sharpness, threshold, verdicts):
    """Fill the verdicts, the other outputs with NaN; return how many are prefill or decode."""
    inference = 0
    for i in range(probabilities.shape[0]):
        best = 0
        for c in range(1, probabilities.shape[1]):
            if probabilities[i, c] > probabilities[i, best]:
                best = c
        confidence = probabilities[i, best]
        if sharpness != 1.0:  # the best probability of `sharpen`, without the others
            total = 0.0
            for c in range(probabilities.shape[1]):
                total += (probabilities[i, c] / confidence) ** sharpness
            confidence = 1.0 / total
        # The last group is traffic that is not inference, and its number is that of "unclassified".
        verdicts[i]["class_id"] = best if confidence >= threshold else UNCLASSIFIED
        verdicts[i]["confidence"] = confidence
        verdicts[i]["streaming"] = np.nan
        verdicts[i]["first_request"] = np.nan
        verdicts[i]["large_model"] = np.nan
        if verdicts[i]["class_id"] < 2:
            inference += 1
    return inference


def sharpen(probabilities: NDArray[np.float64], sharpness: float) -> NDArray[np.float64]:
    """p^sharpness, made to sum to 1, over the rows of probabilities of shape (n, classes).

    A forest's votes are less sure than its verdicts are right: its trees see different samples and few features
    each. This is temperature scaling (Guo et al. 2017, section 4.2) of log p with temperature 1 / sharpness.
    """
    if sharpness == 1.0:
        return probabilities
    powers = (probabilities / probabilities.max(axis=1, keepdims=True)) ** sharpness
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def decide(probabilities: NDArray[np.float64], threshold: float) -> NDArray[np.uint8]:
    """Index into CLASSES for each row of group probabilities (shape (n, 5))."""
    best = probabilities.argmax(axis=1)
    rejected = probabilities[np.arange(len(best)), best] < threshold
    return np.where(rejected, UNCLASSIFIED, best).astype(np.uint8)
