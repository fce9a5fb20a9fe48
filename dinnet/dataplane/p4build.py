"""Compile the P4 program: `python -m dinnet.dataplane.p4build`, or `make p4`.

What p4c makes of it lies in p4/build with the hash of the sources, so that nobody needs p4c to run the project.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from dinnet.dataplane.generate import tables_source
from dinnet.dataplane.program import CONFIG_NAME, P4INFO_NAME, load_program
from dinnet.errors import DinnetError

TREE: Final = Path(__file__).parents[2]
SOURCES: Final = TREE / "p4"
BUILD: Final = SOURCES / "build"
SOURCES_HASH: Final = BUILD / "sources.sha256"
TABLES: Final = Path(__file__).parent / "tables.py"
_COMPILER: Final = "p4c-bm2-ss"


def sources_hash() -> str:
    """SHA-256 over names and contents of the P4 sources."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.rglob("*.p4")):
        data = path.read_bytes()
        digest.update(f"{path.relative_to(SOURCES)} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()


def build() -> str:
    """Compile; returns what the compiler said.

    Raises:
        DinnetError: There is no compiler, or it complained.
    """
    if shutil.which(_COMPILER) is None:
        raise DinnetError(f"compiling the pipeline needs {_COMPILER} (p4c) on the PATH")
    with tempfile.TemporaryDirectory() as folder:
        info, config = Path(folder, P4INFO_NAME), Path(folder, CONFIG_NAME)
        command = [_COMPILER, "--arch", "v1model", "--p4runtime-files", str(info), "-o", str(config), "dinnet.p4"]
        done = subprocess.run(command, cwd=SOURCES, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise DinnetError(f"{_COMPILER} failed:\n{done.stderr.strip()}")
        source = tables_source(load_program(info, config).info, config.read_bytes())
        BUILD.mkdir(exist_ok=True)
        (BUILD / P4INFO_NAME).write_bytes(info.read_bytes())
        (BUILD / CONFIG_NAME).write_text(json.dumps(_without_places(json.loads(config.read_text()))) + "\n")
        TABLES.write_text(source)
        SOURCES_HASH.write_text(f"{sources_hash()}\n")
    return done.stderr


def _without_places(value: Any) -> Any:
    """What the compiler made, without the places in the sources that each part came from: they are half of it."""
    if isinstance(value, dict):
        return {name: _without_places(each) for name, each in value.items() if name != "source_info"}
    return [_without_places(each) for each in value] if isinstance(value, list) else value


if __name__ == "__main__":
    try:
        sys.stderr.write(build())
    except DinnetError as error:
        sys.exit(f"error: {error}")
