"""What the tests of the flow table share: the two sides of one connection, and short words for records."""

from __future__ import annotations

from typing import Any

import numpy as np

SECOND = 1_000_000
FORWARD = ("10.0.0.1", 1000, "10.0.0.2", 80, 6)
BACKWARD = ("10.0.0.2", 80, "10.0.0.1", 1000, 6)


def only(records: np.ndarray[Any, Any]) -> np.void:
    assert len(records) == 1, records[["first_us", "end", "sport", "fwd_packets", "rev_packets"]]
    return records[0]


def ends(records: np.ndarray[Any, Any]) -> list[int]:
    return records["end"].tolist()


def sizes(records: np.ndarray[Any, Any]) -> list[int]:
    return (records["fwd_packets"] + records["rev_packets"]).tolist()
