"""`dinnet macsec`: encrypted links of this host, and what their ends must tell each other."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dinnet.cli.streams import show, tell
from dinnet.errors import DinnetError, reason

if TYPE_CHECKING:
    from dinnet.host.macsec import MacsecEnd
    from dinnet.host.state import Plan

app = typer.Typer(no_args_is_help=True, add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})

_Config = Annotated[
    Path, typer.Option("--config", "-c", dir_okay=False, metavar="FILE", help="This host's links (YAML).")
]
_Peer = Annotated[
    Path | None,
    typer.Option("--peer", metavar="FILE", help="What `dinnet macsec announce` printed at the other end; - for stdin."),
]
_Link = Annotated[str | None, typer.Option("--link", metavar="NAME", help="This link only.")]
_MOST_ANNOUNCED_BYTES: Final = 1 << 20


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"


@app.callback()
def _macsec() -> None:
    """Encrypt links with MACsec: keys from a shared secret, rotated without losing a packet."""


@app.command()
def status(
    config: _Config,
    link: _Link = None,
    output: Annotated[Format, typer.Option("--format", "-f", help="For people, or for programs.")] = Format.TABLE,
) -> None:
    """Show each link's key number, packet number and counters."""
    rows = [(end, end.status()) for end in _ends(config, link)]
    if output is Format.JSON:
        typer.echo(json.dumps([{"link": end.link.name, **_plain(asdict(found))} for end, found in rows], indent=1))
        return
    for end, found in rows:
        counters = found.counters
        if counters is None:
            show(f"{end.link.name}: {end.link.device} is not there")
            continue
        number = found.number if found.number >= 0 else "none"
        show(
            f"{end.link.name}: {end.link.device} {end.link.cipher}, key {number}, "
            f"next packet {found.next_packet}, the peer's keys up to {found.ready}"
        )
        show("  " + ", ".join(f"{name} {value}" for name, value in asdict(counters).items()))
        if found.waiting:
            show(f"  waits: {found.waiting}")


@app.command()
def plan(config: _Config, link: _Link = None, peer: _Peer = None) -> None:
    """Show what apply would change."""
    announcements = _announcements(peer)
    for end in _ends(config, link):
        _tell_plan(end, end.plan(announcements.get(end.link.name)), "would be")


@app.command()
def apply(config: _Config, link: _Link = None, peer: _Peer = None) -> None:
    """Make the links as they should be, and take in what the other ends announced."""
    _applied(config, link, peer, rotate=False)


@app.command()
def rotate(config: _Config, link: _Link = None, peer: _Peer = None) -> None:
    """Take the next key into use. The other end has it ready; packets under way are not lost."""
    _applied(config, link, peer, rotate=True)


@app.command()
def announce(config: _Config, link: _Link = None) -> None:
    """Print what the other ends must be told, a line a link: sealed, not secret. For their `apply --peer`."""
    for end in _ends(config, link):
        if line := end.announcement():
            typer.echo(line)


@app.command()
def remove(config: _Config, link: _Link = None) -> None:
    """Take the links away. Traffic that used them stops; it never goes on in clear by itself."""
    for end in _ends(config, link):
        show(f"{end.link.name}: {'removed' if end.remove() else 'nothing of dinnet was there'}")


def _applied(config: Path, link: str | None, peer: Path | None, *, rotate: bool) -> None:
    announcements = _announcements(peer)
    waiting = False
    for end in _ends(config, link):
        made = end.apply(announcements.get(end.link.name), rotate=rotate)
        _tell_plan(end, made, "done")
        # Waiting for the other end is the way of a first apply, and no failure.
        waiting |= any(rotate or "announcement" not in problem.advice for problem in made.problems)
    if waiting:
        raise typer.Exit(1)


def _tell_plan(end: MacsecEnd, plan: Plan, done: str) -> None:
    for change in plan.changes:
        before = f" (was: {change.before})" if change.before else ""
        show(f"{end.link.name}: {change.action} {change.kind} {change.where} {change.what}{before}: {done}")
    for problem in plan.problems:
        tell(f"dinnet: {problem}")
    if plan.is_empty and not plan.problems:
        show(f"{end.link.name}: nothing to change")


def _ends(path: Path, only: str | None) -> Iterator[MacsecEnd]:
    from dinnet.host.macsec import MacsecEnd
    from dinnet.host.macsec_config import load_config
    from dinnet.host.macsec_keys import harden_process

    harden_process()
    config, links = load_config(path)
    if only is not None and only not in {link.name for link in links}:
        raise DinnetError(f"{path}: there is no link {only}; there are {', '.join(link.name for link in links)}")
    for link in links:
        if only in (None, link.name):
            yield MacsecEnd(link, config.state, config.netns)


def _announcements(path: Path | None) -> dict[str, str]:
    """Link name to line; which line is whose is only a hint here, the seal decides."""
    if path is None:
        return {}
    try:
        text = sys.stdin.read(_MOST_ANNOUNCED_BYTES) if str(path) == "-" else path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = reason(error) if isinstance(error, OSError) else "not a text file"
        raise DinnetError(f"{path}: cannot read: {why}") from error
    found = {}
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            found[str(json.loads(line)["link"])] = line
        except (ValueError, KeyError, TypeError, RecursionError):
            raise DinnetError(f"{path}:{number}: no announcement (dinnet macsec announce prints them)") from None
    return found


def _plain(row: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in row.items() if key not in {"link", "device"}}
