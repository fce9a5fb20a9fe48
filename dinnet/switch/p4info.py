"""A P4 program as its P4Info describes it: typed, checked once, never changed.

Everything else in this package looks at these views and not at the protobuf messages, whose every access costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Final, Protocol, TypeVar

from finsy.proto import p4i, p4t

from dinnet.errors import DinnetError
from dinnet.switch.bytestrings import to_int
from dinnet.switch.codes import Refused

MAX_WIDTH: Final = 2048  # bits of a field or parameter; what the P4 compilers themselves take


class P4InfoError(DinnetError):
    """The P4Info contradicts itself, or describes something that this switch cannot be."""


class MatchKind(Enum):
    EXACT = "exact"
    LPM = "lpm"
    TERNARY = "ternary"
    RANGE = "range"
    OPTIONAL = "optional"


class Scope(Enum):
    """Where an action may stand."""

    ANYWHERE = 0
    ENTRY_ONLY = 1
    DEFAULT_ONLY = 2


class Unit(Enum):
    BYTES = "bytes"
    PACKETS = "packets"
    BOTH = "both"


class MeterKind(Enum):
    TWO_RATES = 0  # RFC 2698, three colours
    ONE_RATE = 1  # RFC 2697, three colours
    TWO_COLORS = 2


@dataclass(frozen=True, slots=True)
class MatchField:
    id: int
    name: str
    kind: MatchKind
    width: int  # bits


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter of an action, or a field of a controller header."""

    id: int
    name: str
    width: int  # bits


@dataclass(frozen=True, slots=True)
class Action:
    id: int
    name: str
    alias: str
    params: tuple[Param, ...]


@dataclass(frozen=True, slots=True)
class ActionCall:
    """An action with the values of its parameters, in their order."""

    action_id: int
    params: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Counter:
    id: int
    name: str
    unit: Unit
    size: int = 0  # cells; 0 for a direct one
    table_id: int = 0  # of a direct one


@dataclass(frozen=True, slots=True)
class Meter:
    id: int
    name: str
    unit: Unit
    kind: MeterKind
    size: int = 0  # cells; 0 for a direct one
    table_id: int = 0  # of a direct one


@dataclass(frozen=True, slots=True)
class Table:
    id: int
    name: str
    alias: str
    fields: tuple[MatchField, ...]
    actions: Mapping[int, Scope]  # by action id
    size: int  # entries; 0: the program does not say
    const_default: bool
    initial_default: ActionCall | None  # None: the P4Info does not say
    is_const: bool
    has_idle_timeout: bool
    implementation_id: int  # of its action profile; 0: entries name their actions themselves
    counter: Counter | None = None
    meter: Meter | None = None

    @property
    def has_priority(self) -> bool:
        """Whether its entries need a priority: several of them may match one packet."""
        return any(field.kind in _WITH_PRIORITY for field in self.fields)


_WITH_PRIORITY: Final = frozenset({MatchKind.TERNARY, MatchKind.RANGE, MatchKind.OPTIONAL})


class LeafKind(Enum):
    """How a plain value stands in a P4Data message."""

    BITS = "bits"
    SIGNED = "signed"
    BOOL = "bool"
    ENUM = "enum"  # a serializable one


@dataclass(frozen=True, slots=True)
class Leaf:
    kind: LeafKind
    width: int  # bits


@dataclass(frozen=True, slots=True)
class Struct:
    """A struct or tuple; `is_tuple` only changes the name of the field that carries it."""

    members: tuple[tuple[str, Layout], ...]
    is_tuple: bool = False


Layout = Leaf | Struct


@dataclass(frozen=True, slots=True)
class Digest:
    id: int
    name: str
    layout: Layout

    @property
    def leaves(self) -> tuple[tuple[str, Leaf], ...]:
        """The plain values in their order, named by their path: what a target hands over as one tuple."""
        return tuple(_leaves("", self.layout))


@dataclass(frozen=True, slots=True)
class ControllerHeader:
    id: int
    name: str
    fields: tuple[Param, ...]


@dataclass(frozen=True, slots=True)
class P4Info:
    """A whole program. The mappings go by id."""

    name: str
    version: str
    arch: str
    tables: Mapping[int, Table]
    actions: Mapping[int, Action]
    counters: Mapping[int, Counter]
    direct_counters: Mapping[int, Counter]
    meters: Mapping[int, Meter]
    direct_meters: Mapping[int, Meter]
    digests: Mapping[int, Digest]
    packet_in: ControllerHeader | None
    packet_out: ControllerHeader | None
    #: Ids of what a program may have and this switch does not serve: action profiles, registers, value sets, externs.
    unserved: Mapping[int, str] = field(default_factory=dict)

    def table(self, name: str) -> Table:
        """The table of that name or alias.

        Raises:
            KeyError: There is none.
        """
        return _by_name(self.tables, name)

    def action(self, name: str) -> Action:
        """The action of that name or alias.

        Raises:
            KeyError: There is none.
        """
        return _by_name(self.actions, name)


def parse_p4info(message: p4i.P4Info) -> P4Info:
    """Check a P4Info and turn it into its typed view.

    Raises:
        P4InfoError: It contradicts itself, or needs what no target of this server can do.
    """
    actions = _indexed("action", (_action(a) for a in message.actions))
    direct_counters = _indexed("direct counter", (_counter(c, c.direct_table_id) for c in message.direct_counters))
    direct_meters = _indexed("direct meter", (_meter(m, m.direct_table_id) for m in message.direct_meters))
    profiles = {profile.preamble.id for profile in message.action_profiles}
    resources: dict[int, Counter | Meter] = {**direct_counters, **direct_meters}
    info = P4Info(
        name=message.pkg_info.name,
        version=message.pkg_info.version,
        arch=message.pkg_info.arch,
        tables=_indexed("table", (_table(t, actions, resources, profiles) for t in message.tables)),
        actions=actions,
        counters=_indexed("counter", (_counter(c, size=c.size) for c in message.counters)),
        direct_counters=direct_counters,
        meters=_indexed("meter", (_meter(m, size=m.size) for m in message.meters)),
        direct_meters=direct_meters,
        digests=_indexed("digest", (_digest(d, message.type_info) for d in message.digests)),
        packet_in=_header(message, "packet_in"),
        packet_out=_header(message, "packet_out"),
        unserved=MappingProxyType(dict(_unserved(message))),
    )
    for resource in resources.values():
        table = info.tables.get(resource.table_id)
        if table is None or resource not in (table.counter, table.meter):
            raise P4InfoError(f"{resource.name}: its table {resource.table_id:#x} does not have it")
    return info


class _Named(Protocol):
    @property
    def id(self) -> int: ...
    @property
    def name(self) -> str: ...


_View = TypeVar("_View", bound=_Named)


class _Aliased(_Named, Protocol):
    @property
    def alias(self) -> str: ...


_AliasedView = TypeVar("_AliasedView", bound=_Aliased)


def _by_name(views: Mapping[int, _AliasedView], name: str) -> _AliasedView:
    for view in views.values():
        if name in (view.name, view.alias):
            return view
    raise KeyError(name)


def _indexed(what: str, views: Iterable[_View]) -> Mapping[int, _View]:
    found: dict[int, _View] = {}
    for view in views:
        if not view.id or view.id in found:
            raise P4InfoError(f"{what} {view.name}: its id {view.id:#x} is zero or taken")
        found[view.id] = view
    return MappingProxyType(found)


def _width(where: str, bits: int) -> int:
    if not 0 < bits <= MAX_WIDTH:
        raise P4InfoError(f"{where}: a width of {bits} bits; 1 to {MAX_WIDTH} are possible, strings are not")
    return bits


def _distinct(where: str, ids: list[int]) -> None:
    if 0 in ids or len(set(ids)) != len(ids):
        raise P4InfoError(f"{where}: the ids {ids} are not distinct and above zero")


def _action(message: p4i.Action) -> Action:
    name = message.preamble.name
    params = tuple(Param(p.id, p.name, _width(f"{name}, {p.name}", p.bitwidth)) for p in message.params)
    _distinct(name, [param.id for param in params])
    return Action(message.preamble.id, name, message.preamble.alias, params)


_MATCH_KINDS: Final = {
    p4i.MatchField.EXACT: MatchKind.EXACT,
    p4i.MatchField.LPM: MatchKind.LPM,
    p4i.MatchField.TERNARY: MatchKind.TERNARY,
    p4i.MatchField.RANGE: MatchKind.RANGE,
    p4i.MatchField.OPTIONAL: MatchKind.OPTIONAL,
}


def _table(
    message: p4i.Table, actions: Mapping[int, Action], resources: Mapping[int, Counter | Meter], profiles: set[int]
) -> Table:
    name = message.preamble.name
    fields = []
    for item in message.match_fields:
        kind = _MATCH_KINDS.get(item.match_type)
        if kind is None:
            raise P4InfoError(
                f"{name}, {item.name}: matching by {item.other_match_type or 'nothing'} is not known here"
            )
        fields.append(MatchField(item.id, item.name, kind, _width(f"{name}, {item.name}", item.bitwidth)))
    _distinct(name, [field.id for field in fields])
    if sum(field.kind is MatchKind.LPM for field in fields) > 1:
        raise P4InfoError(f"{name}: more than one field is matched by longest prefix")
    refs = {ref.id: Scope(ref.scope) for ref in message.action_refs}
    if missing := refs.keys() - actions.keys():
        raise P4InfoError(f"{name}: there is no action {min(missing):#x}")
    if message.implementation_id and message.implementation_id not in profiles:
        raise P4InfoError(f"{name}: there is no action profile {message.implementation_id:#x}")
    direct = [resources[id] for id in message.direct_resource_ids if id in resources]
    if len(direct) != len(message.direct_resource_ids):
        raise P4InfoError(f"{name}: a direct resource of it is not there, or is neither counter nor meter")
    for resource in direct:
        if resource.table_id != message.preamble.id:
            raise P4InfoError(f"{name}: {resource.name} is another table's")
    return Table(
        id=message.preamble.id,
        name=name,
        alias=message.preamble.alias,
        fields=tuple(fields),
        actions=MappingProxyType(refs),
        size=message.size,
        const_default=bool(message.const_default_action_id),
        initial_default=_initial_default(message, actions),
        is_const=message.is_const_table,
        has_idle_timeout=message.idle_timeout_behavior == p4i.Table.NOTIFY_CONTROL,
        implementation_id=message.implementation_id,
        counter=next((r for r in direct if isinstance(r, Counter)), None),
        meter=next((r for r in direct if isinstance(r, Meter)), None),
    )


def _initial_default(message: p4i.Table, actions: Mapping[int, Action]) -> ActionCall | None:
    """What happens to packets without an entry, until a client says otherwise."""
    name = message.preamble.name
    call = message.initial_default_action
    action_id = call.action_id or message.const_default_action_id
    if not action_id:
        # Compilers that leave it out leave out NoAction, which is what P4 means by no default action.
        plain = [id for id in (ref.id for ref in message.action_refs) if actions[id].name == "NoAction"]
        return ActionCall(plain[0]) if plain else None
    if action_id not in actions:
        raise P4InfoError(f"{name}: there is no action {action_id:#x} for it to begin with")
    params = actions[action_id].params
    values = {argument.param_id: argument.value for argument in call.arguments}
    if len(params) != len(values):
        return None  # a P4Info from before version 1.4 names the action alone
    try:
        return ActionCall(action_id, tuple(to_int(values[param.id], param.width) for param in params))
    except (Refused, KeyError) as error:
        raise P4InfoError(f"{name}: the arguments of its initial default action do not fit the action") from error


_COUNTER_UNITS: Final = {
    p4i.CounterSpec.BYTES: Unit.BYTES,
    p4i.CounterSpec.PACKETS: Unit.PACKETS,
    p4i.CounterSpec.BOTH: Unit.BOTH,
}
_METER_UNITS: Final = {p4i.MeterSpec.BYTES: Unit.BYTES, p4i.MeterSpec.PACKETS: Unit.PACKETS}


def _counter(message: p4i.Counter | p4i.DirectCounter, table_id: int = 0, size: int = 0) -> Counter:
    unit = _COUNTER_UNITS.get(message.spec.unit, Unit.BOTH)
    return Counter(message.preamble.id, message.preamble.name, unit, size, table_id)


def _meter(message: p4i.Meter | p4i.DirectMeter, table_id: int = 0, size: int = 0) -> Meter:
    unit = _METER_UNITS.get(message.spec.unit, Unit.BYTES)
    return Meter(message.preamble.id, message.preamble.name, unit, MeterKind(message.spec.type), size, table_id)


def _header(message: p4i.P4Info, name: str) -> ControllerHeader | None:
    found = [header for header in message.controller_packet_metadata if header.preamble.name == name]
    if len(found) > 1:
        raise P4InfoError(f"two headers are called {name}")
    if not found:
        return None
    fields = tuple(Param(m.id, m.name, _width(f"{name}, {m.name}", m.bitwidth)) for m in found[0].metadata)
    _distinct(name, [field.id for field in fields])
    return ControllerHeader(found[0].preamble.id, name, fields)


def _unserved(message: p4i.P4Info) -> Iterator[tuple[int, str]]:
    for group in (message.action_profiles, message.value_sets, message.registers):
        for item in group:
            yield item.preamble.id, item.preamble.name
    for kind in message.externs:
        for instance in kind.instances:
            yield instance.preamble.id, instance.preamble.name


def _digest(message: p4i.Digest, types: p4t.P4TypeInfo) -> Digest:
    name = message.preamble.name
    return Digest(message.preamble.id, name, _layout(name, message.type_spec, types, depth=0))


def _layout(where: str, spec: p4t.P4DataTypeSpec, types: p4t.P4TypeInfo, depth: int) -> Layout:
    if depth > 16:
        raise P4InfoError(f"{where}: its type contains itself")
    match spec.WhichOneof("type_spec"):
        case "bitstring" if spec.bitstring.HasField("bit"):
            return Leaf(LeafKind.BITS, _width(where, spec.bitstring.bit.bitwidth))
        case "bitstring" if spec.bitstring.HasField("int"):
            return Leaf(LeafKind.SIGNED, _width(where, spec.bitstring.int.bitwidth))
        case "bool":
            return Leaf(LeafKind.BOOL, 1)
        case "tuple":
            inner = [_layout(where, member, types, depth + 1) for member in spec.tuple.members]
            return Struct(tuple((str(i), layout) for i, layout in enumerate(inner)), is_tuple=True)
        case "struct" if spec.struct.name in types.structs:
            members = types.structs[spec.struct.name].members
            return Struct(
                tuple((m.name, _layout(f"{where}, {m.name}", m.type_spec, types, depth + 1)) for m in members)
            )
        case "serializable_enum" if spec.serializable_enum.name in types.serializable_enums:
            underlying = types.serializable_enums[spec.serializable_enum.name].underlying_type
            return Leaf(LeafKind.ENUM, _width(where, underlying.bitwidth))
        case "new_type" if spec.new_type.name in types.new_types:
            new_type = types.new_types[spec.new_type.name]
            if new_type.HasField("original_type"):
                return _layout(where, new_type.original_type, types, depth + 1)
            return Leaf(LeafKind.BITS, _width(where, new_type.translated_type.sdn_bitwidth))
    raise P4InfoError(f"{where}: digests of this type are not served")


def _leaves(path: str, layout: Layout) -> Iterator[tuple[str, Leaf]]:
    if isinstance(layout, Leaf):
        yield path, layout
        return
    for name, member in layout.members:
        yield from _leaves(f"{path}.{name}" if path else name, member)
