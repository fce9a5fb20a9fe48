"""`dinnet evaluate`: a classifier's scores on labelled flows, and on captures without inference."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dinnet.errors import printable

if TYPE_CHECKING:
    from rich.text import Text

    from dinnet.classifier import Classifier

app = typer.Typer(add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})


class Format(StrEnum):
    """How scores are printed."""

    table = "table"
    json = "json"


@app.command()
def evaluate(
    corpus: Annotated[list[Path] | None, typer.Argument(help="Corpus files (.npz), or folders of them.")] = None,
    model: Annotated[
        Path | None,
        typer.Option("--model", "-m", file_okay=False, help="Model folder; by default the shipped one."),
    ] = None,
    other: Annotated[
        list[Path] | None,
        typer.Option("--other", help="A capture that holds no inference traffic (may be given several times)."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Score all records too, those the model was trained on among them.")
    ] = False,
    details: Annotated[bool, typer.Option("--details", help="Print a line for each transport and model.")] = False,
    output: Annotated[Format, typer.Option("--format", help="table or json.")] = Format.table,
    threads: Annotated[int, typer.Option("--threads", help="Threads for classifying.", min=1)] = 1,
) -> None:
    """Score a classifier on scenarios it has never seen.

    What the model's recipe holds out (transports, models, links, scenarios) is scored apart and together.
    """
    import numpy as np

    from dinnet.classifier import Classifier
    from dinnet.classifier import evaluate as scoring
    from dinnet.classifier.corpus import load_corpus
    from dinnet.classifier.modelfile import default_folder, read_model
    from dinnet.classifier.split import HeldOut, split
    from dinnet.errors import UsageError

    if not corpus and not other:
        raise UsageError("nothing to score: give corpus files, or --other with captures")
    folder = model or default_folder()
    classifier = Classifier(read_model(folder, everything=True), str(folder))
    parts: dict[str, Any] = {}
    if corpus:
        labelled = load_corpus(corpus)
        options = classifier.model.info.get("options", {})
        held_out = HeldOut(**{key: tuple(names) for key, names in options.get("held_out", {}).items()})
        _, masks = split(labelled, held_out)
        if everything or not any(np.any(mask) for mask in masks.values()):
            masks["everything given"] = np.ones(len(labelled), np.bool_)
        parts = scoring.evaluate(classifier, labelled, masks, threads)
    others = _other_captures(classifier, other or [], threads)
    if output is Format.json:
        typer.echo(json.dumps({"parts": parts, "other_captures": others}, indent=1))
        return
    print_parts(parts, details=details)
    _print_others(others)


def _other_captures(classifier: Classifier, files: Iterable[Path], threads: int) -> dict[str, dict[str, Any]]:
    """Flows of each capture and how many of them were taken for inference."""
    import numpy as np

    from dinnet.classifier import CLASSES
    from dinnet.flows import read_records

    result = {}
    for file in files:
        counts = np.zeros(len(CLASSES), np.int64)
        for records in read_records(file):
            counts += np.bincount(classifier.classify(records, threads)["class_id"], minlength=len(CLASSES))
        flows = int(counts.sum())
        # Text for any parser of JSON, and different for different files, whatever bytes their names hold.
        name = str(file).encode("utf-8", "backslashreplace").decode()
        result[name] = {
            "flows": flows,
            "verdicts": dict(zip(CLASSES, map(int, counts), strict=True)),
            "called_inference": float(counts[:2].sum() / flows) if flows else None,
        }
    return result


def print_parts(parts: Mapping[str, Mapping[str, Any]], *, details: bool = False) -> None:
    """Tables of several reports (see `dinnet.classifier.evaluate.report`) on standard output."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    summary = Table(
        title="Scores",
        caption="F1: macro-F1 by each flow's last record; unrej.: the same\n"
        "without the threshold; at 16: at 16 packets; all: over all records.\n"
        "False inf.: share of other flows called prefill or decode.\n"
        "ECE: expected calibration error.",
    )
    for heading in ("part", "flows", "F1", "unrej.", "at 16", "all", "false inf.", "ECE"):
        summary.add_column(heading, justify="left" if heading == "part" else "right", no_wrap=heading == "part")
    for name, scores in parts.items():
        summary.add_row(
            name,
            f"{scores['n_flows']:,}",
            _number(scores["flows"]["macro_f1"]),
            _number(scores["flows_unrejected"]["macro_f1"]),
            _number(scores["checkpoint_16"]["macro_f1"]),
            _number(scores["records"]["macro_f1"]),
            _number(scores["flows"]["other_called_inference"]),
            _number(scores["calibration"]["error"]),
        )
    if parts:
        console.print(summary)
    for name, scores in parts.items():
        console.print(_classes(name, scores["flows"]))
        console.print(_rows(f"{name}: by checkpoint", scores["by_checkpoint"]))
        if scores["outputs"]:
            rows = [{"output": key, **values} for key, values in scores["outputs"].items()]
            console.print(_rows(f"{name}: other outputs", rows))
        if details:
            for key in ("by_transport", "by_model"):
                rows = [{"name": name_ or "-", **values} for name_, values in scores[key].items()]
                rows.sort(key=lambda row: row["right"])
                console.print(_rows(f"{name}: {key.replace('_', ' ')}", rows))


def _classes(title: str, scores: Mapping[str, Any]) -> Any:
    """Precision, recall and F1 of each class, and the confusion counts on the same lines."""
    from rich.table import Table

    verdicts = list(next(iter(scores["confusion"].values())))
    table = Table(title=f"{title}: flows by truth (lines) and verdict (columns; none = unclassified)")
    for heading in ("truth", "prec.", "recall", "F1", *verdicts):
        heading = "none" if heading == "unclassified" else heading
        table.add_column(heading, justify="left" if heading == "truth" else "right", no_wrap=True)
    for group, row in scores["confusion"].items():
        own = scores["classes"].get(group, {})
        values = [_number(own.get(key)) for key in ("precision", "recall", "f1")]
        table.add_row(group, *values, *(f"{count:,}" for count in row.values()))
    return table


def _rows(title: str, rows: list[dict[str, Any]]) -> Any:
    from rich.table import Table

    table = Table(title=title)
    for number, heading in enumerate(rows[0] if rows else ()):
        table.add_column(heading.replace("_", " "), justify="right" if number else "left")
    for row in rows:
        table.add_row(*(_name(value) if isinstance(value, str) else _number(value) for value in row.values()))
    return table


def _print_others(others: Mapping[str, Mapping[str, Any]]) -> None:
    if not others:
        return
    from rich.console import Console

    rows = [
        {"capture": Path(name).name, "flows": row["flows"], "false inf.": row["called_inference"], **row["verdicts"]}
        for name, row in others.items()
    ]
    Console(highlight=False).print(_rows("Captures without inference", rows))


def _name(text: str) -> Text:
    """A name from a file, as it stands there: no markup, no control characters."""
    from rich.text import Text

    return Text(printable(text))


def _number(value: float | int | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"
