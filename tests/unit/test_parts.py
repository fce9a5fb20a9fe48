"""Unfinished work beside its target: abandoned parts go, those in use and what is not ours stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dinnet.parts import new_file, new_folder, remove_abandoned
from dinnet.report.output import atomic_output

_HOLDERS = {
    "file": "descriptor, part = new_file(target)",
    "folder": "block = new_folder(target); (block.__enter__() / 'rows').write_text('x')",
}


@contextmanager
def holder(kind: str, target: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process in the middle of its work on `target`."""
    script = "import sys\nfrom pathlib import Path\nfrom dinnet.parts import new_file, new_folder\n"
    script += f"target = Path(sys.argv[1])\n{_HOLDERS[kind]}\nprint('begun', flush=True)\nsys.stdin.read()\n"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        [sys.executable, "-c", script, target], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == b"begun\n"
        try:
            yield process
        finally:
            process.kill()


def parts(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.endswith(".part"))


@pytest.mark.parametrize("name", ["rows.csv", "a[b]*?.csv", "é\udcff\n.csv", "x" * 255])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_the_next_run_removes_what_a_killed_one_left_and_no_other(tmp_path: Path, kind: str, name: str) -> None:
    target = tmp_path / name
    with holder(kind, target) as process:
        (begun,) = parts(tmp_path)
        remove_abandoned(target)
        assert parts(tmp_path) == [begun]  # it runs still
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert parts(tmp_path) == [begun]
    remove_abandoned(tmp_path / "other.csv")
    assert parts(tmp_path) == [begun]
    with atomic_output(target) as output:
        assert begun not in parts(tmp_path)
        output.write(b"new")
    assert target.read_bytes() == b"new"
    assert len(list(tmp_path.iterdir())) == 1


def test_two_runs_for_one_target_leave_each_other_alone(tmp_path: Path) -> None:
    target = tmp_path / "rows.csv"
    with atomic_output(target) as first, atomic_output(target) as second, new_folder(target) as folder:
        assert len(parts(tmp_path)) == 3
        first.write(b"first")
        second.write(b"second")
        assert folder.is_dir()
    assert target.read_bytes() == b"first"  # its block ended last
    assert parts(tmp_path) == []


def test_what_only_looks_like_a_part_stays(tmp_path: Path) -> None:
    target, kept = tmp_path / "rows.csv", tmp_path / "kept"
    kept.write_text("kept")
    (tmp_path / ".rows.csv.abcdefgh.part").symlink_to(kept)
    os.mkfifo(tmp_path / ".rows.csv.ijklmnop.part")
    for name in (".rows.csv.short.part", ".rows.csv.ABCDEFGH.part", ".rows.csv.abcdefgh.part.old", "rows.csv.part"):
        (tmp_path / name).write_text("not ours")
    before = sorted(path.name for path in tmp_path.iterdir())
    remove_abandoned(target)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_abandoned_parts_without_a_holder_go(tmp_path: Path) -> None:
    (tmp_path / ".rows.csv.abcdefgh.part").write_text("left")
    (tmp_path / ".rows.csv.ijklmnop.part" / "deep").mkdir(parents=True)
    descriptor, path = new_file(tmp_path / "rows.csv")
    assert parts(tmp_path) == [path.name]
    os.close(descriptor)


def test_a_folder_that_is_not_there_is_no_concern_of_the_clean_up(tmp_path: Path) -> None:
    remove_abandoned(tmp_path / "no" / "rows.csv")
    with pytest.raises(FileNotFoundError):
        new_file(tmp_path / "no" / "rows.csv")
