"""`dinnet features`: what the classifier looks at."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from dinnet.cli.streams import show

app = typer.Typer(no_args_is_help=True, add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})


class Format(StrEnum):
    """How features are printed."""

    table = "table"
    json = "json"
    markdown = "markdown"


@app.callback()
def _features() -> None:
    """Explain the features that the classifier looks at."""


@app.command()
def explain(
    name: Annotated[str | None, typer.Argument(help="One feature; by default all.")] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            "--model", "-m", file_okay=False, help="Model whose importances are shown; by default the shipped one."
        ),
    ] = None,
    output: Annotated[Format, typer.Option("--format", help="table, json or markdown.")] = Format.table,
) -> None:
    """Print each feature's unit, formula and the record fields it is computed from."""
    from dinnet.errors import UsageError
    from dinnet.flows.features import FEATURES

    importance = _importance(model)
    chosen = [feature for feature in FEATURES if name in (None, feature.name)]
    if not chosen:
        raise UsageError(f"no feature is named {name!r}; `dinnet features explain` lists all")
    rows: list[dict[str, Any]] = [
        {
            "name": feature.name,
            "unit": feature.unit,
            "formula": feature.formula,
            "fields": list(feature.fields),
            "importance": importance.get(feature.name),
        }
        for feature in chosen
    ]
    if output is Format.json:
        typer.echo(json.dumps(rows, indent=1))
    elif output is Format.markdown:
        show("| feature | unit | formula | fields | importance |")
        show("|---|---|---|---|---|")
        for row in rows:
            cells = [f"`{row['name']}`", row["unit"], row["formula"], ", ".join(row["fields"]), _share(row)]
            show(f"| {' | '.join(cells)} |")
    else:
        _print_table(rows)


def _importance(model: Path | None) -> dict[str, float]:
    """Importance by feature name; empty where there is no shipped model."""
    from dinnet.classifier.modelfile import default_folder, read_model

    if model is None and not (default_folder() / "model.json").exists():
        return {}
    return read_model(model or default_folder()).importance


def _share(row: dict[str, Any]) -> str:
    return "-" if row["importance"] is None else f"{row['importance']:.2%}"


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    if len(rows) == 1:
        (row,) = rows
        console.print(f"[bold]{row['name']}[/bold] ({row['unit']})")
        console.print(f"  {row['formula']}")
        console.print(f"  from: {', '.join(row['fields'])}")
        console.print(f"  importance in the model: {_share(row)}")
        return
    table = Table(title=f"{len(rows)} features")
    for heading in ("feature", "unit", "formula", "importance"):
        table.add_column(heading, justify="right" if heading == "importance" else "left")
    for row in rows:
        table.add_row(row["name"], row["unit"], row["formula"], _share(row))
    console.print(table)
