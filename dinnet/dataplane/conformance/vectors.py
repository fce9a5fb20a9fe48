"""Vector files: JSON, one subject each.

    {"subject": ..., "recorded": {"switch": ..., "version": ..., "p4": hash of the sources},
     "vectors": [{"name": ..., "tables": [entities], "steps": [
        {"in": port, "packet": hex, "summary": ..., "repeat": times, "at_once": true,
         "pause_ms": before it,
         "out": [{"port": ..., "packet": hex or "as sent", "times": ...}],
         "to_controller": [...], "records": [flow records]}],
      "counters": {"parsed": {"1": [packets, bytes]}, "microflow": {"0": [packets, bytes]}, ...}}]}

A step with "packet_out" instead of "in" is the controller's: the port it names, 511 for "as if it had come in".
Counters
are those that changed: indexed ones by cell, those of tables by the place of the entry in "tables".
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dinnet.dataplane.conformance.text import TextError
from dinnet.errors import reason

AS_SENT: Final = "as sent"


@dataclass(frozen=True, slots=True)
class Step:
    """One packet, or several times the same."""

    port: int
    packet: bytes
    summary: str = ""
    is_packet_out: bool = False
    repeat: int = 1
    pause_ms: int = 0
    at_once: bool = False  # the repetitions, within a small part of a second


@dataclass(frozen=True, slots=True)
class Seen:
    """What a step made: plain JSON values, in an order that does not depend on the switch."""

    out: list[dict[str, Any]] = field(default_factory=list)
    to_controller: list[dict[str, Any]] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Result:
    steps: tuple[Seen, ...]
    counters: dict[str, dict[str, list[int]]]


@dataclass(frozen=True, slots=True)
class Vector:
    name: str
    tables: tuple[dict[str, Any], ...]
    steps: tuple[Step, ...]
    expected: Result | None = None  # None: not recorded yet


@dataclass(frozen=True, slots=True)
class Subject:
    title: str
    vectors: tuple[Vector, ...]
    recorded: dict[str, str] = field(default_factory=dict)


def load(path: Path) -> Subject:
    """Read a vector file.

    Raises:
        TextError: It cannot be read or is no vector file.
    """
    try:
        value = json.loads(path.read_text())
        vectors = tuple(_vector(each) for each in value["vectors"])
        return Subject(value["subject"], vectors, value.get("recorded", {}))
    except OSError as error:
        raise TextError(f"{path}: cannot read: {reason(error)}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise TextError(f"{path}: no vector file: {error!r}") from error


def _vector(value: dict[str, Any]) -> Vector:
    steps, seen = [], []
    for step in value["steps"]:
        is_packet_out = "packet_out" in step
        steps.append(
            Step(
                step["packet_out" if is_packet_out else "in"],
                bytes.fromhex(step["packet"]),
                step.get("summary", ""),
                is_packet_out,
                step.get("repeat", 1),
                step.get("pause_ms", 0),
                step.get("at_once", False),
            )
        )
        seen.append(Seen(step.get("out", []), step.get("to_controller", []), step.get("records", [])))
    expected = Result(tuple(seen), value["counters"]) if "counters" in value else None
    return Vector(value["name"], tuple(value["tables"]), tuple(steps), expected)


def dump(subject: Subject) -> str:
    """The file's text: one line for each entity, packet and outcome."""
    lines = [f'{{"subject": {json.dumps(subject.title)},']
    if subject.recorded:
        lines.append(f' "recorded": {json.dumps(subject.recorded)},')
    lines.append(' "vectors": [')
    for number, vector in enumerate(subject.vectors):
        lines.append(f'  {{"name": {json.dumps(vector.name)},')
        lines.append(f'   "tables": [{_listed(vector.tables)}],')
        lines.append('   "steps": [')
        for place, step in enumerate(vector.steps):
            lines += _step(step, vector.expected.steps[place] if vector.expected else None)
            lines[-1] += "," if place < len(vector.steps) - 1 else "]"
        if vector.expected is not None:
            lines[-1] += ","
            lines.append(f'   "counters": {json.dumps(vector.expected.counters)}')
        lines[-1] += "}," if number < len(subject.vectors) - 1 else "}"
    return "\n".join([*lines, " ]}", ""])


def _listed(values: tuple[dict[str, Any], ...]) -> str:
    return ",\n              ".join(json.dumps(value) for value in values)


def _step(step: Step, seen: Seen | None) -> list[str]:
    head: dict[str, Any] = {"packet_out" if step.is_packet_out else "in": step.port}
    if step.repeat != 1:
        head["repeat"] = step.repeat
    if step.at_once:
        head["at_once"] = True
    if step.pause_ms:
        head["pause_ms"] = step.pause_ms
    head["summary"] = step.summary
    lines = [f"    {json.dumps(head)[:-1]},", f'     "packet": "{step.packet.hex()}"']
    for name in ("out", "to_controller", "records"):
        if seen is not None and (values := getattr(seen, name)):
            lines[-1] += ","
            lines.append(f'     "{name}": [{", ".join(json.dumps(value) for value in values)}]')
    lines[-1] += "}"
    return lines
