"""What the controller knows of each switch and host at the moment."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["connecting", "standby", "in charge", "failed"]
_KEPT = 50


@dataclass(slots=True)
class DeviceStatus:
    name: str
    kind: Literal["switch", "host"]
    state: State = "connecting"
    error: str = ""
    problems: tuple[str, ...] = ()  # that keep a part of the intent from coming true
    rounds: int = 0
    changed: int = 0
    errors: int = 0
    in_force: bool = False  # the last round ended with everything as the intent wants it
    last_changes: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def note(self, changes: Iterable[object]) -> None:
        """Remember changes that were made."""
        now = time.time()
        for change in changes:
            self.changed += 1
            self.last_changes.append((now, str(change)))

    def fail(self, why: str) -> None:
        self.state, self.error, self.in_force = "failed", why, False
        self.errors += 1

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name,
            "kind": self.kind,
            "state": self.state,
            "in_force": self.in_force,
            "error": self.error,
            "problems": list(self.problems),
            "rounds": self.rounds,
            "changes": self.changed,
            "errors": self.errors,
            "last_changes": [{"time": when, "change": what} for when, what in self.last_changes],
        }
