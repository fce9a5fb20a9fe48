"""Run a scenario: build its network, start its workloads in two namespaces, and record what passes between them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import select
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dinnet import __version__
from dinnet.errors import DinnetError
from dinnet.testbed.models import MODELS
from dinnet.testbed.network import Network, network, require_root
from dinnet.testbed.process import Child, fork, stop_all
from dinnet.testbed.recorder import record
from dinnet.testbed.scenario import Scenario, WorkloadRun
from dinnet.testbed.traces import requests
from dinnet.testbed.workloads.base import LabelLog, Profile, Workload

_READY_S: Final = 20.0  # for all servers of a scenario to bind
_GRACE_S: Final = 5.0  # for a client to end by itself after the scenario's time
_KILL_S: Final = 3.0  # more, before it is killed
_POLL_S: Final = 0.05


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
    runs = [_prepare(scenario, number, run, workloads, traces) for number, run in enumerate(scenario.workloads)]
    capture = folder / "capture.pcap"
    with network(scenario.link, folder, seed=scenario.seed) as net, _children() as children:
        servers, ports = _start_servers(net, runs, folder, children)
        with record(*net.tap, capture) as recorded:
            clients = [_start_client(net, run, port, folder) for run, port in zip(runs, ports, strict=True)]
            children += clients
            _wait(clients, servers, scenario.duration_s + _GRACE_S + _KILL_S)
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
        for path in (run.labels(folder), run.cut_note(folder), *(run.log(folder, side) for side in _SIDES)):
            path.unlink(missing_ok=True)
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


_SIDES: Final = ("server", "client")


@dataclass(frozen=True)
class _Run:
    """One workload, ready to be started on both sides."""

    number: int
    name: str
    workload: type[Workload]
    profile: Profile

    def log(self, folder: Path, side: str) -> Path:
        return folder / f"{self.number:02}-{self.name.replace('/', '-')}.{side}.log"

    def labels(self, folder: Path) -> Path:
        return folder / f"{self.number:02}.jsonl"

    def cut_note(self, folder: Path) -> Path:
        return folder / f"{self.number:02}.cut"


@contextlib.contextmanager
def _children() -> Iterator[list[Child]]:
    children: list[Child] = []
    try:
        yield children
    finally:
        stop_all(children)


def _prepare(
    scenario: Scenario, number: int, run: WorkloadRun, workloads: Mapping[str, type[Workload]], traces: Path | None
) -> _Run:
    if run.name not in workloads:
        raise DinnetError(f"scenario {scenario.name}: there is no workload named {run.name!r}")
    if run.model and run.model not in MODELS:
        raise DinnetError(f"scenario {scenario.name}: there is no model named {run.model!r}")
    workload = workloads[run.name]
    if workload.needs_model and not run.model:
        raise DinnetError(f"scenario {scenario.name}: workload {run.name!r} needs a model")
    seed = int.from_bytes(hashlib.sha256(f"{scenario.seed}/{number}/{run.name}".encode()).digest()[:4], "big")
    profile = Profile(
        seed=seed,
        duration_s=scenario.duration_s,
        rate_bps=int(scenario.link.rate_mbit * 1e6),
        model=MODELS[run.model] if run.model else None,
        requests=requests(traces, seed, scenario.duration_s, run.request_rate) if workload.group != "other" else (),
        byte_budget=run.byte_budget,
    )
    return _Run(number, run.name, workload, profile)


def _start_servers(
    net: Network, runs: list[_Run], folder: Path, children: list[Child]
) -> tuple[list[Child], list[int]]:
    host = net.address("server")
    servers, ports = [], []
    deadline = time.monotonic() + _READY_S
    pipes = []
    try:
        for run in runs:
            reader, writer = os.pipe()
            pipes.append(reader)

            def serve(run: _Run = run, writer: int = writer) -> None:
                asyncio.run(
                    run.workload(run.profile).serve(host, lambda port: (os.write(writer, b"%d\n" % port), None)[1])
                )

            child = fork(f"server of {run.name}", net.namespace("server"), run.log(folder, "server"), serve)
            os.close(writer)
            servers.append(child)
            children.append(child)
        for child, reader in zip(servers, pipes, strict=True):
            ready, _, _ = select.select([reader], [], [], max(0.0, deadline - time.monotonic()))
            text = os.read(reader, 16) if ready else b""
            if not text:
                child.wait(0.5)
                reason = child.last_words() or f"it did not bind within {_READY_S:.0f} s"
                raise DinnetError(f"{child.name} failed: {reason} (log: {child.log})")
            ports.append(int(text))
    finally:
        for reader in pipes:
            os.close(reader)
    return servers, ports


def _start_client(net: Network, run: _Run, port: int, folder: Path) -> Child:
    server = (net.address("server"), port)

    async def drive() -> None:
        with run.labels(folder).open("w") as out:
            try:
                async with asyncio.timeout(run.profile.duration_s + _GRACE_S):
                    await run.workload(run.profile).drive(server, LabelLog(out))
            except TimeoutError:
                run.cut_note(folder).touch()

    run.labels(folder).touch()
    return fork(
        f"client of {run.name}", net.namespace("client"), run.log(folder, "client"), lambda: asyncio.run(drive())
    )


def _wait(clients: list[Child], servers: list[Child], timeout_s: float) -> None:
    """Wait until all clients are done, at most `timeout_s`; a failure of any process ends the wait."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        states = [child.poll() for child in clients]
        if all(state is not None for state in states) or any(state for state in states):
            return
        if any(server.poll() for server in servers):
            return
        time.sleep(_POLL_S)
