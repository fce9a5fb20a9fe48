# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False, check-untyped-defs=False
# (numba infers the types of kernels from their arguments)
"""From flow records to the numbers that the classifier looks at.

One compiled function, used for training and online alike, so that the same record gives the same
bits everywhere. Only IEEE additions, divisions and square roots are used (no libm logarithm, whose
last bit differs between machines), and every value is finite for every possible record: a mean of
nothing is 0, a duration counts as at least one microsecond, unset minima count as 0, and a variance
from sums is clipped to what its minimum and maximum allow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dinnet.errors import UsageError
from dinnet.flows.record import (
    COMMON_DTYPE,
    DIRECTION_DTYPE,
    DIRECTION_FIELDS,
    RECORD_DTYPE,
    SPLT_PACKETS,
    SPLT_TURNS,
    UNSET,
    Records,
)
from dinnet.jit import compiled


@dataclass(frozen=True)
class Feature:
    """One column of the feature matrix."""

    name: str
    unit: str
    formula: str  # in words, with the record's own field names
    fields: tuple[str, ...]  # fields of the flow record that the value depends on


#: Columns over both directions: name, unit, formula, common fields, direction fields (both sides of each).
_TOTAL: Final = (
    ("packet_size_mean", "bytes", "bytes / packets", "", "bytes packets"),
    (
        "inter_arrival_std",
        "us",
        "standard deviation of the inter-arrival times of both directions pooled (each taken within its own direction)",
        "",
        "iat_sum_us iat_sumsq_us packets iat_min_us iat_max_us",
    ),
    ("flow_duration_ms", "ms", "duration_us / 1000", "duration_us", ""),
    ("direction_ratio", "1", "fwd_packets / packets", "", "packets"),
    (
        "tcp_window_mean",
        "bytes",
        "window_sum / (packets - rst), as sent, unscaled; 0 for other protocols",
        "",
        "window_sum packets rst",
    ),
    (
        "packet_size_std",
        "bytes",
        "standard deviation of the IP length over both directions",
        "",
        "bytes len_sumsq packets len_min len_max",
    ),
    ("packet_size_min", "bytes", "smallest IP length", "", "len_min packets"),
    ("packet_size_max", "bytes", "largest IP length", "", "len_max"),
    ("inter_arrival_mean", "us", "iat_sum_us / (fwd_packets - 1 + rev_packets - 1)", "", "iat_sum_us packets"),
    ("byte_direction_ratio", "1", "fwd_bytes / bytes", "", "bytes"),
    ("payload_direction_ratio", "1", "fwd_payload_bytes / payload_bytes", "", "payload_bytes"),
    ("burst_direction_ratio", "1", "fwd_bursts / bursts", "", "bursts"),
    ("packets_log2", "log2", "scale of packets", "", "packets"),
    ("payload_log2", "log2", "scale of payload_bytes", "", "payload_bytes"),
    ("packet_rate", "1/s", "packets / duration", "duration_us", "packets"),
    ("byte_rate", "bytes/s", "bytes / duration", "duration_us", "bytes"),
    ("burst_rate", "1/s", "bursts / duration", "duration_us", "bursts"),
    ("payload_fraction", "1", "payload_packets / packets", "", "payload_packets packets"),
    ("full_segment_ratio", "1", "full_segments / payload_packets", "", "full_segments payload_packets"),
    ("turns_per_packet", "1", "turns / payload_packets", "turns", "payload_packets"),
    ("turns_log2", "log2", "scale of turns", "turns", ""),
    ("bytes_per_turn", "bytes", "payload_bytes / (turns + 1)", "turns", "payload_bytes"),
    ("time_per_turn", "ms", "duration_us / 1000 / (turns + 1)", "turns duration_us", ""),
    ("is_tcp", "1", "1 where proto is 6, else 0", "proto", ""),
    ("is_udp", "1", "1 where proto is 17, else 0", "proto", ""),
)

#: Columns of each direction, named fwd_* and rev_*.
_DIRECTION: Final = (
    ("packet_size_mean", "bytes", "bytes / packets", "", "bytes packets"),
    ("packet_size_std", "bytes", "standard deviation of the IP length", "", "bytes len_sumsq packets len_min len_max"),
    ("packet_size_min", "bytes", "len_min", "", "len_min packets"),
    ("packet_size_max", "bytes", "len_max", "", "len_max"),
    ("inter_arrival_mean", "us", "iat_sum_us / (packets - 1)", "", "iat_sum_us packets"),
    (
        "inter_arrival_std",
        "us",
        "standard deviation of the inter-arrival times",
        "",
        "iat_sum_us iat_sumsq_us packets iat_min_us iat_max_us",
    ),
    ("inter_arrival_min", "us", "iat_min_us", "", "iat_min_us"),
    ("inter_arrival_max", "us", "iat_max_us", "", "iat_max_us"),
    ("burst_gap_mean", "ms", "gap_sum_us / 1000 / (bursts - 1)", "", "gap_sum_us bursts"),
    ("burst_gap_std", "ms", "standard deviation of the gaps between bursts", "", "gap_sum_us gap_sumsq_us bursts"),
    ("burst_gap_cv", "1", "burst_gap_std / burst_gap_mean", "", "gap_sum_us gap_sumsq_us bursts"),
    ("idle_share", "1", "gap_sum_us / duration_us", "duration_us", "gap_sum_us"),
    ("bursts_log2", "log2", "scale of bursts", "", "bursts"),
    ("burst_bytes_mean", "bytes", "payload_bytes / bursts", "", "payload_bytes bursts"),
    ("burst_bytes_max", "bytes", "burst_max_bytes", "", "burst_max_bytes"),
    ("burst_packets_mean", "packets", "payload_packets / bursts", "", "payload_packets bursts"),
    ("burst_peak_share", "1", "burst_max_bytes / payload_bytes", "", "burst_max_bytes payload_bytes"),
    ("payload_log2", "log2", "scale of payload_bytes", "", "payload_bytes"),
    ("payload_mean", "bytes", "payload_bytes / payload_packets", "", "payload_bytes payload_packets"),
    ("payload_fraction", "1", "payload_packets / packets", "", "payload_packets packets"),
    ("full_segment_ratio", "1", "full_segments / payload_packets", "", "full_segments payload_packets"),
    ("pure_ack_ratio", "1", "pure_ack / packets", "", "pure_ack packets"),
    ("psh_ratio", "1", "psh / payload_packets", "", "psh payload_packets"),
    ("window_mean", "bytes", "window_sum / (packets - rst), as sent, unscaled", "", "window_sum packets rst"),
    ("turn_delay_mean", "ms", "turn_delay_sum_us / 1000 / (turns / 2, at least 1)", "turns", "turn_delay_sum_us"),
    ("turn_delay_max", "ms", "turn_delay_max_us / 1000", "", "turn_delay_max_us"),
    ("bytes_per_turn", "bytes", "payload_bytes / (turns / 2 + 1)", "turns", "payload_bytes"),
)

#: Columns of the flow's beginning, named by their number from 1: name, unit, formula, fields, how many.
_OPENING: Final = (
    ("splt_bytes", "bytes", "splt_bytes_{k}, negative where bit {k} - 1 of splt_rev is set", "splt_bytes_{k} splt_rev"),
    ("splt_gap", "ms", "splt_gap_us_{k} / 1000", "splt_gap_us_{k}"),
    ("turn_log2", "log2", "scale of turn_bytes_{k}, negative for a reverse turn", "turn_bytes_{k} splt_rev"),
    ("turn_wait", "ms", "turn_wait_us_{k} / 1000", "turn_wait_us_{k}"),
)
_OPENING_COUNTS: Final = (SPLT_PACKETS, SPLT_PACKETS, SPLT_TURNS, SPLT_TURNS)

_N_TOTAL: Final = len(_TOTAL)
_N_OPENING: Final = sum(_OPENING_COUNTS)
_N_DIRECTION: Final = len(_DIRECTION)


def _table() -> tuple[Feature, ...]:
    def both_sides(fields: str) -> list[str]:
        return [f"{side}_{name}" for side in ("fwd", "rev") for name in fields.split()]

    rows = [
        Feature(name, unit, formula, tuple(common.split() + both_sides(sided)))
        for name, unit, formula, common, sided in _TOTAL
    ]
    for (name, unit, formula, common), count in zip(_OPENING, _OPENING_COUNTS, strict=True):
        rows += [
            Feature(f"{name}_{k}", unit, formula.format(k=k), tuple(common.format(k=k).split()))
            for k in range(1, count + 1)
        ]
    for side in ("fwd", "rev"):
        rows += [
            Feature(
                f"{side}_{name}", unit, f"{formula}, of the {side} direction",
                tuple(common.split() + [f"{side}_{field}" for field in sided.split()]),
            )
            for name, unit, formula, common, sided in _DIRECTION
        ]  # fmt: skip
    return tuple(rows)


#: Every feature, in the order of the matrix's columns. "Scale of x" is the base-2 logarithm of
#: x + 1, linear between powers of two: integer arithmetic can compute it, and it is the same everywhere.
FEATURES: Final = _table()
FEATURE_NAMES: Final = tuple(feature.name for feature in FEATURES)

#: The record as one common part and two equal directions: the same bytes, other names.
_NESTED: Final = np.dtype([("common", COMMON_DTYPE), ("fwd", DIRECTION_DTYPE), ("rev", DIRECTION_DTYPE)])
assert _NESTED.itemsize == RECORD_DTYPE.itemsize

_WIDTH: Final = len(FEATURES)
_UNSET: Final = np.uint32(UNSET)


def features(records: Records) -> NDArray[np.float32]:
    """The feature matrix of `records` (RECORD_DTYPE, shape (n,)): float32, shape (n, len(FEATURES)), finite."""
    if records.dtype != RECORD_DTYPE or records.ndim != 1:
        raise UsageError(f"features need a one-dimensional array of flow records, not {records.ndim} x {records.dtype}")
    flags = records.flags
    if not (flags.c_contiguous and flags.writeable):
        # One layout means one compiled version; read-only and strided views are rare and small.
        records = records.copy()
    out = np.empty((len(records), _WIDTH), np.float32)
    _fill(records.view(_NESTED), out)
    return out


def features_for(absent_fields: Iterable[str]) -> tuple[str, ...]:
    """Names of the features that a producer without `absent_fields` can still give, in column order.

    A field is named as in the record (`fwd_window_sum`), or without its side for both (`window_sum`).
    """
    known = set(RECORD_DTYPE.names or ())
    sided = {name for name, _ in DIRECTION_FIELDS}
    absent: set[str] = set()
    for field in absent_fields:
        if field in known:
            absent.add(field)
        elif field in sided:
            absent |= {f"fwd_{field}", f"rev_{field}"}
        else:
            raise UsageError(f"a flow record has no field named {field!r}")
    return tuple(feature.name for feature in FEATURES if absent.isdisjoint(feature.fields))


@compiled
def _ratio(part, whole):
    """part / whole, 0 where there is no whole."""
    return part / whole if whole > 0.0 else 0.0


@compiled
def _share(part, whole):
    """part / whole, at most 1 even where a sum has saturated."""
    return min(part / whole, 1.0) if whole > 0.0 else 0.0


@compiled
def _scale(value):
    """log2(value + 1), linear between powers of two."""
    mantissa, exponent = math.frexp(value + 1.0)
    return exponent + 2.0 * mantissa - 2.0


@compiled
def _std(count, total, squares, low, high):
    """Standard deviation (of the population) from sums, 0 for fewer than two values.

    Cancellation and saturation can push the variance of sums below 0 or above what is possible; no
    values between `low` and `high` deviate by more than half their distance (Popoviciu's inequality).
    """
    if count < 2.0 or high <= low:
        return 0.0
    variance = (squares - total * (total / count)) / count
    return min(math.sqrt(variance), 0.5 * (high - low)) if variance > 0.0 else 0.0


@compiled
def _or_zero(value):
    """A minimum as a float, 0 where it was never set."""
    return 0.0 if value == _UNSET else float(value)


@compiled
def _direction(d, turns, duration_us, out, row, at):
    """Write the columns of `_DIRECTION` from column `at` on."""
    packets = float(d["packets"])
    payload_packets = float(d["payload_packets"])
    bytes_ = float(d["bytes"])
    payload = float(d["payload_bytes"])
    bursts = float(d["bursts"])
    gap_sum = float(d["gap_sum_us"])
    iat_max = float(d["iat_max_us"])
    gap_mean = _ratio(gap_sum, bursts - 1.0)
    gap_std = _std(bursts - 1.0, gap_sum, float(d["gap_sumsq_us"]), 0.0, gap_sum)

    out[row, at] = _ratio(bytes_, packets)
    out[row, at + 1] = _std(packets, bytes_, float(d["len_sumsq"]), float(d["len_min"]), float(d["len_max"]))
    out[row, at + 2] = _or_zero(d["len_min"]) if packets > 0.0 else 0.0
    out[row, at + 3] = float(d["len_max"])
    out[row, at + 4] = _ratio(float(d["iat_sum_us"]), packets - 1.0)
    out[row, at + 5] = _std(
        packets - 1.0, float(d["iat_sum_us"]), float(d["iat_sumsq_us"]), float(d["iat_min_us"]), iat_max
    )
    out[row, at + 6] = _or_zero(d["iat_min_us"])
    out[row, at + 7] = iat_max
    out[row, at + 8] = gap_mean / 1e3
    out[row, at + 9] = gap_std / 1e3
    out[row, at + 10] = _ratio(gap_std, gap_mean)
    out[row, at + 11] = _share(gap_sum, duration_us)
    out[row, at + 12] = _scale(bursts)
    out[row, at + 13] = _ratio(payload, bursts)
    out[row, at + 14] = float(d["burst_max_bytes"])
    out[row, at + 15] = _ratio(payload_packets, bursts)
    out[row, at + 16] = _share(float(d["burst_max_bytes"]), payload)
    out[row, at + 17] = _scale(payload)
    out[row, at + 18] = _ratio(payload, payload_packets)
    out[row, at + 19] = _share(payload_packets, packets)
    out[row, at + 20] = _share(float(d["full_segments"]), payload_packets)
    out[row, at + 21] = _share(float(d["pure_ack"]), packets)
    out[row, at + 22] = _share(float(d["psh"]), payload_packets)
    out[row, at + 23] = _ratio(float(d["window_sum"]), packets - float(d["rst"]))
    out[row, at + 24] = float(d["turn_delay_sum_us"]) / 1e3 / max(turns / 2.0, 1.0)
    out[row, at + 25] = float(d["turn_delay_max_us"]) / 1e3
    out[row, at + 26] = payload / (turns / 2.0 + 1.0)


@compiled
def _opening(common, out, row, at):
    """Write the columns of `_OPENING` from column `at` on."""
    reverse = common["splt_rev"]
    for k in range(SPLT_PACKETS):
        size = float(common["splt_bytes"][k])
        out[row, at + k] = -size if reverse >> k & 1 else size
        out[row, at + SPLT_PACKETS + k] = float(common["splt_gap_us"][k]) / 1e3
    at += 2 * SPLT_PACKETS
    for k in range(SPLT_TURNS):
        size = _scale(float(common["turn_bytes"][k]))
        # Turns alternate, and the first one is the first payload packet's.
        out[row, at + k] = -size if (reverse ^ k) & 1 else size
        out[row, at + SPLT_TURNS + k] = float(common["turn_wait_us"][k]) / 1e3


@compiled
def _fill(records, out):
    """Fill `out` (float32, shape (n, _WIDTH)) from the nested records."""
    for row in range(records.shape[0]):
        record = records[row]
        common = record["common"]
        f = record["fwd"]
        r = record["rev"]
        turns = float(common["turns"])
        duration_us = float(common["duration_us"])
        seconds = max(duration_us, 1.0) / 1e6

        f_packets = float(f["packets"])
        r_packets = float(r["packets"])
        packets = f_packets + r_packets
        f_bytes = float(f["bytes"])
        bytes_ = f_bytes + float(r["bytes"])
        f_payload = float(f["payload_bytes"])
        payload = f_payload + float(r["payload_bytes"])
        payload_packets = float(f["payload_packets"]) + float(r["payload_packets"])
        bursts = float(f["bursts"]) + float(r["bursts"])
        waits = max(f_packets - 1.0, 0.0) + max(r_packets - 1.0, 0.0)
        iat_sum = float(f["iat_sum_us"]) + float(r["iat_sum_us"])
        windows = max(f_packets - float(f["rst"]), 0.0) + max(r_packets - float(r["rst"]), 0.0)
        # A direction without packets has no minimum: the other one's counts.
        len_min = float(UNSET)
        if f_packets > 0.0:
            len_min = float(f["len_min"])
        if r_packets > 0.0:
            len_min = min(len_min, float(r["len_min"]))
        len_max = float(max(f["len_max"], r["len_max"]))
        iat_min = float(min(f["iat_min_us"], r["iat_min_us"]))
        iat_max = float(max(f["iat_max_us"], r["iat_max_us"]))

        out[row, 0] = _ratio(bytes_, packets)
        out[row, 1] = _std(waits, iat_sum, float(f["iat_sumsq_us"]) + float(r["iat_sumsq_us"]), iat_min, iat_max)
        out[row, 2] = duration_us / 1e3
        out[row, 3] = _ratio(f_packets, packets)
        out[row, 4] = _ratio(float(f["window_sum"]) + float(r["window_sum"]), windows)
        out[row, 5] = _std(packets, bytes_, float(f["len_sumsq"]) + float(r["len_sumsq"]), len_min, len_max)
        out[row, 6] = 0.0 if len_min == float(UNSET) else len_min
        out[row, 7] = len_max
        out[row, 8] = _ratio(iat_sum, waits)
        out[row, 9] = _ratio(f_bytes, bytes_)
        out[row, 10] = _ratio(f_payload, payload)
        out[row, 11] = _ratio(float(f["bursts"]), bursts)
        out[row, 12] = _scale(packets)
        out[row, 13] = _scale(payload)
        out[row, 14] = packets / seconds
        out[row, 15] = bytes_ / seconds
        out[row, 16] = bursts / seconds
        out[row, 17] = _share(payload_packets, packets)
        out[row, 18] = _share(float(f["full_segments"]) + float(r["full_segments"]), payload_packets)
        out[row, 19] = _ratio(turns, payload_packets)
        out[row, 20] = _scale(turns)
        out[row, 21] = payload / (turns + 1.0)
        out[row, 22] = duration_us / 1e3 / (turns + 1.0)
        out[row, 23] = 1.0 if common["proto"] == 6 else 0.0
        out[row, 24] = 1.0 if common["proto"] == 17 else 0.0
        _opening(common, out, row, _N_TOTAL)
        _direction(f, turns, duration_us, out, row, _N_TOTAL + _N_OPENING)
        _direction(r, turns, duration_us, out, row, _N_TOTAL + _N_OPENING + _N_DIRECTION)
