"""What the P4Runtime server asks of a data plane.

The server speaks protobuf and judges requests by the P4Info; a target sees plain integers, in batches as large as the
client's, and only what fits the program. A target is called from one thread, the server's event loop, and answers at
once; it may call `Events` from any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from dinnet.switch.codes import Fault
from dinnet.switch.p4info import Counter, Digest, Meter, P4Info, Table

#: What went wrong in a batch, by position. Members that are not named succeeded.
Faults = dict[int, Fault]


class CounterData(NamedTuple):
    byte_count: int = 0
    packet_count: int = 0


class MeterConfig(NamedTuple):
    """Rates in the meter's unit a second, bursts in its unit."""

    cir: int
    cburst: int
    pir: int
    pburst: int
    eburst: int = 0


class Entry(NamedTuple):
    """A table entry in plain integers.

    `match` is flat, in the order of the table's fields: exact: the value; lpm: value, prefix length; ternary: value,
    mask; range: low, high; optional: value, 1 or 0, 0 for any. A field that matches everything is there too (0, 0, or
    the whole range). The default entry's `match` is ().
    """

    match: tuple[int, ...]
    priority: int = 0  # the highest wins; 0 in tables without priorities
    action_id: int = 0  # 0: in a modification: as it is; in the default entry: the program does not say
    params: tuple[int, ...] = ()
    meter: MeterConfig | None = None  # None: every packet is green
    counter: CounterData | None = None  # to write; None: leave it as it is. Entries that are read have None here
    idle_timeout_ns: int = 0  # 0: never
    metadata: bytes = b""
    controller_metadata: int = 0

    @property
    def key(self) -> tuple[int, ...]:
        """What tells it from the other entries of its table."""
        return (*self.match, self.priority) if self.priority else self.match


class Port(NamedTuple):
    """Where a copy of a packet goes. `instance` tells copies to one port apart."""

    port: int
    instance: int


class Replica(NamedTuple):
    port: int
    instance: int
    backups: tuple[Port, ...] = ()  # in the order in which they stand in
    is_old_form: bool = False  # the client used the field `egress_port` of before P4Runtime 1.4, and reads it there


class MulticastGroup(NamedTuple):
    id: int
    replicas: tuple[Replica, ...] = ()
    metadata: bytes = b""


class CloneSession(NamedTuple):
    id: int
    replicas: tuple[Replica, ...] = ()
    class_of_service: int = 0
    packet_length_bytes: int = 0  # 0: whole packets


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A forwarding pipeline as a client set it."""

    info: P4Info
    p4info: bytes  # the same, serialized
    device_config: bytes
    cookie: int | None


class Events(Protocol):
    """What the data plane tells by itself. Safe to call from any thread; never blocks."""

    @property
    def is_behind(self) -> bool:
        """Whether digests still wait for the server or a controller: a target keeps further ones for now."""

    def digests(self, digest_id: int, rows: Sequence[tuple[int, ...]]) -> None:
        """Digests in the order in which they were made, each with the values of `Digest.leaves`."""

    def packet_in(self, payload: bytes, metadata: tuple[int, ...]) -> None:
        """A packet for the controller, and the fields of the packet_in header."""

    def idle(self, table_id: int, entries: Sequence[Entry]) -> None:
        """Entries that no packet hit for their idle time-out; each is told of again after another one."""


class Target(Protocol):
    """A data plane. Methods that take a batch return what failed; the others raise `Refused`."""

    def start(self, events: Events) -> None:
        """Begin to tell events. Called once, before anything else."""

    def stop(self) -> None:
        """Tell no more events. Forwarding may go on."""

    def running(self) -> Pipeline | None:
        """The pipeline in force, also one that an earlier server left; None: there is none yet."""

    def verify(self, pipeline: Pipeline) -> None:
        """Refuse a pipeline that this data plane cannot be. Changes nothing."""

    def load(self, pipeline: Pipeline, *, keep: bool) -> None:
        """Bring a verified pipeline into force, with all entries, counters, meters and groups kept, or without any.

        They are asked to be kept only where tables, counters and meters that hold something are the same as before.
        """

    # Entries. Later members of a batch see what earlier ones did.

    def insert(self, table: Table, entries: Sequence[Entry]) -> Faults: ...

    def modify(self, table: Table, entries: Sequence[Entry]) -> Faults: ...

    def delete(self, table: Table, entries: Sequence[Entry]) -> Faults:
        """Only the entries' keys count."""

    def find(self, table: Table, key: tuple[int, ...]) -> Entry | None:
        """The entry with that `Entry.key`."""

    def entries(self, table: Table) -> Sequence[Entry]:
        """All entries but the default one, as they are now: later changes do not show."""

    def default(self, table: Table) -> Entry: ...

    def set_default(self, table: Table, entry: Entry | None) -> None:
        """None: back to what the program begins with."""

    def idle_ns(self, table: Table, entries: Sequence[Entry]) -> Sequence[int]:
        """Nanoseconds since a packet hit each entry, or since it was inserted."""

    # Direct resources. The default entry is among the entries; an entry that is no more counts 0.

    def read_direct_counters(self, table: Table, entries: Sequence[Entry]) -> Sequence[CounterData]: ...

    def write_direct_counters(self, table: Table, values: Sequence[tuple[Entry, CounterData]]) -> Faults: ...

    def write_direct_meters(self, table: Table, values: Sequence[tuple[Entry, MeterConfig | None]]) -> Faults: ...

    # Indexed resources. Cells are within the array.

    def read_counters(self, counter: Counter, first: int, count: int) -> Sequence[CounterData]: ...

    def write_counters(self, counter: Counter, first: int, values: Sequence[CounterData]) -> None: ...

    def read_meters(self, meter: Meter, first: int, count: int) -> Sequence[MeterConfig | None]: ...

    def write_meters(self, meter: Meter, first: int, values: Sequence[MeterConfig | None]) -> None: ...

    # Packet replication.

    def groups(self) -> Mapping[int, MulticastGroup]: ...

    def set_group(self, group: MulticastGroup) -> None:
        """Insert or replace."""

    def remove_group(self, group_id: int) -> None: ...

    def sessions(self) -> Mapping[int, CloneSession]: ...

    def set_session(self, session: CloneSession) -> None:
        """Insert or replace."""

    def remove_session(self, session_id: int) -> None: ...

    # Messages.

    def enable_digest(self, digest: Digest, config: bytes | None) -> None:
        """Make a digest, and keep how it is configured (a serialized DigestEntry.Config); None: do not make it."""

    def digests(self) -> Mapping[int, bytes]:
        """The digests that are made, and how they are configured; an earlier server's, too."""

    def packet_out(self, payload: bytes, metadata: tuple[int, ...]) -> None:
        """Send a packet, with the fields of the packet_out header."""

    def scan_idle(self) -> None:
        """Look for idle entries and tell of them. Called several times a second; must be quick."""
