"""Scenarios, and the plan that a corpus of them is expanded from."""

from __future__ import annotations

import fnmatch
import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from dinnet.errors import DinnetError
from dinnet.testbed.network import Link
from dinnet.testbed.workloads.base import Group

_MIN_BUDGET_BYTES: Final = 200_000
_KINDS: Final = ("transport", "model", "link", "all")

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
Item = TypeVar("Item")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class WorkloadRun(_Strict):
    """One workload of a scenario."""

    name: str
    model: str = Field(default="", description="name of a model shape; empty where the workload moves none")
    byte_budget: int = Field(default=16_000_000, gt=0, description="upper bound of what the workload sends")
    request_rate: float = Field(default=2.0, gt=0, le=1_000, description="inference requests a second")


class Scenario(_Strict):
    """Workloads that run together over one link for a while."""

    name: Name
    seed: int = 0
    duration_s: float = Field(default=5.0, gt=0, le=3_600)
    link: Link
    workloads: tuple[WorkloadRun, ...] = Field(min_length=1)
    split: Literal["train", "held_out"] = "train"
    unseen: tuple[str, ...] = Field(default=(), description="what of a held-out scenario is never in training")

    def digest(self) -> str:
        """SHA-256 of the description: two recordings with the same digest were asked for the same."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()


class HeldOut(_Strict):
    """What is never in a training scenario."""

    transports: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    scenarios: int = Field(default=0, ge=0, description="how many scenarios to record for judging only")


class Plan(_Strict):
    """A corpus: what to combine, and how often."""

    seed: int
    name: Name = "train"  # of its training scenarios
    scenarios: int = Field(ge=1, description="training scenarios")
    durations_s: tuple[Annotated[float, Field(gt=0, le=600)], ...] = Field(min_length=1)
    loads: tuple[Annotated[float, Field(gt=0, le=2)], ...] = Field(
        min_length=1, description="bytes of all workloads, as a share of what the link can carry meanwhile"
    )
    request_rates: tuple[Annotated[float, Field(gt=0, le=1_000)], ...] = Field(min_length=1)
    max_bytes: int = Field(gt=0, description="upper bound of a scenario's bytes, for machines with few cores")
    workloads: dict[Group, Annotated[int, Field(ge=0)]] = Field(description="workloads of each group per scenario")
    transports: tuple[str, ...] = Field(default=("*",), min_length=1, description="patterns of the workloads used")
    leave_out: tuple[str, ...] = Field(default=(), description="patterns of workloads not used all the same")
    models: tuple[str, ...] = Field(min_length=1)
    links: tuple[Link, ...] = Field(min_length=1)
    held_out: HeldOut = HeldOut()

    @model_validator(mode="after")
    def _consistent(self) -> Plan:
        names = [link.name for link in self.links]
        if "" in names or len(set(names)) < len(names):
            raise ValueError("links: each needs a name of its own")
        for what, held, known in (("links", self.held_out.links, names), ("models", self.held_out.models, self.models)):
            if unknown := sorted(set(held) - set(known)):
                raise ValueError(f"held_out.{what}: {unknown[0]!r} is not among the plan's {what}")
            if set(known) <= set(held):
                raise ValueError(f"held_out.{what}: none is left to train on")
        return self


class _Deck(Generic[Item]):
    """Deals from a shuffled list and shuffles again when it is through, so that everything comes equally often."""

    def __init__(self, items: Sequence[Item], seed: str) -> None:
        self._items = list(items)
        self._rng = random.Random(seed)
        self._left: list[Item] = []

    def deal(self) -> Item:
        if not self._left:
            self._left = self._rng.sample(self._items, len(self._items))
        return self._left.pop()

    def hand(self, count: int) -> list[Item]:
        """`count` different items, or all where there are fewer."""
        chosen: list[Item] = []
        returned: list[Item] = []
        while len(chosen) < min(count, len(self._items)):
            item = self.deal()
            (returned if item in chosen else chosen).append(item)
        self._left += returned
        return chosen


def expand(
    plan: Plan,
    groups: Mapping[str, Group],
    models: Sequence[str] | None = None,
    volumes: Mapping[str, float] | None = None,
) -> tuple[Scenario, ...]:
    """All scenarios of a plan, training first; the same plan and workloads give the same scenarios.

    Args:
        plan: The plan.
        groups: The workloads there are: name -> group.
        models: Names of the model shapes there are; None leaves the plan's unchecked.
        volumes: How a scenario's bytes are shared out: workload -> weight, 1 where it is not given.

    Raises:
        DinnetError: The plan names a workload or model that does not exist, or leaves a wanted group empty.
    """
    held = plan.held_out
    groups = {name: group for name, group in groups.items() if _uses(plan, name)}
    _known("transport", held.transports, list(groups))
    if models is not None:
        _known("model", plan.models, models)
    trained = {name: group for name, group in groups.items() if name not in held.transports}
    seen_links = [link for link in plan.links if link.name not in held.links]
    new_links = [link for link in plan.links if link.name in held.links]
    seen_models = [model for model in plan.models if model not in held.models]
    for group, count in plan.workloads.items():
        if count and group not in trained.values():
            raise DinnetError(f"no workload of group {group!r} is left to train on")

    volumes = volumes or {}
    training = _Dealer(plan, trained, seen_links, seen_models, "train", volumes)
    scenarios = [training.scenario(f"{plan.name}-{number:03}", "train", ()) for number in range(plan.scenarios)]
    held_groups = {name: groups[name] for name in held.transports}
    kinds = [kind for kind, there in zip(_KINDS, (held_groups, held.models, new_links, True), strict=True) if there]
    dealers = {
        kind: _Dealer(
            plan,
            (held_groups or trained) if kind in ("transport", "all") else trained,
            (new_links or seen_links) if kind in ("link", "all") else seen_links,
            (held.models or seen_models) if kind in ("model", "all") else seen_models,
            kind,
            volumes,
        )
        for kind in kinds
    }
    for number in range(held.scenarios):
        kind = kinds[number % len(kinds)]
        unseen = tuple(kinds[:-1]) if kind == "all" else (kind,)
        scenarios.append(dealers[kind].scenario(f"held-{kind}-{number:03}", "held_out", unseen))
    return tuple(scenarios)


class _Dealer:
    """Makes scenarios of one kind from the links, models and transports that the kind allows."""

    def __init__(
        self,
        plan: Plan,
        groups: Mapping[str, Group],
        links: Sequence[Link],
        models: Sequence[str],
        kind: str,
        volumes: Mapping[str, float],
    ) -> None:
        self._plan = plan
        self._volumes = volumes
        self._groups = groups
        self._links = _Deck(links, f"{plan.seed}/{kind}/links")
        self._models = _Deck(models, f"{plan.seed}/{kind}/models")
        self._durations = _Deck(plan.durations_s, f"{plan.seed}/{kind}/durations")
        self._loads = _Deck(plan.loads, f"{plan.seed}/{kind}/loads")
        self._rates = _Deck(plan.request_rates, f"{plan.seed}/{kind}/rates")
        by_group: dict[Group, list[str]] = {}
        for name in sorted(groups):
            by_group.setdefault(groups[name], []).append(name)
        self._transports = {
            group: _Deck(names, f"{plan.seed}/{kind}/{group}") for group, names in sorted(by_group.items())
        }

    def scenario(self, name: str, split: Literal["train", "held_out"], unseen: tuple[str, ...]) -> Scenario:
        link, model, duration_s = self._links.deal(), self._models.deal(), self._durations.deal()
        rate = self._rates.deal()
        total = min(self._plan.max_bytes, link.rate_mbit * 125_000 * duration_s * self._loads.deal())
        names = list(self._names())
        weights = [self._volumes.get(workload, 1.0) for workload in names]
        return Scenario(
            name=name,
            seed=int.from_bytes(hashlib.sha256(f"{self._plan.seed}/{name}".encode()).digest()[:4], "big"),
            duration_s=duration_s,
            link=link,
            split=split,
            unseen=unseen,
            workloads=tuple(
                WorkloadRun(
                    name=workload,
                    model="" if self._groups[workload] == "other" else model,
                    byte_budget=max(_MIN_BUDGET_BYTES, int(total * weight / sum(weights))),
                    request_rate=rate,
                )
                for workload, weight in zip(names, weights, strict=True)
            ),
        )

    def _names(self) -> Iterator[str]:
        for group, deck in self._transports.items():
            yield from sorted(deck.hand(self._plan.workloads.get(group, 0)))


def _uses(plan: Plan, name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in plan.transports) and not any(
        fnmatch.fnmatchcase(name, pattern) for pattern in plan.leave_out
    )


def _known(what: str, names: Sequence[str], there: Sequence[str]) -> None:
    if unknown := [name for name in names if name not in there]:
        raise DinnetError(f"there is no {what} named {unknown[0]!r}; there are {', '.join(sorted(there))}")
