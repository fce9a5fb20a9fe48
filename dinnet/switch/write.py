"""Write: a batch of updates becomes batches of the target, and every update gets its result."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from finsy.proto import p4r

from dinnet.switch.codes import Code, Refused, invalid
from dinnet.switch.entries import EntryCodec, no_color_counters
from dinnet.switch.program import Program
from dinnet.switch.resources import (
    parse_cells,
    parse_counter_data,
    parse_group,
    parse_meter_config,
    parse_session,
)
from dinnet.switch.roles import ALL_RIGHTS, Rights
from dinnet.switch.target import Entry, Faults, Target

INSERT: Final = p4r.Update.INSERT
MODIFY: Final = p4r.Update.MODIFY
DELETE: Final = p4r.Update.DELETE


class DigestSettings(Protocol):
    """Where a Write configures digests."""

    def configure(self, type: int, message: p4r.DigestEntry) -> None:
        """Raises `Refused`."""


@dataclass(slots=True)
class _Run:
    """Changes of one kind to one table that the target will get at once."""

    type: int
    positions: list[int] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)


class Writer:
    """Applies updates, in their order as far as it shows: changes to one table keep theirs."""

    def __init__(self, program: Program, target: Target, digests: DigestSettings, rights: Rights = ALL_RIGHTS) -> None:
        self._program = program
        self._target = target
        self._digests = digests
        self._rights = rights
        self._runs: dict[int, _Run] = {}
        self._faults: Faults = {}

    def apply(self, updates: Sequence[p4r.Update]) -> Faults:
        """Attempt every update; what failed, by position."""
        self._faults = faults = {}
        runs = self._runs
        codecs = self._program.codecs
        rights = self._rights
        for position, update in enumerate(updates):
            try:
                type, entity = update.type, update.entity
                if entity.WhichOneof("entity") != "table_entry":
                    self._apply_other(type, entity)
                    continue
                message = entity.table_entry
                id = message.table_id
                codec = codecs.get(id) or self._program.table(id)
                if rights.ids is not None and id not in rights.ids:
                    raise _forbidden(id)
                if message.is_default_action:
                    self._flush(id)
                    self._apply_default(type, codec, message)
                    continue
                if type == DELETE:
                    if message.is_const or not codec.is_plain:
                        codec.refuse_delete(message)
                    entry = codec.parse_key(message)
                elif type in {INSERT, MODIFY}:
                    entry = codec.parse(message, is_new=type == INSERT)
                else:
                    raise invalid("the update says neither insert, modify nor delete")
                run = runs.get(id)
                if run is None or run.type != type:
                    if run is not None:
                        self._flush(id)
                    run = runs[id] = _Run(type)
                run.positions.append(position)
                run.entries.append(entry)
            except Refused as error:
                faults[position] = error.fault
        for id in list(runs):
            self._flush(id)
        return faults

    def _flush(self, table_id: int) -> None:
        """Hand the target what is waiting for a table."""
        run = self._runs.pop(table_id, None)
        if run is None:
            return
        table = self._program.info.tables[table_id]
        try:
            if run.type == INSERT:
                failed = self._target.insert(table, run.entries)
            elif run.type == MODIFY:
                failed = self._target.modify(table, run.entries)
            else:
                failed = self._target.delete(table, run.entries)
        except Refused as error:
            failed = dict.fromkeys(range(len(run.entries)), error.fault)
        for at, fault in failed.items():
            self._faults[run.positions[at]] = fault

    def _apply_default(self, type: int, codec: EntryCodec, message: p4r.TableEntry) -> None:
        if type != MODIFY:
            raise invalid("a default entry is always there: it can only be modified")
        self._target.set_default(codec.table, codec.parse_default(message))

    def _apply_other(self, type: int, entity: p4r.Entity) -> None:
        match entity.WhichOneof("entity"):
            case "direct_counter_entry":
                self._apply_direct_counter(type, entity.direct_counter_entry)
            case "direct_meter_entry":
                self._apply_direct_meter(type, entity.direct_meter_entry)
            case "counter_entry":
                self._apply_counter(type, entity.counter_entry)
            case "meter_entry":
                self._apply_meter(type, entity.meter_entry)
            case "packet_replication_engine_entry":
                self._apply_replication(type, entity.packet_replication_engine_entry)
            case "digest_entry":
                self._check_right(entity.digest_entry.digest_id)
                self._digests.configure(type, entity.digest_entry)
            case None:
                raise invalid("the update has no entity")
            case kind:
                raise Refused(Code.UNIMPLEMENTED, f"writing a {kind} is not served")

    def _check_right(self, id: int) -> None:
        if not self._rights.covers(id):
            raise _forbidden(id)

    def _direct(self, type: int, message: p4r.TableEntry) -> tuple[EntryCodec, Entry]:
        """The table and the entry that a direct resource belongs to, after all that was before."""
        if type != MODIFY:
            raise invalid("a direct resource comes and goes with its entry: it can only be modified")
        codec = self._program.table(message.table_id)
        self._check_right(message.table_id)
        self._flush(message.table_id)
        return codec, Entry(()) if message.is_default_action else codec.parse_key(message)

    def _apply_direct_counter(self, type: int, message: p4r.DirectCounterEntry) -> None:
        codec, entry = self._direct(type, message.table_entry)
        if codec.table.counter is None:
            raise invalid(f"{codec.table.name} has no direct counter")
        if message.HasField("data"):
            data = parse_counter_data(message.data)
            _raise_first(self._target.write_direct_counters(codec.table, [(entry, data)]))
        elif entry.match and self._target.find(codec.table, entry.key) is None:
            raise Refused(Code.NOT_FOUND, "there is no such entry")

    def _apply_direct_meter(self, type: int, message: p4r.DirectMeterEntry) -> None:
        codec, entry = self._direct(type, message.table_entry)
        if codec.table.meter is None:
            raise invalid(f"{codec.table.name} has no direct meter")
        if message.HasField("counter_data"):
            raise no_color_counters()
        config = parse_meter_config(codec.table.meter, message.config) if message.HasField("config") else None
        _raise_first(self._target.write_direct_meters(codec.table, [(entry, config)]))

    def _apply_counter(self, type: int, message: p4r.CounterEntry) -> None:
        counter = self._program.counter(message.counter_id)
        self._check_right(counter.id)
        if type != MODIFY:
            raise invalid("an indexed counter can only be modified")
        first, count = parse_cells(counter.name, counter.size, message.index if message.HasField("index") else None)
        if message.HasField("data"):
            self._target.write_counters(counter, first, [parse_counter_data(message.data)] * count)

    def _apply_meter(self, type: int, message: p4r.MeterEntry) -> None:
        meter = self._program.meter(message.meter_id)
        self._check_right(meter.id)
        if type != MODIFY:
            raise invalid("an indexed meter can only be modified")
        if message.HasField("counter_data"):
            raise no_color_counters()
        first, count = parse_cells(meter.name, meter.size, message.index if message.HasField("index") else None)
        config = parse_meter_config(meter, message.config) if message.HasField("config") else None
        self._target.write_meters(meter, first, [config] * count)

    def _apply_replication(self, type: int, message: p4r.PacketReplicationEngineEntry) -> None:
        match message.WhichOneof("type"):
            case "multicast_group_entry":
                group = message.multicast_group_entry
                _check_presence(type, group.multicast_group_id, self._target.groups())
                if type == DELETE:
                    self._target.remove_group(group.multicast_group_id)
                else:
                    self._target.set_group(parse_group(group))
            case "clone_session_entry":
                session = message.clone_session_entry
                _check_presence(type, session.session_id, self._target.sessions())
                if type == DELETE:
                    self._target.remove_session(session.session_id)
                else:
                    self._target.set_session(parse_session(session))
            case _:
                raise invalid("the entity is neither a multicast group nor a clone session")


def _check_presence(type: int, id: int, present: Container[int]) -> None:
    """Refuse to insert what is there, and to change what is not."""
    if type not in {INSERT, MODIFY, DELETE}:
        raise invalid("the update says neither insert, modify nor delete")
    if not id:
        raise invalid("0 stands for all groups or sessions: it cannot be written")
    if type == INSERT and id in present:
        raise Refused(Code.ALREADY_EXISTS, f"{id} exists")
    if type != INSERT and id not in present:
        raise Refused(Code.NOT_FOUND, f"there is no {id}")


def _raise_first(faults: Faults) -> None:
    for fault in faults.values():
        raise Refused(*fault)


def _forbidden(id: int) -> Refused:
    return Refused(Code.PERMISSION_DENIED, f"the role may not write {id:#x}")
