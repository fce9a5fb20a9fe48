"""The P4Runtime server of the embedded switch comes and goes; time-outs and batches meet the real data plane."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import capturekit as kit
import grpc
import pytest
import switchkit
from namespacekit import until
from switchkit import MACS, SWITCH, exchange, wired
from test_switch_cli import dinnet, server

pytest.importorskip("pyroute2", reason="needs pyroute2, which attaches the switch")
pytest.importorskip("finsy", reason="needs finsy, which brings P4Runtime's messages")

from finsy.proto import p4r
from p4infokit import TABLES
from p4rtkit import INSERT, Client, action, entry, exact, microflow, microflows, running, update

from dinnet.dataplane.conformance.wires import wires
from dinnet.switch.attach import PortConfig, Switch
from dinnet.switch.contract import Action, Collector, Forward, IntEvent, IntNode, Sizes
from dinnet.switch.ebpf import EbpfTarget
from dinnet.switch.sliceselect import Match, Watch, Watched
from dinnet.switch.snapshot import opened

pytestmark = [switchkit.needs_bpf, pytest.mark.root]
SIZES = Sizes(microflows=1024, flows=1024)


@pytest.mark.slow
def test_server_killed_three_times_under_traffic(tmp_path: Path) -> None:
    """Every datagram is answered, and each new server has all entries with what was noted on them."""
    config, log, socket = tmp_path / "s.yaml", tmp_path / "log", f"unix:{tmp_path}/p4rt"
    config.write_text(
        f"netns: {SWITCH}\nports: {{1: p1, 2: p2}}\np4runtime: {{listen: '{socket}'}}\n"
        "tables: {microflows: 1024, flows: 1024}\n"
    )
    stations = [
        entry("forward_l2", exact(1, b"\0"), exact(2, mac.to_bytes(6)), action=action("to_port", bytes([port])),
              metadata=b"host %d" % port)
        for port, mac in enumerate(MACS, start=1)
    ]  # fmt: skip
    entries = [*stations, *(u.entity.table_entry for u in microflows(range(50), metadata=b"job"))]
    errors: list[BaseException] = []
    rounds, done = [0], threading.Event()

    def traffic() -> None:
        try:
            while not done.is_set():
                exchange(10)
                rounds[0] += 1
        except BaseException as error:  # noqa: BLE001 - handed to the test
            errors.append(error)

    def read(client: Client) -> list[str]:
        return sorted(map(str, client.read(table_entry=p4r.TableEntry())))

    worker = threading.Thread(target=traffic)
    with wired():
        try:
            with server(config, log) as process, Client(socket) as client:
                client.arbitrate()
                client.set_pipeline()
                client.write(*(update(INSERT, table_entry=each) for each in entries))
                before = read(client)
                assert len(before) == 52
                worker.start()
                until(lambda: rounds[0] > 2 or bool(errors), "traffic")
                process.send_signal(signal.SIGKILL)
                process.wait()
            for _ in range(3):
                at = rounds[0]
                until(lambda at=at: rounds[0] > at + 2 or bool(errors), "traffic without a server")
                with server(config, log) as process, Client(socket) as client:
                    assert read(client) == before
                    at = rounds[0]
                    until(lambda at=at: rounds[0] > at + 2 or bool(errors), "traffic with it")
                    process.send_signal(signal.SIGKILL)
                    process.wait()
            done.set()
            worker.join()
            assert not errors
            with opened(SWITCH) as datapath:
                assert datapath.parsed()[1].packets == 20 * rounds[0]
                assert all(cell.packets == 0 for cell in datapath.drops().values())
        finally:
            done.set()
            with contextlib.suppress(RuntimeError):
                worker.join()
            dinnet("down", "--netns", SWITCH)


def test_restarts_double_no_copy_and_no_report_and_reports_are_not_reported_on() -> None:
    """After three restarts one packet is still one packet, one copy a flooded port, and one report; the watch list is
    everything but the collector's own path, and the reports' way leads back through the switch."""
    with wires(4) as ports:
        configs = [PortConfig(number, f"p{number}") for number in ports.ports]
        for turn in range(4):
            with Switch.up(configs, namespace=ports.namespace, sizes=SIZES) as switch:
                assert switch.adopted == (turn > 0)
                pipe = switch.datapath
                target = EbpfTarget(switch)
                if not turn:
                    pipe.set_group(1, [1, 2, 3])
                    pipe.station(0, 0xFFFFFFFFFFFF, Forward(Action.FLOOD, 1))
                    pipe.set_default_forward(Forward(Action.PORT, 2))
                    pipe.set_collector(Collector(4, 0x0A, 0x0B, 0x0A000001, 0x0A0000FE, 40000, 32766))
                    for port in (1, 2, 4):
                        pipe.set_int_node(port, IntNode(7, is_sink=True))
                    collector = 0x0A0000FE | 0xFFFF << 32
                    own = Match(dst=(collector, 2**128 - 1), proto=(17, 255), dport=(32766, 0xFFFF))
                    rest = Watched(Match(), 1, Watch.XD, 0, 0x4000)
                    assert pipe.int_source.insert([Watched(own, 9, Watch.NONE, 0, 0), rest]) == [0, 0]
                with running(target) as _:
                    ports.send(1, kit.ethernet(kit.ipv4(kit.udp(1, 2, b"x" * 20), 17)))
                    out: list[tuple[int, bytes]] = []
                    until(lambda out=out: len(out.extend(ports.received()) or out) >= 2, "the packet and its report")
                    (report,) = [frame for port, frame in out if port == 4]
                    assert [port for port, _ in out if port != 4] == [2]
                    # The report comes in again, as where the collector is behind the same switch.
                    ports.send(3, report)
                    ports.send(1, b"\xff" * 6 + bytes(6) + b"\x88\xb5" + bytes(46))
                    out.clear()
                    until(lambda out=out: len(out.extend(ports.received()) or out) >= 3, "report and copies")
                    time.sleep(0.2)  # for what must not come
                    out += ports.received()
                    assert sorted(port for port, _ in out) == [2, 2, 3]
                assert pipe.int_events()[IntEvent.REPORTED].packets == turn + 1
                if turn == 3:
                    switch.down()


@pytest.fixture
def served() -> Iterator[tuple[Switch, Client]]:
    with wired(), Switch.up([PortConfig(1, "p1"), PortConfig(2, "p2")], namespace=SWITCH, sizes=SIZES) as switch:
        with running(EbpfTarget(switch)) as up, Client(up.address) as client:
            client.arbitrate()
            client.set_pipeline()
            yield switch, client
        switch.down()


def flow_of_exchange(**fields: object) -> p4r.TableEntry:
    values = [b"\xff\xff\x0a\x09\0\1", b"\xff\xff\x0a\x09\0\2", b"\x11", b"\x13\x88", b"\x13\x88", b"\0", b"\0"]
    mark = action("set_mark", b"\1", b"\3", b"\1")
    return entry("microflow", *(exact(at, v) for at, v in enumerate(values, 1)), action=mark, **fields)


def test_entries_are_idle_when_no_packet_hits_them(served: tuple[Switch, Client]) -> None:
    """Packets put the notification off; then it comes, again and again, and for entries without a time-out never."""
    switch, client = served
    for number, mac in enumerate(MACS, start=1):
        switch.datapath.station(0, mac, Forward(Action.PORT, number))
    limit_ns = 1_500_000_000
    client.write(
        update(INSERT, table_entry=flow_of_exchange(idle_timeout_ns=limit_ns, metadata=b"cookie")),
        update(INSERT, table_entry=microflow(1)),
    )
    end = time.monotonic() + 2.5
    while time.monotonic() < end:
        exchange(1)
        last = time.monotonic()
        assert client.received.empty()
    for turn in (1, 2):
        told = client.receive("idle_timeout_notification")
        (idle,) = told.table_entry
        assert (idle.match, idle.metadata) == (flow_of_exchange().match, b"cookie")
        assert time.monotonic() >= last + turn * limit_ns / 1e9 - 0.1
    wanted = p4r.TableEntry(table_id=TABLES["microflow"], time_since_last_hit=p4r.TableEntry.IdleTimeout())
    since = {each.metadata: each.time_since_last_hit.elapsed_ns for each in client.read(table_entry=wanted)}
    assert since[b"cookie"] >= 2 * limit_ns - 10**8


@pytest.mark.parametrize("atomicity", ["ROLLBACK_ON_ERROR", "DATAPLANE_ATOMIC"])
def test_atomic_batches_are_refused_and_nothing_of_them_is_done(served: tuple[Switch, Client], atomicity: str) -> None:
    switch, client = served
    client.write(*microflows([1]))
    before = client.read(table_entry=p4r.TableEntry())
    gone = update(p4r.Update.DELETE, table_entry=microflow(1))
    with pytest.raises(grpc.RpcError) as refused:
        client.write(gone, *microflows([2, 3]), atomicity=p4r.WriteRequest.Atomicity.Value(atomicity))
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert client.read(table_entry=p4r.TableEntry()) == before
    assert len(switch.datapath.microflows.all()[0]) == 1


def test_traffic_before_any_controller_is_dropped_counted_and_recorded() -> None:
    with wired(), Switch.up([PortConfig(1, "p1"), PortConfig(2, "p2")], namespace=SWITCH, sizes=SIZES) as switch:
        with running(EbpfTarget(switch)):
            for _ in range(6):
                subprocess.run(
                    ["ip", "netns", "exec", switchkit.HOSTS[0], "bash", "-c", "echo -n x >/dev/udp/10.9.0.2/5000"],
                    check=True,
                )
            until(lambda: switch.datapath.parsed()[1].packets == 6, "the packets")
            (dropped,) = [cell.packets for cell in switch.datapath.drops().values() if cell.packets]
            assert dropped == 6
            assert sum(int(row["fwd_packets"]) for rows in switch.datapath.flow_table() for row in rows) == 6
        switch.down()
