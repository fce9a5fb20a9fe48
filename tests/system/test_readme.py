"""Every dinnet command that the README prints: run as printed where that is quick, else its options are looked up."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "examples" / "sample.pcap.zst"


#: Of commands that have several words.
_LAST_WORDS = (
    "live", "record", "demo", "clean", "explain", "up", "down", "status", "top", "dump", "trace", "check", "plan",
    "apply", "schema", "run", "list", "rotate", "announce", "remove", "show", "clear",
)  # fmt: skip


def commands() -> list[str]:
    blocks = re.findall(r"```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if "dinnet " in line and not line.startswith(("git", "make"))]


def run(arguments: list[str], cwd: Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "dinnet", *arguments], cwd=cwd, input=stdin, capture_output=True, check=False
    )


def test_there_are_commands() -> None:
    assert len(commands()) > 8


@pytest.mark.parametrize("command", [c for c in commands() if "classify pcap" in c])
def test_classify_commands_run_as_printed(command: str, tmp_path: Path) -> None:
    (tmp_path / "trace.pcap").symlink_to(SAMPLE)
    (tmp_path / "captures").mkdir()
    (tmp_path / "captures" / "sample.pcap.zst").symlink_to(SAMPLE)
    arguments = shlex.split(command.rsplit("|", maxsplit=1)[-1].replace("FILE...", "trace.pcap"))[1:]
    if "parquet" in command:
        pytest.importorskip("pyarrow")
    done = run(arguments, tmp_path, SAMPLE.read_bytes() if "|" in command else b"")
    assert done.returncode == 0, done.stderr
    for made in re.findall(r"(?:--html|--out) (\S+)", command):
        assert (tmp_path / made).stat().st_size > 1_000
    if "--out" not in command:
        assert done.stdout.count(b"\n") > 100  # a row a flow


@pytest.mark.parametrize("command", [c for c in commands() if "classify pcap" not in c])
def test_other_commands_exist_with_their_options(command: str, tmp_path: Path) -> None:
    words = shlex.split(command)[1:]
    depth = next((n for n, word in enumerate(words) if word in _LAST_WORDS), 0) + 1
    done = run([*words[:depth], "--help"], tmp_path)
    assert done.returncode == 0, done.stderr
    for option in (word for word in words if word.startswith("-")):
        assert option in done.stdout.decode(), option


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text()))))
def test_links_lead_somewhere(path: str) -> None:
    assert (ROOT / path).exists()
