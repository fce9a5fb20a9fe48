"""The data plane that the P4Runtime server drives on Linux: the books of `MemoryTarget`, and the pipeline in eBPF."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import socket
import threading
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from finsy.proto import p4i
from numpy.typing import NDArray

from dinnet.errors import DinnetError
from dinnet.flows.record import RECORD_DTYPE, Records
from dinnet.netns import inside
from dinnet.switch.attach import Switch
from dinnet.switch.bpfobject import test_run
from dinnet.switch.codes import Code, Fault, Refused, invalid
from dinnet.switch.contract import Action, Cell, PacketIn
from dinnet.switch.contract import Port as ConnectedPort
from dinnet.switch.entrynotes import NAME, EntryNotes
from dinnet.switch.libbpf import BpfError
from dinnet.switch.memory import Key, MemoryTarget, TableBook, initial_default
from dinnet.switch.p4info import Counter, Digest, Meter, P4Info, Table, parse_p4info
from dinnet.switch.p4tables import (
    Adapter,
    Calls,
    IntSources,
    MicroflowTable,
    Ports,
    SliceSelects,
    adapters,
    collector_of,
    exceed_value,
    forward_value,
    rates_of_config,
)
from dinnet.switch.queuereports import frame_of, report_of
from dinnet.switch.target import (
    CloneSession,
    CounterData,
    Entry,
    Events,
    Faults,
    MeterConfig,
    MulticastGroup,
    Pipeline,
    Port,
    Replica,
)

CPU_PORT: Final = 510
NO_PORT: Final = 511
_LOOPBACK: Final = 1
_COUNTERS: Final = frozenset({"drops", "parsed", "marked", "exceeded", "flow_collisions", "int_events"})
_TC_REDIRECT: Final = 7
_SOL_PRIORITY: Final = 12  # SO_PRIORITY
_JOIN_S: Final = 5.0
_EVENTS: Final = 1024  # taken at once
_BEHIND_MS: Final = 1


class EbpfTarget(MemoryTarget):
    """A running switch as a target. What was in force before is in the books."""

    def __init__(self, switch: Switch) -> None:
        """Drive a switch; whoever brought it up takes it down.

        Raises:
            BpfError: What is in force cannot be read.
        """
        super().__init__()
        self._switch = switch
        self._datapath = switch.datapath
        self._entry_notes = EntryNotes(switch.datapath.table(NAME))
        self._adapters: dict[int, Adapter] = {}
        self._digest: Digest | None = None
        self._records: list[tuple[int, Records]] = []  # with their ingress ports; the thread's own
        self._wake = -1
        self._thread: threading.Thread | None = None
        # What the controller has processed comes in on its port: see `packet_out`.
        self._datapath.set_port(ConnectedPort(CPU_PORT, _LOOPBACK))
        if switch.adopted and (notes := self._datapath.notes):
            self._adopt(json.loads(notes))

    def start(self, events: Events) -> None:
        super().start(events)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._tell, name="switch events", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        super().stop()
        if self._thread is not None:
            os.eventfd_write(self._wake, 1)
            self._thread.join(_JOIN_S)
            os.close(self._wake)
            self._thread = None

    def verify(self, pipeline: Pipeline) -> None:
        try:
            self._check(pipeline.info)
        except (KeyError, ValueError) as error:
            raise invalid(f"this switch is p4/dinnet.p4 and cannot be another program: {error}") from error

    def place_pipeline(self, pipeline: Pipeline, *, keep: bool) -> None:
        if not keep:
            self._entry_notes.clear()
            self._datapath.clear()
            for port in self._datapath.ports():
                self._datapath.set_port(ConnectedPort(port.number, port.ifindex))
        self._use(pipeline.info)
        self._note_down(pipeline)

    # Entries.

    def place_entries(self, table: Table, entries: Sequence[Entry]) -> Faults:
        noted = self._entry_notes.put(table.id, entries)
        if not all(noted):
            return self._place_noted(table, entries, noted)
        faults = self._adapters[table.id].place(entries)
        self._entry_notes.remove(table.id, [entries[number] for number in faults])
        self._note_ports(table)
        return faults

    def _place_noted(self, table: Table, entries: Sequence[Entry], noted: Sequence[bool]) -> Faults:
        """Place the entries whose metadata there was room for."""
        full = Fault(Code.RESOURCE_EXHAUSTED, "there is no room for the entry's metadata")
        faults = dict.fromkeys((number for number, there in enumerate(noted) if not there), full)
        rest = [number for number, there in enumerate(noted) if there]
        for at, fault in self.place_entries(table, [entries[number] for number in rest]).items():
            faults[rest[at]] = fault
        return faults

    def remove_entries(self, table: Table, entries: Sequence[Entry]) -> Faults:
        faults = self._adapters[table.id].remove(entries)
        self._entry_notes.remove(table.id, entries)
        self._note_ports(table)
        return faults

    def _note_ports(self, table: Table) -> None:
        if isinstance(self._adapters[table.id], Ports):  # those of ports that are not there are in no map
            self._note_down(self._pipeline)

    def place_default(self, table: Table, entry: Entry) -> None:
        call = Calls(self.info, table).of(entry)
        name = table.name.rpartition(".")[2]
        if name == "forward_l2":
            target = self._datapath.table("forward_default")
            if call.action == "NoAction":
                target.delete(np.zeros(1))
            else:
                target.put(np.zeros(1), np.array([forward_value(call)], target.value))
        elif name == "exceed":
            target = self._datapath.table("exceed")
            target.put(np.array([64]), np.array([exceed_value(call)], target.value))
        elif name == "int_collector":
            self._datapath.set_collector(collector_of(call, self._report_port()))
        elif entry != initial_default(table):
            raise invalid(f"{table.name}: the default entry cannot be changed")
        self._note_down(self._pipeline, {table.id: entry})

    def fetch_hits_ns(self, table: Table, keys: Sequence[Key]) -> Sequence[int]:
        adapter = self._adapters[table.id]
        return adapter.hits_ns(keys) if isinstance(adapter, MicroflowTable) else super().fetch_hits_ns(table, keys)

    def fetch_direct_counters(self, table: Table, keys: Sequence[Key]) -> Sequence[CounterData]:
        adapter = self._adapters[table.id]
        if isinstance(adapter, MicroflowTable | SliceSelects | IntSources):
            return adapter.counters(keys)
        return super().fetch_direct_counters(table, keys)

    def store_direct_counters(self, table: Table, values: Sequence[tuple[Entry, CounterData]]) -> None:
        adapter = self._adapters[table.id]
        if isinstance(adapter, MicroflowTable | SliceSelects | IntSources):
            adapter.set_counters([(entry.key, value) for entry, value in values if entry.match])

    # Indexed resources.

    def read_counters(self, counter: Counter, first: int, count: int) -> Sequence[CounterData]:
        name = counter.name.rpartition(".")[2]
        if name not in _COUNTERS:
            return super().read_counters(counter, first, count)
        cells = self._datapath.counters(name)[first : first + count]
        return [CounterData(int(cell["bytes"]), int(cell["packets"])) for cell in cells]

    def write_counters(self, counter: Counter, first: int, values: Sequence[CounterData]) -> None:
        name = counter.name.rpartition(".")[2]
        if name not in _COUNTERS:
            super().write_counters(counter, first, values)
        else:
            cells = [Cell(value.packet_count, value.byte_count) for value in values]
            self._datapath.set_counters(name, first, cells)

    def place_meters(self, meter: Meter, first: int, values: Sequence[MeterConfig | None]) -> None:
        self._datapath.set_slice_meters(first, [rates_of_config(value) for value in values])

    # Packet replication.

    def place_group(self, group: MulticastGroup) -> None:
        try:
            self._datapath.set_group(group.id, [replica.port for replica in group.replicas])
        except BpfError as error:
            raise Refused(Code.RESOURCE_EXHAUSTED, str(error)) from error

    def place_session(self, session: CloneSession) -> None:
        if session.id != self._datapath.int_session:
            return
        if len(session.replicas) > 1:
            raise Refused(Code.UNIMPLEMENTED, f"clone session {session.id} is that of reports, which leave by one port")
        table = self._datapath.table("int_collector")
        values, there = table.get(np.zeros(1))
        if there[0]:
            values["port"] = session.replicas[0].port if session.replicas else NO_PORT
            table.put(np.zeros(1), values)

    def set_session(self, session: CloneSession) -> None:
        super().set_session(session)
        self._note_down(self._pipeline)

    def remove_session(self, session_id: int) -> None:
        super().remove_session(session_id)
        self._note_down(self._pipeline)

    def _report_port(self) -> int:
        session = self._sessions.get(self._datapath.int_session)
        return session.replicas[0].port if session and session.replicas else NO_PORT

    def set_group(self, group: MulticastGroup) -> None:
        super().set_group(group)
        self._note_down(self._pipeline)

    def remove_group(self, group_id: int) -> None:
        super().remove_group(group_id)
        self._note_down(self._pipeline)

    # Messages.

    def enable_digest(self, digest: Digest, config: bytes | None) -> None:
        super().enable_digest(digest, config)
        self._note_down(self._pipeline)

    def packet_out(self, payload: bytes, metadata: tuple[int, ...]) -> None:
        header = self.info.packet_out
        names = [field.name for field in header.fields] if header else []
        port = dict(zip(names, metadata, strict=True)).get("egress_port", NO_PORT)
        with inside(self._switch.namespace) if self._switch.namespace else contextlib.nullcontext():
            if port != NO_PORT:
                self._send(port, payload, 0)
                return
            # As if it had come in on the controller's port: the program runs on it here, what it would send is sent.
            try:
                ran = test_run(self._datapath.program.fd, payload, ifindex=_LOOPBACK)
            except BpfError as error:
                raise invalid(f"the packet has no Ethernet or IP header: {error}") from error
            if ran.answer == _TC_REDIRECT and ran.skb.cb[0] & 0xFF in (Action.PORT, Action.ROUTE):
                self._send(ran.skb.cb[0] >> 8 & 0xFFFF, ran.packet, ran.skb.priority)

    def _send(self, number: int, frame: bytes, priority: int) -> None:
        ifindex = next((port.ifindex for port in self._datapath.ports() if port.number == number), 0)
        if not ifindex:
            raise invalid(f"there is no port {number}")
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as out:
            out.setsockopt(socket.SOL_SOCKET, _SOL_PRIORITY, priority)
            try:
                out.sendto(frame, (socket.if_indextoname(ifindex), 0))
            except OSError as error:
                raise Refused(Code.UNAVAILABLE, f"cannot send on port {number}: {error.strerror}") from error

    # Events.

    def _tell(self) -> None:
        """Pass on what the pipeline tells, until woken.

        What the server or a controller is too slow for stays in the ring buffer. Where that is full the pipeline counts
        what it cannot tell: no record is lost anywhere else while a controller listens.
        """
        ring = self._datapath.events(self._tell_record, self._tell_packet, self._send_report)
        try:
            poll = select.poll()
            poll.register(ring.epoll_fd, select.POLLIN)
            poll.register(self._wake, select.POLLIN)
            wake = select.poll()
            wake.register(self._wake, select.POLLIN)
            while self._wake not in [fd for fd, _ in poll.poll()]:
                events, digest = self.events, self._digest
                if events is not None and events.is_behind:
                    wake.poll(_BEHIND_MS)
                    continue
                ring.poll(_EVENTS)
                if self._records and events is not None and digest is not None:
                    events.digests(digest.id, _rows(digest, self._records))
                self._records.clear()
        finally:
            ring.close()

    def _tell_record(self, port: int, record: Records) -> None:
        if self._digest is not None and self._digest.id in self._digests:
            self._records.append((port, record))

    def _send_report(self, event: NDArray[Any]) -> None:
        """Report on a packet that left, or was dropped by, a queue; what cannot be sent shows as a missing number."""
        collectors, there = self._datapath.table("int_collector").get(np.zeros(1))
        if not there[0]:
            return
        queue = int(self._datapath.table("queue_of_mark").get(np.zeros(1))[0][0])
        frame = frame_of(report_of(event[0]), collectors[0])
        with (
            contextlib.suppress(Refused, DinnetError, OSError),
            inside(self._switch.namespace) if self._switch.namespace else contextlib.nullcontext(),
        ):
            self._send(int(collectors[0]["port"]), frame, queue)

    def _tell_packet(self, packet: PacketIn) -> None:
        events, info = self.events, self._pipeline.info if self._pipeline else None
        if events is not None and info is not None and info.packet_in is not None:
            known = {"ingress_port": packet.ingress_port}
            events.packet_in(packet.data, tuple(known.get(field.name, 0) for field in info.packet_in.fields))

    # The program.

    def _check(self, info: P4Info) -> dict[int, Adapter]:
        found = adapters(info, self._datapath)
        for digest in info.digests.values():
            _check_digest(digest)
        return found

    def _use(self, info: P4Info) -> None:
        self._adapters = self._check(info)
        self._digest = next(iter(info.digests.values()), None)

    def _note_down(self, pipeline: Pipeline | None, defaults: dict[int, Entry] | None = None) -> None:
        """Leave for the next owner what maps do not hold."""
        if pipeline is None:
            return
        given = {number: book.default for number, book in self._books.items() if book.default is not None}
        given |= defaults or {}
        notes = {
            "p4info": base64.b64encode(pipeline.p4info).decode(),
            "device_config": base64.b64encode(pipeline.device_config).decode(),
            "cookie": pipeline.cookie,
            "defaults": [[number, *_noted(entry)] for number, entry in given.items()],
            "ports": [
                [number, entry.match[0], *_noted(entry)]
                for number, adapter in self._adapters.items()
                if isinstance(adapter, Ports)
                for entry in self._books[number].entries.values()
            ],
            "digests": {number: config.hex() for number, config in self._digests.items()},
            "groups": [[group.id, _listed(group.replicas), group.metadata.hex()] for group in self._groups.values()],
            "sessions": [
                [each.id, _listed(each.replicas), each.class_of_service, each.packet_length_bytes]
                for each in self._sessions.values()
            ],
        }
        self._datapath.notes = json.dumps(notes).encode()

    def _adopt(self, notes: dict[str, Any]) -> None:
        raw = base64.b64decode(notes["p4info"])
        info = parse_p4info(p4i.P4Info.FromString(raw))
        device_config = base64.b64decode(notes["device_config"])
        self._pipeline = Pipeline(info, raw, device_config, notes["cookie"])
        self._books = {number: TableBook(table) for number, table in info.tables.items()}
        self._use(info)
        ports: dict[int, list[Entry]] = {}
        for number, port, *rest in notes["ports"]:
            ports.setdefault(number, []).append(_entry((port,), *rest))
        for number, adapter in self._adapters.items():
            if isinstance(adapter, Ports):
                entries = ports.get(number, [])
                adapter.place(entries)  # ports may have come since
            else:
                entries = self._entry_notes.on(number, adapter.read())
            self._books[number].entries = {entry.key: entry for entry in entries}
            self._note(info.tables[number], self._books[number], entries, is_new=True)
        for number, *rest in notes["defaults"]:
            entry = _entry((), *rest)
            if entry != initial_default(info.tables[number]):
                self._books[number].default = entry
        self._digests = {int(number): bytes.fromhex(config) for number, config in notes["digests"].items()}
        for number, replicas, metadata in notes["groups"]:
            self._groups[number] = MulticastGroup(number, _replicas(replicas), bytes.fromhex(metadata))
        for number, replicas, *rest in notes["sessions"]:
            self._sessions[number] = CloneSession(number, _replicas(replicas), *rest)
        for meter in info.meters.values():
            found = self._datapath.slice_meters(0, meter.size)
            self._meters[meter.id] = {cell: MeterConfig(*rates) for cell, rates in enumerate(found) if rates}


def _noted(entry: Entry) -> list[Any]:
    return [entry.action_id, entry.params, entry.metadata.hex(), entry.controller_metadata]


def _entry(match: Key, action_id: int, params: list[int], metadata: str, controller: int) -> Entry:
    """The reverse of `_noted`."""
    noted = bytes.fromhex(metadata)
    return Entry(match, action_id=action_id, params=tuple(params), metadata=noted, controller_metadata=controller)


def _listed(replicas: Sequence[Replica]) -> list[Any]:
    return [[replica.port, replica.instance, replica.backups, replica.is_old_form] for replica in replicas]


def _replicas(listed: list[Any]) -> tuple[Replica, ...]:
    """The reverse of `_listed`."""
    return tuple(
        Replica(port, instance, tuple(Port(*each) for each in backups), is_old_form)
        for port, instance, backups, is_old_form in listed
    )


def _check_digest(digest: Digest) -> None:
    """Raise ValueError where the digest has a value that a flow record does not have."""
    unknown = {name for name, _ in digest.leaves} - set(RECORD_DTYPE.names or ()) - {"src", "dst", "ingress_port"}
    if unknown:
        raise ValueError(f"no flow record has {', '.join(sorted(unknown))}")


def _rows(digest: Digest, records: Sequence[tuple[int, Records]]) -> list[tuple[int, ...]]:
    """The digest's values of flow records."""
    # Joined as bytes, for NumPy copies rows of so many fields one field after the other.
    table = np.frombuffer(b"".join([record.tobytes() for _, record in records]), RECORD_DTYPE)
    columns: list[list[int]] = []
    for name, _ in digest.leaves:
        if name == "ingress_port":
            columns.append([port for port, _ in records])
        elif name in ("src", "dst"):
            halves = zip(table[f"{name}_hi"].tolist(), table[f"{name}_lo"].tolist(), strict=True)
            columns.append([high << 64 | low for high, low in halves])
        else:
            columns.append(table[name].tolist())
    return list(zip(*columns, strict=True))
