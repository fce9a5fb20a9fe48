"""A compiled P4 program: what describes it to clients (P4Info) and what a switch runs (device config)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from finsy.proto import p4i
from google.protobuf import text_format

from dinnet.errors import DinnetError, reason
from dinnet.switch.p4info import P4Info, parse_p4info

_PACKAGE: Final = Path(__file__).parents[1]
#: The build in the wheel, and in the tree.
_FOLDERS: Final = (_PACKAGE / "_p4", _PACKAGE.parent / "p4" / "build")
P4INFO_NAME: Final = "dinnet.p4info.txtpb"
CONFIG_NAME: Final = "dinnet.json"


@dataclass(frozen=True, slots=True)
class Program:
    info: P4Info
    message: p4i.P4Info
    device_config: bytes

    @property
    def cookie(self) -> int:
        """64 bits that tell this program from others: of SHA-256 over P4Info and device config."""
        digest = hashlib.sha256(self.message.SerializeToString(deterministic=True))
        digest.update(self.device_config)
        return int.from_bytes(digest.digest()[:8], "big")


def load_program(p4info: Path, device_config: Path) -> Program:
    """Read a compiled program.

    Raises:
        DinnetError: A file cannot be read, or the P4Info is none or contradicts itself.
    """
    message = p4i.P4Info()
    try:
        text = p4info.read_text(encoding="utf-8")
        config = device_config.read_bytes()
    except OSError as error:
        raise DinnetError(f"{error.filename}: cannot read: {reason(error)}") from error
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        raise DinnetError(f"{p4info}: not a P4Info in text form: {error}") from error
    return Program(parse_p4info(message), message, config)


def build_folder() -> Path:
    """Where the compiled dinnet pipeline lies.

    Raises:
        DinnetError: Neither in the package nor in the tree.
    """
    for folder in _FOLDERS:
        if (folder / P4INFO_NAME).is_file():
            return folder
    raise DinnetError(f"{_FOLDERS[-1]}: there is no compiled pipeline; `make p4` makes it")


@cache
def dinnet_program() -> Program:
    """The dinnet pipeline as it was compiled last."""
    folder = build_folder()
    return load_program(folder / P4INFO_NAME, folder / CONFIG_NAME)
