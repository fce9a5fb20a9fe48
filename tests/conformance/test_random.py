"""Random tables and random packets: the embedded switch does what BMv2 does."""

from __future__ import annotations

import asyncio
import os
import shutil
import struct
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyroute2", reason="needs pyroute2, which attaches the switch")
pytest.importorskip("finsy", reason="needs finsy, which brings P4Runtime's messages")

import switchkit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dinnet.dataplane.conformance.player import PORTS, Player, differences
from dinnet.dataplane.conformance.systems import bmv2, embedded
from dinnet.dataplane.conformance.vectors import Result, Step, Vector
from dinnet.dataplane.conformance.wires import wires
from dinnet.dataplane.entity import ANY, DefaultEntry, Entity, Group, Lpm, MeterCell, Rates, Ternary
from dinnet.dataplane.program import dinnet_program
from dinnet.dataplane.tables import (
    ConfigurePort,
    Degrade,
    DscpToMark,
    Exceed,
    Flood,
    ForwardDrop,
    ForwardL2,
    ForwardV4,
    ForwardV6,
    IngressPort,
    MarkToDscp,
    MetersDrop,
    Microflow,
    ReadDscp,
    Reroute,
    Route,
    SetDscp,
    SetMark,
    SetSlice,
    SliceSelect,
    ToController,
    ToPort,
)

BMV2 = shutil.which("simple_switch_grpc")
EXAMPLES = int(os.environ.get("DINNET_CONFORMANCE_EXAMPLES", "20"))
pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.skipif(BMV2 is None, reason="simple_switch_grpc is not on the PATH"),
    pytest.mark.skipif(bool(switchkit.why_not()), reason=switchkit.why_not() or "-"),
]

# Few values of each kind, so that what packets have and what tables look for often is the same.
MACS = [0x02000000000A, 0x02000000000B, 0xFFFFFFFFFFFF]
V4 = [0x0A000001, 0x0A000002, 0x0A800001]
V6 = [0x20010DB8 << 96 | 1, 0x20010DB8 << 96 | 1 << 64, 0xFE80 << 112 | 7]
NUMBERS = [0, 1, 80, 443, 0xFFFF]
PROTOS = [0, 1, 6, 17, 33, 43, 44, 51, 60, 132, 136, 255]
VLANS = [0, 7]
macs, numbers, protos, vlans = map(st.sampled_from, (MACS, NUMBERS, PROTOS, VLANS))
ports, slices, tcs, dscps = st.integers(1, 6), st.integers(0, 15), st.integers(0, 3), st.integers(0, 63)
addresses = st.sampled_from([address | 0xFFFF << 32 for address in V4] + V6)
rates = st.builds(lambda a, b: Rates(0, a, 0, a + b), st.integers(0, 300), st.integers(0, 300))


def ternaries(values: st.SearchStrategy[int], bits: int) -> st.SearchStrategy[Ternary]:
    full = (1 << bits) - 1
    masks = st.sampled_from([full, full & ~3, full >> 1, 1, full ^ (full >> bits // 2)])
    return st.just(ANY) | st.builds(lambda value, mask: Ternary(value & mask, mask), values, masks)


def prefixes(values: list[int], bits: int) -> st.SearchStrategy[Lpm]:
    lengths = st.sampled_from([0, 8, 9, 31, 32, 64, bits - 1, bits]).filter(lambda length: length <= bits)
    return st.builds(lambda v, n: Lpm(v >> (bits - n) << (bits - n), n), st.sampled_from(values), lengths)


routes = st.builds(Route, ports, macs, macs)
ways = routes | st.builds(ForwardDrop) | st.builds(ToController)
stations = st.builds(ToPort, ports) | st.builds(Flood, st.just(1)) | st.builds(ForwardDrop) | st.builds(ToController)
exceeds = st.builds(Degrade) | st.builds(MetersDrop) | st.builds(Reroute, ports, st.just(0) | macs, st.just(0) | macs)
entries = st.one_of(
    st.builds(ForwardL2, vlan=vlans, dst=macs, action=stations),
    st.builds(ForwardV4, dst=prefixes(V4, 32), action=ways),
    st.builds(ForwardV6, dst=prefixes(V6, 128), action=ways),
    st.builds(IngressPort, port=ports, action=st.builds(ConfigurePort, st.integers(0, 1), st.integers(0, 1))),
    st.builds(DscpToMark, dscp=dscps, action=st.builds(ReadDscp, slices, tcs)),
    st.builds(MarkToDscp, slice=slices, tc=tcs, action=st.builds(SetDscp, dscps)),
    st.builds(Exceed, slice=slices, bucket=st.integers(1, 2), action=exceeds),
    st.builds(
        SliceSelect,
        ingress_port=ternaries(ports, 9),
        src=ternaries(addresses, 128),
        dst=ternaries(addresses, 128),
        proto=ternaries(protos, 8),
        sport=ternaries(numbers, 16),
        dport=ternaries(numbers, 16),
        vlan=ternaries(vlans, 12),
        priority=st.integers(1, 1000),
        action=st.builds(SetSlice, slices, tcs),
    ),
    st.builds(
        Microflow,
        src=addresses,
        dst=addresses,
        proto=protos,
        sport=numbers,
        dport=numbers,
        vlan=vlans,
        flow_label=st.sampled_from([0, 5]),
        action=st.builds(SetMark, slices, tcs, st.integers(0, 2**32 - 1)),
        rates=st.none() | rates,
    ),
    st.builds(MeterCell, st.just("slice_meter"), st.integers(0, 6 * 16 + 15), rates),
    st.builds(DefaultEntry, st.just("exceed"), exceeds),
    st.builds(DefaultEntry, st.just("forward_l2"), stations),
)


@st.composite
def states(draw: st.DrawFn) -> list[Entity]:
    """Tables; which of two entries of one priority wins is nobody's promise, so there are no two."""
    found: dict[object, Entity] = {}
    for entity in draw(st.lists(entries, max_size=25)):
        key = ("priority", entity.priority) if isinstance(entity, SliceSelect) else entity.key
        found[key] = entity
    return [Group(1, tuple(sorted(draw(st.sets(ports, min_size=1))))), *found.values()]


@st.composite
def packets(draw: st.DrawFn) -> bytes:
    """Frames that are nearly right: lengths, versions and single bytes may be wrong, and the end may be missing."""
    payload = draw(st.binary(max_size=60))
    proto = draw(protos)
    ends = struct.pack("!HH", draw(numbers), draw(numbers))
    if proto == 6:
        flags = draw(st.integers(0, 255))
        payload = ends + struct.pack("!IIBBHHH", draw(numbers), draw(numbers), 0x50, flags, 500, 0, 0) + payload
    elif proto in (17, 136):
        payload = ends + struct.pack("!HH", len(payload) + 8, 0) + payload
    elif proto in (33, 132):
        payload = ends + payload
    for _ in range(draw(st.integers(0, 3))):  # headers of eight bytes that most extension headers can be
        proto, payload = (
            draw(st.sampled_from([0, 43, 44, 60])),
            bytes([proto, 0, 0, draw(st.sampled_from([0, 8])), 0, 0, 0, 0]) + payload,
        )
    tos = draw(st.integers(0, 255))
    if draw(st.booleans()):
        fragment = draw(st.sampled_from([0, 0, 0, 0x2000, 0x4000, 0x2001, 5]))
        options = draw(st.sampled_from([b"", b"\1\1\1\0"]))
        packet = struct.pack(
            "!BBHHHBBHII", 0x45 + len(options) // 4, tos, 20 + len(options + payload), draw(numbers), fragment,
            draw(st.sampled_from([0, 1, 2, 64])), proto, draw(numbers), draw(st.sampled_from(V4)),
            draw(st.sampled_from(V4)),
        ) + options + payload  # fmt: skip
        kind = 0x0800
    else:
        word = 6 << 28 | tos << 20 | draw(st.sampled_from([0, 5, 0xFFFFF]))
        hops = draw(st.sampled_from([0, 1, 2, 64]))
        packet = struct.pack("!IHBB", word, len(payload), proto, hops)
        packet += (
            draw(st.sampled_from(V6)).to_bytes(16, "big") + draw(st.sampled_from(V6)).to_bytes(16, "big") + payload
        )
        kind = 0x86DD
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2, 3]))):
        packet = struct.pack("!HH", draw(st.sampled_from(VLANS)), kind) + packet
        kind = draw(st.sampled_from([0x8100, 0x88A8]))
    frame = bytearray(draw(macs).to_bytes(6, "big") + MACS[0].to_bytes(6, "big") + struct.pack("!H", kind) + packet)
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        frame[draw(st.integers(12, len(frame) - 1))] = draw(st.integers(0, 255))
    if draw(st.integers(0, 5)) == 0:
        del frame[draw(st.integers(14, len(frame))) :]
    return bytes(frame)


steps = st.builds(Step, ports, packets(), repeat=st.sampled_from([1, 1, 1, 4]))


@pytest.fixture(scope="module")
def own() -> Iterator[tuple[asyncio.Runner, Player]]:
    """The embedded switch, and the loop that everything runs on."""
    with asyncio.Runner() as runner, wires(PORTS) as ports:
        stack = AsyncExitStack()
        try:
            session = runner.run(stack.enter_async_context(embedded(ports, dinnet_program())))
            yield runner, Player(session, ports, 0.002)
        finally:
            runner.run(stack.aclose())


async def reference(vector: Vector) -> Result:
    """What BMv2 does. It begins anew each time, for it keeps the memory of every program that it ever had."""
    assert BMV2 is not None
    with wires(PORTS) as ports:
        async with bmv2(Path(BMV2), ports, dinnet_program()) as session:
            player = Player(session, ports, 0.05)
            await player.begin()
            return await player.play(vector)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(tables=states(), steps=st.lists(steps, min_size=1, max_size=12))
def test_both_switches_do_the_same(own: tuple[asyncio.Runner, Player], tables: list[Entity], steps: list[Step]) -> None:
    runner, player = own

    async def play() -> list[str]:
        vector = Vector("random", tuple(player.text.dump(entity) for entity in tables), tuple(steps))
        wanted = await reference(vector)
        await player.begin()
        return differences(wanted, await player.play(replace(vector, expected=wanted)))

    found = runner.run(play())
    assert not found, "\n".join(found)
