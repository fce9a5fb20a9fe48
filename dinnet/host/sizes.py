"""How large HTB's buckets, turns and leaf queues are. Pure functions; rates in bytes per second."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from dinnet.errors import DinnetError, reason

_PSCHED: Final = Path("/proc/net/psched")
_BURST_S: Final = 0.001
#: What the kernel calls too much for a turn, and warns of.
_LARGEST_QUANTUM: Final = 200_000
_QUANTUM_S: Final = 0.001
#: Rates do not go below 8 kbit/s: the kernel refuses a class without a rate.
MIN_RATE: Final = 1_000
_FEWEST_FRAMES: Final = 16
#: CoDel wants room for a burst of a round trip; RFC 8289, section 4.3: the target is 5 to 10 % of the interval.
_INTERVAL_OF_TARGET: Final = 20
_LEAST_INTERVAL_US: Final = 100_000


@dataclass(frozen=True, slots=True)
class Clock:
    """The packet scheduler's clock, as in /proc/net/psched."""

    ticks_per_us: float  # of the unit that buckets are told in; 15.625 on all kernels of today
    timer_s: float  # how late a timer may be: 1 ns with high-resolution timers, else a tick of the kernel

    @classmethod
    def read(cls) -> Self:
        """The running kernel's.

        Raises:
            DinnetError: The kernel has no packet scheduler.
        """
        try:
            ticks_to_us, us_to_ticks, resolution, timer_hz = (int(word, 16) for word in _PSCHED.read_text().split())
        except OSError as error:
            raise DinnetError(f"{_PSCHED}: cannot read the packet scheduler's clock: {reason(error)}") from error
        return cls(ticks_to_us / us_to_ticks * resolution / 1e6, 1 / timer_hz)


def bytes_per_second(rate_bps: int) -> int:
    """A rate as the kernel has it."""
    return max(rate_bps // 8, MIN_RATE)


def burst_bytes(rate: int, frame: int, clock: Clock) -> int:
    """What a class may send at once: a millisecond's worth (or a tick's, where timers are that coarse), and a frame.

    Less, and a class cannot reach its rate, for it waits for the next timer with an empty bucket.
    """
    return math.ceil(rate * max(_BURST_S, clock.timer_s)) + frame


def burst_ticks(rate: int, frame: int, clock: Clock) -> int:
    """`burst_bytes` as the kernel has it: as time at this rate."""
    return math.ceil(burst_bytes(rate, frame, clock) / rate * 1e6 * clock.ticks_per_us)


def ticks_to_bytes(rate: int, ticks: int, clock: Clock) -> int:
    """The reverse: bytes at this rate, as tc prints a burst, in whole microseconds."""
    return int(ticks / clock.ticks_per_us) * rate // 1_000_000


def quantum(guarantee: int, link_rate: int, frame: int) -> int:
    """Bytes a queue sends before the next one of the same priority has its turn: in proportion to the guarantees.

    That is a millisecond's worth, or a tenth, a hundredth... of it on links where that would be too much. At least a
    frame: less is no turn, and the kernel warns below 1,000 bytes and above 200,000 where nothing is said.
    """
    turn_s = _QUANTUM_S
    while link_rate * turn_s > _LARGEST_QUANTUM:
        turn_s /= 10
    return min(max(math.floor(guarantee * turn_s + 1e-9), frame), _LARGEST_QUANTUM)


def fifo_bytes(ceiling: int, target_delay_ms: float, frame: int) -> int:
    """Room of a plain queue: what its ceiling sends in the target delay, but some frames at least, or TCP starves."""
    return max(int(ceiling * target_delay_ms / 1000), _FEWEST_FRAMES * frame)


def codel_target_us(ceiling: int, target_delay_ms: float, frame: int) -> int:
    """CoDel's target, never below the time of 1.5 frames: a queue of one frame is none (RFC 8290, section 5.2.1)."""
    return max(int(target_delay_ms * 1000), math.ceil(1.5 * frame / ceiling * 1e6))


def codel_interval_us(target_us: int) -> int:
    """CoDel's interval."""
    return max(_LEAST_INTERVAL_US, _INTERVAL_OF_TARGET * target_us)


def codel_time_us(time_us: int) -> int:
    """A time as CoDel gives it back: it counts in units of 1,024 ns."""
    return (time_us * 1000 >> 10 << 10) // 1000
