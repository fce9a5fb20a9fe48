"""The same traffic over a testbed twice: one queue for everything, and slices with classes and marks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dinnet.errors import DinnetError
from dinnet.netns import inside
from dinnet.testbed.measured import MEASURED, MeasureLog
from dinnet.testbed.process import Child, start_dinnet, stop_all
from dinnet.testbed.topology import Topology, intent_of, interface_to
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
from dinnet.testbed.wiring import Wired, one_queue, wired
from dinnet.testbed.workloads import catalogue
from dinnet.testbed.workloads.base import Profile, Workload

_READY_S: Final = 60.0  # for a switch or the controller to be in force
_POLL_S: Final = 0.1
_TABLES: Final = {"microflows": 4096, "flows": 4096}
UNMARKED: Final = "none"


@dataclass(frozen=True)
class Round:
    """What one run of the traffic gave."""

    slices: bool
    measures: Mapping[str, NDArray[np.float64]]  # name -> seconds
    carried_bps: Mapping[str, float]  # "west-to-east" -> mean rate while the traffic ran
    classes: Mapping[tuple[str, str], int]  # (group that the sender names, class of the mark) -> flows
    queues: tuple[dict[str, Any], ...]  # the controller's word on each queue
    cut: tuple[str, ...]  # workloads that had to be stopped
    problems: tuple[str, ...]

    def quantile_ms(self, name: str, share: float) -> float | None:
        """Milliseconds that `share` of a measure's values stay below; None: there are none."""
        values = self.measures.get(name)
        return None if values is None or not len(values) else float(np.quantile(values, share)) * 1_000


def run_round(topology: Topology, folder: Path, *, slices: bool, tell: Callable[[str], None] = lambda _: None) -> Round:
    """Build the testbed, bring switches and the controller into force, run the traffic, take all of it down.

    Args:
        topology: With traffic.
        folder: For logs; made. What failed keeps its log there.
        slices: Slice queues and marks; otherwise one first-in first-out queue a link, at the same rates.
        tell: Is called with what is being done.

    Raises:
        DinnetError: It cannot be built here, or a part of it failed; says which, and where its log is.
    """
    folder.mkdir(parents=True, exist_ok=True)
    workloads = {**catalogue(), **MEASURED}
    slowest_bps = int(min(link.rate_mbit for link in topology.links) * 1e6)
    profiles = [
        profile_of(f"testbed {topology.name}", number, each, workloads, topology.seed, topology.duration_s, slowest_bps)
        for number, each in enumerate(topology.traffic)
    ]
    with running(topology, folder, slices=slices, tell=tell) as network:
        tell(f"{len(topology.traffic)} workloads for {topology.duration_s:g} s ...")
        before, start = network.sent_bytes(), time.monotonic()
        runs, cut = _run_traffic(network.built, profiles, workloads, folder)
        after, elapsed_s = network.sent_bytes(), time.monotonic() - start
        status = network.status()
    lines = [json.loads(line) for run in runs for line in run.labels(folder).read_text().splitlines()]
    for run in runs:
        run.remove_files(folder)
    return Round(
        slices,
        _measures(lines),
        {name: (after[name] - before[name]) * 8 / elapsed_s for name in before},
        _classes(lines, status["marks"]),
        tuple(status["queues"]),
        tuple(cut),
        tuple(f"{each['name']}: {each['error']}" for each in status["devices"] if each["error"]),
    )


@dataclass
class Running:
    """A testbed with its switches and its controller in force."""

    built: Wired
    api: str

    def status(self) -> dict[str, Any]:
        """What the controller tells."""
        from dinnet.controller.web import asked

        found: dict[str, Any] = asyncio.run(asked(self.api, "/v1/status"))
        return found

    def sent_bytes(self) -> dict[str, int]:
        """Bytes that each switch has sent to each other switch."""
        from pyroute2 import IPRoute

        topology, found = self.built.topology, {}
        for here in topology.switches:
            for there in topology.neighbours(here):
                if there in topology.switches:
                    with inside(self.built.namespace(here)), IPRoute() as ip:
                        (device,) = ip.link("get", ifname=interface_to(there))
                    found[f"{here}-to-{there}"] = int(device.get_attr("IFLA_STATS64")["tx_bytes"])
        return found


@contextlib.contextmanager
def running(
    topology: Topology, folder: Path, *, slices: bool, tell: Callable[[str], None] = lambda _: None
) -> Iterator[Running]:
    """A testbed that forwards, until the block ends.

    Raises:
        DinnetError: It cannot be built here, or a part of it does not come into force.
    """
    # A socket's path may have 107 characters: it cannot be in any folder of the user's.
    with tempfile.TemporaryDirectory(prefix="dinnet-") as place, contextlib.ExitStack() as stack:
        tell(f"building {len(topology.hosts)} hosts, {len(topology.switches)} switches, {len(topology.links)} links")
        built = stack.enter_context(wired(topology, folder))
        children: list[Child] = []
        stack.callback(lambda: stop_all(children))
        if not slices:
            stack.enter_context(one_queue(built))
        for name in topology.switches:
            children.append(_start_switch(built, name, place))
        for name, child in zip(topology.switches, children, strict=True):
            _await(child, lambda name=name: Path(place, f"{name}.p4rt").exists())  # type: ignore[misc]
        intent = intent_of(topology, place, built.namespaces, slices=slices, classifier=slices)
        config = folder / "intent.yaml"
        config.write_text(json.dumps(intent, indent=1))
        controller = start_dinnet("controller", folder / "controller.log", "controller", "up", "-c", str(config))
        children.append(controller)
        network = Running(built, intent["controller"]["api"])
        tell("waiting for the controller to have everything in force ...")
        _await(controller, lambda: _in_force(network))
        yield network


def _start_switch(built: Wired, name: str, place: str) -> Child:
    config = {
        "name": name,
        "netns": built.namespace(name),
        "ports": {port: interface_to(node) for port, node in built.topology.ports(name).items()},
        "p4runtime": {"listen": f"unix:{place}/{name}.p4rt"},
        "tables": _TABLES,
    }
    import yaml

    path = Path(place, f"{name}.yaml")
    path.write_text(yaml.safe_dump(config))
    return start_dinnet(f"switch {name}", built.folder / f"{name}.log", "switch", "up", "-c", str(path))


def _await(child: Child, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _READY_S
    while not holds():
        if child.poll() is not None or time.monotonic() > deadline:
            raise DinnetError(f"{child.name} is not in force: {child.last_words()} (log: {child.log})")
        time.sleep(_POLL_S)


def _in_force(network: Running) -> bool:
    try:
        devices = network.status()["devices"]
    except DinnetError:
        return False
    return all(each["in_force"] for each in devices)


def _run_traffic(
    built: Wired, profiles: list[Profile], workloads: Mapping[str, type[Workload]], folder: Path
) -> tuple[list[Run], list[str]]:
    """Run all workloads to their ends; returns them, and the names of those that had to be stopped."""
    topology = built.topology
    places = {host: Place(built.namespace(host), topology.station(host).v4) for host in topology.hosts}
    runs = [
        Run(number, each.name, workloads[each.name], profile, places[each.client], places[each.server])
        for number, (each, profile) in enumerate(zip(topology.traffic, profiles, strict=True))
    ]
    with child_processes() as children:
        servers, ports = start_servers(runs, folder, children)
        clients = [start_client(run, port, folder, MeasureLog) for run, port in zip(runs, ports, strict=True)]
        children += clients
        wait(clients, servers, topology.duration_s + GRACE_S + KILL_S)
        cut = [run.name for run, client in zip(runs, clients, strict=True) if client.poll() is None]
        stop_all(clients)
    for child in (*servers, *clients):
        if child.status is not None and child.status > 0:
            raise DinnetError(f"{child.name} failed: {child.last_words()} (log: {child.log})")
    return runs, cut + [run.name for run in runs if run.cut_note(folder).exists()]


def _measures(lines: list[dict[str, Any]]) -> dict[str, NDArray[np.float64]]:
    found: dict[str, list[float]] = {}
    for line in lines:
        if "measure" in line:
            found.setdefault(line["measure"], []).append(line["seconds"])
    return {name: np.array(values) for name, values in found.items()}


def _classes(lines: list[dict[str, Any]], marks: list[dict[str, Any]]) -> dict[tuple[str, str], int]:
    by_ends: dict[frozenset[tuple[str, int]], str] = {}
    for mark in marks:
        by_ends[frozenset(((mark["src"], mark["sport"]), (mark["dst"], mark["dport"])))] = mark["class"]
    found: Counter[tuple[str, str]] = Counter()
    for line in lines:
        if "measure" not in line:
            ends = frozenset(((line["src"], line["sport"]), (line["dst"], line["dport"])))
            found[line["group"], by_ends.get(ends, UNMARKED)] += 1
    return dict(found)


def summary(topology: Topology, rounds: list[Round]) -> dict[str, Any]:
    """The figures of an experiment, for programs."""
    return {
        "testbed": topology.name,
        "kernel": os.uname().release,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "rounds": [
            {
                "slices": each.slices,
                "measures_ms": {
                    name: {
                        "count": len(values),
                        **{f"p{share:g}": float(np.percentile(values, share)) * 1_000 for share in (50, 95, 99)},
                        "max": float(values.max()) * 1_000,
                    }
                    for name, values in each.measures.items()
                },
                "carried_bps": dict(each.carried_bps),
                "classes": [{"sent_as": a, "marked": b, "flows": n} for (a, b), n in sorted(each.classes.items())],
                "queues": list(each.queues),
                "cut": list(each.cut),
                "problems": list(each.problems),
            }
            for each in rounds
        ],
    }
