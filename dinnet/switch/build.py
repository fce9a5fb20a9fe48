"""Compile the pipeline and what measures queues: `python -m dinnet.switch.build`, or `make bpf`.

The object lies in the package, beside its sources, so that a switch needs neither clang nor the sources' headers. It
is the same file in the tree and in the wheel. The hash of the sources lies beside it.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from dinnet.errors import DinnetError

FOLDER: Final = Path(__file__).parent / "bpf"
OBJECT: Final = FOLDER / "switch.bpf.o"
#: What measures the kernel's queues, where it can be loaded.
QUEUES_OBJECT: Final = FOLDER / "queues.bpf.o"
SOURCES_HASH: Final = FOLDER / "switch.bpf.sources.sha256"
#: The P4 program's; only in the tree, not in the wheel.
SIZES: Final = Path(__file__).parents[2] / "p4" / "include" / "sizes.p4"
_FLAGS: Final = ("-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", "-Werror")
#: Where Debian keeps asm/types.h, which clang for BPF does not look for.
_MULTIARCH: Final = ("/usr/include/x86_64-linux-gnu", "/usr/include/aarch64-linux-gnu")


def sources_hash() -> str:
    """SHA-256 over names and contents of everything that the objects are made of."""
    digest = hashlib.sha256()
    for path in [*sorted(p for p in FOLDER.iterdir() if p.suffix in (".c", ".h")), SIZES]:
        data = path.read_bytes()
        digest.update(f"{path.name} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()


def build() -> None:
    """Compile the objects, without debugging information but with their types.

    Raises:
        DinnetError: A tool is missing, or the compiler complained.
    """
    for tool, package in (("clang", "clang"), ("llvm-strip", "llvm")):
        if shutil.which(tool) is None:
            raise DinnetError(f"compiling the switch needs {tool}: apt-get install {package} libbpf-dev")
    includes = [f"-I{folder}" for folder in _MULTIARCH if Path(folder).is_dir()]
    for target in (OBJECT, QUEUES_OBJECT):
        # The same object wherever the tree lies: line information names files by where they are in it.
        prefix = f"-ffile-prefix-map={FOLDER.resolve()}=."
        _run("clang", *_FLAGS, prefix, *includes, "-c", f"{target.stem}.c", "-o", target.name)
        _run("llvm-strip", "-g", target.name)
    SOURCES_HASH.write_text(f"{sources_hash()}\n")


def _run(*command: str) -> None:
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise DinnetError(f"{command[0]} failed:\n{done.stderr.strip()}")


if __name__ == "__main__":
    try:
        build()
    except DinnetError as error:
        sys.exit(f"error: {error}")
