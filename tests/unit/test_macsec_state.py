"""The state file: nothing half-written is ever believed, and what was there outlives every way to die."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dinnet.errors import DinnetError
from dinnet.host.macsec_state import LinkState, PeerState, forget, load, locked, path_of, save

STATE = LinkState(
    "a-b", 0x0200_0000_000A_0001, "11" * 16, 7, ("22" * 16,), PeerState(3, "33" * 16, 4, 0, 6, 7), ("44" * 16,)
)


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    assert load(tmp_path, "a-b") is None
    for state in (STATE, replace(STATE, peer=None, recent=(), retired=())):
        save(tmp_path, state)
        assert load(tmp_path, "a-b") == state
    assert path_of(tmp_path, "a-b").stat().st_mode & 0o777 == 0o600
    forget(tmp_path, "a-b")
    forget(tmp_path, "a-b")
    assert load(tmp_path, "a-b") is None


def test_every_damaged_byte_and_every_cut_is_noticed(tmp_path: Path) -> None:
    save(tmp_path, STATE)
    whole = path_of(tmp_path, "a-b").read_bytes()
    for position in range(len(whole) - 1):
        for damaged in (
            whole[:position],
            whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :],
        ):
            path_of(tmp_path, "a-b").write_bytes(damaged)
            assert load(tmp_path, "a-b") in (None, STATE)  # a changed space between two keys changes nothing
    for content in (b"", b"[]", b"1", b"\xff" * 40, b"{" * 5000, b'{"sha256": 1, "state": 2}'):
        path_of(tmp_path, "a-b").write_bytes(content)
        assert load(tmp_path, "a-b") is None


def test_another_links_file_is_not_taken(tmp_path: Path) -> None:
    save(tmp_path, STATE)
    path_of(tmp_path, "a-b").rename(path_of(tmp_path, "a-c"))
    assert load(tmp_path, "a-c") is None


_DIES = """
import os, signal, sys
from pathlib import Path
from dinnet.host import macsec_state as state
from dinnet.host.macsec_state import LinkState
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
at = sys.argv[2]
if at == "write": os.write = die
if at == "fsync": os.fsync = die
if at == "rename": Path.rename = die
state.save(Path(sys.argv[1]), LinkState("a-b", 1, "55" * 16, 8))
"""


@pytest.mark.parametrize("at", ["write", "fsync", "rename"])
def test_killed_on_the_way_the_old_state_stands(tmp_path: Path, at: str) -> None:
    save(tmp_path, STATE)
    ended = subprocess.run([sys.executable, "-c", _DIES, str(tmp_path), at], check=False)
    assert ended.returncode == -9
    assert load(tmp_path, "a-b") == STATE
    save(tmp_path, replace(STATE, number=8))
    assert [path.name for path in tmp_path.iterdir()] == ["a-b.json"]  # and what the dead one left is gone


def test_killed_at_any_time_it_is_one_state_or_the_other(tmp_path: Path) -> None:
    script = """
import sys
from dataclasses import replace
from pathlib import Path
from dinnet.host.macsec_state import LinkState, save
state = LinkState("a-b", 1, "55" * 16, 0)
print("on", flush=True)
while True:
    state = replace(state, number=state.number + 1)
    save(Path(sys.argv[1]), state)
    print(state.number, flush=True)
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    for _ in range(5):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(20)]
            process.kill()
            lines += process.stdout.read().splitlines()
        told = int([line for line in lines if line.strip()][-1])
        found = load(tmp_path, "a-b")
        assert found is not None and found.number in (told, told + 1)
        forget(tmp_path, "a-b")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
@pytest.mark.root
def test_a_full_disk_leaves_the_old_state(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "dinnet-test", str(small)], check=True)
    try:
        save(small, STATE)
        with (small / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError, match="No space"):
            while True:
                filler.write(bytes(4096))
        with pytest.raises(DinnetError, match="no key was changed"):
            save(small, replace(STATE, number=8))
        assert load(small, "a-b") == STATE
        assert sorted(path.name for path in small.iterdir()) == ["a-b.json", "filler"]
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_only_one_works_on_a_link_at_a_time(tmp_path: Path) -> None:
    order: list[str] = []

    def other() -> None:
        with locked(tmp_path / "new", "a-b"):
            order.append("other")

    with locked(tmp_path / "new", "a-b"), locked(tmp_path / "new", "a-c"):
        thread = threading.Thread(target=other)
        thread.start()
        time.sleep(0.1)  # in which the other would come first if nothing held it
        order.append("first")
    thread.join()
    assert order == ["first", "other"]
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
