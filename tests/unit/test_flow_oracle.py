"""The flow table against the same rules in plain Python, on random packet sequences."""

from __future__ import annotations

from typing import Any

import capturekit as kit
from capturekit import ACK, FIN, PSH, RST, SYN, T0
from hypothesis import given, settings
from hypothesis import strategies as st

from dinnet.flows.record import RECORD_DTYPE, End

SECOND = 1_000_000
NONE = 2**32 - 1
Record = dict[str, int]

SIDE_FIELDS = [name[4:] for name in RECORD_DTYPE.names or () if name.startswith("fwd_")]


class Flow:
    """One flow: `r` is its record, the rest is what the rules need to go on."""

    def __init__(self, p: Record, t: int, before: Flow | None = None) -> None:
        opening = p["flags"] & SYN
        answer = bool(opening) and bool(p["flags"] & ACK) and before is None
        self.src = ("dst", "src") if answer else ("src", "dst")
        self.r: Record = dict.fromkeys(RECORD_DTYPE.names or (), 0) | {
            "first_us": t, "syn_seen": int(bool(opening)), "proto": p["proto"], "ip_version": p["ip_version"],
            "vlan": p["vlan"], "inner_vlan": p["inner_vlan"], "tunnel_id": p["tunnel_id"],
            "src_hi": p[f"{self.src[0]}_hi"], "src_lo": p[f"{self.src[0]}_lo"],
            "dst_hi": p[f"{self.src[1]}_hi"], "dst_lo": p[f"{self.src[1]}_lo"],
            "sport": p["dport" if answer else "sport"], "dport": p["sport" if answer else "dport"],
        }  # fmt: skip
        for side in ("fwd", "rev"):
            for name in ("len_min", "iat_min_us", "window_min"):
                self.r[f"{side}_{name}"] = NONE
        self.isn = (p["ack"] - 1 if answer else p["seq"]) if opening else None
        self.fins: set[str] = set()
        self.closed = 0
        self.answer_only = answer
        if before:  # an active timeout: the same flow in a new record
            for name in ("src_hi", "src_lo", "dst_hi", "dst_lo", "sport", "dport", "syn_seen", "vlan", "inner_vlan"):
                self.r[name] = before.r[name]
            self.isn, self.fins, self.closed = before.isn, before.fins, before.closed
            self.answer_only = before.answer_only
        self.last = self.last_checkpoint = t
        self.due = 4
        self.at: dict[str, int] = {}
        self.payload_at: dict[str, int] = {}
        self.burst = {"fwd": 0, "rev": 0}
        self.speaker = ""
        self.listed = 0

    def side(self, p: Record) -> str:
        same = all(p[n] == self.r[n] for n in ("src_hi", "src_lo", "sport", "dst_hi", "dst_lo", "dport"))
        return "fwd" if same else "rev"

    def add(self, p: Record, t: int) -> bool:
        """Count a packet; True where a checkpoint is due."""
        r, side, size, payload, flags = self.r, self.side(p), p["ip_bytes"], p["payload_bytes"], p["flags"]
        other = "rev" if side == "fwd" else "fwd"

        def plus(name: str, value: int, bits: int = 64) -> None:
            r[f"{side}_{name}"] = min(r[f"{side}_{name}"] + value, 2**bits - 1)

        def least(name: str, value: int) -> None:
            r[f"{side}_{name}"] = min(r[f"{side}_{name}"], value)

        def most(name: str, value: int, bits: int = 32) -> None:
            r[f"{side}_{name}"] = max(r[f"{side}_{name}"], min(value, 2**bits - 1))

        if side == "fwd" and r["fwd_packets"] == 0:
            r["flow_label"] = p["flow_label"]
        if side in self.at:
            gap = t - self.at[side]
            plus("iat_sum_us", gap)
            plus("iat_sumsq_us", gap * gap)
            least("iat_min_us", gap)
            most("iat_max_us", gap)
        plus("packets", 1)
        plus("bytes", size)
        plus("len_sumsq", size * size)
        least("len_min", size)
        most("len_max", size)
        if payload:
            plus("payload_bytes", payload)
            plus("payload_packets", 1)
            plus("full_segments", size >= 1280)
            gap = t - self.payload_at.get(side, t)
            if side not in self.payload_at or gap >= 2000:
                plus("bursts", 1)
                plus("gap_sum_us", gap)
                plus("gap_sumsq_us", gap * gap)
                self.burst[side] = 0
            self.burst[side] += payload
            most("burst_max_bytes", self.burst[side], 64)
            if self.speaker == other:
                r["turns"] += 1
                plus("turn_delay_sum_us", t - self.payload_at[other])
                most("turn_delay_max_us", t - self.payload_at[other])
            wait = min(t - max(self.payload_at.values(), default=r["first_us"]), NONE)
            self.listed += 1
            if self.listed <= 8:
                r[f"splt_bytes_{self.listed}"] = min(payload, 65535)
                r[f"splt_gap_us_{self.listed}"] = wait
                r["splt_rev"] |= (side == "rev") << self.listed - 1
            if (turn := r["turns"] + 1) <= 6:
                r[f"turn_bytes_{turn}"] = min(r[f"turn_bytes_{turn}"] + payload, NONE)
                if self.speaker != side:
                    r[f"turn_wait_us_{turn}"] = wait
            self.speaker, self.payload_at[side] = side, t
        if p["proto"] == 6:
            for bit, name in ((SYN, "syn"), (FIN, "fin"), (RST, "rst"), (PSH, "psh"), (ACK, "ack")):
                plus(name, bool(flags & bit))
            plus("pure_ack", flags & (ACK | SYN | FIN | RST) == ACK and not payload)
            if not flags & RST:
                plus("window_sum", p["window"])
                least("window_min", p["window"])
            if flags & FIN:
                self.fins.add(side)
            if not self.closed:
                self.closed = End.FIN if len(self.fins) == 2 else End.RST if flags & RST else 0
        self.answer_only = self.answer_only and side == "rev"
        self.at[side] = self.last = t
        r["duration_us"] = t - r["first_us"]
        count = r["fwd_packets"] + r["rev_packets"]
        if count < self.due and (count <= 64 or t - self.last_checkpoint < SECOND):
            return False
        self.due = count * 2 if count < 64 else count + 64
        self.last_checkpoint = t
        r["checkpoint"] += 1
        return True


class Table:
    def __init__(self, idle_us: int, active_us: int, join_vlans: bool, split_flow_labels: bool) -> None:
        self.idle, self.active, self.join, self.split = idle_us, active_us, join_vlans, split_flow_labels
        self.flows: dict[Any, Flow] = {}
        self.records: list[Record] = []
        self.firsts: list[Record] = []

    def emit(self, flow: Flow, end: int) -> None:
        record = flow.r | {"end": end}
        self.records.append(record)
        if record["checkpoint"] == (0 if end else 1):
            self.firsts.append(record)

    def overdue(self, flow: Flow, t: int) -> int:
        """The reason for which a flow has ended by time `t`, 0 where it has not."""
        if flow.closed:
            return flow.closed if t > flow.last + min(self.idle, 5 * SECOND) else 0
        return End.IDLE if t > flow.last + self.idle else 0

    def add(self, p: Record) -> None:
        ends = frozenset([(p["src_hi"], p["src_lo"], p["sport"]), (p["dst_hi"], p["dst_lo"], p["dport"])])
        vlans = () if self.join else (p["vlan"], p["inner_vlan"])
        key = (ends, p["proto"], p["ip_version"], p["tunnel_id"], vlans, p["flow_label"] if self.split else 0)
        flow, t = self.flows.get(key), p["time_us"]
        if flow:
            end = self.overdue(flow, t)
            if not end and p["flags"] & (SYN | ACK) == SYN:
                same = flow.side(p) == "fwd" and (p["seq"] == flow.isn or flow.answer_only)
                end = flow.closed or (0 if same else End.REUSE)
                if same and flow.answer_only:
                    flow.isn = p["seq"]  # so far known from the answer only
            if end:
                self.emit(flow, end)
                flow = None
            else:
                t = max(t, flow.last)
                if t >= flow.r["first_us"] + self.active:
                    self.emit(flow, End.ACTIVE)
                    flow = self.flows[key] = Flow(p, t, flow)
        if not flow:
            flow = self.flows[key] = Flow(p, t)
        if flow.add(p, t):
            self.emit(flow, End.LIVE)

    def flush(self, now_us: int) -> None:
        for flow in self.flows.values():
            self.emit(flow, self.overdue(flow, now_us) or flow.closed or End.CAPTURE)


HOSTS = ["10.0.0.1", "10.0.0.2", "2001:db8::1", "2001:db8::2"]
GAPS = st.one_of(
    st.sampled_from([0, 1, 100, 1_999, 2_000, 2_001, 999_999, SECOND, 2_999_999, 3 * SECOND, 3 * SECOND + 1]),
    st.integers(0, 5_000),
    st.integers(0, 8 * SECOND),
)


@st.composite
def packets(draw: st.DrawFn, flows: int, backwards: bool) -> list[Record]:
    """A sequence of packets of up to `flows` conversations; `backwards`: time stamps may go back."""
    shapes = draw(st.lists(st.integers(0, 6), min_size=1, max_size=flows))
    out: list[Record] = []
    clock = 0
    for _ in range(draw(st.integers(1, 90))):
        gap = draw(GAPS)
        clock = max(0, clock - gap) if backwards and draw(st.integers(0, 4)) == 0 else clock + gap
        shape = draw(st.sampled_from(shapes))
        client, server = (HOSTS[2], HOSTS[3]) if shape == 3 else (HOSTS[0], HOSTS[1])
        sport, dport = (0, 0) if shape == 2 else (1000 + shape, 80)
        proto = {1: 17, 2: 1}.get(shape, 6)
        forward = draw(st.booleans())
        flags = draw(st.sampled_from([ACK, ACK, ACK, ACK | PSH, FIN | ACK, RST, RST | ACK, SYN, SYN | ACK, 0]))
        if flags & SYN:  # only the client opens, only the server answers
            forward = not flags & ACK
        isn = draw(st.sampled_from([100, 100, 100, 200]))
        payload = 0 if flags & SYN else draw(st.sampled_from([0, 0, 1, 100, 1_239, 1_240, 1_460, 65_000]))
        out.append(
            kit.row(
                clock,
                client if forward else server,
                sport if forward else dport,
                server if forward else client,
                dport if forward else sport,
                proto=proto,
                flags=flags,
                payload=payload,
                size=payload + draw(st.sampled_from([40, 60])),
                seq=isn,
                ack=isn + 1,
                window=draw(st.sampled_from([0, 500, 65_535])),
                label=draw(st.sampled_from([0, 5, 9])) if shape == 3 else 0,
                vlan=draw(st.sampled_from([0, 7])) if shape == 4 else 0,
                inner_vlan=draw(st.sampled_from([0, 8])) if shape == 4 else 0,
                tunnel_id=draw(st.sampled_from([0, 77])) if shape == 5 else 0,
            )
        )
    return out


def as_sorted(records: Any, names: tuple[str, ...]) -> list[tuple[int, ...]]:
    return sorted(tuple(int(r[n]) for n in names) for r in records)


ORDER = tuple(sorted(RECORD_DTYPE.names or (), key=lambda n: n not in ("first_us", "sport", "end", "checkpoint")))


def check(items: list[Record], idle_s: int, active_s: int, cuts: list[int], join: bool, split: bool) -> None:
    oracle = Table(idle_s * SECOND, active_s * SECOND, join, split)
    for item in items:
        oracle.add(item)
    latest = max(item["time_us"] for item in items)
    oracle.flush(latest)
    options: dict[str, Any] = {
        "idle_timeout_s": idle_s, "active_timeout_s": active_s, "join_vlans": join, "split_flow_labels": split,
        "splits": [c for c in cuts if c <= len(items)], "flush_us": latest - T0,
    }  # fmt: skip
    wants = {
        "all": oracle.records,
        "last": [r for r in oracle.records if r["end"] != End.LIVE],
        "first": oracle.firsts,
    }
    for emit, want in wants.items():
        got = kit.run_table(items, emit=emit, **options)
        left, right = as_sorted(got, ORDER), as_sorted(want, ORDER)
        for a, b in zip(left, right, strict=False):
            different = {n: (x, y) for n, x, y in zip(ORDER, a, b, strict=True) if x != y}
            assert not different, (emit, different)
        assert len(left) == len(right), emit


TIMEOUTS = {"idle_s": st.sampled_from([3, 7, 60]), "active_s": st.sampled_from([10, 25, 1800])}
CUTS = st.lists(st.integers(1, 90), max_size=4)


@settings(max_examples=250, deadline=None)
@given(items=packets(5, False), cuts=CUTS, join=st.booleans(), split=st.booleans(), **TIMEOUTS)
def test_many_flows_with_an_orderly_clock(
    items: list[Record], idle_s: int, active_s: int, cuts: list[int], join: bool, split: bool
) -> None:
    check(items, idle_s, active_s, cuts, join, split)


@settings(max_examples=150, deadline=None)
@given(items=packets(1, True), **TIMEOUTS)
def test_one_conversation_with_time_stamps_that_go_back(items: list[Record], idle_s: int, active_s: int) -> None:
    # One key only: where several share a clock that goes back, it is open which of them have been swept.
    first = items[0]
    ends = {(first["src_lo"], first["sport"]), (first["dst_lo"], first["dport"])}
    keys = ("proto", "ip_version", "vlan", "inner_vlan", "tunnel_id", "flow_label")
    alike = [i for i in items if {(i["src_lo"], i["sport"]), (i["dst_lo"], i["dport"])} == ends]
    alike = [i for i in alike if all(i[k] == first[k] for k in keys)]
    check(alike, idle_s, active_s, [], False, False)


@settings(max_examples=100, deadline=None)
@given(items=packets(5, True), cuts=CUTS, join=st.booleans(), split=st.booleans())
def test_many_flows_with_time_stamps_that_go_back_within_the_timeouts(
    items: list[Record], cuts: list[int], join: bool, split: bool
) -> None:
    check([i | {"flags": i["flags"] & ~(FIN | RST)} for i in items], 10_000, 100_000, cuts, join, split)


@settings(max_examples=60, deadline=None)
@given(items=packets(2, False))
def test_how_packets_are_cut_into_updates_changes_nothing(items: list[Record]) -> None:
    names = tuple(RECORD_DTYPE.names or ())
    whole = as_sorted(kit.run_table(items, emit="all", idle_timeout_s=10_000, active_timeout_s=30), names)
    single = kit.run_table(items, range(1, len(items)), emit="all", idle_timeout_s=10_000, active_timeout_s=30)
    assert as_sorted(single, names) == whole
