"""One row a flow: what every output format, the summary and the report are made from."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from dinnet.flows.record import End, Records

#: Names of `class_id`, in the classifier's own order (checked against it by a test).
CLASS_NAMES: Final = ("prefill", "decode", "control", "data", "unclassified")
UNCLASSIFIED: Final = len(CLASS_NAMES) - 1

#: Names of `end`, by the value of `End`.
END_NAMES: Final = tuple(reason.name.lower() for reason in End)

#: Value of the three yes/no outputs where they do not apply.
UNKNOWN: Final = -1

#: One flow at one checkpoint. Addresses are two halves, as in the flow record.
ROW_DTYPE: Final = np.dtype(
    [
        ("src_hi", "<u8"),
        ("src_lo", "<u8"),
        ("dst_hi", "<u8"),
        ("dst_lo", "<u8"),
        ("first_us", "<i8"),
        ("last_us", "<i8"),
        ("packets", "<u8"),
        ("bytes", "<u8"),
        ("fwd_bytes", "<u8"),
        ("rev_bytes", "<u8"),
        ("fwd_packets", "<u4"),
        ("rev_packets", "<u4"),
        ("flow_label", "<u4"),
        ("tunnel_id", "<u4"),
        ("checkpoint", "<u4"),
        ("file", "<u4"),  # index into the list of captures
        ("confidence", "<f4"),  # of the class as the classifier gave it, 0 to 1; NaN where it gave none
        ("gap_us", "<f4"),  # mean gap between bursts over both directions; NaN with fewer than two bursts
        ("sport", "<u2"),
        ("dport", "<u2"),
        ("vlan", "<u2"),
        ("inner_vlan", "<u2"),
        ("proto", "u1"),
        ("class_id", "u1"),  # index into CLASS_NAMES
        ("end", "u1"),  # an `End`
        ("streaming", "i1"),  # 1, 0, or UNKNOWN
        ("first_request", "i1"),
        ("large_model", "i1"),
    ]
)

Rows = NDArray[np.void]
"""A structured array of ROW_DTYPE, shape (n,)."""

_COPIED: Final = (
    *("src_hi", "src_lo", "dst_hi", "dst_lo", "first_us", "fwd_bytes", "rev_bytes", "fwd_packets", "rev_packets"),
    *("flow_label", "tunnel_id", "checkpoint", "sport", "dport", "vlan", "inner_vlan", "proto", "end"),
)


def flow_rows(records: Records, verdicts: NDArray[np.void], *, min_confidence: float = 0.0, file: int = 0) -> Rows:
    """Join flow records and what the classifier said of them.

    Args:
        records: RECORD_DTYPE (n,).
        verdicts: VERDICT_DTYPE (n,), of the same records.
        min_confidence: A class with less confidence than this becomes `unclassified`.
        file: Index of the capture that the records come from.

    Returns:
        ROW_DTYPE (n,), in the order of `records`. The yes/no outputs are the more likely answer, and
        UNKNOWN for every class but prefill and decode, and where the classifier gave none.
    """
    rows = np.empty(len(records), ROW_DTYPE)
    for name in _COPIED:
        rows[name] = records[name]
    rows["last_us"] = records["first_us"] + records["duration_us"].astype(np.int64)
    rows["packets"] = records["fwd_packets"].astype(np.uint64) + records["rev_packets"]
    rows["bytes"] = _saturating_sum(records["fwd_bytes"], records["rev_bytes"])
    rows["file"] = file
    rows["gap_us"] = _mean_gap(records)

    rows["confidence"] = verdicts["confidence"]
    rows["class_id"] = np.where(verdicts["confidence"] < min_confidence, UNCLASSIFIED, verdicts["class_id"])
    applies = rows["class_id"] <= CLASS_NAMES.index("decode")
    for name in ("streaming", "first_request", "large_model"):
        known = applies & ~np.isnan(verdicts[name])
        rows[name] = np.where(known, verdicts[name] >= 0.5, UNKNOWN)
    return rows


def _saturating_sum(left: NDArray[np.uint64], right: NDArray[np.uint64]) -> NDArray[np.uint64]:
    total = left + right
    total[total < left] = np.iinfo(np.uint64).max
    return total


def _mean_gap(records: Records) -> NDArray[np.float64]:
    gaps = np.zeros(len(records), np.int64)
    total = np.zeros(len(records), np.float64)
    for side in ("fwd", "rev"):
        gaps += np.maximum(records[f"{side}_bursts"].astype(np.int64) - 1, 0)
        total += records[f"{side}_gap_sum_us"]
    return np.where(gaps > 0, total / np.maximum(gaps, 1), np.nan)


def protocol_name(number: int) -> str:
    """The usual short name of an IP protocol, else its number."""
    return _PROTOCOLS.get(number, str(number))


_PROTOCOLS: Final = {
    1: "icmp",
    2: "igmp",
    4: "ipip",
    6: "tcp",
    17: "udp",
    33: "dccp",
    41: "ip6",
    46: "rsvp",
    47: "gre",
    50: "esp",
    51: "ah",
    58: "icmp6",
    88: "eigrp",
    89: "ospf",
    103: "pim",
    112: "vrrp",
    115: "l2tp",
    132: "sctp",
    136: "udplite",
}
