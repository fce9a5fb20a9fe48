"""A session with one switch: who is primary, which program runs, and what is in its tables."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import grpc
from finsy import GRPCStatusCode as Code
from finsy.p4client import P4ClientError
from finsy.proto import U128, p4r

from dinnet.dataplane.client import Client, ClientTls
from dinnet.dataplane.codec import Codec
from dinnet.dataplane.diff import Changes, difference
from dinnet.dataplane.digests import DigestDecoder, FlowRecords
from dinnet.dataplane.entity import Count, Entity, MeterCell
from dinnet.dataplane.errors import Failure, SessionLost, WriteFailed, refused
from dinnet.dataplane.program import Program
from dinnet.switch.bytestrings import to_bytes

_log: Final = logging.getLogger(__name__)
_Config = p4r.SetForwardingPipelineConfigRequest
_Batch = list[tuple[p4r.Update.Type.ValueType, Entity]]
_SENT_S: Final = 0.0005  # in which the event loop, which takes several turns for it, sends a request
_ROUNDED: Final = 0.01  # by which a switch may round the rates of meters
_UPDATE_BYTES: Final = 16  # around an entity, at most


@dataclass(frozen=True, slots=True)
class SessionOptions:
    device_id: int = 1
    election_id: int = 1  # the highest of a role's clients is primary; 0: only reads
    role: str = ""
    tls: ClientTls | None = None
    call_timeout_s: float = 30.0
    batch_updates: int = 1000  # of one Write
    batch_bytes: int = 1 << 20  # of one Write; switches take 4 MiB
    queue_size: int = 4096  # digest lists and packets that wait to be taken; more are dropped and counted


@dataclass(frozen=True, slots=True)
class PacketIn:
    payload: bytes
    ingress_port: int


class Session:
    """What `connected` gives. One task reads the stream; everything else is called from the same event loop."""

    def __init__(self, address: str, program: Program, options: SessionOptions) -> None:
        self.address = address
        self.program = program
        self.options = options
        self._own_id = options.election_id
        self.codec = Codec(program)
        self.is_primary = False
        self.is_vacant = False  # no client is primary
        self.highest_id = 0  # of all election ids that the switch has seen
        self.dropped = 0  # messages that nobody took in time
        self.digests: asyncio.Queue[FlowRecords] = asyncio.Queue(options.queue_size)
        self.packets: asyncio.Queue[PacketIn] = asyncio.Queue(options.queue_size)
        self.idle: asyncio.Queue[Entity] = asyncio.Queue(options.queue_size)
        self._decoders = {id: DigestDecoder(digest) for id, digest in program.info.digests.items()}
        self._client = Client(address, options.tls, options.call_timeout_s)
        self._arbitrated = asyncio.Condition()
        self._rounds = 0
        self._reader: asyncio.Task[None] | None = None

    # Connection and arbitration.

    async def open(self) -> None:
        """Connect and take part in the election.

        Raises:
            SessionLost: The switch cannot be reached, or refuses this client.
        """
        await self._client.open()
        try:
            await self._arbitrate()
            self._reader = asyncio.create_task(self._read())
            await self._await_arbitration(lambda: self._rounds > 0)
        except P4ClientError as error:
            await self.close()
            raise SessionLost(f"{self.address}: {_plain(error)}") from error
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            with suppress(asyncio.CancelledError, SessionLost):
                await self._reader
            self._reader = None
        await self._client.close()

    async def until_primary(self) -> None:
        """Wait until this client is the one that may write.

        Raises:
            SessionLost: The connection broke.
        """
        await self._await_arbitration(lambda: self.is_primary)

    async def compete(self) -> None:
        """Wait until this client is primary, and step in where none is.

        A switch takes no client below the highest election id it has ever seen (specification, "Arbitration"), so who
        steps in goes above it by its own id: of several standbys the one with the highest id of its own wins.

        Raises:
            SessionLost: The connection broke.
        """
        while not self.is_primary:
            await self._await_arbitration(lambda: self.is_primary or self.is_vacant)
            if not self.is_primary:
                await self.set_election_id(self.highest_id + self._own_id)

    async def until_standby(self) -> None:
        """Wait until another client is primary, or none.

        Raises:
            SessionLost: The connection broke.
        """
        await self._await_arbitration(lambda: not self.is_primary)

    async def wait_lost(self) -> None:
        """Wait until the connection breaks; raises SessionLost then."""
        assert self._reader is not None
        await asyncio.shield(self._reader)

    async def set_election_id(self, election_id: int) -> None:
        """Take part with another election id: higher to become primary, lower to give way."""
        self.options = replace(self.options, election_id=election_id)
        rounds = self._rounds
        await self._arbitrate()
        await self._await_arbitration(lambda: self._rounds > rounds)

    async def _arbitrate(self) -> None:
        update = p4r.MasterArbitrationUpdate(device_id=self.options.device_id)
        if self.options.election_id:
            update.election_id.CopyFrom(U128.encode(self.options.election_id))
        if self.options.role:
            update.role.name = self.options.role
        await self._client.send(p4r.StreamMessageRequest(arbitration=update))

    async def _await_arbitration(self, condition: Any) -> None:
        async with self._arbitrated:
            await self._arbitrated.wait_for(lambda: condition() or self._is_lost())
        if not condition():
            assert self._reader is not None
            await self._reader

    def _is_lost(self) -> bool:
        return self._reader is not None and self._reader.done()

    async def _read(self) -> None:
        try:
            while True:
                await self._take(await self._client.receive())
        except P4ClientError as error:
            raise SessionLost(f"{self.address}: {_plain(error)}") from error
        except RuntimeError as error:  # finsy's word for the end of the stream
            raise SessionLost(f"{self.address}: the switch ended the session") from error
        finally:
            self.is_primary = self.is_vacant = False
            asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(self._tell()))

    async def _tell(self) -> None:
        async with self._arbitrated:
            self._arbitrated.notify_all()

    async def _take(self, message: p4r.StreamMessageResponse) -> None:
        match message.WhichOneof("update"):
            case "arbitration":
                self._rounds += 1
                self.is_primary = message.arbitration.status.code == Code.OK
                self.is_vacant = message.arbitration.status.code == Code.NOT_FOUND
                self.highest_id = U128.decode(message.arbitration.election_id)
                await self._tell()
            case "digest":
                await self._take_digests(message.digest)
            case "packet":
                self._put(self.packets, PacketIn(message.packet.payload, self._ingress_port(message.packet)))
            case "idle_timeout_notification":
                for entry in message.idle_timeout_notification.table_entry:
                    entity = self.codec.decode(p4r.Entity(table_entry=entry))
                    if entity is not None:
                        self._put(self.idle, entity)
            case "error":
                _log.warning("%s: %s", self.address, message.error.message)

    async def _take_digests(self, listed: p4r.DigestList) -> None:
        decoder = self._decoders.get(listed.digest_id)
        if decoder is not None:
            self._put(self.digests, decoder.decode_list(listed))
        ack = p4r.DigestListAck(digest_id=listed.digest_id, list_id=listed.list_id)
        await self._client.send(p4r.StreamMessageRequest(digest_ack=ack))

    def _put(self, queue: asyncio.Queue[Any], item: Any) -> None:
        try:
            queue.put_nowait(item)
        except asyncio.QueueFull:
            self.dropped += 1

    # The pipeline.

    async def ensure_pipeline(self) -> bool:
        """Bring the program into force where another one runs; entries stay where they fit. Whether it was needed.

        Raises:
            SessionLost: The switch refuses the program.
        """
        there = await self.running_cookie()
        if there == self.program.cookie:
            return False
        try:
            await self._set_pipeline(_Config.RECONCILE_AND_COMMIT if there is not None else _Config.VERIFY_AND_COMMIT)
        except P4ClientError as error:
            if there is None:
                raise SessionLost(f"{self.address}: cannot set the pipeline: {_plain(error)}") from error
            await self.replace_pipeline()
        return True

    async def replace_pipeline(self) -> None:
        """Bring the program into force with empty tables.

        Raises:
            SessionLost: The switch refuses the program.
        """
        try:
            await self._set_pipeline(_Config.VERIFY_AND_COMMIT)
        except P4ClientError as error:
            raise SessionLost(f"{self.address}: cannot set the pipeline: {_plain(error)}") from error

    async def running_cookie(self) -> int | None:
        """The cookie of the program in force; None: there is none, or it has no cookie."""
        request = p4r.GetForwardingPipelineConfigRequest(
            device_id=self.options.device_id,
            response_type=p4r.GetForwardingPipelineConfigRequest.COOKIE_ONLY,
        )
        try:
            answer = await self._client.call("GetForwardingPipelineConfig", request)
        except P4ClientError as error:
            if error.code == Code.FAILED_PRECONDITION:
                return None
            raise refused(self.address, "read the pipeline's cookie", error) from error
        return int(answer.config.cookie.cookie) if answer.config.HasField("cookie") else None

    async def _set_pipeline(self, action: Any) -> None:
        request = _Config(device_id=self.options.device_id, role=self.options.role, action=action)
        request.election_id.CopyFrom(U128.encode(self.options.election_id))
        request.config.p4info.CopyFrom(self.program.message)
        request.config.p4_device_config = self.program.device_config
        request.config.cookie.cookie = self.program.cookie
        await self._client.call("SetForwardingPipelineConfig", request)

    # Writing.

    async def insert(self, entities: Iterable[Entity]) -> None:
        await self.apply(Changes(insert=tuple(entities)))

    async def modify(self, entities: Iterable[Entity]) -> None:
        await self.apply(Changes(modify=tuple(entities)))

    async def delete(self, entities: Iterable[Entity]) -> None:
        await self.apply(Changes(delete=tuple(entities)))

    async def apply(self, changes: Changes) -> None:
        """Write changes: deletions first, so that there is room, in batches within the limits of messages.

        A batch that fails in part does not keep the others back.

        Raises:
            WriteFailed: Some were refused; names each of them and why.
            CodecError: An entity does not fit the program; nothing of its batch was written.
            SessionLost: The connection broke; what was written until then stays.
        """
        failures: list[Failure] = []
        left = len(changes)
        under_way: asyncio.Task[list[Failure]] | None = None
        try:
            for request, batch in self._batches(changes):
                # A batch is made while the switch works on the one before it.
                if under_way is not None:
                    failures += await under_way
                left -= len(batch)
                if left:
                    under_way = asyncio.create_task(self._write(request, batch))
                    await asyncio.sleep(_SENT_S)
                else:
                    under_way = None
                    failures += await self._write(request, batch)
        finally:
            if under_way is not None:
                under_way.cancel()
                with suppress(asyncio.CancelledError, SessionLost):
                    await under_way
        if failures:
            raise WriteFailed(self.address, failures)

    def _batches(self, changes: Changes) -> Iterator[tuple[p4r.WriteRequest, _Batch]]:
        """The changes as requests within the limits of messages, each with what is in it."""
        batch: _Batch = []
        request, size = self._write_request(), 0
        for type, entities in (
            (p4r.Update.DELETE, changes.delete),
            (p4r.Update.INSERT, changes.insert),
            (p4r.Update.MODIFY, changes.modify),
        ):
            encode = self.codec.key_only if type == p4r.Update.DELETE else self.codec.encode
            for entity in entities:
                message = encode(entity)
                bytes = message.ByteSize() + _UPDATE_BYTES
                if batch and (len(batch) >= self.options.batch_updates or size + bytes > self.options.batch_bytes):
                    yield request, batch
                    batch, request, size = [], self._write_request(), 0
                batch.append((type, entity))
                request.updates.add(type=type, entity=message)
                size += bytes
        if batch:
            yield request, batch

    def _write_request(self) -> p4r.WriteRequest:
        request = p4r.WriteRequest(device_id=self.options.device_id, role=self.options.role)
        request.election_id.CopyFrom(U128.encode(self.options.election_id))
        return request

    async def _write(self, request: p4r.WriteRequest, batch: _Batch) -> list[Failure]:
        try:
            await self._client.call("Write", request)
        except P4ClientError as error:
            if not error.details:
                raise refused(self.address, f"write {batch[0][1]} and {len(batch) - 1} others", error) from error
            names = {p4r.Update.INSERT: "insert", p4r.Update.MODIFY: "modify", p4r.Update.DELETE: "delete"}
            return [
                Failure(names[batch[place][0]], batch[place][1], each.canonical_code.name, each.message)
                for place, each in error.details.items()
            ]
        return []

    async def reconcile(self, desired: Iterable[Entity], without: Collection[str] = ()) -> Changes:
        """Make the switch have exactly these entities, with the fewest changes; returns them.

        Defaults that nothing is said about become what the program begins with; meter cells become green. The tables
        `without` are somebody else's: they stay as they are.

        Raises:
            WriteFailed: Some changes were refused.
        """
        changes = await self.changes_to(desired, without)
        await self.apply(changes)
        return changes

    async def changes_to(self, desired: Iterable[Entity], without: Collection[str] = ()) -> Changes:
        """What `reconcile` would do. Nothing is written."""
        wanted = list(desired)
        said = {entity.key for entity in wanted}
        observed = await self.entities(without)
        tables = [table.alias for table in self.program.info.tables.values() if table.alias not in without]
        begin = [self.codec.default_of(table) for table in tables]
        wanted += [default for default in begin if default is not None and default.key not in said]
        wanted += [
            MeterCell(each.meter, each.index, None)
            for each in observed
            if isinstance(each, MeterCell) and each.rates is not None and each.key not in said
        ]
        return difference(_settled(wanted, observed), observed)

    # Reading.

    async def entities(self, without: Collection[str] = ()) -> list[Entity]:
        """Everything that the switch has, but the tables `without`: entries, defaults, groups, meter cells, digests."""
        asked: list[p4r.Entity] = []
        for table in self.program.info.tables.values():
            if table.alias in without:
                continue
            entry = p4r.TableEntry(table_id=table.id)
            if table.meter is not None:
                entry.meter_config.SetInParent()
            asked.append(p4r.Entity(table_entry=entry))
            if not table.const_default:
                asked.append(p4r.Entity(table_entry=p4r.TableEntry(table_id=table.id, is_default_action=True)))
        asked += [p4r.Entity(meter_entry=p4r.MeterEntry(meter_id=id)) for id in self.program.info.meters]
        group = p4r.Entity()
        group.packet_replication_engine_entry.multicast_group_entry.SetInParent()
        asked.append(group)
        session = p4r.Entity()
        session.packet_replication_engine_entry.clone_session_entry.SetInParent()
        asked.append(session)
        asked += [p4r.Entity(digest_entry=p4r.DigestEntry(digest_id=id)) for id in self.program.info.digests]
        found = []
        async for message in self._read_entities(asked):
            if message.HasField("meter_entry") and not message.meter_entry.HasField("config"):
                continue
            if (entity := self.codec.decode(message)) is not None:
                found.append(entity)
        return found

    async def entries(self, table: str) -> list[Entity]:
        """The entries of one table."""
        entry = p4r.TableEntry(table_id=self.codec.table(table).id)
        if self.codec.table(table).meter is not None:
            entry.meter_config.SetInParent()
        asked = [p4r.Entity(table_entry=entry)]
        decoded = [self.codec.decode(message) async for message in self._read_entities(asked)]
        return [entity for entity in decoded if entity is not None]

    async def counters(self, name: str) -> list[Count]:
        """All cells of an indexed counter, by the last part of its name."""
        id = next(id for id, view in self.program.info.counters.items() if view.name.rpartition(".")[2] == name)
        size = self.program.info.counters[id].size
        cells = [Count()] * size
        async for message in self._read_entities([p4r.Entity(counter_entry=p4r.CounterEntry(counter_id=id))]):
            data = message.counter_entry.data
            cells[message.counter_entry.index.index] = Count(data.packet_count, data.byte_count)
        return cells

    async def direct_counters(self, table: str) -> dict[tuple[object, ...], Count]:
        """The counters of a table's entries, by `TableEntry.key`."""
        entry = p4r.TableEntry(table_id=self.codec.table(table).id)
        entry.counter_data.SetInParent()
        found = {}
        async for message in self._read_entities([p4r.Entity(table_entry=entry)]):
            entity = self.codec.decode(message)
            if entity is not None:
                data = message.table_entry.counter_data
                found[entity.key] = Count(data.packet_count, data.byte_count)
        return found

    async def _read_entities(self, asked: list[p4r.Entity]) -> AsyncIterator[p4r.Entity]:
        request = p4r.ReadRequest(device_id=self.options.device_id, role=self.options.role, entities=asked)
        try:
            async for answer in self._client.stream("Read", request):
                for entity in answer.entities:
                    yield entity
        except grpc.RpcError as error:
            raise refused(self.address, "read", P4ClientError(error, "Read")) from None

    # Packets.

    async def send_packet(self, payload: bytes, egress_port: int) -> None:
        """A packet of the controller's, out of a port. The program's NO_PORT: as if it had come in."""
        header = self.program.info.packet_out
        assert header is not None
        packet = p4r.PacketOut(payload=payload)
        for field in header.fields:
            value = egress_port if field.name == "egress_port" else 0
            packet.metadata.add(metadata_id=field.id, value=to_bytes(value))
        await self._client.send(p4r.StreamMessageRequest(packet=packet))

    def _ingress_port(self, packet: p4r.PacketIn) -> int:
        header = self.program.info.packet_in
        ids = [field.id for field in header.fields if field.name == "ingress_port"] if header else []
        return next((int.from_bytes(m.value, "big") for m in packet.metadata if m.metadata_id in ids), 0)


@asynccontextmanager
async def connected(address: str, program: Program, options: SessionOptions | None = None) -> AsyncIterator[Session]:
    """A session until the block ends. Whether it is primary is the election's matter: see `Session.is_primary`.

    Raises:
        SessionLost: The switch cannot be reached, or refuses this client.
    """
    session = Session(address, program, options or SessionOptions())
    await session.open()
    try:
        yield session
    finally:
        await session.close()


def _settled(wanted: Iterable[Entity], observed: Iterable[Entity]) -> list[Entity]:
    """The wanted entities, with a meter's rates as the switch rounded them: else it would be written for ever."""
    there = {each.key: each for each in observed if isinstance(each, MeterCell)}
    found: list[Entity] = []
    for each in wanted:
        other = there.get(each.key) if isinstance(each, MeterCell) else None
        is_rounded = (
            isinstance(each, MeterCell)
            and other is not None
            and each.rates is not None
            and other.rates is not None
            and all(abs(a - b) <= a * _ROUNDED for a, b in zip(each.rates, other.rates, strict=True))
        )
        found.append(other if other is not None and is_rounded else each)
    return found


def _plain(error: P4ClientError) -> str:
    return f"{error.code.name}: {error.message}"
