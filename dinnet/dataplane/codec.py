"""Entities to P4Runtime's messages and back. Ids, widths and the order of fields are the P4Info's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from finsy.proto import p4r

from dinnet.dataplane.entity import (
    Action,
    CloneSession,
    DefaultEntry,
    DigestConfig,
    Entity,
    Group,
    Lpm,
    MeterCell,
    Rates,
    TableEntry,
    Ternary,
)
from dinnet.dataplane.program import Program
from dinnet.dataplane.tables import ACTIONS, DEFAULTS, TABLES
from dinnet.errors import DinnetError
from dinnet.switch.bytestrings import to_bytes
from dinnet.switch.p4info import Action as ActionView
from dinnet.switch.p4info import MatchKind, Table

_SMALL: Final = [bytes([value]) for value in range(256)]


class CodecError(DinnetError):
    """An entity does not fit the program, or a message does not."""


@dataclass(frozen=True, slots=True)
class _ActionPlan:
    kind: type[Action]
    view: ActionView


class Codec:
    """Knows one program."""

    def __init__(self, program: Program) -> None:
        """Raises CodecError where the program is not the one that `dinnet.dataplane.tables` was generated from."""
        self.program = program
        info = program.info
        self._tables = {table.alias: table for table in info.tables.values()}
        self._actions = {view.alias: _ActionPlan(ACTIONS[view.alias], view) for view in _known(info.actions.values())}
        self._by_id = {plan.view.id: plan for plan in self._actions.values()}
        self._meters = {_last(meter.name): meter for meter in info.meters.values()}
        self._meter_names = {meter.id: name for name, meter in self._meters.items()}
        self._digests = {digest.name: digest.id for digest in info.digests.values()}
        for alias, kind in TABLES.items():
            table = self._tables.get(alias)
            if table is None or tuple(field.name for field in table.fields) != kind.MATCH:
                raise CodecError(f"the program's table {alias} is another one than this controller was built for")

    # To messages.

    def encode(self, entity: Entity) -> p4r.Entity:
        """An entity, with everything that belongs to it.

        Raises:
            CodecError: A value does not fit its field; names it and the entity.
        """
        try:
            return self._encode(entity)
        except (KeyError, ValueError, OverflowError) as error:
            raise CodecError(f"{entity}: {error.args[0] if error.args else error}") from error

    def _encode(self, entity: Entity) -> p4r.Entity:
        match entity:
            case TableEntry():
                return p4r.Entity(table_entry=self._table_entry(entity))
            case DefaultEntry():
                entry = p4r.TableEntry(table_id=self._tables[entity.table].id, is_default_action=True)
                entry.action.CopyFrom(self._action(entity.action))
                return p4r.Entity(table_entry=entry)
            case MeterCell():
                cell = p4r.MeterEntry(meter_id=self._meters[entity.meter].id, index=p4r.Index(index=entity.index))
                if entity.rates is not None:
                    cell.config.CopyFrom(_rates(entity.rates))
                return p4r.Entity(meter_entry=cell)
            case Group():
                group = p4r.MulticastGroupEntry(multicast_group_id=entity.id)
                for port in entity.ports:
                    group.replicas.add(egress_port=port, instance=0)
                return p4r.Entity(packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(
                    multicast_group_entry=group))  # fmt: skip
            case CloneSession():
                session = p4r.CloneSessionEntry(session_id=entity.id)
                for port in entity.ports:
                    session.replicas.add(egress_port=port, instance=0)
                return p4r.Entity(packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(
                    clone_session_entry=session))  # fmt: skip
            case DigestConfig():
                digest = p4r.DigestEntry(digest_id=self._digests[entity.digest])
                digest.config.max_list_size = entity.max_list_size
                digest.config.max_timeout_ns = entity.max_timeout_ns
                digest.config.ack_timeout_ns = entity.ack_timeout_ns
                return p4r.Entity(digest_entry=digest)

    def _table_entry(self, entity: TableEntry) -> p4r.TableEntry:
        table = self._tables[entity.TABLE]
        entry = p4r.TableEntry(table_id=table.id)
        add = entry.match.add
        for field in table.fields:
            value = getattr(entity, field.name)
            limit = 1 << field.width
            if field.kind is MatchKind.EXACT:
                add(field_id=field.id).exact.value = _value(field.name, value, limit)
            elif field.kind is MatchKind.LPM:
                if value.length:  # a prefix of no bits is left out
                    lpm = add(field_id=field.id).lpm
                    lpm.value = _value(field.name, value.value, limit)
                    lpm.prefix_len = value.length
            elif value.mask:
                ternary = add(field_id=field.id).ternary
                ternary.value = _value(field.name, value.value, limit)
                ternary.mask = _value(field.name, value.mask, limit)
        if table.has_priority:
            entry.priority = entity.priority  # type: ignore[attr-defined]
        entry.action.CopyFrom(self._action(entity.action))  # type: ignore[attr-defined]
        if table.meter is not None and (rates := entity.rates) is not None:  # type: ignore[attr-defined]
            entry.meter_config.CopyFrom(_rates(rates))
        if table.has_idle_timeout:
            entry.idle_timeout_ns = entity.idle_timeout_ns  # type: ignore[attr-defined]
        return entry

    def _action(self, action: Action) -> p4r.TableAction:
        plan = self._actions[action.ALIAS]
        message = p4r.TableAction()
        message.action.action_id = plan.view.id
        for param in plan.view.params:
            value = _value(param.name, getattr(action, param.name), 1 << param.width)
            message.action.params.add(param_id=param.id, value=value)
        return message

    def key_only(self, entity: Entity) -> p4r.Entity:
        """What names an entity and no more: enough to delete it, or to read it."""
        message = self.encode(entity)
        if message.HasField("table_entry"):
            message.table_entry.ClearField("action")
            message.table_entry.ClearField("meter_config")
            message.table_entry.ClearField("idle_timeout_ns")
        return message

    # From messages.

    def decode(self, message: p4r.Entity) -> Entity | None:
        """An entity that a switch has; None for a kind that is not known here.

        Raises:
            CodecError: It contradicts the program.
        """
        match message.WhichOneof("entity"):
            case "table_entry":
                return self._decode_entry(message.table_entry)
            case "meter_entry":
                cell = message.meter_entry
                rates = _decoded_rates(cell.config) if cell.HasField("config") else None
                return MeterCell(self._meter_names[cell.meter_id], cell.index.index, rates)
            case "packet_replication_engine_entry":
                engine = message.packet_replication_engine_entry
                if engine.HasField("multicast_group_entry"):
                    group = engine.multicast_group_entry
                    return Group(group.multicast_group_id, _ports(group.replicas))
                if engine.HasField("clone_session_entry"):
                    session = engine.clone_session_entry
                    return CloneSession(session.session_id, _ports(session.replicas))
            case "digest_entry":
                entry = message.digest_entry
                name = next(name for name, id in self._digests.items() if id == entry.digest_id)
                config = entry.config
                return DigestConfig(name, config.max_list_size, config.max_timeout_ns, config.ack_timeout_ns)
        return None

    def _decode_entry(self, entry: p4r.TableEntry) -> Entity:
        table = self.program.info.tables.get(entry.table_id)
        if table is None or table.alias not in TABLES:
            raise CodecError(f"the switch has an entry of an unknown table {entry.table_id:#x}")
        action = self._decode_action(table, entry)
        if entry.is_default_action:
            return DefaultEntry(table.alias, action)
        given = {match.field_id: match for match in entry.match}
        values: dict[str, Any] = {"action": action}
        for field in table.fields:
            match = given.get(field.id)
            if field.kind is MatchKind.EXACT:
                values[field.name] = int.from_bytes(match.exact.value, "big") if match is not None else 0
            elif field.kind is MatchKind.LPM:
                lpm = match.lpm if match is not None else p4r.FieldMatch.LPM()
                values[field.name] = Lpm(int.from_bytes(lpm.value, "big"), lpm.prefix_len)
            else:
                ternary = match.ternary if match is not None else p4r.FieldMatch.Ternary()
                values[field.name] = Ternary(int.from_bytes(ternary.value, "big"), int.from_bytes(ternary.mask, "big"))
        if table.has_priority:
            values["priority"] = entry.priority
        if table.meter is not None:
            values["rates"] = _decoded_rates(entry.meter_config) if entry.HasField("meter_config") else None
        if table.has_idle_timeout:
            values["idle_timeout_ns"] = entry.idle_timeout_ns
        return TABLES[table.alias](**values)

    def _decode_action(self, table: Table, entry: p4r.TableEntry) -> Action:
        call = entry.action.action
        plan = self._by_id.get(call.action_id)
        if plan is None and entry.is_default_action and table.alias in DEFAULTS:
            return DEFAULTS[table.alias]  # the switch knows only that it was never changed
        if plan is None:
            raise CodecError(f"an entry of {table.alias} has an unknown action {call.action_id:#x}")
        given = {param.param_id: int.from_bytes(param.value, "big") for param in call.params}
        return plan.kind(*(given.get(param.id, 0) for param in plan.view.params))

    # What else clients ask by name.

    def table(self, alias: str) -> Table:
        return self._tables[alias]

    def action(self, alias: str) -> ActionView:
        return self._actions[alias].view

    def default_of(self, alias: str) -> DefaultEntry | None:
        """What a table begins with, where a client may change it."""
        action = DEFAULTS.get(alias)
        return DefaultEntry(alias, action) if action is not None else None


def _known(views: Iterable[ActionView]) -> list[ActionView]:
    found = list(views)
    for view in found:
        kind = ACTIONS.get(view.alias)
        names = tuple(param.name for param in view.params)
        if kind is None or names != tuple(getattr(kind, "__slots__", ())):
            raise CodecError(f"the program's action {view.alias} is another one than this controller was built for")
    return found


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _value(name: str, value: int, limit: int) -> bytes:
    if not 0 <= value < limit:
        raise ValueError(f"{name}={value} does not fit in {limit.bit_length() - 1} bits")
    return _SMALL[value] if value < 256 else to_bytes(value)


def _rates(rates: Rates) -> p4r.MeterConfig:
    return p4r.MeterConfig(cir=rates.cir, cburst=rates.cburst, pir=rates.pir, pburst=rates.pburst)


def _ports(replicas: Iterable[p4r.Replica]) -> tuple[int, ...]:
    return tuple(sorted(each.egress_port or int.from_bytes(each.port, "big") for each in replicas))


def _decoded_rates(config: p4r.MeterConfig) -> Rates:
    return Rates(config.cir, config.cburst, config.pir, config.pburst)
