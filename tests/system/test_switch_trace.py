"""`dinnet switch trace` says what the pipeline then does."""

from __future__ import annotations

from collections.abc import Iterator

import capturekit as kit
import numpy as np
import pytest
import switchkit
from switchkit import IN, OTHER, OUT
from test_switch_marks import FLOW, keys_of, mapped, mark, marks_of

from dinnet.errors import DinnetError
from dinnet.switch.contract import Action, Alternate, Bucket, Exceed, Forward
from dinnet.switch.sliceselect import Match, Selected
from dinnet.switch.tokens import Rates
from dinnet.switch.trace import trace

pytestmark = [switchkit.needs_bpf, pytest.mark.root]
FRAME = kit.ethernet(kit.ipv4(kit.udp(1000, 80, bytes(58)), 17))


@pytest.fixture(scope="module")
def module_bench() -> Iterator[switchkit.Bench]:
    bench = switchkit.Bench()
    yield bench
    bench.close()


@pytest.fixture
def bench(module_bench: switchkit.Bench) -> switchkit.Bench:
    module_bench.reset()
    return module_bench


def steps(bench: switchkit.Bench, frame: bytes = FRAME, port: int = IN) -> dict[str, str]:
    return dict(trace(bench.datapath, port, frame))


def test_no_route(bench: switchkit.Bench) -> None:
    assert steps(bench)["verdict"] == "dropped: no route"
    assert steps(bench)["forward"] == "no entry in forward_v4, forward_l2"


@pytest.mark.parametrize("trusted", [False, True])
def test_each_table_that_decides_is_named_and_the_mark_is_the_pipelines(bench: switchkit.Bench, trusted: bool) -> None:
    pipe = bench.datapath
    frame = bytearray(FRAME)
    frame[15] = 0b011011_00  # DSCP 27
    bench.configure(trusted=trusted)
    pipe.forward("10.0.0.0/24", Forward(Action.ROUTE, OUT, src=1, dst=2))
    marks = []
    for change in (
        lambda: None,
        lambda: pipe.slice_select.insert(
            [
                Selected(Match(src=(mapped("10.0.0.1"), 2**128 - 1)), 7, 2, 1),
                Selected(Match(dport=(80, 0xFFFF), proto=(17, 255)), 9, 3, 2),
                Selected(Match(dport=(81, 0xFFFF)), 99, 9, 3),
            ]
        ),
        lambda: pipe.microflows.insert(keys_of(bench, FLOW), marks_of((5, 1, 3)), [None]),
        lambda: pipe.set_mark_to_dscp(1, 3, 46),
    ):
        change()
        told = steps(bench, bytes(frame))
        ran = bench.run(bytes(frame))
        slice_number, tc, _ = mark(ran)
        assert told["mark"].startswith(f"DSCP {ran.packet[15] >> 2}, queue 1:{0x10 + slice_number * 4 + tc:x}")
        assert told["verdict"] == f"to port {OUT}"
        assert told["forward"] == "forward_v4: to port 2, 00:00:00:00:00:01 -> 00:00:00:00:00:02, one hop less"
        marks.append((slice_number, tc))
    assert marks == [(6, 3) if trusted else (0, 0), (3, 2), (1, 3), (1, 3)]
    assert told["slice_select"] == "priority 9 -> slice 3, tc 2"
    assert told["microflow"] == "id 5 -> slice 1, tc 3"
    assert told.get("dscp_to_mark") == ("DSCP 27 -> slice 6, tc 3" if trusted else None)


def test_buckets_are_shown_with_what_is_left_and_nothing_is_taken(bench: switchkit.Bench) -> None:
    pipe = bench.datapath
    pipe.set_default_forward(Forward(Action.PORT, OUT))
    pipe.microflows.insert(keys_of(bench, FLOW), marks_of((5, 1, 3)), [Rates(0, 100, 0, 250)])
    pipe.set_slice_meters(OUT * 16 + 1, [Rates(1000, 5000, 2000, 10_000)])
    pipe.set_exceed(1, Bucket.MICROFLOW, Alternate(Exceed.REROUTE, OTHER))
    before = [steps(bench)["microflow"] for _ in range(2)]
    assert before[0] == before[1]
    assert before[0].endswith("committed 0 B/s with 100 of 100 bytes left, peak 0 B/s with 250 of 250 bytes left")
    bench.run(FRAME)
    assert steps(bench)["microflow"].endswith("with 0 of 100 bytes left, peak 0 B/s with 150 of 250 bytes left")
    counted = pipe.counters("marked").copy()
    told = list(trace(pipe, IN, FRAME))
    assert [outcome for stage, outcome in told if stage == "exceed"] == [
        f"if red: reroute to port {OTHER}",
        "if red: degrade",
    ]
    assert np.array_equal(counted, pipe.counters("marked"))


def test_what_is_not_ip_or_malformed_or_flooded(bench: switchkit.Bench) -> None:
    pipe = bench.datapath
    pipe.set_group(4, [IN, OUT])
    pipe.set_default_forward(Forward(Action.FLOOD, 4))
    arp = b"\xff" * 6 + bytes(6) + b"\x08\x06" + bytes(28)
    assert steps(bench, arp)["verdict"] == "to the ports of the group, but not back, unmarked"
    assert steps(bench, FRAME[:20])["verdict"] == "dropped: malformed"
    pipe.set_default_forward(Forward(Action.CONTROLLER))
    assert steps(bench)["verdict"] == "to the controller"
    pipe.set_default_forward(Forward(Action.DROP))
    assert steps(bench)["verdict"] == "dropped: forward"
    pipe.set_default_forward(Forward(Action.PORT, 77))
    assert steps(bench)["verdict"] == "dropped: there is no port 77"
    with pytest.raises(DinnetError, match="no port 9; it has 1"):
        steps(bench, port=9)


def test_a_later_fragment_is_looked_up_without_ports(bench: switchkit.Bench) -> None:
    bench.datapath.set_default_forward(Forward(Action.PORT, OUT))
    bench.datapath.microflows.insert(keys_of(bench, ("10.0.0.1", "10.0.0.2", 17, 0, 0)), marks_of((5, 1, 3)), [None])
    frame = bytearray(FRAME)
    frame[21] = 8  # fragment offset
    assert steps(bench, bytes(frame))["microflow"] == "no entry"
    assert mark(bench.run(bytes(frame)))[:2] == (0, 0)
