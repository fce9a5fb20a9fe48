"""The controller's side against a P4Runtime server whose data plane is a memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

pytest.importorskip("finsy", reason="needs finsy, which brings P4Runtime's messages")

from finsy.proto import p4d

from dinnet.dataplane.codec import CodecError
from dinnet.dataplane.diff import Changes, Doubled, difference
from dinnet.dataplane.digests import DigestDecoder, DigestError
from dinnet.dataplane.entity import (
    ANY,
    Count,
    DefaultEntry,
    DigestConfig,
    Entity,
    Group,
    Lpm,
    MeterCell,
    Rates,
    Ternary,
    address,
    mac,
    prefix,
)
from dinnet.dataplane.errors import SessionLost, WriteFailed
from dinnet.dataplane.program import Program, dinnet_program
from dinnet.dataplane.session import Session, SessionOptions, connected
from dinnet.dataplane.tables import (
    Flood,
    ForwardDrop,
    ForwardL2,
    ForwardV4,
    ForwardV6,
    Microflow,
    NoAction,
    Route,
    SetMark,
    SetSlice,
    SliceSelect,
    ToPort,
)
from dinnet.flows.record import RECORD_DTYPE
from dinnet.switch.memory import MemoryTarget
from dinnet.switch.server import ServerOptions, serving
from dinnet.switch.target import CounterData

TIMEOUT_S = 60


def microflow(number: int, **more: object) -> Microflow:
    return Microflow(
        src=address("10.0.0.1"),
        dst=address("10.0.0.2"),
        proto=6,
        sport=number % 65536,
        dport=443,
        vlan=number // 65536,
        flow_label=0,
        action=SetMark(1, 3, number),
        **more,
    )


EVERY_KIND: list[Entity] = [
    microflow(1, rates=Rates(1000, 1500, 2000, 3000), idle_timeout_ns=10**12),
    microflow(2),
    ForwardV4(dst=Lpm(0, 0), action=Route(1, mac("02:00:00:00:00:01"), mac("02:00:00:00:00:02"))),
    ForwardV4(dst=prefix("10.1.0.0/16"), action=ForwardDrop()),
    ForwardV6(dst=prefix("2001:db8::/32"), action=ForwardDrop()),
    ForwardL2(vlan=0, dst=mac("02:00:00:00:00:01"), action=ToPort(3)),
    SliceSelect(priority=1, action=SetSlice(2, 1)),
    SliceSelect(
        priority=7,
        proto=Ternary(6, 0xFF),
        src=Ternary(address("10.0.0.0"), ~0xFF & (1 << 128) - 1),
        action=SetSlice(2, 1),
    ),
    DefaultEntry("forward_l2", Flood(4)),
    MeterCell("slice_meter", 17, Rates(1, 2, 3, 4)),
    Group(4, (1, 2, 3)),
    DigestConfig("flow_record_t"),
]
DEFAULTS = {DefaultEntry("forward_l2", NoAction())}
_OTHER_DEFAULTS = ("exceed", "int_collector")


def run(body: Callable[[Session, MemoryTarget, str], Awaitable[None]], options: SessionOptions | None = None) -> None:
    """Run `body` with a session that is primary, and the pipeline set."""

    async def session() -> None:
        target = MemoryTarget()
        async with (
            asyncio.timeout(TIMEOUT_S),
            serving(target, ServerOptions("127.0.0.1:0")) as server,
            connected(server.address, dinnet_program(), options) as session,
        ):
            await session.until_primary()
            assert await session.ensure_pipeline()
            await body(session, target, server.address)

    asyncio.run(session())


def test_what_is_written_is_read_back_and_then_nothing_is_left_to_do() -> None:
    async def body(session: Session, _: MemoryTarget, __: str) -> None:
        changes = await session.reconcile(EVERY_KIND)
        assert len(changes) == len(EVERY_KIND)
        found = await session.entities()
        begun = {each for each in found if isinstance(each, DefaultEntry) and each.table in _OTHER_DEFAULTS}
        assert set(found) - begun == set(EVERY_KIND)
        assert len(await session.reconcile(EVERY_KIND)) == 0
        changes = await session.reconcile([])
        assert len(changes) == len(EVERY_KIND)
        assert len(await session.reconcile([])) == 0

    run(body)


def test_only_the_difference_is_written() -> None:
    async def body(session: Session, _: MemoryTarget, __: str) -> None:
        await session.reconcile([microflow(number) for number in range(10)])
        wanted = [microflow(number) for number in range(1, 10)]
        wanted[3] = microflow(4, rates=Rates(1, 1, 1, 1))
        changes = await session.reconcile([*wanted, microflow(99)])
        assert changes == Changes(insert=(microflow(99),), modify=(wanted[3],), delete=(microflow(0),))
        changes = await session.reconcile([*(microflow(n) for n in range(1, 10)), microflow(99)])
        assert changes == Changes(modify=(microflow(4),))

    run(body)


def test_a_refused_update_is_named_and_the_others_are_in_force() -> None:
    async def body(session: Session, target: MemoryTarget, _: str) -> None:
        await session.insert([microflow(3), microflow(700)])
        with pytest.raises(
            WriteFailed,
            match=r"cannot insert microflow\(src=10\.0\.0\.1, dst=10\.0\.0\.2, .*sport=3, .*ALREADY_EXISTS.*and 1 more",
        ) as failed:
            await session.insert([microflow(number) for number in range(1000)])
        assert [(f.operation, f.entity, f.code) for f in failed.value.failures] == [
            ("insert", microflow(3), "ALREADY_EXISTS"),
            ("insert", microflow(700), "ALREADY_EXISTS"),
        ]
        assert len(target.entries(session.codec.table("microflow"))) == 1000

    run(body, SessionOptions(batch_updates=64))


def test_a_thousand_refusals_in_one_batch_all_come_back() -> None:
    async def body(session: Session, _: MemoryTarget, __: str) -> None:
        entries = [microflow(number) for number in range(5000)]
        await session.insert(entries)
        with pytest.raises(WriteFailed) as failed:
            await session.insert(entries)
        assert [failure.entity for failure in failed.value.failures] == entries

    run(body, SessionOptions(batch_updates=5000))


def test_batches_keep_within_the_size_of_a_message() -> None:
    async def body(session: Session, target: MemoryTarget, _: str) -> None:
        sizes = []
        write = session._write

        async def watched(request, batch):  # type: ignore[no-untyped-def]
            sizes.append((request.ByteSize(), len(batch)))
            return await write(request, batch)

        session._write = watched  # type: ignore[method-assign]
        await session.insert([microflow(number) for number in range(500)])
        assert all(size <= 4096 for size, _ in sizes)
        assert sum(count for _, count in sizes) == 500
        assert len(target.entries(session.codec.table("microflow"))) == 500

    run(body, SessionOptions(batch_bytes=4000))


def test_a_value_that_does_not_fit_is_refused_before_anything_is_sent() -> None:
    async def body(session: Session, target: MemoryTarget, _: str) -> None:
        with pytest.raises(CodecError, match=r"forward_l2\(.*vlan=4096 does not fit in 12 bits"):
            await session.insert([ForwardL2(vlan=4096, dst=1, action=ToPort(1))])
        with pytest.raises(CodecError, match="port=512 does not fit in 9 bits"):
            await session.insert([ForwardL2(vlan=1, dst=1, action=ToPort(512))])
        assert not target.entries(session.codec.table("forward_l2"))

    run(body)


def test_entries_stay_where_another_build_of_the_program_takes_over() -> None:
    async def body(session: Session, _: MemoryTarget, address: str) -> None:
        await session.insert([microflow(1)])
        assert not await session.ensure_pipeline()
        program = dinnet_program()
        newer = Program(program.info, program.message, program.device_config + b" ")
        async with connected(address, newer, SessionOptions(election_id=2)) as heir:
            await heir.until_primary()
            assert await heir.ensure_pipeline()
            assert microflow(1) in await heir.entities()
            await heir.replace_pipeline()
            assert microflow(1) not in await heir.entities()

    run(body)


def test_primary_and_standby() -> None:
    async def body(session: Session, _: MemoryTarget, address: str) -> None:
        async with connected(address, dinnet_program(), SessionOptions(election_id=5)) as other:
            await other.until_primary()
            await session.until_standby()
            with pytest.raises(SessionLost, match="PERMISSION_DENIED"):
                await session.insert([microflow(1)])
            await session.set_election_id(9)
            assert session.is_primary
            await other.until_standby()
            await session.insert([microflow(1)])
        async with connected(address, dinnet_program(), SessionOptions(election_id=1)) as standby:
            assert not standby.is_primary
            await session.set_election_id(10)
            await session.close()
            await standby.set_election_id(11)
            await standby.until_primary()
            assert microflow(1) in await standby.entities()

    run(body)


def test_an_election_id_that_is_taken_is_refused() -> None:
    async def body(_: Session, __: MemoryTarget, address: str) -> None:
        with pytest.raises(SessionLost):
            async with connected(address, dinnet_program(), SessionOptions(election_id=1)) as other:
                await other.wait_lost()

    run(body)


def test_no_switch_there() -> None:
    async def connect() -> None:
        async with connected("127.0.0.1:1", dinnet_program()):
            raise AssertionError("nobody listens there")

    with pytest.raises(SessionLost, match=r"127\.0\.0\.1:1: UNAVAILABLE"):
        asyncio.run(connect())


def test_the_switch_goes_away() -> None:
    async def session() -> None:
        async with asyncio.timeout(TIMEOUT_S), serving(MemoryTarget(), ServerOptions("127.0.0.1:0")) as server:
            session = Session(server.address, dinnet_program(), SessionOptions())
            await session.open()
            await session.until_primary()
        with pytest.raises(SessionLost):
            await session.wait_lost()
        assert not session.is_primary
        with pytest.raises(SessionLost):
            await session.until_primary()
        await session.close()

    asyncio.run(session())


def test_counters() -> None:
    async def body(session: Session, target: MemoryTarget, _: str) -> None:
        counter = next(view for view in session.program.info.counters.values() if view.name.endswith("drops"))
        target.write_counters(counter, 2, [CounterData(byte_count=90, packet_count=3)])
        assert (await session.counters("drops"))[2] == Count(3, 90)
        await session.insert([microflow(1), microflow(2)])
        table = session.codec.table("microflow")
        key = next(entry for entry in target.entries(table) if entry.match[3] == 2)
        target.write_direct_counters(table, [(key, CounterData(70, 1))])
        assert await session.direct_counters("microflow") == {microflow(1).key: Count(), microflow(2).key: Count(1, 70)}

    run(body)


def test_digests_become_flow_records() -> None:
    async def body(session: Session, target: MemoryTarget, _: str) -> None:
        (digest,) = session.program.info.digests.values()
        await session.insert([DigestConfig(digest.name, max_timeout_ns=0)])
        values = {name: number + 1 for number, (name, _) in enumerate(digest.leaves)}
        values |= {
            "src": address("10.0.0.1"),
            "dst": 1 << 127 | 5,
            "ingress_port": 300,
            "end": 3,
            "ip_version": 4,
            "syn_seen": 1,
            "proto": 6,
            "splt_rev": 255,
            "first_us": 2**48 - 1,
            "fwd_bytes": 2**64 - 1,
        }
        assert target.events is not None
        target.events.digests(digest.id, [tuple(values[name] for name, _ in digest.leaves)])
        found = await session.digests.get()
        assert found.ingress_ports.tolist() == [300]
        (record,) = found.records
        assert record.dtype == RECORD_DTYPE
        assert (record["src_hi"], record["src_lo"]) == (0, 0xFFFF0A000001)
        assert (record["dst_hi"], record["dst_lo"]) == (1 << 63, 5)
        assert (record["end"], record["first_us"], record["fwd_bytes"]) == (3, 2**48 - 1, 2**64 - 1)
        assert record["tunnel_id"] == 0
        plain = [name for name, _ in digest.leaves if name not in {"src", "dst", "ingress_port"}]
        assert {name: int(record[name]) for name in plain} == {name: values[name] for name in plain}

    run(body)


def test_a_digest_of_another_shape_is_refused() -> None:
    (digest,) = dinnet_program().info.digests.values()
    with pytest.raises(DigestError, match="1 members"):
        DigestDecoder(digest).decode([p4d.P4Data(struct=p4d.P4StructLike(members=[p4d.P4Data(bitstring=b"\1")]))])
    assert len(DigestDecoder(digest).decode([]).records) == 0


def test_packets_both_ways() -> None:
    async def body(session: Session, target: MemoryTarget, _: str) -> None:
        sent: list[tuple[bytes, tuple[int, ...]]] = []
        target.packet_out = lambda payload, metadata: sent.append((payload, metadata))  # type: ignore[method-assign]
        await session.send_packet(b"out", 7)
        assert target.events is not None
        target.events.packet_in(b"in", (9, 0))
        packet = await session.packets.get()
        assert (packet.payload, packet.ingress_port) == (b"in", 9)
        while not sent:
            await asyncio.sleep(0.01)
        assert sent == [(b"out", (7, 0))]

    run(body)


def test_difference_of_nothing_is_nothing() -> None:
    assert len(difference([], [])) == 0
    assert len(difference(EVERY_KIND, EVERY_KIND)) == 0
    assert not difference([], [DefaultEntry("forward_l2", Flood(1))])


def test_groups_come_before_those_who_flood_to_them_and_go_after() -> None:
    flood = ForwardL2(vlan=0, dst=1, action=Flood(4))
    assert difference([flood, Group(4, (1,))], []).insert == (Group(4, (1,)), flood)
    assert difference([], [Group(4, (1,)), flood]).delete == (flood, Group(4, (1,)))


def test_two_wishes_for_one_entry() -> None:
    with pytest.raises(Doubled, match=r"both .* and .* are wanted"):
        difference([microflow(1), microflow(1, rates=Rates(1, 1, 1, 1))], [])
    assert len(difference([microflow(1), microflow(1)], [])) == 1


def test_entities_in_words() -> None:
    route = ForwardV4(dst=prefix("10.1.0.0/16"), action=Route(1, 2, mac("02:00:00:00:00:0b")))
    assert str(route) == (
        "forward_v4(dst=10.1.0.0/16, action=route(port=1, src=00:00:00:00:00:02, dst=02:00:00:00:00:0b))"
    )
    select = SliceSelect(
        priority=7,
        src=Ternary(address("10.0.0.0"), ~0xFF & (1 << 128) - 1),
        proto=Ternary(6, 0xFF),
        action=SetSlice(2, 1),
    )
    assert str(select) == (
        "slice_select(src=10.0.0.0&ffff:ffff:ffff:ffff:ffff:ffff:ffff:ff00, proto=6, priority=7,"
        " action=set_slice(slice=2, tc=1))"
    )


def test_texts_of_addresses() -> None:
    assert address("10.0.0.1") == 0xFFFF0A000001
    assert address("::1") == 1
    assert mac("02:00:00:00:00:0a") == 0x02000000000A
    assert prefix("10.0.0.0/8") == Lpm(10 << 24, 8)
    assert Ternary(0, 0) == ANY
    with pytest.raises(ValueError, match="6 bytes"):
        mac("02:00")
