# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False, check-untyped-defs=False
# (numba infers the types of kernels from their arguments)
"""Flow records straight from the bytes of a DigestList.

A record has a hundred members; reading as many protobuf objects from Python takes far longer than this.
What does not look as expected is left to the slow way, which tells what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from finsy.proto import p4r
from numpy.typing import NDArray

from dinnet.flows.record import RECORD_DTYPE, Records
from dinnet.jit import compiled

_PORT: Final = -1  # in place of an offset: the value is the ingress port


class WireReader:
    """For digests whose members have these names, each of which a record has, in this order."""

    def __init__(self, names: Sequence[str]) -> None:
        fields: Any = RECORD_DTYPE.fields
        places = []
        for name in names:
            if name == "ingress_port":
                places.append((_PORT, _PORT, 2))
            elif name in ("src", "dst"):
                places.append((fields[f"{name}_lo"][1], fields[f"{name}_hi"][1], 16))
            else:
                places.append((fields[name][1], 0, fields[name][0].itemsize))
        self._places = np.array(places, np.int64)
        self.read(p4r.DigestList())  # compiles now, and not while the first digests wait

    def read(self, listed: p4r.DigestList) -> tuple[Records, NDArray[np.uint16]] | None:
        """Records and ingress ports; None where a value does not fit, or is of another kind."""
        count = len(listed.data)
        records: Records = np.zeros(count, RECORD_DTYPE)
        ports = np.zeros(count, np.uint16)
        data = np.frombuffer(listed.SerializeToString(), np.uint8)
        out = records.view(np.uint8).reshape(count, RECORD_DTYPE.itemsize)
        return (records, ports) if _read(data, self._places, out, ports) == count else None


@compiled
def _varint(data, at):
    """Value and the place behind it; -1 where there is none."""
    value, shift = 0, 0
    while at < len(data) and shift < 63:
        byte = np.int64(data[at])
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    return 0, -1


@compiled
def _read(data, places, out, ports):
    """How many rows there are; -1 where something is not as expected."""
    row, at = 0, 0
    while at < len(data):
        tag, at = _varint(data, at)
        if at < 0 or tag & 7 not in (0, 2):
            return -1
        size, at = _varint(data, at)
        if at < 0:
            return -1
        if tag & 7 == 0:
            continue
        end = at + size
        if end > len(data):
            return -1
        if tag == 0x1A:  # DigestList.data
            if row == len(out) or not _read_row(data, at, end, places, out[row], ports, row):
                return -1
            row += 1
        at = end
    return row


@compiled
def _read_row(data, at, end, places, out, ports, row):
    tag, at = _varint(data, at)
    if at < 0 or tag != 0x2A:  # P4Data.struct
        return False
    size, at = _varint(data, at)
    if at < 0 or at + size != end:
        return False
    for number in range(len(places)):
        if at >= end or data[at] != 0x0A:  # P4StructLike.members
            return False
        size, at = _varint(data, at + 1)
        last = at + size
        if at < 0 or last > end or size < 2:
            return False
        tag = data[at]
        length, start = _varint(data, at + 1)
        if tag == 0x18:  # P4Data.bool
            length, start = 1, last - 1
        elif tag not in (0x0A, 0x62) or start + length != last:  # P4Data.bitstring, P4Data.enum_value
            return False
        if start < 0 or length > places[number, 2]:
            return False
        low, high = places[number, 0], places[number, 1]
        for k in range(length):
            byte = data[last - 1 - k]
            if low < 0:
                ports[row] |= np.uint16(byte) << np.uint16(8 * k)
            elif k < 8:
                out[low + k] = byte
            else:
                out[high + k - 8] = byte
        at = last
    return at == end
