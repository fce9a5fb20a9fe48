"""p4runtime-shell drives the server unmodified.

It pins a protobuf that dinnet does not live with, so that it needs an environment of its own:

    python3 -m venv /some/where && /some/where/bin/pip install p4runtime-shell
    P4RUNTIME_SH=/some/where/bin/python make test
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from google.protobuf import text_format
from p4infokit import dinnet_p4info
from p4rtkit import running

from dinnet.switch.codes import Code

SHELL = os.environ.get("P4RUNTIME_SH")


@pytest.mark.skipif(not SHELL, reason="P4RUNTIME_SH names no interpreter that has p4runtime-shell")
def test_a_session_of_the_shell(tmp_path: Path) -> None:
    p4info = tmp_path / "dinnet.p4info.txtpb"
    p4info.write_text(text_format.MessageToString(dinnet_p4info()))
    script = Path(__file__).parent.parent / "shell_session.py"
    with running() as server:
        command = [str(SHELL), str(script), server.address, str(p4info)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == {
            "duplicate": [[0, Code.ALREADY_EXISTS]],
            "entries": ["07"],
            "meters": [[1, 4]],
            "replicas": [[5, 1], [6, 1]],
            "drops": [0, 4, 0, 0, 0, 0, 0, 0],
            "left": 0,
        }
        assert server.target.packets_out == [(bytes(14) + b"hello", (5, 0))]
