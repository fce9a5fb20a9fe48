"""What the links and their offloads ask of the embedded switch: MTUs, and packets that stand for several."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import capturekit as kit
import intkit
import numpy as np
import pytest
import switchkit
from intkit import IntBench, packet
from namespacekit import ip, within
from switchkit import HOSTS, IN, LOOPBACK, MACS, OTHER, OUT, SWITCH, wired
from test_switch_marks import keys_of, marks_of
from test_switch_records import compare, from_capture

from dinnet.flows.record import RECORD_DTYPE, End
from dinnet.switch.attach import PortConfig, Switch
from dinnet.switch.contract import Action, Bucket, Cell, Drop, Forward, IntEvent, Parsed, Sizes
from dinnet.switch.sliceselect import Match, Selected, Watch
from dinnet.switch.tokens import Rates
from dinnet.telemetry.int_md import Header, Stack

pytest.importorskip("pyroute2", reason="needs pyroute2, which attaches the switch")
pytestmark = [switchkit.needs_bpf, pytest.mark.root]
MTU = 1400
SHOT, REDIRECT = 2, 7


@pytest.fixture(scope="module")
def module_bench() -> Iterator[IntBench]:
    with IntBench() as bench:
        yield bench


@pytest.fixture
def bench(module_bench: IntBench) -> Iterator[IntBench]:
    module_bench.reset()
    module_bench.nothing_forwarded()
    ip("-n", module_bench.namespace, "link", "set", "o0", "mtu", str(MTU))
    yield module_bench
    ip("-n", module_bench.namespace, "link", "set", "o0", "mtu", "9000")


# --- MTU --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("tags", [[], [(kit.VLAN, 5)], [(kit.QINQ, 5), (kit.VLAN, 6)]])
@pytest.mark.parametrize("over", [0, 1])
def test_packet_at_the_mtu_and_one_byte_above(
    bench: IntBench, version: int, tags: list[tuple[int, int]], over: int
) -> None:
    """Tags are not a part of what the MTU limits."""
    head = 20 if version == 4 else 40
    frame = kit.ethernet(packet(kit.udp(1, 2, bytes(MTU - head - 8 + over)), 17, version), tags=tags)
    ran = bench.run(frame)
    assert ran.answer == (SHOT if over else REDIRECT)
    cell = Cell(1, len(frame)) if over else Cell(0, 0)
    assert bench.datapath.drops()[Drop.MTU] == cell
    assert sum(each.packets for each in bench.datapath.drops().values()) == over


def test_frame_that_is_not_ip(bench: IntBench) -> None:
    assert bench.run(kit.ethernet(bytes(MTU), 0x88B5)).answer == REDIRECT
    assert bench.run(kit.ethernet(bytes(MTU + 1), 0x88B5)).answer == SHOT
    assert bench.datapath.drops()[Drop.MTU].packets == 1


def test_copy_of_a_flooded_packet(bench: IntBench) -> None:
    """Copies that fit their link are sent, the others counted."""
    pipe = bench.datapath
    pipe.set_default_forward(Forward(Action.FLOOD, 3))
    pipe.table("egress_port").put(np.array([OTHER]), np.array([LOOPBACK]))
    pipe.set_group(3, [IN, OUT, OTHER])
    fits, long = (kit.ethernet(bytes(MTU + over), 0x88B5) for over in (0, 1))
    bench.run(fits)
    assert bench.forwarded() == fits
    assert pipe.drops()[Drop.MTU].packets == 0
    bench.run(long)
    assert bench.nothing_forwarded()
    assert pipe.drops()[Drop.MTU] == Cell(1, len(long))


def test_int_keeps_to_the_link_where_it_was_told_more(bench: IntBench) -> None:
    """A node that was configured with an MTU of 1500 on a link of 1400 adds what fits 1400."""
    bench.node(mtu=1500)
    bench.watch(Watch.MD, 0x8000, 8)
    room = MTU - intkit.HEADERS
    for size, events in (
        (room - 4, {IntEvent.BEGUN: 1}),
        (room, {IntEvent.BEGUN: 2, IntEvent.MTU: 1}),
        (room + 1, {IntEvent.BEGUN: 2, IntEvent.MTU: 1, IntEvent.NO_ROOM: 1}),
    ):
        ran = bench.run(kit.ethernet(packet(kit.udp(1, 2, bytes(size - 28)), 17)))
        assert ran.answer == REDIRECT
        assert len(ran.packet) <= 14 + MTU
        assert bench.happened() == events
    # At the sink what counts is what leaves.
    bench.node(is_sink=True)
    original = packet(kit.udp(1, 2, bytes(MTU - 28)), 17)
    bench.run(kit.ethernet(intkit.carrying(original, Stack.of(Header(0x8000, 1, 5), (), 17))))
    assert bench.forwarded() == kit.ethernet(original)
    assert bench.datapath.drops()[Drop.MTU].packets == 0


# --- Packets that stand for several -----------------------------------------------------------------------

ACK, PSH, FIN = 0x10, 0x08, 0x01


def segments(version: int, size: int, total: int, flags: int, seq: int) -> tuple[bytes, list[bytes]]:
    """A packet as an offload hands it over, and the packets on the wire that it stands for (tcp_gso_segment)."""

    def one(payload: int, at: int, given: int) -> bytes:
        segment = kit.tcp(1000, 80, given, bytes(payload), seq=seq + at, ack=9, window=500, opts=bytes([1] * 12))
        return kit.ethernet(packet(segment, 6, version), tags=[(kit.VLAN, 7)])

    sizes = [min(size, total - at) for at in range(0, total, size)]
    singles = [
        one(payload, number * size, flags if number == len(sizes) - 1 else flags & ~(PSH | FIN))
        for number, payload in enumerate(sizes)
    ]
    return one(total, 0, flags), singles


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize(("size", "total"), [(100, 3000), (100, 3001), (536, 537), (1, 70), (1000, 1000), (1000, 10)])
def test_offloaded_packet_counts_and_is_recorded_as_those_on_the_wire(
    bench: IntBench, version: int, size: int, total: int
) -> None:
    pipe = bench.datapath
    flow = ("10.0.0.1", "10.0.0.2", 6, 1000, 80) if version == 4 else ("2001:db8::1", "2001:db8::2", 6, 1000, 80)
    keys = keys_of(bench, flow)
    keys["vlan"] = 7
    pipe.microflows.insert(keys, marks_of((5, 1, 3)), [None])
    pipe.slice_select.insert([Selected(Match(proto=(6, 255)), 1, 4, 0)])
    captured = []
    base = 10**18
    for turn, flags in enumerate((ACK, ACK | PSH, ACK | FIN | PSH)):
        merged, singles = segments(version, size, total, flags, 1 + turn * total)
        bench.run(merged, base + turn * 10**9, gso_size=size)
        captured += [kit.Frame(single, base + turn * 10**9) for single in singles]
    bench.ring.poll()
    under_way = np.concatenate([np.zeros(0, RECORD_DTYPE), *pipe.flow_table()])
    under_way["end"] = End.CAPTURE
    found = np.concatenate([np.array(bench.records, RECORD_DTYPE), under_way])
    bench.drain()
    compare(found, from_capture(captured))

    wanted = Cell(len(captured), sum(len(frame.data) for frame in captured))
    assert pipe.parsed()[Parsed.IPV4 if version == 4 else Parsed.IPV6] == wanted
    marked = pipe.counters("marked")[(1 << 2 | 3) << 2]
    assert (marked["packets"], marked["bytes"]) == wanted
    _, values = pipe.microflows.all()
    counter = pipe.microflows.states(values)["counter"][0]
    assert (counter["packets"], counter["bytes"]) == wanted
    selected = pipe.slice_select.counters([(Match(proto=(6, 255)), 1)])
    assert (selected["packets"][0], selected["bytes"][0]) == wanted


def test_offloaded_packet_is_policed_and_dropped_as_a_whole(bench: IntBench) -> None:
    """It has one colour: its bytes on the wire are what a bucket must hold."""
    pipe = bench.datapath
    merged, singles = segments(4, 100, 1000, ACK, 1)
    on_wire = sum(map(len, singles))
    pipe.microflows.clear()
    keys = keys_of(bench, ("10.0.0.1", "10.0.0.2", 6, 1000, 80))
    keys["vlan"] = 7
    pipe.microflows.insert(keys, marks_of((5, 1, 3)), [Rates(0, on_wire, 0, 2 * on_wire - 1)])
    for colour in (0, 2):  # green, then red
        bench.run(merged, gso_size=100)
        cells = pipe.counters("exceeded")[(1 << 2 | Bucket.MICROFLOW) << 2]
        assert (cells["packets"], cells["bytes"]) == ((10, on_wire) if colour else (0, 0))


def test_segments_that_do_not_fit_the_link(bench: IntBench) -> None:
    """It is the segments that must fit, not the whole."""
    ip("-n", bench.namespace, "link", "set", "o0", "mtu", "576")
    for size, answer in ((576 - 52, REDIRECT), (576 - 51, SHOT)):
        merged, singles = segments(4, size, 2000, ACK, 1)
        assert bench.run(merged, gso_size=size).answer == answer
    assert bench.datapath.drops()[Drop.MTU] == Cell(len(singles), sum(map(len, singles)))


def test_real_tcp_with_offloads() -> None:
    """The sums of the record fit together: every payload byte, and no packet longer than the link takes."""
    size = 3_000_000
    with (
        wired(),
        Switch.up(
            [PortConfig(1, "p1"), PortConfig(2, "p2")], namespace=SWITCH, sizes=Sizes(microflows=1024, flows=1024)
        ) as switch,
    ):
        for number, mac in enumerate(MACS, start=1):
            switch.datapath.station(0, mac, Forward(Action.PORT, number))
        listener = within(HOSTS[1], lambda: socket.create_server(("10.9.0.2", 7000)))
        client = within(HOSTS[0], lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        with listener, client:
            client.connect(("10.9.0.2", 7000))
            server, _ = listener.accept()
            with server:
                sender = threading.Thread(target=lambda: (client.sendall(bytes(size)), client.close()))
                sender.start()
                got = 0
                while chunk := server.recv(1 << 20):
                    got += len(chunk)
                sender.join()
            assert got == size
        (record,) = [row for rows in switch.datapath.flow_table() for row in rows if row["dport"] == 7000]
        assert record["fwd_payload_bytes"] == size
        # 20 bytes of IP and 32 of TCP with time stamps; the SYN has 8 more of options.
        assert record["fwd_bytes"] == size + 52 * record["fwd_packets"] + 8
        assert record["fwd_len_max"] == 1500
        assert record["fwd_payload_packets"] >= size / 1448
        assert switch.datapath.drops()[Drop.MTU].packets == 0
        switch.down()
