"""An experiment's rounds side by side, for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table

from dinnet.classifier import CLASSES
from dinnet.testbed.experiment import UNMARKED, Round
from dinnet.testbed.topology import Topology

_SHARES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
_MEASURES = {"token": "a token's way to the client", "hand_off": "KV hand-off, prefill's end to decode"}


def picture(topology: Topology, rounds: Sequence[Round]) -> Group:
    """What each round measured; which classes the marks of live flows had; what each queue carried."""
    parts: list[Table | str] = [_measures(topology, rounds)]
    for each in rounds:
        if each.slices:
            parts += [_classes(each), _queues(topology, each)]
        parts += [f"[yellow]problem: {text}[/]" for text in each.problems]
        parts += [f"[yellow]{name} had to be stopped[/]" for name in each.cut]
    return Group(*parts)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", pad_edge=False, box=None, padding=(0, 2, 0, 0))
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    return table


def _measures(topology: Topology, rounds: Sequence[Round]) -> Table:
    heads = ["slices" if each.slices else "one queue" for each in rounds]
    table = _table(f"{topology.name}: {topology.description}", "", *heads, *(["ratio"] if len(rounds) == 2 else []))
    for name, words in _MEASURES.items():
        for label, share in _SHARES:
            values = [each.quantile_ms(name, share) for each in rounds]
            shown = ["" if value is None else f"{value:,.1f} ms" for value in values]
            if len(values) == 2:
                first, second = values
                shown.append(f"{first / second:.1f}x" if first and second else "")
            table.add_row(f"{words}, {label}", *shown)
        table.add_row("  measured", *(f"{len(each.measures.get(name, ())):,}" for each in rounds))
    for name in rounds[0].carried_bps:
        table.add_row(f"link {name}", *(f"{each.carried_bps[name] / 1e6:.1f} Mbit/s" for each in rounds))
    return table


def _classes(found: Round) -> Table:
    marks = (*CLASSES[:-1], UNMARKED)
    table = _table("live flows: what their senders say, and the class of their mark at the end", "sent as", *marks)
    for group in sorted({group for group, _ in found.classes}):
        table.add_row(group, *(str(found.classes.get((group, mark), ".")) for mark in marks))
    return table


def _queues(topology: Topology, found: Round) -> Table:
    table = _table("queues between the switches", "link", "slice", "tc", "packets", "dropped", "guarantee")
    between = {f"to-{name}" for name in topology.switches}
    for each in found.queues:
        if each["link"] in between and each["packets"]:
            guarantee = "" if each["guarantee_bps"] is None else f"{each['guarantee_bps'] / 1e6:g} Mbit/s"
            where = f"{each['host'].removesuffix('-box')} {each['link']}"
            cells = (each["slice"], each["tc"], f"{each['packets']:,}", f"{each['drops']:,}", guarantee)
            table.add_row(where, *map(str, cells))
    return table
