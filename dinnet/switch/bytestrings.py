"""Integers as P4Runtime sends them (specification 1.4, "Bytestrings"): big-endian, in as few bytes as hold the value.

Longer strings are read too, for a client may have been built for a program with wider fields; what counts is that the
value fits.
"""

from __future__ import annotations

from dinnet.switch.codes import Code, Refused


def to_bytes(value: int) -> bytes:
    """The canonical string of an unsigned integer; zero is one byte."""
    return value.to_bytes((value.bit_length() + 7) >> 3 or 1, "big")


def to_int(data: bytes, width: int) -> int:
    """The value of a bit<`width`>.

    Raises:
        Refused: OUT_OF_RANGE, for an empty string and for a value that needs more bits.
    """
    value = int.from_bytes(data, "big")
    if value >> width or not data:
        raise out_of_range(data, width)
    return value


def to_signed_bytes(value: int) -> bytes:
    """The canonical string of a signed integer, in two's complement."""
    bits = (value if value >= 0 else ~value).bit_length() + 1
    return value.to_bytes((bits + 7) >> 3, "big", signed=True)


def out_of_range(data: bytes, width: int) -> Refused:
    """The refusal of a string that is no bit<`width`>."""
    if not data:
        return Refused(Code.OUT_OF_RANGE, "the value is an empty string")
    shown = data if len(data) <= 24 else data[:24]
    dots = "..." if shown is not data else ""
    return Refused(Code.OUT_OF_RANGE, f"0x{shown.hex()}{dots} does not fit in {width} bits")
