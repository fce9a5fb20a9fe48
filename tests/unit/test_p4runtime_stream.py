"""What goes over the stream besides arbitration: packets, digests, idle notifications, errors."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator

import pytest
from finsy.proto import p4d, p4r
from google.protobuf.any_pb2 import Any
from hypothesis import given
from hypothesis import strategies as st
from p4infokit import FLOW_RECORD, RECORD_FIELDS, TABLES, dinnet_p4info
from p4rtkit import DELETE, INSERT, MODIFY, Client, Server, controlled, microflow, update

from dinnet.switch.bytestrings import to_bytes
from dinnet.switch.codes import Code
from dinnet.switch.digests import MAX_HELD, DigestEncoder
from dinnet.switch.p4info import Digest, Leaf, LeafKind, Struct, parse_p4info

MS = 1_000_000


@pytest.fixture
def pair() -> Iterator[tuple[Server, Client]]:
    with controlled() as pair:
        yield pair


def packet_out(*metadata: tuple[int, bytes], payload: bytes = b"\xff" * 60) -> p4r.PacketOut:
    return p4r.PacketOut(payload=payload, metadata=[p4r.PacketMetadata(metadata_id=i, value=v) for i, v in metadata])


def test_packets_go_out_and_come_in(pair: tuple[Server, Client]) -> None:
    server, client = pair
    client.send(packet=packet_out((1, b"\x01\xfe"), (2, b"\x00")))
    client.arbitrate()  # when it is answered the packet has been taken
    assert server.target.packets_out == [(b"\xff" * 60, (510, 0))]
    server.target.events.packet_in(b"payload", (5, 0))
    packet = client.receive("packet")
    assert packet.payload == b"payload"
    assert [(m.metadata_id, m.value) for m in packet.metadata] == [(1, b"\x05"), (2, b"\x00")]


@pytest.mark.parametrize(
    "bad",
    [
        packet_out((1, b"\x05")),
        packet_out((1, b"\x05"), (2, b"\x00"), (7, b"\x00")),
        packet_out((1, b"\x05"), (1, b"\x05")),
        packet_out((1, b"\x02\x00"), (2, b"\x00")),
        packet_out((1, b""), (2, b"\x00")),
    ],
)
def test_bad_packet_outs_are_reported_on_the_stream(pair: tuple[Server, Client], bad: p4r.PacketOut) -> None:
    server, client = pair
    client.send(packet=bad)
    error = client.receive("error")
    assert error.canonical_code == Code.INVALID_ARGUMENT and error.message
    assert error.packet_out.packet_out == bad
    assert server.target.packets_out == []


def test_backups_send_no_packets(pair: tuple[Server, Client]) -> None:
    server, _ = pair
    with Client(server.address, 0) as backup:
        backup.arbitrate()
        backup.send(packet=packet_out((1, b"\x05"), (2, b"\x00")))
        assert backup.receive("error").canonical_code == Code.PERMISSION_DENIED
        backup.send(digest_ack=p4r.DigestListAck(digest_id=FLOW_RECORD, list_id=1))
        assert backup.receive("error").canonical_code == Code.PERMISSION_DENIED
        server.target.events.packet_in(b"payload", (5, 0))
        assert pair[1].receive("packet").payload == b"payload"
        with pytest.raises(queue.Empty):
            backup.received.get(timeout=0.05)


def test_other_messages_are_reported(pair: tuple[Server, Client]) -> None:
    _, client = pair
    client.send(other=Any(type_url="type.googleapis.com/x.Y"))
    error = client.receive("error")
    assert error.canonical_code == Code.UNIMPLEMENTED and error.other.other.type_url
    client.send()
    assert client.receive("error").canonical_code == Code.INVALID_ARGUMENT


def row(number: int) -> tuple[int, ...]:
    return tuple(number + place for place in range(len(RECORD_FIELDS)))


def record(number: int) -> p4d.P4Data:
    """The same as `row`, as the specification writes it."""
    data = p4d.P4Data()
    for place, (_, width) in enumerate(RECORD_FIELDS):
        member = data.struct.members.add()
        if width:
            member.bitstring = to_bytes(number + place)
        else:
            member.enum_value = to_bytes(number + place)
    return data


def digest_entry(**config: int) -> p4r.DigestEntry:
    return p4r.DigestEntry(digest_id=FLOW_RECORD, config=p4r.DigestEntry.Config(**config))


def test_digest_configuration(pair: tuple[Server, Client]) -> None:
    _, client = pair
    first, second = digest_entry(max_list_size=10, max_timeout_ns=MS), digest_entry(ack_timeout_ns=5)
    assert client.read(digest_entry=p4r.DigestEntry()) == []
    assert client.result(MODIFY, digest_entry=first) == Code.NOT_FOUND
    assert client.result(DELETE, digest_entry=first) == Code.NOT_FOUND
    assert client.result(INSERT, digest_entry=digest_entry(max_list_size=-1)) == Code.INVALID_ARGUMENT
    assert client.result(INSERT, digest_entry=p4r.DigestEntry(digest_id=1)) == Code.INVALID_ARGUMENT
    assert client.result(INSERT, digest_entry=first) == Code.OK
    assert client.result(INSERT, digest_entry=first) == Code.ALREADY_EXISTS
    assert client.result(MODIFY, digest_entry=second) == Code.OK
    assert client.read(digest_entry=p4r.DigestEntry(digest_id=FLOW_RECORD)) == [second]
    assert client.result(DELETE, digest_entry=p4r.DigestEntry(digest_id=FLOW_RECORD)) == Code.OK


def test_digests_are_sent_at_once_without_a_time_out(pair: tuple[Server, Client]) -> None:
    server, client = pair
    client.write(update(INSERT, digest_entry=digest_entry(max_list_size=10)))
    server.target.events.digests(FLOW_RECORD, [row(1), row(300)])
    first, second = client.receive("digest"), client.receive("digest")
    assert list(first.data) == [record(1)] and list(second.data) == [record(300)]
    assert (first.digest_id, second.list_id - first.list_id) == (FLOW_RECORD, 1)
    assert abs(first.timestamp - time.time_ns()) < 60e9


def test_digests_are_gathered_up_to_size_and_time(pair: tuple[Server, Client]) -> None:
    server, client = pair
    client.write(update(INSERT, digest_entry=digest_entry(max_list_size=3, max_timeout_ns=50 * MS)))
    server.target.events.digests(FLOW_RECORD, [row(n) for n in (1, 2, 2, 3, 4)])
    assert list(client.receive("digest").data) == [record(n) for n in (1, 2, 3)]
    assert list(client.receive("digest").data) == [record(4)]  # after 50 ms
    assert server.service._pipelines.current.digests.repeated == 1


def test_an_unacknowledged_digest_is_not_repeated_until_its_time_is_over(pair: tuple[Server, Client]) -> None:
    server, client = pair
    client.write(update(INSERT, digest_entry=digest_entry(max_list_size=1, ack_timeout_ns=200 * MS)))
    events = server.target.events
    events.digests(FLOW_RECORD, [row(1)])
    sent = time.monotonic()
    client.receive("digest")
    events.digests(FLOW_RECORD, [row(1), row(2)])
    second = client.receive("digest")
    assert list(second.data) == [record(2)]
    # Acknowledged: the same may come again.
    client.send(digest_ack=p4r.DigestListAck(digest_id=FLOW_RECORD, list_id=second.list_id))
    client.arbitrate()
    events.digests(FLOW_RECORD, [row(2)])
    assert list(client.receive("digest").data) == [record(2)]
    # Not acknowledged: after the time-out.
    found = None
    while found is None:
        events.digests(FLOW_RECORD, [row(1)])
        try:
            found = client.received.get(timeout=0.02)
        except queue.Empty:
            assert time.monotonic() < sent + 20
    assert time.monotonic() >= sent + 0.2 and list(found.digest.data) == [record(1)]


def test_bad_acknowledgements_are_reported(pair: tuple[Server, Client]) -> None:
    _, client = pair
    client.write(update(INSERT, digest_entry=digest_entry()))
    client.send(digest_ack=p4r.DigestListAck(digest_id=1, list_id=1))
    error = client.receive("error")
    assert error.canonical_code == Code.INVALID_ARGUMENT and error.digest_list_ack.digest_list_ack.digest_id == 1
    client.send(digest_ack=p4r.DigestListAck(digest_id=FLOW_RECORD, list_id=1))
    assert client.receive("error").canonical_code == Code.NOT_FOUND


def test_digests_of_before_are_counted_or_kept(pair: tuple[Server, Client]) -> None:
    """Before anybody listens there are none; without a controller they wait for one, and the oldest of too many go."""
    server, client = pair
    server.target.events.digests(FLOW_RECORD, [row(1), row(2)])
    client.write(update(INSERT, digest_entry=digest_entry(max_list_size=1024, max_timeout_ns=10**9)))
    digests = server.service._pipelines.current.digests
    assert (digests.lost, digests.sent) == (2, 0)
    client.election_id = 0
    client.arbitrate()  # steps back: there is no primary
    server.target.events.digests(FLOW_RECORD, [row(n) for n in range(MAX_HELD + 3)])
    deadline = time.monotonic() + 20
    while digests.lost < 5:
        client.read(digest_entry=p4r.DigestEntry())
        assert time.monotonic() < deadline
    assert (digests.lost, digests.sent) == (5, 0)
    client.election_id = 1
    client.arbitrate()
    got = []
    while len(got) < MAX_HELD:
        got += client.receive("digest").data
    assert got == [record(n) for n in range(3, MAX_HELD + 3)]
    assert (digests.lost, digests.sent) == (5, MAX_HELD)


def test_an_unacknowledged_digest_is_held_back_also_when_it_was_kept(pair: tuple[Server, Client]) -> None:
    server, client = pair
    client.write(update(INSERT, digest_entry=digest_entry(ack_timeout_ns=10**12)))
    client.election_id = 0
    client.arbitrate()
    server.target.events.digests(FLOW_RECORD, [row(1), row(1)])
    client.election_id = 1
    client.arbitrate()
    assert list(client.receive("digest").data) == [record(1)]
    server.target.events.digests(FLOW_RECORD, [row(1), row(2)])
    assert list(client.receive("digest").data) == [record(2)]
    assert server.service._pipelines.current.digests.repeated == 2


def test_idle_entries_are_told_again_and_again(pair: tuple[Server, Client]) -> None:
    _, client = pair
    idle = microflow(1, idle_timeout_ns=100 * MS, metadata=b"cookie")
    client.write(update(INSERT, table_entry=idle), update(INSERT, table_entry=microflow(2)))
    begin = time.monotonic()
    for _ in range(2):
        notification = client.receive("idle_timeout_notification")
        (told,) = notification.table_entry
        assert (told.table_id, list(told.match), told.metadata) == (TABLES["microflow"], list(idle.match), b"cookie")
        assert told.idle_timeout_ns == 100 * MS and notification.timestamp > 0
    assert time.monotonic() - begin >= 0.2
    client.write(update(MODIFY, table_entry=microflow(1)))  # never again
    client.arbitrate()
    with pytest.raises(queue.Empty):
        client.received.get(timeout=0.3)


@given(st.lists(st.integers(0, (1 << 128) - 1), min_size=6, max_size=6))
def test_digests_are_encoded_as_protobuf_does_it(values: list[int]) -> None:
    digest = parse_p4info(dinnet_p4info()).digests[FLOW_RECORD]
    wanted = p4r.DigestList(data=[p4d.P4Data()])
    for value, (_, width) in zip(values, RECORD_FIELDS, strict=True):
        name = "bitstring" if width else "enum_value"
        wanted.data[0].struct.members.append(p4d.P4Data(**{name: to_bytes(value)}))
    assert p4r.DigestList.FromString(DigestEncoder(digest).encode(tuple(values))) == wanted


def test_nested_digests() -> None:
    inner = Struct((("0", Leaf(LeafKind.SIGNED, 8)), ("1", Leaf(LeafKind.BOOL, 1))), is_tuple=True)
    outer = Digest(1, "d", Struct((("pair", inner), ("wide", Leaf(LeafKind.BITS, 2048)))))
    wanted = p4d.P4Data()
    pair = wanted.struct.members.add().tuple
    pair.members.add().bitstring = b"\x9d"
    pair.members.add().bool = False
    wanted.struct.members.add().bitstring = b"\xff" * 256
    encoded = DigestEncoder(outer).encode((-99, 0, (1 << 2048) - 1))
    assert p4r.DigestList.FromString(encoded) == p4r.DigestList(data=[wanted])
