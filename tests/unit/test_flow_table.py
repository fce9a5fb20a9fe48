"""The flow table, rule by rule, each with an answer worked out by hand."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import capturekit as kit
import numpy as np
import pytest
from capturekit import ACK, FIN, PSH, RST, SYN, T0, UDP, back, row, run_table

from dinnet.errors import DinnetError
from dinnet.flows import read_records
from dinnet.flows.record import RECORD_DTYPE, UNSET, End
from dinnet.flows.table import FlowOptions, FlowTable

SECOND = 1_000_000
FORWARD = ("10.0.0.1", 1000, "10.0.0.2", 80, 6)
BACKWARD = ("10.0.0.2", 80, "10.0.0.1", 1000, 6)


def only(records: np.ndarray[Any, Any]) -> np.void:
    assert len(records) == 1, records[["first_us", "end", "sport", "fwd_packets", "rev_packets"]]
    return records[0]


def ends(records: np.ndarray[Any, Any]) -> list[int]:
    return records["end"].tolist()


def sizes(records: np.ndarray[Any, Any]) -> list[int]:
    return (records["fwd_packets"] + records["rev_packets"]).tolist()


# --- counting ---------------------------------------------------------------------------------------------


def test_one_short_connection_counted_by_hand() -> None:
    r = only(
        run_table(
            [
                row(0, flags=SYN, seq=100, window=64_240, size=60),
                back(100, flags=SYN | ACK, seq=500, ack=101, window=65_160, size=60),
                row(150, flags=ACK, window=502),
                row(200, flags=ACK | PSH, payload=300, window=502),
                back(300, flags=ACK, window=500),
                back(5_300, flags=ACK, payload=1400, window=501),
                back(5_400, flags=ACK | PSH, payload=200, window=501),
                back(8_000, flags=ACK | PSH, payload=100, window=501),
                row(8_100, flags=ACK, window=490),
                row(9_000, flags=FIN | ACK, window=490),
                back(9_100, flags=FIN | ACK, window=501),
                row(9_200, flags=ACK, window=490),
            ]
        )
    )
    want = {
        "first_us": T0,
        "duration_us": 9_200,
        "flow_label": 0,
        "tunnel_id": 0,
        "turns": 1,
        "checkpoint": 2,
        "vlan": 0,
        "inner_vlan": 0,
        "proto": 6,
        "ip_version": 4,
        "end": End.FIN,
        "syn_seen": 1,
        "fwd_packets": 6,
        "fwd_bytes": 60 + 40 + 340 + 40 + 40 + 40,
        "fwd_payload_bytes": 300,
        "fwd_payload_packets": 1,
        "fwd_len_sumsq": 60**2 + 4 * 40**2 + 340**2,
        "fwd_len_min": 40,
        "fwd_len_max": 340,
        "fwd_iat_sum_us": 9_200,
        "fwd_iat_sumsq_us": 150**2 + 50**2 + 7_900**2 + 900**2 + 200**2,
        "fwd_iat_min_us": 50,
        "fwd_iat_max_us": 7_900,
        "fwd_window_sum": 64_240 + 2 * 502 + 3 * 490,
        "fwd_window_min": 490,
        "fwd_syn": 1,
        "fwd_fin": 1,
        "fwd_rst": 0,
        "fwd_psh": 1,
        "fwd_ack": 5,
        "fwd_pure_ack": 3,
        "fwd_full_segments": 0,
        "fwd_bursts": 1,
        "fwd_burst_max_bytes": 300,
        "fwd_gap_sum_us": 0,
        "fwd_gap_sumsq_us": 0,
        "fwd_turn_delay_sum_us": 0,
        "fwd_turn_delay_max_us": 0,
        "rev_packets": 6,
        "rev_bytes": 60 + 40 + 1440 + 240 + 140 + 40,
        "rev_payload_bytes": 1700,
        "rev_payload_packets": 3,
        "rev_len_sumsq": 60**2 + 2 * 40**2 + 1440**2 + 240**2 + 140**2,
        "rev_len_min": 40,
        "rev_len_max": 1440,
        "rev_iat_sum_us": 9_000,
        "rev_iat_sumsq_us": 200**2 + 5_000**2 + 100**2 + 2_600**2 + 1_100**2,
        "rev_iat_min_us": 100,
        "rev_iat_max_us": 5_000,
        "rev_window_sum": 65_160 + 500 + 4 * 501,
        "rev_window_min": 500,
        "rev_syn": 1,
        "rev_fin": 1,
        "rev_rst": 0,
        "rev_psh": 2,
        "rev_ack": 6,
        "rev_pure_ack": 1,
        "rev_full_segments": 1,
        "rev_bursts": 2,
        "rev_burst_max_bytes": 1600,
        "rev_gap_sum_us": 2_600,
        "rev_gap_sumsq_us": 2_600**2,
        "rev_turn_delay_sum_us": 5_100,
        "rev_turn_delay_max_us": 5_100,
        "splt_rev": 0b1110,
    }
    want |= {f"splt_bytes_{k}": size for k, size in enumerate([300, 1400, 200, 100, 0, 0, 0, 0], start=1)}
    want |= {f"splt_gap_us_{k}": gap for k, gap in enumerate([200, 5_100, 100, 2_600, 0, 0, 0, 0], start=1)}
    want |= {f"turn_bytes_{k}": size for k, size in enumerate([300, 1_700, 0, 0, 0, 0], start=1)}
    want |= {f"turn_wait_us_{k}": wait for k, wait in enumerate([200, 5_100, 0, 0, 0, 0], start=1)}
    assert kit.five_tuple(r) == FORWARD
    assert {name: int(r[name]) for name in want} == want
    key = {"src_hi", "src_lo", "dst_hi", "dst_lo", "sport", "dport"}
    assert set(want) | key == set(RECORD_DTYPE.names or ())


def test_one_packet_flow() -> None:
    r = only(run_table([row(5, flags=ACK | PSH, payload=10)]))
    assert (r["fwd_packets"], r["rev_packets"], r["duration_us"], r["end"]) == (1, 0, 0, End.CAPTURE)
    assert (r["fwd_iat_min_us"], r["fwd_iat_max_us"], r["fwd_iat_sum_us"]) == (UNSET, 0, 0)
    assert (r["rev_iat_min_us"], r["rev_window_min"], r["rev_bytes"]) == (UNSET, UNSET, 0)
    assert (r["fwd_bursts"], r["fwd_burst_max_bytes"], r["turns"], r["checkpoint"]) == (1, 10, 0, 0)


def test_one_packet_flow_has_finite_features() -> None:
    features = pytest.importorskip("dinnet.flows.features")
    records = run_table([row(5), row(6, proto=UDP), row(7, src="10.0.0.9", flags=SYN)])
    assert len(records) == 3
    assert np.isfinite(features.features(records)).all()


def test_udp_has_no_tcp_fields() -> None:
    r = only(run_table([row(0, proto=UDP, payload=100), back(10, proto=UDP, payload=0)]))
    assert (r["fwd_window_sum"], r["fwd_window_min"], r["fwd_ack"], r["fwd_pure_ack"]) == (0, UNSET, 0, 0)
    assert (r["fwd_payload_packets"], r["rev_payload_packets"]) == (1, 0)


def test_window_of_a_reset_is_not_counted() -> None:
    r = only(run_table([row(0, window=500), row(1, flags=RST, window=0)]))
    assert (r["fwd_window_sum"], r["fwd_window_min"], r["fwd_rst"]) == (500, 500, 1)


def test_full_segments_carry_payload_and_at_least_1280_bytes() -> None:
    items = [row(0, payload=1240), row(1, payload=1239), row(2, payload=0, size=1400), row(3, payload=60_000)]
    assert only(run_table(items))["fwd_full_segments"] == 2


def test_fin_is_counted_in_both_directions_and_the_first_packet_once() -> None:
    r = only(run_table([row(0, flags=FIN | ACK, payload=7), back(1, flags=FIN | ACK), row(2)]))
    assert (r["fwd_fin"], r["rev_fin"]) == (1, 1)
    assert (r["fwd_packets"], r["fwd_payload_packets"], r["fwd_bytes"]) == (2, 1, 47 + 40)


def test_packets_that_are_no_flow_are_passed_over() -> None:
    assert sizes(run_table([row(0), row(1, kind=1), row(2, kind=2), row(3)])) == [2]


def test_an_update_without_packets_gives_nothing() -> None:
    table = FlowTable(FlowOptions())
    assert len(table.update(kit.rows([]))) == 0
    assert [len(r) for r in table.flush() if len(r)] == []


def test_bursts_are_split_at_two_milliseconds_between_payload_packets_of_one_direction() -> None:
    items = [
        row(0, payload=100),
        row(1_999, payload=100),  # same burst
        back(2_500, payload=50),  # the other direction does not split it
        row(3_000),  # a pure ACK neither joins nor splits
        row(3_998, payload=100),  # 1,999 after the last payload packet: same burst
        row(5_998, payload=70),  # exactly 2,000: a new one
        row(15_998, payload=500),
    ]
    r = only(run_table(items))
    assert (r["fwd_bursts"], r["fwd_burst_max_bytes"]) == (3, 500)
    assert (r["fwd_gap_sum_us"], r["fwd_gap_sumsq_us"]) == (12_000, 2_000**2 + 10_000**2)
    assert (r["rev_bursts"], r["rev_burst_max_bytes"], r["rev_gap_sum_us"]) == (1, 50, 0)


def test_turns_and_their_delays() -> None:
    items = [
        row(0, payload=1),
        row(100, payload=1),
        back(200),  # no payload: no turn
        back(1_100, payload=1),  # turn to rev, 1,000 after the last forward payload
        back(1_200, payload=1),
        row(4_200, payload=1),  # turn to fwd, 3,000
        back(4_250, payload=1),  # turn to rev, 50
    ]
    r = only(run_table(items))
    assert r["turns"] == 3
    assert (r["rev_turn_delay_sum_us"], r["rev_turn_delay_max_us"]) == (1_050, 1_000)
    assert (r["fwd_turn_delay_sum_us"], r["fwd_turn_delay_max_us"]) == (3_000, 3_000)


def test_sums_saturate() -> None:
    most = 2**32 - 1
    far = 10**14  # three years: beyond 32 bits of microseconds, its square beyond 64
    items = [row(0, payload=most, size=most), row(far, payload=most, size=most), back(2 * far, payload=1)]
    items.append(row(3 * far, payload=most, size=most))
    r = only(run_table(items, idle_timeout_s=10**9, active_timeout_s=10**9))
    assert r["duration_us"] == 3 * far
    assert r["fwd_bytes"] == 3 * most
    assert r["fwd_len_sumsq"] == 2**64 - 1
    assert r["fwd_iat_sum_us"] == 3 * far
    assert r["fwd_iat_sumsq_us"] == 2**64 - 1
    assert (r["fwd_iat_min_us"], r["fwd_iat_max_us"]) == (most, most)
    assert (r["fwd_gap_sum_us"], r["fwd_gap_sumsq_us"]) == (3 * far, 2**64 - 1)
    assert (r["rev_turn_delay_max_us"], r["rev_turn_delay_sum_us"]) == (most, far)
    assert r["fwd_turn_delay_max_us"] == most
    assert r["fwd_burst_max_bytes"] == most


def test_time_running_backwards_gives_no_negative_figure() -> None:
    items = [row(1_000, payload=1), row(400, payload=1), back(900, payload=1), row(1_500, payload=1), row(0)]
    r = only(run_table(items))
    assert (r["first_us"], r["duration_us"]) == (T0 + 1_000, 500)
    assert (r["fwd_iat_sum_us"], r["fwd_iat_min_us"], r["fwd_iat_max_us"]) == (500, 0, 500)
    assert (r["rev_turn_delay_sum_us"], r["fwd_turn_delay_sum_us"]) == (0, 500)
    assert r["fwd_iat_sumsq_us"] == 500**2


def test_a_wrong_clock_step_far_back_does_not_split_the_flow() -> None:
    assert sizes(run_table([row(10_000 * SECOND), row(0), row(10_000 * SECOND + 5)])) == [3]


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


# --- ends -------------------------------------------------------------------------------------------------


def test_idle_timeout_is_strict() -> None:
    items = [row(0), row(2 * SECOND), row(4 * SECOND + 1)]
    records = run_table(items, idle_timeout_s=2)
    assert sizes(records) == [2, 1]
    assert ends(records) == [End.IDLE, End.CAPTURE]
    assert records["first_us"].tolist() == [T0, T0 + 4 * SECOND + 1]


def test_idle_timeout_takes_the_new_first_packet_s_direction() -> None:
    records = run_table([row(0), back(5 * SECOND)], idle_timeout_s=2)
    assert [kit.five_tuple(r) for r in records] == [FORWARD, BACKWARD]


def test_expire_ends_flows_by_the_clock_it_is_given() -> None:
    table = FlowTable(FlowOptions(idle_timeout_s=2))
    table.update(kit.rows([row(0), row(SECOND, sport=2000)]))
    assert table.live == 2
    assert len(table.expire(T0 + 2 * SECOND)) == 0
    ended = table.expire(T0 + 2 * SECOND + 1).copy()
    assert (ended["sport"].tolist(), ends(ended)) == ([1000], [End.IDLE])
    assert table.live == 1
    assert ends(table.expire(T0 + 100 * SECOND)) == [End.IDLE]
    assert table.live == 0
    assert ends(table.update(kit.rows([row(200 * SECOND)]))) == []
    assert table.live == 1


def test_live_flows_expire_by_the_packet_clock() -> None:
    table = FlowTable(FlowOptions(idle_timeout_s=2))
    ended = []
    for second in range(0, 3000, 2):
        ended += table.update(kit.rows([row(second * SECOND, sport=second)]))["sport"].tolist()
        assert table.live < 100
    assert ended == sorted(ended)
    assert len(ended) > 1400


def test_flush_at_a_known_time_tells_idle_flows_from_cut_ones() -> None:
    records = run_table([row(0), row(5 * SECOND, sport=2000)], idle_timeout_s=2, flush_us=5 * SECOND)
    assert dict(zip(records["sport"].tolist(), ends(records), strict=True)) == {1000: End.IDLE, 2000: End.CAPTURE}


def test_fin_of_both_sides_ends_the_flow_with_its_last_acknowledgement_inside() -> None:
    items = [row(0), row(10, flags=FIN | ACK), back(20, flags=FIN | ACK), row(30), row(5 * SECOND, flags=ACK)]
    r = only(run_table(items))
    assert (r["end"], r["fwd_packets"], r["rev_packets"]) == (End.FIN, 4, 1)


def test_fin_of_one_side_ends_nothing() -> None:
    assert ends(run_table([row(0, flags=FIN | ACK), row(1, flags=FIN | ACK), back(2, payload=9)])) == [End.CAPTURE]


def test_a_packet_long_after_the_end_is_a_new_flow() -> None:
    items = [row(0, flags=FIN | ACK), back(10, flags=FIN | ACK), back(6 * SECOND)]
    records = run_table(items)
    assert (sizes(records), ends(records)) == ([2, 1], [End.FIN, End.CAPTURE])
    assert kit.five_tuple(records[1]) == BACKWARD


def test_reset_ends_the_flow() -> None:
    r = only(run_table([row(0), back(10, flags=RST | ACK), row(20, payload=3)]))
    assert (r["end"], r["fwd_packets"], r["rev_packets"]) == (End.RST, 2, 1)


@pytest.mark.parametrize(
    ("flags", "end"),
    [
        ((FIN | ACK, FIN | ACK, RST), End.FIN),
        ((FIN | ACK, RST, FIN | ACK), End.RST),
        ((RST, FIN | ACK, FIN | ACK), End.RST),
    ],
)
def test_the_first_reason_counts(flags: tuple[int, ...], end: End) -> None:
    items = [(row, back, row)[n](10 * n, flags=f) for n, f in enumerate(flags)]
    assert ends(run_table(items)) == [end]


@pytest.mark.parametrize(
    ("close", "end"),
    [([row(10, flags=RST)], End.RST), ([row(10, flags=FIN | ACK), back(11, flags=FIN | ACK)], End.FIN)],
)
def test_a_syn_after_the_end_is_a_new_flow_at_once(close: list[dict[str, int]], end: End) -> None:
    records = run_table([row(0, flags=SYN, seq=1), *close, row(20, flags=SYN, seq=1), back(30, flags=SYN | ACK)])
    assert ends(records) == [end, End.CAPTURE]
    assert sizes(records) == [1 + len(close), 2]


def test_closed_flows_are_let_go_after_five_seconds() -> None:
    table = FlowTable(FlowOptions())
    table.update(kit.rows([row(0), row(1, flags=RST)]))
    assert table.live == 1
    assert len(table.expire(T0 + 4 * SECOND)) == 0
    assert ends(table.expire(T0 + 6 * SECOND)) == [End.RST]
    assert table.live == 0


def test_retransmitted_syn_stays_in_its_flow() -> None:
    items = [row(0, flags=SYN, seq=7), row(SECOND, flags=SYN, seq=7), back(SECOND + 1, flags=SYN | ACK)]
    items += [row(SECOND + 2), row(2 * SECOND, flags=SYN, seq=7)]
    r = only(run_table(items))
    assert (r["fwd_syn"], r["fwd_packets"], r["end"]) == (3, 4, End.CAPTURE)


@pytest.mark.parametrize("builder", [row, back])
def test_port_reuse_by_a_new_syn(builder: Any) -> None:
    items = [row(0, flags=SYN, seq=7), back(1, flags=SYN | ACK, seq=3), row(2, payload=9)]
    items += [builder(SECOND, flags=SYN, seq=999_999)]
    records = run_table(items)
    assert (sizes(records), ends(records)) == ([3, 1], [End.REUSE, End.CAPTURE])
    assert kit.five_tuple(records[1]) == (FORWARD if builder is row else BACKWARD)
    assert records["syn_seen"].tolist() == [1, 1]


def test_port_reuse_is_seen_in_a_record_that_an_active_timeout_began() -> None:
    items = [row(0, flags=SYN, seq=7), back(1, flags=SYN | ACK, seq=3, ack=8), row(2, payload=9)]
    items += [back(n * SECOND, payload=9) for n in range(1, 13)]  # the second record has no forward packet
    items += [row(13 * SECOND, flags=SYN, seq=999_999)]
    records = run_table(items, active_timeout_s=10)
    assert (sizes(records), ends(records)) == ([12, 3, 1], [End.ACTIVE, End.REUSE, End.CAPTURE])


def test_retransmitted_syn_after_a_syn_ack_that_was_captured_first() -> None:
    items = [back(0, flags=SYN | ACK, seq=3, ack=8), row(1, flags=SYN, seq=7), row(2, flags=SYN, seq=7)]
    assert only(run_table(items))["fwd_syn"] == 2


def test_syn_on_a_connection_whose_start_was_not_seen_is_a_new_flow() -> None:
    records = run_table([row(0, payload=5), back(1, payload=5), row(2, flags=SYN, seq=1)])
    assert (sizes(records), ends(records)) == ([2, 1], [End.REUSE, End.CAPTURE])


# --- checkpoints ------------------------------------------------------------------------------------------


def test_checkpoints_by_packet_count() -> None:
    records = run_table([row(n) for n in range(300)], emit="all")
    assert sizes(records) == [4, 8, 16, 32, 64, 128, 192, 256, 300]
    assert records["checkpoint"].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 8]
    assert ends(records) == [End.LIVE] * 8 + [End.CAPTURE]
    assert records["duration_us"].tolist() == [3, 7, 15, 31, 63, 127, 191, 255, 299]


def test_checkpoints_by_time_only_after_the_counted_ones() -> None:
    early = [row(n * 2 * SECOND) for n in range(10)]  # slow: the first ones still wait for their count
    assert sizes(run_table(early, emit="all")) == [4, 8, 10]
    start = [row(n) for n in range(64)]
    later = [row(63 + us) for us in (999_999, SECOND, SECOND + 1, 2 * SECOND - 1, 2 * SECOND, 5 * SECOND)]
    records = run_table(start + later, emit="all")
    assert sizes(records) == [4, 8, 16, 32, 64, 66, 69, 70, 70]
    assert records["checkpoint"].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 8]


def test_checkpoint_count_starts_anew_after_a_checkpoint_by_time() -> None:
    items = [row(n) for n in range(64)] + [row(2 * SECOND + n) for n in range(65)]
    assert sizes(run_table(items, emit="all")) == [4, 8, 16, 32, 64, 65, 129, 129]


def test_checkpoints_count_both_directions() -> None:
    items = [(row if n % 3 else back)(n) for n in range(9)]
    assert sizes(run_table(items, emit="all")) == [4, 8, 9]


def test_checkpoint_at_the_last_packet_is_followed_by_the_end() -> None:
    records = run_table([row(n) for n in range(8)], emit="all")
    assert sizes(records) == [4, 8, 8]
    assert ends(records) == [End.LIVE, End.LIVE, End.CAPTURE]


@pytest.mark.parametrize(("count", "want"), [(3, (3, End.CAPTURE, 0)), (4, (4, End.LIVE, 1)), (500, (4, End.LIVE, 1))])
def test_emit_first(count: int, want: tuple[int, int, int]) -> None:
    r = only(run_table([row(n) for n in range(count)], emit="first"))
    assert (r["fwd_packets"], r["end"], r["checkpoint"]) == want


def test_emit_last_is_the_default() -> None:
    r = only(run_table([row(n) for n in range(500)]))
    assert (r["fwd_packets"], r["checkpoint"], r["end"]) == (500, 5 + (500 - 64) // 64, End.CAPTURE)


def test_a_new_record_after_an_active_timeout_has_checkpoints_of_its_own() -> None:
    items = [row(n * SECOND) for n in range(20)]
    records = run_table(items, active_timeout_s=10, emit="all")
    assert sizes(records) == [4, 8, 10, 4, 8, 10]


@pytest.mark.parametrize(
    "bad",
    [{"emit": "sometimes"}, {"idle_timeout_s": 0.0}, {"idle_timeout_s": -1.0}, {"active_timeout_s": float("nan")}],
)
def test_impossible_options_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(DinnetError):
        FlowOptions(**bad)


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
