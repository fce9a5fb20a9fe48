"""finsy, the client library that dinnet's controller uses, drives the server unmodified."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import finsy as fy
import pytest
from finsy.proto import stratum
from google.protobuf import text_format
from p4infokit import ACTIONS, FLOW_RECORD, RECORD_FIELDS, dinnet_p4info
from p4rtkit import TIMEOUT_S

from dinnet.switch.memory import MemoryTarget
from dinnet.switch.server import ServerOptions, serving

Body = Callable[[fy.Switch, MemoryTarget], Awaitable[None]]


def options(folder: Path, **more: object) -> fy.SwitchOptions:
    p4info, blob = folder / "dinnet.p4info.txtpb", folder / "dinnet.json"
    p4info.write_text(text_format.MessageToString(dinnet_p4info()))
    blob.write_bytes(b"{}")
    return fy.SwitchOptions(p4info=p4info, p4blob=blob, **more)


def run(folder: Path, body: Body, **more: object) -> None:
    """Run `body` with a switch that is connected, primary, and has the pipeline set."""

    async def session() -> None:
        target = MemoryTarget()
        # On the client's own event loop: grpc.aio does not take a second one in the same process.
        async with (
            asyncio.timeout(TIMEOUT_S),
            serving(target, ServerOptions("127.0.0.1:0")) as server,
            fy.Switch("sw1", server.address, options(folder, **more)) as switch,
        ):
            await body(switch, target)

    asyncio.run(session())


def mark(number: int) -> fy.P4TableEntry:
    return fy.P4TableEntry(
        "microflow",
        match=fy.Match(
            src="::ffff:10.0.0.1",
            dst="::ffff:10.0.0.2",
            proto=6,
            sport=number,
            dport=443,
            vlan=0,
            flow_label=0,
        ),
        action=fy.Action("set_mark", slice=1, tc=3, microflow_id=number),
        meter_config=fy.P4MeterConfig(cir=1000, cburst=1500, pir=2000, pburst=3000),
        idle_timeout_ns=10**12,
    )


def encoded(switch: fy.Switch, entities: Sequence[Any]) -> list[str]:
    """Entities in a form that does not depend on how their values were written, in order."""
    return sorted(str(entity.encode(switch.p4info)) for entity in entities)


def test_entries_written_are_read_back(tmp_path: Path) -> None:
    async def body(switch: fy.Switch, _: MemoryTarget) -> None:
        await switch.write([+mark(number) for number in range(1, 501)])
        wanted = fy.P4TableEntry("microflow", meter_config=fy.P4MeterConfig(cir=0, cburst=0, pir=0, pburst=0))
        found = [entry async for entry in switch.read(wanted)]
        assert encoded(switch, found) == encoded(switch, [mark(number) for number in range(1, 501)])
        await switch.write([-entry for entry in found])
        assert [entry async for entry in switch.read(fy.P4TableEntry())] == []

    run(tmp_path, body)


def test_every_kind_of_entity(tmp_path: Path) -> None:
    entities = [
        fy.P4TableEntry("forward_v6", match=fy.Match(dst="2001:db8::/32"), action=fy.Action("drop")),
        fy.P4TableEntry(
            "slice_select", match=fy.Match(proto=6), action=fy.Action("set_slice", slice=2, tc=1), priority=5
        ),
        fy.P4MulticastGroupEntry(1, replicas=[1, 2, 3]),
        fy.P4CloneSessionEntry(1, replicas=[4]),
        fy.P4DigestEntry("flow_record_t", max_list_size=10, max_timeout_ns=1_000_000, ack_timeout_ns=1_000_000_000),
    ]

    async def body(switch: fy.Switch, _: MemoryTarget) -> None:
        await switch.write([+entity for entity in entities])
        for entity in entities:
            assert encoded(switch, [found async for found in switch.read(entity)]) == encoded(switch, [entity])
        await switch.write([~fy.P4TableEntry("forward_l2", is_default_action=True, action=fy.Action("drop"))])
        (default,) = [d async for d in switch.read(fy.P4TableEntry("forward_l2", is_default_action=True))]
        assert default.action == fy.Action("drop")
        config = fy.P4MeterConfig(cir=1, cburst=2, pir=3, pburst=4)
        await switch.write([~fy.P4MeterEntry("slice_meter", index=7, config=config)])
        (cell,) = [c async for c in switch.read(fy.P4MeterEntry("slice_meter", index=7))]
        assert cell.config == config
        await switch.write([~fy.P4CounterEntry("drops", index=2, data=fy.P4CounterData(byte_count=9, packet_count=1))])
        cells = [c async for c in switch.read(fy.P4CounterEntry("drops"))]
        assert [c.data.packet_count for c in cells] == [0, 0, 1, 0, 0, 0, 0, 0]

    run(tmp_path, body)


def test_errors_name_the_failing_entities(tmp_path: Path) -> None:
    async def body(switch: fy.Switch, _: MemoryTarget) -> None:
        await switch.write([+mark(1), +mark(2)])
        with pytest.raises(fy.P4ClientError) as failed:
            await switch.write([+mark(number) for number in range(1, 1001)])
        assert {place: error.canonical_code for place, error in failed.value.details.items()} == {
            0: fy.GRPCStatusCode.ALREADY_EXISTS,
            1: fy.GRPCStatusCode.ALREADY_EXISTS,
        }

    run(tmp_path, body)


def test_packets_and_digests(tmp_path: Path) -> None:
    async def body(switch: fy.Switch, target: MemoryTarget) -> None:
        await switch.write([+fy.P4DigestEntry("flow_record_t", max_list_size=2, max_timeout_ns=10**9)])
        packets, digests = switch.read_packets(), switch.read_digests("flow_record_t")
        await switch.write([fy.P4PacketOut(b"out" * 20, egress_port=5, pad=0)])
        assert target.events is not None
        target.events.packet_in(b"in" * 20, (7, 0))
        packet = await anext(packets)
        assert packet.payload == b"in" * 20 and packet["ingress_port"] == 7
        rows = [tuple(range(start, start + len(RECORD_FIELDS))) for start in (1, 200)]
        target.events.digests(FLOW_RECORD, rows)
        listed = await anext(digests)
        assert [tuple(record.values()) for record in listed.data] == rows
        await switch.write([fy.P4DigestListAck("flow_record_t", listed.list_id)])
        while not target.packets_out:
            await asyncio.sleep(0.01)
        assert target.packets_out == [(b"out" * 20, (5, 0))]

    run(tmp_path, body)


def test_a_backup_takes_over_from_a_primary_that_went(tmp_path: Path) -> None:
    async def session() -> None:
        address = ServerOptions("127.0.0.1:0")
        async with asyncio.timeout(TIMEOUT_S), serving(MemoryTarget(), address) as server:
            ours = options(tmp_path)
            primary = fy.Switch("primary", server.address, ours(initial_election_id=2))
            await primary.__aenter__()
            assert primary.is_primary
            async with fy.Switch("backup", server.address, ours(initial_election_id=1)) as backup:
                assert not backup.is_primary
                await primary.__aexit__(None, None, None)
                while not backup.is_primary:
                    await asyncio.sleep(0.01)
                await backup.write([+mark(1)])

    asyncio.run(session())


def test_a_role(tmp_path: Path) -> None:
    async def body(switch: fy.Switch, _: MemoryTarget) -> None:
        with pytest.raises(fy.P4ClientError) as failed:
            await switch.write([+fy.P4TableEntry("forward_v6", match=fy.Match(dst="::/1"), action=fy.Action("drop"))])
        assert failed.value.details[0].canonical_code is fy.GRPCStatusCode.PERMISSION_DENIED

    config = stratum.P4RoleConfig(exclusive_p4_ids=[ACTIONS["drop"]], receives_packet_ins=True, can_push_pipeline=True)
    run(tmp_path, body, role_name="other", role_config=config)
