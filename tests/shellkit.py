"""The interpreter that has p4runtime-shell: P4RUNTIME_SH, else that of the environment that scripts/setup.sh makes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_OWN = Path(__file__).resolve().parents[1] / ".venv-p4rt"
_FOLDER = Path(os.environ.get("P4RT_VENV", _OWN))


def _found() -> str:
    if given := os.environ.get("P4RUNTIME_SH"):
        return given
    installed = _FOLDER / ".installed"
    is_whole = installed.exists() and installed.read_text().strip() != "unfinished"
    return str(_FOLDER / "bin" / "python") if is_whole else ""


SHELL = _found()
needs_shell = pytest.mark.skipif(
    not SHELL, reason="p4runtime-shell is not installed: scripts/setup.sh test installs it"
)
