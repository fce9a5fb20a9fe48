"""The status of a batch: one p4.Error for each member, in a google.rpc.Status, in gRPC's trailing metadata."""

from __future__ import annotations

from typing import Final

from finsy.proto import p4r, rpc_status
from google.protobuf.any_pb2 import Any

from dinnet.switch.codes import Code
from dinnet.switch.target import Faults

#: The metadata key that gRPC clients look for.
DETAILS_KEY: Final = "grpc-status-details-bin"
#: What of a status is worth risking that the client's limit on metadata swallows all of it. gRPC's own limit is 8 KiB,
#: finsy sets 64 KiB, and a client that sends large batches knows to raise it (specification, "gRPC Metadata Maximum
#: Size"): so messages are left out before codes are.
MAX_BYTES: Final = 48 << 10

_URL: Final = "type.googleapis.com/p4.v1.Error"
_SHORT_URL: Final = "/p4.v1.Error"  # readers look behind the last slash only


def batch_status(message: str, count: int, faults: Faults) -> bytes:
    """The serialized status of a batch of `count` members."""
    serialized = _status(message, count, faults, _URL, with_messages=True)
    if len(serialized) > MAX_BYTES:
        serialized = _status(message, count, faults, _URL, with_messages=False)
    if len(serialized) > MAX_BYTES:
        serialized = _status(message, count, faults, _SHORT_URL, with_messages=False)
    return serialized


def _status(message: str, count: int, faults: Faults, url: str, *, with_messages: bool) -> bytes:
    status = rpc_status.Status(code=Code.UNKNOWN, message=message)
    good = Any(type_url=url)
    packed: dict[tuple[int, str], Any] = {}
    details = []
    for position in range(count):
        fault = faults.get(position)
        if fault is None:
            details.append(good)
            continue
        text = fault.message if with_messages else ""
        known = packed.get((fault.code, text))
        if known is None:
            error = p4r.Error(canonical_code=fault.code, message=text)
            known = packed[fault.code, text] = Any(type_url=url, value=error.SerializeToString())
        details.append(known)
    status.details.extend(details)
    return status.SerializeToString()
