"""From what a user names (files, folders, globs, "-") to the list of captures to read."""

from __future__ import annotations

import errno
import glob
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from dinnet.errors import DinnetError, UsageError, reason

STDIN: Final = "-"

_FORMATS: Final = (".pcap", ".pcapng", ".cap", ".ntar", ".dmp")
_COMPRESSIONS: Final = ("", ".gz", ".zst", ".zstd")
CAPTURE_SUFFIXES: Final = tuple(kind + packed for kind in _FORMATS for packed in _COMPRESSIONS)


def is_capture_name(name: str) -> bool:
    """Whether a file inside a folder is taken for a capture, by its name."""
    return name.lower().endswith(CAPTURE_SUFFIXES)


def find_captures(names: Iterable[str]) -> list[str]:
    """Every capture once, in the order named; those of a folder or a glob sorted by path.

    Raises:
        DinnetError: A name matches nothing, a folder holds no capture, a file may not be read.
        UsageError: A name is empty, or "-" is mixed with files.
    """
    names = list(names)
    if STDIN in names and len(names) > 1:
        raise UsageError("-: standard input cannot be mixed with files; classify them one after the other")
    found: dict[str, None] = {}
    for name in names:
        found.update(dict.fromkeys(_expand(name)))
    return list(found)


def _expand(name: str) -> list[str]:
    if name == STDIN:
        return [name]
    if not name:
        raise UsageError("an empty file name; name a capture, a folder, or . for this folder")
    path = Path(name)
    try:
        mode = path.stat().st_mode
    except OSError as error:
        if error.errno == errno.ENOENT and path.is_symlink():
            raise DinnetError(f"{name}: is a symbolic link to a file that does not exist") from error
        if error.errno == errno.ENOENT and glob.has_magic(name):
            return _matches(name)
        raise DinnetError(f"{name}: {reason(error)}") from error
    if stat.S_ISDIR(mode):
        return _in_folder(path)
    if not os.access(path, os.R_OK):
        raise DinnetError(f"{name}: not allowed to read it; change its permissions or the user")
    return [name]


def _matches(pattern: str) -> list[str]:
    matches = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 - Path.glob takes no absolute pattern
    files = [match for match in matches if not Path(match).is_dir()]
    for folder in (match for match in matches if Path(match).is_dir()):
        files += [file for file in _captures_below(Path(folder)) if file not in files]
    if not files:
        raise DinnetError(f"{pattern}: no file matches this pattern")
    return files


def _in_folder(folder: Path) -> list[str]:
    captures = _captures_below(folder)
    if not captures:
        raise DinnetError(f"{folder}: no captures in this folder (looked for {', '.join(_FORMATS)}, also .gz and .zst)")
    return captures


def _captures_below(folder: Path) -> list[str]:
    def refuse(error: OSError) -> None:
        raise DinnetError(f"{error.filename}: cannot look into this folder: {reason(error)}") from error

    found = []
    for parent, _, files in os.walk(folder, onerror=refuse):
        paths = [Path(parent, file) for file in files if is_capture_name(file)]
        # Not FIFOs, which would wait for a writer, nor links to nothing: who means those names them.
        found += [str(path) for path in paths if path.is_file()]
    return sorted(found)
