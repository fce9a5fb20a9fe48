"""Which records a classifier is trained on, and which it is judged by: whole scenarios, never flows of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dinnet.classifier.corpus import LabelledRecords
from dinnet.errors import DinnetError


@dataclass(frozen=True)
class HeldOut:
    """Names (shell patterns allowed) of what is never trained on."""

    transports: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    scenarios: tuple[str, ...] = ()

    def masks(self, labelled: LabelledRecords) -> dict[str, NDArray[np.bool_]]:
        """For each attribute, which records have a held-out value; shape (n,) each."""
        scenario = labelled.scenario_index
        names = [str(manifest.get("scenario", "")) for manifest in labelled.scenarios]
        return {
            "transports": _matching(labelled.transports, self.transports)[labelled.transport],
            "models": _matching(labelled.models, self.models)[labelled.model],
            "links": _matching(labelled.links, self.links)[scenario],
            "scenarios": _matching(names, self.scenarios)[scenario],
        }

    def unused(self, labelled: LabelledRecords) -> list[str]:
        """Patterns that match nothing in the corpus: most likely misspelt."""
        names = [str(manifest.get("scenario", "")) for manifest in labelled.scenarios]
        have = {
            "transports": labelled.transports,
            "models": labelled.models,
            "links": labelled.links,
            "scenarios": names,
        }
        return [
            f"{kind}: {pattern}"
            for kind, values in have.items()
            for pattern in getattr(self, kind)
            if not any(fnmatchcase(value, pattern) for value in values)
        ]


def split(labelled: LabelledRecords, held_out: HeldOut) -> tuple[NDArray[np.bool_], dict[str, NDArray[np.bool_]]]:
    """The training mask, and the test masks by name.

    Training records share no held-out transport, model, link or scenario with any test record, and none comes from
    a scenario recorded for judging (manifest: "split": "held_out"). Test masks: "held-out" (all but what is held out
    as a whole scenario), and "held-out transports", "... models", "... links", "... scenarios" apart. A scenario
    recorded to judge one attribute ("unseen": ["model"]) belongs to that part with its background traffic.
    """
    masks = held_out.masks(labelled)
    scenarios = labelled.scenarios
    index = labelled.scenario_index
    for_judging = np.array([manifest.get("split") == "held_out" for manifest in scenarios])
    test = for_judging[index]
    for mask in masks.values():
        test = test | mask
    # A scenario kept out as a whole is a question of its own (real software instead of a replay of it).
    whole = masks["scenarios"]
    parts = {"held-out": test & ~whole}
    for kind in ("transports", "models", "links"):
        unseen = np.array([kind[:-1] in manifest.get("unseen", ()) for manifest in scenarios])
        parts[f"held-out {kind}"] = (masks[kind] | (unseen & for_judging)[index]) & ~whole
    parts["held-out scenarios"] = whole
    return ~test, parts


def folds(labelled: LabelledRecords, number: int, by: Literal["scenario", "transport"]) -> NDArray[np.int64]:
    """Fold of each record, shape (n,): a scenario or transport lies in one fold only.

    Scenarios are dealt in the order of the corpus; transports so that each group's are spread over all folds.
    """
    if by == "scenario":
        return np.asarray(np.unique(labelled.scenario_index, return_inverse=True)[1] % number, np.int64)
    fold_of = np.zeros(len(labelled.transports), np.int64)
    next_fold = 0
    done: set[int] = set()
    for group in range(5):
        transports, flows = np.unique(labelled.transport[labelled.group == group], return_counts=True)
        # Large ones first, dealt out in turn, so that folds come out about equal.
        for transport in transports[np.argsort(-flows, kind="stable")]:
            if int(transport) not in done:
                done.add(int(transport))
                fold_of[transport] = next_fold % number
                next_fold += 1
    return fold_of[labelled.transport]


def weights(labelled: LabelledRecords, flow_balance: float, transport_balance: float) -> NDArray[np.float64]:
    """Training weight of each record, shape (n,), mean 1; each group weighs the same in all.

    A flow of n records weighs n ** (1 - flow_balance); a group's transport whose flows weigh w in all weighs
    w ** (1 - transport_balance). At 0 every record (every flow) counts the same, at 1 every flow (every transport).
    """
    _, flow, size = np.unique(labelled.flow, return_inverse=True, return_counts=True)
    weight = size[flow].astype(np.float64) ** -flow_balance
    cell = labelled.group.astype(np.int64) * 65536 + labelled.transport
    _, cell = np.unique(cell, return_inverse=True)
    weight *= (np.bincount(cell, weights=weight) ** -transport_balance)[cell]
    total = np.bincount(labelled.group, weights=weight, minlength=5)
    present = int(np.sum(total > 0))
    return np.asarray(weight / total[labelled.group] * len(weight) / present)


def _matching(names: Sequence[str], patterns: Sequence[str]) -> NDArray[np.bool_]:
    if not names:
        raise DinnetError("the corpus names no transports, models or scenarios; record it again")
    return np.array([bool(name) and any(fnmatchcase(name, pattern) for pattern in patterns) for name in names])
