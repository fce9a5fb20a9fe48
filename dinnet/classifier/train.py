"""Training: from labelled flow records to a model and an honest account of it."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dinnet import __version__
from dinnet.classifier.corpus import GROUPS, LabelledRecords
from dinnet.classifier.evaluate import best_sharpness, evaluate, last_of_flow, report
from dinnet.classifier.forest import Forest, ForestArrays
from dinnet.classifier.model import Classifier, sharpen
from dinnet.classifier.modelfile import ModelFile
from dinnet.classifier.split import HeldOut, folds, split, weights
from dinnet.errors import DinnetError, UsageError
from dinnet.flows.features import FEATURE_NAMES, features, features_for

if TYPE_CHECKING:
    from sklearn.ensemble import RandomForestClassifier

_STRICT = ConfigDict(extra="forbid", frozen=True)


class HeldOutNames(BaseModel):
    """What is never trained on; shell patterns allowed."""

    model_config = _STRICT
    transports: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    scenarios: tuple[str, ...] = ()


class ForestOptions(BaseModel):
    """Settings of one random forest, by scikit-learn's meaning of them."""

    model_config = _STRICT
    trees: int = Field(default=128, ge=1, le=4096)
    depth: int = Field(default=16, ge=1, le=48)
    min_samples_leaf: int = Field(default=4, ge=1)
    max_features: float | str = "sqrt"
    max_samples: int = Field(default=60_000, ge=1)  # records drawn for a tree, at most


class TrainOptions(BaseModel):
    """The recipe of a model: what `testbeds/training.yaml` holds."""

    model_config = _STRICT
    held_out: HeldOutNames = HeldOutNames()
    forest: ForestOptions = ForestOptions()
    output_forest: ForestOptions = ForestOptions(trees=48, depth=12, min_samples_leaf=8, max_samples=40_000)
    threshold: float = Field(default=0.7, ge=0, le=1)
    flow_balance: float = Field(default=0.7, ge=0, le=1)  # see split.weights
    transport_balance: float = Field(default=0.5, ge=0, le=1)
    exclude_features: tuple[str, ...] = ()
    absent_fields: tuple[str, ...] = ()  # record fields that the target can't compute
    folds: int = Field(default=5, ge=0, le=20)  # of cross-validation; 0 and 1: none
    fold_by: Literal["scenario", "transport"] = "scenario"  # what a fold's forest has never seen
    fold_forest: ForestOptions = ForestOptions(trees=32, max_samples=25_000)
    sharpness: float | None = Field(default=None, ge=0.1, le=10)  # None: the best one in cross-validation
    seed: int = Field(default=1, ge=0, le=2**32 - 1)

    @classmethod
    def read(cls, path: Path) -> TrainOptions:
        """Options from a YAML file; DinnetError with file and reason for an unknown key or an impossible value.

        `held_out.plan` names a recording plan (relative to the file) whose held-out names are taken too. The file may
        itself be a recording plan: then its held-out names are taken and everything else is as by default.
        """
        document = _read_yaml(path)
        if isinstance(document, dict):
            if "workloads" in document:
                document = {"held_out": _names_of_plan(document)}
            elif isinstance(held_out := document.get("held_out"), dict) and "plan" in held_out:
                plan = _read_yaml(Path(path).parent / str(held_out["plan"]))
                merged = _names_of_plan(plan if isinstance(plan, dict) else {})
                for kind, names in held_out.items():
                    if kind != "plan":
                        merged[kind] = [*merged.get(kind, []), *names] if isinstance(names, list) else names
                document = {**document, "held_out": merged}
        try:
            return cls.model_validate({} if document is None else document)
        except ValidationError as error:
            first = error.errors()[0]
            raise DinnetError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error

    def feature_names(self) -> tuple[str, ...]:
        """The features that this recipe uses, in column order."""
        for name in self.exclude_features:
            if name not in FEATURE_NAMES:
                raise UsageError(f"exclude_features: there is no feature {name!r} (dinnet features explain lists them)")
        return tuple(name for name in features_for(self.absent_fields) if name not in self.exclude_features)


def _read_yaml(path: Path) -> Any:
    try:
        return yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise DinnetError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DinnetError(f"{path}: not YAML ({' '.join(str(error).split())})") from error


def _names_of_plan(plan: dict[str, Any]) -> dict[str, Any]:
    """What a recording plan (`dinnet testbed record`) holds out; its own checks have seen to the names."""
    held_out = plan.get("held_out", {})
    kinds = ("transports", "models", "links")
    return {kind: held_out[kind] for kind in kinds if isinstance(held_out, dict) and kind in held_out}


@dataclass(frozen=True)
class Trained:
    """A model, its scikit-learn forests, and its scores."""

    model: ModelFile
    sklearn_forests: dict[str, RandomForestClassifier]
    scores: dict[str, Any]  # "test": part -> report; "cross_validation": report or None
    options: TrainOptions


def train(
    labelled: LabelledRecords,
    options: TrainOptions,
    *,
    jobs: int | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Trained:
    """Train all forests on what isn't held out and score them on what is. The same input gives the same model."""
    jobs = jobs or os.cpu_count() or 1
    held_out = HeldOut(**options.held_out.model_dump())
    if unused := held_out.unused(labelled):
        # Not an error: a part of a corpus may well lack some. But a misspelt name would hold out nothing.
        progress(f"note: held out, but not in this corpus: {'; '.join(unused)}")
    training_mask, parts = split(labelled, held_out)
    training = labelled.select(training_mask)
    missing = [name for g, name in enumerate(GROUPS) if not np.any(training.group == g)]
    if missing:
        raise DinnetError(f"no training records of {', '.join(missing)}: record more scenarios or hold out fewer")

    names = options.feature_names()
    columns = [FEATURE_NAMES.index(name) for name in names]
    matrix = features(training.records)[:, columns]
    weight = weights(training, options.flow_balance, options.transport_balance)

    cross_validation = None
    sharpness = options.sharpness
    if options.folds > 1:
        probabilities = _cross_validate(training, matrix, weight, options, jobs, progress)
        if sharpness is None:
            sharpness = best_sharpness(training.group, probabilities, weight)
            progress(f"calibrated: class probabilities to the power of {sharpness:g}")
        cross_validation = report(training, {"class": sharpen(probabilities, sharpness)}, options.threshold)

    forests: dict[str, RandomForestClassifier] = {}
    progress(f"training class on {len(training):,} records")
    forests["class"] = _fit(options.forest, matrix, training.group, weight, options.seed, jobs)
    for number, output in enumerate(("streaming", "first_request", "large_model"), start=1):
        answers = getattr(training, output)
        rows = np.flatnonzero((answers >= 0) & (training.group < 2))
        if len(np.unique(answers[rows])) == 2:
            progress(f"training {output} on {len(rows):,} records")
            balanced = _balance(answers[rows], weight[rows])
            forests[output] = _fit(
                options.output_forest, matrix[rows], answers[rows], balanced, options.seed + number, jobs
            )

    importance = {name: float(v) for name, v in zip(names, forests["class"].feature_importances_, strict=True)}
    model = ModelFile(
        features=names,
        threshold=options.threshold,
        forests={name: ForestArrays.from_sklearn(forest) for name, forest in forests.items()},
        sharpness=1.0 if sharpness is None else sharpness,
        info={
            "options": options.model_dump(mode="json"),
            "corpus": describe(labelled),
            "training": describe(training),
            "versions": _versions(),
        },
        importance=importance,
    )
    progress("scoring the held-out scenarios")
    test = evaluate(Classifier(model), labelled, parts, jobs)
    return Trained(model, forests, {"test": test, "cross_validation": cross_validation}, options)


def describe(labelled: LabelledRecords) -> dict[str, Any]:
    """What a corpus holds: counts by group, names, and its hash."""
    groups = labelled.group[last_of_flow(labelled.flow)]
    used = np.unique(labelled.scenario_index)
    return {
        "records": len(labelled),
        "flows": {name: int(np.sum(groups == g)) for g, name in enumerate(GROUPS)},
        "scenarios": [str(labelled.scenarios[i].get("scenario", "")) for i in used],
        "transports": [labelled.transports[i] for i in np.unique(labelled.transport)],
        "models": [labelled.models[i] for i in np.unique(labelled.model) if labelled.models[i]],
        "links": sorted({labelled.links[i] for i in used}),
        "sha256": labelled.digest(),
    }


def _fit(
    options: ForestOptions,
    matrix: NDArray[np.float32],
    answers: NDArray[Any],
    weight: NDArray[np.float64],
    seed: int,
    jobs: int,
) -> RandomForestClassifier:
    from sklearn.ensemble import RandomForestClassifier

    forest = RandomForestClassifier(
        n_estimators=options.trees,
        max_depth=options.depth,
        min_samples_leaf=min(options.min_samples_leaf, max(1, len(answers) // 4)),
        max_features=options.max_features,
        max_samples=min(options.max_samples, len(answers)),
        n_jobs=jobs,
        random_state=seed,
    )
    return forest.fit(matrix, answers, sample_weight=weight)


def _cross_validate(
    training: LabelledRecords,
    matrix: NDArray[np.float32],
    weight: NDArray[np.float64],
    options: TrainOptions,
    jobs: int,
    progress: Callable[[str], None],
) -> NDArray[np.float64]:
    """Group probabilities of every training record, shape (n, 5), by forests that never saw what it was folded by."""
    probabilities = np.zeros((len(training), len(GROUPS)))
    fold = folds(training, options.folds, options.fold_by)
    if len(np.unique(fold)) < 2:
        raise DinnetError(f"cross-validation needs at least two {options.fold_by}s: record more, or set folds to 0")
    for number in np.unique(fold):
        progress(f"cross-validating by {options.fold_by}, fold {number + 1} of {options.folds}")
        known = fold != number
        forest = _fit(options.fold_forest, matrix[known], training.group[known], weight[known], options.seed, jobs)
        # Not scikit-learn's predict_proba: with several jobs it adds up in an order of chance.
        served = Forest(ForestArrays.from_sklearn(forest), range(matrix.shape[1]), matrix.shape[1])
        probabilities[np.ix_(~known, forest.classes_)] = served.predict(matrix[~known])
    return probabilities


def _balance(answers: NDArray[np.int8], weight: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weights under which both answers weigh the same."""
    total = np.bincount(answers, weights=weight)
    return np.asarray(weight / total[answers] * len(answers) / 2)


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    packages = ("numpy", "numba", "scikit-learn", "skops")
    return {"dinnet": __version__, "python": platform.python_version(), **{name: version(name) for name in packages}}
