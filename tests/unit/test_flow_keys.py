"""Which packets are one flow, and which way is forward, with answers worked out by hand."""

from __future__ import annotations

import capturekit as kit
from capturekit import ACK, SYN, T0, UDP, back, row, run_table
from flowkit import BACKWARD, FORWARD, SECOND, ends, only, sizes

from dinnet.flows.record import End

# --- keys -------------------------------------------------------------------------------------------------


def test_both_directions_are_one_flow_and_other_tuples_are_others() -> None:
    items = [
        row(0),
        back(1),
        row(2, sport=1001),
        row(3, dport=81),
        row(4, src="10.0.0.3"),
        row(5, dst="10.0.0.3"),
        row(6, proto=UDP),
        row(7, tunnel_id=5),
        back(8, tunnel_id=5),
        row(9, src="2001:db8::1", dst="2001:db8::2"),
        row(10, proto=132),
    ]
    assert sorted(sizes(run_table(items))) == [1, 1, 1, 1, 1, 1, 1, 2, 2]


def test_same_ports_and_addresses_on_both_ends() -> None:
    items = [row(0, src="10.0.0.1", sport=7, dst="10.0.0.1", dport=7, payload=1) for _ in range(3)]
    assert sizes(run_table(items)) == [3]


def test_swapped_ports_are_another_flow() -> None:
    assert sizes(run_table([row(0, sport=1, dport=2), row(1, sport=2, dport=1)])) == [1, 1]


def test_the_same_tuple_in_three_vlans_is_three_flows() -> None:
    items = [row(n, vlan=v) for n, v in enumerate([10, 20, 30, 10, 20, 10])]
    records = run_table(items)
    assert sorted(zip(records["vlan"].tolist(), sizes(records), strict=True)) == [(10, 3), (20, 2), (30, 1)]


def test_inner_vlan_is_part_of_the_key() -> None:
    assert sizes(run_table([row(0, vlan=1, inner_vlan=2), row(1, vlan=1, inner_vlan=3)])) == [1, 1]


def test_a_tag_in_one_direction_only_is_joined_when_asked() -> None:
    items = [row(0, vlan=10), back(1), row(2, vlan=10), back(3)]
    assert sizes(run_table(items)) == [2, 2]
    r = only(run_table(items, join_vlans=True))
    assert (r["fwd_packets"], r["rev_packets"], r["vlan"]) == (2, 2, 10)


def test_joining_vlans_does_not_join_tunnels() -> None:
    assert sizes(run_table([row(0, tunnel_id=1), row(1, tunnel_id=2)], join_vlans=True)) == [1, 1]


def test_flow_labels_split_only_when_asked() -> None:
    ends6 = {"src": "2001:db8::1", "dst": "2001:db8::2"}
    swapped = {"src": "2001:db8::2", "sport": 80, "dst": "2001:db8::1", "dport": 1000}
    items = [row(0, label=1, **ends6), row(1, label=2, **ends6), row(2, label=1, **swapped), row(3, label=1, **ends6)]  # type: ignore[arg-type]
    assert only(run_table(items))["flow_label"] == 1
    records = run_table(items, split_flow_labels=True)
    assert sorted(zip(records["flow_label"].tolist(), sizes(records), strict=True)) == [(1, 3), (2, 1)]


def test_icmp_and_other_protocols_are_flows_without_ports() -> None:
    items = [row(n, sport=0, dport=0, proto=p, payload=8) for n, p in enumerate([1, 1, 50, 89])]
    items.append(row(9, "10.0.0.2", 0, "10.0.0.1", 0, proto=1, payload=8))
    records = run_table(items)
    assert sorted(zip(records["proto"].tolist(), sizes(records), strict=True)) == [(1, 3), (50, 1), (89, 1)]
    assert records["rev_packets"][records["proto"] == 1].tolist() == [1]


# --- direction --------------------------------------------------------------------------------------------


def test_direction_is_that_of_the_first_packet_without_a_syn() -> None:
    r = only(run_table([back(0, payload=5), row(1)]))
    assert kit.five_tuple(r) == BACKWARD
    assert r["syn_seen"] == 0


def test_syn_ack_before_the_syn_keeps_client_to_server() -> None:
    items = [back(0, flags=SYN | ACK, seq=9), row(10, flags=SYN, seq=1), row(20), back(30, payload=100)]
    r = only(run_table(items))
    assert kit.five_tuple(r) == FORWARD
    assert (r["fwd_packets"], r["rev_packets"], r["syn_seen"]) == (2, 2, 1)
    assert (r["fwd_syn"], r["rev_syn"]) == (1, 1)


def test_syn_ack_alone_is_a_reverse_packet() -> None:
    r = only(run_table([back(0, flags=SYN | ACK)]))
    assert kit.five_tuple(r) == FORWARD
    assert (r["fwd_packets"], r["rev_packets"], r["rev_bytes"]) == (0, 1, 40)


def test_flow_label_is_that_of_the_first_forward_packet() -> None:
    client = {"src": "2001:db8::1", "dst": "2001:db8::2"}
    server = {"src": "2001:db8::2", "sport": 80, "dst": "2001:db8::1", "dport": 1000}
    items = [row(0, flags=SYN | ACK, label=7, **server), row(1, label=8, **client), row(2, label=9, **client)]  # type: ignore[arg-type]
    r = only(run_table(items))
    assert (r["flow_label"], r["sport"]) == (8, 1000)


def test_direction_is_kept_across_an_active_timeout() -> None:
    items = [row(0, flags=SYN), back(1, flags=SYN | ACK), row(2)]
    items += [back(n * SECOND, payload=100) for n in range(1, 30)]  # the server speaks when the time is up
    records = run_table(items, active_timeout_s=10)
    assert ends(records) == [End.ACTIVE, End.ACTIVE, End.CAPTURE]
    assert [kit.five_tuple(r) for r in records] == [FORWARD] * 3
    assert records["first_us"].tolist() == [T0, T0 + 10 * SECOND, T0 + 20 * SECOND]
    assert records["fwd_packets"].tolist() == [2, 0, 0]
    assert records["rev_packets"].tolist() == [10, 10, 10 - 1 + 1]
    assert records["duration_us"].tolist() == [9 * SECOND] * 3


def test_one_packet_is_enough_for_an_active_cut_of_a_long_idle_limit() -> None:
    records = run_table([row(0), row(10 * SECOND - 1), row(10 * SECOND)], active_timeout_s=10)
    assert sizes(records) == [2, 1]
    assert ends(records) == [End.ACTIVE, End.CAPTURE]
