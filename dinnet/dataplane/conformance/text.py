"""Entities and flow records as they stand in vector files: by name, for people."""

from __future__ import annotations

import ipaddress
from typing import Any, Final

import numpy as np

from dinnet.dataplane.codec import Codec
from dinnet.dataplane.digests import FlowRecords
from dinnet.dataplane.entity import (
    ANY,
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
from dinnet.dataplane.tables import ACTIONS, TABLES
from dinnet.errors import DinnetError
from dinnet.flows.record import UNSET
from dinnet.switch.p4info import MatchKind

#: A time that is not zero, in a recorded flow record: how long it was is the sender's matter.
SOME_TIME: Final = "some"
_MAC_BITS: Final = 48
_V4_BITS: Final = 32
_V6_BITS: Final = 128


class TextError(DinnetError):
    """A vector file says something that the program does not know."""


class EntityText:
    """One program's entities to and from plain JSON values."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def dump(self, entity: Entity) -> dict[str, Any]:
        match entity:
            case TableEntry():
                table = self._codec.table(entity.TABLE)
                match = {
                    field.name: _dump(getattr(entity, field.name), field.width)
                    for field in table.fields
                    if field.kind is not MatchKind.TERNARY or getattr(entity, field.name) != ANY
                }
                found: dict[str, Any] = {"table": entity.TABLE, "match": match}
                for name in ("priority", "rates", "idle_timeout_ns"):
                    if value := getattr(entity, name, None):
                        found[name] = value
                return found | self._dump_action(entity.action)  # type: ignore[attr-defined]
            case DefaultEntry():
                return {"default": entity.table} | self._dump_action(entity.action)
            case MeterCell():
                return {"meter": entity.meter, "index": entity.index, "rates": entity.rates}
            case Group():
                return {"group": entity.id, "ports": list(entity.ports)}
            case CloneSession():
                return {"clone_session": entity.id, "ports": list(entity.ports)}
            case DigestConfig():
                return {"digest": entity.digest}

    def load(self, value: dict[str, Any]) -> Entity:
        """Raises TextError where a name is unknown or a value wrong."""
        try:
            return self._load(value)
        except (KeyError, ValueError, TypeError) as error:
            raise TextError(f"{value}: {error}") from error

    def _load(self, value: dict[str, Any]) -> Entity:
        if "group" in value:
            return Group(value["group"], tuple(value["ports"]))
        if "clone_session" in value:
            return CloneSession(value["clone_session"], tuple(value["ports"]))
        if "meter" in value:
            return MeterCell(value["meter"], value["index"], Rates(*value["rates"]))
        if "digest" in value:
            return DigestConfig(value["digest"])
        action = self._load_action(value["action"], value.get("params", {}))
        if "default" in value:
            return DefaultEntry(value["default"], action)
        table = self._codec.table(value["table"])
        more: dict[str, Any] = {name: value[name] for name in ("priority", "idle_timeout_ns") if name in value}
        if "rates" in value:
            more["rates"] = Rates(*value["rates"])
        kinds = {field.name: field for field in table.fields}
        for name, text in value["match"].items():
            more[name] = _load(text, kinds[name].width, kinds[name].kind)
        return TABLES[table.alias](action=action, **more)  # type: ignore[call-arg]

    def _dump_action(self, action: Action) -> dict[str, Any]:
        view = self._codec.action(action.ALIAS)
        params = {param.name: _dump(getattr(action, param.name), param.width) for param in view.params}
        return {"action": action.ALIAS} | ({"params": params} if params else {})

    def _load_action(self, alias: str, params: dict[str, Any]) -> Action:
        view = self._codec.action(alias)
        return ACTIONS[alias](*(_load(params[param.name], param.width, MatchKind.EXACT) for param in view.params))


def _dump(value: int | Lpm | Ternary, width: int) -> int | str:
    if isinstance(value, Lpm):
        return f"{_address(value.value, width)}/{value.length}"
    if not isinstance(value, Ternary):
        return _number(value, width)
    if value.mask == (1 << width) - 1:
        return _number(value.value, width)
    if width == _V6_BITS:
        return f"{ipaddress.IPv6Address(value.value)}&{ipaddress.IPv6Address(value.mask)}"
    return f"{value.value:#x}&{value.mask:#x}"


def _number(value: int, width: int) -> int | str:
    if width == _MAC_BITS:
        return value.to_bytes(6, "big").hex(":")
    return _address(value, width) if width == _V6_BITS else value


def _address(value: int, width: int) -> str:
    if width == _V4_BITS or value >> 32 == 0xFFFF:
        return str(ipaddress.IPv4Address(value & 0xFFFFFFFF))
    return str(ipaddress.IPv6Address(value))


def _load(text: int | str, width: int, kind: MatchKind) -> Any:
    if kind is MatchKind.LPM:
        address, _, length = str(text).partition("/")
        return Lpm(int(ipaddress.ip_address(address)), int(length))
    if kind is MatchKind.TERNARY:
        value, found, mask = str(text).partition("&")
        if found:
            return Ternary(_parse(value, width), _parse(mask, width))
        return Ternary(_parse(text, width), (1 << width) - 1)
    return _parse(text, width)


def _parse(text: int | str, width: int) -> int:
    if isinstance(text, int):
        return text
    if width == _MAC_BITS:
        return int(text.replace(":", ""), 16)
    if width == _V6_BITS:
        given = ipaddress.ip_address(text)
        return int(given) | 0xFFFF << 32 if given.version == 4 else int(given)
    return int(text, 0)


def dump_records(found: FlowRecords) -> list[dict[str, Any]]:
    """Flow records without what is zero; how long a time was is left out."""
    rows = []
    for record, port in zip(found.records, found.ingress_ports.tolist(), strict=True):
        row: dict[str, Any] = {"ingress_port": port}
        for end in ("src", "dst"):
            row[end] = _address(int(record[f"{end}_hi"]) << 64 | int(record[f"{end}_lo"]), _V6_BITS)
        for name in np.asarray(record).dtype.names or ():
            value = int(record[name])
            if not value or name in ("src_hi", "src_lo", "dst_hi", "dst_lo"):
                continue
            if name.endswith("_min") or name.endswith("_min_us"):
                if value == UNSET:
                    row[name] = "unset"
                    continue
            row[name] = SOME_TIME if "_us" in name else value
        rows.append(row)
    return rows
