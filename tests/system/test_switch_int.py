"""In-band telemetry in the embedded switch: source, transit, sink, reports, and what hostile packets do to it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import capturekit as kit
import intkit
import numpy as np
import pytest
import switchkit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from intkit import HEADERS, NODE, IntBench, carrying, opened, packet, split
from switchkit import IN, OUT

from dinnet.flows.record import End
from dinnet.switch.bpfobject import Ran
from dinnet.switch.contract import Action, Drop, Forward, IntEvent
from dinnet.switch.sliceselect import Match, Selected, Watch
from dinnet.telemetry import metadata as md
from dinnet.telemetry.int_md import Header, Stack
from dinnet.telemetry.metadata import Instruction, Metadata

pytestmark = [switchkit.needs_bpf, pytest.mark.root]
REDIRECT, SHOT = 7, 2
ASKED = Instruction.NODE_ID | Instruction.PORTS | Instruction.QUEUE
WORDS = 3
EVERYTHING = 0xFF81
TCP = kit.tcp(1000, 80, payload=b"prompt")
UDP = kit.udp(1000, 80, b"token")
OTHERS = (Metadata(7, 1, 2, queue_id=3, queue_occupancy=4), Metadata(6, 1, 2, queue_id=3, queue_occupancy=4))


@pytest.fixture(scope="module")
def module_bench() -> Iterator[IntBench]:
    with IntBench() as bench:
        yield bench


@pytest.fixture
def bench(module_bench: IntBench) -> IntBench:
    module_bench.reset()
    assert module_bench.nothing_forwarded() or True
    return module_bench


def own(slice_number: int = 0, tc: int = 0, **more: Any) -> Metadata:
    """What this switch tells for ASKED."""
    return Metadata(NODE, IN, OUT, queue_id=slice_number << 2 | tc, **more)


def sent(ran: Ran, frame: bytes) -> bytes:
    """The packet of a run that sent it on; by the port's name, not to the collector."""
    assert ran.answer == REDIRECT
    assert ran.packet[:12] == frame[:12]
    return ran.packet


# --- Source -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize(("payload", "proto"), [(TCP, 6), (UDP, 17)])
def test_source_puts_headers_between_ip_and_transport(
    bench: IntBench, version: int, payload: bytes, proto: int
) -> None:
    bench.node()
    bench.watch(Watch.MD, ASKED, 8)
    original = packet(payload, proto, version)
    frame = kit.ethernet(original)
    head, udp, stack, rest = split(sent(bench.run(frame), frame))
    assert rest == payload
    assert stack == Stack.of(Header(ASKED, WORDS, 7), (own(),), proto)
    sport, dport, length, checksum = struct.unpack(">HHHH", udp)
    assert (dport, length, checksum) == (intkit.INT_PORT, HEADERS + 4 * WORDS + len(payload), 0)
    assert sport >= 0xC000
    added = HEADERS + 4 * WORDS
    if version == 4:
        assert intkit.ones_sum(head) == 0xFFFF
        assert head[:2] == original[:2] and head[4:9] == original[4:9] and head[12:] == original[12:20]
        assert int.from_bytes(head[2:4]) == len(original) + added
        assert head[9] == 17
    else:
        assert head[:4] == original[:4] and head[7:] == original[7:40]
        assert int.from_bytes(head[4:6]) == len(payload) + added
        assert head[6] == 17
    assert bench.happened() == {IntEvent.BEGUN: 1}


def test_source_port_is_the_flow_s(bench: IntBench) -> None:
    bench.node()
    bench.watch(Watch.MD, ASKED, 8)

    def port(payload: bytes) -> int:
        frame = kit.ethernet(packet(payload, 17))
        return int.from_bytes(split(sent(bench.run(frame), frame))[1][:2])

    assert port(kit.udp(1000, 80, b"a")) == port(kit.udp(1000, 80, b"other"))
    assert len({port(kit.udp(sport, 80)) for sport in range(2000, 2064)}) > 50


@pytest.mark.parametrize("tags", [[], [(0x8100, 5)], [(0x88A8, 5), (0x8100, 6)]])
@pytest.mark.parametrize("opts", [b"", bytes([1] * 4), bytes([1] * 40)])
def test_options_and_tags_stay_in_front(bench: IntBench, tags: list[tuple[int, int]], opts: bytes) -> None:
    original = packet(TCP, 6, opts=opts)
    frame = kit.ethernet(original, tags=tags)
    l3 = 14 + 4 * len(tags)
    bench.node()
    bench.watch(Watch.MD, ASKED, 8)
    with_int = sent(bench.run(frame), frame)
    assert with_int[12:l3] == frame[12:l3]
    head, _, stack, rest = split(with_int, l3)
    assert head[20:] == opts
    assert intkit.ones_sum(head) == 0xFFFF
    assert (rest, stack.hops) == (TCP, (own(),))
    # And out again, byte for byte.
    bench.node(is_sink=True)
    report = opened(bench.run(with_int).packet).reports[0]
    assert bench.forwarded() == frame
    assert report.inner == with_int[l3 : -len(b"prompt")]


def test_source_without_hops_tells_nothing_itself(bench: IntBench) -> None:
    bench.node()
    bench.watch(Watch.MD, ASKED, 0)
    frame = kit.ethernet(packet(TCP, 6))
    _, _, stack, rest = split(sent(bench.run(frame), frame))
    assert (stack, rest) == (Stack.of(Header(ASKED, WORDS, 0), (), 6), TCP)


def test_all_metadata_and_what_is_not_known(bench: IntBench) -> None:
    bench.node()
    bench.watch(Watch.MD, 0xFFFF, 8)  # reserved bits are not asked for
    frame = kit.ethernet(packet(TCP, 6))
    _, _, stack, _ = split(sent(bench.run(frame, time_ns=0x123456789ABCDEF0), frame))
    assert stack.header == Header(EVERYTHING, 13, 7)
    assert stack.hops == (own(ingress_ns=0x123456789ABCDEF0, ingress_interface=IN, egress_interface=OUT),)


@pytest.mark.parametrize("mtu_over", [0, -1, -4 * WORDS, -4 * WORDS - 1])
@pytest.mark.parametrize("version", [4, 6])
def test_mtu_at_a_source(bench: IntBench, mtu_over: int, version: int) -> None:
    """At exactly the MTU with metadata, one byte above, at exactly the MTU with headers alone, and one byte above."""
    original = packet(TCP, 6, version)
    bench.node(mtu=len(original) + HEADERS + 4 * WORDS + mtu_over)
    bench.watch(Watch.MD, ASKED, 8)
    frame = kit.ethernet(original)
    out = sent(bench.run(frame), frame)
    if mtu_over < -4 * WORDS:
        assert out == frame
        assert bench.happened() == {IntEvent.NO_ROOM: 1}
        return
    _, _, stack, rest = split(out)
    assert rest == TCP
    if mtu_over == 0:
        assert stack == Stack.of(Header(ASKED, WORDS, 7), (own(),), 6)
    else:
        assert stack == Stack.of(Header(ASKED, WORDS, 8, mtu_exceeded=True), (), 6)
        assert bench.happened() == {IntEvent.BEGUN: 1, IntEvent.MTU: 1}


@pytest.mark.parametrize(
    "unfit",
    [
        kit.ipv4(TCP, 6, more=True),
        kit.ipv4(TCP, 6, offset=8),
        kit.ipv4(kit.ah(6) + TCP, kit.AH),
        kit.ipv4(bytes(8), kit.ICMP),
        kit.ipv4(kit.sctp(1, 2), kit.SCTP),
        kit.ipv6(kit.ip6_options(6) + TCP, kit.HOP_BY_HOP),
        kit.ipv6(kit.ip6_fragment(6, 0, True, 1) + TCP, kit.FRAGMENT),
        kit.ipv6(kit.ip6_routing(6, ["2001:db8::9"]) + TCP, kit.ROUTING),
    ],
)
def test_what_cannot_carry_int_passes_and_is_counted(bench: IntBench, unfit: bytes) -> None:
    frame = kit.ethernet(unfit if unfit[0] >> 4 == 6 else intkit.with_checksum(unfit))
    bench.node()
    bench.watch(Watch.MD, ASKED, 8)
    assert sent(bench.run(frame), frame) == frame
    assert bench.happened() == {IntEvent.UNFIT: 1}


def test_watch_list_of_everything_without_the_collector_s_path(bench: IntBench) -> None:
    bench.node()
    collector = int.from_bytes(bytes([10, 0, 0, 254])) | 0xFFFF << 32
    bench.watch(Watch.MD, ASKED, 8)
    bench.watch(Watch.NONE, priority=9, dst=(collector, 2**128 - 1), proto=(17, 255), dport=(32766, 0xFFFF))
    to_collector = kit.ethernet(intkit.with_checksum(kit.ipv4(kit.udp(40000, 32766, bytes(40)), 17, dst="10.0.0.254")))
    other_port = kit.ethernet(intkit.with_checksum(kit.ipv4(kit.udp(40000, 53, bytes(40)), 17, dst="10.0.0.254")))
    assert sent(bench.run(to_collector), to_collector) == to_collector
    assert len(sent(bench.run(other_port), other_port)) == len(other_port) + HEADERS + 4 * WORDS
    counters = bench.datapath.int_source.counters([(Match(), 1)])
    assert counters["packets"].tolist() == [1]


def test_port_without_a_role_passes_everything(bench: IntBench) -> None:
    bench.watch(Watch.MD, ASKED, 8)
    frame = kit.ethernet(packet(TCP, 6))
    assert sent(bench.run(frame), frame) == frame
    assert bench.happened() == {IntEvent.UNFIT: 1}
    frame = kit.ethernet(carrying(packet(TCP, 6), Stack.of(Header(ASKED, WORDS, 3), OTHERS, 6)))
    assert sent(bench.run(frame), frame) == frame


# --- Transit ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("remaining", [255, 1])
def test_transit_adds_its_metadata_on_top(bench: IntBench, version: int, remaining: int) -> None:
    bench.node()
    original = packet(TCP, 6, version)
    frame = kit.ethernet(carrying(original, Stack.of(Header(ASKED, WORDS, remaining), OTHERS, 6)))
    wanted = carrying(original, Stack.of(Header(ASKED, WORDS, remaining - 1), (own(), *OTHERS), 6))
    assert sent(bench.run(frame), frame) == frame[:14] + wanted
    assert bench.happened() == {IntEvent.ADDED: 1}


def test_no_hop_left_sets_e(bench: IntBench) -> None:
    bench.node()
    original = packet(TCP, 6)
    frame = kit.ethernet(carrying(original, Stack.of(Header(ASKED, WORDS, 0), OTHERS, 6)))
    wanted = carrying(original, Stack.of(Header(ASKED, WORDS, 0, hops_exceeded=True), OTHERS, 6))
    assert sent(bench.run(frame), frame) == frame[:14] + wanted
    assert bench.happened() == {IntEvent.HOPS: 1}


@pytest.mark.parametrize("over", [0, -1])
def test_mtu_at_a_transit(bench: IntBench, over: int) -> None:
    original = packet(TCP, 6)
    carried = carrying(original, Stack.of(Header(ASKED, WORDS, 3), OTHERS, 6))
    bench.node(mtu=len(carried) + 4 * WORDS + over)
    frame = kit.ethernet(carried)
    header, hops = Header(ASKED, WORDS, 2), (own(), *OTHERS)
    if over:
        header, hops = Header(ASKED, WORDS, 3, mtu_exceeded=True), OTHERS
    assert sent(bench.run(frame), frame) == frame[:14] + carrying(original, Stack.of(header, hops, 6))


@pytest.mark.parametrize("hops", [83, 84])
def test_shim_length_at_its_limit(bench: IntBench, hops: int) -> None:
    """3 + 84 * 3 = 255 words are the most that the shim can tell."""
    bench.node(mtu=9000)
    original = packet(TCP, 6)
    many = (OTHERS[0],) * hops
    frame = kit.ethernet(carrying(original, Stack.of(Header(ASKED, WORDS, 9), many, 6)))
    wanted = frame[14:]
    if hops == 83:
        wanted = carrying(original, Stack.of(Header(ASKED, WORDS, 8), (own(), *many), 6))
    assert sent(bench.run(frame), frame) == frame[:14] + wanted
    assert bench.happened() == ({IntEvent.ADDED: 1} if hops == 83 else {IntEvent.FOREIGN: 1})


@pytest.mark.parametrize(
    ("at", "value", "what"),
    [
        (0, 0x10, "version 1"),
        (0, 0x30, "version 3"),
        (2, WORDS + 1, "Hop ML of more words than the bitmap asks for"),
        (2, WORDS - 1, "Hop ML of fewer"),
        (5, 0x02, "a reserved instruction"),
        (7, 0x01, "another domain"),
        (8, 0x80, "an instruction of domain 0"),
    ],
)
def test_instructions_that_are_not_followed(bench: IntBench, at: int, value: int, what: str) -> None:
    bench.node()
    carried = bytearray(carrying(packet(TCP, 6), Stack.of(Header(ASKED, WORDS, 3), OTHERS, 6)))
    carried[20 + 8 + 4 + at] = value
    frame = kit.ethernet(bytes(carried))
    assert sent(bench.run(frame), frame) == frame, what
    assert bench.happened() == {IntEvent.FOREIGN: 1}


def test_reserved_bits_are_passed_on(bench: IntBench) -> None:
    bench.node()
    carried = bytearray(carrying(packet(TCP, 6), Stack.of(Header(ASKED, WORDS, 3), (), 6)))
    carried[28] |= 3  # shim
    carried[32] |= 1
    carried[33] = 0xAA
    carried[34] |= 0xE0
    frame = kit.ethernet(bytes(carried))
    out = sent(bench.run(frame), frame)
    assert out[14 + 28] == carried[28]
    assert out[14 + 32 : 14 + 35] == carried[32:35]
    assert split(out)[2].hops == (own(),)


def udp_sum(ip_packet: bytes) -> int:
    """RFC 768 over an IPv4 packet with UDP, checksum field and all: 0xffff where it is right."""
    body = ip_packet[20:]
    pseudo = ip_packet[12:20] + struct.pack(">HH", 17, len(body))
    return intkit.ones_sum(pseudo + body + bytes(len(body) % 2))


@pytest.mark.parametrize("remaining", [3, 0])
def test_udp_checksum_is_kept_zero_or_right(bench: IntBench, remaining: int) -> None:
    bench.node()
    original = packet(TCP, 6)
    stack = Stack.of(Header(ASKED, WORDS, remaining), OTHERS, 6)
    frame = kit.ethernet(carrying(original, stack))
    assert sent(bench.run(frame), frame)[14 + 26 : 14 + 28] == b"\0\0"
    plain = carrying(original, stack)
    checked = plain[:26] + (0xFFFF - udp_sum(plain)).to_bytes(2) + plain[28:]
    assert udp_sum(checked) == 0xFFFF
    out = sent(bench.run(kit.ethernet(checked)), frame)[14:]
    assert out[26:28] != b"\0\0"
    assert udp_sum(out) == 0xFFFF
    # What was damaged before stays damaged.
    damaged = plain[:26] + (0xFFFE - udp_sum(plain)).to_bytes(2) + plain[28:]
    assert udp_sum(sent(bench.run(kit.ethernet(damaged)), frame)[14:]) != 0xFFFF


# --- Sink and reports -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize(("payload", "proto"), [(TCP, 6), (UDP, 17)])
def test_sink_restores_the_packet_and_reports(bench: IntBench, version: int, payload: bytes, proto: int) -> None:
    bench.node(is_sink=True)
    original = packet(payload, proto, version)
    stack = Stack.of(Header(ASKED, WORDS, 5), OTHERS, proto)
    carried = carrying(original, stack)
    ran = bench.run(kit.ethernet(carried))
    assert bench.forwarded() == kit.ethernet(original)
    assert ran.answer == REDIRECT
    report = opened(ran.packet)
    (one,) = report.reports
    assert report.node_id == NODE
    inner_type = {4: 4, 6: 5}[version]
    assert (one.report_type, one.inner_type, one.tracked, one.dropped) == (1, inner_type, True, False)
    assert one.present == Instruction.PORTS | Instruction.QUEUE  # the node id is in the group header
    assert one.metadata == Metadata(ingress_port=IN, egress_port=OUT, queue_id=0)
    transport = 20 if proto == 6 else 8
    assert one.inner == carried[: len(carried) - len(payload) + transport]
    assert bench.happened() == {IntEvent.ENDED: 1, IntEvent.REPORTED: 1}


def test_report_shows_the_packet_as_it_came(bench: IntBench) -> None:
    """Marks and hops are changed before, on the packet that goes on only."""
    bench.node(is_sink=True)
    bench.datapath.slice_select.insert([Selected(Match(dport=(80, 0xFFFF)), 1, 9, 2)])
    bench.datapath.forward("10.0.0.0/24", Forward(Action.ROUTE, OUT, 0x020000000077, 0x020000000078))
    carried = carrying(packet(TCP, 6, tos=0x01), Stack.of(Header(ASKED, WORDS, 5), OTHERS, 6))
    ran = bench.run(kit.ethernet(carried))
    out = bench.forwarded()
    assert out[:12].hex() == "020000000078020000000077"
    assert (out[15], out[22], intkit.ones_sum(out[14:34])) == ((9 << 2 | 2) << 2 | 1, 63, 0xFFFF)
    (one,) = opened(ran.packet).reports
    assert one.inner == carried[: -len(b"prompt")]
    assert one.metadata.queue_id == 9 << 2 | 2
    assert ran.skb.priority == 1 << 16 | 0x10  # of slice 0, whatever the packet's own


def test_longest_stack_is_taken_out_and_reported_whole(bench: IntBench) -> None:
    bench.node(is_sink=True, mtu=9000)
    original = packet(TCP, 6)
    stack = Stack.of(Header(ASKED, WORDS, 5), (OTHERS[0],) * 84, 6)
    ran = bench.run(kit.ethernet(carrying(original, stack)))
    assert bench.forwarded() == kit.ethernet(original)
    assert ran.packet[50 + 1] == 0xFF  # longer than the field tells
    (one,) = opened(ran.packet).reports
    assert Stack.decode(one.inner[28:])[0] == stack


def test_sink_reports_what_it_cannot_follow_without_its_own_metadata(bench: IntBench) -> None:
    bench.node(is_sink=True)
    original = packet(TCP, 6)
    carried = bytearray(carrying(original, Stack.of(Header(ASKED, WORDS, 5), OTHERS, 6)))
    carried[32] = 0x50  # version 5
    ran = bench.run(kit.ethernet(bytes(carried)))
    assert bench.forwarded() == kit.ethernet(original)
    (one,) = opened(ran.packet).reports
    assert (one.present, one.inner) == (0, bytes(carried[:-6]))


def test_copies_are_discarded_by_the_sink(bench: IntBench) -> None:
    bench.node(is_sink=True)
    carried = carrying(packet(TCP, 6), Stack.of(Header(ASKED, WORDS, 5, discard=True), OTHERS, 6))
    (one,) = opened(bench.run(kit.ethernet(carried)).packet).reports
    assert one.inner == carried[:-6]
    assert bench.nothing_forwarded()
    assert bench.happened() == {IntEvent.ENDED: 1, IntEvent.DISCARDED: 1, IntEvent.REPORTED: 1}


def test_without_a_collector_packets_are_restored_all_the_same(bench: IntBench) -> None:
    bench.node(is_sink=True)
    bench.datapath.set_collector(None)
    original = packet(TCP, 6)
    ran = bench.run(kit.ethernet(carrying(original, Stack.of(Header(ASKED, WORDS, 5), OTHERS, 6))))
    assert bench.forwarded() == kit.ethernet(original)
    assert ran.answer == SHOT
    assert bench.happened() == {IntEvent.ENDED: 1, IntEvent.REPORT_LOST: 1}


def test_sequence_numbers_wrap_after_22_bits(bench: IntBench) -> None:
    bench.node(is_sink=True)
    bench.datapath.table("int_sequence").put(np.array([0]), np.array([2**22 - 2]))
    frame = kit.ethernet(carrying(packet(UDP, 17), Stack.of(Header(ASKED, WORDS, 5), OTHERS, 17)))
    numbers = [opened(bench.run(frame).packet).sequence for _ in range(4)]
    assert numbers == [2**22 - 2, 2**22 - 1, 0, 1]
    bench.datapath.table("int_sequence").put(np.array([0]), np.array([2**32 - 1]))
    assert [opened(bench.run(frame).packet).sequence for _ in range(2)] == [2**22 - 1, 0]
    for _ in range(6):
        bench.forwarded()


def test_export_leaves_the_packet_alone(bench: IntBench) -> None:
    bench.node()
    bench.watch(Watch.XD, EVERYTHING)
    original = packet(kit.udp(1000, 80, bytes(1400)), 17)
    ran = bench.run(kit.ethernet(original), time_ns=5)
    assert bench.forwarded() == kit.ethernet(original)
    report = opened(ran.packet)
    (one,) = report.reports
    assert one.inner == original[:28]
    asked = Instruction.PORTS | Instruction.QUEUE | Instruction.INGRESS_TIME | Instruction.INTERFACES
    assert one.present == asked
    assert one.metadata == Metadata(
        ingress_port=IN, egress_port=OUT, queue_id=0, ingress_ns=5, ingress_interface=IN, egress_interface=OUT
    )
    assert len(ran.packet) == 42 + 8 + 4 + 8 + 4 * md.words(asked) + 28


@pytest.mark.parametrize(
    ("ip_packet", "kept"),
    [
        (kit.ipv4(bytes(64), kit.ICMP), 20),
        (kit.ipv4(TCP, 6, offset=8), 20),
        (kit.ipv6(kit.ip6_options(6, 3) + TCP, kit.HOP_BY_HOP), 40 + 32 + 20),
        (kit.ipv6(kit.ip6_options(6, 30) + TCP, kit.HOP_BY_HOP), 256),
        (kit.ipv6(kit.ip6_fragment(6, 64, True, 1) + TCP, kit.FRAGMENT), 48),
    ],
)
def test_export_of_any_ip_packet(bench: IntBench, ip_packet: bytes, kept: int) -> None:
    original = ip_packet if ip_packet[0] >> 4 == 6 else intkit.with_checksum(ip_packet)
    bench.node()
    bench.watch(Watch.XD, Instruction.PORTS)
    ran = bench.run(kit.ethernet(original, tags=[(0x8100, 7)]))
    assert bench.forwarded() == kit.ethernet(original, tags=[(0x8100, 7)])
    assert opened(ran.packet).reports[0].inner == original[:kept]


def test_source_that_is_the_sink_reports_without_changing_the_packet(bench: IntBench) -> None:
    bench.node(is_sink=True)
    bench.watch(Watch.MD, ASKED, 8)
    original = packet(TCP, 6)
    (one,) = opened(bench.run(kit.ethernet(original)).packet).reports
    assert bench.forwarded() == kit.ethernet(original)
    assert (one.inner, one.metadata.ingress_port) == (original[:40], IN)


@pytest.mark.parametrize("carries", [False, True])
def test_dropped_packets_are_reported(bench: IntBench, carries: bool) -> None:
    bench.datapath.set_default_forward(Forward(Action.DROP))
    bench.node(port=IN)
    original = packet(TCP, 6)
    if carries:
        original = carrying(original, Stack.of(Header(ASKED, WORDS, 5), OTHERS, 6))
    else:
        bench.watch(Watch.XD, Instruction.PORTS)
    (one,) = opened(bench.run(kit.ethernet(original)).packet).reports
    assert (one.dropped, one.tracked) == (True, True)
    assert one.drop is not None and one.drop.reason == Drop.FORWARD
    assert one.metadata == Metadata(ingress_port=IN)
    assert one.inner == original[:-6]


def test_flooded_packets_leave_without_int(bench: IntBench) -> None:
    bench.datapath.set_group(1, [OUT])
    bench.datapath.set_default_forward(Forward(Action.FLOOD, 1))
    original = packet(TCP, 6)
    frame = kit.ethernet(carrying(original, Stack.of(Header(ASKED, WORDS, 5), OTHERS, 6)))
    bench.run(frame)
    assert bench.forwarded() == frame  # this switch has nothing to do with INT
    bench.node(port=IN)
    bench.run(frame)
    assert bench.forwarded() == kit.ethernet(original)
    assert bench.nothing_forwarded()


# --- Everything else sees the original packet ---------------------------------------------------------------


def test_int_is_transparent_to_keys_and_records(bench: IntBench) -> None:
    original = packet(TCP, 6)
    carried = carrying(original, Stack.of(Header(ASKED, WORDS, 5), OTHERS, 6))
    bench.datapath.slice_select.insert([Selected(Match(proto=(6, 255), dport=(80, 0xFFFF)), 1, 3, 1)])
    plain = bench.replay([(10**18 + 1000 * n, kit.ethernet(original)) for n in range(6)])
    marked = bench.run(kit.ethernet(original)).skb.cb[1]
    bench.datapath.clear_flows()
    bench.drain()
    same = bench.replay([(10**18 + 1000 * n, kit.ethernet(carried)) for n in range(6)])
    assert same.tolist() == plain.tolist()
    assert set(same["end"]) == {End.LIVE, End.CAPTURE}
    assert bench.run(kit.ethernet(carried)).skb.cb[1] == marked


@pytest.mark.parametrize(
    "opaque",
    [
        b"\x28\x07\0\x06" + bytes(100),  # destination type
        b"\x38\x07\0\x06" + bytes(100),  # MX
        b"\x14\x07\0\x50" + bytes(100),  # NPT 1
        b"\x18\x02\0\x06" + bytes(100),  # shorter than a header
        b"\x18\x1f\0\x06" + bytes(100),  # longer than the packet
        b"\x18\x03\0\x01" + bytes(100),  # before ICMP
        b"\x18\x03\0\x06" + bytes(31),  # TCP of 19 bytes
        b"\x18\x03\0\x06" + bytes(12) + kit.tcp(1, 2, data_offset=4),
        b"\x18\x03\0\x06" + bytes(12) + kit.tcp(1, 2, data_offset=6),
        b"\x18\x03\0\x11" + bytes(19),
        b"a user's own packet",
        b"",
    ],
)
@pytest.mark.parametrize("version", [4, 6])
def test_what_is_no_int_md_before_a_transport_header_is_plain_udp(bench: IntBench, opaque: bytes, version: int) -> None:
    bench.node(is_sink=True)
    original = packet(kit.udp(1000, intkit.INT_PORT, opaque), 17, version)
    bench.datapath.slice_select.insert([Selected(Match(dport=(intkit.INT_PORT, 0xFFFF)), 1, 0, 0)])
    frame = kit.ethernet(original)
    assert sent(bench.run(frame), frame) == frame
    assert bench.datapath.slice_select.counters([(Match(dport=(intkit.INT_PORT, 0xFFFF)), 1)])["packets"] == [1]
    assert bench.happened() == {}


hostile_shims = st.tuples(
    st.sampled_from([0x18, 0x1B]), st.integers(0, 255), st.just(0), st.sampled_from([6, 17, 1])
).map(bytes)
hostile_headers = st.builds(
    lambda first, hop_words, remaining, bits, rest: bytes([first, 0, hop_words, remaining]) + bits.to_bytes(2) + rest,
    st.sampled_from([0x20, 0x2F, 0x10, 0x28]), st.integers(0, 31), st.sampled_from([0, 1, 255]),
    st.integers(0, 0xFFFF), st.sampled_from([bytes(6), bytes([0, 1, 0, 0, 0, 0]), b"\xff" * 6]),
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    head=st.one_of(st.binary(max_size=16), st.tuples(hostile_shims, hostile_headers).map(b"".join)),
    tail=st.one_of(st.binary(max_size=80), st.integers(0, 1100).map(bytes), st.just(bytes(40) + TCP)),
    version=st.sampled_from([4, 6]), cut=st.sampled_from([0, 0, 0, 1, 30]), is_sink=st.booleans(),
    mtu=st.sampled_from([0, 100, 1500, 9000]),
)  # fmt: skip
def test_hostile_headers_never_grow_a_packet_beyond_limits(
    module_bench: IntBench, head: bytes, tail: bytes, version: int, cut: int, is_sink: bool, mtu: int
) -> None:
    bench = module_bench
    bench.datapath.clear()
    bench.reset()
    bench.node(is_sink=is_sink, mtu=mtu)
    original = packet(kit.udp(1000, intkit.INT_PORT, head + tail), 17, version)
    size = 40 if version == 6 else 20
    frame = kit.ethernet(original)[: max(14 + size, len(original) + 14 - cut)]
    ran = bench.run(frame)
    events = bench.happened()
    if IntEvent.ENDED in events:
        if IntEvent.DISCARDED not in events:
            out = bench.forwarded()
            assert len(out) < len(frame)
            assert out[-1:] == frame[-1:]
        report = opened(ran.packet)
        assert len(ran.packet) <= 14 + 28 + 8 + 4 + 8 + 52 + 40 + 1032 + 20
        assert report.reports[0].inner[size + 8 : size + 9] == head[:1]
    elif ran.answer == REDIRECT:
        out = ran.packet
        grown = len(out) - len(frame)
        assert grown in range(0, 4 * 31 + 1, 4)
        if grown:
            assert events == {IntEvent.ADDED: 1}
            assert len(out) - 14 <= mtu
            assert out[-len(tail) :] == frame[-len(tail) :] if tail else True
        elif not events.keys() & {IntEvent.HOPS, IntEvent.MTU}:
            assert out == frame
    else:
        assert cut
    if version == 4 and ran.answer == REDIRECT and not is_sink:
        assert intkit.ones_sum(ran.packet[14:34]) == 0xFFFF
