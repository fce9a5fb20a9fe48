"""A switch's counters, or their rates between two moments, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

from dinnet.switch.contract import Cell
from dinnet.switch.queues import class_name
from dinnet.switch.snapshot import Snapshot

_UNITS: Final = ("", "k", "M", "G", "T")
_NONE: Final = Cell(0, 0)


def picture(now: Snapshot, before: Snapshot | None) -> Group:
    """Counters since the switch came into force; with `before`, rates since then: packets/s and bit/s."""
    seconds = now.at_s - before.at_s if before else 0.0

    def cells(new: Cell, old: Cell | None) -> tuple[str, str]:
        if not before:
            return _short(new.packets), f"{_short(new.bytes)}B"
        old = old or _NONE
        packets, size = (new.packets - old.packets) / seconds, (new.bytes - old.bytes) / seconds
        return f"{_short(packets)}/s", f"{_short(8 * size)}bit/s"

    ports = _table("port", "interface", "", "rx packets", "rx", "tx packets", "tx", "queue drops")
    earlier = {port.number: port for port in before.ports} if before else {}
    for port in now.ports:
        old = earlier.get(port.number)
        flags = " ".join(name for name, on in (("trusted", port.trusted), ("labels", port.flow_labels)) if on)
        rx, tx = cells(port.rx, old.rx if old else None), cells(port.tx, old.tx if old else None)
        ports.add_row(str(port.number), port.interface, flags, *rx, *tx, _short(port.tx_dropped))
    marks = _table("slice", "tc", "colour", "packets", "bytes")
    for key, cell in now.marks.items():
        marks.add_row(*map(str, key), *cells(cell, before.marks.get(key) if before else None))
    exceeded = _table("slice", "above the bucket of its", "and so", "packets", "bytes")
    for above, cell in now.exceeded.items():
        exceeded.add_row(*map(str, above), *cells(cell, before.exceeded.get(above) if before else None))
    queues = _queues(now, before, cells)
    parts: list[Table | Text] = [ports]
    parts += [table for table in (marks, exceeded, queues) if table.row_count]
    if not now.measuring:
        parts.append(Text("queues: nobody measures them now (queue telemetry ends with the server)"))
    if missed := {name: cell.packets for name, cell in now.queue_misses.items() if cell.packets}:
        parts.append(Text(f"queues, not measured: {', '.join(f'{name} {_short(n)}' for name, n in missed.items())}"))
    lines = [
        ("parsed", now.parsed, before.parsed if before else {}),
        ("dropped", now.drops, before.drops if before else {}),
    ]
    for title, found, old_cells in lines:
        told = [f"{name} {cells(cell, old_cells.get(name))[0]}" for name, cell in found.items() if cell.packets]
        parts.append(Text(f"{title}: {', '.join(told) or 'nothing'}"))
    entries = ", ".join(f"{name} {count:,}" for name, count in now.entries.items() if count)
    parts.append(Text(f"entries: {entries or 'none'}"))
    parts.append(
        Text(
            f"flows: {now.flows:,} under way, {_short(now.collisions.packets)} packets without room for a record; "
            f"lost: {now.lost_records:,} records, {now.lost_packet_ins:,} packet-ins"
        )
    )
    return Group(*parts)


def _queues(now: Snapshot, before: Snapshot | None, cells: Callable[[Cell, Cell | None], tuple[str, str]]) -> Table:
    """Residence times are those since the switch came into force in either case."""
    table = _table(
        "port", "class", "slice/tc", "packets", "sent", "waiting", "backlog", "most", "drops", "p50", "p99", "max"
    )  # fmt: skip
    earlier = {(queue.port, queue.classid): queue for queue in before.queues} if before else {}
    for queue in now.queues:
        old = earlier.get((queue.port, queue.classid))
        table.add_row(
            str(queue.port),
            class_name(queue.classid),
            "/".join(map(str, queue.mark)) if queue.mark else "-",
            *cells(queue.sent, old.sent if old else None),
            _short(queue.backlog.packets),
            f"{_short(queue.backlog.bytes)}B",
            f"{_short(queue.backlog_max.bytes)}B",
            _short(queue.drops.packets),
            *map(_time, (queue.residence_p50_ns, queue.residence_p99_ns, queue.residence_max_ns)),
        )
    return table


def _time(ns: float | None) -> str:
    """Three digits and a unit."""
    if ns is None:
        return "-"
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns:.3g} ns"


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < 3 else "right")
    return table


def _short(value: float) -> str:
    """Three digits and a unit prefix."""
    for unit in _UNITS:
        if abs(value) < 1000 or unit == _UNITS[-1]:
            return f"{value:.3g}{unit}" if isinstance(value, float) and unit == "" else f"{value:,.4g}{unit}"
        value /= 1000
    raise AssertionError
