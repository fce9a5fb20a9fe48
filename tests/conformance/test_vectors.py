"""The golden vectors, played on the embedded switch, and on BMv2 where it is on the PATH.

Outcomes were recorded from BMv2 (`python -m dinnet.dataplane.conformance record`); each file says from which version.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

pytest.importorskip("pyroute2", reason="needs pyroute2, which attaches the switch")
pytest.importorskip("finsy", reason="needs finsy, which brings P4Runtime's messages")

import switchkit

from dinnet.dataplane.conformance.player import PORTS, Player, differences
from dinnet.dataplane.conformance.systems import bmv2, embedded
from dinnet.dataplane.conformance.vectors import load
from dinnet.dataplane.conformance.wires import Wires, wires
from dinnet.dataplane.p4build import SOURCES_HASH
from dinnet.dataplane.program import dinnet_program
from dinnet.dataplane.session import Session

FILES = sorted((Path(__file__).parent / "vectors").glob("*.json"))
GRACE_S = 0.002  # for what should not come
BMV2 = shutil.which("simple_switch_grpc")


def system(name: str, ports: Wires) -> AbstractAsyncContextManager[Session]:
    if name == "embedded":
        return embedded(ports, dinnet_program())
    assert BMV2 is not None
    return bmv2(Path(BMV2), ports, dinnet_program())


@pytest.mark.root
@pytest.mark.parametrize("name", ["embedded", "bmv2"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_switch_does_what_bmv2_did(path: Path, name: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    if name == "bmv2" and BMV2 is None:
        pytest.skip("simple_switch_grpc is not on the PATH")
    if name == "embedded" and (why := switchkit.why_not()):
        pytest.skip(why)

    async def play() -> list[str]:
        found = []
        with wires(PORTS) as ports:
            async with system(name, ports) as session:
                player = Player(session, ports, GRACE_S)
                await player.begin()
                for vector in load(path).vectors:
                    assert vector.expected is not None, f"{vector.name} was not recorded"
                    found += [
                        f"{vector.name}: {line}" for line in differences(vector.expected, await player.play(vector))
                    ]
        return found

    found = asyncio.run(play())
    assert not found, "\n".join(found)


def test_there_are_vectors_of_every_table_and_action() -> None:
    vectors = [vector for path in FILES for vector in load(path).vectors]
    used = {
        (each.get("table") or each.get("default"), each["action"])
        for v in vectors
        for each in v.tables
        if "action" in each
    }
    info = dinnet_program().info
    wanted = {
        (table.alias, info.actions[action].alias)
        for table in info.tables.values()
        for action, scope in table.actions.items()
        if scope.name != "DEFAULT_ONLY"
    }
    assert len(vectors) >= 300
    assert wanted <= used


def test_recorded_from_the_program_that_is_there() -> None:
    assert {load(path).recorded["p4"] for path in FILES} == {SOURCES_HASH.read_text().strip()}


def test_the_inputs_are_those_of_their_subjects() -> None:
    pytest.importorskip("scapy", reason="needs scapy, which builds the packets")
    import json

    from subjects.catalogue import BOOKS

    assert sorted(BOOKS) == [path.stem for path in FILES]
    for path in FILES:
        made = json.loads(json.dumps([vector.tables for vector in BOOKS[path.stem]().vectors]))
        stored = load(path)
        assert made == [list(vector.tables) for vector in stored.vectors], (
            f"{path.stem}: run make_vectors.py and record"
        )
        assert [v.steps for v in BOOKS[path.stem]().vectors] == [v.steps for v in stored.vectors], path.stem


def test_every_file_passes_through_text_unchanged() -> None:
    from dinnet.dataplane.conformance.vectors import dump

    for path in FILES:
        assert dump(load(path)) == path.read_text()
