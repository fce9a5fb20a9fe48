"""One script drives both switches through p4runtime-shell, which knows nothing of dinnet.

It lives in an environment of its own: see tests/shellkit.py.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("pyroute2", reason="needs pyroute2, which attaches the switch")
pytest.importorskip("finsy", reason="needs finsy, which brings P4Runtime's messages")

import switchkit
from shellkit import SHELL, needs_shell

from dinnet.dataplane.conformance.systems import bmv2, embedded
from dinnet.dataplane.conformance.wires import wires
from dinnet.dataplane.program import CONFIG_NAME, P4INFO_NAME, build_folder, dinnet_program

BMV2 = shutil.which("simple_switch_grpc")
SCRIPT = Path(__file__).parents[1] / "shell_session.py"
FRAME = b"hello"


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
@needs_shell
@pytest.mark.parametrize("name", ["embedded", "bmv2"])
def test_a_session_of_the_shell(name: str) -> None:
    if name == "bmv2" and BMV2 is None:
        pytest.skip("simple_switch_grpc is not on the PATH")
    if name == "embedded" and (why := switchkit.why_not()):
        pytest.skip(why)

    def shell(address: str) -> dict[str, object]:
        folder = build_folder()
        command = [SHELL, str(SCRIPT), address, str(folder / P4INFO_NAME), str(folder / CONFIG_NAME)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    async def run() -> dict[str, object]:
        with wires(6) as ports:
            program = dinnet_program()
            async with (
                bmv2(Path(BMV2 or ""), ports, program) if name == "bmv2" else embedded(ports, program) as session
            ):
                await session.close()  # the shell is to be primary
                seen = await asyncio.to_thread(shell, session.address)
                for _ in range(100):
                    if out := ports.received():
                        break
                    await asyncio.sleep(0.05)
                assert out == [(5, bytes(14) + FRAME)]
                return seen

    names = "ingress_port forward_v4 forward_v6 forward_l2 dscp_to_mark mark_to_dscp slice_select exceed"
    tables = [*names.split(), "int_source", "int_node"]
    assert asyncio.run(run()) == {
        "tables": {table: [True, True, 0] for table in tables},  # read as written, in shortest bytes, and gone
        "refused": [3, 3],  # INVALID_ARGUMENT
        "slice_meter": [[10, 20, 30, 40]],
        "microflow_counter": [[3, 200]],
        "packet_ins": [True] * 4,
        "record_ports": ["03e8", "50"],
        "duplicate": [[0, 6]],  # ALREADY_EXISTS
        "entries": ["07"],
        "meters": [[1, 4]],
        "replicas": [[5, 1], [6, 1]],
        "drops": [0, 4, 0, 0, 0, 0, 0, 0],
        "left": 0,
    }
