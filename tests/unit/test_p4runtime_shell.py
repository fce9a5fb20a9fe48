"""p4runtime-shell drives the server unmodified. It lives in an environment of its own: see tests/shellkit.py."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from google.protobuf import text_format
from p4infokit import dinnet_p4info
from p4rtkit import running
from shellkit import SHELL, needs_shell

from dinnet.switch.codes import Code


@needs_shell
def test_a_session_of_the_shell(tmp_path: Path) -> None:
    p4info = tmp_path / "dinnet.p4info.txtpb"
    p4info.write_text(text_format.MessageToString(dinnet_p4info()))
    script = Path(__file__).parent.parent / "shell_session.py"
    with running() as server:
        command = [SHELL, str(script), server.address, str(p4info)]
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
