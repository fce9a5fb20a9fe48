"""Who is primary, and who is told."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest
from finsy.proto import U128, p4r, stratum
from google.protobuf.any_pb2 import Any
from p4infokit import FLOW_RECORD, TABLES
from p4rtkit import INSERT, Client, Server, microflow, microflows, running, update

from dinnet.switch.arbitration import MAX_SESSIONS
from dinnet.switch.codes import Code


@pytest.fixture
def server() -> Iterator[Server]:
    with running() as server:
        yield server


def election_id(message: p4r.MasterArbitrationUpdate) -> int | None:
    return U128.decode(message.election_id) if message.HasField("election_id") else None


def refused(client: Client, *updates: p4r.Update) -> grpc.StatusCode | None:
    try:
        client.write(*updates)
    except grpc.RpcError as error:
        return error.code()
    return None


def test_the_highest_id_is_primary_and_the_others_are_told(server: Server) -> None:
    with Client(server.address, 5) as first, Client(server.address, 3) as second, Client(server.address, 9) as third:
        told = first.arbitrate()
        assert (told.status.code, election_id(told), told.device_id) == (Code.OK, 5, 1)
        told = second.arbitrate()
        assert (told.status.code, election_id(told)) == (Code.ALREADY_EXISTS, 5)
        told = third.arbitrate()
        assert (told.status.code, election_id(told)) == (Code.OK, 9)
        for client in (first, second):
            told = client.receive("arbitration")
            assert (told.status.code, election_id(told)) == (Code.ALREADY_EXISTS, 9)
        third.set_pipeline()
        assert refused(first, *microflows([1])) is grpc.StatusCode.PERMISSION_DENIED
        assert refused(third, *microflows([1])) is None


def test_a_killed_primary_leaves_none_until_a_backup_asks(server: Server) -> None:
    with Client(server.address, 1) as backup:
        primary = Client(server.address, 2)
        primary.arbitrate()
        primary.set_pipeline()
        assert backup.arbitrate().status.code == Code.ALREADY_EXISTS
        primary.kill()
        told = backup.receive("arbitration")
        assert (told.status.code, election_id(told)) == (Code.NOT_FOUND, 2)
        # The dead one's id writes no more, and a lower one than ever seen does not become primary.
        for id in (1, 2):
            backup.election_id = id
            assert refused(backup, *microflows([1])) is grpc.StatusCode.PERMISSION_DENIED
        backup.election_id = 1
        assert backup.arbitrate().status.code == Code.NOT_FOUND
        backup.election_id = 2
        told = backup.arbitrate()
        assert (told.status.code, election_id(told)) == (Code.OK, 2)
        assert refused(backup, *microflows([1])) is None


def test_two_clients_with_one_election_id(server: Server) -> None:
    with Client(server.address, 4) as first, Client(server.address, 4) as second, Client(server.address, 5) as third:
        first.arbitrate()
        second.send(arbitration=second.arbitration())
        assert second.closed().code() is grpc.StatusCode.INVALID_ARGUMENT
        third.arbitrate()
        first.receive("arbitration")
        # Nor may one that is live take another's id.
        third.election_id = 4
        third.send(arbitration=third.arbitration())
        assert third.closed().code() is grpc.StatusCode.INVALID_ARGUMENT
        assert first.receive("arbitration").status.code == Code.NOT_FOUND


def test_unset_against_zero(server: Server) -> None:
    with (
        Client(server.address, None) as unset,
        Client(server.address, 0) as zero,
        Client(server.address, None) as other,
    ):
        told = unset.arbitrate()
        assert (told.status.code, election_id(told)) == (Code.NOT_FOUND, None)
        assert refused(unset) is grpc.StatusCode.PERMISSION_DENIED
        told = zero.arbitrate()
        assert (told.status.code, election_id(told)) == (Code.OK, 0)
        told = unset.receive("arbitration")
        assert (told.status.code, election_id(told)) == (Code.ALREADY_EXISTS, 0)
        assert other.arbitrate().status.code == Code.ALREADY_EXISTS  # several may have none
        zero.set_pipeline()
        assert refused(unset) is grpc.StatusCode.PERMISSION_DENIED


def test_a_primary_may_step_back_and_come_again(server: Server) -> None:
    with Client(server.address, 7) as client:
        client.arbitrate()
        client.election_id = 6
        told = client.arbitrate()
        assert (told.status.code, election_id(told)) == (Code.NOT_FOUND, 7)
        client.election_id = (1 << 127) + 5
        told = client.arbitrate()
        assert (told.status.code, election_id(told)) == (Code.OK, (1 << 127) + 5)


def test_roles_have_a_primary_each(server: Server) -> None:
    with Client(server.address, 1) as first, Client(server.address, 1, role="telemetry") as second:
        assert first.arbitrate().status.code == Code.OK
        told = second.arbitrate()
        assert (told.status.code, told.role.name) == (Code.OK, "telemetry")
        second.role = "other"
        second.send(arbitration=second.arbitration())
        assert second.closed().code() is grpc.StatusCode.FAILED_PRECONDITION


def test_a_role_may_be_restricted(server: Server) -> None:
    config = stratum.P4RoleConfig(exclusive_p4_ids=[TABLES["microflow"]], shared_p4_ids=[FLOW_RECORD])
    packed = Any()
    packed.Pack(config)
    with Client(server.address, 1) as operator, Client(server.address, 1, role="marker") as marker:
        operator.arbitrate()
        operator.set_pipeline()
        told = marker.arbitrate(role=p4r.Role(name="marker", config=packed))
        assert (told.status.code, told.role.config) == (Code.OK, packed)
        port = p4r.TableEntry(table_id=TABLES["ingress_port"])
        results = marker.results(update(INSERT, table_entry=microflow(1)), update(INSERT, table_entry=port))
        assert results == [Code.OK, Code.PERMISSION_DENIED]
        assert marker.read(table_entry=p4r.TableEntry()) == [microflow(1)]
        with pytest.raises(grpc.RpcError) as denied:
            marker.set_pipeline()
        assert denied.value.code() is grpc.StatusCode.PERMISSION_DENIED


def test_what_closes_a_stream(server: Server) -> None:
    strange = Any(type_url="type.googleapis.com/some.Other")
    damaged = Any(type_url="type.googleapis.com/stratum.P4RoleConfig", value=b"\xff")
    cases = [
        ({"device_id": 2}, grpc.StatusCode.NOT_FOUND),
        ({"role": p4r.Role(name="x", config=strange)}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"role": p4r.Role(name="x", config=damaged)}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"role": p4r.Role(id=3)}, grpc.StatusCode.INVALID_ARGUMENT),
    ]
    for fields, code in cases:
        with Client(server.address) as client:
            client.send(arbitration=client.arbitration(**fields))
            assert client.closed().code() is code
    with Client(server.address) as client:
        client.arbitrate()
        client.send(arbitration=client.arbitration(device_id=2))
        assert client.closed().code() is grpc.StatusCode.FAILED_PRECONDITION


def test_there_is_an_end_to_controllers(server: Server) -> None:
    clients = [Client(server.address, None) for _ in range(MAX_SESSIONS + 1)]
    try:
        for client in clients[:-1]:
            client.arbitrate()
        clients[-1].send(arbitration=clients[-1].arbitration())
        assert clients[-1].closed().code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    finally:
        for client in clients:
            client.kill()
