"""`dinnet controller`: check, plan, up, status, down."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dinnet.cli.streams import show, tell
from dinnet.errors import DinnetError, printable

if TYPE_CHECKING:
    from dinnet.controller.intent import Intent
    from dinnet.controller.plan import NetworkPlan

app = typer.Typer(no_args_is_help=True, add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})

EXIT_CHANGES: Final = 2  # with --detailed-exitcode, as terraform has it
_COLOURS: Final = {"+": typer.colors.GREEN, "~": typer.colors.YELLOW, "-": typer.colors.RED}
_Config = Annotated[Path, typer.Option("--config", "-c", dir_okay=False, metavar="FILE", help="The intent (YAML).")]
_State = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Keep the last good intent here, for a start when the file is bad."),
]


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"


class Log(StrEnum):
    TEXT = "text"
    JSON = "json"


_Format = Annotated[Format, typer.Option("--format", "-f", help="For people, or for programs.")]


@app.callback()
def _controller() -> None:
    """Keep switches and hosts as an intent file wants them."""


@app.command()
def check(config: _Config) -> None:
    """Check an intent file; nothing is touched, and no device asked."""
    intent = _load(config)
    show(
        f"{config}: good: {len(intent.switches)} switches, {len(intent.hosts)} hosts, {len(intent.links)} links, "
        f"{len(intent.slices)} slices"
    )


@app.command()
def schema() -> None:
    """Print the JSON Schema of intent files, for editors."""
    from dinnet.controller.intent import Intent

    typer.echo(json.dumps(Intent.model_json_schema(), indent=1))


@app.command()
def plan(
    config: _Config,
    output: _Format = Format.TABLE,
    detailed_exitcode: Annotated[
        bool, typer.Option("--detailed-exitcode", help="Exit with 2 where something is to change.")
    ] = False,
) -> None:
    """Show what `up` would change, over the whole network. Nothing is changed."""
    from dinnet.controller.plan import plan as compare

    found = asyncio.run(compare(_load(config)))
    _show_plan(found, output, "to change")
    if found.failed:
        raise typer.Exit(1)
    if detailed_exitcode and not found.is_empty:
        raise typer.Exit(EXIT_CHANGES)


@app.command()
def up(
    config: _Config,
    state: _State = None,
    log: Annotated[Log, typer.Option(help="Lines for people, or JSON.")] = Log.TEXT,
) -> None:
    """Keep the network as the intent wants it, until Ctrl-C. All stays in force at the end.

    A changed file, or SIGHUP, brings the new intent into force; a bad one is told, and the one before stays.
    """
    from dinnet.controller.logs import set_up
    from dinnet.controller.saved import load_or_last

    _need_controller()
    intent, problem = load_or_last(config, state)
    set_up(log is Log.JSON)
    if problem:
        tell(f"dinnet: warning: {problem}; the last good intent is taken instead")
    asyncio.run(_run(config, intent, state, problem))
    tell("dinnet: the controller has ended; all stays in force (dinnet controller down takes it away)")


async def _run(config: Path, intent: Intent, state: Path | None, problem: str) -> None:
    from dinnet.controller.service import Service

    service = Service(config, intent, state, problem)
    ready = asyncio.Event()
    task = asyncio.create_task(service.run(ready))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if ready.is_set():
        scrape = f", metrics on http://{service.scrape}/metrics" if service.scrape else ""
        tell(f"dinnet: the controller is up; API on {service.api}{scrape}; Ctrl-C ends it")
    await task


@app.command()
def status(config: _Config, output: _Format = Format.TABLE) -> None:
    """Show what a running controller knows: switches, hosts, slices, micro-flows, last changes, errors."""
    from dinnet.controller.web import asked

    found = asyncio.run(asked(_load(config).controller.api, "/v1/status"))
    if output is Format.JSON:
        typer.echo(json.dumps(found, indent=1))
    else:
        _print_status(found)


@app.command()
def down(config: _Config, output: _Format = Format.TABLE) -> None:
    """Take away what dinnet made: entries and marks in switches, queues and routes on hosts."""
    from dinnet.controller.plan import remove
    from dinnet.controller.web import asked

    intent = _load(config)
    try:
        asyncio.run(asked(intent.controller.api, "/v1/status"))
    except DinnetError:
        pass
    else:
        raise DinnetError(f"{intent.controller.api}: a controller is running and would bring all back; stop it first")
    found = asyncio.run(remove(intent))
    _show_plan(found, output, "changed")
    if found.failed:
        raise typer.Exit(1)


def _need_controller() -> None:
    """Raise DinnetError where the extra is not installed."""
    try:
        import finsy  # noqa: F401
        import prometheus_client  # noqa: F401
    except ImportError as error:
        raise DinnetError(
            f"the controller needs {error.name}, which is not installed: pip install 'dinnet[controller]'"
        ) from None


def _load(config: Path) -> Intent:
    from dinnet.controller.intent import load_intent

    return load_intent(config)


def _show_plan(found: NetworkPlan, output: Format, what: str) -> None:
    if output is Format.JSON:
        typer.echo(json.dumps({"devices": [asdict(device) for device in found.devices]}, indent=1))
    else:
        for device in found.devices:
            if device.changes or device.problems:
                show(f"{device.kind} {device.name}")
            for line in device.changes:
                typer.secho(f"  {printable(line)}", fg=_COLOURS.get(line[:1]))
            for problem in device.problems:
                show(f"  ! {problem}")
        count = sum(len(device.changes) for device in found.devices)
        show(f"{count} {what}" if count else f"nothing {what}")
    for device in found.devices:
        if device.error:
            tell(f"dinnet: error: {device.kind} {device.name}: {device.error}")


def _print_status(found: dict[str, Any]) -> None:
    from rich.console import Console

    from dinnet.controller.view import picture

    Console(highlight=False).print(picture(found))
