"""Checks that several commands share of their options' values."""

from __future__ import annotations

import math
from pathlib import Path

import typer

from dinnet.errors import DinnetError, reason


def finite(value: float | None) -> float | None:
    """Refuse nan and infinities, which no range check does reliably.

    Raises:
        typer.BadParameter: `value` is one of those.
    """
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number")
    return value


def there(path: Path | None) -> Path | None:
    """Refuse a path to nothing before any work; that is failed work, not wrong use.

    Raises:
        DinnetError: Nothing is there, or it cannot be looked at.
    """
    if path is not None:
        try:
            path.stat()
        except OSError as error:
            raise DinnetError(f"{path}: {reason(error)}") from error
    return path
