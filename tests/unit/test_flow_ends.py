"""When a flow ends, why, and what follows it, with answers worked out by hand."""

from __future__ import annotations

from typing import Any

import capturekit as kit
import pytest
from capturekit import ACK, FIN, RST, SYN, T0, back, row, run_table
from flowkit import BACKWARD, FORWARD, SECOND, ends, only, sizes

from dinnet.flows.record import End
from dinnet.flows.table import FlowOptions, FlowTable


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
