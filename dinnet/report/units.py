"""Numbers as people read them."""

from __future__ import annotations

from datetime import UTC, datetime


def human_bytes(value: float) -> str:
    """Bytes with a decimal prefix, three digits: 999 B, 1.23 kB, 45.6 MB."""
    return _scaled(value, ("B", "kB", "MB", "GB", "TB", "PB", "EB"))


def human_count(value: float) -> str:
    """A count with a decimal prefix: 999, 1.23k, 45.6M."""
    return _scaled(value, ("", "k", "M", "G", "T", "P", "E")).replace(" ", "")


def _scaled(value: float, prefixes: tuple[str, ...]) -> str:
    step = 0
    while value >= 999.5 and step + 1 < len(prefixes):
        value /= 1000
        step += 1
    digits = 0 if step == 0 or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f} {prefixes[step]}"


def human_duration(microseconds: float) -> str:
    """A time span: 12 us, 3.4 ms, 5.67 s, 3 min 20 s, 2 h 5 min, 3 d 4 h."""
    if microseconds < 1_000:
        return f"{microseconds:.0f} us"
    if microseconds < 999_500:
        return f"{microseconds / 1_000:.3g} ms"
    seconds = microseconds / 1e6
    if seconds < 99.5:
        return f"{seconds:.3g} s"
    minutes, seconds = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def human_time(time_us: int) -> str:
    """A moment in UTC, to the second; out of the calendar's range the plain number of seconds."""
    try:
        return datetime.fromtimestamp(time_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"{time_us / 1e6:.0f} s"
