"""Write `dinnet/dataplane/tables.py` from a P4Info: one class for each table and action.

Names and widths are the program's; nobody types them a second time. What the classes cannot carry, the ids and widths
that messages need, `dinnet.dataplane.codec` takes from the P4Info itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from dinnet.switch.p4info import Action, MatchKind, P4Info, Scope, Table

_HEAD: Final = '''"""The pipeline's tables and actions. Generated from its P4Info by `make p4`; not to be edited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from dinnet.dataplane.entity import ANY, Action, Lpm, Rates, TableEntry, Ternary
'''
_TYPES: Final = {MatchKind.EXACT: "int", MatchKind.LPM: "Lpm", MatchKind.TERNARY: "Ternary"}


def tables_source(info: P4Info) -> str:
    """The module's text."""
    actions = list(info.actions.values())
    tables = list(info.tables.values())
    parts = [_HEAD]
    parts += ["\n\n" + "\n".join(_action(action)) + "\n" for action in actions]
    parts += ["\n\n" + "\n".join(_table(info, table)) + "\n" for table in tables]
    for what, kind, views in (("ACTIONS", "Action", actions), ("TABLES", "TableEntry", tables)):
        lines = [f"    {view.alias!r}: {class_name(view.alias)},".replace("'", '"') for view in views]
        parts.append(f"\n\n{what}: Final[dict[str, type[{kind}]]] = {{\n" + "\n".join(lines) + "\n}\n")
    return re.sub(r"\}\n\n\n(?=TABLES)", "}\n", "".join(parts))


def class_name(alias: str) -> str:
    """`forward.drop` -> ForwardDrop."""
    return "".join(part.capitalize() for part in re.split(r"[._]", alias) if part).replace("Noaction", "NoAction")


def _action(action: Action) -> Iterator[str]:
    yield "@dataclass(frozen=True, slots=True)"
    yield f"class {class_name(action.alias)}(Action):"
    yield f'    ALIAS: ClassVar[str] = "{action.alias}"'
    if action.params:
        yield ""
    for param in action.params:
        yield f"    {param.name}: int  # {param.width} bits"


def _table(info: P4Info, table: Table) -> Iterator[str]:
    yield "@dataclass(frozen=True, slots=True, kw_only=True)"
    yield f"class {class_name(table.alias)}(TableEntry):"
    yield f'    TABLE: ClassVar[str] = "{table.alias}"'
    names = ", ".join(f'"{field.name}"' for field in table.fields)
    yield f"    MATCH: ClassVar[tuple[str, ...]] = ({names}{',' if len(table.fields) == 1 else ''})"
    yield ""
    for field in table.fields:
        default = " = ANY" if field.kind is MatchKind.TERNARY else ""
        yield f"    {field.name}: {_TYPES[field.kind]}{default}  # {field.width} bits"
    if table.has_priority:
        yield "    priority: int  # the highest wins"
    choices = [info.actions[id].alias for id, scope in table.actions.items() if scope is not Scope.DEFAULT_ONLY]
    yield f"    action: {' | '.join(map(class_name, choices))}"
    if table.meter is not None:
        yield "    rates: Rates | None = None  # None: every packet is green"
    if table.has_idle_timeout:
        yield "    idle_timeout_ns: int = 0  # 0: never"
