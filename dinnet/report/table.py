"""The table and the summary panel for people."""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from dinnet.errors import printable
from dinnet.flows.record import format_address
from dinnet.report.digest import Digest
from dinnet.report.pipeline import CaptureFacts
from dinnet.report.rows import CLASS_NAMES, END_NAMES, ROW_DTYPE, Rows, protocol_name
from dinnet.report.units import human_bytes, human_count, human_duration, human_time

CLASS_STYLES: Final = {
    "prefill": "bold dark_orange",
    "decode": "bold dodger_blue1",
    "control": "green3",
    "data": "medium_purple1",
    "unclassified": "bright_black",
}
_SPARKS: Final = " ▁▂▃▄▅▆▇█"
_STRIP_CELLS: Final = 48
_YES_NO: Final = {1: "yes", 0: "no", -1: ""}
_SIZES: Final = {1: "large", 0: "small", -1: ""}


@lru_cache(maxsize=65_536)
def _address(hi: int, lo: int) -> str:
    return format_address(hi, lo)


def endpoint(hi: int, lo: int, port: int, proto: int) -> str:
    """An address with its port, where the protocol has ports."""
    address = _address(hi, lo)
    if proto not in (6, 17, 33, 132, 136):
        return address
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


_PlainRow: Final = namedtuple("_PlainRow", ROW_DTYPE.names or ())  # type: ignore[misc]  # its fields are those of the dtype


def flow_cells(rows: Rows, files: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Rows as people read them, cells in the order of FLOW_HEADINGS; the file is empty where there is only one."""
    # Plain numbers first: fields of a structured array are slow one by one.
    return (_flow_cells(_PlainRow._make(values), files) for values in rows.tolist())


def _flow_cells(row: Any, files: Sequence[str]) -> tuple[str, ...]:
    duration_us = row.last_us - row.first_us
    proto = row.proto
    tags = [f"vlan {row.vlan}"] if row.vlan else []
    tags += [f"/{row.inner_vlan}"] if row.inner_vlan else []
    tags += [f" vni {row.tunnel_id}"] if row.tunnel_id else []
    tags += [f" fl {row.flow_label:#x}"] if row.flow_label else []
    confidence = row.confidence
    return (
        endpoint(row.src_hi, row.src_lo, row.sport, proto),
        endpoint(row.dst_hi, row.dst_lo, row.dport, proto),
        protocol_name(proto),
        CLASS_NAMES[row.class_id],
        "" if math.isnan(confidence) else f"{confidence:.2f}",
        f"{row.fwd_packets}/{row.rev_packets}",
        human_bytes(row.bytes),
        human_duration(duration_us),
        _YES_NO[row.streaming],
        _YES_NO[row.first_request],
        _SIZES[row.large_model],
        str(row.checkpoint),
        END_NAMES[row.end],
        "".join(tags).strip(),
        printable(Path(files[row.file]).name) if len(files) > 1 else "",
    )


FLOW_HEADINGS: Final = (
    *("from", "to", "proto", "class", "conf.", "packets", "bytes", "duration", "streaming", "first"),
    *("model", "checkpoint", "end", "tags", "file"),
)
_RIGHT: Final = {"conf.", "packets", "bytes", "duration", "checkpoint"}
#: Left out first to last until the table fits the terminal.
_EXPENDABLE: Final = ("tags", "file", "checkpoint", "end", "first", "model", "streaming", "duration", "proto")


def flow_table(rows: Rows, files: Sequence[str], width: int, seen: int, *, order: str) -> RenderableType:
    """The rows as a table that fits `width` columns; `seen` is how many there were altogether."""
    cells = list(flow_cells(rows, files))
    shown = [
        name
        for place, name in enumerate(FLOW_HEADINGS)
        if name not in ("tags", "file") or any(cell[place] for cell in cells)
    ]
    widths = {name: max([len(name)] + [len(cell[place]) for cell in cells]) for place, name in enumerate(FLOW_HEADINGS)}
    for name in _EXPENDABLE:
        if sum(widths[kept] + 2 for kept in shown) <= width:
            break
        if name in shown:
            shown.remove(name)
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for name in shown:
        table.add_column(
            name, justify="right" if name in _RIGHT else "left", no_wrap=True, overflow="ellipsis", min_width=4
        )
    for cell in cells:
        style = CLASS_STYLES[cell[FLOW_HEADINGS.index("class")]]
        table.add_row(
            *(Text(cell[FLOW_HEADINGS.index(name)], style if name in ("class", "conf.") else "") for name in shown)
        )
    if seen > len(rows):
        note = Text(f"... and {seen - len(rows):,} more flows, by {order} (--top 0 shows all)", "bright_black")
        return Group(table, note)
    return table


def plain_lines(rows: Rows, files: Sequence[str]) -> str:
    """The rows as lines of aligned cells, for a pipe: they can be written batch by batch."""
    return "".join("  ".join(map(_aligned, FLOW_HEADINGS, cells)).rstrip() + "\n" for cells in flow_cells(rows, files))


def plain_heading() -> str:
    return "  ".join(_aligned(name, name) for name in FLOW_HEADINGS).rstrip() + "\n"


_WIDTHS: Final = {
    "from": 27,
    "to": 27,
    "proto": 5,
    "class": 12,
    "packets": 11,
    "bytes": 8,
    "duration": 12,
    "end": 7,
    "tags": 12,
}


def _aligned(name: str, cell: str) -> str:
    width = _WIDTHS.get(name, len(name))
    return cell.rjust(width) if name in _RIGHT else cell.ljust(width)


def sparkline(values: Sequence[float], cells: int, largest: float) -> str:
    """Values as a line of block characters, joined to at most `cells`; any traffic shows at least the lowest block."""
    if not len(values) or largest <= 0:
        return ""
    group = -(-len(values) // cells)
    sums = [sum(values[at : at + group]) for at in range(0, len(values), group)]
    top = len(_SPARKS) - 1
    return "".join(
        _SPARKS[0] if value <= 0 else _SPARKS[max(1, min(top, round(value / largest * top)))] for value in sums
    )


def summary_panel(digest: Digest, facts: Sequence[CaptureFacts]) -> RenderableType:
    """Classes, top talkers and what the captures hold."""
    return Panel(
        Group(_class_table(digest), Text(), Columns([_talkers(digest), _captures(facts)], padding=(0, 6))),
        title="summary",
        title_align="left",
        border_style="bright_black",
    )


def _class_table(digest: Digest) -> Table:
    totals, strip = digest.totals, digest.strip
    group = max(1, -(-strip.bytes.shape[1] // _STRIP_CELLS))
    span = human_duration(group * strip.width_us)
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("class")
    for heading in ("flows", "packets", "bytes", "share"):
        table.add_column(heading, justify="right")
    table.add_column(f"bytes over time ({span} a mark, each class to its own scale)")
    everything = sum(totals.bytes) or 1
    for index, name in enumerate(CLASS_NAMES):
        series = strip.bytes[index].tolist()
        joined = [sum(series[at : at + group]) for at in range(0, len(series), group)]
        table.add_row(
            Text(name, CLASS_STYLES[name]),
            f"{totals.flows[index]:,}",
            f"{totals.packets[index]:,}",
            human_bytes(totals.bytes[index]),
            f"{100 * totals.bytes[index] / everything:.1f} %",
            Text(sparkline(joined, _STRIP_CELLS, max(joined, default=0.0)), CLASS_STYLES[name]),
        )
    return table


def _talkers(digest: Digest) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("top talkers")
    table.add_column("bytes", justify="right")
    table.add_column("flows", justify="right")
    for address, amount, flows in digest.talkers.top(5):
        table.add_row(Text(address), human_bytes(amount), human_count(flows))
    return table


def capture_lines(facts: Sequence[CaptureFacts]) -> list[tuple[str, str]]:
    """What the captures hold, added up: (what, value) pairs."""
    read = [fact for fact in facts if fact.frames or not fact.error]
    lines = []
    if len(facts) == 1:
        lines.append(("capture", printable(facts[0].name)))
    else:
        failed = f", {sum(1 for fact in facts if fact.error)} failed" if any(fact.error for fact in facts) else ""
        lines.append(("captures", f"{len(facts)}{failed}"))
    lines.append(("format", "; ".join(sorted({fact.format for fact in read if fact.format}))))
    lines.append(("link types", ", ".join(sorted({link for fact in read for link in fact.link_types}))))
    first = [fact.first_us for fact in read if fact.first_us is not None]
    last = [fact.last_us for fact in read if fact.last_us is not None]
    if first and last:
        lines.append(("begins", human_time(min(first))))
        lines.append(("lasts", human_duration(max(last) - min(first))))
    frames = sum(fact.frames for fact in read)
    lines.append(("packets", f"{frames:,} ({human_bytes(sum(fact.frame_bytes for fact in read))} on the wire)"))
    for name, text in (("not_ip", "not IP"), ("malformed", "malformed")):
        lines.append((text, f"{sum(getattr(fact, name) for fact in read):,}"))
    cut = sum(fact.cut for fact in read)
    lines.append(("cut", ("yes" if len(facts) == 1 else f"{cut} of them") if cut else "no"))
    return lines


def _captures(facts: Sequence[CaptureFacts]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column()
    for name, value in capture_lines(facts):
        table.add_row(name, Text(value))
    return table


def rendered(console: Console, *parts: RenderableType) -> str:
    """What `console` would print, as text with its escape codes."""
    with console.capture() as capture:
        for part in parts:
            console.print(part)
    return capture.get()
