"""The flow table as a whole: many flows at once, and a capture's way into records."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import capturekit as kit
import numpy as np
from capturekit import ACK, PSH, SYN, row
from flowkit import only, sizes

from dinnet.flows import read_records
from dinnet.flows.table import FlowOptions, FlowTable

# --- many flows -------------------------------------------------------------------------------------------


def test_many_flows_at_once_are_all_kept_apart() -> None:
    count, each = 30_000, 3
    one = kit.rows([row(0)])
    packets = np.repeat(one, count * each)
    number = np.arange(count * each) % count
    packets["src_lo"] = 0xFFFF_0A00_0000 + number
    packets["sport"] = number % 50_000
    packets["time_us"] += np.arange(count * each)
    table = FlowTable(FlowOptions())
    for start in range(0, len(packets), 7_001):
        table.update(packets[start : start + 7_001])
    assert table.live == count
    records = np.concatenate([r.copy() for r in table.flush()])
    assert len(records) == count
    assert set(records["fwd_packets"].tolist()) == {each}
    assert len(np.unique(records["src_lo"])) == count
    assert set(records["duration_us"].tolist()) == {2 * count}


def seconds_for(first: int, second: int) -> float:
    """Least time of three to open 12,000 flows whose low address bits and ports are n * first and n * second."""
    count = 12_000
    packets = np.repeat(kit.rows([row(0)]), count)
    number = np.arange(count)
    packets["src_lo"] = 0xFFFF_0A00_0000 + number * first
    packets["sport"] = number * second
    best = float("inf")
    for _ in range(3):
        table = FlowTable(FlowOptions())
        table.update(packets[:1])
        start = time.perf_counter()
        table.update(packets)
        best = min(best, time.perf_counter() - start)
        assert table.live == count
    return best


def test_ports_that_follow_addresses_do_not_make_all_flows_share_a_hash() -> None:
    # Where address and port cancel out in the hash, every packet probes past every flow: hundreds of times slower.
    assert seconds_for(1, 1) < 20 * seconds_for(1, 0)


# --- from capture to records ------------------------------------------------------------------------------


def test_records_of_a_capture(tmp_path: Any) -> None:
    def tcp(us: int, client: bool, flags: int, payload: int = 0, tag: int = 0) -> kit.Frame:
        ports, ends = ((1000, 80), ("10.0.0.1", "10.0.0.2")) if client else ((80, 1000), ("10.0.0.2", "10.0.0.1"))
        packet = kit.ipv4(kit.tcp(*ports, flags, bytes(payload)), kit.TCP, *ends)
        return kit.at(us, kit.ethernet(packet, tags=[(kit.VLAN, tag)] if tag else []))

    frames = [tcp(0, True, SYN), tcp(10, False, SYN | ACK), tcp(20, True, ACK), tcp(30, True, ACK | PSH, 100, 5)]
    path = tmp_path / "small.pcap"
    path.write_bytes(kit.pcap(frames))
    records = np.concatenate([r.copy() for r in read_records(path)])
    assert Counter(zip(records["vlan"].tolist(), sizes(records), strict=True)) == {(0, 3): 1, (5, 1): 1}
    r = only(np.concatenate([r.copy() for r in read_records(path, options=FlowOptions(join_vlans=True))]))
    assert (r["fwd_packets"], r["rev_packets"], r["fwd_payload_bytes"]) == (3, 1, 100)


def test_fragments_of_a_capture_belong_to_one_flow() -> None:
    from io import BytesIO

    first = kit.ipv4(kit.udp(5000, 6000, bytes(192), length=400), kit.UDP, ident=7, more=True)
    second = kit.ipv4(b"\x11\x11\x22\x22" * 50, kit.UDP, ident=7, offset=200)
    data = kit.pcap([kit.at(n, kit.ethernet(p)) for n, p in enumerate([first, second])])
    r = only(np.concatenate([r.copy() for r in read_records(BytesIO(data))]))
    assert (r["fwd_packets"], r["fwd_payload_bytes"], r["dport"]) == (2, 392, 6000)
