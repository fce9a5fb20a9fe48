"""How the embedded switch tells packets apart, marks and meters them."""

from __future__ import annotations

import errno
import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import capturekit as kit
import numpy as np
import pytest
import switchkit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from switchkit import IN, OTHER, OUT

from dinnet.switch.bpfobject import Ran
from dinnet.switch.contract import Action, Alternate, Bucket, Drop, Exceed, Forward
from dinnet.switch.sliceselect import Match, Selected
from dinnet.switch.tokens import Rates

pytestmark = [switchkit.needs_bpf, pytest.mark.root]
GREEN, YELLOW, RED = 0, 1, 2
FRAME = kit.ethernet(kit.ipv4(kit.udp(1000, 80, bytes(58)), 17))
assert len(FRAME) == 100


@pytest.fixture(scope="module")
def module_bench() -> Iterator[switchkit.Bench]:
    bench = switchkit.Bench()
    yield bench
    bench.close()


@pytest.fixture
def bench(module_bench: switchkit.Bench) -> switchkit.Bench:
    module_bench.reset()
    module_bench.datapath.set_default_forward(Forward(Action.PORT, OUT))
    return module_bench


def mapped(address: str) -> int:
    return int(ipaddress.ip_address(address)) | (0 if ":" in address else 0xFFFF << 32)


def mark(ran: Ran) -> tuple[int, int, int]:
    """Slice, traffic class, colour."""
    word = ran.skb.cb[1]
    assert word & 1
    return word >> 8 & 0xFF, word >> 16 & 0xFF, word >> 24


def keys_of(bench: switchkit.Bench, *flows: tuple[str, str, int, int, int]) -> np.ndarray[Any, Any]:
    """Microflow keys of (source, destination, protocol, source port, destination port)."""
    keys = np.zeros(len(flows), bench.datapath.microflows.key)
    for row, (src, dst, proto, sport, dport) in zip(keys, flows, strict=True):
        row["src_hi"], row["src_lo"] = kit.address(src)
        row["dst_hi"], row["dst_lo"] = kit.address(dst)
        row["proto"], row["sport"], row["dport"] = proto, sport, dport
    return keys


def marks_of(*marks: tuple[int, int, int]) -> np.ndarray[Any, Any]:
    layout = [("id", "u4"), ("slice", "u1"), ("tc", "u1"), ("idle_ns", "u8")]
    return np.array([(*each, 0) for each in marks], layout)


FLOW = ("10.0.0.1", "10.0.0.2", 17, 1000, 80)


def test_untrusted_dscp_is_overwritten_and_trusted_one_counts(bench: switchkit.Bench) -> None:
    frame = bytearray(FRAME)
    frame[15] = 0b011011_10  # DSCP 27: slice 6, traffic class 3
    ran = bench.run(bytes(frame))
    assert mark(ran) == (0, 0, GREEN)
    assert ran.packet[15] == 0b10
    bench.configure(trusted=True)
    ran = bench.run(bytes(frame))
    assert mark(ran) == (6, 3, GREEN)
    assert ran.packet == bytes(frame)
    assert ran.skb.priority == 1 << 16 | 0x10 + 27
    bench.datapath.set_dscp_to_mark(27, (1, 2))
    assert mark(bench.run(bytes(frame))) == (1, 2, GREEN)
    cells = bench.datapath.counters("marked")  # by slice, traffic class, colour
    packets = {number: int(cell["packets"]) for number, cell in enumerate(cells) if cell["packets"]}
    assert packets == {0: 1, 6 << 4 | 3 << 2: 1, 1 << 4 | 2 << 2: 1}


def test_queues_are_the_operators(bench: switchkit.Bench) -> None:
    bench.datapath.set_queues({0: 0x20005})
    assert bench.run(FRAME).skb.priority == 0x20005
    bench.datapath.set_queues({0: 0x10010})


def test_highest_priority_wins_whatever_the_masks(bench: switchkit.Bench) -> None:
    select = bench.datapath.slice_select
    entries = [
        Selected(Match(dport=(80, 0xFFFF)), 10, 1, 1),
        Selected(Match(src=(mapped("10.0.0.0"), 2**128 - 2**8)), 20, 2, 2),
        Selected(Match(src=(mapped("10.0.0.1"), 2**128 - 1), proto=(17, 255)), 5, 3, 3),
        Selected(Match(dport=(80, 0xFFFF)), 30, 4, 0),  # the same match, another priority
    ]
    assert select.insert(entries) == [0, 0, 0, 0]
    assert select.insert(entries[:1]) == [errno.EEXIST]
    assert mark(bench.run(FRAME)) == (4, 0, GREEN)
    assert select.delete([(entries[3].match, 30)]) == [0]
    assert select.delete([(entries[3].match, 30)]) == [errno.ENOENT]
    assert mark(bench.run(FRAME)) == (2, 2, GREEN)
    assert select.modify([entries[1]._replace(slice=9)]) == [0]
    assert mark(bench.run(FRAME)) == (9, 2, GREEN)
    assert [row.tolist() for row in select.counters([(e.match, e.priority) for e in entries])] == [
        (0, 0), (2, 200), (0, 0), (0, 0),
    ]  # fmt: skip
    select.delete([(entries[1].match, 20)])
    assert mark(bench.run(FRAME)) == (1, 1, GREEN)
    select.delete([(entries[0].match, 10)])
    assert mark(bench.run(FRAME)) == (3, 3, GREEN)


def test_too_many_combinations_of_masks_fail_alone(bench: switchkit.Bench) -> None:
    select = bench.datapath.slice_select
    entries = [Selected(Match(sport=(0, number)), number, 1, 0) for number in range(1, 71)]
    codes = select.insert([*entries, Selected(Match(sport=(1, 1)), 3, 2, 0)])
    assert codes == [0] * 64 + [errno.ENOSPC] * 6 + [0]
    assert len(select.entries()) == 65


match_words = st.sampled_from((0, 1, 2, 3))
random_match = st.builds(Match, *[st.tuples(match_words, match_words)] * 7)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    entries=st.lists(st.tuples(random_match, st.integers(1, 6), st.integers(0, 15), st.integers(0, 3)), max_size=14),
    removed=st.sets(st.integers(0, 13)),
    packets=st.lists(st.tuples(*[match_words] * 5), min_size=1, max_size=6),
)
def test_ternary_table_against_its_definition(
    module_bench: switchkit.Bench, entries: list[Any], removed: set[int], packets: list[Any]
) -> None:
    from dinnet.switch.sliceselect import Ternary

    bench = module_bench
    bench.reset()
    bench.datapath.set_default_forward(Forward(Action.PORT, OUT))
    select = bench.datapath.slice_select
    table: dict[Any, Selected] = {}
    for each in entries:
        entry = Selected(*each)
        key = (tuple((v & m, m) for v, m in entry.match), entry.priority)
        code = select.insert([entry])[0]
        assert code == (errno.EEXIST if key in table else 0)
        table.setdefault(key, entry)
    for number in removed:
        if number < len(entries):
            entry = Selected(*entries[number])
            key = (tuple((v & m, m) for v, m in entry.match), entry.priority)
            assert select.delete([(entry.match, entry.priority)]) == [0 if table.pop(key, None) else errno.ENOENT]
    maps = [bench.datapath.table(name) for name in ("slice_select", "select_masks", "select_state")]
    adopted = Ternary(Selected, *maps, bench.datapath.program.btf.dtype("select_mask"))
    assert {(e.match, e.priority, e.slice, e.tc) for e in adopted.entries()} == {
        (Match(*key[0]), e.priority, e.slice, e.tc) for key, e in table.items()
    }
    adopted.close()
    for src, dst, sport, dport, vlan in packets:
        udp = kit.udp(sport, dport)
        packet = kit.ipv6(udp, 17, src=str(ipaddress.IPv6Address(src)), dst=str(ipaddress.IPv6Address(dst)))
        got = mark(bench.run(kit.ethernet(packet, tags=[(kit.VLAN, vlan)])))
        words = (IN, src, dst, 17, sport, dport, vlan)
        hits = [e for e in table.values() if all(w & m == v & m for w, (v, m) in zip(words, e.match, strict=True))]
        best = max((e.priority for e in hits), default=0)
        assert got in [(e.slice, e.tc, 0) for e in hits if e.priority == best] or (not hits and got == (0, 0, 0))


def test_microflow_goes_before_slice_select(bench: switchkit.Bench) -> None:
    flows = bench.datapath.microflows
    bench.datapath.slice_select.insert([Selected(Match(), 1, 2, 1)])
    keys = keys_of(bench, FLOW)
    assert flows.insert(keys, marks_of((77, 1, 3)), [None]) == [0]
    assert flows.insert(keys, marks_of((77, 1, 3)), [None]) == [errno.EEXIST]
    ran = bench.run(FRAME)
    assert (mark(ran), ran.skb.cb[2]) == ((1, 3, GREEN), 77)
    # Another direction is another micro-flow; a fragment that is not the first has no ports.
    assert mark(bench.run(kit.ethernet(kit.ipv4(kit.udp(80, 1000), 17, "10.0.0.2", "10.0.0.1")))) == (2, 1, GREEN)
    assert mark(bench.run(kit.ethernet(kit.ipv4(kit.udp(1000, 80), 17, offset=8)))) == (2, 1, GREEN)
    values, there = flows.get(keys)
    assert there.all()
    assert flows.states(values)["counter"].tolist() == [(1, 100)]
    assert flows.modify(keys, marks_of((78, 4, 0)), [None]) == [0]
    assert mark(bench.run(FRAME)) == (4, 0, GREEN)
    assert flows.states(values)["counter"].tolist() == [(2, 200)]  # kept
    assert flows.delete(keys) == [0]
    assert flows.delete(keys) == [errno.ENOENT]
    assert flows.modify(keys, marks_of((1, 1, 1)), [None]) == [errno.ENOENT]
    assert mark(bench.run(FRAME)) == (2, 1, GREEN)
    flows.insert(keys, marks_of((77, 1, 3)), [None])
    assert flows.states(flows.get(keys)[0])["counter"].tolist() == [(0, 0)]


def test_flow_label_is_part_of_the_key_where_the_port_says_so(bench: switchkit.Bench) -> None:
    key = keys_of(bench, ("2001:db8::1", "2001:db8::2", 17, 1000, 80))
    key["flow_label"] = 5
    bench.datapath.microflows.insert(key, marks_of((1, 1, 3)), [None])
    frame = kit.ethernet(kit.ipv6(kit.udp(1000, 80), 17, label=5))
    assert mark(bench.run(frame)) == (0, 0, GREEN)
    bench.configure(flow_labels=True)
    assert mark(bench.run(frame)) == (1, 3, GREEN)
    assert mark(bench.run(kit.ethernet(kit.ipv6(kit.udp(1000, 80), 17, label=6)))) == (0, 0, GREEN)


def test_full_table_is_an_error_of_those_without_room(bench: switchkit.Bench) -> None:
    flows, room = bench.datapath.microflows, switchkit.SIZES.microflows or 0
    keys = keys_of(bench, *[(f"10.0.{n >> 8}.{n & 255}", "10.9.9.9", 6, 1, 1) for n in range(room + 5)])
    keys[room + 2] = keys[0]
    codes = flows.insert(keys, marks_of(*[(0, 1, 1)] * len(keys)), [None] * len(keys))
    assert codes == [0] * room + [errno.ENOSPC, errno.ENOSPC, errno.EEXIST, errno.ENOSPC, errno.ENOSPC]
    assert flows.delete(keys[:10]) == [0] * 10
    assert flows.insert(keys[room:], marks_of(*[(0, 1, 1)] * 5), [None] * 5) == [0, 0, 0, 0, 0]
    assert len(flows.all()[0]) == room - 5


@dataclass
class Marker:
    """The two-rate three-colour marker as RFC 2698 section 3 puts it, in nanobytes."""

    rates: Rates
    last_ns: int = 0
    committed: int = field(init=False)
    peak: int = field(init=False)

    def __post_init__(self) -> None:
        self.committed, self.peak = self.rates.cbs * 10**9, self.rates.pbs * 10**9

    def colour(self, now_ns: int, size: int) -> int:
        elapsed, self.last_ns = max(now_ns - self.last_ns, 0), max(now_ns, self.last_ns)
        self.peak = min(self.peak + elapsed * self.rates.pir, self.rates.pbs * 10**9)
        self.committed = min(self.committed + elapsed * self.rates.cir, self.rates.cbs * 10**9)
        if self.peak < size * 10**9:
            return RED
        self.peak -= size * 10**9
        if self.committed < size * 10**9:
            return YELLOW
        self.committed -= size * 10**9
        return GREEN


some_rates = st.builds(
    Rates,
    st.sampled_from((0, 1, 999, 10**5, 10**9, 2**40)),
    st.sampled_from((0, 99, 100, 1500, 10**6, 10**10)),
    st.sampled_from((0, 1, 1000, 10**5, 10**10, 2**63)),
    st.sampled_from((0, 100, 250, 10**4, 10**10)),
)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    rates=some_rates,
    slice_rates=some_rates,
    gaps=st.lists(
        st.sampled_from((0, 1, 999_999, 10**6, 10**9, 10**13, -(10**5))) | st.integers(0, 10**8), max_size=25
    ),
)
def test_meters_against_the_standard(
    module_bench: switchkit.Bench, rates: Rates, slice_rates: Rates, gaps: list[int]
) -> None:
    bench = module_bench
    bench.reset()
    bench.datapath.set_default_forward(Forward(Action.PORT, OUT))
    bench.datapath.microflows.insert(keys_of(bench, FLOW), marks_of((1, 5, 3)), [rates])
    bench.datapath.set_slice_meters(OUT * 16 + 5, [slice_rates])
    assert bench.datapath.slice_meters(OUT * 16 + 5, 1) == [slice_rates]
    own, shared = Marker(rates), Marker(slice_rates)
    now = 10**15
    for gap in gaps:
        now += gap
        wanted = own.colour(now, len(FRAME))
        above = RED if wanted == RED else shared.colour(now, len(FRAME))
        got = mark(bench.run(FRAME, now))
        assert got == (5, 0 if RED in (wanted, above) else 3, max(wanted, above))


def test_meter_survives_a_modification_that_leaves_it_alone(bench: switchkit.Bench) -> None:
    flows, keys, rates = bench.datapath.microflows, keys_of(bench, FLOW), Rates(1, 100, 1, 100)
    flows.insert(keys, marks_of((1, 1, 3)), [rates])
    assert mark(bench.run(FRAME)) == (1, 3, GREEN)
    flows.modify(keys, marks_of((1, 2, 3)), [rates])
    assert mark(bench.run(FRAME)) == (2, 0, RED)
    assert flows.rates(flows.get(keys)[0]) == [rates]
    flows.modify(keys, marks_of((1, 2, 3)), [None])
    assert mark(bench.run(FRAME)) == (2, 3, GREEN)
    flows.modify(keys, marks_of((1, 2, 3)), [rates])
    assert flows.rates(flows.get(keys)[0]) == [rates]


def exceeded(bench: switchkit.Bench) -> dict[tuple[int, int, int], int]:
    """(slice, bucket, action) -> packets."""
    cells = bench.datapath.counters("exceeded")
    return {(n >> 4, n >> 2 & 3, n & 3): int(c["packets"]) for n, c in enumerate(cells) if c["packets"]}


NOTHING = Rates(0, 0, 0, 0)


@pytest.mark.parametrize("bucket", list(Bucket))
@pytest.mark.parametrize("by_default", [False, True])
def test_what_is_above_a_bucket_is_degraded_rerouted_or_dropped(
    bench: switchkit.Bench, bucket: Bucket, by_default: bool
) -> None:
    pipe = bench.datapath
    pipe.microflows.insert(keys_of(bench, FLOW), marks_of((1, 5, 3)), [NOTHING if bucket == Bucket.MICROFLOW else None])
    if bucket == Bucket.SLICE:
        pipe.set_slice_meters(OUT * 16 + 5, [NOTHING])

    def choose(what: Alternate | None) -> None:
        if by_default:
            pipe.set_default_exceed(what)
        else:
            pipe.set_exceed(5, bucket, what)

    ran = bench.run(FRAME)
    assert (mark(ran), ran.skb.cb[0]) == ((5, 0, RED), Action.PORT | OUT << 8)
    choose(Alternate(Exceed.REROUTE, OTHER, 0, 0x02BB00000002))
    ran = bench.run(FRAME)
    assert (mark(ran), ran.skb.cb[0]) == ((5, 3, RED), Action.PORT | OTHER << 8)
    assert ran.packet[:12] == bytes.fromhex("02bb00000002") + FRAME[6:12]
    choose(Alternate(Exceed.DROP))
    ran = bench.run(FRAME)
    reason = Drop.SLICE if bucket == Bucket.SLICE else Drop.MICROFLOW
    assert (ran.answer, ran.skb.cb[0] >> 24) == (2, reason)
    assert pipe.drops()[reason].packets == 1
    choose(None)
    assert mark(bench.run(FRAME)) == (5, 0, RED)
    assert exceeded(bench) == {(5, bucket, 0): 2, (5, bucket, 1): 1, (5, bucket, 2): 1}
