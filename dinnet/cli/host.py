"""`dinnet host`: slices and queues on a host's links."""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dinnet.cli.streams import show, tell
from dinnet.errors import DinnetError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dinnet.host.state import Plan, Problem

app = typer.Typer(no_args_is_help=True, add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})

_Config = Annotated[
    Path, typer.Option("--config", "-c", dir_okay=False, metavar="FILE", help="The host's description (YAML).")
]
_Netns = Annotated[
    str | None, typer.Option(metavar="NAME", help="Network namespace of the host, a name as in `ip netns`.")
]
_SIGNS = {"add": "+", "change": "~", "delete": "-"}


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"


@app.callback()
def _host() -> None:
    """Give a host's links slices and queues, and look at them."""


@app.command()
def plan(config: _Config, netns: _Netns = None) -> None:
    """Show what would change; nothing is changed."""
    from dinnet.host.config import load_config
    from dinnet.host.driver import Host

    state = load_config(config)
    with Host(netns) as host:
        found = host.plan(state)
    _print(found)
    _complain(found.problems)


@app.command()
def apply(config: _Config, netns: _Netns = None) -> None:
    """Make the changes that `plan` shows. Queues that do not change keep their packets."""
    from dinnet.host.config import load_config
    from dinnet.host.driver import Host

    state = load_config(config)
    with Host(netns) as host:
        found = host.plan(state)
        host.apply(found)
    _print(found)
    _complain(found.problems)


@app.command("show")
def show_queues(
    netns: _Netns = None,
    output: Annotated[Format, typer.Option("--format", "-f", help="For people, or for programs.")] = Format.TABLE,
) -> None:
    """Show dinnet's queues: what they sent, dropped and hold."""
    from dinnet.host.driver import Host

    with Host(netns) as host:
        rows = [asdict(each) for each in host.counters()]
    if output is Format.JSON:
        typer.echo(json.dumps(rows, indent=1))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("device", "slice", "tc", "packets", "bytes", "drops", "backlog", "borrowed", "overlimits"):
        table.add_column(name, justify="left" if name == "device" else "right")
    for row in rows:
        backlog = f"{row['backlog_packets']}p {row['backlog_bytes']}b"
        names = ("device", "slice", "tc", "packets", "bytes", "drops")
        table.add_row(*(str(row[name]) for name in names), backlog, str(row["borrowed"]), str(row["overlimits"]))
    Console(highlight=False).print(table)


@app.command()
def clear(netns: _Netns = None) -> None:
    """Take away all that dinnet made on the host, and nothing else."""
    from dinnet.host.driver import Host
    from dinnet.host.state import HostState

    with Host(netns) as host:
        found = host.plan(HostState())
        host.apply(found)
    _print(found)
    _complain(found.problems)


def _print(found: Plan) -> None:
    for change in found.changes:
        show(f"{_SIGNS[change.action]} {change.where}: {change.what}")
        if change.action == "change":
            show(f"  {' ' * len(change.where)}  was {change.before}")
    if found.is_empty:
        show("nothing to change")


def _complain(problems: Iterable[Problem]) -> None:
    """All but the last problem; the last is the error that the command ends with."""
    found = list(problems)
    for problem in found[:-1]:
        tell(f"dinnet: error: {problem}")
    if found:
        raise DinnetError(str(found[-1]))
