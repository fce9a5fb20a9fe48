from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dinnet.errors import UsageError
from dinnet.flows.features import FEATURE_NAMES, FEATURES, features, features_for
from dinnet.flows.record import RECORD_DTYPE, UNSET

FIRST_FIVE = ("packet_size_mean", "inter_arrival_std", "flow_duration_ms", "direction_ratio", "tcp_window_mean")


def one(**values: int) -> np.ndarray:
    """One record: what a flow table writes for a flow without any packet, then `values`."""
    record = np.zeros(1, RECORD_DTYPE)
    for side in ("fwd", "rev"):
        record[f"{side}_iat_min_us"] = UNSET
        record[f"{side}_window_min"] = UNSET
    for name, value in values.items():
        record[name] = value
    return record


def value(record: np.ndarray, name: str) -> float:
    return float(features(record)[0, FEATURE_NAMES.index(name)])


@pytest.fixture
def exchange() -> np.ndarray:
    """Forward: 100, 300 and 500 bytes at 0, 1 and 4 ms. Reverse: 1,000 bytes at 5 ms. TCP, one turn."""
    return one(
        duration_us=5_000, turns=1, proto=6,
        fwd_packets=3, fwd_bytes=900, fwd_len_sumsq=10_000 + 90_000 + 250_000, fwd_len_min=100, fwd_len_max=500,
        fwd_payload_bytes=780, fwd_payload_packets=3, fwd_iat_sum_us=4_000, fwd_iat_sumsq_us=1_000_000 + 9_000_000,
        fwd_iat_min_us=1_000, fwd_iat_max_us=3_000, fwd_bursts=2, fwd_gap_sum_us=3_000, fwd_gap_sumsq_us=9_000_000,
        fwd_burst_max_bytes=320, fwd_window_sum=600, fwd_window_min=100, fwd_ack=3, fwd_psh=1,
        rev_packets=1, rev_bytes=1_000, rev_len_sumsq=1_000_000, rev_len_min=1_000, rev_len_max=1_000,
        rev_payload_bytes=960, rev_payload_packets=1, rev_bursts=1, rev_burst_max_bytes=960, rev_window_sum=1_000,
        rev_window_min=1_000, rev_ack=1, rev_turn_delay_sum_us=1_000, rev_turn_delay_max_us=1_000,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("packet_size_mean", 1900 / 4),
        ("inter_arrival_std", 1_000.0),  # of 1,000 and 3,000 us
        ("flow_duration_ms", 5.0),
        ("direction_ratio", 0.75),
        ("tcp_window_mean", 400.0),
        ("packet_size_std", 334.4772039),  # of 100, 300, 500, 1000: variance 111,875
        ("packet_size_min", 100.0),
        ("packet_size_max", 1000.0),
        ("byte_direction_ratio", 900 / 1900),
        ("payload_direction_ratio", 780 / 1740),
        ("burst_direction_ratio", 2 / 3),
        ("packets_log2", 2.25),  # 5 is a quarter of the way from 4 to 8
        ("packet_rate", 800.0),
        ("byte_rate", 380_000.0),
        ("burst_rate", 600.0),
        ("turns_per_packet", 0.25),
        ("turns_log2", 1.0),
        ("bytes_per_turn", 870.0),
        ("time_per_turn", 2.5),
        ("is_tcp", 1.0),
        ("is_udp", 0.0),
        ("fwd_packet_size_mean", 300.0),
        ("fwd_packet_size_std", 163.2993162),  # of 100, 300, 500: variance 80,000 / 3
        ("fwd_inter_arrival_mean", 2_000.0),
        ("fwd_inter_arrival_std", 1_000.0),
        ("fwd_inter_arrival_min", 1_000.0),
        ("fwd_burst_gap_mean", 3.0),
        ("fwd_burst_gap_std", 0.0),
        ("fwd_idle_share", 0.6),
        ("fwd_burst_bytes_mean", 390.0),
        ("fwd_burst_bytes_max", 320.0),
        ("fwd_burst_packets_mean", 1.5),
        ("fwd_payload_mean", 260.0),
        ("fwd_psh_ratio", 1 / 3),
        ("fwd_window_mean", 200.0),
        ("fwd_bytes_per_turn", 520.0),
        ("rev_packet_size_std", 0.0),
        ("rev_inter_arrival_mean", 0.0),
        ("rev_inter_arrival_min", 0.0),  # unset in the record
        ("rev_turn_delay_mean", 1.0),
        ("rev_turn_delay_max", 1.0),
        ("rev_burst_peak_share", 1.0),
    ],
)
def test_values_by_hand(exchange: np.ndarray, name: str, expected: float) -> None:
    assert value(exchange, name) == pytest.approx(expected, rel=1e-6)


def test_gap_deviation() -> None:
    # Gaps of 20, 30 and 40 ms: mean 30, variance 200 / 3.
    record = one(fwd_bursts=4, fwd_gap_sum_us=90_000, fwd_gap_sumsq_us=400_000_000 + 900_000_000 + 1_600_000_000)
    assert value(record, "fwd_burst_gap_std") == pytest.approx(8.164966, rel=1e-6)
    assert value(record, "fwd_burst_gap_cv") == pytest.approx(8.164966 / 30, rel=1e-6)


def test_equal_sizes_do_not_deviate_however_many() -> None:
    # 3 billion packets of 1,499 bytes: floating-point cancellation alone would give a variance of the order of 1.
    n, size = 3_000_000_000, 1_499
    record = one(fwd_packets=n, fwd_bytes=n * size, fwd_len_sumsq=n * size**2, fwd_len_min=size, fwd_len_max=size)
    assert value(record, "packet_size_std") == 0.0
    assert value(record, "fwd_packet_size_std") == 0.0


def test_saturated_sum_of_squares_is_bounded_by_the_range() -> None:
    record = one(fwd_packets=10, fwd_bytes=5_000, fwd_len_sumsq=2**64 - 1, fwd_len_min=100, fwd_len_max=900)
    assert value(record, "fwd_packet_size_std") == 400.0  # no values in [100, 900] deviate by more


def test_the_beginning_is_signed_by_direction() -> None:
    """The server speaks first: 7 bytes; then 30 and 10 bytes forward; then one reverse turn more."""
    record = one(
        splt_rev=0b1001, splt_bytes_1=7, splt_bytes_2=30, splt_bytes_3=10, splt_bytes_4=65_535,
        splt_gap_us_2=1_500, turn_bytes_1=7, turn_bytes_2=40, turn_bytes_3=2**20 - 1, turn_wait_us_3=20_000,
    )  # fmt: skip
    assert [value(record, f"splt_bytes_{k}") for k in range(1, 6)] == [-7, 30, 10, -65_535, 0]
    assert [value(record, f"splt_gap_{k}") for k in (1, 2)] == [0, 1.5]
    assert [value(record, f"turn_log2_{k}") for k in range(1, 5)] == [-3, 5 + 9 / 32, -20, 0]
    assert [value(record, f"turn_wait_{k}") for k in (2, 3)] == [0, 20]


def test_one_packet_and_none() -> None:
    packet = one(fwd_packets=1, fwd_bytes=40, fwd_len_sumsq=1600, fwd_len_min=40, fwd_len_max=40, proto=17)
    row = dict(zip(FEATURE_NAMES, features(packet)[0], strict=True))
    assert row["packet_size_mean"] == row["packet_size_min"] == row["fwd_packet_size_max"] == 40
    assert row["rev_packet_size_min"] == 0
    assert row["direction_ratio"] == 1
    assert row["is_udp"] == 1
    assert row["packet_rate"] == 1e6  # no duration counts as one microsecond
    assert not features(one()).any()


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_every_possible_record_is_finite(data: st.DataObject) -> None:
    content = data.draw(st.binary(min_size=RECORD_DTYPE.itemsize, max_size=RECORD_DTYPE.itemsize))
    record = np.frombuffer(content, RECORD_DTYPE).copy()
    for name in data.draw(st.lists(st.sampled_from(RECORD_DTYPE.names), max_size=40)):
        kind = RECORD_DTYPE[name]
        low, high = np.iinfo(kind).min, np.iinfo(kind).max
        record[name] = data.draw(st.sampled_from([0, 1, 2, max(low, -1), high, high - 1, high // 2]))
    values = features(record)
    assert np.isfinite(values).all()
    signed = np.array([name.startswith(("splt_bytes_", "turn_log2_")) for name in FEATURE_NAMES])
    assert (values[:, ~signed] >= 0).all()


@pytest.mark.parametrize("byte", [0x00, 0xFF, 0x7F, 0x80, 0x01])
def test_extreme_records_are_finite(byte: int) -> None:
    assert np.isfinite(features(np.frombuffer(bytes([byte]) * RECORD_DTYPE.itemsize, RECORD_DTYPE))).all()


def test_batch_equals_single_bit_for_bit() -> None:
    records = np.frombuffer(np.random.default_rng(7).bytes(RECORD_DTYPE.itemsize * 500), RECORD_DTYPE).copy()
    batch = features(records)
    singles = np.concatenate([features(records[i : i + 1]) for i in range(len(records))])
    assert batch.tobytes() == singles.tobytes()
    assert features(records[::-3]).tobytes() == np.ascontiguousarray(batch[::-3]).tobytes()


def test_only_named_fields_matter() -> None:
    """Changing any field changes no feature but those that say they depend on it, and at least one of those."""
    rng = np.random.default_rng(3)
    records = np.zeros(64, RECORD_DTYPE)
    for name in RECORD_DTYPE.names:
        records[name] = rng.integers(1, 100, len(records))
    records["proto"] = np.where(np.arange(64) % 2, 6, 17)
    before = features(records)
    used = {field for feature in FEATURES for field in feature.fields}
    for name in RECORD_DTYPE.names:
        changed = records.copy()
        changed[name] = 1 if name == "proto" else changed[name] * 2 + 1
        differs = (features(changed) != before).any(axis=0)
        allowed = np.array([name in feature.fields for feature in FEATURES])
        assert not (differs & ~allowed).any(), (name, [FEATURE_NAMES[i] for i in np.flatnonzero(differs & ~allowed)])
        assert differs.any() == (name in used), name


def test_no_feature_tells_who_or_when() -> None:
    used = {field for feature in FEATURES for field in feature.fields}
    forbidden = {"src_hi", "src_lo", "dst_hi", "dst_lo", "sport", "dport", "vlan", "inner_vlan", "flow_label"}
    assert not used & (forbidden | {"tunnel_id", "first_us", "ip_version", "end", "checkpoint"})


def test_table() -> None:
    assert FEATURE_NAMES[:5] == FIRST_FIVE
    assert len(set(FEATURE_NAMES)) == len(FEATURES)
    assert 50 <= len(FEATURES) <= 120
    for feature in FEATURES:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", feature.name)
        assert feature.unit
        assert len(feature.formula) >= 5
        assert feature.fields and set(feature.fields) <= set(RECORD_DTYPE.names)
        assert len(set(feature.fields)) == len(feature.fields)


def test_features_of_a_target_without_squares_and_windows() -> None:
    names = features_for(["len_sumsq", "fwd_window_sum"])
    gone = set(FEATURE_NAMES) - set(names)
    assert gone == {
        "packet_size_std", "fwd_packet_size_std", "rev_packet_size_std", "tcp_window_mean", "fwd_window_mean"
    }  # fmt: skip
    assert features_for([]) == FEATURE_NAMES
    with pytest.raises(UsageError, match="len_cubes"):
        features_for(["len_cubes"])


def test_other_arrays_are_refused() -> None:
    with pytest.raises(UsageError):
        features(np.zeros(3))
