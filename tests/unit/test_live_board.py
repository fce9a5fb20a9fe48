"""What the rolling table of a live capture is made from."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
from rich.console import Console

from dinnet.cli.live_board import FlowBoard
from dinnet.cli.live_view import amount, flow_table
from dinnet.flows.record import End
from dinnet.report.rows import ROW_DTYPE, Rows

_PREFILL, _DECODE, _UNCLASSIFIED = 0, 1, 4


def _rows(*flows: tuple[int, int, int, End]) -> Rows:
    """Rows of (source port, bytes, class, end); a packet is 100 bytes."""
    rows = np.zeros(len(flows), ROW_DTYPE)
    for row, (sport, size, class_id, end) in zip(rows, flows, strict=True):
        row["sport"], row["bytes"], row["class_id"], row["end"] = sport, size, class_id, end
        row["packets"] = size // 100
    return rows


def test_a_flow_is_counted_once_with_its_latest_row() -> None:
    board = FlowBoard()
    board.add(_rows((1, 400, _UNCLASSIFIED, End.LIVE), (2, 400, _DECODE, End.LIVE), (1, 800, _PREFILL, End.LIVE)))
    board.add(_rows((1, 1600, _PREFILL, End.LIVE)))
    sums = board.sums()
    assert board.live == 2
    assert sums.flows.tolist() == [1, 1, 0, 0, 0]
    assert sums.bytes.tolist() == [1600, 400, 0, 0, 0]
    assert sums.packets.tolist() == [16, 4, 0, 0, 0]


def test_an_ended_flow_stays_in_the_sums_and_leaves_the_busiest() -> None:
    board = FlowBoard()
    board.add(_rows((1, 400, _PREFILL, End.LIVE), (2, 400, _DECODE, End.LIVE)))
    board.add(_rows((1, 900, _PREFILL, End.FIN), (3, 100, _UNCLASSIFIED, End.IDLE)))
    board.tick(1.0)
    assert board.live == 1
    assert board.sums().flows.tolist() == [1, 1, 0, 0, 1]
    assert board.sums().bytes.tolist() == [900, 400, 0, 0, 100]
    assert board.busiest(10)[0]["sport"].tolist() == [2]
    assert board.largest(10)["sport"].tolist() == [1, 3]
    # The same ports again: another flow.
    board.add(_rows((1, 500, _PREFILL, End.LIVE)))
    assert board.live == 2
    assert board.sums().flows.tolist() == [2, 1, 0, 0, 1]


def test_each_part_of_the_key_tells_flows_apart() -> None:
    board = FlowBoard()
    names = ("src_hi", "src_lo", "dst_hi", "dst_lo", "tunnel_id", "sport", "dport", "vlan", "inner_vlan", "proto")
    rows = np.zeros(len(names) + 1, ROW_DTYPE)
    for index, name in enumerate(names):
        rows[index][name] = 1
    board.add(rows)
    assert board.live == len(names) + 1


def test_rates_are_of_the_last_interval() -> None:
    board = FlowBoard()
    board.add(_rows((1, 1000, _PREFILL, End.LIVE), (2, 4000, _DECODE, End.LIVE)))
    board.tick(2.0)
    rows, rates = board.busiest(10)
    assert rows["sport"].tolist() == [2, 1]
    assert rates.tolist() == [2000.0, 500.0]
    board.add(_rows((1, 1600, _PREFILL, End.LIVE)))
    board.tick(0.5)
    rows, rates = board.busiest(1)
    assert rows["sport"].tolist() == [1]
    assert rates.tolist() == [1200.0]
    board.tick(1.0)
    rows, rates = board.busiest(2)
    assert rates.tolist() == [0.0, 0.0]
    assert rows["sport"].tolist() == [2, 1], "quiet flows: the larger first"
    # A slot that is used again starts from nothing.
    board.add(_rows((2, 4000, _DECODE, End.FIN)))
    board.add(_rows((9, 300, _DECODE, End.LIVE)))
    board.tick(1.0)
    rows, rates = board.busiest(2)
    assert list(zip(rows["sport"].tolist(), rates.tolist(), strict=True)) == [(9, 300.0), (1, 0.0)]


def test_many_flows_come_and_go() -> None:
    board = FlowBoard()
    ports = range(1, 5001)
    board.add(_rows(*((port, port * 100, _DECODE, End.LIVE) for port in ports)))
    assert board.live == 5000
    board.add(_rows(*((port, port * 100, _DECODE, End.CAPTURE) for port in ports)))
    assert board.live == 0
    assert board.sums().bytes.tolist() == [0, 100 * 5000 * 5001 // 2, 0, 0, 0]
    assert board.largest(100)["sport"].tolist() == list(range(5000, 4900, -1))


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (99_940, "99.9 kB"), (123_456, "123 kB"), (999_600, "1.0 MB"),
     (5.2e12, "5.2 TB"), (8e15, "8000 TB")],
)  # fmt: skip
def test_amounts(value: float, text: str) -> None:
    assert amount(value, "B") == text


def _shown(rows: Rows, width: int, rates: np.ndarray | None = None) -> list[str]:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    with console.capture() as capture:
        console.print(flow_table("Flows", rows, width, rates))
    return [line.rstrip() for line in capture.get().splitlines() if line.strip()]


def test_narrow_terminals_lose_columns_not_addresses() -> None:
    rows = _rows((40000, 2_900_000, _UNCLASSIFIED, End.LIVE))
    rows["src_lo"], rows["dst_lo"] = 0xFFFF_C0A8_6464, 0xFFFF_C0A8_C8C8
    rows["dport"], rows["proto"], rows["confidence"], rows["last_us"] = 50000, 6, 0.87, 12_340_000
    rates = np.array([125_000.0])
    there = r"192\.168\.100\.100:40000\s+192\.168\.200\.200:50000"
    wide = _shown(rows, 120, rates)[-1]
    assert re.fullmatch(there + r"\s+tcp\s+unclassified\s+0\.87\s+1\.0 Mbit/s\s+2\.9 MB\s+29,000\s+12\.3", wide.strip())
    narrow = _shown(rows, 80, rates)
    assert re.fullmatch(there + r"\s+unclassified\s+0\.87\s+1\.0 Mbit/s", narrow[-1].strip())
    assert re.fullmatch(there + r"\s+unclassified\s+0\.87\s+2\.9 MB", _shown(rows, 75)[-1].strip())
    assert all(len(line) <= 80 for line in narrow)
    rows["vlan"], rows["dst_hi"] = 42, 1
    text = "\n".join(_shown(rows, 80, rates))
    assert "vlan" in text and "unclassified" in text and "1.0 Mbit/s" in text
    assert "[::1:0:ffff:c0a8:c8c8]" in text, "the brackets of an IPv6 address are no markup"
