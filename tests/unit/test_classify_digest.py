"""Sums, top talkers, the time strip and samples, against figures worked out by hand."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from dinnet.report.digest import ClassTotals, Digest, Sample, Talkers, TimeStrip, TopRows, exact_sum
from dinnet.report.rows import ROW_DTYPE, Rows


def rows_of(**fields: object) -> Rows:
    count = max(np.size(values) for values in fields.values())
    rows = np.zeros(count, ROW_DTYPE)
    for name, values in fields.items():
        rows[name] = values
    return rows


def test_sums_do_not_wrap() -> None:
    assert exact_sum(np.full(3, 2**64 - 1, np.uint64)) == 3 * (2**64 - 1)


def test_totals_of_each_class() -> None:
    totals = ClassTotals()
    totals.add(rows_of(class_id=[0, 3, 3], bytes=[10, 20, 30], packets=[1, 2, 3]))
    totals.add(rows_of(class_id=[4], bytes=[5], packets=[1]))
    assert totals.flows == [1, 0, 0, 2, 1]
    assert totals.bytes == [10, 0, 0, 50, 5]
    assert totals.packets == [1, 0, 0, 5, 1]


def test_talkers_count_both_ends() -> None:
    talkers = Talkers()
    mapped = 0xFFFF_0000_0000
    talkers.add(rows_of(src_lo=[mapped + 1, mapped + 2], dst_lo=[mapped + 2, mapped + 3], bytes=[100, 7]))
    assert talkers.top(2) == [("0.0.0.2", 107, 2), ("0.0.0.1", 100, 1)]


def test_large_talkers_survive_where_there_are_too_many_addresses() -> None:
    talkers = Talkers(capacity=64)
    want: Counter[str] = Counter()
    for start in range(0, 2000, 50):
        low = 0xFFFF_0000_0000 + np.arange(start, start + 50, dtype=np.uint64) + 256
        rows = rows_of(src_lo=low, dst_lo=low, bytes=1)
        rows["src_lo"][0] = rows["dst_lo"][0] = 0xFFFF_0000_0005
        rows["bytes"][0] = 1000
        want["0.0.0.5"] += 2000
        talkers.add(rows)
    assert talkers.top(1) == [("0.0.0.5", want["0.0.0.5"], 80)]


def test_bytes_are_spread_over_a_flows_time() -> None:
    strip = TimeStrip(bins=4)
    # Bins of 16 microseconds from 0 on: 64 bytes over [0, 64), 30 bytes over [16, 46).
    strip.add(rows_of(class_id=[0, 1], first_us=[0, 16], last_us=[63, 45], bytes=[64, 30]))
    assert (strip.start_us, strip.width_us) == (0, 16)
    assert strip.bytes[0] == pytest.approx([16, 16, 16, 16])
    assert strip.bytes[1] == pytest.approx([0, 16, 14, 0])


@pytest.mark.parametrize("origin_us", [0, 1_700_000_000_000_000, -1_000_003])
def test_no_byte_is_lost_however_time_grows(origin_us: int) -> None:
    random = np.random.default_rng(3)
    strip = TimeStrip(bins=32)
    total = np.zeros(5)
    low, high = [], []
    for scale in (10, 1, 10_000, 10_000_000, 1):
        first = origin_us + random.integers(-scale, scale, 50)
        last = first + random.integers(0, scale, 50)
        rows = rows_of(
            class_id=random.integers(0, 5, 50), first_us=first, last_us=last, bytes=random.integers(1, 99, 50)
        )
        strip.add(rows)
        total += np.bincount(rows["class_id"], rows["bytes"], 5)
        low.append(first.min())
        high.append(last.max())
    assert strip.bytes.sum(axis=1) == pytest.approx(total)
    assert strip.bytes.shape[1] <= 32
    assert strip.start_us <= min(low)
    assert strip.start_us + strip.width_us * strip.bytes.shape[1] > max(high)


def test_batches_do_not_change_the_strip() -> None:
    random = np.random.default_rng(4)
    first = 10**15 + random.integers(0, 10**8, 300)
    rows = rows_of(first_us=first, last_us=first + random.integers(0, 10**7, 300), bytes=random.integers(1, 10**6, 300))
    once, thrice = TimeStrip(), TimeStrip()
    once.add(rows)
    for part in (rows[:7], rows[7:200], rows[200:]):
        thrice.add(part)
    assert once.width_us == thrice.width_us
    assert dict(_bins(once)) == pytest.approx(dict(_bins(thrice)))


def _bins(strip: TimeStrip) -> list[tuple[int, float]]:
    return [(strip.start_us + at * strip.width_us, value) for at, value in enumerate(strip.bytes[0]) if value > 1e-3]


def test_top_rows_by_a_key() -> None:
    top = TopRows(2)
    top.add(rows_of(bytes=[5, 9, 9], sport=[1, 2, 3]))
    top.add(rows_of(bytes=[9, 10], sport=[4, 5]))
    assert top.rows()["sport"].tolist() == [5, 2]  # of equal ones the first
    assert top.seen == 5
    ascending = TopRows(0, "first", descending=False)
    ascending.add(rows_of(first_us=[3, 1, 2]))
    assert ascending.rows()["first_us"].tolist() == [1, 2, 3]


def test_top_rows_keep_little_of_many() -> None:
    top = TopRows(3)
    for start in range(0, 200_000, 20_000):
        top.add(rows_of(bytes=np.arange(start, start + 20_000)))
    assert top.rows()["bytes"].tolist() == [199_999, 199_998, 199_997]


def test_a_sample_is_bounded_and_the_same_whatever_the_batches() -> None:
    rows = rows_of(class_id=np.arange(1000) % 2, sport=np.arange(1000))
    one, many = Sample(20), Sample(20)
    one.add(rows)
    for start in range(0, 1000, 100):
        many.add(rows[start : start + 100])
    for index in (0, 1):
        assert len(one.rows(index)) == 20
        assert one.rows(index)["sport"].tolist() == many.rows(index)["sport"].tolist()
    assert len(one.rows(2)) == 0


def test_confidence_histogram_has_every_flow_that_has_one() -> None:
    digest = Digest(plots=True)
    digest.add(rows_of(class_id=[0, 1, 1, 4], confidence=[0.0, 0.999, 1.0, np.nan]))
    assert digest.confidence[0, 0] == 1
    assert digest.confidence[1, -1] == 2
    assert digest.confidence.sum() == 3
