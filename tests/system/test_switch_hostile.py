"""Bytes that nobody sends in good faith: the switch drops them, or changes no more than it may."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import capturekit as kit
import pytest
import switchkit
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from switchkit import OUT

from dinnet.switch.contract import Action, Forward
from dinnet.switch.libbpf import BpfError

pytestmark = [switchkit.needs_bpf, pytest.mark.root]

SEEDS = [
    kit.ethernet(kit.ipv4(kit.tcp(1, 2, payload=b"x" * 20, opts=bytes(12)), 6, opts=bytes(8))),
    kit.ethernet(kit.ipv4(kit.ah(6) + kit.tcp(1, 2), 51), tags=[(kit.VLAN, 5)]),
    kit.ethernet(kit.ipv6(kit.ip6_options(43) + kit.ip6_routing(60, ["fd00::1"]) + kit.ip6_options(17, 2)
                          + kit.udp(1, 2, b"abc"), 0), tags=[(kit.QINQ, 5), (kit.VLAN, 6)]),
    kit.ethernet(kit.ipv6(kit.ip6_fragment(17, 0, True, 1) + kit.udp(1, 2), 44)),
    kit.ethernet(kit.ipv4(kit.sctp(1, 2), 132)),
    kit.ethernet(bytes(46), 0x0806),
]  # fmt: skip


@pytest.fixture(scope="module")
def bench() -> Iterator[switchkit.Bench]:
    bench = switchkit.Bench()
    bench.datapath.forward("0.0.0.0/0", Forward(Action.ROUTE, OUT, 0x02AA00000001, 0x02AA00000002))
    bench.datapath.set_default_forward(Forward(Action.PORT, OUT))
    for number in range(64):
        bench.datapath.set_mark_to_dscp(number >> 2, number & 3, 63 - number)
    yield bench
    bench.close()


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    frame = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(0, 4))):
        frame[draw(st.integers(12, len(frame) - 1))] = draw(
            st.sampled_from((0, 1, 4, 5, 6, 17, 44, 60, 255)) | st.integers(0, 255)
        )
    return bytes(frame[: draw(st.integers(14, len(frame)))])


def allowed(frame: bytes) -> set[int]:
    """Offsets that may change: Ethernet addresses, and behind up to two tags DSCP, TTL and checksum."""
    at, tags = 14, 0
    while tags < 2 and frame[at - 2 : at] in (b"\x81\x00", b"\x88\xa8"):
        at, tags = at + 4, tags + 1
    places = set(range(12))
    if frame[at - 2 : at] == b"\x08\x00":
        places |= {at + 1, at + 8, at + 10, at + 11}
    if frame[at - 2 : at] == b"\x86\xdd":
        places |= {at, at + 1, at + 7}
    return places


@settings(max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck))
@given(frame=mutated() | st.binary(min_size=14, max_size=120))
@example(frame=bytes(14))
def test_frames_are_dropped_or_changed_where_they_may_be(bench: switchkit.Bench, frame: bytes) -> None:
    try:
        ran = bench.run(frame)
    except BpfError as error:
        assert error.code == errno.EINVAL  # the kernel runs nothing on a frame that ends in its IP header
        assert len(frame) < 54
        return
    assert ran.answer in (2, 7)
    if ran.answer == 2:
        return
    assert len(ran.packet) == len(frame)
    changed = {at for at, (old, new) in enumerate(zip(frame, ran.packet, strict=True)) if old != new}
    assert changed <= allowed(frame)
    at = next(iter(sorted(allowed(frame) - set(range(12)))), 0)
    if at and frame[at - 1] >> 4 == 4:
        assert frame[at] & 3 == ran.packet[at] & 3  # ECN
