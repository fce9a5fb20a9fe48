"""Cases of P4Runtime that both switches must answer alike: batches, arbitration, forms of values, meters; and finsy."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyroute2", reason="needs pyroute2, which attaches the switch")
pytest.importorskip("finsy", reason="needs finsy, which brings P4Runtime's messages")

import finsy as fy
import grpc
import switchkit
from finsy.proto import p4r
from p4rtkit import Client

from dinnet.dataplane.conformance.systems import bmv2, embedded
from dinnet.dataplane.conformance.wires import wires
from dinnet.dataplane.program import dinnet_program

BMV2 = shutil.which("simple_switch_grpc")
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.parametrize("name", ["embedded", "bmv2"]),
]
INFO = dinnet_program().info
INSERT, MODIFY, DELETE = p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE
EXISTS, INVALID, RANGE, NOT_FOUND = 6, 3, 11, 5


def on(name: str, body: Callable[[str], Any], *, is_async: bool = False) -> None:
    """Call `body` with the address of a switch that runs the program, and has no controller."""
    if name == "bmv2" and BMV2 is None:
        pytest.skip("simple_switch_grpc is not on the PATH")
    if name == "embedded" and (why := switchkit.why_not()):
        pytest.skip(why)

    async def run() -> None:
        with wires(4) as ports:
            program = dinnet_program()
            up = bmv2(Path(BMV2 or ""), ports, program) if name == "bmv2" else embedded(ports, program)
            async with up as session:
                await session.replace_pipeline()
                await session.close()
                work: Awaitable[Any] = body(session.address) if is_async else asyncio.to_thread(body, session.address)
                await work

    asyncio.run(run())


def entry(table: str, action: str, params: tuple[int, ...], *match: p4r.FieldMatch, **more: Any) -> p4r.TableEntry:
    found = p4r.TableEntry(table_id=INFO.table(table).id, match=match, **more)
    found.action.action.action_id = INFO.action(action).id
    for number, value in enumerate(params, 1):
        found.action.action.params.add(param_id=number, value=value.to_bytes(max(1, (value.bit_length() + 7) // 8)))
    return found


def port(number: int | bytes) -> p4r.TableEntry:
    value = number if isinstance(number, bytes) else number.to_bytes(1 + (number > 255))
    key = p4r.FieldMatch(field_id=1, exact=p4r.FieldMatch.Exact(value=value))
    return entry("ingress_port", "configure_port", (1, 0), key)


def of(table: str) -> p4r.TableEntry:
    return p4r.TableEntry(table_id=INFO.table(table).id)


def update(type: int, message: p4r.TableEntry) -> p4r.Update:
    return p4r.Update(type=type, entity=p4r.Entity(table_entry=message))


def test_one_result_each_in_order(name: str) -> None:
    """Good and bad mixed; then 500 entries twice in one Write."""

    def body(address: str) -> None:
        with Client(address, 100) as client:
            client.arbitrate()
            results = client.results(
                update(INSERT, port(1)), update(INSERT, port(b"\x02\x00")), update(INSERT, port(2)),
                update(INSERT, port(1)), update(DELETE, port(9)), update(DELETE, port(2)),
            )  # fmt: skip
            assert [code == 0 for code in results] == [True, False, True, False, False, True]
            assert results[3:5] == [EXISTS, NOT_FOUND]
            many = [update(INSERT, port(10 + number // 2)) for number in range(1000 - 10)]
            wanted = [0, EXISTS] * 495
            assert client.results(*many) == wanted
            assert len(client.read(table_entry=of("ingress_port"))) == 496

    on(name, body)


def test_two_clients_and_the_death_of_one(name: str) -> None:
    """One election id twice closes the second stream; the standby is told of the primary's death and takes over."""

    def body(address: str) -> None:
        with Client(address, 3) as standby:
            primary = Client(address, 5)
            assert primary.arbitrate().status.code == 0
            with Client(address, 5) as twin:
                twin.send(arbitration=twin.arbitration())
                assert twin.closed().code() is grpc.StatusCode.INVALID_ARGUMENT
            assert standby.arbitrate().status.code == EXISTS
            with pytest.raises(grpc.RpcError) as refused:
                standby.write(update(INSERT, port(1)))
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
            primary.write(update(INSERT, port(1)))
            primary.kill()
            # P4Runtime 1.4: nobody is primary until one asks. BMv2 promotes the next one by itself, as of old.
            assert standby.receive("arbitration").status.code == (0 if name == "bmv2" else NOT_FOUND)
            standby.election_id = 6
            assert standby.arbitrate().status.code == 0
            standby.write(update(DELETE, port(1)))

    on(name, body)


def test_values_and_wildcards(name: str) -> None:
    """Shortest bytes whatever was written; wildcards are left out; priority 0 is refused where there are wildcards."""

    def body(address: str) -> None:
        with Client(address, 100) as client:
            client.arbitrate()
            client.write(update(INSERT, port(b"\x00\x05")))
            (read,) = client.read(table_entry=of("ingress_port"))
            assert read.match[0].exact.value == b"\x05"
            whole = entry("slice_select", "set_slice", (1, 2), priority=7)
            assert client.results(update(INSERT, whole)) == [0]  # all wildcards: none is named
            assert list(client.read(table_entry=of("slice_select"))[0].match) == []
            named = p4r.FieldMatch(field_id=4, ternary=p4r.FieldMatch.Ternary(value=b"\0", mask=b"\0"))
            for bad in (
                entry("slice_select", "set_slice", (1, 2)),
                entry("slice_select", "set_slice", (1, 2), named, priority=8),
            ):
                assert client.results(update(INSERT, bad)) == [INVALID]

    on(name, body)


def test_meter_set_cleared_and_read_back(name: str) -> None:
    def body(address: str) -> None:
        meter = next(iter(INFO.meters.values()))
        config = p4r.MeterConfig(cir=1000, cburst=1500, pir=2000, pburst=3000)
        cell = p4r.MeterEntry(meter_id=meter.id, index=p4r.Index(index=33))
        with Client(address, 100) as client:
            client.arbitrate()
            for given in (config, None):
                written = p4r.MeterEntry(meter_id=meter.id, index=cell.index, config=given)
                client.write(p4r.Update(type=MODIFY, entity=p4r.Entity(meter_entry=written)))
                (read,) = client.read(meter_entry=cell)
                assert read.HasField("config") == (given is not None)
                assert not given or (read.config.cir, read.config.pburst) == (1000, 3000)

    on(name, body)


def test_finsy_drives_it(name: str) -> None:
    async def body(address: str) -> None:
        def route() -> fy.P4TableEntry:
            act = fy.Action("route", port=2, src=1, dst=2)
            return fy.P4TableEntry("forward_v4", match=fy.Match(dst="10.0.0.0/8"), action=act)

        def ternary() -> fy.P4TableEntry:
            act = fy.Action("set_slice", slice=2, tc=1)
            return fy.P4TableEntry("slice_select", match=fy.Match(proto=6), action=act, priority=5)

        def group() -> fy.P4MulticastGroupEntry:
            return fy.P4MulticastGroupEntry(5, replicas=[1, 2])

        async with asyncio.timeout(60), fy.Switch("sw", address) as switch:
            assert switch.is_primary
            await switch.write([+route(), +ternary(), +group()])
            with pytest.raises(fy.P4ClientError) as failed:
                await switch.write([+ternary(), +route()])
            assert sorted(failed.value.details) == [0, 1]
            found = [e async for e in switch.read([fy.P4TableEntry("forward_v4"), fy.P4TableEntry("slice_select")])]
            assert sorted(each.table_id for each in found) == ["forward_v4", "slice_select"]
            cells = [c async for c in switch.read(fy.P4CounterEntry("drops"))]
            assert len(cells) == 8
            await switch.write([-route(), -ternary(), -group()])
            assert [e async for e in switch.read(fy.P4TableEntry("forward_v4"))] == []

    on(name, body, is_async=True)
