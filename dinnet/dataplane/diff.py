"""The smallest set of changes from what a switch has to what it should have."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dinnet.dataplane.entity import CloneSession, DefaultEntry, Entity, Group, MeterCell


@dataclass(frozen=True, slots=True)
class Changes:
    """In the order in which they are to be made: what others refer to comes first and goes last."""

    insert: tuple[Entity, ...] = ()
    modify: tuple[Entity, ...] = ()
    delete: tuple[Entity, ...] = ()

    def __len__(self) -> int:
        return len(self.insert) + len(self.modify) + len(self.delete)

    def __str__(self) -> str:
        lines = [f"+ {each}" for each in self.insert]
        lines += [f"~ {each}" for each in self.modify]
        lines += [f"- {each}" for each in self.delete]
        return "\n".join(lines)


class Doubled(ValueError):
    """Two entities with one key are wanted."""


def difference(desired: Iterable[Entity], observed: Iterable[Entity]) -> Changes:
    """What to insert, modify and delete so that a switch that has `observed` has `desired`.

    Entities that only ever are modified (default entries, meter cells) stay as they are where nothing is said about
    them: whoever knows what they begin with puts that among the desired.

    Raises:
        Doubled: Two of the desired entities have one key; names them.
    """
    wanted: dict[tuple[object, ...], Entity] = {}
    for entity in desired:
        other = wanted.setdefault(entity.key, entity)
        if other is not entity and other != entity:
            raise Doubled(f"both {other} and {entity} are wanted")
    there = {entity.key: entity for entity in observed}
    insert: list[Entity] = []
    modify: list[Entity] = []
    for key, entity in wanted.items():
        found = there.get(key)
        if found is None and not isinstance(entity, DefaultEntry | MeterCell):
            insert.append(entity)
        elif found != entity and not (found is None and isinstance(entity, MeterCell) and entity.rates is None):
            modify.append(entity)
    delete = [
        entity
        for key, entity in there.items()
        if key not in wanted and not isinstance(entity, DefaultEntry | MeterCell)
    ]
    return Changes(
        tuple(sorted(insert, key=lambda entity: not isinstance(entity, Group | CloneSession))),
        tuple(sorted(modify, key=lambda entity: not isinstance(entity, Group | CloneSession))),
        tuple(sorted(delete, key=lambda entity: isinstance(entity, Group | CloneSession))),
    )
