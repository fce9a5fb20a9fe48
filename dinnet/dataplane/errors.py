"""What can go wrong between a controller and a switch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from finsy.p4client import P4ClientError

from dinnet.dataplane.entity import Entity
from dinnet.errors import DinnetError


class SessionLost(DinnetError):
    """The switch cannot be reached any more, or will not talk to this client."""


class Failure(NamedTuple):
    """One update that was refused."""

    operation: str  # insert, modify, delete
    entity: Entity
    code: str  # gRPC's canonical code
    message: str

    def __str__(self) -> str:
        return f"cannot {self.operation} {self.entity}: {self.code}{f', {self.message}' if self.message else ''}"


class WriteFailed(DinnetError):
    """Some updates were refused; the others are in force."""

    def __init__(self, address: str, failures: Sequence[Failure]) -> None:
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        super().__init__(f"{address}: {failures[0]}{more}")
        self.failures = tuple(failures)


def refused(address: str, what: str, error: P4ClientError) -> SessionLost:
    """The switch refused a whole call."""
    return SessionLost(f"{address}: cannot {what}: {error.code.name}: {error.message}")
