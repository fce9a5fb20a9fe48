"""Flow records out of digests: rows of RECORD_DTYPE, the same that the capture reader makes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np
from finsy.proto import p4d, p4r
from numpy.typing import NDArray

from dinnet.dataplane.digestwire import WireReader
from dinnet.flows.record import RECORD_DTYPE, Records
from dinnet.switch.p4info import Digest, LeafKind, Struct

_LOW: Final = (1 << 64) - 1
_HALVED: Final = ("src", "dst")


class FlowRecords(NamedTuple):
    records: Records
    ingress_ports: NDArray[np.uint16]  # where each flow's packet came in


class DigestError(ValueError):
    """A digest that is no flow record."""


class DigestDecoder:
    """Fields of the digest and of the record have one name; those that the digest lacks are 0."""

    def __init__(self, digest: Digest) -> None:
        if not isinstance(digest.layout, Struct):
            raise DigestError(f"digest {digest.name} is no struct")
        names = set(RECORD_DTYPE.names or ())
        self.digest_id = digest.id
        self._leaves = [(name, leaf.kind) for name, leaf in digest.leaves]
        self.absent = frozenset(
            names - {name for name, _ in self._leaves} - {f"{name}_{half}" for name in _HALVED for half in ("hi", "lo")}
        )
        if unknown := [name for name, _ in self._leaves if name not in names | {*_HALVED, "ingress_port"}]:
            raise DigestError(f"digest {digest.name}: no flow record has {', '.join(unknown)}")
        self._wire = WireReader([name for name, _ in self._leaves])

    def decode_list(self, listed: p4r.DigestList) -> FlowRecords:
        """The records of one list, in their order.

        Raises:
            DigestError: A member is missing or of another type.
        """
        found = self._wire.read(listed)
        return FlowRecords(*found) if found is not None else self.decode(listed.data)

    def decode(self, data: Iterable[p4d.P4Data]) -> FlowRecords:
        """The records of one list, in their order.

        Raises:
            DigestError: A member is missing or of another type.
        """
        rows = [self._row(each) for each in data]
        records: Records = np.zeros(len(rows), RECORD_DTYPE)
        ports: NDArray[Any] = np.zeros(len(rows), np.uint16)
        for place, (name, _) in enumerate(self._leaves):
            column = [row[place] for row in rows]
            if name == "ingress_port":
                ports[:] = column
            elif name in _HALVED:
                records[f"{name}_hi"] = [value >> 64 for value in column]
                records[f"{name}_lo"] = [value & _LOW for value in column]
            else:
                records[name] = column
        return FlowRecords(records, ports)

    def _row(self, data: p4d.P4Data) -> list[int]:
        members = data.struct.members
        if len(members) != len(self._leaves):
            raise DigestError(f"a digest with {len(members)} members instead of {len(self._leaves)}")
        row = []
        for member, (_, kind) in zip(members, self._leaves, strict=True):
            if kind is LeafKind.BOOL:
                row.append(int(member.bool))
            else:
                raw = member.enum_value if kind is LeafKind.ENUM else member.bitstring
                row.append(int.from_bytes(raw, "big"))
        return row
