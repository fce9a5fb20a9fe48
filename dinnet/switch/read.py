"""Read: what the filters of a request select, as messages that fit gRPC's limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol, TypeVar

from finsy.proto import p4r

from dinnet.switch.codes import Code, Refused, invalid
from dinnet.switch.entries import EntryCodec, no_color_counters
from dinnet.switch.p4info import Table
from dinnet.switch.program import Program
from dinnet.switch.resources import (
    fill_counter_data,
    fill_group,
    fill_meter_config,
    fill_session,
    parse_cells,
)
from dinnet.switch.roles import ALL_RIGHTS, Rights
from dinnet.switch.target import Entry, Target

#: Entities put into one message before its size is looked at.
PIECE: Final = 512
#: Bytes of a message, where its entities can be told apart; clients take 4 MiB at least.
MAX_BYTES: Final = 2 << 20

Answer = Iterator[p4r.ReadResponse]
_Selected = tuple[EntryCodec, Sequence[Entry]]


class DigestState(Protocol):
    """Where a Read finds the digests' configurations."""

    def configured(self, digest_id: int) -> Sequence[p4r.DigestEntry]:
        """That digest's; 0: all."""


class Reader:
    """Answers requests, each in two steps: `select` looks at the state at once, iterating builds the messages."""

    def __init__(self, program: Program, target: Target, digests: DigestState, rights: Rights = ALL_RIGHTS) -> None:
        self._program = program
        self._target = target
        self._digests = digests
        self._rights = rights

    def select(self, entity: p4r.Entity) -> Answer:
        """What one request selects.

        Raises:
            Refused: The request is invalid or asks for something that is not there.
        """
        match entity.WhichOneof("entity"):
            case "table_entry":
                return self._table_entries(entity.table_entry)
            case "direct_counter_entry":
                return self._direct_counters(entity.direct_counter_entry)
            case "direct_meter_entry":
                return self._direct_meters(entity.direct_meter_entry)
            case "counter_entry":
                return self._counters(entity.counter_entry)
            case "meter_entry":
                return self._meters(entity.meter_entry)
            case "packet_replication_engine_entry":
                return self._replication(entity.packet_replication_engine_entry)
            case "digest_entry":
                return self._digest_entries(entity.digest_entry)
            case None:
                raise invalid("the request has no entity")
            case kind:
                # A wildcard read of everything names kinds that this switch has none of.
                if not any(value for _, value in getattr(entity, kind).ListFields()):
                    return iter(())
                raise Refused(Code.UNIMPLEMENTED, f"reading a {kind} is not served")

    # Tables.

    def _codecs(self, table_id: int) -> list[EntryCodec]:
        if table_id:
            return [self._program.table(table_id)]
        return list(self._program.codecs.values())

    def _selected(self, message: p4r.TableEntry) -> list[_Selected]:
        """The entries that a filter selects, by table."""
        if not message.table_id and message.match:
            raise invalid("a match needs a table")
        return [
            (codec, self._of_table(codec, message))
            for codec in self._codecs(message.table_id)
            if self._rights.covers(codec.table.id)
        ]

    def _of_table(self, codec: EntryCodec, message: p4r.TableEntry) -> Sequence[Entry]:
        table, priority = codec.table, message.priority
        entries: Sequence[Entry]
        if message.is_default_action:
            if message.match or priority:
                raise invalid("a default entry has no match and no priority")
            entries = [self._target.default(table)]
        elif message.match:
            match = codec.parse_match(message.match)
            if table.has_priority and not priority:
                entries = [entry for entry in self._target.entries(table) if entry.match == match]
            else:
                found = self._target.find(table, Entry(match, priority).key)
                entries = [found] if found is not None else []
        else:
            entries = self._target.entries(table)
            if priority:
                entries = [entry for entry in entries if entry.priority == priority]
        action_id = message.action.action.action_id
        if action_id:
            entries = [entry for entry in entries if entry.action_id == action_id]
        if message.metadata:
            entries = [entry for entry in entries if entry.metadata == message.metadata]
        if message.controller_metadata:
            entries = [entry for entry in entries if entry.controller_metadata == message.controller_metadata]
        return entries

    def _table_entries(self, message: p4r.TableEntry) -> Answer:
        if message.HasField("meter_counter_data"):
            raise no_color_counters()
        selected = self._selected(message)
        with_meter, with_counter = message.HasField("meter_config"), message.HasField("counter_data")
        with_time = message.HasField("time_since_last_hit")
        if with_time and message.table_id and not self._program.table(message.table_id).table.has_idle_timeout:
            raise invalid("the table has no idle time-outs")

        def build() -> Answer:
            for codec, entries in selected:
                table = codec.table
                fill = codec.fill
                for piece in _pieces(entries):
                    response = p4r.ReadResponse()
                    add = response.entities.add
                    messages = [add().table_entry for _ in piece]
                    for item, entry in zip(messages, piece, strict=True):
                        fill(item, entry, with_meter=with_meter)
                    if with_counter and table.counter is not None:
                        counts = self._target.read_direct_counters(table, piece)
                        for item, count in zip(messages, counts, strict=True):
                            fill_counter_data(item.counter_data, count)
                    if with_time and table.has_idle_timeout and not message.is_default_action:
                        for item, idle_ns in zip(messages, self._target.idle_ns(table, piece), strict=True):
                            item.time_since_last_hit.elapsed_ns = idle_ns
                    yield response

        return build()

    def _direct(self, message: p4r.TableEntry, has: Callable[[Table], bool]) -> list[_Selected]:
        """Entries whose direct resources are read, for tables that have them."""
        selected = [(codec, entries) for codec, entries in self._selected(message) if has(codec.table)]
        if message.table_id and not selected:
            raise invalid(f"table {message.table_id:#x} has no such direct resource")
        if message.match and not any(entries for _, entries in selected):
            raise Refused(Code.NOT_FOUND, "there is no such entry")
        return selected

    def _direct_counters(self, message: p4r.DirectCounterEntry) -> Answer:
        selected = self._direct(message.table_entry, lambda table: table.counter is not None)

        def build() -> Answer:
            for codec, entries in selected:
                for piece in _pieces(entries):
                    response = p4r.ReadResponse()
                    counts = self._target.read_direct_counters(codec.table, piece)
                    for entry, count in zip(piece, counts, strict=True):
                        item = response.entities.add().direct_counter_entry
                        codec.fill_key(item.table_entry, entry)
                        fill_counter_data(item.data, count)
                    yield response

        return build()

    def _direct_meters(self, message: p4r.DirectMeterEntry) -> Answer:
        if message.HasField("counter_data"):
            raise no_color_counters()
        selected = self._direct(message.table_entry, lambda table: table.meter is not None)

        def build() -> Answer:
            for codec, entries in selected:
                for piece in _pieces(entries):
                    response = p4r.ReadResponse()
                    for entry in piece:
                        item = response.entities.add().direct_meter_entry
                        codec.fill_key(item.table_entry, entry)
                        if entry.meter is not None:
                            fill_meter_config(item.config, entry.meter)
                    yield response

        return build()

    # Indexed resources.

    def _counters(self, message: p4r.CounterEntry) -> Answer:
        counters = self._program.info.counters.values()
        wanted = [self._program.counter(message.counter_id)] if message.counter_id else list(counters)
        index = message.index if message.HasField("index") and message.counter_id else None
        cells = [(c, *parse_cells(c.name, c.size, index)) for c in wanted if self._rights.covers(c.id)]
        taken = [(c, first, self._target.read_counters(c, first, count)) for c, first, count in cells]

        def build() -> Answer:
            for counter, first, values in taken:
                for place, piece in _numbered_pieces(first, values):
                    response = p4r.ReadResponse()
                    for cell, data in enumerate(piece, place):
                        item = response.entities.add().counter_entry
                        item.counter_id = counter.id
                        item.index.index = cell
                        fill_counter_data(item.data, data)
                    yield response

        return build()

    def _meters(self, message: p4r.MeterEntry) -> Answer:
        if message.HasField("counter_data"):
            raise no_color_counters()
        meters = self._program.info.meters.values()
        wanted = [self._program.meter(message.meter_id)] if message.meter_id else list(meters)
        index = message.index if message.HasField("index") and message.meter_id else None
        cells = [(m, *parse_cells(m.name, m.size, index)) for m in wanted if self._rights.covers(m.id)]
        taken = [(m, first, self._target.read_meters(m, first, count)) for m, first, count in cells]

        def build() -> Answer:
            for meter, first, values in taken:
                for place, piece in _numbered_pieces(first, values):
                    response = p4r.ReadResponse()
                    for cell, config in enumerate(piece, place):
                        item = response.entities.add().meter_entry
                        item.meter_id = meter.id
                        item.index.index = cell
                        if config is not None:
                            fill_meter_config(item.config, config)
                    yield response

        return build()

    # The rest.

    def _replication(self, message: p4r.PacketReplicationEngineEntry) -> Answer:
        response = p4r.ReadResponse()
        match message.WhichOneof("type"):
            case "multicast_group_entry":
                id = message.multicast_group_entry.multicast_group_id
                for group in _wanted(id, self._target.groups()):
                    entry = response.entities.add().packet_replication_engine_entry
                    fill_group(entry.multicast_group_entry, group)
            case "clone_session_entry":
                id = message.clone_session_entry.session_id
                for session in _wanted(id, self._target.sessions()):
                    entry = response.entities.add().packet_replication_engine_entry
                    fill_session(entry.clone_session_entry, session)
            case _:
                raise invalid("the entity is neither a multicast group nor a clone session")
        return iter([response])

    def _digest_entries(self, message: p4r.DigestEntry) -> Answer:
        if message.digest_id:
            self._program.digest(message.digest_id)
        entries = self._digests.configured(message.digest_id)
        entities = [p4r.Entity(digest_entry=entry) for entry in entries if self._rights.covers(entry.digest_id)]
        return iter([p4r.ReadResponse(entities=entities)])


def fitting(response: p4r.ReadResponse) -> Answer:
    """A response in parts that are below MAX_BYTES, as far as whole entities allow."""
    count = len(response.entities)
    if not count:
        return
    if count == 1 or response.ByteSize() <= MAX_BYTES:
        yield response
        return
    half = count // 2
    yield from fitting(p4r.ReadResponse(entities=response.entities[:half]))
    yield from fitting(p4r.ReadResponse(entities=response.entities[half:]))


_Item = TypeVar("_Item")


def _pieces(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    for start in range(0, len(items), PIECE):
        yield items[start : start + PIECE]


def _numbered_pieces(first: int, items: Sequence[_Item]) -> Iterator[tuple[int, Sequence[_Item]]]:
    for start in range(0, len(items), PIECE):
        yield first + start, items[start : start + PIECE]


def _wanted(id: int, present: Mapping[int, _Item]) -> list[_Item]:
    """The one with that id, if it is there; 0: all."""
    if not id:
        return list(present.values())
    return [present[id]] if id in present else []
