"""`python -m dinnet.dataplane.conformance record|replay`: golden vectors on real switches."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

from dinnet.dataplane.conformance.player import PORTS, Player, differences
from dinnet.dataplane.conformance.systems import bmv2, bmv2_version, embedded
from dinnet.dataplane.conformance.vectors import dump, load
from dinnet.dataplane.conformance.wires import Wires, wires
from dinnet.dataplane.p4build import BUILD, SOURCES_HASH
from dinnet.dataplane.program import Program, dinnet_program
from dinnet.dataplane.session import Session
from dinnet.errors import DinnetError

#: How long to wait for what should not come.
RECORD_GRACE_S = 0.08
REPLAY_GRACE_S = 0.002


def _system(binary: Path | None, ports: Wires, program: Program) -> AbstractAsyncContextManager[Session]:
    return bmv2(binary, ports, program) if binary is not None else embedded(ports, program)


async def record(files: list[Path], binary: Path) -> None:
    """Play every vector on BMv2 and write down what it does."""
    facts = {
        "switch": "BMv2 simple_switch_grpc",
        "version": bmv2_version(binary),
        "p4": SOURCES_HASH.read_text().strip(),
    }
    for path in files:
        subject = load(path)
        vectors = []
        # A new one for each file: BMv2 keeps the memory of every program that it ever had.
        with wires(PORTS) as ports:
            async with bmv2(binary, ports, dinnet_program()) as session:
                player = Player(session, ports, RECORD_GRACE_S)
                await player.begin()
                for vector in subject.vectors:
                    try:
                        found = await player.play(replace(vector, expected=None))
                    except DinnetError as error:
                        raise DinnetError(f"{path.stem}, {vector.name}: {error}") from error
                    vectors.append(replace(vector, expected=found))
        path.write_text(dump(replace(subject, vectors=tuple(vectors), recorded=facts)))
        print(f"{path.stem}: {len(vectors)} vectors", file=sys.stderr)  # noqa: T201


async def replay(files: list[Path], binary: Path | None) -> int:
    """Play every vector and compare; returns how many differ."""
    failed = total = 0
    for path in files:
        with wires(PORTS) as ports:
            async with _system(binary, ports, dinnet_program()) as session:
                player = Player(session, ports, REPLAY_GRACE_S)
                await player.begin()
                for vector in load(path).vectors:
                    if vector.expected is None:
                        raise DinnetError(f"{path.stem}, {vector.name}: not recorded yet")
                    total += 1
                    try:
                        found = differences(vector.expected, await player.play(vector))
                    except DinnetError as error:
                        found = [str(error)]
                    failed += bool(found)
                    for line in found:
                        print(f"{path.stem}, {vector.name}: {line}")  # noqa: T201
    print(f"{total - failed} of {total} vectors pass", file=sys.stderr)  # noqa: T201
    return failed


def _files(given: list[Path]) -> Iterator[Path]:
    for path in given:
        yield from sorted(path.glob("*.json")) if path.is_dir() else [path]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m dinnet.dataplane.conformance", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    default = [BUILD.parents[1] / "tests" / "conformance" / "vectors"]
    for name, is_required in (("record", True), ("replay", False)):
        command = commands.add_parser(name)
        command.add_argument("--bmv2", type=Path, metavar="PATH", required=is_required, help="simple_switch_grpc")
        command.add_argument("files", type=Path, nargs="*", default=default, help="vector files, or folders of them")
    given = parser.parse_args()
    files = list(_files(given.files))
    try:
        if given.command == "record":
            asyncio.run(record(files, given.bmv2))
            return 0
        return 1 if asyncio.run(replay(files, given.bmv2)) else 0
    except DinnetError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    sys.exit(main())
