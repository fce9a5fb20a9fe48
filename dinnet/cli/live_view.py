"""The picture of a live capture on a terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dinnet.errors import printable
from dinnet.flows.record import format_address
from dinnet.report.rows import CLASS_NAMES, Rows, protocol_name

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.console import RenderableType
    from rich.table import Table

    from dinnet.cli.live_board import ClassSums, FlowBoard

_CLASS_STYLES: Final = {
    "prefill": "bold magenta",
    "decode": "bold cyan",
    "control": "yellow",
    "data": "blue",
    "unclassified": "dim",
}
#: Lines of a screen that are not flows: header, table frames and titles, and a row a class.
_OTHER_LINES: Final = 8 + len(CLASS_NAMES)
_FEWEST_FLOWS: Final = 5
#: Columns that a narrow terminal does without, in this order.
_DROPPED_FIRST: Final = ("seconds", "packets", "proto", "bytes")
_GAP: Final = 2
_LEAST_ADDRESS: Final = 12


@dataclass(frozen=True, slots=True)
class Reading:
    """The capture's own counters at one moment."""

    interface: str
    seconds: float
    packets: int
    bytes: int
    dropped: int
    live: int
    packets_per_s: float
    bytes_per_s: float


def amount(value: float, unit: str) -> str:
    """A figure in at most four digits and a decimal prefix: 12.3 MB, 999 B."""
    for prefix in ("", "k", "M", "G", "T"):
        if value < 999.5 or prefix == "T":
            digits = 0 if value >= 99.95 or not prefix else 1
            return f"{value:.{digits}f} {prefix}{unit}"
        value /= 1000
    raise AssertionError


def header(reading: Reading) -> str:
    """One line on what was captured."""
    return (
        f"{printable(reading.interface)}: {reading.seconds:.0f} s, "
        f"{reading.packets:,} packets, {amount(reading.bytes, 'B')}, "
        f"{reading.packets_per_s:,.0f} packets/s, {amount(8 * reading.bytes_per_s, 'bit/s')}, "
        f"{reading.dropped:,} dropped, {reading.live:,} flows under way"
    )


def class_table(sums: ClassSums) -> Table:
    """Flows, packets and bytes of each class."""
    from rich import box
    from rich.table import Table

    table = Table(title="By class", title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("class", no_wrap=True)
    for name in ("flows", "packets", "bytes", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    total = max(int(sums.bytes.sum()), 1)
    for index, name in enumerate(CLASS_NAMES):
        table.add_row(
            f"[{_CLASS_STYLES[name]}]{name}[/]",
            f"{sums.flows[index]:,}",
            f"{sums.packets[index]:,}",
            amount(int(sums.bytes[index]), "B"),
            f"{100 * sums.bytes[index] / total:.1f} %",
        )
    return table


def flow_table(title: str, rows: Rows, width: int, rates: NDArray[np.float64] | None = None) -> Table:
    """A row a flow, with as many of the columns as `width` has room for; `rates` in bytes per second."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    columns = {
        "from": [_endpoint(row, "src", row["sport"]) + _tag(row) for row in rows],
        "to": [_endpoint(row, "dst", row["dport"]) for row in rows],
        "proto": [protocol_name(int(row["proto"])) for row in rows],
        "class": [CLASS_NAMES[row["class_id"]] for row in rows],
        "conf.": [f"{row['confidence']:.2f}" for row in rows],
        "rate": [] if rates is None else [amount(8 * rate, "bit/s") for rate in rates],
        "bytes": [amount(int(row["bytes"]), "B") for row in rows],
        "packets": [f"{row['packets']:,}" for row in rows],
        "seconds": [f"{int(row['last_us'] - row['first_us']) / 1e6:.1f}" for row in rows],
    }
    if rates is None:
        del columns["rate"]
    for name in _DROPPED_FIRST:
        if sum(max(map(len, [head, *cells])) + _GAP for head, cells in columns.items()) <= width:
            break
        if not (rates is None and name == "bytes"):
            del columns[name]
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for head in columns:
        if head in ("from", "to"):
            table.add_column(head, overflow="fold", min_width=_LEAST_ADDRESS)
        else:
            text = head in ("proto", "class")
            table.add_column(head, justify="left" if text else "right", no_wrap=True)
    for cells in zip(*columns.values(), strict=True):
        table.add_row(
            *(f"[{_CLASS_STYLES[cell]}]{cell}[/]" if cell in _CLASS_STYLES else escape(cell) for cell in cells)
        )
    return table


def screen(reading: Reading, board: FlowBoard, width: int, height: int) -> RenderableType:
    """What the terminal shows while packets come in."""
    from rich.console import Group
    from rich.text import Text

    rows, rates = board.busiest(max(_FEWEST_FLOWS, height - _OTHER_LINES))
    flows = flow_table("Busiest flows", rows, width, rates)
    return Group(Text(header(reading)), class_table(board.sums()), flows)


def final_table(reading: Reading, board: FlowBoard, width: int, count: int) -> RenderableType:
    """What stays on the terminal when the capture has ended and no flow is under way."""
    from rich.console import Group
    from rich.text import Text

    flows = flow_table("Largest flows", board.largest(count), width)
    return Group(Text(header(reading)), class_table(board.sums()), flows)


def _endpoint(row: np.void, side: str, port: int) -> str:
    address = format_address(int(row[f"{side}_hi"]), int(row[f"{side}_lo"]))
    if row["sport"] == row["dport"] == 0:  # a protocol without ports
        return address
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _tag(row: np.void) -> str:
    return f" vlan {row['vlan']}" if row["vlan"] else ""
