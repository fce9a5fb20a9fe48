"""`dinnet switch` as an operator types it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import switchkit
from namespacekit import until
from switchkit import SWITCH, wired

pytest.importorskip("pyroute2", reason="needs pyroute2, which attaches the switch")
pytest.importorskip("finsy", reason="needs finsy, which brings P4Runtime's messages")

from dinnet.errors import DinnetError
from dinnet.switch.attach import attached
from dinnet.switch.config import load_config

DINNET = [sys.executable, "-m", "dinnet", "switch"]


def dinnet(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*DINNET, *arguments], capture_output=True, text=True, check=False)


@contextmanager
def server(config: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        process = subprocess.Popen([*DINNET, "up", "-c", str(config)], stderr=out)
    try:
        until(lambda: "P4Runtime on" in log.read_text() or process.poll() is not None, "the server to start")
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.root
@switchkit.needs_bpf
def test_up_look_kill_take_over_down(tmp_path: Path) -> None:
    config, log = tmp_path / "s.yaml", tmp_path / "log"
    config.write_text(
        f"netns: {SWITCH}\nports: {{1: p1, 2: p2}}\n"
        f"p4runtime: {{listen: 'unix:{tmp_path}/p4rt'}}\ntables: {{microflows: 1024, flows: 1024}}\n"
    )
    here = ("--netns", SWITCH)
    with wired():
        gone = dinnet("status", *here)
        assert (gone.returncode, gone.stderr.count("\n")) == (1, 1)
        assert "no dinnet switch is in force" in gone.stderr
        try:
            with server(config, log) as first:
                assert f"is up: 2 ports in network namespace {SWITCH}" in log.read_text()
                second = dinnet("up", "-c", str(config))
                assert (second.returncode, second.stderr.count("\n")) == (1, 1)
                assert "another dinnet switch is running" in second.stderr
                refused = dinnet("down", *here)
                assert refused.returncode == 1
                first.kill()
                first.wait()
            assert [each.interface for each in attached(SWITCH)] == ["p1", "p2"]
            with server(config, log) as again:
                assert "taken over" in log.read_text()
                status = dinnet("status", *here, "--format", "json")
                told = json.loads(status.stdout)
                assert [port["interface"] for port in told["ports"]] == ["p1", "p2"]
                assert set(told["drops"]) >= {"no_route", "malformed", "ttl"}
                assert "p2" in dinnet("status", *here).stdout
                assert "/s" in dinnet("top", *here, "--count", "1", "--interval", "0.2").stdout
                listed = dinnet("dump", "ports", *here).stdout.splitlines()
                assert [json.loads(line)["number"] for line in listed] == [1, 2]
                frame = "ff" * 6 + "02" * 6 + "0806" + "00" * 28
                assert "dropped: no route" in dinnet("trace", "1", frame, *here).stdout
                assert dinnet("trace", "1", "zz", *here).returncode == 2
                again.send_signal(signal.SIGTERM)
                assert again.wait(30) == 0
            assert "goes on forwarding" in log.read_text()
        finally:
            down = dinnet("down", *here)
        assert (down.returncode, down.stdout) == (0, "taken away from p1, p2\n")
        assert not attached(SWITCH)


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("ports: {1: eth0}\nspeed: 7", 2, "speed: unknown key"),
        ("name: x", 1, "ports: this key is missing"),
        ("ports:\n  1: eth0\n  2: eth0", 1, "interface eth0 is there twice"),
        ("ports:\n  510: eth0", 1, "port numbers go from 0 to 509"),
        ("ports: {1: eth0}\ntables:\n  flows: 1000000", 3, "not a power of two"),
        ("ports: {1: a/b}", 1, "should match pattern"),
        ("ports: {1: eth0}\ndevice_id: 0", 2, "device_id"),
    ],
)
def test_a_wrong_description_is_told_with_its_line(tmp_path: Path, text: str, line: int, reason: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    with pytest.raises(DinnetError) as caught:
        load_config(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert reason in str(caught.value)


def test_the_example_is_a_description() -> None:
    assert load_config(Path(__file__).parents[2] / "examples" / "switch.yaml").ports == {1: "eth1", 2: "eth2"}


def test_certificates_lie_beside_the_description(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("ports: {1: eth0}\np4runtime: {tls: {cert: c.pem, key: keys/k.pem}}\n")
    tls = load_config(path).p4runtime.tls
    assert tls is not None
    assert (tls.cert, tls.key, tls.client_ca) == (tmp_path / "c.pem", tmp_path / "keys/k.pem", None)


@pytest.mark.skipif(os.geteuid() == 0, reason="only without root")
def test_without_root_one_line_says_so(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("ports: {1: lo}\n")
    done = dinnet("up", "-c", str(path))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
