"""What a careless or hostile user does to the command line: one clear line, the right exit code, nothing lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dinnet.errors import printable

SAMPLE = Path(__file__).resolve().parents[2] / "examples" / "sample.pcap.zst"


def run(*arguments: str, cwd: Path, **options: object) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "dinnet", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, check=False, timeout=120, **options)  # type: ignore[call-overload, no-any-return]


def one_line(done: subprocess.CompletedProcess[bytes], code: int) -> str:
    text = done.stderr.decode()
    assert done.returncode == code, text
    assert text.count("\n") == 1, text
    assert text.startswith("dinnet: error: ")
    return text


@pytest.mark.parametrize("option", ["--out", "--html"])
def test_a_capture_is_not_written_over(option: str, tmp_path: Path) -> None:
    capture = tmp_path / "a.pcap"
    capture.write_bytes(SAMPLE.read_bytes())
    (tmp_path / "link.pcap").symlink_to(capture)
    done = run("classify", "pcap", "a.pcap", "-f", "csv", option, "link.pcap", cwd=tmp_path)
    assert "is one of the captures" in one_line(done, 2)
    assert capture.read_bytes() == SAMPLE.read_bytes()


def test_a_folder_with_a_fifo_and_a_dangling_link_is_read(tmp_path: Path) -> None:
    (tmp_path / "good.pcap").symlink_to(SAMPLE)
    os.mkfifo(tmp_path / "waits.pcap")
    (tmp_path / "gone.pcap").symlink_to(tmp_path / "nothing")
    done = run("classify", "pcap", ".", "-f", "csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(b"\n") > 100


def test_an_empty_name_is_wrong_use(tmp_path: Path) -> None:
    assert "empty file name" in one_line(run("classify", "pcap", "", cwd=tmp_path), 2)


def test_a_closed_standard_input_is_wrong_use(tmp_path: Path) -> None:
    script = f"exec {sys.executable} -m dinnet classify pcap - <&-"
    done = subprocess.run(["sh", "-c", script], capture_output=True, check=False, timeout=60, cwd=tmp_path)
    assert "standard input is closed" in one_line(done, 2)


def test_names_with_control_characters_are_shown_escaped(tmp_path: Path) -> None:
    name = "a\n\x1b]0;x\x07.pcap"
    (tmp_path / name).write_bytes(b"garbage that is no capture")
    done = run("classify", "pcap", name, "-f", "csv", cwd=tmp_path)
    assert done.returncode == 1
    assert b"\x1b" not in done.stderr
    assert b"\\x1b" in done.stderr
    assert printable("a\tb\udcff") == "a\\tb\\udcff"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_standard_output_is_one_line(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:  # noqa: PTH123 - a device
        command = [sys.executable, "-m", "dinnet", "features", "explain"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr
    assert b"No space left" in done.stderr


def test_a_demo_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    one_line(run("demo", "--sample", "--out", "file/x", cwd=tmp_path), 1)


def test_kernels_compile_without_a_place_to_keep_them() -> None:
    # numba finds no place for code that has no source file: as for a service user and a read-only installation.
    space: dict[str, object] = {}
    source = "from dinnet.jit import compiled, compiled_as\n"
    source += "plus = compiled(lambda a: a + 1)\nless = compiled_as('i8(i8)')(lambda a: a - 1)\n"
    exec(compile(source, "<nowhere>", "exec"), space)
    assert space["plus"](1) == 2  # type: ignore[operator]
    assert space["less"](1) == 0  # type: ignore[operator]
