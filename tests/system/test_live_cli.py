"""`dinnet classify live` as a program: what it prints, keeps and says, and how it ends."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from namespacekit import PATIENCE_S, A, B, Pair, ip, tcp_exchange, tshark

from dinnet.report.rows import CLASS_NAMES

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces and packet sockets"),
]

# The program with a classifier whose answers a test can know: 0.9 sure of the class that the destination
# port, modulo 5, is the number of. What is tested here is everything around it.
_PROGRAM = """
import numpy as np
from dinnet.classifier import model
class Known:
    @classmethod
    def load(cls, path=None):
        return cls()
    def classify(self, records, threads=1):
        verdicts = np.full(len(records), 0.9, model.VERDICT_DTYPE)
        verdicts["class_id"] = records["dport"] % 5
        return verdicts
model.Classifier = Known
from dinnet.cli import main
main()
"""


@pytest.fixture
def pair() -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(f"{os.getpid()}", stack)


class Program:
    """`dinnet classify live ...` in the background; leaves nothing behind."""

    def __init__(self, stack: ExitStack, *arguments: str, stdout: int = subprocess.PIPE) -> None:
        command = [sys.executable, "-c", _PROGRAM, "classify", "live", *arguments]
        # On a dumb terminal, such as many builds run on, only the table at the end is shown.
        environment = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(Path(__file__).parents[2])}
        self.process = stack.enter_context(
            subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment)
        )
        stack.callback(self._kill)

    def _kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def wait_until_listening(self) -> None:
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        assert line.startswith("dinnet: listening on "), line + self.process.stderr.read()

    def next_row(self) -> dict[str, Any]:
        """The next JSON line, without waiting for the program to end."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE_S)
        assert ready, "no row came"
        return json.loads(self.process.stdout.readline())

    def end(self, number: int | None = None) -> tuple[int, str, str]:
        """Exit code and the rest of both outputs, after signal `number`."""
        if number is not None:
            self.process.send_signal(number)
        output, errors = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, output, errors


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def test_json_lines_come_as_flows_end_and_ctrl_c_flushes_the_rest(pair: Pair, stack: ExitStack, tmp_path: Path) -> None:
    path = tmp_path / "kept.pcapng"
    program = Program(stack, "vb", "--netns", pair.b, "--format", "ndjson", "--write", str(path))
    program.wait_until_listening()
    tcp_exchange(pair, 7001, 100_000)
    tcp = program.next_row()
    with pair.udp(pair.b, B, 7003), pair.udp(pair.a, A, 5000) as sender:
        for size in (10, 20, 30):
            sender.sendto(bytes(size), (B, 7003))
        code, output, errors = program.end(signal.SIGINT)
    assert (code, errors) == (0, "")
    [udp] = [json.loads(line) for line in output.splitlines()]
    assert (tcp["src"], tcp["dst"], tcp["dport"], tcp["proto"], tcp["end"]) == (A, B, 7001, 6, "fin")
    assert tcp["class"] == CLASS_NAMES[7001 % 5]
    assert (udp["src"], udp["sport"], udp["dst"], udp["dport"], udp["end"]) == (A, 5000, B, 7003, "capture")
    assert (udp["packets"], udp["bytes"], udp["fwd_packets"], udp["rev_packets"]) == (3, 60 + 3 * 28, 3, 0)
    assert (udp["class"], udp["confidence"]) == (CLASS_NAMES[7003 % 5], 0.9)
    kept = tshark(path, "ip.proto", "ip.len")
    assert len([1 for proto, _ in kept if proto == "6"]) == tcp["packets"]
    assert sum(int(length) for proto, length in kept if proto == "6") == tcp["bytes"]
    assert len(kept) == tcp["packets"] + 3


def test_quiet_flows_expire_by_the_clock(pair: Pair, stack: ExitStack) -> None:
    """Nothing else is sent: only a timer can end the flow."""
    program = Program(stack, "vb", "--netns", pair.b, "--format", "ndjson", "--idle-timeout", "0.3")
    program.wait_until_listening()
    with pair.udp(pair.b, B, 7000), pair.udp(pair.a, A, 5000) as sender:
        sender.sendto(b"one", (B, 7000))
        sender.sendto(b"two", (B, 7000))
        row = program.next_row()
    assert (row["dport"], row["packets"], row["end"]) == (7000, 2, "idle")
    assert program.end(signal.SIGTERM) == (0, "", "")


def test_checkpoints_of_a_flow(pair: Pair, stack: ExitStack) -> None:
    program = Program(
        stack, "vb", "--netns", pair.b, "--format", "ndjson", "--checkpoint", "all", "--count", "20",
        "--min-confidence", "0.95",
    )  # fmt: skip
    program.wait_until_listening()
    with pair.udp(pair.b, B, 7000), pair.udp(pair.a, A, 5000) as sender:
        for _ in range(25):
            sender.sendto(b"x", (B, 7000))
        code, output, errors = program.end()
    assert (code, errors) == (0, "")
    rows = [json.loads(line) for line in output.splitlines()]
    assert [(row["packets"], row["end"]) for row in rows] == [
        (4, "live"), (8, "live"), (16, "live"), (20, "capture"),
    ]  # fmt: skip
    assert {row["class"] for row in rows} == {"unclassified"}, "0.9 is less than was asked for"


def test_table_when_nobody_looks(pair: Pair, stack: ExitStack) -> None:
    program = Program(stack, "vb", "--netns", pair.b)
    program.wait_until_listening()
    with pair.udp(pair.b, B, 7001), pair.udp(pair.a, A, 5000) as sender:
        for _ in range(10):
            sender.sendto(bytes(72), (B, 7001))
        code, output, errors = program.end(signal.SIGINT)
    assert (code, errors) == (0, "")
    assert re.search(r"vb: \d+ s, 10 packets, 1\.1 kB, .* 0 dropped, 0 flows under way", output)
    cells = [re.split(r"\s{2,}", line.strip()) for line in output.splitlines()]
    assert ["decode", "1", "10", "1.0 kB", "100.0 %"] in cells
    assert [f"{A}:5000", f"{B}:7001", "udp", "decode", "0.90", "1.0 kB", "10"] in [row[:7] for row in cells]


def test_rolling_table_on_a_terminal(pair: Pair, stack: ExitStack) -> None:
    terminal, end = pty.openpty()
    stack.callback(os.close, terminal)
    program = Program(stack, "vb", "--netns", pair.b, stdout=end)
    os.close(end)
    program.wait_until_listening()
    shown = b""
    with pair.udp(pair.b, B, 7001), pair.udp(pair.a, A, 5000) as sender:
        deadline = time.monotonic() + PATIENCE_S
        while not re.search(rb"Busiest flows.*10\.77\.0\.1:5000", shown, re.DOTALL):
            assert time.monotonic() < deadline, "the flow never showed up"
            sender.sendto(b"x", (B, 7001))
            ready, _, _ = select.select([terminal], [], [], 0.05)
            if ready:
                shown += os.read(terminal, 65536)
    program.process.send_signal(signal.SIGINT)
    after = b""
    while True:
        try:
            after += os.read(terminal, 65536)
        except OSError:  # the program has closed its side
            break
    assert program.end()[0] == 0
    assert b"Largest flows" in after
    assert b"\x1b[?1049l" in after, "the screen from before is back"


def test_interface_going_down_keeps_what_there_was(pair: Pair, stack: ExitStack, tmp_path: Path) -> None:
    path = tmp_path / "kept.pcapng"
    program = Program(stack, "vb", "--netns", pair.b, "--format", "ndjson", "--write", str(path))
    program.wait_until_listening()
    with pair.udp(pair.b, B, 7000), pair.udp(pair.a, A, 5000) as sender:
        for _ in range(6):
            sender.sendto(b"x", (B, 7000))
        ip("-n", pair.b, "link", "set", "vb", "down")
        code, output, errors = program.end()
    assert code == 1
    assert errors == (
        f"dinnet: error: interface vb in namespace {pair.b} went down during the capture: "
        "6 packets were captured before\n"
    )
    [row] = [json.loads(line) for line in output.splitlines()]
    assert row["packets"] == 6
    assert len(tshark(path, "frame.len")) == 6


def test_one_line_says_what_is_wrong(pair: Pair, stack: ExitStack, tmp_path: Path) -> None:
    gone = f"{tmp_path}/no/x.pcapng"
    programs = {
        f"no interface nope in namespace {pair.b}: `ip link` lists those there are": ("nope", "--netns", pair.b),
        f"{gone}: cannot write packets here: no such file or folder": ("lo", "--write", gone),
    }
    started = {reason: Program(stack, *arguments) for reason, arguments in programs.items()}
    for reason, program in started.items():
        assert program.end() == (1, "", f"dinnet: error: {reason}\n")


def test_full_disk_ends_the_capture_and_keeps_the_file(pair: Pair, stack: ExitStack, tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(mount)], check=True)
    stack.callback(subprocess.run, ["umount", str(mount)], check=True)
    program = Program(stack, "vb", "--netns", pair.b, "--format", "ndjson", "--write", str(mount / "a.pcapng"))
    program.wait_until_listening()
    with pair.udp(pair.b, B, 7000), pair.udp(pair.a, A, 5000) as sender:
        for _ in range(40):
            sender.sendto(bytes(958), (B, 7000))
        code, output, errors = program.end()
    assert code == 1
    # A block is 32 bytes and a frame of 1000; 16 KiB less the headers hold 15 of them.
    assert (
        errors == f"dinnet: error: {mount}/a.pcapng: disk full; the file holds the first 15 packets: free some space\n"
    )
    assert len(tshark(mount / "a.pcapng", "frame.len")) == 15
    assert json.loads(output)["packets"] == 40


def test_reader_of_the_output_goes_away(pair: Pair, stack: ExitStack) -> None:
    program = Program(stack, "vb", "--netns", pair.b, "--format", "ndjson", "--idle-timeout", "0.1")
    program.wait_until_listening()
    assert program.process.stdout is not None
    program.process.stdout.close()
    with pair.udp(pair.b, B, 7000), pair.udp(pair.a, A, 5000) as sender:
        sender.sendto(b"x", (B, 7000))
        assert program.process.wait(PATIENCE_S) == 141
    assert program.process.stderr is not None
    assert program.process.stderr.read() == ""
