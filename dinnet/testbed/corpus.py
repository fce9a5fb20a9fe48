"""Record scenarios one after another into corpus files."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dinnet.classifier.corpus import LabelledRecords
from dinnet.errors import DinnetError
from dinnet.flows import FlowOptions, read_records
from dinnet.parts import new_folder, remove_abandoned
from dinnet.testbed.labels import Joined, join, read_labels
from dinnet.testbed.runner import Recording, manifest, run_scenario
from dinnet.testbed.scenario import Scenario
from dinnet.testbed.workloads.base import Workload

_FAILED: Final = "failed"  # folder of what failed scenarios left behind
_WORKING: Final = "recording"  # what working folders are for
_LABELS: Final = ".labels.jsonl"  # of the files that are kept of a scenario beside its .pcap
_MANIFEST: Final = ".json"


@dataclass(frozen=True)
class Progress:
    """How one scenario of a corpus went."""

    scenario: Scenario
    number: int  # from 1
    of: int
    elapsed_s: float  # of this scenario; 0 where it was there already
    joined: Joined | None = None  # None where the file was there already, or the scenario failed
    recording: Recording | None = None
    error: DinnetError | None = None


def corpus_file(out: Path, scenario: Scenario) -> Path:
    """Where a scenario's records go: training and held-out scenarios lie in folders of their own."""
    return out / scenario.split / f"{scenario.name}.npz"


def complete(path: Path, scenario: Scenario) -> bool:
    """Whether `path` holds a whole recording of just this scenario."""
    if not path.is_file():
        return False
    try:
        return bool(LabelledRecords.load(path).manifest.get("recipe_sha256") == scenario.digest())
    except DinnetError:
        return False


def label_capture(capture: Path, labels: Path, about: dict[str, Any]) -> Joined:
    """The labelled records of a capture; `about` is the manifest, without its transports and models.

    Raises:
        DinnetError: The capture or the labels cannot be read, or none of its flows has a label.
    """
    records = (part.copy() for part in read_records(capture, options=FlowOptions(emit="all")))
    joined = join(records, read_labels(labels), about)
    if not len(joined.labelled):
        raise DinnetError(f"{capture}: none of its {joined.flows} flows has a label")
    joined.labelled.manifest["unlabelled_flows"] = joined.unlabelled_flows
    return joined


def relabel(captures: Path, out: Path) -> Iterator[tuple[Path, Joined]]:
    """Make the corpus files again from captures that `record_corpus` kept: for a new layout of the flow record.

    Raises:
        DinnetError: No captures there, or one without its labels or manifest.
    """
    found = sorted(captures.glob("*.pcap"))
    if not found:
        raise DinnetError(f"{captures}: no kept captures (*.pcap) in this folder")
    for capture in found:
        about_file = capture.with_suffix(_MANIFEST)
        try:
            about = json.loads(about_file.read_text())
            target = out / str(about["split"]) / f"{about['scenario']}.npz"
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DinnetError(f"{about_file}: not the manifest of a kept capture: {error}") from error
        joined = label_capture(capture, capture.with_suffix(_LABELS), about)
        target.parent.mkdir(parents=True, exist_ok=True)
        joined.labelled.save(target)
        yield target, joined


def record_corpus(
    scenarios: Sequence[Scenario],
    out: Path,
    workloads: Mapping[str, type[Workload]],
    *,
    traces: Path | None = None,
    keep_captures: bool = False,
) -> Iterator[Progress]:
    """Record each scenario that is not there yet, and tell how it went.

    A scenario that fails is told as such, its logs are kept under `out`/failed, and the next one is recorded;
    another call records what is missing.
    """
    remove_abandoned(out / _WORKING)
    for number, scenario in enumerate(scenarios, start=1):
        target = corpus_file(out, scenario)
        if complete(target, scenario):
            yield Progress(scenario, number, len(scenarios), 0.0)
            continue
        started = time.monotonic()
        joined, recording, error = None, None, None
        try:
            recording, joined = _record_one(scenario, out, workloads, traces, keep_captures)
        except DinnetError as failure:
            error = failure
        else:
            shutil.rmtree(out / _FAILED / scenario.name, ignore_errors=True)
        yield Progress(scenario, number, len(scenarios), time.monotonic() - started, joined, recording, error)


def _record_one(
    scenario: Scenario, out: Path, workloads: Mapping[str, type[Workload]], traces: Path | None, keep_captures: bool
) -> tuple[Recording, Joined]:
    target = corpus_file(out, scenario)
    target.parent.mkdir(parents=True, exist_ok=True)
    # A folder of this run's own: two recorders may fill one corpus.
    with new_folder(out / _WORKING) as work:
        folder = work / scenario.name
        try:
            recording = run_scenario(scenario, folder, workloads, traces)
            joined = label_capture(recording.capture, recording.labels, manifest(recording))
            joined.labelled.save(target)
            if keep_captures:
                _keep(recording, out / "captures")
        except DinnetError as error:
            kept = out / _FAILED / scenario.name
            _set_aside(folder, kept)
            raise DinnetError(str(error).replace(str(folder), str(kept))) from error  # what it names lies there now
        return recording, joined


def _keep(recording: Recording, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    capture = folder / f"{recording.scenario.name}.pcap"
    about = json.dumps(manifest(recording), indent=1)
    shutil.move(recording.capture, capture)
    shutil.move(recording.labels, capture.with_suffix(_LABELS))
    capture.with_suffix(_MANIFEST).write_text(about + "\n")


def _set_aside(folder: Path, target: Path) -> None:
    if folder.is_dir():
        shutil.rmtree(target, ignore_errors=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(folder, target)
