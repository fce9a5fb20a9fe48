"""Workloads as processes: a server and a client of each, in the namespaces that they are placed in."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import select
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from dinnet.errors import DinnetError
from dinnet.testbed.models import MODELS
from dinnet.testbed.process import Child, fork, stop_all
from dinnet.testbed.scenario import WorkloadRun
from dinnet.testbed.traces import requests
from dinnet.testbed.workloads.base import LabelLog, Profile, Workload

GRACE_S: Final = 5.0  # for a client to end by itself after the run's time
KILL_S: Final = 3.0  # more, before it is killed
_READY_S: Final = 20.0  # for all servers of a run to bind
_POLL_S: Final = 0.05
_SIDES: Final = ("server", "client")


@dataclass(frozen=True)
class Place:
    """A host: its network namespace and its address there."""

    namespace: str
    address: str


@dataclass(frozen=True)
class Run:
    """One workload, ready to be started on both sides."""

    number: int
    name: str
    workload: type[Workload]
    profile: Profile
    client: Place
    server: Place

    def log(self, folder: Path, side: str) -> Path:
        return folder / f"{self.number:02}-{self.name.replace('/', '-')}.{side}.log"

    def remove_files(self, folder: Path) -> None:
        """All that it wrote in `folder`."""
        for path in (self.labels(folder), self.cut_note(folder), *(self.log(folder, side) for side in _SIDES)):
            path.unlink(missing_ok=True)

    def labels(self, folder: Path) -> Path:
        return folder / f"{self.number:02}.jsonl"

    def cut_note(self, folder: Path) -> Path:
        return folder / f"{self.number:02}.cut"


@contextlib.contextmanager
def child_processes() -> Iterator[list[Child]]:
    """Children that are ended with the block."""
    children: list[Child] = []
    try:
        yield children
    finally:
        stop_all(children)


def profile_of(
    what: str,
    number: int,
    run: WorkloadRun,
    workloads: Mapping[str, type[Workload]],
    seed: int,
    duration_s: float,
    rate_bps: int,
    traces: Path | None = None,
) -> Profile:
    """The circumstances of one of a run's workloads, which has a seed of its own.

    Raises:
        DinnetError: `what` asks for a workload or a model that there is not.
    """
    if run.name not in workloads:
        raise DinnetError(f"{what}: there is no workload named {run.name!r}")
    if run.model and run.model not in MODELS:
        raise DinnetError(f"{what}: there is no model named {run.model!r}")
    workload = workloads[run.name]
    if workload.needs_model and not run.model:
        raise DinnetError(f"{what}: workload {run.name!r} needs a model")
    own = int.from_bytes(hashlib.sha256(f"{seed}/{number}/{run.name}".encode()).digest()[:4], "big")
    return Profile(
        seed=own,
        duration_s=duration_s,
        rate_bps=rate_bps,
        model=MODELS[run.model] if run.model else None,
        requests=requests(traces, own, duration_s, run.request_rate) if workload.group != "other" else (),
        byte_budget=run.byte_budget,
    )


def start_servers(runs: list[Run], folder: Path, children: list[Child]) -> tuple[list[Child], list[int]]:
    """Start the servers' sides; returns them and the ports they bound. They are appended to `children`, too.

    Raises:
        DinnetError: One did not bind in time; its log is kept.
    """
    servers, ports = [], []
    deadline = time.monotonic() + _READY_S
    pipes = []
    try:
        for run in runs:
            reader, writer = os.pipe()
            pipes.append(reader)

            def serve(run: Run = run, writer: int = writer) -> None:
                asyncio.run(
                    run.workload(run.profile).serve(
                        run.server.address, lambda port: (os.write(writer, b"%d\n" % port), None)[1]
                    )
                )

            child = fork(f"server of {run.name}", run.server.namespace, run.log(folder, "server"), serve)
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


def start_client(run: Run, port: int, folder: Path, log: Callable[[IO[str]], LabelLog] = LabelLog) -> Child:
    """Start the client's side against the server's `port`."""
    server = (run.server.address, port)

    async def drive() -> None:
        with run.labels(folder).open("w") as out:
            try:
                async with asyncio.timeout(run.profile.duration_s + GRACE_S):
                    await run.workload(run.profile).drive(server, log(out))
            except TimeoutError:
                run.cut_note(folder).touch()

    run.labels(folder).touch()
    return fork(f"client of {run.name}", run.client.namespace, run.log(folder, "client"), lambda: asyncio.run(drive()))


def wait(clients: list[Child], servers: list[Child], timeout_s: float) -> None:
    """Wait until all clients are done, at most `timeout_s`; a failure of any process ends the wait."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        states = [child.poll() for child in clients]
        if all(state is not None for state in states) or any(state for state in states):
            return
        if any(server.poll() for server in servers):
            return
        time.sleep(_POLL_S)
