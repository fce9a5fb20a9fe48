"""The loaded pipeline: its tables as Python sees them. Who attaches it to interfaces: `dinnet.switch.attach`."""

from __future__ import annotations

import errno
import hashlib
import ipaddress
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from dinnet.flows.record import RECORD_DTYPE, Records
from dinnet.switch import entrynotes
from dinnet.switch.bpfmap import Map, Put, create_array
from dinnet.switch.bpfobject import Object, Program, RingBuffer
from dinnet.switch.build import OBJECT
from dinnet.switch.contract import (
    MARKS,
    Alternate,
    Bucket,
    Cell,
    Collector,
    Drop,
    Event,
    Forward,
    IntEvent,
    IntNode,
    PacketIn,
    Parsed,
    Port,
    Sizes,
    cell_of,
    collector_value,
    int_node_value,
    mac_value,
    packet_in,
    queue_event_dtype,
)
from dinnet.switch.hooks import PROGRAM
from dinnet.switch.libbpf import BpfError
from dinnet.switch.microflows import Microflows
from dinnet.switch.sliceselect import Selected, Ternary, Watched
from dinnet.switch.tokens import Rates, meters, rates_of

_TABLES: Final = (
    "forward_v4", "forward_v6", "forward_l2", "forward_default", "groups", "exceed", "dscp_to_mark", "mark_to_dscp",
    "slice_meter", "flow_sets", "drops", "parsed", "marked", "exceeded", "flow_collisions", "lost_events", "int_node",
    "int_collector", "int_sequence", "int_events", "queue_drops", "queue_misses",
)  # fmt: skip
#: What is counted at the queues: `dinnet.switch.queues`.
QUEUE_TABLES: Final = ("queues", "queue_drops", "queue_misses", "queue_link")
_EXCEED_DEFAULT: Final = 64
_GROUP_PORTS: Final = 64
_NOTES_BYTES: Final = 1 << 20
_MORE_NOTES: Final = 1 << 16  # pieces of notes on entries besides one for each micro-flow
_EVENTS_BYTES: Final = 1 << 24  # 34,000 flow records that nobody has read yet
_READS: Final = 100
_RECORD_AT: Final = 8  # in struct record_event


class Datapath:
    """Close it to let go; what is attached stays in force."""

    def __init__(self, program: Program) -> None:
        """Take over a loaded program.

        Raises:
            BpfError: It is another program.
        """
        self.program = program
        self._maps = program.maps
        missing = {"ingress_port", "microflow", "select_masks", "flow_sets"} - set(self._maps)
        if program.name != PROGRAM or missing:
            raise BpfError(f"BPF program {program.id} is not dinnet's switch")
        maps = self._maps
        self.microflows = Microflows(maps["microflow"], maps["microflow_state"], maps["microflow_meter"])
        layout = program.btf.dtype("select_mask")
        self.slice_select = Ternary(Selected, maps["slice_select"], maps["select_masks"], maps["select_state"], layout)
        self.int_source = Ternary(Watched, maps["int_source"], maps["int_masks"], maps["int_watch_state"], layout)

    @classmethod
    def load(cls, sizes: Sizes | None = None, *, packet_clock: bool = False, int_port: int | None = None) -> Self:
        """Load an empty pipeline into the kernel.

        Args:
            sizes: Room in its tables.
            packet_clock: Take the time from each packet, to replay recorded ones.
            int_port: The UDP destination port that INT is told by; None: as the P4 program says.

        Raises:
            BpfError: The kernel refused.
        """
        sizes = sizes or Sizes()
        constants = {
            "build_id": build_id(),
            "hash_seed": int.from_bytes(os.urandom(8)),  # so that nobody can make flows that share one set
            "packet_clock": int(packet_clock),
        }
        with Object(OBJECT) as source:
            if sizes.microflows is not None:
                for name in ("microflow", "microflow_state", "microflow_meter"):
                    source.set_size(name, sizes.microflows)
            if sizes.flows is not None:
                ways = source.btf.dtype("flow_set")["ways"].shape[0]
                sets = sizes.flows // ways
                if sets < 1 or sets & (sets - 1):
                    raise BpfError(f"room for flows must be a power of two from {ways} on, not {sizes.flows}")
                source.set_size("flow_sets", sets)
                constants["flow_set_mask"] = sets - 1
            if int_port is not None:
                constants["int_port"] = int_port
            source.set_size("events", _EVENTS_BYTES)
            source.set_constants(constants)
            program = source.load(PROGRAM, hold=QUEUE_TABLES)
        try:
            program.bind(create_array("notes", np.dtype((np.void, _NOTES_BYTES)), 1))
            program.bind(entrynotes.create(program.maps["microflow"].max_entries + _MORE_NOTES))
            new = cls(program)
            new.set_queues(default_queues())
        except BaseException:
            program.close()
            raise
        return new

    @classmethod
    def adopt(cls, program_id: int) -> Self:
        """Take over a pipeline that is in the kernel already, with everything that is in it.

        Raises:
            BpfError: There is none of that number, or it was made by another version of dinnet.
        """
        with Object(OBJECT) as source:
            program = Program.by_id(program_id, source.btf)
        try:
            if program.name != PROGRAM or program.constants.get("build_id") != build_id():
                raise BpfError(f"BPF program {program_id} is not the switch of this version of dinnet")
            return cls(program)
        except BaseException:
            program.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of it."""
        self.slice_select.close()
        self.int_source.close()
        self.program.close()

    # Ports.

    def set_port(self, port: Port) -> None:
        """Connect a port and an interface, or change how the port is configured.

        Raises:
            BpfError: There is no such port number.
        """
        for other in self.ports():
            if other.number == port.number and other.ifindex != port.ifindex:
                self.remove_port(port.number)
        self._write("egress_port", port.number, port.ifindex)
        self._write("ingress_port", port.ifindex, (port.number, port.trusted, port.flow_labels))

    def remove_port(self, number: int) -> None:
        """Disconnect a port: what comes in is passed by, what is to go out is dropped."""
        for port in self.ports():
            if port.number == number:
                self._maps["ingress_port"].delete(np.array([port.ifindex]))
                self._write("egress_port", number, 0)

    def ports(self) -> list[Port]:
        """All ports that are connected, by number."""
        keys, values = self._maps["ingress_port"].all()
        found = [
            Port(int(value["port"]), int(ifindex), bool(value["trusted"]), bool(value["flow_labels"]))
            for ifindex, value in zip(keys, values, strict=True)
        ]
        return sorted(found)

    # Forwarding.

    def forward(self, prefix: str, way: Forward, when: Put = Put.ANY) -> int:
        """Set a route, such as "10.0.0.0/8"; returns 0 or the error number."""
        return self._maps[_route_table(prefix)].put_each(self._route_key(prefix), self._way(way), when)[0]

    def remove_forward(self, prefix: str) -> bool:
        """Remove a route; whether there was one."""
        return bool(self._maps[_route_table(prefix)].delete(self._route_key(prefix))[0])

    def station(self, vlan: int, mac: int, way: Forward, when: Put = Put.ANY) -> int:
        """Set where an Ethernet address of a VLAN (0: no VLAN) is; returns 0 or the error number."""
        table = self._maps["forward_l2"]
        return table.put_each(np.array([(vlan, mac_value(mac))], table.key), self._way(way), when)[0]

    def remove_station(self, vlan: int, mac: int) -> bool:
        """Forget an Ethernet address; whether it was known."""
        table = self._maps["forward_l2"]
        return bool(table.delete(np.array([(vlan, mac_value(mac))], table.key))[0])

    def set_default_forward(self, way: Forward | None) -> None:
        """Set where packets go that no entry knows; None: they are dropped."""
        if way is None:
            self._maps["forward_default"].delete(np.zeros(1))
        else:
            self._maps["forward_default"].put(np.zeros(1), self._way(way))

    def set_group(self, number: int, ports: Sequence[int]) -> None:
        """Set the ports of a multicast group; none: remove it.

        Raises:
            BpfError: There are too many ports, or groups.
        """
        table = self._maps["groups"]
        if not ports:
            table.delete(np.array([number]))
            return
        if len(ports) > _GROUP_PORTS:
            raise BpfError(f"a multicast group has at most {_GROUP_PORTS} ports, not {len(ports)}")
        value = np.zeros(1, table.value)
        value["count"] = len(ports)
        value["ports"][0, : len(ports)] = ports
        if not table.put(np.array([number]), value):
            raise BpfError(f"there is no room for another multicast group than the {table.max_entries} there are")

    def groups(self) -> dict[int, list[int]]:
        """The ports of all multicast groups."""
        keys, values = self._maps["groups"].all()
        return {int(k): value["ports"][: value["count"]].tolist() for k, value in zip(keys, values, strict=True)}

    # Marks.

    def set_dscp_to_mark(self, dscp: int, mark: tuple[int, int] | None) -> None:
        """Set which slice and traffic class a trusted port's DSCP means; None: slice << 2 | tc."""
        self._write("dscp_to_mark", dscp, (1, *mark, 0) if mark else (0, 0, 0, 0))

    def set_mark_to_dscp(self, slice_number: int, tc: int, dscp: int | None) -> None:
        """Set the DSCP of a mark; None: slice << 2 | tc."""
        self._write("mark_to_dscp", slice_number << 2 | tc, (1, 0, 0, dscp) if dscp is not None else (0, 0, 0, 0))

    def set_queues(self, queues: Mapping[int, int]) -> None:
        """Set skb->priority, which HTB takes for a class, by slice << 2 | tc."""
        self._maps["queue_of_mark"].put(np.array(list(queues)), np.array(list(queues.values()), np.uint32))

    def set_exceed(self, slice_number: int, bucket: Bucket, what: Alternate | None) -> None:
        """Set what becomes of a slice's packets above a bucket; None: what `set_default_exceed` says."""
        self._exceed(slice_number << 2 | bucket, what)

    def set_default_exceed(self, what: Alternate | None) -> None:
        """Set what becomes of packets above a bucket of slices without an entry; None: they are degraded."""
        self._exceed(_EXCEED_DEFAULT, what)

    def _exceed(self, key: int, what: Alternate | None) -> None:
        table = self._maps["exceed"]
        if what is None:
            table.delete(np.array([key]))
        else:
            value = np.array([(what.action, 0, what.port, mac_value(what.src), mac_value(what.dst))], table.value)
            table.put(np.array([key]), value)

    def set_slice_meters(self, first: int, rates: list[Rates | None]) -> None:
        """Set slice meters from cell `first` on; a cell is egress port * SLICES + slice. Their buckets begin full."""
        table = self._maps["slice_meter"]
        table.put(np.arange(first, first + len(rates)), meters(rates, table.value))

    def slice_meters(self, first: int, count: int) -> list[Rates | None]:
        """The reverse of `set_slice_meters`."""
        return rates_of(self._maps["slice_meter"].get(np.arange(first, first + count))[0])

    # In-band network telemetry. The watch list is `int_source`.

    def set_int_node(self, port: int, node: IntNode | None) -> None:
        """Set what the switch is to INT packets that leave by a port; None: nothing, they pass as they are."""
        self._write("int_node", port, int_node_value(node) if node else (0, 0, 0, 0))

    def set_collector(self, collector: Collector | None) -> None:
        """Set where reports go; None: none are made."""
        if collector is None:
            self._maps["int_collector"].delete(np.zeros(1))
        else:
            self._write("int_collector", 0, collector_value(collector))

    @property
    def int_session(self) -> int:
        """The clone session that tells which port reports leave by."""
        return self.program.constants["int_session"]

    def int_events(self) -> dict[IntEvent, Cell]:
        """What INT did, and could not do."""
        cells = self.counters("int_events")
        return {event: cell_of(cells[event]) for event in IntEvent}

    # Counters.

    def counters(self, name: str) -> NDArray[Any]:
        """All cells of a counter (drops, parsed, marked, exceeded): (n,) of struct cell."""
        return self._maps[name].all()[1]

    def set_counters(self, name: str, first: int, cells: Sequence[Cell]) -> None:
        """Set cells of a counter from `first` on."""
        table = self._maps[name]
        table.put(np.arange(first, first + len(cells)), np.array(list(cells), table.value))

    def drops(self) -> dict[Drop, Cell]:
        """What was dropped, by reason."""
        cells = self.counters("drops")
        return {reason: cell_of(cells[reason]) for reason in Drop}

    def parsed(self) -> dict[Parsed, Cell]:
        """What came in, by kind."""
        cells = self.counters("parsed")
        return {kind: cell_of(cells[kind]) for kind in Parsed}

    def flow_collisions(self) -> Cell:
        """Packets that are in no flow record, for there was no room for their flow's."""
        return cell_of(self.counters("flow_collisions")[0])

    def lost_events(self) -> tuple[int, int]:
        """Flow records and packet-ins that were lost because nobody read the events in time."""
        cells = self.counters("lost_events")
        return int(cells[0]["packets"]), int(cells[1]["packets"])

    # Flow records.

    def flow_table(self) -> Iterator[Records]:
        """The records of all flows under way, as they are now, RECORD_DTYPE (n,).

        `end` is LIVE, or FIN or RST where the connection is closed.
        """
        table = self._maps["flow_sets"]
        for keys, sets in table.items(256):
            # A set that is written to meanwhile has another sequence number afterwards: read it again.
            torn = np.flatnonzero(sets["ways"]["work"]["used"].any(axis=1))
            for _ in range(_READS):
                again, _ = table.get(keys[torn])
                changed = (again["sequence"] != sets["sequence"][torn]) | (again["sequence"] & 1 != 0)
                torn = torn[changed]
                sets[torn] = again[changed]
                if not len(torn):
                    break
            flows = sets["ways"].reshape(-1)
            flows = flows[flows["work"]["used"] != 0]
            records = np.ascontiguousarray(flows["record"]).view(RECORD_DTYPE).reshape(-1)
            records["end"] = flows["work"]["closed"]
            if len(records):
                yield records

    def clear_flows(self) -> None:
        """Forget all flows."""
        self._maps["flow_sets"].clear()

    def events(
        self,
        record: Callable[[int, Records], None],
        packet: Callable[[PacketIn], None] = lambda _: None,
        queue: Callable[[NDArray[Any]], None] = lambda _: None,
    ) -> RingBuffer:
        """A reader of what the pipeline tells; poll it when its `epoll_fd` is readable. There must be only one.

        Args:
            record: Called with the ingress port and one flow record.
            packet: Called with each packet for the controller.
            queue: Called with each report that is due on a packet that was in a queue: struct queue_event, (1,).
        """
        queue_event = queue_event_dtype(self._maps["queue_note"].value)

        def consume(data: bytes) -> None:
            kind = int.from_bytes(data[:2], "little")
            if kind == Event.RECORD:
                record(int.from_bytes(data[2:4], "little"), np.frombuffer(data, RECORD_DTYPE, 1, _RECORD_AT))
            elif kind == Event.PACKET_IN:
                packet(packet_in(data))
            elif kind == Event.QUEUE:
                queue(np.frombuffer(data, queue_event, 1))

        return RingBuffer(self._maps["events"].fd, consume)

    # What the owner of the switch notes for the next one.

    @property
    def notes(self) -> bytes:
        """What was noted, b"" at first. It lives as long as the pipeline is in the kernel."""
        raw = self._maps["notes"].get(np.zeros(1))[0].tobytes()
        return zlib.decompress(raw[8 : 8 + size]) if (size := int.from_bytes(raw[:8], "little")) else b""

    @notes.setter
    def notes(self, text: bytes) -> None:
        packed = zlib.compress(text)
        raw = (len(packed).to_bytes(8, "little") + packed).ljust(_NOTES_BYTES, b"\0")
        if len(raw) > _NOTES_BYTES:
            raise BpfError(f"there is no room for {len(packed)} bytes of notes")
        self._maps["notes"].put(np.zeros(1), np.frombuffer(raw, self._maps["notes"].value))

    def clear(self) -> None:
        """Empty all tables, counters and records; ports and queues stay."""
        self.microflows.clear()
        self.slice_select.clear()
        self.int_source.clear()
        for name in _TABLES:
            self._maps[name].clear()

    # Helpers.

    def table(self, name: str) -> Map:
        """The map behind a table."""
        return self._maps[name]

    def _write(self, name: str, key: int, value: Any) -> None:
        table = self._maps[name]
        code = table.put_each(np.array([key], table.key), np.array([value], table.value))[0]
        if code:
            what = f"it has {table.max_entries} entries" if code == errno.E2BIG else os.strerror(code)
            raise BpfError(f"cannot set {name} {key}: {what}")

    def _way(self, way: Forward) -> NDArray[Any]:
        value = (way.action, 0, way.port, mac_value(way.src), mac_value(way.dst))
        return np.array([value], self._maps["forward_v4"].value)

    def _route_key(self, prefix: str) -> NDArray[Any]:
        network = ipaddress.ip_network(prefix)
        value = (network.prefixlen, np.frombuffer(network.network_address.packed, np.uint8))
        return np.array([value], self._maps[_route_table(prefix)].key)


def build_id() -> int:
    """What tells one build of the object file from another one."""
    try:
        return int.from_bytes(hashlib.sha256(OBJECT.read_bytes()).digest()[:8], "little")
    except OSError as error:
        raise BpfError(f"{OBJECT}: cannot read the switch's object file: {error.strerror}") from error


def default_queues() -> dict[int, int]:
    """HTB class 1:(0x10 + slice * 4 + tc) for each mark."""
    return {mark: 1 << 16 | 0x10 + mark for mark in range(MARKS)}


def _route_table(prefix: str) -> str:
    return "forward_v6" if ":" in prefix else "forward_v4"
