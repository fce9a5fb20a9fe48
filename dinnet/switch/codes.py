"""Why something asked of the switch was refused, in gRPC's canonical codes."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from dinnet.errors import DinnetError


class Code(IntEnum):
    """The canonical codes (google/rpc/code.proto) that P4Runtime gives a meaning."""

    OK = 0
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class Fault(NamedTuple):
    """What became of one member of a batch that did not succeed."""

    code: Code
    message: str


class Refused(DinnetError):
    """The client asked for something that it must not ask for, or that there is no room for."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def fault(self) -> Fault:
        return Fault(self.code, str(self))


def invalid(message: str) -> Refused:
    """The commonest refusal."""
    return Refused(Code.INVALID_ARGUMENT, message)
