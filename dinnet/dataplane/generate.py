"""Write `dinnet/dataplane/tables.py` from a P4Info: one class for each table and action.

Names and widths are the program's; nobody types them a second time. What the classes cannot carry, the ids and widths
that messages need, `dinnet.dataplane.codec` takes from the P4Info itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from dinnet.switch.p4info import Action, MatchField, MatchKind, P4Info, Param, Scope, Table

_HEAD: Final = '''"""The pipeline's tables and actions. Generated from its P4Info by `make p4`; not to be edited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from dinnet.dataplane.entity import ANY, Action, Lpm, Rates, TableEntry, Ternary
'''
_LINE: Final = 120
_TYPES: Final = {MatchKind.EXACT: "int", MatchKind.LPM: "Lpm", MatchKind.TERNARY: "Ternary"}


def tables_source(info: P4Info, device_config: bytes) -> str:
    """The module's text. What tables begin with is in BMv2's JSON: compilers of today leave it out of the P4Info."""
    actions = list(info.actions.values())
    tables = list(info.tables.values())
    parts = [_HEAD]
    parts += ["\n\n" + "\n".join(_action(action)) + "\n" for action in actions]
    parts += ["\n\n" + "\n".join(_table(info, table)) + "\n" for table in tables]
    for what, kind, views in (("ACTIONS", "Action", actions), ("TABLES", "TableEntry", tables)):
        lines = [f"    {view.alias!r}: {class_name(view.alias)},".replace("'", '"') for view in views]
        parts.append(f"\n\n{what}: Final[dict[str, type[{kind}]]] = {{\n" + "\n".join(lines) + "\n}\n")
    parts.append(
        "#: What becomes of packets that no entry matches, in tables where that can be changed.\n"
        "DEFAULTS: Final[dict[str, Action]] = {\n"
        + "".join(f'    "{alias}": {call},\n' for alias, call in _defaults(info, json.loads(device_config)))
        + "}\n"
    )
    return re.sub(r"\}\n\n\n(?=TABLES)", "}\n", "".join(parts))


def _defaults(info: P4Info, config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    actions = {action["id"]: action["name"] for action in config["actions"]}
    entries = {t["name"]: t["default_entry"] for p in config["pipelines"] for t in p["tables"] if "default_entry" in t}
    for table in info.tables.values():
        if not table.const_default and (entry := entries.get(table.name)):
            alias = info.action(actions[entry["action_id"]]).alias
            yield table.alias, f"{class_name(alias)}({', '.join(str(int(v, 16)) for v in entry['action_data'])})"


def class_name(alias: str) -> str:
    """`forward.drop` -> ForwardDrop."""
    return "".join(part.capitalize() for part in re.split(r"[._]", alias) if part).replace("Noaction", "NoAction")


def _action(action: Action) -> Iterator[str]:
    yield "@dataclass(frozen=True, slots=True)"
    yield f"class {class_name(action.alias)}(Action):"
    yield f'    ALIAS: ClassVar[str] = "{action.alias}"'
    if action.params:
        yield _widths(action.params)
        yield ""
    for param in action.params:
        yield f"    {param.name}: int"


def _widths(views: Sequence[Param] | Sequence[MatchField]) -> str:
    """A dictionary as the formatter writes it."""
    items = [f'"{view.name}": {view.width}' for view in views]
    head = "    BITS: ClassVar[dict[str, int]] = {"
    if len(line := f"{head}{', '.join(items)}}}") <= _LINE:
        return line
    return "\n".join([head, *(f"        {item}," for item in items), "    }"])


def _table(info: P4Info, table: Table) -> Iterator[str]:
    yield "@dataclass(frozen=True, slots=True, kw_only=True)"
    yield f"class {class_name(table.alias)}(TableEntry):"
    yield f'    TABLE: ClassVar[str] = "{table.alias}"'
    names = ", ".join(f'"{field.name}"' for field in table.fields)
    yield f"    MATCH: ClassVar[tuple[str, ...]] = ({names}{',' if len(table.fields) == 1 else ''})"
    yield _widths(table.fields)
    yield ""
    for field in table.fields:
        default = " = ANY" if field.kind is MatchKind.TERNARY else ""
        yield f"    {field.name}: {_TYPES[field.kind]}{default}"
    if table.has_priority:
        yield "    priority: int  # the highest wins"
    choices = [info.actions[id].alias for id, scope in table.actions.items() if scope is not Scope.DEFAULT_ONLY]
    yield f"    action: {' | '.join(map(class_name, choices))}"
    if table.meter is not None:
        yield "    rates: Rates | None = None  # None: every packet is green"
    if table.has_idle_timeout:
        yield "    idle_timeout_ns: int = 0  # 0: never"
