"""Plans against a model of what the kernel does with each step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dinnet.errors import DinnetError
from dinnet.host.check import check_link, check_state
from dinnet.host.objects import Filter, HtbClass, Leaf, Protocol, Root
from dinnet.host.routes import PROTOCOL, difference
from dinnet.host.sizes import Clock
from dinnet.host.state import Change, HostState, Link, Queue, Route, Slice, queue_of
from dinnet.host.tree import Device, Difference, Foreign, Means, Step

MEANS = Means(Clock(15.625, 1e-9), "bfifo", "u32")
M = 10**6
LINK = Link(
    "eth1", 100 * M,
    (
        Slice(0, "default", 10 * M, 100 * M, (Queue(0, 5 * M, 100 * M, 5), Queue(2, 5 * M, 100 * M, 1))),
        Slice(1, "realtime", 60 * M, 100 * M, (Queue(3, 20 * M, 100 * M, 0), Queue(1, 40 * M, 100 * M, 2))),
        Slice(3, "bulk", 30 * M, 90 * M, (Queue(1, 30 * M, 90 * M, 7),)),
    ),
    dscp=((7, 1, 3), (46, 1, 3)),
)  # fmt: skip
BARE = Device("eth1", 7, 1514)


def model(device: Device, steps: Iterable[Step]) -> Device:
    """What an interface has after some steps, as the kernel would do them."""
    for step in steps:
        what, found = step.what, device
        root, had, queues, chosen = found.root, dict(found.classes), dict(found.leaves), list(found.filters)
        if step.action == "unset" and isinstance(what, Foreign):
            if what.handle == getattr(root, "handle", None):
                root = None
            queues.pop(what.parent, None)
        elif isinstance(what, Root):
            root = None if step.action == "delete" else what
            had, queues, chosen = {}, {}, []
        elif isinstance(what, HtbClass):
            had.pop(what.number, None)
            if step.action == "delete":
                queues.pop(what.number, None)
            else:
                had[what.number] = what
        elif isinstance(what, Leaf):
            queues.pop(what.parent, None)
            if step.action != "delete":
                queues[what.parent] = what
        elif isinstance(what, Filter):
            chosen = [
                f for f in chosen if (f.protocol, f.priority, f.node) != (what.protocol, what.priority, what.node)
            ]
            if step.action != "delete":
                chosen.append(what)
        device = Device(
            found.name, found.index, found.frame, root, had, queues, tuple(chosen), found.foreign, found.taken
        )
    return device


def plan(device: Device, link: Link | None, means: Means = MEANS) -> Difference:
    found = Difference(device, means)
    found.to(link) if link else found.to_nothing()
    return found


def applied(device: Device, changes: Iterable[Change]) -> Device:
    return model(device, (change.payload for change in changes))


def test_all_of_it_on_a_bare_interface() -> None:
    made = plan(BARE, LINK)
    assert not made.problems
    # The root, the link's class, 3 slices, 5 queues with a leaf each, 2 DSCPs in IPv4 and IPv6, and ARP.
    kinds = [change.kind for change in made.changes]
    assert kinds == ["qdisc"] + ["class"] * 9 + ["leaf"] * 5 + ["filter"] * 5
    assert all(change.action == "add" and change.before is None for change in made.changes)
    assert made.changes[0].what == "qdisc htb 1: root r2q 3537 default 0x10"
    assert made.changes[7].what == (
        "class htb 1:17 parent 1:101 prio 0 quantum 2500 rate 20Mbit ceil 100Mbit burst 4012b cburst 14012b"
    )
    after = applied(BARE, made.changes)
    assert not plan(after, LINK).changes
    assert plan(after, None).changes[0].what == made.changes[0].what
    assert applied(after, plan(after, None).changes) == BARE


def test_a_changed_rate_is_one_change_of_a_class() -> None:
    after = applied(BARE, plan(BARE, LINK).changes)
    realtime = LINK.slices[1]
    queues = (replace(realtime.queues[0], guarantee_bps=15 * M), realtime.queues[1])
    other = replace(LINK, slices=(LINK.slices[0], replace(realtime, queues=queues), LINK.slices[2]))
    (change,) = plan(after, other).changes
    assert (change.action, change.kind) == ("change", "class")
    assert "1:17" in change.what and "rate 15Mbit" in change.what
    assert change.before is not None and "rate 20Mbit" in change.before


def test_a_default_queue_that_is_not_the_kernels_is_a_filter_after_all_others() -> None:
    made = plan(BARE, replace(LINK, default_slice=1, default_tc=1))
    last = [change for change in made.changes if change.kind == "filter"][-1].payload.what
    assert last.protocol is Protocol.ALL and last.target == 0x10015
    others = [change.payload.what for change in made.changes if change.kind == "filter"][:-1]
    assert all(other.priority < last.priority for other in others)


def test_filters_keep_away_from_other_peoples_priorities() -> None:
    device = replace(BARE, root=Root(), taken=frozenset({0xDD00, 0xDD02, 0xDD80}))
    made = plan(device, replace(LINK, default_slice=1, default_tc=1, dscp=((7, 1, 3), (5, 1, 1))))
    found = {c.payload.what.protocol: c.payload.what.priority for c in made.changes if c.kind == "filter"}
    assert found == {Protocol.IP: 0xDD01, Protocol.IPV6: 0xDD03, Protocol.ALL: 0xDD81}


def test_a_foreign_root_is_left_alone_unless_told() -> None:
    device = replace(BARE, root=Foreign("qdisc tbf", 0x80010000, 0xFFFFFFFF))
    made = plan(device, LINK)
    assert not made.changes
    assert "qdisc tbf 8001: parent root is in the way" in str(made.problems[0])
    told = plan(device, replace(LINK, replace_foreign=True))
    assert [(c.action, c.kind) for c in told.changes[:2]] == [("delete", "qdisc"), ("add", "qdisc")]
    assert not told.problems
    assert not plan(device, None).changes


def test_a_foreign_leaf_is_left_alone_unless_told() -> None:
    after = applied(BARE, plan(BARE, LINK).changes)
    leaves = {**after.leaves, 0x10017: Leaf(0x00990000, 0x10017, "pfifo")}
    after = replace(after, leaves=leaves)
    made = plan(after, LINK)
    assert not made.changes and "qdisc pfifo 99:" in made.problems[0].what
    told = plan(after, replace(LINK, replace_foreign=True))
    assert [(c.action, c.kind) for c in told.changes] == [("delete", "qdisc"), ("add", "leaf")]


def test_what_others_put_into_the_tree_keeps_its_place() -> None:
    after = applied(BARE, plan(BARE, LINK).changes)
    after = replace(after, foreign=(Foreign("class htb", 0x10999, 0x10103),))
    made = plan(after, None)
    assert {c.kind for c in made.changes} == {"filter", "class"}
    gone = {c.payload.what.number for c in made.changes if c.kind == "class"}
    assert gone == set(after.classes) - {0x10103, 0x10001}
    assert made.problems


def test_queues_go_before_their_slice() -> None:
    after = applied(BARE, plan(BARE, LINK).changes)
    made = plan(after, replace(LINK, slices=LINK.slices[:1], dscp=()))
    numbers = [c.payload.what.number for c in made.changes if c.kind == "class"]
    assert set(numbers[:3]) == {0x10017, 0x10015, 0x1001D} and set(numbers[3:]) == {0x10101, 0x10103}
    assert max(n for n, c in enumerate(made.changes) if c.kind == "filter") < len(made.changes) - 5


def test_fq_codel_where_the_kernel_has_it() -> None:
    after = applied(BARE, plan(BARE, LINK).changes)
    means = replace(MEANS, leaf="fq_codel", filter="flower")
    made = plan(after, LINK, means)
    assert not plan(applied(after, made.changes), LINK, means).changes
    leaf = next(c for c in made.changes if c.kind == "leaf" and c.action == "add")
    assert leaf.what == "qdisc fq_codel dd10: parent 1:10 target 5.00ms interval 100.00ms ecn"


@st.composite
def links(draw: st.DrawFn) -> Link:
    rate = draw(st.sampled_from([M, 100 * M, 10_000 * M, 100_000 * M]))
    numbers = draw(st.lists(st.integers(0, 15), min_size=1, max_size=4, unique=True))
    slices = []
    for number in numbers:
        share = rate // len(numbers)
        tcs = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True))
        ceiling = draw(st.integers(share, rate))
        queues = []
        for tc in tcs:
            least = draw(st.integers(0, share // len(tcs)))
            delay = draw(st.floats(0.1, 50))
            queues.append(Queue(tc, least, draw(st.integers(max(least, 1), ceiling)), draw(st.integers(0, 7)), delay))
        slices.append(Slice(number, f"s{number}", share, ceiling, tuple(queues)))
    places = [(each.number, queue.tc) for each in slices for queue in each.queues]
    dscp = draw(st.dictionaries(st.integers(0, 63), st.sampled_from(places), max_size=5))
    default = draw(st.sampled_from(places))
    return Link(
        "eth1", rate, tuple(slices), draw(st.sampled_from([0, 32])), tuple((k, *v) for k, v in dscp.items()), *default
    )


@given(st.lists(links(), min_size=1, max_size=4), st.sampled_from(["bfifo", "fq_codel"]), st.data())
@settings(max_examples=150, deadline=None)
def test_plans_come_to_rest_from_wherever_they_begin(wanted: list[Link], leaf: str, data: st.DataObject) -> None:
    means = replace(MEANS, leaf=leaf, filter=data.draw(st.sampled_from(["u32", "flower"])))
    device = replace(BARE, taken=frozenset(data.draw(st.sets(st.integers(0xDD00, 0xDD05)))))
    for link in wanted:
        check_link(link)
        changes = plan(device, link, means).changes
        # Killed half-way, then gone on with.
        device = applied(device, changes[: data.draw(st.integers(0, len(changes)))])
        device = applied(device, plan(device, link, means).changes)
        rest = plan(device, link, means)
        assert not rest.changes and not rest.problems
        assert {number for number in device.classes if queue_of(number)} == set(device.leaves)
        assert all(each.priority not in device.taken for each in device.filters)
        by_priority: dict[int, set[Protocol]] = {}
        for each in device.filters:
            by_priority.setdefault(each.priority, set()).add(each.protocol)
        assert all(len(each) == 1 for each in by_priority.values())
    assert applied(device, plan(device, None, means).changes).root is None


def test_routes() -> None:
    via = Route("10.1.0.0/16", "10.0.0.2", "eth1", metric=10)
    tunnel = Route("fd01::/64", None, "eth1", metric=10, segments=("fd00::2", "fd00:0:0::3"))
    here = {"eth1": 7}
    changes, problems = difference((via, tunnel), {}, {}, here, True)
    assert not problems
    assert changes[0].what == f"10.1.0.0/16 via 10.0.0.2 dev eth1 proto {PROTOCOL} metric 10"
    assert "encap seg6 mode encap segs 2 [ fd00::2 fd00:0:0::3 ]" in changes[1].what
    present = {("10.1.0.0/16", 254, 10): via, ("fd01::/64", 254, 10): replace(tunnel, segments=("fd00::2", "fd00::3"))}
    assert difference((via, tunnel), present, {}, here, True) == ([], [])
    other = replace(via, via="10.0.0.3")
    changes, _ = difference((other,), present, {}, here, True)
    assert [(c.action, c.kind) for c in changes] == [("change", "route"), ("delete", "route")]
    _, problems = difference((via,), {}, {("10.1.0.0/16", 254, 10): 4}, here, True)
    assert "somebody else has a route" in problems[0].what
    _, problems = difference((tunnel,), {}, {}, here, False)
    assert "no SRv6" in problems[0].what
    _, problems = difference((via,), {}, {}, {}, True)
    assert "no such interface" in problems[0].what


def _with(index: int, **changed: object) -> Link:
    slices = list(LINK.slices)
    slices[index] = replace(slices[index], **changed)  # type: ignore[arg-type]
    return replace(LINK, slices=tuple(slices))


@pytest.mark.parametrize(
    ("link", "message"),
    [
        (_with(2, guarantee_bps=31 * M), "guarantees are 101000000 bit/s together, the link has 100000000"),
        (_with(1, guarantee_bps=50 * M), r"slice 1 \(realtime\): the queues' guarantees are 60000000 .* 50000000"),
        (_with(2, ceiling_bps=101 * M), r"slice 3 \(bulk\): the ceiling \(101000000 bit/s\) is above the link's rate"),
        (_with(2, ceiling_bps=20 * M), r"slice 3 \(bulk\): the guarantee \(30000000 bit/s\) is above the ceiling"),
        (_with(2, queues=(Queue(1, 1, 95 * M, 0),)), "tc 1: the ceiling .* is above the slice's ceiling"),
        (_with(2, queues=(Queue(1, 2, 1, 0),)), "tc 1: the guarantee .* is above the ceiling"),
        (_with(2, queues=(Queue(1, 0, 0, 0),)), "lets nothing through"),
        (_with(2, queues=()), "needs at least one queue"),
        (_with(2, queues=(Queue(4, 0, 1, 0),)), "tc 4: traffic classes go from 0 to 3"),
        (_with(2, queues=(Queue(1, 0, 1, 8),)), "priority 8"),
        (_with(2, queues=(Queue(1, 0, 1, 0, float("nan")),)), "target delay"),
        (_with(2, queues=(Queue(1, 0, 1, 0), Queue(1, 0, 1, 0))), "tc 1 is there twice"),
        (_with(2, number=16), "slices go from 0 to 15"),
        (_with(2, number=1), "slice 1 is there twice"),
        (replace(LINK, default_slice=2), "default queue"),
        (replace(LINK, dscp=((64, 1, 3),)), "DSCP 64"),
        (replace(LINK, dscp=((7, 1, 0),)), "DSCP 7 leads to slice 1, tc 0"),
        (replace(LINK, dscp=((7, 1, 3), (7, 1, 1))), "DSCP 7 is there twice"),
        (replace(LINK, rate_bps=0), "rate of 0"),
        (replace(LINK, device="a/b"), "no name of an interface"),
        (replace(LINK, overhead_bytes=-1), "overhead"),
        (replace(LINK, slices=()), "at least one slice"),
    ],
)
def test_impossible_links(link: Link, message: str) -> None:
    with pytest.raises(DinnetError, match=message):
        check_link(link)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (HostState((LINK, LINK)), "eth1 has slices twice"),
        (HostState((), (Route("10.0.0.1/8", None, "eth1"),)), "no prefix"),
        (HostState((), (Route("10.0.0.0/8", None, None),)), "needs a next hop"),
        (HostState((), (Route("10.0.0.0/8", "fd00::1", None),)), "no IPv4 address"),
        (HostState((), (Route("10.0.0.0/8", "here", None),)), "no IP address"),
        (HostState((), (Route("fd00::/8", "fd00::1", None),)), "metric above 0"),
        (HostState((), (Route("10.0.0.0/8", None, "e", segments=("10.0.0.1",)),)), "segment 10.0.0.1"),
        (HostState((), (Route("10.0.0.0/8", None, "e"), Route("10.0.0.0/8", None, "f"))), "is there twice"),
    ],
)
def test_impossible_states(state: HostState, message: str) -> None:
    with pytest.raises(DinnetError, match=message):
        check_state(state)
