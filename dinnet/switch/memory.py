"""A target that is only a memory: it keeps everything and forwards nothing.

It is also the bookkeeping of targets that do forward. They derive from it and override the methods named `place...`,
`remove...`, `fetch...` and `store...`, which are called with what the books have accepted.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from dinnet.switch.codes import Code, Fault, Refused
from dinnet.switch.p4info import Counter, Digest, Meter, P4Info, Table
from dinnet.switch.target import (
    CloneSession,
    CounterData,
    Entry,
    Events,
    Faults,
    MeterConfig,
    MulticastGroup,
    Pipeline,
)

#: Entries of a table whose size the program leaves open.
UNSIZED_TABLE: Final = 1 << 20

_EXISTS: Final = Fault(Code.ALREADY_EXISTS, "the entry exists")
_NO_ENTRY: Final = Fault(Code.NOT_FOUND, "there is no such entry")
_ZERO: Final = CounterData()

Key = tuple[int, ...]


class TableBook:
    """What is known of one table's entries."""

    def __init__(self, table: Table) -> None:
        self.entries: dict[Key, Entry] = {}
        self.counters: dict[Key, CounterData] = {}  # those that are not zero
        self.hits_ns: dict[Key, int] = {}  # by the monotonic clock; only where the table has idle time-outs
        self.deadlines_ns: dict[Key, int] = {}
        self.limit = table.size or UNSIZED_TABLE
        self.default: Entry | None = None  # None: as the program begins

    def forget(self, key: Key) -> None:
        """Drop what hangs on an entry."""
        self.counters.pop(key, None)
        self.hits_ns.pop(key, None)
        self.deadlines_ns.pop(key, None)


class MemoryTarget:
    """Everything in dictionaries. See `Target` for what the methods mean."""

    def __init__(self) -> None:
        self.events: Events | None = None
        self.packets_out: list[tuple[bytes, tuple[int, ...]]] = []
        self._pipeline: Pipeline | None = None
        self._clear()

    def _clear(self) -> None:
        self._books: dict[int, TableBook] = {}
        self._counters: dict[int, dict[int, CounterData]] = {}
        self._meters: dict[int, dict[int, MeterConfig]] = {}
        self._groups: dict[int, MulticastGroup] = {}
        self._sessions: dict[int, CloneSession] = {}
        self._digests: dict[int, bytes] = {}
        self._deadlines: list[tuple[int, int, Key]] = []  # a heap of (ns, table id, key); some are out of date

    # The program.

    def start(self, events: Events) -> None:
        self.events = events

    def stop(self) -> None:
        self.events = None

    def running(self) -> Pipeline | None:
        return self._pipeline

    @property
    def info(self) -> P4Info:
        """The program in force.

        Raises:
            Refused: There is none.
        """
        if self._pipeline is None:
            raise Refused(Code.FAILED_PRECONDITION, "no forwarding pipeline config is set")
        return self._pipeline.info

    def verify(self, pipeline: Pipeline) -> None:
        """A memory can be any program."""

    def load(self, pipeline: Pipeline, *, keep: bool) -> None:
        if not keep:
            self._clear()
        books = {id: self._books.get(id) or TableBook(table) for id, table in pipeline.info.tables.items()}
        for id, book in books.items():
            book.limit = pipeline.info.tables[id].size or UNSIZED_TABLE
        self._books = books
        self._pipeline = pipeline
        self.place_pipeline(pipeline, keep=keep)

    def place_pipeline(self, pipeline: Pipeline, *, keep: bool) -> None:
        """Set the data plane up; without `keep`, empty."""

    # Entries.

    def insert(self, table: Table, entries: Sequence[Entry]) -> Faults:
        book = self._books[table.id]
        held = book.entries
        faults: Faults = {}
        accepted: list[Entry] = []
        positions: list[int] = []
        room = book.limit - len(held)
        for position, entry in enumerate(entries):
            key = entry.key
            if key in held:
                faults[position] = _EXISTS
            elif room <= 0:
                faults[position] = Fault(Code.RESOURCE_EXHAUSTED, f"the table is full: {book.limit} entries")
            else:
                room -= 1
                held[key] = entry if entry.counter is None else entry._replace(counter=None)
                accepted.append(entry)
                positions.append(position)
        for at, fault in self.place_entries(table, accepted).items():
            del held[accepted[at].key]
            faults[positions[at]] = fault
        self._note(table, book, accepted, is_new=True)
        return faults

    def modify(self, table: Table, entries: Sequence[Entry]) -> Faults:
        book = self._books[table.id]
        held = book.entries
        faults: Faults = {}
        accepted: list[Entry] = []
        before: list[tuple[int, Entry]] = []
        for position, entry in enumerate(entries):
            key = entry.key
            old = held.get(key)
            if old is None:
                faults[position] = _NO_ENTRY
                continue
            if not entry.action_id:
                entry = entry._replace(action_id=old.action_id, params=old.params)
            held[key] = entry if entry.counter is None else entry._replace(counter=None)
            accepted.append(entry)
            before.append((position, old))
        for at, fault in self.place_entries(table, accepted).items():
            position, old = before[at]
            held[old.key] = old
            faults[position] = fault
        self._note(table, book, accepted, is_new=False)
        return faults

    def delete(self, table: Table, entries: Sequence[Entry]) -> Faults:
        book = self._books[table.id]
        held = book.entries
        faults: Faults = {}
        accepted: list[Entry] = []
        positions: list[int] = []
        for position, entry in enumerate(entries):
            old = held.pop(entry.key, None)
            if old is None:
                faults[position] = _NO_ENTRY
            else:
                accepted.append(old)
                positions.append(position)
        for at, fault in self.remove_entries(table, accepted).items():
            held[accepted[at].key] = accepted[at]
            faults[positions[at]] = fault
        if book.counters or book.hits_ns:
            for entry in accepted:
                if entry.key not in held:
                    book.forget(entry.key)
        return faults

    def _note(self, table: Table, book: TableBook, entries: Sequence[Entry], *, is_new: bool) -> None:
        """Keep what hangs on entries that were placed: given counters, and when they become idle."""
        if table.counter is not None:
            given = [(entry, entry.counter) for entry in entries if entry.counter is not None]
            if given:
                self.store_direct_counters(table, [pair for pair in given if pair[0].key in book.entries])
        if not table.has_idle_timeout:
            return
        now = time.monotonic_ns()
        for entry in entries:
            key = entry.key
            if key not in book.entries:
                continue
            if is_new:
                book.hits_ns[key] = now
            if entry.idle_timeout_ns:
                deadline = now + entry.idle_timeout_ns
                book.deadlines_ns[key] = deadline
                heapq.heappush(self._deadlines, (deadline, table.id, key))
            else:
                book.deadlines_ns.pop(key, None)

    def find(self, table: Table, key: Key) -> Entry | None:
        return self._books[table.id].entries.get(key)

    def entries(self, table: Table) -> Sequence[Entry]:
        return list(self._books[table.id].entries.values())

    def default(self, table: Table) -> Entry:
        return self._books[table.id].default or initial_default(table)

    def set_default(self, table: Table, entry: Entry | None) -> None:
        book = self._books[table.id]
        placed = initial_default(table) if entry is None else entry
        self.place_default(table, placed)
        book.default = None if entry is None else entry._replace(counter=None)
        if entry is None:
            book.forget(())
        elif entry.counter is not None:
            self.store_direct_counters(table, [(entry, entry.counter)])

    def place_entries(self, table: Table, entries: Sequence[Entry]) -> Faults:
        """Put entries into the data plane; those that are there already get a new action, meter and counter."""
        return {}

    def remove_entries(self, table: Table, entries: Sequence[Entry]) -> Faults:
        """Take entries out of the data plane."""
        return {}

    def place_default(self, table: Table, entry: Entry) -> None:
        """Set what happens to packets without an entry, or refuse."""

    # Idle time-outs.

    def hit(self, table: Table, key: Key) -> None:
        """Note that a packet hit an entry, now."""
        self._books[table.id].hits_ns[key] = time.monotonic_ns()

    def idle_ns(self, table: Table, entries: Sequence[Entry]) -> Sequence[int]:
        now = time.monotonic_ns()
        return [now - hit for hit in self.fetch_hits_ns(table, [entry.key for entry in entries])]

    def fetch_hits_ns(self, table: Table, keys: Sequence[Key]) -> Sequence[int]:
        """When packets last hit the entries, by the monotonic clock; when never, their insertion."""
        hits = self._books[table.id].hits_ns
        now = time.monotonic_ns()
        return [hits.get(key, now) for key in keys]

    def scan_idle(self) -> None:
        now = time.monotonic_ns()
        due: dict[int, list[Key]] = {}
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline, table_id, key = heapq.heappop(self._deadlines)
            book = self._books.get(table_id)
            if book is not None and book.deadlines_ns.get(key) == deadline:
                due.setdefault(table_id, []).append(key)
        for table_id, keys in due.items():
            self._tell_idle(self.info.tables[table_id], self._books[table_id], keys, now)

    def _tell_idle(self, table: Table, book: TableBook, keys: Sequence[Key], now: int) -> None:
        idle = []
        for key, hit in zip(keys, self.fetch_hits_ns(table, keys), strict=True):
            entry = book.entries[key]
            is_due = now - hit >= entry.idle_timeout_ns
            if is_due:
                idle.append(entry)
            deadline = (now if is_due else hit) + entry.idle_timeout_ns
            book.deadlines_ns[key] = deadline
            heapq.heappush(self._deadlines, (deadline, table.id, key))
        if idle and self.events is not None:
            self.events.idle(table.id, idle)

    # Direct resources.

    def read_direct_counters(self, table: Table, entries: Sequence[Entry]) -> Sequence[CounterData]:
        return self.fetch_direct_counters(table, [entry.key for entry in entries])

    def write_direct_counters(self, table: Table, values: Sequence[tuple[Entry, CounterData]]) -> Faults:
        faults, known = self._known(table, [entry for entry, _ in values])
        self.store_direct_counters(table, [values[position] for position in known])
        return faults

    def fetch_direct_counters(self, table: Table, keys: Sequence[Key]) -> Sequence[CounterData]:
        """What the entries' counters hold; () is the default entry's."""
        counters = self._books[table.id].counters
        return [counters.get(key, _ZERO) for key in keys]

    def store_direct_counters(self, table: Table, values: Sequence[tuple[Entry, CounterData]]) -> None:
        """Set the entries' counters."""
        counters = self._books[table.id].counters
        for entry, value in values:
            counters[entry.key] = value

    def write_direct_meters(self, table: Table, values: Sequence[tuple[Entry, MeterConfig | None]]) -> Faults:
        book = self._books[table.id]
        faults, known = self._known(table, [entry for entry, _ in values])
        changed: list[Entry] = []
        before: list[tuple[int, Entry]] = []
        for position in known:
            entry, config = values[position]
            if not entry.match:
                self.set_default(table, self.default(table)._replace(meter=config))
                continue
            old = book.entries[entry.key]
            book.entries[entry.key] = old._replace(meter=config)
            changed.append(book.entries[entry.key])
            before.append((position, old))
        for at, fault in self.place_entries(table, changed).items():
            position, old = before[at]
            book.entries[old.key] = old
            faults[position] = fault
        return faults

    def _known(self, table: Table, entries: Sequence[Entry]) -> tuple[Faults, list[int]]:
        held = self._books[table.id].entries
        faults: Faults = {}
        known = []
        for position, entry in enumerate(entries):
            if entry.match and entry.key not in held:
                faults[position] = _NO_ENTRY
            else:
                known.append(position)
        return faults, known

    # Indexed resources.

    def read_counters(self, counter: Counter, first: int, count: int) -> Sequence[CounterData]:
        cells = self._counters.get(counter.id, {})
        return [cells.get(index, _ZERO) for index in range(first, first + count)]

    def write_counters(self, counter: Counter, first: int, values: Sequence[CounterData]) -> None:
        cells = self._counters.setdefault(counter.id, {})
        cells.update(enumerate(values, first))

    def read_meters(self, meter: Meter, first: int, count: int) -> Sequence[MeterConfig | None]:
        cells = self._meters.get(meter.id, {})
        return [cells.get(index) for index in range(first, first + count)]

    def write_meters(self, meter: Meter, first: int, values: Sequence[MeterConfig | None]) -> None:
        self.place_meters(meter, first, values)
        cells = self._meters.setdefault(meter.id, {})
        for index, config in enumerate(values, first):
            if config is None:
                cells.pop(index, None)
            else:
                cells[index] = config

    def place_meters(self, meter: Meter, first: int, values: Sequence[MeterConfig | None]) -> None:
        """Configure cells of an indexed meter in the data plane, or refuse."""

    # Packet replication.

    def groups(self) -> Mapping[int, MulticastGroup]:
        return MappingProxyType(self._groups)

    def set_group(self, group: MulticastGroup) -> None:
        self.place_group(group)
        self._groups[group.id] = group

    def remove_group(self, group_id: int) -> None:
        self.place_group(MulticastGroup(group_id))
        del self._groups[group_id]

    def place_group(self, group: MulticastGroup) -> None:
        """Set a group's copies in the data plane, or refuse; none: as if there were no such group."""

    def sessions(self) -> Mapping[int, CloneSession]:
        return MappingProxyType(self._sessions)

    def set_session(self, session: CloneSession) -> None:
        self.place_session(session)
        self._sessions[session.id] = session

    def remove_session(self, session_id: int) -> None:
        self.place_session(CloneSession(session_id))
        del self._sessions[session_id]

    def place_session(self, session: CloneSession) -> None:
        """Set a clone session in the data plane, or refuse; no replicas: as if there were no such session."""

    # Messages.

    def enable_digest(self, digest: Digest, config: bytes | None) -> None:
        if config is None:
            self._digests.pop(digest.id, None)
        else:
            self._digests[digest.id] = config

    def digests(self) -> Mapping[int, bytes]:
        return MappingProxyType(self._digests)

    def packet_out(self, payload: bytes, metadata: tuple[int, ...]) -> None:
        """Keep the packet, for whoever looks."""
        self.packets_out.append((payload, metadata))


def initial_default(table: Table) -> Entry:
    """The default entry that a table begins with."""
    call = table.initial_default
    return Entry((), action_id=call.action_id, params=call.params) if call is not None else Entry(())
