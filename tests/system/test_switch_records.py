"""Flow records of the embedded switch and of the capture reader from the same packets, field by field."""

from __future__ import annotations

import io
import struct
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import capturekit as kit
import numpy as np
import pytest
import switchkit
import zstandard
from capturekit import ACK, FIN, PSH, RST, SYN, Frame
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dinnet.flows import FlowOptions, read_records
from dinnet.flows.record import RECORD_DTYPE, End

pytestmark = [switchkit.needs_bpf, pytest.mark.root]
SAMPLE = Path(__file__).resolve().parents[2] / "examples" / "sample.pcap.zst"
Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def module_bench() -> Iterator[switchkit.Bench]:
    bench = switchkit.Bench()
    yield bench
    bench.close()


@pytest.fixture
def bench(module_bench: switchkit.Bench) -> switchkit.Bench:
    module_bench.reset()
    return module_bench


def from_capture(frames: Sequence[Frame], **options: Any) -> Array:
    capture = io.BytesIO(kit.pcap(frames, magic=kit.NANO))
    chunks = [chunk.copy() for chunk in read_records(capture, options=FlowOptions(emit="all", **options))]
    return np.concatenate([np.zeros(0, RECORD_DTYPE), *chunks])


def from_switch(bench: switchkit.Bench, frames: Sequence[Frame]) -> Array:
    return bench.replay((frame.ns, frame.data) for frame in frames)


def compare(switch: Array, capture: Array) -> None:
    """Both hold the same records. A flow under way has the sums that the end of the capture makes a record of."""
    assert len(switch) == len(capture)
    switch, capture = switch.copy(), capture.copy()
    for records in (switch, capture):
        # Whether an unfinished flow was already idle at the end of the capture, only the capture's end knows.
        records["end"][records["end"] == End.IDLE] = End.CAPTURE
    names = list(RECORD_DTYPE.names or ())
    order = [np.lexsort([records[name] for name in reversed(names)]) for records in (switch, capture)]
    switch, capture = switch[order[0]], capture[order[1]]
    for name in names:
        np.testing.assert_array_equal(switch[name], capture[name], err_msg=name)


def sample_frames() -> list[Frame]:
    data = zstandard.ZstdDecompressor().stream_reader(SAMPLE.read_bytes()).read()
    magic = struct.unpack_from("<I", data)[0]
    assert magic in (kit.MICRO, kit.NANO)
    scale, at, frames = (1 if magic == kit.NANO else 1000), 24, []
    while at < len(data):
        seconds, part, captured, wire = struct.unpack_from("<IIII", data, at)
        frames.append(Frame(data[at + 16 : at + 16 + captured], seconds * 10**9 + part * scale, wire))
        at += 16 + captured
    return frames


def test_sample_capture(bench: switchkit.Bench) -> None:
    frames = [frame for frame in sample_frames() if frame.wire == len(frame.data)]
    switch, capture = from_switch(bench, frames), from_capture(frames)
    assert len(capture) > 1000
    assert bench.datapath.lost_events() == (0, 0)
    assert bench.datapath.flow_collisions().packets == 0
    compare(switch, capture)


@st.composite
def conversations(draw: st.DrawFn) -> list[Frame]:
    """Packets of a few conversations in both directions: reused ports, odd openings, long silences, clocks set back."""
    frames, time_us = [], 0
    gaps = st.sampled_from((0, 1, 900, 1999, 2000, 60_000, 1_000_000, 5_000_000, 5_000_001, 120_000_000, 120_000_001,
                            700_000_000, -5, -3_000_000))  # fmt: skip
    flags = st.sampled_from((ACK, ACK, ACK | PSH, SYN, SYN | ACK, FIN | ACK, RST, RST | ACK, 0, SYN | FIN, 0xFF))
    kinds = st.integers(0, 9)
    for _ in range(draw(st.integers(1, 90))):
        time_us += draw(gaps)
        kind, backward = draw(kinds), draw(st.booleans())
        payload = bytes(draw(st.sampled_from((0, 0, 1, 500, 1239, 1240, 1400))))
        ports = (80, 1000) if backward else (1000, 80)
        if kind in (0, 1, 2, 3, 4, 8):
            seq, acked = draw(st.sampled_from((7, 8, 2**32 - 1))), draw(st.sampled_from((0, 8, 9)))
            window = draw(st.sampled_from((0, 512, 65535)))
            opts = draw(st.sampled_from((b"", bytes(4), bytes(40))))
            proto, segment = 6, kit.tcp(*ports, draw(flags), payload, seq=seq, ack=acked, window=window, opts=opts)
        elif kind in (5, 6):
            proto, segment = 17, kit.udp(*ports, payload)
        elif kind == 7:
            proto, segment = 132, kit.sctp(*ports, payload)
        else:
            proto, segment = 1, kit.icmp_echo(payload)
        if kind in (1, 4, 6, 8):
            pair = ("2001:db8::2", "2001:db8::1") if backward else ("2001:db8::1", "2001:db8::2")
            label = draw(st.sampled_from((0, 1, 0xFFFFF)))
            if kind == 4:
                segment = kit.ip6_options(43, 1) + kit.ip6_routing(6, ["2001:db8::9"]) + segment
                packet = kit.ipv6(segment, 0, *pair, label=label)
            else:
                packet = kit.ipv6(segment, proto, *pair, label=label)
        else:
            pair = ("10.0.0.2", "10.0.0.1") if backward else ("10.0.0.1", "10.0.0.2")
            packet = kit.ipv4(segment, proto, *pair, opts=draw(st.sampled_from((b"", bytes([1] * 8)))))
        tags = {2: [(kit.VLAN, 0x6064)], 3: [(kit.QINQ, 100), (kit.VLAN, 7)], 8: [(kit.VLAN, 0)]}.get(kind, [])
        pad = bytes(draw(st.sampled_from((0, 0, 6))))  # Ethernet padding is no payload
        frames.append(kit.at(time_us, kit.ethernet(packet, tags=tags) + pad))
    return frames


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(frames=conversations(), split_labels=st.booleans())
def test_random_conversations(module_bench: switchkit.Bench, frames: list[Frame], split_labels: bool) -> None:
    module_bench.reset()
    module_bench.configure(flow_labels=split_labels)
    frames = [Frame(frame.data, frame.ns + 10**13) for frame in frames]  # far from zero, whatever is subtracted
    compare(from_switch(module_bench, frames), from_capture(frames, split_flow_labels=split_labels))


def test_long_flow_is_cut_by_the_active_timeout(bench: switchkit.Bench) -> None:
    packet = kit.ethernet(kit.ipv4(kit.tcp(1000, 80, ACK | PSH, bytes(100)), 6))
    frames = [kit.at(60_000_000 * number, packet) for number in range(65)]
    switch = from_switch(bench, frames)
    assert (switch["end"] == End.ACTIVE).sum() == 2
    compare(switch, from_capture(frames))


def test_every_checkpoint_of_a_long_flow(bench: switchkit.Bench) -> None:
    packet = kit.ethernet(kit.ipv6(kit.udp(1000, 80, bytes(1300)), 17))
    frames = [kit.at(20_000 * number, packet) for number in range(400)]
    switch = from_switch(bench, frames)
    seen = [(int(row["checkpoint"]), int(row["fwd_packets"])) for row in switch[:-1]]
    # 64 packets come before a second has passed, and later a second before 64 packets do.
    assert seen[:5] == [(1, 4), (2, 8), (3, 16), (4, 32), (5, 64)]
    assert [packets for _, packets in seen[5:]] == [114, 164, 214, 264, 314, 364]
    compare(switch, from_capture(frames))


def test_what_is_no_flow_in_the_switch(bench: switchkit.Bench) -> None:
    """Unlike the capture reader, the switch keeps no fragments to reassemble and looks into no tunnel."""
    whole = kit.udp(1000, 80, bytes(80))
    frames = [
        kit.ethernet(kit.ipv4(whole[:48], 17, ident=1, more=True)),
        kit.ethernet(kit.ipv4(whole[48:], 17, ident=1, offset=48)),
        kit.ethernet(kit.ipv6(kit.ip6_fragment(17, 48, False, 1) + whole[48:], 44)),
        kit.ethernet(kit.ipv4(whole, 17), tags=[(kit.VLAN, 1), (kit.VLAN, 2), (kit.VLAN, 3)]),
        kit.ethernet(kit.mpls(kit.ipv4(whole, 17), [16]), kit.MPLS),
        kit.ethernet(kit.ipv4(kit.udp(5, 4789, kit.vxlan(kit.ethernet(kit.ipv4(whole, 17)), 9)), 17)),
    ]
    records = bench.replay((10**15 + number, frame) for number, frame in enumerate(frames))
    assert sorted(records["dport"].tolist()) == [80, 4789]
    assert bench.datapath.parsed()[3].packets == 2
    assert bench.datapath.parsed()[0].packets == 2


def test_full_set_is_a_counted_collision_and_mixes_nothing(bench: switchkit.Bench) -> None:
    """More flows than there is room for: each record is one flow's, and the packets of no record are counted."""
    flows = 3 * (switchkit.SIZES.flows or 0) // 2
    for number in range(flows):
        segment = kit.udp(number & 0x3FFF, 80, bytes(10))
        bench.run(kit.ethernet(kit.ipv4(segment, 17, src=f"10.1.{number >> 14}.1")), 10**15 + number)
    bench.ring.poll()
    kept = np.concatenate(list(bench.datapath.flow_table()))
    collisions = bench.datapath.flow_collisions().packets
    assert len(kept) + collisions == flows
    assert collisions > 0
    assert (kept["fwd_packets"] == 1).all()
    assert len(np.unique(kept[["src_lo", "sport"]])) == len(kept)
    # Two minutes later their places are free, and what was in them is told.
    bench.run(kit.ethernet(kit.ipv4(kit.udp(9, 9), 17)), 2 * 10**15)
    assert bench.datapath.flow_collisions().packets == collisions


def test_lost_records_are_counted(bench: switchkit.Bench) -> None:
    packet = kit.ethernet(kit.ipv4(kit.udp(1000, 80, bytes(10)), 17))
    time_ns = 10**15
    for _ in range(400):  # 40,000 records, one for each 64 packets, and nobody reads
        time_ns += 2 * 10**9
        bench.run(packet, time_ns, repeat=6400)
    lost, _ = bench.datapath.lost_events()
    bench.ring.poll()
    last = max(int(row["checkpoint"]) for rows in bench.datapath.flow_table() for row in rows)
    assert lost > 0
    assert len(bench.records) + lost == last


def test_two_cpus_at_one_flow_and_a_reader_lose_nothing(bench: switchkit.Bench) -> None:
    """The locks are our own: no packet may be counted twice or not at all, no record read half-written."""
    each, packet = 200_000, kit.ethernet(kit.ipv4(kit.udp(1000, 80, bytes(10)), 17))
    threads = [threading.Thread(target=bench.run, args=(packet, 10**15, each)) for _ in range(2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        for records in bench.datapath.flow_table():
            assert (records["fwd_bytes"] == 38 * records["fwd_packets"].astype(np.uint64)).all()
            assert (records["fwd_payload_packets"] == records["fwd_packets"]).all()
    (record,) = np.concatenate(list(bench.datapath.flow_table()))
    assert int(record["fwd_packets"]) + bench.datapath.flow_collisions().packets == 2 * each
    assert bench.datapath.parsed()[1].packets == 2 * each
