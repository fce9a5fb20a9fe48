"""Read: filters, wildcards, and answers that fit gRPC's limits."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest
from finsy.proto import p4r
from p4infokit import ACTIONS, TABLES
from p4rtkit import INSERT, Client, action, controlled, entry, errors, exact, microflow, microflows, ternary, update

from dinnet.switch.codes import Code


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A switch with 3,000 micro-flows and some slice entries, of two actions, priorities and cookies."""
    with controlled() as (_, client):
        client.write(*microflows(range(3000)))
        for priority in (1, 2, 3):
            match = ternary(4, bytes([priority]), b"\xff")
            item = entry("slice_select", match, priority=priority, action=action("set_slice", b"\x01", b"\x02"))
            item.metadata = b"odd" if priority % 2 else b"even"
            item.controller_metadata = priority
            client.write(update(INSERT, table_entry=item))
        drop, flood = action("drop"), action("flood", b"\x01")
        for vlan, act in ((b"\x01", drop), (b"\x02", flood)):
            client.write(update(INSERT, table_entry=entry("forward_l2", exact(1, vlan), exact(2, b"\x09"), action=act)))
        yield client


def slices(client: Client, **filters: object) -> list[int]:
    return [found.priority for found in client.read(table_entry=entry("slice_select", **filters))]


def test_wildcards(client: Client) -> None:
    assert len(client.read(table_entry=p4r.TableEntry())) == 3000 + 3 + 2
    assert len(client.read(table_entry=entry("microflow"))) == 3000
    assert len(client.read(table_entry=p4r.TableEntry(is_default_action=True))) == len(TABLES)


def test_filters(client: Client) -> None:
    assert slices(client) == [1, 2, 3]
    assert slices(client, priority=2) == [2]
    assert slices(client, metadata=b"odd") == [1, 3]
    assert slices(client, controller_metadata=3, metadata=b"odd") == [3]
    drops = p4r.TableAction(action=p4r.Action(action_id=ACTIONS["drop"]))
    assert len(client.read(table_entry=entry("forward_l2", action=drops))) == 1
    match = ternary(4, b"\x02", b"\xff")
    assert [found.priority for found in client.read(table_entry=entry("slice_select", match))] == [2]
    assert client.read(table_entry=entry("slice_select", match, priority=1)) == []


def test_one_entry(client: Client) -> None:
    assert client.read(table_entry=microflow(17)) == [microflow(17)]
    assert client.read(table_entry=microflow(4000)) == []


def test_time_since_the_last_hit(client: Client) -> None:
    wanted = microflow(17, time_since_last_hit=p4r.TableEntry.IdleTimeout())
    (found,) = client.read(table_entry=wanted)
    assert found.time_since_last_hit.elapsed_ns > 0
    with pytest.raises(grpc.RpcError):
        client.read(table_entry=entry("forward_l2", time_since_last_hit=p4r.TableEntry.IdleTimeout()))


def test_direct_resources_of_all_tables(client: Client) -> None:
    counters = client.read(direct_counter_entry=p4r.DirectCounterEntry())
    assert len(counters) == 3000 + 3
    of_one = p4r.DirectCounterEntry(table_entry=entry("slice_select"))
    assert [found.table_entry.priority for found in client.read(direct_counter_entry=of_one)] == [1, 2, 3]


def test_a_bad_request_among_good_ones(client: Client) -> None:
    absent = microflow(4000)
    entities = [
        p4r.Entity(table_entry=microflow(1)),
        p4r.Entity(table_entry=p4r.TableEntry(table_id=99)),
        p4r.Entity(),
        p4r.Entity(direct_counter_entry=p4r.DirectCounterEntry(table_entry=absent)),
        p4r.Entity(table_entry=microflow(2)),
        p4r.Entity(action_profile_group=p4r.ActionProfileGroup()),
        p4r.Entity(register_entry=p4r.RegisterEntry(register_id=1)),
    ]
    found: list[p4r.Entity] = []
    with pytest.raises(grpc.RpcError) as failed:
        for response in client.stub.Read(p4r.ReadRequest(device_id=1, entities=entities)):
            found += response.entities
    assert [item.table_entry for item in found] == [microflow(1), microflow(2)]
    assert failed.value.code() is grpc.StatusCode.UNKNOWN
    codes = [error.canonical_code for error in errors(failed.value)]
    assert codes == [0, Code.INVALID_ARGUMENT, Code.INVALID_ARGUMENT, Code.NOT_FOUND, 0, 0, Code.UNIMPLEMENTED]


def test_large_metadata_is_split_over_messages() -> None:
    with controlled() as (_, client):
        for number in range(20):
            client.write(update(INSERT, table_entry=microflow(number, metadata=bytes(500_000))))
        request = p4r.ReadRequest(device_id=1, entities=[p4r.Entity(table_entry=p4r.TableEntry())])
        sizes = [(response.ByteSize(), len(response.entities)) for response in client.stub.Read(request)]
        assert sum(count for _, count in sizes) == 20
        assert max(size for size, _ in sizes) < 4 << 20


def test_an_unknown_device_is_not_found(client: Client) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        list(client.stub.Read(p4r.ReadRequest(device_id=2)))
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
