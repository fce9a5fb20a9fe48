"""Buckets, turns and queue rooms, against values worked out by hand."""

from __future__ import annotations

import pytest

from dinnet.host import sizes
from dinnet.host.config import rate_bps
from dinnet.host.objects import rate_text
from dinnet.host.sizes import Clock
from dinnet.host.state import class_id, queue_of
from dinnet.switch.datapath import default_queues

FINE = Clock(15.625, 1e-9)  # 64 ns a tick, high-resolution timers
COARSE = Clock(15.625, 0.01)  # 100 Hz, without them
FRAME = 1514


@pytest.mark.parametrize(
    ("bits", "burst", "ticks"),
    [
        # 1 Mbit/s: 125 bytes a millisecond and a frame; 1,639 bytes take 13.112 ms, 204,875 ticks of 64 ns.
        (10**6, 1_639, 204_875),
        # 100 Mbit/s: 12,500 + 1,514 bytes take 1,121.12 us: 17,517.5 ticks.
        (10**8, 14_014, 17_518),
        # 10 Gbit/s: 1,250,000 + 1,514 bytes take 1,001.2112 us: 15,643.9 ticks.
        (10**10, 1_251_514, 15_644),
        # 100 Gbit/s: 12,500,000 + 1,514 bytes take 1,000.12112 us: 15,626.9 ticks.
        (10**11, 12_501_514, 15_627),
    ],
)
def test_burst(bits: int, burst: int, ticks: int) -> None:
    rate = bits // 8
    assert sizes.burst_bytes(rate, FRAME, FINE) == burst
    assert sizes.burst_ticks(rate, FRAME, FINE) == ticks
    assert ticks < 1 << 32


def test_burst_lasts_until_the_next_tick_of_a_coarse_timer() -> None:
    assert sizes.burst_bytes(12_500_000, FRAME, COARSE) == 125_000 + 1_514


@pytest.mark.parametrize(
    ("guarantee", "link", "expected"),
    [
        (10**6, 10**6, 1_514),  # 125 bytes would be no frame
        (40 * 10**6, 10**8, 5_000),
        (10**9, 10**9, 125_000),
        (16 * 10**8, 16 * 10**8, 200_000),
        (10**9, 10**10, 12_500),  # a tenth of a millisecond: 10 Gbit/s would be 1,250,000 bytes in one
        (10**10, 10**10, 125_000),
        (4 * 10**10, 10**11, 50_000),
        (10**11, 10**11, 125_000),
        (10**9, 10**11, 1_514),
    ],
)
def test_quantum(guarantee: int, link: int, expected: int) -> None:
    assert sizes.quantum(guarantee // 8, link // 8, FRAME) == expected
    assert 1_000 <= expected <= 200_000  # outside of it the kernel would warn


def test_plain_queue_holds_the_target_delay_and_never_too_few_frames() -> None:
    assert sizes.fifo_bytes(12_500_000, 5, FRAME) == 62_500
    assert sizes.fifo_bytes(125_000, 5, FRAME) == 16 * 1514
    assert sizes.fifo_bytes(1_250_000_000, 0.5, FRAME) == 625_000


def test_codel_target_is_never_below_one_and_a_half_frames() -> None:
    assert sizes.codel_target_us(12_500_000, 5, FRAME) == 5_000
    assert sizes.codel_target_us(125_000, 5, FRAME) == 18_168  # 2,271 bytes at 1 Mbit/s
    assert sizes.codel_interval_us(5_000) == 100_000
    assert sizes.codel_interval_us(18_168) == 363_360


def test_codel_times_read_back_in_units_of_1024_ns() -> None:
    assert sizes.codel_time_us(5_000) == 4_999  # tc shows 4.99 ms for the usual 5
    for time_us in range(1, 3_000):
        # What is sent is a microsecond more than what was read back, and must come back the same.
        read = sizes.codel_time_us(time_us)
        assert sizes.codel_time_us(read + 1) == read


def test_least_rate() -> None:
    assert sizes.bytes_per_second(0) == 1_000
    assert sizes.bytes_per_second(10**11) == 12_500_000_000


def test_classes_are_those_that_the_switch_writes_into_packets() -> None:
    assert class_id(0, 0) == 0x10010
    assert class_id(1, 3) == 0x10017
    assert class_id(15, 3) == 0x1004F
    assert {number << 2 | tc: class_id(number, tc) for number in range(16) for tc in range(4)} == default_queues()
    assert queue_of(0x1004F) == (15, 3)
    assert queue_of(0x10050) is None
    assert queue_of(0x1000F) is None
    assert queue_of(0x20010) is None


@pytest.mark.parametrize(
    ("text", "bits"),
    [("100mbit", 10**8), ("2.5gbit", 2_500_000_000), ("8 kbit", 8_000), ("1Gbit/s", 10**9), ("17bit", 17), (5, 5)],
)
def test_rates_of_a_file(text: str | int, bits: int) -> None:
    assert rate_bps(text) == bits


@pytest.mark.parametrize("text", ["100", "fast", "-1mbit", "1mbyte", True, 1.5, None, "1e3bit"])
def test_what_is_no_rate(text: object) -> None:
    with pytest.raises(ValueError, match="is no rate"):
        rate_bps(text)


def test_rates_as_tc_prints_them() -> None:
    texts = [rate_text(rate) for rate in (1_000, 125_000, 12_500_000, 5_000_000_000, 1_562_500)]
    assert texts == ["8Kbit", "1Mbit", "100Mbit", "40Gbit", "12500Kbit"]
