"""Every format, parsed back by another reader, says the same as the rows."""

from __future__ import annotations

import csv
import io
import ipaddress
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dinnet.report.output import Output
from dinnet.report.render import address_strings
from dinnet.report.rows import ROW_DTYPE, Rows
from dinnet.report.sinks import SINKS

FILES = ('a, "b"\n.pcap', "é\udcff.pcapng")
PRINTED = ('a, "b"\n.pcap', "é?.pcapng")


def some_rows(count: int) -> Rows:
    """Rows with every field at its limits and in between."""
    random = np.random.default_rng(7)
    rows = np.zeros(count, ROW_DTYPE)
    for name in ROW_DTYPE.names or ():
        kind = ROW_DTYPE[name]
        if kind.kind in "ui" and kind.itemsize > 1:
            limits = np.iinfo(kind)
            rows[name] = random.integers(limits.min, limits.max, count, dtype=kind, endpoint=True)
            rows[name][:2] = limits.min, limits.max
    rows["src_hi"][: count // 2] = 0
    rows["src_lo"][: count // 2] = 0xFFFF_0000_0000 | random.integers(0, 2**32, count // 2, dtype=np.uint64)
    rows["proto"] = random.integers(0, 256, count)
    rows["class_id"] = random.integers(0, 5, count)
    rows["end"] = random.integers(0, 7, count)
    rows["file"] = random.integers(0, len(FILES), count)
    rows["confidence"] = random.random(count)
    rows["confidence"][:3] = 0.0, 1.0, np.nan
    for name in ("streaming", "first_request", "large_model"):
        rows[name] = random.integers(-1, 2, count)
    return rows


def expected(row: Any, files: Sequence[str]) -> dict[str, Any]:
    """A row by plain Python."""
    out: dict[str, Any] = {}
    for side in ("src", "dst"):
        value = int(row[f"{side}_hi"]) << 64 | int(row[f"{side}_lo"])
        mapped = value >> 32 == 0xFFFF
        out[side] = str(ipaddress.IPv4Address(value & 0xFFFFFFFF) if mapped else ipaddress.IPv6Address(value))
        out[f"{side[0]}port"] = int(row[f"{side[0]}port"])
    names = "proto flow_label vlan first_us last_us packets bytes fwd_packets rev_packets fwd_bytes rev_bytes"
    out |= {name: int(row[name]) for name in names.split()}
    out["class"] = ("prefill", "decode", "control", "data", "unclassified")[row["class_id"]]
    confidence = float(row["confidence"])
    out["confidence"] = None if np.isnan(confidence) else round(confidence, 4)
    out["checkpoint"] = int(row["checkpoint"])
    out |= {name: {1: True, 0: False, -1: None}[int(row[name])] for name in ("streaming", "first_request")}
    out["model_size"] = {1: "large", 0: "small", -1: None}[int(row["large_model"])]
    out["end"] = ("live", "idle", "active", "fin", "rst", "reuse", "capture")[row["end"]]
    out |= {name: int(row[name]) for name in ("tunnel_id", "inner_vlan")}
    if len(files) > 1:
        out["file"] = files[row["file"]]
    return out


def written(kind: str, batches: Sequence[Rows], files: Sequence[str], summary: dict[str, Any] | None = None) -> bytes:
    with tempfile.TemporaryFile() as file:
        sink = SINKS[kind](Output(file.fileno(), "test"), files)
        for rows in batches:
            sink.write(rows)
        sink.finish([{"name": "x"}], summary)
        file.seek(0)
        return file.read()


def batches_of(rows: Rows) -> list[Rows]:
    return [rows[:1], rows[1:1], rows[1:5000], rows[5000:]]


def parquet_rows(data: bytes) -> list[dict[str, Any]]:
    pq = pytest.importorskip("pyarrow.parquet")
    rows: list[dict[str, Any]] = pq.read_table(io.BytesIO(data)).to_pylist()
    return rows


ROWS = some_rows(6000)
EXPECTED = [expected(row, PRINTED) for row in ROWS]


def test_ndjson() -> None:
    lines = written("ndjson", batches_of(ROWS), FILES).decode().splitlines()
    assert [json.loads(line) for line in lines] == EXPECTED


def test_json_document_with_captures_and_summary() -> None:
    document = json.loads(written("json", batches_of(ROWS), FILES, {"answer": 42}))
    assert document["flows"] == EXPECTED
    assert document["captures"] == [{"name": "x"}]
    assert document["summary"] == {"answer": 42}


def test_csv() -> None:
    lines = list(csv.reader(io.StringIO(written("csv", batches_of(ROWS), FILES).decode(), newline="")))
    assert lines[0] == list(EXPECTED[0])
    for line, row in zip(lines[1:], EXPECTED, strict=True):
        for cell, value in zip(line, row.values(), strict=True):
            if value is None:
                assert cell == ""
            elif isinstance(value, bool):
                assert cell == str(value).lower()
            elif isinstance(value, float):
                assert float(cell) == value
            else:
                assert cell == str(value)


def test_parquet() -> None:
    assert parquet_rows(written("parquet", batches_of(ROWS), FILES)) == EXPECTED


def test_one_capture_has_no_file_column() -> None:
    rows = ROWS[:100].copy()
    rows["file"] = 0
    want = [expected(row, ["only.pcap"]) for row in rows]
    assert json.loads(written("json", [rows], ["only.pcap"]))["flows"] == want
    assert parquet_rows(written("parquet", [rows], ["only.pcap"])) == want


def test_no_flows() -> None:
    assert json.loads(written("json", [], ["x"]))["flows"] == []
    assert written("ndjson", [], ["x"]) == b""
    assert written("csv", [], ["x"]).count(b"\n") == 1
    assert parquet_rows(written("parquet", [], ["x"])) == []


_GROUPS = st.lists(st.sampled_from([0, 0, 1, 0xA, 0xFF, 0x100, 0xFFFF]), min_size=8, max_size=8)


@given(st.lists(_GROUPS, min_size=1, max_size=20))
def test_addresses_are_written_as_the_standard_library_does(addresses: list[list[int]]) -> None:
    values = [int("".join(f"{group:04x}" for group in groups), 16) for groups in addresses]
    data, offsets = address_strings(
        np.array([value >> 64 for value in values], np.uint64),
        np.array([value & (2**64 - 1) for value in values], np.uint64),
    )
    text = bytes(data).decode()
    for index, value in enumerate(values):
        address = ipaddress.IPv4Address(value & 0xFFFFFFFF) if value >> 32 == 0xFFFF else ipaddress.IPv6Address(value)
        assert text[offsets[index] : offsets[index + 1]] == str(address)


def test_a_full_device_is_one_clear_error() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    descriptor = os.open("/dev/full", os.O_WRONLY)
    try:
        with pytest.raises(Exception, match=r"there: cannot write: No space left") as caught:
            Output(descriptor, "there").write(b"x")
    finally:
        os.close(descriptor)
    assert "\n" not in str(caught.value)
