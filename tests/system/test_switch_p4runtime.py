"""The embedded switch behind its P4Runtime server: what a client writes is what packets meet."""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import switchkit
from namespacekit import until, within
from switchkit import HOSTS, MACS, SWITCH, exchange, wired

pytest.importorskip("pyroute2", reason="needs pyroute2, which attaches the switch")
pytest.importorskip("finsy", reason="needs finsy, which brings P4Runtime's messages")

from finsy.proto import p4r
from p4infokit import ACTIONS, COUNTERS, FLOW_RECORD, SLICE_METER, TABLES, dinnet_p4info
from p4rtkit import INSERT, Client, exact, lpm, running, update

from dinnet.switch.attach import PortConfig, Switch
from dinnet.switch.contract import Drop, Sizes
from dinnet.switch.ebpf import CPU_PORT, NO_PORT, EbpfTarget
from dinnet.switch.p4info import P4Info, parse_p4info
from dinnet.switch.target import (
    CloneSession,
    CounterData,
    Entry,
    MeterConfig,
    MulticastGroup,
    Pipeline,
    Port,
    Replica,
)

pytestmark = [switchkit.needs_bpf, pytest.mark.root]
SIZES = Sizes(microflows=1024, flows=1024)
PORTS = [PortConfig(1, "p1"), PortConfig(2, "p2")]
FULL = 2**128 - 1


class Heard:
    """Keeps events."""

    is_behind = False

    def __init__(self) -> None:
        self.rows: list[tuple[int, ...]] = []
        self.packets: list[tuple[bytes, tuple[int, ...]]] = []

    def digests(self, digest_id: int, rows: Sequence[tuple[int, ...]]) -> None:
        assert digest_id == FLOW_RECORD
        self.rows += rows

    def packet_in(self, payload: bytes, metadata: tuple[int, ...]) -> None:
        self.packets.append((payload, metadata))

    def idle(self, table_id: int, entries: Sequence[Entry]) -> None:
        raise AssertionError("nothing is idle")


@pytest.fixture
def switch() -> Iterator[Switch]:
    with wired(), Switch.up(PORTS, namespace=SWITCH, sizes=SIZES) as switch:
        yield switch
        if switch.datapath.program.fd >= 0:
            switch.down()


def pipeline() -> Pipeline:
    message = dinnet_p4info()
    return Pipeline(parse_p4info(message), message.SerializeToString(), b"config", 9)


def mapped(address: str) -> int:
    return int(ipaddress.IPv4Address(address)) | 0xFFFF << 32


def entry(name: str, match: tuple[int, ...], action: str, *params: int, **more: Any) -> tuple[str, Entry]:
    return name, Entry(match, action_id=ACTIONS[action], params=params, **more)


MICROFLOW = (mapped("10.9.0.1"), mapped("10.9.0.2"), 17, 5000, 5000, 0, 0)
ALL = [
    entry("ingress_port", (1,), "configure_port", 1, 0, metadata=b"uplink"),
    entry("ingress_port", (2,), "configure_port", 0, 0),
    entry("ingress_port", (77,), "configure_port", 0, 1, controller_metadata=7),  # there is no such port yet
    entry("forward_v4", (0x0A090000, 16), "route", 1, 5, 6, metadata=bytes(range(256)), controller_metadata=2**64 - 1),
    entry("forward_v4", (0x0A000000, 8), "drop"),
    entry("forward_v6", (0x20010DB8 << 96, 32), "to_controller"),
    entry("forward_l2", (0, MACS[0]), "to_port", 1),
    entry("forward_l2", (7, MACS[1]), "flood", 300),
    entry("dscp_to_mark", (46,), "read_dscp", 1, 3),
    entry("slice_select", (0, 0, 0, 0, 0, 0, 17, 255, 0, 0, 0, 0, 0, 0), "set_slice", 2, 1, priority=7),
    entry(
        "slice_select", (0, 0, 0, 0, 0, 0, 17, 255, 0, 0, 0, 0, 0, 0), "set_slice", 3, 1, priority=8, metadata=b"m" * 52
    ),
    entry(
        "microflow",
        MICROFLOW,
        "set_mark",
        1,
        3,
        99,
        meter=MeterConfig(1, 2, 3, 4),
        idle_timeout_ns=10**12,
        metadata=b"job 7",
        controller_metadata=9,
    ),
    entry("microflow", (1, 2, 6, 3, 4, 5, 6), "set_mark", 15, 0, 2**32 - 1),
    entry("exceed", (5, 1), "reroute", 2, 3, 4),
    entry("exceed", (5, 2), "drop"),
    entry("mark_to_dscp", (1, 3), "set_dscp", 46),
]
FLOW = next(each for _, each in ALL if each.match == MICROFLOW)


def books(target: EbpfTarget, info: P4Info) -> dict[str, set[Entry]]:
    return {table.alias: set(target.entries(table)) for table in info.tables.values()}


def test_everything_is_there_again_for_the_next_owner(switch: Switch) -> None:
    target, given = EbpfTarget(switch), pipeline()
    info = given.info
    target.verify(given)
    target.load(given, keep=False)
    for name, each in ALL:
        assert target.insert(info.table(name), [each]) == {}, name
    assert list(target.insert(info.table(ALL[0][0]), [ALL[0][1]])) == [0]
    target.set_default(info.table("forward_l2"), Entry((), action_id=ACTIONS["flood"], params=(300,)))
    target.set_default(info.table("exceed"), Entry((), action_id=ACTIONS["drop"], metadata=b"strict"))
    target.set_group(MulticastGroup(300, (Replica(1, 0), Replica(2, 9, is_old_form=True)), b"meta"))
    target.set_session(CloneSession(1, (Replica(2, 1),), 3, 96))
    target.set_session(CloneSession(9, (Replica(1, 1, (Port(2, 5),)),)))
    target.enable_digest(info.digests[FLOW_RECORD], b"as it was written")
    slice_meter = info.meters[SLICE_METER]
    target.write_meters(slice_meter, 33, [MeterConfig(10, 20, 30, 40)])
    target.write_counters(info.counters[COUNTERS["drops"]], 2, [CounterData(70, 1)])
    microflow = info.table("microflow")
    target.write_direct_counters(microflow, [(FLOW, CounterData(500, 4))])
    before = books(target, info)
    switch.close()

    with Switch.up(PORTS, namespace=SWITCH) as again:
        assert again.adopted
        heir = EbpfTarget(again)
        running = heir.running()
        assert running is not None
        assert (running.p4info, running.device_config, running.cookie) == (given.p4info, b"config", 9)
        assert books(heir, info) == before
        for name in ("forward_l2", "exceed"):
            assert heir.default(info.table(name)) == target.default(info.table(name))
        assert dict(heir.groups()) == dict(target.groups())
        assert dict(heir.sessions()) == dict(target.sessions())
        assert dict(heir.digests()) == {FLOW_RECORD: b"as it was written"}
        assert [(port.number, port.trusted) for port in again.datapath.ports()][:2] == [(1, True), (2, False)]
        assert heir.read_meters(slice_meter, 32, 3) == [None, MeterConfig(10, 20, 30, 40), None]
        assert heir.read_counters(info.counters[COUNTERS["drops"]], 2, 1) == [CounterData(70, 1)]
        assert heir.read_direct_counters(microflow, [FLOW, Entry(())]) == [CounterData(500, 4), CounterData()]
        for name, each in ALL:
            assert heir.delete(info.table(name), [each]) == {}
        assert books(heir, info) == {name: set() for name in before}
        assert len(again.datapath.table("entry_notes").all()[0]) == 0
        heir.load(given, keep=False)
        assert heir.read_counters(info.counters[COUNTERS["drops"]], 2, 1) == [CounterData()]
        again.down()


def test_notes_on_entries_change_with_them(switch: Switch) -> None:
    target, given = EbpfTarget(switch), pipeline()
    target.load(given, keep=False)
    table = given.info.table("microflow")
    flows = [entry("microflow", (n, n + 1, 6, 1, 2, 0, 0), "set_mark", 1, 3, n)[1] for n in range(4)]
    notes = [b"short", b"", b"long" * 1000, b"other" * 20]
    assert target.insert(table, [f._replace(metadata=m) for f, m in zip(flows, notes, strict=True)]) == {}
    # Shorter, longer, none, and one that is refused: what is there keeps its own.
    changed = [f._replace(metadata=m) for f, m in zip(flows[:3], [b"x" * 300, b"new", b""], strict=True)]
    assert target.modify(table, changed) == {}
    assert list(target.insert(table, [flows[3]._replace(metadata=b"never")])) == [0]
    before = set(target.entries(table))
    switch.close()
    with Switch.up(PORTS, namespace=SWITCH) as again:
        heir = EbpfTarget(again)
        assert set(heir.entries(table)) == before
        assert {each.metadata for each in before} == {b"x" * 300, b"new", b"", b"other" * 20}
        # The map is full at some size, as any table; the entry is then not there.
        huge = entry("microflow", (9, 9, 6, 1, 2, 0, 0), "set_mark", 1, 3, 1, metadata=bytes(52 * 70_000))[1]
        (fault,) = heir.insert(table, [huge]).values()
        assert "no room for the entry's metadata" in fault.message
        assert set(heir.entries(table)) == before
        assert heir.insert(table, [huge._replace(metadata=b"fits")]) == {}
        again.down()


def test_another_program_is_refused(switch: Switch) -> None:
    from dinnet.switch.codes import Refused

    message = dinnet_p4info()
    message.tables[0].preamble.name = message.tables[0].preamble.alias = "other"
    with pytest.raises(Refused, match="cannot be another program"):
        EbpfTarget(switch).verify(Pipeline(parse_p4info(message), b"", b"", None))


def test_client_programs_the_switch_and_hears_of_flows(switch: Switch) -> None:
    target = EbpfTarget(switch)
    with running(target) as server, Client(server.address) as client:
        client.arbitrate()
        client.set_pipeline()
        digest = p4r.DigestEntry(digest_id=FLOW_RECORD)
        digest.config.max_list_size = 100
        updates = [update(INSERT, digest_entry=digest)]
        for number, mac in enumerate(MACS, start=1):
            station = p4r.TableEntry(table_id=TABLES["forward_l2"])
            station.match.extend([exact(1, b"\0"), exact(2, mac.to_bytes(6))])
            station.action.action.action_id = ACTIONS["to_port"]
            station.action.action.params.add(param_id=1, value=bytes([number]))
            updates.append(update(INSERT, table_entry=station))
        flow = p4r.TableEntry(table_id=TABLES["microflow"])
        words = [w.to_bytes(16).lstrip(b"\0") or b"\0" for w in MICROFLOW]
        flow.match.extend(exact(number, word) for number, word in enumerate(words, start=1))
        flow.action.action.action_id = ACTIONS["set_mark"]
        for number, value in enumerate((b"\1", b"\3", b"\x63"), start=1):
            flow.action.action.params.add(param_id=number, value=value)
        flow.counter_data.SetInParent()
        updates.append(update(INSERT, table_entry=flow))
        bad = p4r.TableEntry(table_id=TABLES["forward_v4"])
        bad.match.append(lpm(1, b"\x0a\x00\x00\x01", 24))  # bits beyond the prefix
        assert client.results(*updates) == [0] * 4
        assert client.result(INSERT, table_entry=bad) != 0
        exchange(6)
        (read,) = client.read(table_entry=p4r.TableEntry(table_id=TABLES["microflow"], counter_data=p4r.CounterData()))
        assert (read.counter_data.packet_count, read.counter_data.byte_count) == (6, 6 * 46)
        listed = client.receive("digest")
        ports = int.from_bytes(listed.data[0].struct.members[3].bitstring)
        assert (listed.digest_id, ports) == (FLOW_RECORD, 5000)


def test_packets_of_the_controller(switch: Switch) -> None:
    target, given = EbpfTarget(switch), pipeline()
    target.load(given, keep=False)
    heard = Heard()
    target.start(heard)

    def listener() -> socket.socket:
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88B5))
        sock.bind(("eth0", 0x88B5))
        sock.settimeout(20)
        return sock

    frame = MACS[1].to_bytes(6) + MACS[0].to_bytes(6) + b"\x88\xb5" + bytes(46)
    l2 = given.info.table("forward_l2")
    try:
        with within(HOSTS[1], listener) as b:
            target.packet_out(frame, (2, 0))
            assert b.recv(100) == frame
            target.packet_out(frame, (NO_PORT, 0))  # not known: dropped
            assert switch.datapath.drops()[Drop.NO_ROUTE].packets == 1
            target.insert(l2, [entry("forward_l2", (0, MACS[1]), "to_port", 2)[1]])
            target.packet_out(frame, (NO_PORT, 0))
            assert b.recv(100) == frame
        target.modify(l2, [entry("forward_l2", (0, MACS[1]), "to_controller")[1]])
        target.packet_out(frame, (NO_PORT, 0))
        until(lambda: bool(heard.packets), "the packet for the controller")
        assert heard.packets == [(frame, (CPU_PORT, 0))]
    finally:
        target.stop()


def test_many_microflows(switch: Switch) -> None:
    """As many as there is room for, in one batch; the others fail alone."""
    target, given = EbpfTarget(switch), pipeline()
    target.load(given, keep=False)
    table = given.info.table("microflow")
    entries = [entry("microflow", (n, n + 1, 6, 1, 2, 0, 0), "set_mark", 1, 3, n)[1] for n in range(1030)]
    faults = target.insert(table, entries)
    assert sorted(faults) == list(range(1024, 1030))
    assert len(target.entries(table)) == 1024
    assert target.delete(table, entries[:1024]) == {}
    start = time.monotonic()
    assert target.insert(table, entries[6:]) == {}
    print(f"{1024 / (time.monotonic() - start):.0f} micro-flows/s")  # noqa: T201
