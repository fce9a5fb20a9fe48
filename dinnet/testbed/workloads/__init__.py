"""The testbed's traffic: one class a way of carrying one kind of it."""

from __future__ import annotations

from dinnet.testbed.workloads.base import Workload


def inference() -> tuple[type[Workload], ...]:
    """The workloads of the four inference classes."""
    from dinnet.testbed.workloads.control import CONTROL
    from dinnet.testbed.workloads.data import DATA
    from dinnet.testbed.workloads.kv import KV
    from dinnet.testbed.workloads.prompts import PROMPTS
    from dinnet.testbed.workloads.stages import STAGES
    from dinnet.testbed.workloads.tokens import TOKENS
    from dinnet.testbed.workloads.variants import VARIANTS

    return (*PROMPTS, *KV, *STAGES, *TOKENS, *CONTROL, *DATA, *VARIANTS)


def catalogue() -> dict[str, type[Workload]]:
    """All workloads by name, those of the background included."""
    from dinnet.testbed.workloads.background import BACKGROUND

    return {workload.name: workload for workload in (*inference(), *BACKGROUND)}
