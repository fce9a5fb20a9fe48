"""The picture of a live capture on a terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

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
_OTHER_LINES: Final = 12 + len(CLASS_NAMES)
_FEWEST_FLOWS: Final = 5


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
        f"{reading.interface}: {reading.seconds:.0f} s, {reading.packets:,} packets, {amount(reading.bytes, 'B')}, "
        f"{reading.packets_per_s:,.0f} packets/s, {amount(8 * reading.bytes_per_s, 'bit/s')}, "
        f"{reading.dropped:,} dropped, {reading.live:,} flows under way"
    )


def class_table(sums: ClassSums) -> Table:
    """Flows, packets and bytes of each class."""
    from rich.table import Table

    table = Table(title="By class", title_justify="left", expand=False)
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


def flow_table(title: str, rows: Rows, rates: NDArray[np.float64] | None = None) -> Table:
    """A row a flow; `rates` in bytes per second."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", expand=False)
    table.add_column("from", overflow="fold")
    table.add_column("to", overflow="fold")
    table.add_column("proto", no_wrap=True)
    table.add_column("class", no_wrap=True)
    for name in ("confidence", "rate", "bytes", "packets", "seconds"):
        if name != "rate" or rates is not None:
            table.add_column(name, justify="right", no_wrap=True)
    for index, row in enumerate(rows):
        name = CLASS_NAMES[row["class_id"]]
        tag = f" vlan {row['vlan']}" if row["vlan"] else ""
        cells = [
            _endpoint(row, "src", row["sport"]) + tag,
            _endpoint(row, "dst", row["dport"]),
            protocol_name(int(row["proto"])),
            f"[{_CLASS_STYLES[name]}]{name}[/]",
            f"{row['confidence']:.2f}",
        ]
        if rates is not None:
            cells.append(amount(8 * rates[index], "bit/s"))
        cells += [amount(int(row["bytes"]), "B"), f"{row['packets']:,}", f"{_seconds(row):.1f}"]
        table.add_row(*cells)
    return table


def screen(reading: Reading, board: FlowBoard, height: int) -> RenderableType:
    """What the terminal shows while packets come in."""
    from rich.console import Group
    from rich.text import Text

    rows, rates = board.busiest(max(_FEWEST_FLOWS, height - _OTHER_LINES))
    return Group(Text(header(reading)), class_table(board.sums()), flow_table("Busiest flows", rows, rates))


def final_table(reading: Reading, board: FlowBoard, count: int) -> RenderableType:
    """What stays on the terminal when the capture has ended and no flow is under way."""
    from rich.console import Group
    from rich.text import Text

    return Group(Text(header(reading)), class_table(board.sums()), flow_table("Largest flows", board.largest(count)))


def _endpoint(row: np.void, side: str, port: int) -> str:
    address = format_address(int(row[f"{side}_hi"]), int(row[f"{side}_lo"]))
    if row["sport"] == row["dport"] == 0:  # a protocol without ports
        return address
    return f"\\[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _seconds(row: np.void) -> float:
    return int(row["last_us"] - row["first_us"]) / 1e6
