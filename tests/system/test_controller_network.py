"""The controller with a real switch and real queues: up, again, killed, another intent, down."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import switchkit
from controllerkit import all_in_force, await_status, dinnet, intent, running, switch, total_changes, write
from namespacekit import until
from switchkit import SWITCH, exchange, wired

pytest.importorskip("pyroute2", reason="needs pyroute2, which attaches the switch")
pytest.importorskip("finsy", reason="needs finsy, which brings P4Runtime's messages")
pytest.importorskip("prometheus_client", reason="needs prometheus-client")

pytestmark = [switchkit.needs_bpf, pytest.mark.root]


@pytest.fixture
def p4rt(tmp_path: Path) -> Iterator[Path]:
    with wired(), switch(tmp_path) as place:
        yield place


def classes(device: str) -> dict[str, str]:
    """HTB classes by their number, as tc tells them."""
    command = ["tc", "-n", SWITCH, "class", "show", "dev", device]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {line.split()[2]: line for line in lines if line.startswith("class htb")}


def test_up_makes_it_so_again_changes_nothing_and_down_takes_it_away(tmp_path: Path, p4rt: Path) -> None:
    path = write(tmp_path / "intent.yaml", intent(tmp_path, p4rt))
    found = dinnet("controller", "plan", "-c", path, "--detailed-exitcode")
    assert found.returncode == 2, found.stderr
    assert "+ forward_l2(" in found.stdout and "+ p1: qdisc" in found.stdout
    assert classes("p1") == {}

    with running(tmp_path / "up.log", "controller", "up", "-c", path) as controller:
        await_status(path, all_in_force, "everything is in force")
        exchange(20)
        # Slice 1 (realtime) has 50 % of 100 Mbit/s; its token queue (tc 3) 35 % of that. Class: 0x10 + slice * 4 + tc.
        assert " rate 17500Kbit ceil 100Mbit " in classes("p1")["1:17"]
        found = dinnet("controller", "plan", "-c", path, "--detailed-exitcode")
        assert (found.returncode, found.stdout) == (0, "nothing to change\n"), found.stderr
        refused = dinnet("controller", "down", "-c", path)
        assert refused.returncode == 1 and "stop it first" in refused.stderr
        assert controller.end() == 0
    exchange(20)

    with running(tmp_path / "again.log", "controller", "up", "-c", path) as again:
        assert total_changes(await_status(path, all_in_force, "the second one is content")) == 0, again.said()
        again.end()

    done = dinnet("controller", "down", "-c", path)
    assert done.returncode == 0, done.stderr
    assert classes("p1") == {}
    found = dinnet("controller", "plan", "-c", path, "-f", "json")
    devices = {each["name"]: each for each in json.loads(found.stdout)["devices"]}
    assert len(devices["sw"]["changes"]) == 5  # 2 ports, 2 stations, the digest


def test_what_is_changed_behind_its_back_is_put_right(tmp_path: Path, p4rt: Path) -> None:
    path = write(tmp_path / "intent.yaml", intent(tmp_path, p4rt))
    with running(tmp_path / "up.log", "controller", "up", "-c", path):
        await_status(path, all_in_force, "everything is in force")
        before = classes("p2")
        subprocess.run(["tc", "-n", SWITCH, "qdisc", "del", "dev", "p2", "root"], check=True)
        until(lambda: classes("p2").keys() == before.keys(), "the queues are back")
        subprocess.run(["ip", "-n", SWITCH, "link", "set", "p2", "down"], check=True)
        subprocess.run(["ip", "-n", SWITCH, "link", "set", "p2", "up"], check=True)
        await_status(path, all_in_force, "everything is in force again")
        exchange(5)


def test_a_bad_intent_over_a_good_one_changes_nothing(tmp_path: Path, p4rt: Path) -> None:
    good = intent(tmp_path, p4rt)
    path = write(tmp_path / "intent.yaml", good)
    kept = tmp_path / "state"
    with running(tmp_path / "up.log", "controller", "up", "-c", path, "--state", kept) as controller:
        before = total_changes(await_status(path, all_in_force, "everything is in force"))
        bad = {**good, "links": {**good["links"], "left": {"ends": ["box/p9"], "rate": "100mbit"}}}
        copy = write(tmp_path / "good.yaml", good)
        write(path, bad)
        told = await_status(copy, lambda now: now["problem"] != "", "the bad one was looked at")
        assert "host box has no interface p9" in told["problem"]
        assert total_changes(told) == before and all_in_force(told)
        controller.end(signal.SIGKILL)
        exchange(20)

    with running(tmp_path / "again.log", "controller", "up", "-c", path, "--state", kept):
        told = await_status(copy, all_in_force, "the last good one is in force")
        assert total_changes(told) == 0 and "no interface p9" in told["problem"]
        better = {**good, "links": {**good["links"], "left": {"ends": ["box/p1", "sw/1"], "rate": "80mbit"}}}
        write(path, better)
        told = await_status(copy, lambda now: now["problem"] == "" and total_changes(now) > 0, "the better one")
        changes = [each["change"] for device in told["devices"] for each in device["last_changes"]]
        assert all(change.startswith("~ p1: ") for change in changes), changes


def test_killed_at_any_moment_the_next_one_ends_with_the_same(tmp_path: Path, p4rt: Path) -> None:
    path = write(tmp_path / "intent.yaml", intent(tmp_path, p4rt))
    for number in range(6):
        with running(tmp_path / "up.log", "controller", "up", "-c", path) as controller:
            # From before the first write to after the last: its start takes some seconds of imports.
            until(lambda c=controller: "in charge" in c.said() or c.process.poll() is not None, "it is in charge")
            try:
                controller.process.wait(number * 0.02)
            except subprocess.TimeoutExpired:
                controller.end(signal.SIGKILL)
    with running(tmp_path / "up.log", "controller", "up", "-c", path):
        await_status(path, all_in_force, "everything is in force")
        exchange(5)
    with running(tmp_path / "last.log", "controller", "up", "-c", path):
        assert total_changes(await_status(path, all_in_force, "everything is in force")) == 0
