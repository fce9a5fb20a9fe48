"""The controller's status for people."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Group
from rich.markup import escape
from rich.table import Table

_CHANGES = 10
_MARKS = 20


def picture(found: dict[str, Any]) -> Group:
    """Of what the API tells."""
    parts: list[Any] = [f"intent {escape(found['intent'])}, up for {_duration(found['time'] - found['since'])}"]
    if found["problem"]:
        parts.append(f"[red]an older intent is in force: {escape(found['problem'])}[/red]")
    parts.append(_devices(found["devices"]))
    for device in found["devices"]:
        if device["error"]:
            parts.append(f"[red]{device['name']}: {escape(device['error'])}[/red]")
        parts += [f"[yellow]{device['name']}: {escape(problem)}[/yellow]" for problem in device["problems"]]
    if found["queues"]:
        parts.append(_queues(found["queues"]))
    parts.append(f"{found['microflows']} micro-flows with a mark")
    if found["marks"]:
        parts.append(_marks(found["marks"]))
    changes = [(each["time"], device["name"], each["change"]) for device in found["devices"]
               for each in device["last_changes"]]  # fmt: skip
    for when, name, change in sorted(changes)[-_CHANGES:]:
        parts.append(f"{time.strftime('%H:%M:%S', time.localtime(when))} {name} {escape(change)}")
    return Group(*parts)


def _devices(devices: list[dict[str, Any]]) -> Table:
    table = Table("device", "kind", "state", "as wanted", "rounds", "changes", "errors", box=None, pad_edge=False)
    for each in devices:
        row = (each["name"], each["kind"], each["state"], "yes" if each["in_force"] else "no")
        table.add_row(*row, *(str(each[key]) for key in ("rounds", "changes", "errors")))
    return table


def _queues(queues: list[dict[str, Any]]) -> Table:
    table = Table("host", "link", "slice", "tc", "Mbit/s", "guaranteed", "drops", "backlog", box=None, pad_edge=False)
    for each in queues:
        row = (each["host"], each["link"], str(each["slice"]), str(each["tc"]))
        rates = (_mbit(each["rate_bps"]), _mbit(each["guarantee_bps"]))
        table.add_row(*row, *rates, str(each["drops"]), str(each["backlog_bytes"]))
    return table


def _marks(marks: list[dict[str, Any]]) -> Table:
    table = Table("switch", "from", "to", "proto", "class", "confidence", "slice", "tc", "Mbit/s", box=None,
                  pad_edge=False)  # fmt: skip
    for each in marks[:_MARKS]:
        table.add_row(
            each["switch"], f"{each['src']} {each['sport']}", f"{each['dst']} {each['dport']}", str(each["proto"]),
            each["class"] or "taken over", f"{each['confidence']:.2f}", str(each["slice"]), str(each["tc"]),
            _mbit(each["rate_bps"]),
        )  # fmt: skip
    return table


def _mbit(bps: float | None) -> str:
    return "" if bps is None else f"{bps / 1e6:.3g}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
