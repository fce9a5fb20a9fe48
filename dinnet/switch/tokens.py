"""Token buckets of the pipeline, as the C code wants them. The markers are those of RFC 2698, colour-blind."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

NANO: Final = 10**9
_MAX: Final = 2**64 - 1
#: Larger bursts would not fit in nanobytes.
MAX_BURST_BYTES: Final = _MAX // NANO


class Rates(NamedTuple):
    """What a two-rate three-colour marker is set to: bytes a second, and bytes."""

    cir: int
    cbs: int
    pir: int
    pbs: int


def bucket(rate: int, burst_bytes: int) -> tuple[int, int, int, int]:
    """A full token bucket, in the order of struct token_bucket."""
    burst = min(burst_bytes, MAX_BURST_BYTES) * NANO
    return min(rate, _MAX), burst, burst, -(-burst // rate) if rate else _MAX


def meters(rates: list[Rates | None], layout: np.dtype[Any]) -> NDArray[Any]:
    """Meters with full buckets, (n,) of struct meter; those of None let everything pass."""
    out = np.zeros(len(rates), layout)
    for number, each in enumerate(rates):
        if each is not None:
            out[number] = (0, 1, 0, bucket(each.cir, each.cbs), bucket(each.pir, each.pbs))
    return out


def rates_of(values: NDArray[Any]) -> list[Rates | None]:
    """The reverse of `meters`."""
    return [
        Rates(
            int(row["committed"]["rate"]),
            int(row["committed"]["burst"]) // NANO,
            int(row["peak"]["rate"]),
            int(row["peak"]["burst"]) // NANO,
        )
        if row["configured"]
        else None
        for row in values
    ]
