"""What the flow table counts of each packet, with answers worked out by hand."""

from __future__ import annotations

import capturekit as kit
import numpy as np
import pytest
from capturekit import ACK, FIN, PSH, RST, SYN, T0, UDP, back, row, run_table
from flowkit import FORWARD, SECOND, only, sizes

from dinnet.flows.record import RECORD_DTYPE, UNSET, End
from dinnet.flows.table import FlowOptions, FlowTable


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
