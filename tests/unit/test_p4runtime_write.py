"""Write: one result for each update, by the specification's rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from finsy.proto import p4r, rpc_status
from p4infokit import ACTIONS, COUNTERS, SLICE_METER, SLICE_METER_SIZE, TABLES
from p4rtkit import (
    DELETE,
    INSERT,
    MODIFY,
    Client,
    Server,
    action,
    controlled,
    entry,
    errors,
    exact,
    lpm,
    microflow,
    microflows,
    running,
    ternary,
    update,
)

from dinnet.switch.codes import Code

OK = Code.OK
METER = p4r.MeterConfig(cir=1000, cburst=1500, pir=2000, pburst=3000)


@pytest.fixture(scope="module")
def module_server() -> Iterator[tuple[Server, Client]]:
    with controlled() as pair:
        yield pair


@pytest.fixture
def client(module_server: tuple[Server, Client]) -> Client:
    module_server[1].set_pipeline()  # empties everything
    return module_server[1]


def port_entry(port: bytes, **fields: Any) -> p4r.TableEntry:
    fields.setdefault("action", action("configure_port", b"\x01", b"\x00"))
    return entry("ingress_port", exact(1, port), **fields)


def slice_entry(*match: p4r.FieldMatch, **fields: Any) -> p4r.TableEntry:
    fields = {"priority": 10, "action": action("set_slice", b"\x01", b"\x02"), **fields}
    return entry("slice_select", *match, **fields)


def test_insert_modify_delete(client: Client) -> None:
    assert client.result(MODIFY, table_entry=microflow(1)) == Code.NOT_FOUND
    assert client.result(DELETE, table_entry=microflow(1)) == Code.NOT_FOUND
    assert client.result(INSERT, table_entry=microflow(1)) == OK
    assert client.result(INSERT, table_entry=microflow(1)) == Code.ALREADY_EXISTS
    other = microflow(1, action=action("set_mark", b"\x02", b"\x01", b"\x05"), metadata=b"cookie")
    assert client.result(MODIFY, table_entry=other) == OK
    assert client.read(table_entry=entry("microflow")) == [other]
    # Whatever else a deletion says besides the key does not count.
    nonsense = microflow(1, action=p4r.TableAction(action_profile_member_id=3), idle_timeout_ns=-5)
    assert client.result(DELETE, table_entry=nonsense) == OK
    assert client.read(table_entry=entry("microflow")) == []


def test_a_modification_without_action_keeps_it(client: Client) -> None:
    client.write(update(INSERT, table_entry=microflow(1)))
    changed = microflow(1, metadata=b"new")
    changed.ClearField("action")
    assert client.result(INSERT, table_entry=changed) == Code.INVALID_ARGUMENT
    assert client.result(MODIFY, table_entry=changed) == OK
    assert client.read(table_entry=entry("microflow")) == [microflow(1, metadata=b"new")]


def test_good_and_bad_updates_mixed_give_one_result_each(client: Client) -> None:
    bad_port = port_entry(b"\x02\x00")
    results = client.results(
        update(INSERT, table_entry=port_entry(b"\x01")),
        update(INSERT, table_entry=bad_port),
        update(INSERT, table_entry=microflow(1)),
        update(INSERT, table_entry=port_entry(b"\x01")),
        update(DELETE, table_entry=microflow(2)),
        update(INSERT, table_entry=p4r.TableEntry(table_id=99)),
        p4r.Update(type=INSERT),
        p4r.Update(entity=p4r.Entity(table_entry=microflow(3))),
        update(INSERT, extern_entry=p4r.ExternEntry(extern_id=1)),
        update(MODIFY, table_entry=microflow(1)),
        update(DELETE, table_entry=microflow(1)),
        update(INSERT, table_entry=microflow(1)),
    )
    assert results == [
        OK,
        Code.OUT_OF_RANGE,
        OK,
        Code.ALREADY_EXISTS,
        Code.NOT_FOUND,
        Code.INVALID_ARGUMENT,
        Code.INVALID_ARGUMENT,
        Code.INVALID_ARGUMENT,
        Code.UNIMPLEMENTED,
        OK,
        OK,
        OK,
    ]
    assert len(client.read(table_entry=p4r.TableEntry())) == 2


def test_the_status_of_a_failed_batch_is_in_the_form_that_clients_expect(client: Client) -> None:
    with pytest.raises(grpc.RpcError) as failed:
        client.write(*microflows([1, 1]))
    assert failed.value.code() is grpc.StatusCode.UNKNOWN
    details = dict(failed.value.trailing_metadata())["grpc-status-details-bin"]
    status = rpc_status.Status.FromString(details)
    assert (status.code, status.message) == (2, failed.value.details())
    assert [packed.type_url for packed in status.details] == ["type.googleapis.com/p4.v1.Error"] * 2
    good, bad = errors(failed.value)
    assert good == p4r.Error() and bad.canonical_code == Code.ALREADY_EXISTS and bad.message


def test_a_thousand_duplicates_in_one_write_keep_their_places(client: Client) -> None:
    client.write(*microflows(range(1000)))
    every_third = [number if number % 3 else 5000 + number for number in range(1000)]
    results = client.results(*microflows(every_third))
    assert results == [Code.ALREADY_EXISTS if number % 3 else OK for number in range(1000)]


def test_a_large_failed_batch_fits_what_clients_take(client: Client) -> None:
    """1,000 errors must fit in the 64 KiB of metadata that finsy takes."""
    client.write(update(INSERT, table_entry=microflow(1)))
    with pytest.raises(grpc.RpcError) as failed:
        client.write(*microflows([1] * 1000))
    assert len(dict(failed.value.trailing_metadata())["grpc-status-details-bin"]) < 60_000
    assert [error.canonical_code for error in errors(failed.value)] == [Code.ALREADY_EXISTS] * 1000


def test_a_full_table_is_an_error_for_the_entry_only(client: Client) -> None:
    entries = [
        entry("dscp_to_mark", exact(1, bytes([n])), action=action("read_dscp", b"\x01", b"\x01")) for n in range(64)
    ]
    client.write(*(update(INSERT, table_entry=item) for item in entries[:63]))
    marks = entry("mark_to_dscp", exact(1, b"\x01"), exact(2, b"\x01"), action=action("set_dscp", b"\x2e"))
    results = client.results(
        update(INSERT, table_entry=entries[63]),
        update(DELETE, table_entry=entries[0]),
        update(INSERT, table_entry=entries[0]),
        update(INSERT, table_entry=marks),
    )
    assert results == [OK] * 4
    # There are no more than 64 codes, so a smaller copy of the table tests the limit itself.
    config = p4r.ForwardingPipelineConfig()
    config.CopyFrom(_with_table_size("dscp_to_mark", 2))
    client.set_pipeline(config=config)
    results = client.results(*(update(INSERT, table_entry=item) for item in entries[:4]))
    assert results == [OK, OK, Code.RESOURCE_EXHAUSTED, Code.RESOURCE_EXHAUSTED]


def _with_table_size(name: str, size: int) -> p4r.ForwardingPipelineConfig:
    from p4rtkit import pipeline_config

    config = pipeline_config()
    next(table for table in config.p4info.tables if table.preamble.id == TABLES[name]).size = size
    return config


@pytest.mark.parametrize("written", [b"\x05", b"\x00\x05", b"\x00\x00\x00\x05"])
def test_a_port_number_is_read_back_in_its_shortest_bytes(client: Client, written: bytes) -> None:
    client.write(update(INSERT, table_entry=port_entry(written)))
    assert client.read(table_entry=entry("ingress_port")) == [port_entry(b"\x05")]
    assert client.result(INSERT, table_entry=port_entry(b"\x05")) == Code.ALREADY_EXISTS


V6 = b"\x20\x01\x0d\xb8" + bytes(12)


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        pytest.param(port_entry(b""), Code.OUT_OF_RANGE, id="empty value"),
        pytest.param(port_entry(b"\x02\x00"), Code.OUT_OF_RANGE, id="wide value"),
        pytest.param(entry("ingress_port", action=action("configure_port", b"\1", b"\0")), 3, id="exact left out"),
        pytest.param(
            entry("ingress_port", exact(1, b"\1"), exact(1, b"\1"), action=action("configure_port", b"\1", b"\0")),
            3,
            id="field twice",
        ),
        pytest.param(
            entry("ingress_port", exact(2, b"\1"), action=action("configure_port", b"\1", b"\0")), 3, id="unknown field"
        ),
        pytest.param(
            entry("ingress_port", lpm(1, b"\1", 9), action=action("configure_port", b"\1", b"\0")), 3, id="wrong kind"
        ),
        pytest.param(port_entry(b"\1", priority=1), 3, id="priority without ternary"),
        pytest.param(port_entry(b"\1", action=p4r.TableAction()), 3, id="no action"),
        pytest.param(port_entry(b"\1", action=action("drop")), 3, id="another table's action"),
        pytest.param(port_entry(b"\1", action=action("configure_port", b"\1")), 3, id="parameter missing"),
        pytest.param(
            port_entry(b"\1", action=action("configure_port", b"\1", b"\0", b"\0")), 3, id="parameter too many"
        ),
        pytest.param(
            port_entry(b"\1", action=action("configure_port", b"\2", b"\0")), Code.OUT_OF_RANGE, id="wide param"
        ),
        pytest.param(port_entry(b"\1", action=p4r.TableAction(action_profile_group_id=1)), 3, id="action profile"),
        pytest.param(port_entry(b"\1", action=action("NoAction")), Code.PERMISSION_DENIED, id="default-only action"),
        pytest.param(port_entry(b"\1", is_const=True), 3, id="const"),
        pytest.param(port_entry(b"\1", idle_timeout_ns=1), 3, id="no idle time-out"),
        pytest.param(port_entry(b"\1", meter_config=METER), 3, id="no meter"),
        pytest.param(port_entry(b"\1", counter_data=p4r.CounterData()), 3, id="no counter"),
        pytest.param(slice_entry(priority=0), 3, id="priority 0"),
        pytest.param(slice_entry(priority=-1), 3, id="priority below 0"),
        pytest.param(slice_entry(ternary(4, b"\x06", b"\x00")), 3, id="mask of zero"),
        pytest.param(slice_entry(ternary(4, b"\x00", b"\x00")), 3, id="wildcard not left out"),
        pytest.param(slice_entry(ternary(4, b"\x07", b"\x06")), 3, id="value outside mask"),
        pytest.param(slice_entry(ternary(4, b"\x01", b"\x01\xff")), Code.OUT_OF_RANGE, id="wide mask"),
        pytest.param(slice_entry(ternary(4, b"", b"\xff")), Code.OUT_OF_RANGE, id="empty ternary"),
        pytest.param(entry("forward_v6", lpm(1, V6, 0), action=action("drop")), 3, id="prefix of no bits"),
        pytest.param(entry("forward_v6", lpm(1, V6, 129), action=action("drop")), 3, id="prefix too long"),
        pytest.param(entry("forward_v6", lpm(1, V6, 16), action=action("drop")), 3, id="bits behind the prefix"),
        pytest.param(microflow(1, idle_timeout_ns=-1), 3, id="negative time-out"),
        pytest.param(microflow(1, time_since_last_hit=p4r.TableEntry.IdleTimeout()), 3, id="time since last hit"),
        pytest.param(microflow(1, meter_config=p4r.MeterConfig(cir=2, pir=1)), 3, id="peak below committed"),
        pytest.param(microflow(1, meter_config=p4r.MeterConfig(cir=-1)), 3, id="negative rate"),
        pytest.param(microflow(1, meter_config=p4r.MeterConfig(cir=1, pir=1, eburst=1)), 3, id="excess burst"),
        pytest.param(microflow(1, counter_data=p4r.CounterData(byte_count=-1)), 3, id="negative count"),
        pytest.param(
            microflow(1, meter_counter_data=p4r.MeterCounterData()), Code.UNIMPLEMENTED, id="counters per colour"
        ),
    ],
)
def test_what_an_entry_must_not_be(client: Client, bad: p4r.TableEntry, code: int) -> None:
    assert client.result(INSERT, table_entry=bad) == code
    assert client.read(table_entry=p4r.TableEntry()) == []


def test_ternary_and_prefix_entries_are_told_apart_by_mask_and_priority(client: Client) -> None:
    first = slice_entry(ternary(4, b"\x06", b"\xff"), priority=10)
    second = slice_entry(ternary(4, b"\x06", b"\xff"), priority=11)
    third = slice_entry(ternary(4, b"\x06", b"\x0f"), priority=10)
    everything = slice_entry(priority=1)
    routes = [entry("forward_v4", lpm(1, b"\x0a\x00\x00\x00", length), action=action("drop")) for length in (8, 16)]
    routes.append(entry("forward_v4", action=action("to_controller")))
    entries = [first, second, third, everything, *routes]
    assert client.results(*(update(INSERT, table_entry=item) for item in entries)) == [OK] * 7
    assert sorted(map(str, client.read(table_entry=p4r.TableEntry()))) == sorted(map(str, entries))
    assert client.results(*(update(INSERT, table_entry=item) for item in entries)) == [Code.ALREADY_EXISTS] * 7
    assert client.results(*(update(DELETE, table_entry=item) for item in entries)) == [OK] * 7


def default_entry(table: str, **fields: Any) -> p4r.TableEntry:
    return p4r.TableEntry(table_id=TABLES[table], is_default_action=True, **fields)


def test_default_entries(client: Client) -> None:
    flood = default_entry("forward_l2", action=action("flood", b"\x07"))
    assert client.result(INSERT, table_entry=flood) == Code.INVALID_ARGUMENT
    assert client.result(DELETE, table_entry=flood) == Code.INVALID_ARGUMENT
    assert client.result(MODIFY, table_entry=flood) == OK
    assert client.read(table_entry=default_entry("forward_l2")) == [flood]
    assert client.result(MODIFY, table_entry=default_entry("forward_l2")) == OK
    assert client.read(table_entry=default_entry("forward_l2")) == [
        default_entry("forward_l2", action=action("NoAction"))
    ]
    constant = default_entry("microflow", action=action("NoAction"))
    assert client.result(MODIFY, table_entry=constant) == Code.PERMISSION_DENIED
    with_match = default_entry("forward_l2", action=action("drop"), match=[exact(1, b"\x01")])
    assert client.result(MODIFY, table_entry=with_match) == Code.INVALID_ARGUMENT
    with_priority = default_entry("forward_l2", action=action("drop"), priority=1)
    assert client.result(MODIFY, table_entry=with_priority) == Code.INVALID_ARGUMENT
    constants = client.read(table_entry=default_entry("microflow"))
    assert constants[0].is_const and constants[0].action.action.action_id == ACTIONS["NoAction"]


def test_a_direct_meter_is_set_cleared_and_read_back(client: Client) -> None:
    client.write(update(INSERT, table_entry=microflow(1, meter_config=METER)))
    wanted = entry("microflow", meter_config=p4r.MeterConfig())
    assert client.read(table_entry=wanted) == [microflow(1, meter_config=METER)]
    assert client.read(table_entry=entry("microflow")) == [microflow(1)]
    # A modification without a configuration clears it.
    client.write(update(MODIFY, table_entry=microflow(1)))
    assert client.read(table_entry=wanted) == [microflow(1)]
    key = microflow(1)
    key.ClearField("action")
    faster = p4r.MeterConfig(cir=5000, cburst=1500, pir=5000, pburst=1500)
    meter = p4r.DirectMeterEntry(table_entry=key, config=faster)
    client.write(update(MODIFY, direct_meter_entry=meter))
    assert client.read(direct_meter_entry=p4r.DirectMeterEntry(table_entry=key)) == [meter]
    assert client.read(table_entry=wanted) == [microflow(1, meter_config=faster)]
    client.write(update(MODIFY, direct_meter_entry=p4r.DirectMeterEntry(table_entry=key)))
    assert client.read(direct_meter_entry=p4r.DirectMeterEntry()) == [p4r.DirectMeterEntry(table_entry=key)]
    for type in (INSERT, DELETE):
        assert client.result(type, direct_meter_entry=meter) == Code.INVALID_ARGUMENT
    absent = microflow(2)
    assert client.result(MODIFY, direct_meter_entry=p4r.DirectMeterEntry(table_entry=absent)) == Code.NOT_FOUND


def test_a_direct_counter_is_set_kept_and_read_back(client: Client) -> None:
    counts = p4r.CounterData(byte_count=1500, packet_count=3)
    client.write(update(INSERT, table_entry=microflow(1, counter_data=counts)))
    wanted = entry("microflow", counter_data=p4r.CounterData())
    assert client.read(table_entry=wanted) == [microflow(1, counter_data=counts)]
    client.write(update(MODIFY, table_entry=microflow(1)))
    assert client.read(table_entry=wanted) == [microflow(1, counter_data=counts)]
    key = microflow(1)
    key.ClearField("action")
    zero = p4r.DirectCounterEntry(table_entry=key, data=p4r.CounterData())
    client.write(update(MODIFY, direct_counter_entry=zero))
    assert client.read(direct_counter_entry=p4r.DirectCounterEntry(table_entry=key)) == [zero]
    # A counter goes with its entry.
    client.write(update(MODIFY, table_entry=microflow(1, counter_data=counts)))
    client.write(update(DELETE, table_entry=microflow(1)))
    client.write(update(INSERT, table_entry=microflow(1)))
    assert client.read(table_entry=wanted) == [microflow(1, counter_data=p4r.CounterData())]
    absent = p4r.DirectCounterEntry(table_entry=microflow(2), data=counts)
    assert client.result(MODIFY, direct_counter_entry=absent) == Code.NOT_FOUND
    without = p4r.DirectCounterEntry(table_entry=port_entry(b"\x01"), data=counts)
    assert client.result(MODIFY, direct_counter_entry=without) == Code.INVALID_ARGUMENT


def meter_cell(index: int | None = None, config: p4r.MeterConfig | None = None) -> p4r.MeterEntry:
    cell = p4r.MeterEntry(meter_id=SLICE_METER, config=config)
    if index is not None:
        cell.index.index = index
    return cell


def test_an_indexed_meter_is_set_cleared_and_read_back(client: Client) -> None:
    assert client.result(INSERT, meter_entry=meter_cell(3, METER)) == Code.INVALID_ARGUMENT
    assert client.result(MODIFY, meter_entry=meter_cell(SLICE_METER_SIZE, METER)) == Code.OUT_OF_RANGE
    assert client.result(MODIFY, meter_entry=meter_cell(-1, METER)) == Code.INVALID_ARGUMENT
    client.write(update(MODIFY, meter_entry=meter_cell(3, METER)))
    assert client.read(meter_entry=meter_cell(3)) == [meter_cell(3, METER)]
    assert client.read(meter_entry=meter_cell(4)) == [meter_cell(4)]
    cells = client.read(meter_entry=meter_cell())
    assert [cell.index.index for cell in cells] == list(range(SLICE_METER_SIZE))
    assert [cell.index.index for cell in cells if cell.HasField("config")] == [3]
    client.write(update(MODIFY, meter_entry=meter_cell(3)))
    assert client.read(meter_entry=meter_cell(3)) == [meter_cell(3)]
    client.write(update(MODIFY, meter_entry=meter_cell(None, METER)))
    assert all(cell.config == METER for cell in client.read(meter_entry=p4r.MeterEntry()))


def counter_cell(name: str, index: int | None = None, data: p4r.CounterData | None = None) -> p4r.CounterEntry:
    cell = p4r.CounterEntry(counter_id=COUNTERS[name], data=data)
    if index is not None:
        cell.index.index = index
    return cell


def test_indexed_counters(client: Client) -> None:
    counts = p4r.CounterData(byte_count=9000, packet_count=6)
    assert client.result(INSERT, counter_entry=counter_cell("drops", 1, counts)) == Code.INVALID_ARGUMENT
    assert client.result(MODIFY, counter_entry=counter_cell("drops", 8, counts)) == Code.OUT_OF_RANGE
    assert client.result(MODIFY, counter_entry=p4r.CounterEntry(counter_id=5)) == Code.INVALID_ARGUMENT
    client.write(update(MODIFY, counter_entry=counter_cell("drops", 1, counts)))
    client.write(update(MODIFY, counter_entry=counter_cell("drops", 1)))  # no data: no change
    assert client.read(counter_entry=counter_cell("drops", 1)) == [counter_cell("drops", 1, counts)]
    assert [cell.data for cell in client.read(counter_entry=counter_cell("drops"))][1] == counts
    assert len(client.read(counter_entry=p4r.CounterEntry())) == 8 + 8 + 256 + 256 + 1
    client.write(update(MODIFY, counter_entry=counter_cell("drops", None, p4r.CounterData())))
    assert client.read(counter_entry=counter_cell("drops", 1)) == [counter_cell("drops", 1, p4r.CounterData())]


def group(id: int, *ports: int, metadata: bytes = b"") -> p4r.PacketReplicationEngineEntry:
    replicas = [p4r.Replica(port=bytes([port]), instance=1) for port in ports]
    multicast = p4r.MulticastGroupEntry(multicast_group_id=id, replicas=replicas, metadata=metadata)
    return p4r.PacketReplicationEngineEntry(multicast_group_entry=multicast)


def test_multicast_groups(client: Client) -> None:
    def result(type: int, entity: p4r.PacketReplicationEngineEntry) -> int:
        return client.result(type, packet_replication_engine_entry=entity)

    assert result(INSERT, group(0, 1)) == Code.INVALID_ARGUMENT
    assert result(INSERT, group(1, 1, 1)) == Code.INVALID_ARGUMENT
    assert result(MODIFY, group(1, 1)) == Code.NOT_FOUND
    assert result(DELETE, group(1)) == Code.NOT_FOUND
    assert result(INSERT, group(1, 1, 2, metadata=b"all")) == OK
    assert result(INSERT, group(1, 1)) == Code.ALREADY_EXISTS
    assert client.read(packet_replication_engine_entry=group(0)) == [group(1, 1, 2, metadata=b"all")]
    assert result(MODIFY, group(1, 3)) == OK
    assert client.read(packet_replication_engine_entry=group(1)) == [group(1, 3)]
    assert client.read(packet_replication_engine_entry=group(2)) == []
    assert result(DELETE, group(1)) == OK
    old_form = p4r.MulticastGroupEntry(multicast_group_id=2, replicas=[p4r.Replica(egress_port=5, instance=0)])
    entity = p4r.PacketReplicationEngineEntry(multicast_group_entry=old_form)
    assert result(INSERT, entity) == OK
    assert client.read(packet_replication_engine_entry=entity) == [entity]


def test_clone_sessions(client: Client) -> None:
    session = p4r.CloneSessionEntry(
        session_id=5, replicas=[p4r.Replica(port=b"\x01", instance=1)], packet_length_bytes=96
    )
    entity = p4r.PacketReplicationEngineEntry(clone_session_entry=session)
    every = p4r.PacketReplicationEngineEntry(clone_session_entry=p4r.CloneSessionEntry())
    assert client.result(INSERT, packet_replication_engine_entry=entity) == OK
    assert client.read(packet_replication_engine_entry=every) == [entity]
    assert client.result(DELETE, packet_replication_engine_entry=entity) == OK
    assert client.read(packet_replication_engine_entry=every) == []


def test_only_the_primary_writes(client: Client, module_server: tuple[Server, Client]) -> None:
    writes = [
        (p4r.WriteRequest(device_id=2), grpc.StatusCode.NOT_FOUND),
        (p4r.WriteRequest(device_id=1, role="stranger"), grpc.StatusCode.NOT_FOUND),
        (p4r.WriteRequest(device_id=1), grpc.StatusCode.PERMISSION_DENIED),
        (p4r.WriteRequest(device_id=1, election_id=p4r.Uint128(low=2)), grpc.StatusCode.PERMISSION_DENIED),
        (p4r.WriteRequest(device_id=1, election_id=p4r.Uint128(low=1), atomicity=1), grpc.StatusCode.UNIMPLEMENTED),
        (p4r.WriteRequest(device_id=1, election_id=p4r.Uint128(low=1), atomicity=2), grpc.StatusCode.UNIMPLEMENTED),
    ]
    for request, code in writes:
        with pytest.raises(grpc.RpcError) as refused:
            client.stub.Write(request)
        assert refused.value.code() is code


def test_nothing_is_written_or_read_before_there_is_a_pipeline() -> None:
    with running() as server, Client(server.address) as client:
        client.arbitrate()
        for call in (lambda: client.write(*microflows([1])), lambda: client.read(table_entry=p4r.TableEntry())):
            with pytest.raises(grpc.RpcError) as refused:
                call()
            assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
