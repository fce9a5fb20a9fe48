"""Several captures at once on a Ray cluster: the same rows in the same order as on one machine."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Generator, Sequence
from itertools import islice
from typing import Any

from dinnet.errors import DinnetError
from dinnet.report.engines import Finished, classify_in_turn
from dinnet.report.pipeline import CaptureFacts, Judge, Settings, load_judge
from dinnet.report.rows import Rows


def classify_by_ray(files: Sequence[str], settings: Settings, workers: int | None) -> Generator[Rows | Finished]:
    """The same as `classify_in_turn`, each capture a Ray task.

    The cluster is the one that RAY_ADDRESS names, else one started on this machine. Every node must
    see the captures under the same paths. Rows travel through Ray's object store as they are made,
    which spills to disk; at most `workers` captures (default: as many as the cluster has CPUs) are under way.

    Raises:
        DinnetError: Ray is not installed, or a task failed.
    """
    try:
        import ray
    except ImportError as error:
        raise DinnetError("--engine ray needs Ray; install dinnet[ray]") from error
    started = not ray.is_initialized()
    if started:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
    try:
        limit = workers or max(1, _cpus(ray))
        task: Any = ray.remote(num_cpus=1, max_retries=0)(_classify_one)
        todo = iter(enumerate(files))
        running = deque(task.options(num_returns="streaming").remote(*job, settings) for job in islice(todo, limit))
        while running:
            for reference in running.popleft():
                yield ray.get(reference)
            running.extend(task.options(num_returns="streaming").remote(*job, settings) for job in islice(todo, 1))
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        raise DinnetError(f"a Ray task failed: {cause if isinstance(cause, DinnetError) else error}") from error
    except ray.exceptions.RayError as error:
        raise DinnetError(f"Ray failed: {error}") from error
    finally:
        if started:
            ray.shutdown()


def _cpus(ray: Any) -> int:
    return int(ray.cluster_resources().get("CPU", 1))


def _classify_one(index: int, name: str, settings: Settings) -> Generator[Rows | Finished]:
    judge: Judge = load_judge(settings)
    for item in classify_in_turn([name], settings, judge):
        if not isinstance(item, Finished):
            item["file"] = index
        yield item


__all__ = ["CaptureFacts", "classify_by_ray"]
