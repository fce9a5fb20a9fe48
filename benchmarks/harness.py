"""What every benchmark here shares: rounds in turn, a table for people, one JSON object as the last line."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

#: Exit code of a benchmark that could not run; it has printed why.
CANNOT_RUN = 3


def in_turn(rounds: int, sides: Sequence[Callable[[], float]]) -> list[list[float]]:
    """Run each side once per round, one after the other, so that a slow minute slows them all."""
    results: list[list[float]] = [[] for _ in sides]
    for number in range(rounds):
        # Each round begins with another side: none always has the warm place.
        order = [(number + step) % len(sides) for step in range(len(sides))]
        for side in order:
            results[side].append(sides[side]())
    return results


def figure(name: str, unit: str, ours: list[float], peer: str, theirs: list[float]) -> dict[str, Any]:
    """One measured figure; the ratio is the median of the rounds' own ratios.

    Larger is better for dinnet where the unit is a rate, smaller where it is a time.
    """
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    return {
        "name": name,
        "value": round(statistics.median(ours), 3),
        "unit": unit,
        "peer": peer,
        "peer_value": round(statistics.median(theirs), 3),
        "ratio": round(statistics.median(ratios), 2),
        "rounds": len(ours),
    }


def report(figures: Sequence[dict[str, Any]], notes: Sequence[str] = ()) -> None:
    """Print the table, the notes, and the JSON line."""
    columns = ("name", "value", "unit", "peer", "peer_value", "ratio", "rounds")
    rows = [columns, *(tuple(str(entry.get(column, "")) for column in columns) for entry in figures)]
    widths = [max(len(row[index]) for row in rows) for index in range(len(columns))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for note in notes:
        print(note)
    print(json.dumps({entry["name"]: entry for entry in figures} if len(figures) > 1 else figures[0]))


def cannot_run(reason: str) -> None:
    """Say why there is no figure, and exit."""
    print(f"not measured: {reason}")
    sys.exit(CANNOT_RUN)


def run_json(command: Sequence[str], timeout_s: float = 900.0) -> dict[str, Any]:
    """Run a measuring child; its last line of output is a JSON object."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} exited with {done.returncode}: {done.stderr.strip()[-800:]}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))
