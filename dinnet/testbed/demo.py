"""The built-in scenario of `dinnet testbed demo`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dinnet.testbed.network import Link
from dinnet.testbed.scenario import Scenario, WorkloadRun
from dinnet.testbed.workloads.base import Group

_PER_GROUP: Final[dict[Group, int]] = {"prefill": 3, "decode": 3, "control": 3, "data": 2, "other": 4}
_BUDGET_BYTES: Final = 6_000_000


def demo_scenario(groups: Mapping[str, Group], seed: int = 7, duration_s: float = 8.0) -> Scenario:
    """A few workloads of each group, spread over the catalogue, on one moderate link.

    Args:
        groups: The workloads there are: name -> group.
        seed: Of everything random in the traffic.
        duration_s: For how long new work is started.
    """
    names: list[str] = []
    for group, count in _PER_GROUP.items():
        there = sorted(name for name in groups if groups[name] == group)
        step = max(1, len(there) // count)
        names += there[::step][:count]
    return Scenario(
        name="demo",
        seed=seed,
        duration_s=duration_s,
        link=Link(name="demo", rate_mbit=300, delay_ms=1.0),
        workloads=tuple(
            WorkloadRun(
                name=name,
                model="" if groups[name] == "other" else "llama-3.1-8b",
                byte_budget=_BUDGET_BYTES,
                request_rate=3.0,
            )
            for name in names
        ),
    )
