"""Run code in an interpreter of its own, which can tell the most memory that it has held."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parent

#: Not getrusage: its figure begins with the memory of the process that started this one.
_PEAK = """
import json, sys
def peak_mib():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
"""


def start(code: str, *arguments: str | Path, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """Start `code`, in which `peak_mib()` is known; its last line of output is a JSON object."""
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc for the memory of a process")
    command = [sys.executable, "-c", _PEAK + code, *map(str, arguments)]
    return subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, cwd=TESTS)


def result(child: subprocess.Popen[bytes]) -> dict[str, Any]:
    """What the child has printed, once it has ended well."""
    assert child.stdout is not None
    with child.stdout as out:
        printed = out.read()
    assert child.wait() == 0
    return dict(json.loads(printed.splitlines()[-1]))
