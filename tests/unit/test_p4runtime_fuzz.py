"""Whatever a client sends, it gets a clean error or success, and the server lives on."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator

import grpc
import pytest
from finsy.proto import p4r
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from p4infokit import SLICE_METER, dinnet_p4info
from p4rtkit import Client, controlled, microflow

from dinnet.switch.bytestrings import to_bytes
from dinnet.switch.codes import Refused
from dinnet.switch.digests import Digests
from dinnet.switch.memory import MemoryTarget
from dinnet.switch.p4info import MatchField, MatchKind
from dinnet.switch.program import Program
from dinnet.switch.read import Reader
from dinnet.switch.write import Writer

PROGRAM = Program.of(dinnet_p4info())
INFO = PROGRAM.info


class Maker:
    """Draws entities that are right in most places. By a seed: hypothesis itself takes long over so many choices."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def _rarely(self) -> bool:
        return self._random.random() < 0.02

    def value(self, width: int) -> bytes:
        if self._rarely():
            return self._random.choice([b"", bytes(40), b"\xff" * 20, b"\x00\x01"])
        number = self._random.getrandbits(width) & self._random.choice([3, (1 << width) - 1])
        return to_bytes(number)

    def number(self) -> int:
        return self._random.choice([-(2**31), -1]) if self._rarely() else self._random.choice([0, 1, 2, 5, 2**31 - 1])

    def id(self, ids: Collection[int]) -> int:
        return self._random.choice([0, 1, 0xFFFFFFFF]) if self._rarely() else self._random.choice(sorted(ids))

    def match(self, field: MatchField) -> p4r.FieldMatch:
        kind = self._random.choice(list(MatchKind)) if self._rarely() else field.kind
        message = p4r.FieldMatch(field_id=99 if self._rarely() else field.id)
        value = self.value(field.width)
        if kind is MatchKind.EXACT:
            message.exact.value = value
        elif kind is MatchKind.OPTIONAL:
            message.optional.value = value
        elif kind is MatchKind.RANGE:
            message.range.low, message.range.high = b"\x00", value
        elif kind is MatchKind.TERNARY:
            message.ternary.value, message.ternary.mask = value, value
        elif kind is MatchKind.LPM:
            message.lpm.value = value
            message.lpm.prefix_len = self._random.choice([0, -1, 200]) if self._rarely() else field.width
        return message

    def entry(self, *names: str) -> p4r.TableEntry:
        ids = [INFO.table(name).id for name in names] or INFO.tables
        message = p4r.TableEntry(table_id=self.id(ids))
        table = INFO.tables.get(message.table_id) or INFO.table("microflow")
        message.match.extend(self.match(field) for field in table.fields if not self._rarely())
        if self._rarely():
            message.action.action_profile_member_id = 1
        elif not self._rarely():
            action = INFO.actions.get(self.id(INFO.actions if self._rarely() else table.actions), INFO.action("drop"))
            message.action.action.action_id = action.id
            for param in action.params:
                message.action.action.params.add(param_id=param.id, value=self.value(param.width))
        message.priority = 0 if table.has_priority is self._rarely() else self.number()
        message.idle_timeout_ns = self.number() if table.has_idle_timeout or self._rarely() else 0
        if self._random.random() < 0.2 and (table.meter or self._rarely()):
            message.meter_config.CopyFrom(self.meter())
        if self._random.random() < 0.2 and (table.counter or self._rarely()):
            message.counter_data.CopyFrom(self.count())
        message.is_const, message.is_default_action = self._rarely(), self._rarely()
        if self._rarely():
            message.time_since_last_hit.SetInParent()
        return message

    def meter(self) -> p4r.MeterConfig:
        cir, pir = sorted([self.number(), self.number()], reverse=self._rarely())
        return p4r.MeterConfig(cir=cir, cburst=self.number(), pir=pir, pburst=self.number())

    def count(self) -> p4r.CounterData:
        return p4r.CounterData(byte_count=self.number(), packet_count=self.number())

    def index(self) -> p4r.Index | None:
        return None if self._rarely() else p4r.Index(index=self.number())

    def replicas(self) -> list[p4r.Replica]:
        return [p4r.Replica(port=self.value(9), instance=self._random.getrandbits(17)) for _ in range(2)]

    def entity(self) -> p4r.Entity:
        entity = p4r.Entity()
        match self._random.randrange(9):
            case 0 | 1:
                entity.table_entry.CopyFrom(self.entry())
            case 2:
                entity.direct_counter_entry.CopyFrom(
                    p4r.DirectCounterEntry(table_entry=self.entry("exceed", "slice_select"), data=self.count())
                )
            case 3:
                entity.direct_meter_entry.CopyFrom(
                    p4r.DirectMeterEntry(table_entry=self.entry("microflow"), config=self.meter())
                )
            case 4:
                counter = p4r.CounterEntry(counter_id=self.id(INFO.counters), index=self.index(), data=self.count())
                entity.counter_entry.CopyFrom(counter)
            case 5:
                meter = p4r.MeterEntry(meter_id=self.id(INFO.meters), index=self.index(), config=self.meter())
                entity.meter_entry.CopyFrom(meter)
            case 6:
                group = p4r.MulticastGroupEntry(multicast_group_id=self.id([1, 2]), replicas=self.replicas())
                entity.packet_replication_engine_entry.multicast_group_entry.CopyFrom(group)
            case 7:
                session = p4r.CloneSessionEntry(session_id=self.id([1, 2]), replicas=self.replicas())
                session.packet_length_bytes = self.number()
                entity.packet_replication_engine_entry.clone_session_entry.CopyFrom(session)
            case _:
                entity.digest_entry.digest_id = self.id(INFO.digests)
                entity.digest_entry.config.max_list_size = self.number()
        return entity

    def updates(self, count: int) -> list[p4r.Update]:
        return [self.update() for _ in range(count)]

    def update(self) -> p4r.Update:
        entity = self.entity()
        kind = entity.WhichOneof("entity") or ""
        if self._rarely():
            type = 4
        elif kind in {"table_entry", "packet_replication_engine_entry", "digest_entry"}:
            type = self._random.choice([1, 1, 2, 3])
        else:
            type = 2
        return p4r.Update(type=type, entity=entity)  # type: ignore[arg-type]


class Switch:
    """The parts that look at entities, without a socket."""

    def __init__(self) -> None:
        self.target = MemoryTarget()
        self.target.load(PROGRAM.pipeline, keep=False)
        digests = Digests(PROGRAM, self.target, lambda *_: False)
        self.writer = Writer(PROGRAM, self.target, digests)
        self.reader = Reader(PROGRAM, self.target, digests)

    def take(self, batch: list[p4r.Update]) -> None:
        """Write a batch and read by each of its entities; the answers must be whole messages."""
        faults = self.writer.apply(batch)
        assert all(0 <= position < len(batch) for position in faults)
        for update in batch:
            try:
                answer = self.reader.select(update.entity)
            except Refused:
                continue
            for response in answer:
                response.SerializeToString()


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 1 << 64))
def test_odd_entities(seed: int) -> None:
    Switch().take(Maker(seed).updates(20))


#: Serialized updates that mean something, to be damaged.
SEEDS = [
    p4r.Update(type=1, entity=p4r.Entity(table_entry=microflow(1, metadata=b"m"))).SerializeToString(),
    p4r.Update(type=2, entity=p4r.Entity(meter_entry=p4r.MeterEntry(meter_id=SLICE_METER))).SerializeToString(),
]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(SEEDS), st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=6))
def test_damaged_bytes(seed: bytes, damage: list[tuple[int, int]]) -> None:
    data = bytearray(seed)
    for place, value in damage:
        data[place % len(data)] = value
    try:
        update = p4r.Update.FromString(bytes(data))
    except DecodeError:
        return
    Switch().take([update, update])


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 1 << 64))
def test_what_is_accepted_is_read_back(seed: int) -> None:
    """Read-write symmetry: what is read can be deleted and inserted again, and then reads the same."""
    switch = Switch()
    inserts = [p4r.Update(type=1, entity=p4r.Entity(table_entry=Maker(seed + n).entry())) for n in range(10)]
    accepted = len(inserts) - len(switch.writer.apply(inserts))
    everything = p4r.Entity(table_entry=p4r.TableEntry(meter_config=p4r.MeterConfig()))
    found = [entity for response in switch.reader.select(everything) for entity in response.entities]
    assert len(found) == accepted
    assert not switch.writer.apply([p4r.Update(type=3, entity=entity) for entity in found])
    assert not switch.writer.apply([p4r.Update(type=1, entity=entity) for entity in found])
    assert [entity for response in switch.reader.select(everything) for entity in response.entities] == found


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with controlled() as (_, client):
        yield client


METHODS = ["Write", "Read", "SetForwardingPipelineConfig", "GetForwardingPipelineConfig", "Capabilities"]


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(METHODS), st.binary(max_size=60))
def test_arbitrary_bytes_over_the_socket(client: Client, method: str, data: bytes) -> None:
    """Nothing but gRPC's own codes comes back, and the server still answers."""
    path = f"/p4.v1.P4Runtime/{method}"
    channel = client.channel
    call = channel.unary_stream(path) if method == "Read" else channel.unary_unary(path)
    try:
        answer = call(data, timeout=10)
        if method == "Read":
            list(answer)
    except grpc.RpcError as error:
        assert error.code() not in {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE}
        assert "Traceback" not in (error.details() or "")
    client.stub.Capabilities(p4r.CapabilitiesRequest(), timeout=10)


def test_a_stream_of_nonsense_ends_that_stream_only(client: Client) -> None:
    call = client.channel.stream_stream("/p4.v1.P4Runtime/StreamChannel")
    with pytest.raises(grpc.RpcError):
        list(call(iter([b"\xff\xff\xff"]), timeout=10))
    assert client.results() == []
