"""`dinnet demo`: record, classify, hold the classes against what was sent, and show what slices do with them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Final

import typer

from dinnet.cli.streams import show
from dinnet.errors import DinnetError, reason

app = typer.Typer(add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})

#: A capture of the same scenario, recorded before, for machines where none can be recorded.
_REPOSITORY: Final = Path(__file__).resolve().parents[2]
_SAMPLE: Final = _REPOSITORY / "examples"
_TWO_SITES: Final = _REPOSITORY / "testbeds" / "pd_two_site.yaml"


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", file_okay=False, help="Folder for all that it makes.")] = Path(
        "out/demo"
    ),
    sample: Annotated[bool, typer.Option("--sample", help="Use the recorded sample instead of recording.")] = False,
) -> None:
    """Record a short labelled capture between network namespaces, classify it, and score the classes.

    Then run two sites with switches and a controller, their traffic in one queue and in slices, side by side. Without
    root, or on a kernel that lacks what the testbed needs, the recorded sample is classified and the rest is skipped.
    """
    from dinnet.cli import classify, testbed

    out.mkdir(parents=True, exist_ok=True)
    capture, labels = out / "demo.pcap", out / "demo.labels.jsonl"
    if not sample:
        try:
            testbed.demo(out)
        except DinnetError as error:
            show(f"skipped: recording a capture here ({error})")
            sample = True
    if sample:
        capture = _take_sample(out)
        labels = out / "sample.labels.jsonl"
        show(f"classifying the recorded sample {capture}")
    report = out / "report.html"
    classify.pcap([str(capture)], summary=True, top=25, html=report)
    show()
    _print_score(capture, labels)
    show(f"report with plots: {report}")
    if not sample:
        show()
        _run_two_sites(out / "two-sites")


def _run_two_sites(out: Path) -> None:
    from dinnet.cli import testbed

    try:
        if not _TWO_SITES.is_file():
            raise DinnetError(f"no {_TWO_SITES}: run it in a clone")
        testbed.run(_TWO_SITES, out)
    except DinnetError as error:
        show(f"skipped: two sites with switches and a controller ({error})")


def _take_sample(out: Path) -> Path:
    for name in ("sample.pcap.zst", "sample.labels.jsonl"):
        if not (_SAMPLE / name).is_file():
            raise DinnetError(f"no recorded sample here ({_SAMPLE / name}): run it in a clone")
        try:
            shutil.copyfile(_SAMPLE / name, out / name)
        except OSError as error:
            (out / name).unlink(missing_ok=True)
            raise DinnetError(f"{out / name}: cannot be written: {reason(error)}") from error
    return out / "sample.pcap.zst"


def _print_score(capture: Path, labels: Path) -> None:
    """Print what became of each kind of traffic, a row for each kind, a flow counted once."""
    from rich.console import Console
    from rich.table import Table

    from dinnet.classifier import CLASSES, Classifier
    from dinnet.classifier.corpus import GROUPS
    from dinnet.classifier.evaluate import N_CLASSES, count
    from dinnet.flows import read_records
    from dinnet.testbed.labels import join, read_labels

    joined = join(read_records(capture), read_labels(labels), {})
    labelled = joined.labelled
    scores = count(labelled.group, Classifier.load().classify(labelled.records)["class_id"])
    table = Table(title=f"classes against the senders' labels, {len(labelled)} flows", pad_edge=False, padding=0)
    table.add_column("sent as", no_wrap=True)
    for name in (*CLASSES[:N_CLASSES], "none"):
        table.add_column(name, justify="right")
    for name in ("prec.", "recall", "F1"):
        table.add_column(name, justify="right")
    for row, group in enumerate(GROUPS):
        figures = ["", "", ""]
        if row < N_CLASSES:
            figures = [f"{values[row]:.3f}" for values in (scores.precision, scores.recall, scores.f1)]
        cells = [f"[bold]{n}[/]" if n else "." for n in scores.confusion[row]]
        table.add_row(group if row < N_CLASSES else "not inference", *cells, *figures)
    console = Console()
    console.print(table)
    console.print(f"macro-F1 over the four classes: {scores.macro_f1:.3f}", highlight=False)
