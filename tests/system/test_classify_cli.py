"""`dinnet classify pcap` as a program, with a real reader, flow table and model."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clikit import T0, capture, write_tiny_model

PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    write_tiny_model(folder)
    return folder


def command(model: Path, *arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "dinnet", "classify", "pcap", "--model", str(model), *map(str, arguments)]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "COLUMNS": "160"}


def dinnet(model: Path, *arguments: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        command(model, *arguments), input=stdin, capture_output=True, env=environment(), timeout=PATIENCE_S, check=False
    )


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def one_line(stderr: bytes) -> str:
    lines = stderr.decode().splitlines()
    assert len(lines) == 1, stderr.decode()
    return lines[0]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.pcap"
    path.write_bytes(capture(4))
    return path


def expected(flow: int) -> dict[str, Any]:
    even = flow % 2 == 0
    return {
        "src": "10.0.0.1",
        "sport": 1000 + flow,
        "dst": "10.0.0.2",
        "dport": 9000,
        "proto": 17,
        "flow_label": 0,
        "vlan": 0,
        "first_us": T0 * 1_000_000,
        "last_us": T0 * 1_000_000 + 4000,
        "packets": 5,
        "bytes": 5 * (1028 if even else 100),
        "fwd_packets": 5,
        "rev_packets": 0,
        "fwd_bytes": 5 * (1028 if even else 100),
        "rev_bytes": 0,
        "class": "prefill" if even else "decode",
        "confidence": 0.9 if even else 0.75,
        "checkpoint": 1,
        "streaming": True,
        "first_request": None,
        "model_size": "small",
        "end": "capture",
        "tunnel_id": 0,
        "inner_vlan": 0,
    }


def by_port(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: int(row["sport"]))


def test_every_format_says_the_same(model: Path, small: Path, tmp_path: Path) -> None:
    want = [expected(flow) for flow in range(4)]
    for name in ("rows.json", "rows.ndjson", "rows.csv", "rows.parquet"):
        done = dinnet(model, small, "--out", tmp_path / name)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    document = json.loads((tmp_path / "rows.json").read_text())
    assert by_port(document["flows"]) == want
    assert document["captures"][0]["frames"] == 20
    assert by_port([json.loads(line) for line in (tmp_path / "rows.ndjson").read_text().splitlines()]) == want
    pq = pytest.importorskip("pyarrow.parquet")
    assert by_port(pq.read_table(tmp_path / "rows.parquet").to_pylist()) == want
    with (tmp_path / "rows.csv").open(newline="") as file:
        cells = by_port(list(csv.DictReader(file)))
    assert [row["class"] for row in cells] == ["prefill", "decode", "prefill", "decode"]
    for row, values in zip(cells, want, strict=True):
        assert list(row) == list(values)
        assert [row[name] for name in ("bytes", "confidence", "streaming", "first_request", "model_size")] == [
            str(values["bytes"]), f"{values['confidence']:.4f}", "true", "", "small",
        ]  # fmt: skip


def test_standard_input_and_gzip_are_as_the_file(model: Path, small: Path, tmp_path: Path) -> None:
    packed = tmp_path / "small.pcap.gz"
    packed.write_bytes(gzip.compress(small.read_bytes()))
    plain = dinnet(model, small, "-f", "ndjson").stdout
    assert plain.count(b"\n") == 4
    assert dinnet(model, "-", "-f", "ndjson", stdin=small.read_bytes()).stdout == plain
    assert dinnet(model, packed, "-f", "ndjson").stdout == plain


def test_a_table_in_a_pipe_has_every_flow_and_no_colours(model: Path, small: Path) -> None:
    done = dinnet(model, small)
    assert done.returncode == 0
    lines = done.stdout.decode().splitlines()
    assert len(lines) == 5
    assert "\x1b" not in done.stdout.decode()
    top = dinnet(model, small, "--top", "1").stdout.decode()
    assert "3 more flows" in top


def test_a_terminal_gets_table_and_summary(model: Path, small: Path) -> None:
    inside, outside = pty.openpty()
    with subprocess.Popen(command(model, small), stdout=outside, stderr=subprocess.PIPE, env=environment()) as process:
        os.close(outside)
        text = b"".join(_read_terminal(inside)).decode()
        assert process.wait(PATIENCE_S) == 0
    os.close(inside)
    assert "10.0.0.1:1000" in text
    assert "summary" in text
    assert "top talkers" in text


def _read_terminal(descriptor: int) -> Iterator[bytes]:
    while select.select([descriptor], [], [], PATIENCE_S)[0]:
        try:
            data = os.read(descriptor, 65536)
        except OSError:  # how Linux says that the other side is closed
            return
        if not data:
            return
        yield data


def test_min_confidence_and_checkpoints(model: Path, small: Path) -> None:
    rows = [
        json.loads(line)
        for line in dinnet(model, small, "-f", "ndjson", "--min-confidence", "0.8").stdout.split(b"\n")
        if line
    ]
    assert [row["class"] for row in by_port(rows)] == ["prefill", "unclassified"] * 2
    assert [row["streaming"] for row in by_port(rows)] == [True, None] * 2
    rows = [
        json.loads(line)
        for line in dinnet(model, small, "-f", "ndjson", "--checkpoint", "first").stdout.split(b"\n")
        if line
    ]
    assert [(row["packets"], row["end"]) for row in rows] == [(4, "live")] * 4
    done = dinnet(model, small, "-f", "json", "--checkpoint", "all", "--summary")
    document = json.loads(done.stdout)
    assert sorted(row["packets"] for row in document["flows"]) == [4] * 4 + [5] * 4
    # Each flow once, although each has two rows: 2 x 5 x 1028 and 2 x 5 x 100 bytes.
    assert document["summary"]["classes"]["prefill"] == {"flows": 2, "packets": 10, "bytes": 10_280}
    assert document["summary"]["classes"]["decode"] == {"flows": 2, "packets": 10, "bytes": 1_000}


def test_several_captures_in_order_whatever_the_workers(model: Path, tmp_path: Path) -> None:
    for index, flows in enumerate((300, 2, 50)):
        (tmp_path / f"{index}.pcap").write_bytes(capture(flows, first_port=1000 * (index + 1)))
    alone = dinnet(model, tmp_path, "-f", "csv")
    assert alone.returncode == 0
    rows = list(csv.DictReader(io.StringIO(alone.stdout.decode())))
    assert [row["file"] for row in rows] == [str(tmp_path / "0.pcap")] * 300 + [str(tmp_path / "1.pcap")] * 2 + [
        str(tmp_path / "2.pcap")
    ] * 50
    together = dinnet(model, tmp_path, "-f", "csv", "--workers", "2")
    assert (together.returncode, together.stdout) == (0, alone.stdout)


@pytest.mark.slow
def test_ray_gives_the_same(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    for index in range(3):
        (tmp_path / f"{index}.pcap").write_bytes(capture(20 + index))
    (tmp_path / "3.pcap").write_bytes(b"this is no capture at all, whatever its name says")
    alone = dinnet(model, tmp_path, "-f", "csv")
    spread = dinnet(model, tmp_path, "-f", "csv", "--engine", "ray", "--workers", "2")
    assert alone.stdout.count(b"\n") == 1 + 20 + 21 + 22
    assert (spread.returncode, spread.stdout) == (1, alone.stdout)


def test_garbage_is_one_line_and_exit_1(model: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.pcap"
    bad.write_bytes(b"this is no capture at all, whatever its name says")
    done = dinnet(model, bad, "-f", "json")
    assert (done.returncode, done.stdout) == (1, b"")
    assert str(bad) in one_line(done.stderr)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_garbage_among_good_ones(model: Path, small: Path, tmp_path: Path, workers: str) -> None:
    bad, out = tmp_path / "bad.pcap", tmp_path / "rows.csv"
    bad.write_bytes(b"this is no capture at all, whatever its name says")
    done = dinnet(model, bad, small, "-o", out, "--workers", workers)
    assert done.returncode == 1
    assert str(bad) in one_line(done.stderr)
    assert out.read_bytes().count(b"\n") == 5


def test_a_cut_capture_gives_its_whole_packets_a_warning_and_exit_0(model: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.pcap"
    cut.write_bytes(capture(4)[:-10])
    done = dinnet(model, cut, "-f", "ndjson")
    assert done.returncode == 0
    assert sum(json.loads(line)["packets"] for line in done.stdout.splitlines()) == 19
    assert "warning" in one_line(done.stderr)


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        (1, ("no-such.pcap",)),
        (1, ("empty",)),
        (2, ("small.pcap", "--min-confidence", "2")),
        (2, ("small.pcap", "--idle-timeout", "0")),
        (2, ("small.pcap", "--format", "xml")),
        (2, ("small.pcap", "--workers", "0")),
        (2, ("small.pcap", "--top", "5", "--format", "csv")),
        (1, ("small.pcap", "--out", "no-such-folder/rows.csv")),
        (2, ()),
    ],
)
def test_what_is_missing_is_exit_1_and_wrong_use_exit_2(
    model: Path, small: Path, tmp_path: Path, code: int, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "empty").mkdir()
    before = listing(tmp_path)
    done = subprocess.run(
        command(model, *arguments),
        capture_output=True,
        env=environment(),
        cwd=tmp_path,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (code, b"")
    assert done.stderr
    assert b"Traceback" not in done.stderr
    assert listing(tmp_path) == before


def test_a_changed_model_is_refused(model: Path, small: Path, tmp_path: Path) -> None:
    changed = tmp_path / "model"
    changed.mkdir()
    for file in model.iterdir():
        data = bytearray(file.read_bytes())
        if file.name == "forest.npz":
            data[len(data) // 2] ^= 1
        (changed / file.name).write_bytes(data)
    before = listing(tmp_path)
    done = dinnet(changed, small, "-o", tmp_path / "rows.csv")
    assert done.returncode == 1
    assert "forest.npz" in one_line(done.stderr)
    assert listing(tmp_path) == before


def test_a_missing_model_is_refused(small: Path, tmp_path: Path) -> None:
    done = dinnet(tmp_path / "no-model", small)
    assert done.returncode in (1, 2)
    assert "no-model" in one_line(done.stderr)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts a small tmpfs")
def test_a_full_disk_leaves_the_old_file(model: Path, tmp_path: Path) -> None:
    source, disk = tmp_path / "many.pcap", tmp_path / "disk"
    source.write_bytes(capture(3000, packets=1))
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(disk)], check=True)
    try:
        for name in ("rows.csv", "rows.ndjson", "rows.json"):
            (disk / name).write_text("old")
            done = dinnet(model, source, "-o", disk / name)
            assert done.returncode == 1
            assert "No space left on device" in one_line(done.stderr)
            assert (disk / name).read_text() == "old"
            (disk / name).unlink()
        done = dinnet(model, source, "-o", disk / "rows.csv", "--html", tmp_path / "page.html")
        assert done.returncode == 1
        assert listing(disk) == []
        assert not (tmp_path / "page.html").exists()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_in_the_middle(model: Path, tmp_path: Path, number: signal.Signals, code: int) -> None:
    out = tmp_path / "rows.csv"
    out.write_text("old")
    data = capture(50)
    with subprocess.Popen(
        command(model, "-", "-o", out),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        assert process.stdin
        assert process.stderr
        process.stdin.write(data[: len(data) // 2])
        process.stdin.flush()
        deadline = time.monotonic() + PATIENCE_S
        while len(listing(tmp_path)) < 2:
            assert process.poll() is None
            assert time.monotonic() < deadline
            select.select([], [], [], 0.02)
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == code
        message = process.stderr.read()
    if number == signal.SIGINT:
        assert "interrupted" in one_line(message)
    assert b"Traceback" not in message
    assert out.read_text() == "old"
    assert listing(tmp_path) == ["rows.csv"]


@pytest.mark.parametrize("kind", ["ndjson", "csv", "json", "table"])
def test_a_reader_that_goes_away_is_no_error(model: Path, tmp_path: Path, kind: str) -> None:
    source = tmp_path / "many.pcap"
    source.write_bytes(capture(6000, packets=1))
    with subprocess.Popen(
        command(model, source, "-f", kind), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.read(10)
        process.stdout.close()
        said: list[bytes] = []
        reader = threading.Thread(target=lambda: said.append(process.stderr.read()))  # type: ignore[union-attr]
        reader.start()
        assert process.wait(PATIENCE_S) == 141
        reader.join()
    assert said == [b""]


def test_report_and_summary_beside_the_rows(model: Path, small: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = dinnet(model, small, "-f", "csv", "--html", page, "--summary")
    assert done.returncode == 0
    assert done.stdout.count(b"\n") == 5
    assert "top talkers" in done.stderr.decode()
    assert page.read_text().startswith("<!doctype html>")
    assert "91.1 %" in page.read_text()  # 10,280 of 11,280 bytes are prefill
