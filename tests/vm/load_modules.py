"""Load kernel modules without kmod: `load_modules.py FOLDER NAME...`, each after what it needs."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from pathlib import Path
from typing import Final

_FINIT_MODULE: Final = 313  # x86_64; no wrapper in the C library


def load(folder: Path, names: list[str]) -> None:
    """Load modules by their file names without .ko; those that are there already are left alone.

    Raises:
        OSError: The kernel refused one.
    """
    needs = {
        Path(line.partition(":")[0]).stem: [line.partition(":")[0], *line.partition(":")[2].split()]
        for line in (folder / "modules.dep").read_text().splitlines()
    }
    libc = ctypes.CDLL(None, use_errno=True)
    for name in names:
        for module in reversed(needs[name]):  # modules.dep lists the deepest need last
            descriptor = os.open(folder / module, os.O_RDONLY | os.O_CLOEXEC)
            refused = libc.syscall(_FINIT_MODULE, descriptor, b"", 0) and ctypes.get_errno()
            os.close(descriptor)
            if refused and refused != errno.EEXIST:
                raise OSError(refused, os.strerror(refused), module)


if __name__ == "__main__":
    load(Path(sys.argv[1]), sys.argv[2:])
