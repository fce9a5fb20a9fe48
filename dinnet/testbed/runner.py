"""Run a scenario: build its network, start its workloads in two namespaces, and record what passes between them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dinnet import __version__
from dinnet.errors import DinnetError
from dinnet.testbed.network import network, require_root
from dinnet.testbed.process import stop_all
from dinnet.testbed.recorder import record
from dinnet.testbed.scenario import Scenario
from dinnet.testbed.traffic import (
    GRACE_S,
    KILL_S,
    Place,
    Run,
    child_processes,
    profile_of,
    start_client,
    start_servers,
    wait,
)
from dinnet.testbed.workloads.base import Workload


@dataclass(frozen=True)
class Recording:
    """What a run left behind."""

    scenario: Scenario
    capture: Path
    labels: Path  # JSON lines, one a connection
    frames: int
    dropped: int  # frames that the recorder lost
    cut: tuple[str, ...]  # workloads that had to be stopped


def run_scenario(
    scenario: Scenario, folder: Path, workloads: Mapping[str, type[Workload]], traces: Path | None = None
) -> Recording:
    """Run `scenario` and keep its capture and labels in `folder`, which is made.

    Args:
        scenario: What to run.
        folder: Where `capture.pcap`, `labels.jsonl` and, where something failed, the workloads' logs go.
        workloads: The workloads there are, by name.
        traces: Folder of public request traces; None: the statistics of such traces.

    Raises:
        DinnetError: A workload failed (its log is kept), or the testbed cannot be built or recorded.
    """
    require_root("tcpdump")
    folder.mkdir(parents=True, exist_ok=True)
    rate_bps = int(scenario.link.rate_mbit * 1e6)
    what, seed, duration_s = f"scenario {scenario.name}", scenario.seed, scenario.duration_s
    profiles = [
        profile_of(what, number, run, workloads, seed, duration_s, rate_bps, traces)
        for number, run in enumerate(scenario.workloads)
    ]
    capture = folder / "capture.pcap"
    with network(scenario.link, folder, seed=scenario.seed) as net, child_processes() as children:
        client, server = (Place(net.namespace(host), net.address(host)) for host in ("client", "server"))
        runs = [
            Run(number, run.name, workloads[run.name], profile, client, server)
            for number, (run, profile) in enumerate(zip(scenario.workloads, profiles, strict=True))
        ]
        servers, ports = start_servers(runs, folder, children)
        with record(*net.tap, capture) as recorded:
            clients = [start_client(run, port, folder) for run, port in zip(runs, ports, strict=True)]
            children += clients
            wait(clients, servers, duration_s + GRACE_S + KILL_S)
            stuck = [client.name for client in clients if client.poll() is None]
            stop_all(clients)
    late = [run.name for run in runs if run.cut_note(folder).exists()]
    for child in (*servers, *clients):
        # Servers end by our SIGTERM, and so do clients that were stuck; anything else is a failure.
        if child.status is not None and child.status > 0:
            raise DinnetError(f"{child.name} failed: {child.last_words()} (log: {child.log})")
    labels = folder / "labels.jsonl"
    labels.write_text("".join(run.labels(folder).read_text() for run in runs))
    for run in runs:
        run.remove_files(folder)
    (folder / "relay.log").unlink(missing_ok=True)
    return Recording(scenario, capture, labels, recorded.frames, recorded.dropped, tuple(sorted({*late, *stuck})))


def manifest(recording: Recording) -> dict[str, Any]:
    """What the corpus file says of a recording, without its transports and models."""
    scenario = recording.scenario
    return {
        "scenario": scenario.name,
        "split": scenario.split,
        "unseen": list(scenario.unseen),
        "link": scenario.link.model_dump(),
        "recipe": scenario.model_dump(mode="json"),
        "recipe_sha256": scenario.digest(),
        "seed": scenario.seed,
        "frames": recording.frames,
        "frames_lost_by_recorder": recording.dropped,
        "workloads_cut": list(recording.cut),
        "versions": {"dinnet": __version__, "kernel": os.uname().release},
    }
