"""The P4 program's tables in terms of the pipeline's maps: entries of plain integers there, arrays here."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dinnet.switch.bpfmap import Map, Put
from dinnet.switch.codes import Code, Fault
from dinnet.switch.contract import Action, Collector, Exceed, IntNode
from dinnet.switch.datapath import Datapath
from dinnet.switch.p4info import MatchKind, P4Info, Table
from dinnet.switch.sliceselect import Match, Selected, Ternary, Watch, Watched
from dinnet.switch.target import CounterData, Entry, Faults, MeterConfig
from dinnet.switch.tokens import Rates

Key = tuple[int, ...]
_64: Final = 2**64 - 1
_FORWARD: Final = {
    "to_port": Action.PORT, "route": Action.ROUTE, "flood": Action.FLOOD, "drop": Action.DROP,
    "to_controller": Action.CONTROLLER,
}  # fmt: skip
_WATCH: Final = {"no_int": Watch.NONE, "int_md": Watch.MD, "int_xd": Watch.XD}
E = TypeVar("E", Selected, Watched)
_EXCEED: Final = {"degrade": Exceed.DEGRADE, "reroute": Exceed.REROUTE, "drop": Exceed.DROP}


class Call(NamedTuple):
    """An action by the last part of its name, with its parameters by name."""

    action: str
    params: dict[str, int]


class Calls:
    """Actions of one program, in both directions."""

    def __init__(self, info: P4Info, table: Table) -> None:
        self._by_id = {
            number: (_last(info.actions[number].name), tuple(param.name for param in info.actions[number].params))
            for number in table.actions
        }
        self._by_name = {name: (number, params) for number, (name, params) in self._by_id.items()}

    def of(self, entry: Entry) -> Call:
        """What an entry does; "NoAction" where it names no action."""
        name, params = self._by_id.get(entry.action_id, ("NoAction", ()))
        return Call(name, dict(zip(params, entry.params, strict=True)))

    def entry(self, match: Key, action: str, **params: int) -> Entry:
        """An entry that does it."""
        number, names = self._by_name[action]
        return Entry(match, action_id=number, params=tuple(params[name] for name in names))


class Adapter(Protocol):
    """One table. Methods that take a batch return what failed."""

    def place(self, entries: Sequence[Entry]) -> Faults: ...

    def remove(self, entries: Sequence[Entry]) -> Faults: ...

    def read(self) -> list[Entry]:
        """All entries that are in the kernel."""


class Counted(Adapter, Protocol):
    """A table whose entries have counters."""

    def counters(self, keys: Sequence[Key]) -> list[CounterData]: ...

    def set_counters(self, values: Sequence[tuple[Key, CounterData]]) -> None: ...


class Forwards:
    """forward_v4, forward_v6 and forward_l2."""

    def __init__(self, table: Map, calls: Calls, key_bits: int, *, is_lpm: bool) -> None:
        self._table = table
        self._calls = calls
        self._bytes = key_bits // 8
        self._is_lpm = is_lpm

    def place(self, entries: Sequence[Entry]) -> Faults:
        if not entries:
            return {}
        values = np.zeros(len(entries), self._table.value)
        for number, entry in enumerate(entries):
            values[number] = forward_value(self._calls.of(entry))
        return _faults(self._table.put_each(self._keys(entries), values, Put.ANY))

    def remove(self, entries: Sequence[Entry]) -> Faults:
        if entries:
            self._table.delete(self._keys(entries))
        return {}

    def read(self) -> list[Entry]:
        found = []
        for key, value in zip(*self._table.all(), strict=True):
            names = self._table.key.names or ()
            first, address = int(key[names[0]]), int.from_bytes(key[names[1]].tobytes())
            match = (address, first) if self._is_lpm else (first, address)
            action = next(name for name, number in _FORWARD.items() if number == value["action"])
            port = int(value["port"])
            found.append(self._calls.entry(match, action, port=port, group=port, src=_number(value["src"]),
                                           dst=_number(value["dst"])))  # fmt: skip
        return found

    def _keys(self, entries: Sequence[Entry]) -> NDArray[Any]:
        keys = np.zeros(len(entries), self._table.key)
        for number, entry in enumerate(entries):
            a, b = entry.match
            first, address = (b, a) if self._is_lpm else (a, b)
            keys[number] = (first, np.frombuffer(address.to_bytes(self._bytes), np.uint8))
        return keys


class Indexed:
    """Tables whose key is a small number: dscp_to_mark, mark_to_dscp, exceed."""

    def __init__(self, table: Map, calls: Calls, action: str, shift: int = 0) -> None:
        """The second field of the key, where there is one, is in the lowest `shift` bits of the index."""
        self._table = table
        self._calls = calls
        self._action = action
        self._shift = shift

    def place(self, entries: Sequence[Entry]) -> Faults:
        values = np.zeros(len(entries), self._table.value)
        for number, entry in enumerate(entries):
            call = self._calls.of(entry)
            if self._action == "read_dscp":
                values[number] = (1, call.params["slice"], call.params["tc"], 0)
            elif self._action == "set_dscp":
                values[number] = (1, 0, 0, call.params["dscp"])
            else:
                values[number] = exceed_value(call)
        return _faults(self._table.put_each(self._keys(entries), values, Put.ANY)) if entries else {}

    def remove(self, entries: Sequence[Entry]) -> Faults:
        if not entries:
            return {}
        if self._action:
            self._table.put_each(self._keys(entries), np.zeros(len(entries), self._table.value))
        else:
            self._table.delete(self._keys(entries))
        return {}

    def read(self) -> list[Entry]:
        found = []
        for key, value in zip(*self._table.all(), strict=True):
            index = int(key)
            match = (index >> self._shift, index & ((1 << self._shift) - 1)) if self._shift else (index,)
            if not self._action:
                if index < 64:
                    name = next(name for name, number in _EXCEED.items() if number == value["action"])
                    found.append(self._calls.entry(match, name, port=int(value["port"]), src=_number(value["src"]),
                                                   dst=_number(value["dst"])))  # fmt: skip
            elif value["valid"]:
                found.append(self._calls.entry(match, self._action, slice=int(value["slice"]), tc=int(value["tc"]),
                                               dscp=int(value["dscp"])))  # fmt: skip
        return found

    def _keys(self, entries: Sequence[Entry]) -> NDArray[Any]:
        return np.array([e.match[0] if not self._shift else e.match[0] << self._shift | e.match[1] for e in entries])


class Ports:
    """ingress_port: how the ports that there are treat packets. Entries of other ports wait for them."""

    def __init__(self, datapath: Datapath, calls: Calls) -> None:
        self._datapath = datapath
        self._calls = calls

    def place(self, entries: Sequence[Entry]) -> Faults:
        for entry in entries:
            self._configure(entry.match[0], **self._calls.of(entry).params)
        return {}

    def remove(self, entries: Sequence[Entry]) -> Faults:
        for entry in entries:
            self._configure(entry.match[0])
        return {}

    def read(self) -> list[Entry]:
        return [
            self._calls.entry((port.number,), "configure_port", trusted=port.trusted, flow_labels=port.flow_labels)
            for port in self._datapath.ports()
            if port.trusted or port.flow_labels
        ]

    def _configure(self, number: int, trusted: int = 0, flow_labels: int = 0) -> None:
        for port in self._datapath.ports():
            if port.number == number:
                self._datapath.set_port(port._replace(trusted=bool(trusted), flow_labels=bool(flow_labels)))


class _Ternaries(Generic[E]):
    """A ternary table."""

    def __init__(self, select: Ternary[E], table: Table, calls: Calls) -> None:
        self._select: Ternary[E] = select
        self._calls = calls
        # Where each field of `Match` is in an entry's match.
        self._places = [[field.name for field in table.fields].index(name) for name in Match._fields]
        self._table = table

    def place(self, entries: Sequence[Entry]) -> Faults:
        wanted = [self._selected(self._match(entry.match), entry) for entry in entries]
        old = [self._select.find(each.match, each.priority) is not None for each in wanted]
        changed = [number for number, there in enumerate(old) if there]
        new = [number for number, there in enumerate(old) if not there]
        self._select.modify([wanted[number] for number in changed])
        codes = self._select.insert([wanted[number] for number in new])
        faults = _faults(codes, f"{_last(self._table.name)} takes at most 64 combinations of masks")
        return {new[at]: fault for at, fault in faults.items()}

    def remove(self, entries: Sequence[Entry]) -> Faults:
        self._select.delete([self._key(entry.key) for entry in entries])
        return {}

    def read(self) -> list[Entry]:
        found = []
        for each in self._select.entries():
            match = [0] * (2 * len(self._table.fields))
            for place, pair in zip(self._places, each.match, strict=True):
                match[2 * place : 2 * place + 2] = pair
            found.append(self._entry(tuple(match), each)._replace(priority=each.priority))
        return found

    def counters(self, keys: Sequence[Key]) -> list[CounterData]:
        cells = self._select.counters([self._key(key) if key else (Match(), 0) for key in keys])
        return [CounterData(int(cell["bytes"]), int(cell["packets"])) for cell in cells]

    def set_counters(self, values: Sequence[tuple[Key, CounterData]]) -> None:
        self._select.set_counters(
            [self._key(key) for key, _ in values],
            [value.packet_count for _, value in values],
            [value.byte_count for _, value in values],
        )

    def _selected(self, match: Match, entry: Entry) -> E:
        raise NotImplementedError

    def _entry(self, match: Key, selected: E) -> Entry:
        raise NotImplementedError

    def _match(self, flat: Key) -> Match:
        return Match(*((flat[2 * place], flat[2 * place + 1]) for place in self._places))

    def _key(self, key: Key) -> tuple[Match, int]:
        return self._match(key[:-1]), key[-1]


class SliceSelects(_Ternaries[Selected]):
    """slice_select."""

    def _selected(self, match: Match, entry: Entry) -> Selected:
        params = self._calls.of(entry).params
        return Selected(match, entry.priority, params["slice"], params["tc"])

    def _entry(self, match: Key, selected: Selected) -> Entry:
        return self._calls.entry(match, "set_slice", slice=selected.slice, tc=selected.tc)


class IntSources(_Ternaries[Watched]):
    """int_source."""

    def _selected(self, match: Match, entry: Entry) -> Watched:
        call = self._calls.of(entry)
        rest = call.params.get("hops", 0), call.params.get("instructions", 0)
        return Watched(match, entry.priority, _WATCH[call.action], *rest)

    def _entry(self, match: Key, selected: Watched) -> Entry:
        action = next(name for name, number in _WATCH.items() if number == selected.action)
        return self._calls.entry(match, action, instructions=selected.instructions, hops=selected.hops)


class IntNodes:
    """int_node."""

    def __init__(self, datapath: Datapath, calls: Calls) -> None:
        self._datapath = datapath
        self._calls = calls

    def place(self, entries: Sequence[Entry]) -> Faults:
        for entry in entries:
            params = self._calls.of(entry).params
            node = IntNode(params["node_id"], bool(params["is_sink"]), params["mtu"])
            self._datapath.set_int_node(entry.match[0], node)
        return {}

    def remove(self, entries: Sequence[Entry]) -> Faults:
        for entry in entries:
            self._datapath.set_int_node(entry.match[0], None)
        return {}

    def read(self) -> list[Entry]:
        keys, values = self._datapath.table("int_node").all()
        found = []
        for key, value in zip(keys, values, strict=True):
            if value["valid"]:
                params = {name: int(value[name]) for name in ("node_id", "is_sink", "mtu")}
                found.append(self._calls.entry((int(key),), "set_node", **params))
        return found


class DefaultOnly:
    """A table without a key: it has a default entry, and no other."""

    def place(self, entries: Sequence[Entry]) -> Faults:
        fault = Fault(Code.INVALID_ARGUMENT, "the table has no key, and so only a default entry")
        return dict.fromkeys(range(len(entries)), fault)

    def remove(self, entries: Sequence[Entry]) -> Faults:
        return {}

    def read(self) -> list[Entry]:
        return []


class MicroflowTable:
    """microflow."""

    def __init__(self, datapath: Datapath, table: Table, calls: Calls) -> None:
        self._flows = datapath.microflows
        self._calls = calls
        self._names = [field.name for field in table.fields]
        self._layout = np.dtype([("id", "u4"), ("slice", "u1"), ("tc", "u1"), ("idle_ns", "u8")])

    def place(self, entries: Sequence[Entry]) -> Faults:
        if not entries:
            return {}
        keys, marks = self._keys([entry.match for entry in entries]), np.zeros(len(entries), self._layout)
        for number, entry in enumerate(entries):
            params = self._calls.of(entry).params
            marks[number] = params["microflow_id"], params["slice"], params["tc"], entry.idle_timeout_ns
        rates = [rates_of_config(entry.meter) for entry in entries]
        codes = self._flows.insert(keys, marks, rates)
        there = [number for number, code in enumerate(codes) if code == errno.EEXIST]
        if there:
            changed = self._flows.modify(keys[there], marks[there], [rates[number] for number in there])
            for number, code in zip(there, changed, strict=True):
                codes[number] = code
        return _faults(codes)

    def remove(self, entries: Sequence[Entry]) -> Faults:
        if entries:
            self._flows.delete(self._keys([entry.match for entry in entries]))
        return {}

    def read(self) -> list[Entry]:
        keys, values = self._flows.all()
        found = []
        for key, value, rates in zip(keys, values, self._flows.rates(values), strict=True):
            words = {name: int(key[name]) for name in ("proto", "sport", "dport", "vlan", "flow_label")}
            for name in ("src", "dst"):
                words[name] = int(key[f"{name}_hi"]) << 64 | int(key[f"{name}_lo"])
            match = tuple(words[name] for name in self._names)
            entry = self._calls.entry(
                match, "set_mark", slice=int(value["slice"]), tc=int(value["tc"]), microflow_id=int(value["id"])
            )
            meter = MeterConfig(*rates) if rates else None
            found.append(entry._replace(meter=meter, idle_timeout_ns=int(value["idle_ns"])))
        return found

    def counters(self, keys: Sequence[Key]) -> list[CounterData]:
        found = self._states(keys)
        return [CounterData(int(state["counter"]["bytes"]), int(state["counter"]["packets"])) for state in found]

    def set_counters(self, values: Sequence[tuple[Key, CounterData]]) -> None:
        packets = np.array([value.packet_count for _, value in values], np.uint64)
        sizes = np.array([value.byte_count for _, value in values], np.uint64)
        self._flows.set_counters(self._keys([key for key, _ in values]), packets, sizes)

    def hits_ns(self, keys: Sequence[Key]) -> list[int]:
        """When a packet last hit each, by the monotonic clock."""
        return [int(state["last_ns"]) for state in self._states(keys)]

    def _states(self, keys: Sequence[Key]) -> NDArray[Any]:
        real = [number for number, key in enumerate(keys) if key]
        values, there = self._flows.get(self._keys([keys[number] for number in real]))
        states = self._flows.states(values)
        states[~there] = np.zeros(1, states.dtype)
        out = np.zeros(len(keys), states.dtype)
        out[real] = states
        return out

    def _keys(self, matches: Sequence[Key]) -> NDArray[Any]:
        keys = np.zeros(len(matches), self._flows.key)
        columns = list(zip(*matches, strict=True)) if matches else [()] * len(self._names)
        for name, column in zip(self._names, columns, strict=True):
            if name in ("src", "dst"):
                keys[f"{name}_hi"] = np.array([value >> 64 for value in column], np.uint64)
                keys[f"{name}_lo"] = np.array([value & _64 for value in column], np.uint64)
            else:
                keys[name] = column
        return keys


def adapters(info: P4Info, datapath: Datapath) -> dict[int, Adapter]:
    """What stands for each table of the program in the kernel, by the table's id.

    Raises:
        KeyError: The program has a table or action that the pipeline does not have, or lacks one of an entry.
    """
    found: dict[int, Adapter] = {}
    for number, table in info.tables.items():
        name, calls = _last(table.name), Calls(info, table)
        if name in ("forward_v4", "forward_v6", "forward_l2"):
            bits = next(field.width for field in table.fields if field.name == "dst")
            is_lpm = any(field.kind is MatchKind.LPM for field in table.fields)
            found[number] = Forwards(datapath.table(name), calls, bits, is_lpm=is_lpm)
        elif name == "dscp_to_mark":
            found[number] = Indexed(datapath.table(name), calls, "read_dscp")
        elif name == "mark_to_dscp":
            found[number] = Indexed(datapath.table(name), calls, "set_dscp", 2)
        elif name == "exceed":
            found[number] = Indexed(datapath.table(name), calls, "", 2)
        elif name == "ingress_port":
            found[number] = Ports(datapath, calls)
        elif name == "slice_select":
            found[number] = SliceSelects(datapath.slice_select, table, calls)
        elif name == "int_source":
            found[number] = IntSources(datapath.int_source, table, calls)
        elif name == "int_node":
            found[number] = IntNodes(datapath, calls)
        elif name == "int_collector":
            found[number] = DefaultOnly()
        elif name == "microflow":
            found[number] = MicroflowTable(datapath, table, calls)
        else:
            raise KeyError(table.name)
    return found


def forward_value(call: Call) -> tuple[Any, ...]:
    """Struct forward of an action."""
    params = call.params
    port = params.get("group", params.get("port", 0))
    return _FORWARD[call.action], 0, port, _mac(params.get("src", 0)), _mac(params.get("dst", 0))


def exceed_value(call: Call) -> tuple[Any, ...]:
    """Struct exceed of an action."""
    params = call.params
    return _EXCEED[call.action], 0, params.get("port", 0), _mac(params.get("src", 0)), _mac(params.get("dst", 0))


def collector_of(call: Call, port: int) -> Collector | None:
    """The collector that an action of int_collector names; None: there is none."""
    if call.action == "NoAction":
        return None
    return Collector(port, **{name: call.params[name] for name in Collector._fields[1:]})


def rates_of_config(config: MeterConfig | None) -> Rates | None:
    """A meter's configuration, without its excess burst, which two-rate meters do not have."""
    return Rates(config.cir, config.cburst, config.pir, config.pburst) if config else None


def _faults(codes: Sequence[int], full: str = "there is no room for it in the kernel's table") -> Faults:
    faults = {}
    for number, code in enumerate(codes):
        if code in (errno.ENOSPC, errno.E2BIG, errno.ENOMEM):
            faults[number] = Fault(Code.RESOURCE_EXHAUSTED, full)
        elif code:
            faults[number] = Fault(Code.INTERNAL, f"the kernel refused: {os.strerror(code)}")
    return faults


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _mac(number: int) -> tuple[int, ...]:
    return tuple(number.to_bytes(6))


def _number(mac: NDArray[np.uint8]) -> int:
    return int.from_bytes(mac.tobytes())
