"""The namespace testbed for real: its links keep their rate, delay and loss, and nothing is left of it afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dinnet.capture import open_capture
from dinnet.classifier.corpus import GROUPS, LabelledRecords
from dinnet.errors import DinnetError
from dinnet.netns import NETNS_FOLDER, inside
from dinnet.testbed.network import Link, Network, leftovers, network, remove_leftovers, require_root
from dinnet.testbed.recorder import record

root = pytest.mark.root
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")


def namespaces(pid: int) -> list[str]:
    return sorted(path.name for path in NETNS_FOLDER.glob(f"dn{pid}.*"))


def wait_for(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.05)
    return found


@contextlib.contextmanager
def sockets(net: Network, kind: socket.SocketKind) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A client's socket connected to a server's: (client, server's end)."""
    family = socket.AF_INET if net.link.ip == 4 else socket.AF_INET6
    with contextlib.ExitStack() as stack:
        with inside(net.namespace("server")):
            bound = stack.enter_context(socket.socket(family, kind))
        with inside(net.namespace("client")):
            client = stack.enter_context(socket.socket(family, kind))
        bound.bind((net.address("server"), 0))
        if kind == socket.SOCK_STREAM:
            bound.listen()
        for one in (bound, client):
            one.settimeout(30)
        client.connect(bound.getsockname())
        far = stack.enter_context(bound.accept()[0]) if kind == socket.SOCK_STREAM else bound
        far.settimeout(30)
        yield client, far


def round_trip_s(net: Network) -> float:
    """The shortest of several round trips over TCP: load on the machine only ever adds."""
    times = []
    with sockets(net, socket.SOCK_STREAM) as (client, server):
        for _ in range(12):
            started = time.monotonic()
            client.sendall(b"?")
            server.recv(1)
            server.sendall(b"!")
            client.recv(1)
            times.append(time.monotonic() - started)
    return min(times)


def transfer_s(net: Network, size: int) -> float:
    """Time to move `size` bytes over TCP."""
    with sockets(net, socket.SOCK_STREAM) as (client, server):
        started = time.monotonic()
        child = os.fork()
        if child == 0:
            client.sendall(bytes(size))
            os._exit(0)
        left = size
        while left:
            left -= len(server.recv(1 << 18))
        took = time.monotonic() - started
        os.waitpid(child, 0)
    return took


@root
@needs_root
def test_delay_in_both_ip_versions(tmp_path: Path) -> None:
    times = {}
    for delay_ms, ip in ((6, 4), (24, 4), (24, 6)):
        with network(Link(rate_mbit=100, delay_ms=delay_ms, ip=ip), tmp_path) as net:
            times[delay_ms, ip] = round_trip_s(net)
    assert 2.0 < times[24, 4] / times[6, 4] < 4.2
    assert 0.5 < times[24, 6] / times[24, 4] < 2.0


@root
@needs_root
@pytest.mark.parametrize("bottleneck", ["host", "switch"])
def test_rate(tmp_path: Path, bottleneck: str) -> None:
    size = 1_500_000
    times = {}
    for rate_mbit in (10, 40):
        link = Link(rate_mbit=rate_mbit, bottleneck=bottleneck)
        with network(link, tmp_path) as net:
            times[rate_mbit] = transfer_s(net, size)
    # A link can only be slower than its rate, and a full token bucket may let a little more through at the start.
    assert size * 8 / times[40] < 40e6 * 1.1
    assert size * 8 / times[10] < 10e6 * 1.1
    assert 2.0 < times[10] / times[40] < 5.0


@root
@needs_root
def test_loss(tmp_path: Path) -> None:
    sent = 400
    link = Link(rate_mbit=100, loss=0.3)
    with network(link, tmp_path, seed=5) as net, sockets(net, socket.SOCK_DGRAM) as (client, server):
        client.send(b"first")  # may be lost: neighbour discovery may take its time, too
        for number in range(sent):
            client.send(number.to_bytes(2, "big"))
            time.sleep(0.0005)  # slower than any queue on the way
        server.settimeout(1.0)
        arrived = 0
        with contextlib.suppress(TimeoutError):
            while True:
                arrived += len(server.recv(64)) == 2
    # Binomial: 400 * 0.7 = 280, deviation 9.2; five deviations each way.
    assert 234 <= arrived <= 326


@root
@needs_root
@pytest.mark.parametrize(("offload", "delay_ms"), [(False, 0), (True, 0), (False, 1), (True, 1)])
def test_offload_shows_in_the_capture_and_passes_the_relay(tmp_path: Path, offload: bool, delay_ms: float) -> None:
    link = Link(rate_mbit=400, delay_ms=delay_ms, offload=offload)
    with network(link, tmp_path) as net, record(*net.tap, tmp_path / "x.pcap") as recorded:
        transfer_s(net, 2_000_000)
    assert recorded.dropped == 0
    with open_capture(tmp_path / "x.pcap") as capture:
        lengths = np.concatenate([batch["ip_bytes"][batch["proto"] == 6].copy() for batch in capture.batches()])
        assert capture.stats.frames == recorded.frames
    assert (lengths.max() > link.mtu) == offload
    # Every byte is there, with its headers, whichever way it was cut.
    assert 2_000_000 < lengths.sum() < 2_000_000 * 1.2


@root
@needs_root
def test_hosts_use_cubic_and_the_machine_keeps_its_list(tmp_path: Path) -> None:
    allowed = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
    with network(Link(rate_mbit=100), tmp_path) as net:
        for host in net.hosts:
            with inside(net.namespace(host)):
                assert Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip() == "cubic"
        assert len(allowed.read_text().split()) == len(set(allowed.read_text().split()))


@root
@needs_root
def test_nothing_is_left_after_an_exception(tmp_path: Path) -> None:
    home = Path("/proc/self/ns/net").readlink()
    with pytest.raises(ZeroDivisionError), network(Link(rate_mbit=100, delay_ms=5), tmp_path) as net:
        assert len(namespaces(os.getpid())) == 3
        relay = net.children[0].pid
        raise ZeroDivisionError
    assert namespaces(os.getpid()) == []
    assert not Path(f"/proc/{relay}").exists()
    assert Path("/proc/self/ns/net").readlink() == home


@root
@needs_root
def test_two_networks_stand_side_by_side(tmp_path: Path) -> None:
    link = Link(rate_mbit=100)
    with network(link, tmp_path) as one, network(link, tmp_path) as two:
        assert len({one.switch, two.switch, one.namespace("client"), two.namespace("client")}) == 4
        assert round_trip_s(one) > 0
        assert round_trip_s(two) > 0


TINY = """
name: tiny
seed: 4
duration_s: {seconds}
link: {{rate_mbit: 100, delay_ms: 1}}
workloads:
  - {{name: web/rest-json, byte_budget: 300_000}}
  - {{name: ntp/udp}}
  - {{name: prompt/http-json, model: smollm2-135m, byte_budget: 300_000}}
  - {{name: control/heartbeat-tcp}}
"""


def start_demo(folder: Path, seconds: float) -> subprocess.Popen[str]:
    config = folder / "tiny.yaml"
    config.write_text(TINY.format(seconds=seconds))
    command = [sys.executable, "-m", "dinnet", "testbed", "demo", "-c", str(config), "--out", str(folder / "out")]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in tasks.read_text().split()] if tasks.exists() else []


@root
@needs_root
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_nothing_is_left_after_a_signal(tmp_path: Path, number: int, code: int) -> None:
    runner = start_demo(tmp_path, 120)
    # Relay, tcpdump, four servers and four clients.
    children = wait_for(lambda: found if len(found := children_of(runner.pid)) >= 10 else None)
    assert len(namespaces(runner.pid)) == 3
    runner.send_signal(number)
    _, errors = runner.communicate(timeout=60)
    assert runner.returncode == code
    assert "Traceback" not in errors
    assert namespaces(runner.pid) == []
    wait_for(lambda: not [child for child in children if _running(child)])


@root
@needs_root
def test_a_killed_run_is_swept(tmp_path: Path) -> None:
    runner = start_demo(tmp_path, 120)
    children = wait_for(lambda: found if len(found := children_of(runner.pid)) >= 10 else None)
    assert not set(leftovers()) & set(namespaces(runner.pid))  # it lives: hands off
    runner.kill()
    runner.communicate(timeout=60)
    left = namespaces(runner.pid)
    assert len(left) == 3
    wait_for(lambda: not [child for child in children if _running(child)])
    assert set(left) <= set(leftovers())
    assert set(left) <= set(remove_leftovers())
    assert namespaces(runner.pid) == []


def _running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@root
@needs_root
def test_a_scenario_from_end_to_end(tmp_path: Path) -> None:
    from dinnet.testbed.corpus import complete, corpus_file, record_corpus, relabel
    from dinnet.testbed.scenario import Scenario
    from dinnet.testbed.workloads import catalogue
    from dinnet.yamlfile import load_yaml

    config = tmp_path / "tiny.yaml"
    config.write_text(TINY.format(seconds=1.5))
    scenario = load_yaml(config, Scenario)
    out = tmp_path / "corpus"
    (progress,) = record_corpus([scenario], out, catalogue(), keep_captures=True)
    assert progress.error is None
    assert progress.joined is not None
    assert progress.recording is not None
    labelled = progress.joined.labelled
    assert set(labelled.transports) == {run.name for run in scenario.workloads}
    for name, group in zip(
        ("web/rest-json", "ntp/udp", "prompt/http-json", "control/heartbeat-tcp"),
        ("other", "other", "prefill", "control"),
        strict=True,
    ):
        rows = labelled.transport == labelled.transports.index(name)
        assert {GROUPS[index] for index in labelled.group[rows]} == {group}
    # A label for each connection, and of each at least one record; NTP packets are 48 bytes and 28 of headers.
    assert progress.joined.unmatched_labels == 0
    ntp = labelled.records[labelled.transport == labelled.transports.index("ntp/udp")]
    assert set(ntp["proto"]) == {17}
    assert np.array_equal(ntp["fwd_bytes"], 76 * ntp["fwd_packets"])
    assert (out / "captures" / "tiny.pcap").stat().st_size > 10_000
    assert not (out / "failed").exists()
    assert complete(corpus_file(out, scenario), scenario)
    # The kept capture gives the same records again.
    ((again, _),) = relabel(out / "captures", tmp_path / "relabelled")
    recorded = LabelledRecords.load(corpus_file(out, scenario))
    assert LabelledRecords.load(again).digest() == recorded.digest()
    # Again: it is there, and nothing is recorded.
    (second,) = record_corpus([scenario], out, catalogue())
    assert second.recording is None
    assert second.error is None
    # Another description of the same name is recorded anew.
    assert not complete(corpus_file(out, scenario), scenario.model_copy(update={"seed": 5}))


@root
@needs_root
def test_a_failing_workload_is_named_and_its_log_kept(tmp_path: Path) -> None:
    from dinnet.testbed.corpus import record_corpus
    from dinnet.testbed.scenario import Scenario, WorkloadRun
    from dinnet.testbed.workloads import catalogue
    from dinnet.testbed.workloads.background.datagrams import Ntp
    from dinnet.testbed.workloads.base import LabelLog

    class Broken(Ntp):
        async def drive(self, server: tuple[str, int], log: LabelLog) -> None:
            raise RuntimeError("out of ideas")

    workloads = catalogue() | {"ntp/udp": Broken}
    link = Link(rate_mbit=100)
    scenario = Scenario(name="bad", duration_s=1, link=link, workloads=(WorkloadRun(name="ntp/udp"),))
    (progress,) = record_corpus([scenario], tmp_path, workloads)
    assert isinstance(progress.error, DinnetError)
    assert "client of ntp/udp failed: RuntimeError: out of ideas" in str(progress.error)
    logs = list((tmp_path / "failed" / "bad").glob("*.client.log"))
    assert ["out of ideas" in log.read_text() for log in logs] == [True]
    assert f"(log: {logs[0]})" in str(progress.error)
    assert not list(tmp_path.glob("train/*.npz"))
    assert namespaces(os.getpid()) == []


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(DinnetError, match="needs root"):
        require_root()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(DinnetError, match="needs tcpdump, which is not installed"):
        require_root("tcpdump")
