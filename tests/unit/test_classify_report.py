"""The page, the table and the numbers that people read."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pytest
from rich.console import Console

from dinnet.report.digest import Digest
from dinnet.report.html import html_report
from dinnet.report.pipeline import CaptureFacts
from dinnet.report.plots import nice_ticks
from dinnet.report.rows import ROW_DTYPE, Rows
from dinnet.report.table import endpoint, flow_table, plain_heading, plain_lines, sparkline
from dinnet.report.units import human_bytes, human_count, human_duration, human_time

MAPPED = 0xFFFF_0000_0000
HOSTILE = '<script src="//evil">&".pcap'


def a_few_rows() -> Rows:
    rows = np.zeros(5, ROW_DTYPE)
    rows["src_lo"], rows["dst_lo"] = MAPPED + 0x0A000001, MAPPED + 0x0A000002
    rows["sport"], rows["dport"], rows["proto"] = 1000, 2000, 6
    rows["class_id"] = np.arange(5)
    rows["bytes"], rows["packets"] = [100_000, 2_000, 300, 40, 5], 1
    rows["first_us"] = 10**15
    rows["last_us"] = 10**15 + 10**6 * np.arange(5)
    rows["confidence"] = [0.95, 0.8, 0.75, 0.71, np.nan]
    rows["gap_us"] = [1000, 40_000, np.nan, np.nan, 5]
    rows["streaming"], rows["first_request"], rows["large_model"] = -1, -1, -1
    return rows


class Outline(HTMLParser):
    """Checks that tags close in order, and collects what the page refers to and shows."""

    VOID = ("meta", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action", "data")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_page_is_whole_loads_nothing_and_escapes_names(count: int) -> None:
    digest = Digest(plots=True)
    digest.add(a_few_rows()[:count])
    page = html_report(digest, [CaptureFacts(HOSTILE, warnings=[f"{HOSTILE} is cut"], frames=5)])
    outline = Outline()
    outline.feed(page)
    outline.close()
    assert outline.open == []
    assert outline.links == []
    assert outline.tags.count("script") == 1
    assert not re.search(r"url\(|@import|https?:", page)
    assert "default-src 'none'" in page
    assert "".join(outline.text).count(HOSTILE) == 4  # title, heading, facts, warning
    assert "nan" not in page.lower()
    assert page.count("<circle") == count


def test_page_shows_the_shares_of_bytes() -> None:
    digest = Digest(plots=True)
    digest.add(a_few_rows())
    page = html_report(digest, [CaptureFacts("a"), CaptureFacts("b", error="broken")])
    assert "97.7 %" in page  # 100,000 of 102,345
    assert "2, 1 failed" in page
    assert "10.0.0.1:1000" in page


def test_table_names_the_flows_left_out_and_fits() -> None:
    console = Console(width=80, force_terminal=False)
    with console.capture() as capture:
        console.print(flow_table(a_few_rows()[:2], ["x.pcap"], 80, 5, order="bytes"))
    text = capture.get()
    assert "10.0.0.1:1000" in text
    assert "prefill" in text
    assert "3 more flows" in text
    assert max(map(len, text.splitlines())) <= 80


def test_plain_lines_are_aligned() -> None:
    lines = (plain_heading() + plain_lines(a_few_rows(), ["x.pcap"])).splitlines()
    place = lines[0].index("class")
    assert [line[place:].split()[0] for line in lines[1:]] == ["prefill", "decode", "control", "data", "unclassified"]


def test_endpoints() -> None:
    assert endpoint(0, MAPPED + 0x7F000001, 80, 6) == "127.0.0.1:80"
    assert endpoint(0, 1, 80, 17) == "[::1]:80"
    assert endpoint(0, 1, 0, 58) == "::1"


def test_sparkline_shows_small_traffic_and_none() -> None:
    assert sparkline([0, 1, 500, 1000], 4, 1000) == " ▁▄█"
    assert sparkline([0, 1, 2, 3], 2, 5) == "▂█"
    assert sparkline([], 5, 1) == ""


def test_units() -> None:
    assert [human_bytes(value) for value in (0, 999, 1000, 12_345, 123_456, 999_999)] == [
        "0 B", "999 B", "1.00 kB", "12.3 kB", "123 kB", "1.00 MB",
    ]  # fmt: skip
    assert human_count(1_500_000) == "1.50M"
    spans = (0, 999, 1500, 1_500_000, 200_000_000, 7_500_000_000, 270_000_000_000)
    assert [human_duration(span) for span in spans] == [
        "0 us", "999 us", "1.5 ms", "1.5 s", "3 min 20 s", "2 h 5 min", "3 d 3 h",
    ]  # fmt: skip
    assert human_time(0) == "1970-01-01 00:00:00 UTC"
    assert human_time(2**62).endswith(" s")


def test_ticks_are_round() -> None:
    assert nice_ticks(43, 4) == [0, 20, 40]
    assert nice_ticks(0, 4) == [0]
