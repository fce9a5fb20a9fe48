"""The embedded switch with full tables, many entries and more new flows than anybody can take."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import switchkit

pytest.importorskip("pyroute2", reason="needs pyroute2, which attaches the switch")
pytest.importorskip("finsy", reason="needs finsy, which brings P4Runtime's messages")

from dinnet.dataplane.conformance.wires import Wires, wires
from dinnet.dataplane.entity import DigestConfig
from dinnet.dataplane.errors import WriteFailed
from dinnet.dataplane.program import dinnet_program
from dinnet.dataplane.session import Session, connected
from dinnet.dataplane.tables import Microflow, SetMark
from dinnet.netns import inside
from dinnet.switch.attach import PortConfig, Switch
from dinnet.switch.contract import Sizes
from dinnet.switch.ebpf import EbpfTarget
from dinnet.switch.server import ServerOptions, serving

pytestmark = [switchkit.needs_bpf, pytest.mark.root, pytest.mark.slow]

CHECKPOINT = 4  # packets


def microflows(first: int, count: int) -> list[Microflow]:
    return [
        Microflow(
            src=0xFFFF_0A00_0001, dst=0xFFFF_0A01_0000 + (number >> 8), proto=6, sport=1024 + (number & 0xFF),
            dport=443, vlan=0, flow_label=0, action=SetMark(slice=1, tc=number & 3, microflow_id=number),
        )
        for number in range(first, first + count)
    ]  # fmt: skip


@asynccontextmanager
async def running(folder: Path, ports: Wires, sizes: Sizes) -> AsyncIterator[tuple[Switch, Session]]:
    configs = [PortConfig(port, f"p{port}") for port in ports.ports]
    switch = await asyncio.to_thread(Switch.up, configs, namespace=ports.namespace, sizes=sizes)
    try:
        async with (
            serving(EbpfTarget(switch), ServerOptions(f"unix:{folder}/p4rt")) as server,
            connected(server.address, dinnet_program()) as session,
        ):
            await session.until_primary()
            await session.replace_pipeline()
            yield switch, session
    finally:
        await asyncio.to_thread(switch.down)


async def held(session: Session) -> list[Microflow]:
    return [entity for entity in await session.entities() if isinstance(entity, Microflow)]


def test_full_table_refuses_what_is_too_much_and_no_more(tmp_path: Path) -> None:
    async def go() -> None:
        with wires(2) as ports:
            async with running(tmp_path, ports, Sizes(microflows=1024, flows=1024)) as (_, session):
                await session.insert(microflows(0, 1000))
                with pytest.raises(WriteFailed) as refused:
                    await session.insert(microflows(990, 110))  # 10 that are there, 24 that fit, 76 that do not
                codes = [failure.code for failure in refused.value.failures]
                assert sorted(codes) == ["ALREADY_EXISTS"] * 10 + ["RESOURCE_EXHAUSTED"] * 76
                assert len(await held(session)) == 1024
                await session.delete(microflows(500, 1))
                await session.insert(microflows(5000, 1))  # the place is free again
                assert {each.action.microflow_id for each in await held(session)} == {*range(1024), 5000} - {500}

    asyncio.run(go())


def test_many_entries_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    count = 100_000

    async def go() -> None:
        with wires(2) as ports:
            async with running(tmp_path, ports, Sizes(microflows=1 << 17, flows=1024)) as (_, session):
                entries = microflows(0, count)
                await session.insert(entries)
                assert set(await held(session)) == set(entries)
                assert len(await session.reconcile(entries)) == 0
                changes = await session.reconcile(entries[1:])
                assert list(changes.delete) == entries[:1]
                assert len(changes) == 1

    asyncio.run(go())


def frame(flow: int) -> bytes:
    """UDP over IPv6 from an address of the flow's own."""
    addresses = bytes.fromhex("fd00" + "00" * 10) + struct.pack(">I", flow) + bytes.fromhex("fd00" + "00" * 13 + "02")
    ip = struct.pack(">IHBB", 6 << 28, 8, 17, 64) + addresses
    return b"\x02" * 12 + b"\x86\xdd" + ip + struct.pack(">HHHH", 4000, 80, 8, 0)


def flood(namespace: str, flows: int) -> None:
    """Four packets of each flow into port 1, as fast as this process can."""
    with inside(namespace), socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as out:
        out.bind(("t1", 0))
        for flow in range(flows):
            data = frame(flow)
            for _ in range(CHECKPOINT):
                out.send(data)


@pytest.mark.parametrize("is_held_up", [False, True], ids=["as fast as it goes", "server held up"])
def test_every_checkpoint_arrives_or_is_counted_as_lost(tmp_path: Path, is_held_up: bool) -> None:
    flows = 40_000  # more than the ring buffer holds

    async def go() -> None:
        with wires(2) as ports:
            async with running(tmp_path, ports, Sizes(microflows=1024, flows=1 << 18)) as (switch, session):
                digest = next(iter(session.program.info.digests.values())).name
                await session.insert([DigestConfig(digest)])
                if is_held_up:
                    flood(ports.namespace, flows)  # in the server's own thread: it cannot go on meanwhile
                else:
                    await asyncio.to_thread(flood, ports.namespace, flows)
                pipe = switch.datapath
                assert sum(cell.packets for cell in pipe.parsed().values()) == flows * CHECKPOINT
                without, rest = divmod(pipe.flow_collisions().packets, CHECKPOINT)
                assert rest == 0
                lost, _ = pipe.lost_events()
                received: list[int] = []
                while len(received) + lost < flows - without:
                    got = await asyncio.wait_for(session.digests.get(), 30)
                    assert set(got.records["checkpoint"].tolist()) == {1}
                    assert set(got.records["fwd_packets"].tolist()) == {CHECKPOINT}
                    received += (got.records["src_lo"] & 0xFFFFFFFF).tolist()
                await asyncio.sleep(0.2)
                assert session.digests.empty()
                assert session.dropped == 0
                assert len(received) == len(set(received)) == flows - without - lost
                assert lost > 0 or not is_held_up

    asyncio.run(go())
