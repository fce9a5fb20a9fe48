"""Table entries between protobuf and plain integers; one codec a table, made when the pipeline is set.

This is where a Write spends its time: the common case, an entry of a table with exact matches, touches each protobuf
field once and builds nothing but its tuples.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from finsy.proto import p4r

from dinnet.switch.bytestrings import out_of_range, to_bytes
from dinnet.switch.codes import Code, Refused, invalid
from dinnet.switch.p4info import MatchField, MatchKind, P4Info, Scope, Table
from dinnet.switch.resources import fill_meter_config, parse_counter_data, parse_meter_config
from dinnet.switch.target import CounterData, Entry, MeterConfig

_from_bytes: Final = int.from_bytes


class EntryCodec:
    """Reads and writes the entries of one table."""

    def __init__(self, table: Table, info: P4Info) -> None:
        self.table = table
        self._has_priority = table.has_priority
        self._all_exact = all(field.kind is MatchKind.EXACT for field in table.fields)
        self._fields = {field.id: field for field in table.fields}
        # Where each field's integers are in a flat match, and a match of which every field matches everything.
        self._places: dict[int, tuple[int, int]] = {}
        self._wildcard: list[int] = []
        for field in table.fields:
            self._places[field.id] = (len(self._wildcard), field.width)
            self._wildcard += _anything(field)
        #: Whether the entries are the client's to write, and name their actions themselves.
        self.is_plain = not table.implementation_id and not table.is_const
        # By action: the places and widths of its parameters.
        self._params = {
            id: {param.id: (place, param.width) for place, param in enumerate(info.actions[id].params)}
            for id in table.actions
        }
        self._param_ids = {id: [param.id for param in info.actions[id].params] for id in table.actions}
        self._in_entries = {id for id, scope in table.actions.items() if scope is not Scope.DEFAULT_ONLY}

    # Reading what a client sent.

    def parse(self, message: p4r.TableEntry, *, is_new: bool) -> Entry:
        """The entry to insert, or with `is_new` false to modify.

        Raises:
            Refused: The message breaks a rule of the specification or does not fit the table.
        """
        table = self.table
        if not self.is_plain or message.is_const:
            self._refuse_unwritable(message, is_new=is_new)
        match = self.parse_match(message.match)
        priority = message.priority
        if priority <= 0 if self._has_priority else priority:
            raise self._bad_priority(priority)
        action_id, params = self._parse_action(message, is_new=is_new)
        meter, counter = self._parse_direct(message)
        idle_timeout_ns = message.idle_timeout_ns
        if idle_timeout_ns and (idle_timeout_ns < 0 or not table.has_idle_timeout):
            raise invalid("the idle time-out is negative, or the table has none")
        if message.HasField("time_since_last_hit"):
            raise invalid("time_since_last_hit is only for reading")
        return Entry(
            match,
            priority,
            action_id,
            params,
            meter,
            counter,
            idle_timeout_ns,
            message.metadata,
            message.controller_metadata,
        )

    def parse_key(self, message: p4r.TableEntry) -> Entry:
        """An entry of which only match and priority are known: to delete it, or to find it by them."""
        match = self.parse_match(message.match)
        priority = message.priority
        if priority <= 0 if self._has_priority else priority:
            raise self._bad_priority(priority)
        return Entry(match, priority)

    def parse_default(self, message: p4r.TableEntry) -> Entry | None:
        """The new default entry; None: the one that the program begins with."""
        table = self.table
        if message.is_const or message.match or message.priority:
            raise invalid("a default entry has no match and no priority, and is_const is not for the client to say")
        if message.idle_timeout_ns or message.HasField("time_since_last_hit"):
            raise invalid("a default entry has no idle time-out")
        if table.const_default or table.implementation_id:
            raise Refused(Code.PERMISSION_DENIED, f"the default entry of {table.name} is constant")
        if not message.HasField("action"):
            return None
        action_id, params = self._parse_action(message, is_new=True, is_default=True)
        meter, counter = self._parse_direct(message)
        return Entry(
            (),
            action_id=action_id,
            params=params,
            meter=meter,
            counter=counter,
            metadata=message.metadata,
            controller_metadata=message.controller_metadata,
        )

    def parse_match(self, matches: Iterable[p4r.FieldMatch]) -> tuple[int, ...]:
        """The match, flat, as in `Entry`."""
        if not self._all_exact:
            return self._parse_mixed(matches)
        places = self._places
        values = self._wildcard.copy()  # of -1
        seen = 0
        for message in matches:
            try:
                place, width = places[message.field_id]
            except KeyError:
                raise self._unknown_field(message.field_id) from None
            data = message.exact.value
            value = _from_bytes(data, "big")
            if value >> width or not data:
                raise self._bad_exact(message, data, width)
            values[place] = value
            seen += 1
        if seen != len(values) or -1 in values:
            raise self._incomplete(values)
        return tuple(values)

    def _parse_mixed(self, matches: Iterable[p4r.FieldMatch]) -> tuple[int, ...]:
        values = self._wildcard.copy()
        seen = set()
        for message in matches:
            field = self._fields.get(message.field_id)
            if field is None:
                raise self._unknown_field(message.field_id)
            if field.id in seen:
                raise invalid(f"{field.name} is there twice")
            seen.add(field.id)
            place, _ = self._places[field.id]
            kind = field.kind
            if message.WhichOneof("field_match_type") != kind.value:
                raise invalid(f"the match of {field.name} is not of kind {kind.value}")
            if kind is MatchKind.EXACT:
                values[place] = _number(field, message.exact.value)
            elif kind is MatchKind.LPM:
                values[place : place + 2] = _prefix(field, message.lpm)
            elif kind is MatchKind.TERNARY:
                values[place : place + 2] = _masked(field, message.ternary)
            elif kind is MatchKind.RANGE:
                values[place : place + 2] = _range(field, message.range)
            else:
                values[place : place + 2] = _number(field, message.optional.value), 1
        if -1 in values:
            raise self._incomplete(values)
        return tuple(values)

    def _parse_action(
        self, message: p4r.TableEntry, *, is_new: bool, is_default: bool = False
    ) -> tuple[int, tuple[int, ...]]:
        action = message.action.action
        action_id = action.action_id
        places = self._params.get(action_id)
        if places is None or (not is_default and action_id not in self._in_entries):
            return self._without_action(message, action_id, is_new=is_new)
        if is_default and self.table.actions[action_id] is Scope.ENTRY_ONLY:
            raise Refused(Code.PERMISSION_DENIED, f"action {action_id:#x} is not for the default entry")
        if not places and not action.params:
            return action_id, ()
        values = [-1] * len(places)
        seen = 0
        for param in action.params:
            try:
                place, width = places[param.param_id]
            except KeyError:
                raise invalid(f"action {action_id:#x} has no parameter {param.param_id}") from None
            data = param.value
            value = _from_bytes(data, "big")
            if value >> width or not data:
                raise _named(f"parameter {param.param_id}", out_of_range(data, width))
            values[place] = value
            seen += 1
        if seen != len(values) or -1 in values:
            raise invalid(f"action {action_id:#x} wants each of its {len(values)} parameters once")
        return action_id, tuple(values)

    def _parse_direct(self, message: p4r.TableEntry) -> tuple[MeterConfig | None, CounterData | None]:
        table = self.table
        meter = counter = None
        if message.HasField("meter_config"):
            if table.meter is None:
                raise invalid(f"{table.name} has no direct meter")
            meter = parse_meter_config(table.meter, message.meter_config)
        if message.HasField("counter_data"):
            if table.counter is None:
                raise invalid(f"{table.name} has no direct counter")
            counter = parse_counter_data(message.counter_data)
        if message.HasField("meter_counter_data"):
            raise no_color_counters()
        return meter, counter

    def _without_action(self, message: p4r.TableEntry, action_id: int, *, is_new: bool) -> tuple[int, tuple[int, ...]]:
        """No action of this table is named: which is as it should be in a modification only."""
        kind = message.action.WhichOneof("type")
        if kind is None:
            if is_new:
                raise invalid("an entry needs an action")
            return 0, ()
        if kind != "action":
            raise invalid(f"{self.table.name} has no action profile: its entries name their actions themselves")
        if action_id in self.table.actions:
            raise Refused(Code.PERMISSION_DENIED, f"action {action_id:#x} is for the default entry only")
        raise invalid(f"{self.table.name} has no action {action_id:#x}")

    def refuse_delete(self, message: p4r.TableEntry) -> None:
        """Refuse to delete an entry of a table that is not `is_plain`, or one that is said to be constant."""
        self._refuse_unwritable(message, is_new=True)

    def _refuse_unwritable(self, message: p4r.TableEntry, *, is_new: bool) -> None:
        if message.is_const:
            raise invalid("is_const is not for the client to say")
        if self.table.implementation_id:
            raise Refused(Code.UNIMPLEMENTED, "tables with action profiles are not served")
        if self.table.is_const and (is_new or message.HasField("action")):
            raise Refused(Code.PERMISSION_DENIED, f"the entries of {self.table.name} are constant")

    def _bad_priority(self, priority: int) -> Refused:
        if self._has_priority:
            return invalid(f"priority {priority}: entries of {self.table.name} need one above zero")
        return invalid(f"priority {priority}: entries of {self.table.name} have none")

    def _unknown_field(self, field_id: int) -> Refused:
        return invalid(f"{self.table.name} has no match field {field_id}")

    def _bad_exact(self, message: p4r.FieldMatch, data: bytes, width: int) -> Refused:
        name = self._fields[message.field_id].name
        if message.WhichOneof("field_match_type") != "exact":
            return invalid(f"the match of {name} is not of kind exact")
        return _named(name, out_of_range(data, width))

    def _incomplete(self, values: list[int]) -> Refused:
        for field in self.table.fields:
            if values[self._places[field.id][0]] == -1:
                return invalid(f"{field.name} is missing: an exact match cannot be left out")
        if not self.table.fields:
            return invalid(f"{self.table.name} has no key: it has a default entry only")
        return invalid("a match field is there twice")

    # Writing what a client reads.

    def fill_key(self, message: p4r.TableEntry, entry: Entry) -> None:
        """Set table, match and priority."""
        message.table_id = self.table.id
        if not entry.match:
            message.is_default_action = True
            return
        match = entry.match
        add = message.match.add
        if self._all_exact:
            for field, value in zip(self.table.fields, match, strict=True):
                add(field_id=field.id).exact.value = to_bytes(value)
            return
        for field in self.table.fields:
            place = self._places[field.id][0]
            first = match[place]
            kind = field.kind
            if kind is MatchKind.EXACT:
                add(field_id=field.id).exact.value = to_bytes(first)
                continue
            second = match[place + 1]
            if kind is MatchKind.RANGE:
                if first or second != (1 << field.width) - 1:
                    limits = add(field_id=field.id).range
                    limits.low, limits.high = to_bytes(first), to_bytes(second)
            elif not second:
                continue  # it matches everything
            elif kind is MatchKind.LPM:
                lpm = add(field_id=field.id).lpm
                lpm.value, lpm.prefix_len = to_bytes(first), second
            elif kind is MatchKind.TERNARY:
                ternary = add(field_id=field.id).ternary
                ternary.value, ternary.mask = to_bytes(first), to_bytes(second)
            else:
                add(field_id=field.id).optional.value = to_bytes(first)
        message.priority = entry.priority

    def fill(self, message: p4r.TableEntry, entry: Entry, *, with_meter: bool) -> None:
        """Set everything but counters and times."""
        self.fill_key(message, entry)
        if entry.action_id:
            action = message.action.action
            action.action_id = entry.action_id
            add = action.params.add
            for param_id, value in zip(self._param_ids[entry.action_id], entry.params, strict=True):
                add(param_id=param_id, value=to_bytes(value))
        if entry.idle_timeout_ns:
            message.idle_timeout_ns = entry.idle_timeout_ns
        if entry.metadata:
            message.metadata = entry.metadata
        if entry.controller_metadata:
            message.controller_metadata = entry.controller_metadata
        if with_meter and entry.meter is not None:
            fill_meter_config(message.meter_config, entry.meter)
        if self.table.is_const if entry.match else self.table.const_default:
            message.is_const = True


def no_color_counters() -> Refused:
    """The refusal of counters per colour, which no target here has."""
    return Refused(Code.UNIMPLEMENTED, "meters have no counters per colour here")


def _anything(field: MatchField) -> tuple[int, ...]:
    """The integers of a field that is left out; -1 where it must not be."""
    if field.kind is MatchKind.EXACT:
        return (-1,)
    if field.kind is MatchKind.RANGE:
        return (0, (1 << field.width) - 1)
    return (0, 0)


def _named(name: str, refused: Refused) -> Refused:
    return Refused(refused.code, f"{name}: {refused}")


def _number(field: MatchField, data: bytes) -> int:
    value = _from_bytes(data, "big")
    if value >> field.width or not data:
        raise _named(field.name, out_of_range(data, field.width))
    return value


def _prefix(field: MatchField, message: p4r.FieldMatch.LPM) -> tuple[int, int]:
    value, length = _number(field, message.value), message.prefix_len
    if not 0 < length <= field.width:
        hint = "; leave the field out to match everything" if length == 0 else ""
        raise invalid(f"{field.name}: a prefix of {length} bits, of {field.width}{hint}")
    if value & ((1 << (field.width - length)) - 1):
        raise invalid(f"{field.name}: bits behind the prefix are not zero")
    return value, length


def _masked(field: MatchField, message: p4r.FieldMatch.Ternary) -> tuple[int, int]:
    value, mask = _number(field, message.value), _number(field, message.mask)
    if not mask:
        raise invalid(f"{field.name}: the mask is zero; leave the field out to match everything")
    if value & ~mask:
        raise invalid(f"{field.name}: bits outside the mask are not zero")
    return value, mask


def _range(field: MatchField, message: p4r.FieldMatch.Range) -> tuple[int, int]:
    low, high = _number(field, message.low), _number(field, message.high)
    if low > high:
        raise invalid(f"{field.name}: the range ends before it begins")
    if not low and high == (1 << field.width) - 1:
        raise invalid(f"{field.name}: the range is everything; leave the field out for that")
    return low, high
