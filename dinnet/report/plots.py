"""The report's plots as SVG text. Colours come from the page's style: light and dark need one drawing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dinnet.report.digest import Digest, Sample, TimeStrip
from dinnet.report.rows import CLASS_NAMES
from dinnet.report.units import human_bytes, human_count, human_duration, human_time

_WIDTH: Final = 1000


@dataclass(frozen=True)
class Frame:
    """The drawing area inside an SVG, in its units; y grows downwards."""

    left: float
    top: float
    right: float
    bottom: float

    def x(self, share: float) -> float:
        return self.left + (self.right - self.left) * share

    def y(self, share: float) -> float:
        """`share` counts from the bottom."""
        return self.bottom - (self.bottom - self.top) * share


def nice_ticks(largest: float, count: int) -> list[float]:
    """About `count` round numbers from 0 to at most `largest`: steps of 1, 2 or 5 times a power of ten."""
    if largest <= 0:
        return [0.0]
    raw = largest / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    return [step * index for index in range(int(largest / step + 1e-9) + 1)]


def _svg(width: float, height: float, label: str, *parts: str) -> str:
    body = "".join(parts)
    return f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(label)}">{body}</svg>'


def _text(x: float, y: float, words: str, anchor: str = "middle", style: str = "tick") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{style}">{escape(words)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{style}"/>'


def _turned(x: float, y: float, words: str) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" transform="rotate(-90 {x:.1f} {y:.1f})" text-anchor="middle" '
        f'class="axis">{escape(words)}</text>'
    )


def _horizontal_grid(frame: Frame, ticks: Sequence[tuple[float, str]]) -> str:
    """Lines at shares of the height, labelled on the left."""
    return "".join(
        _line(frame.left, frame.y(share), frame.right, frame.y(share), "grid")
        + _text(frame.left - 8, frame.y(share) + 4, label, "end")
        for share, label in ticks
    )


def _stacked_steps(frame: Frame, heights: NDArray[np.float64]) -> str:
    """One filled step path for each class; `heights` are shares of the frame's height, shape (classes, bins)."""
    tops = np.cumsum(heights, axis=0)
    bins = heights.shape[1]
    parts = []
    for index, name in enumerate(CLASS_NAMES):
        if not heights[index].any():
            continue
        upper = tops[index]
        lower = tops[index - 1] if index else np.zeros(bins)
        forward = [f"{frame.x((b + e) / bins):.1f},{frame.y(upper[b]):.1f}" for b in range(bins) for e in (0, 1)]
        back = [f"{frame.x((b + e) / bins):.1f},{frame.y(lower[b]):.1f}" for b in reversed(range(bins)) for e in (1, 0)]
        parts.append(f'<path class="c-{name}" d="M{" ".join(forward + back)}Z"/>')
    return "".join(parts)


def time_plot(strip: TimeStrip) -> str:
    """Throughput of each class, stacked, and below it each class's share of the bytes."""
    height = 400
    upper, lower = Frame(78, 22, _WIDTH - 12, 232), Frame(78, 262, _WIDTH - 12, 356)
    amounts = strip.bytes
    bins = amounts.shape[1]
    if not bins or not amounts.any():
        return _svg(
            _WIDTH, 60, "No traffic over time", _text(_WIDTH / 2, 34, "no flows in these captures", style="axis")
        )
    sums = amounts.sum(axis=0)
    rates = sums * 8e6 / strip.width_us
    ticks = nice_ticks(rates.max() * 1.02, 4)
    scale = max(rates.max() * 1.02, ticks[-1])
    shares = np.divide(amounts, sums, out=np.zeros_like(amounts), where=sums > 0)
    grid = _horizontal_grid(upper, [(tick / scale, _rate(tick)) for tick in ticks])
    share_grid = _horizontal_grid(lower, [(0.0, "0"), (0.5, "50 %"), (1.0, "100 %")])
    return _svg(
        _WIDTH,
        height,
        "Throughput of each class over time, and each class's share of the bytes",
        grid,
        _stacked_steps(upper, amounts * 8e6 / strip.width_us / scale),
        _text(upper.left, 12, "throughput", "start", "axis"),
        share_grid,
        _stacked_steps(lower, shares),
        _text(lower.left, 252, "share of bytes", "start", "axis"),
        _time_axis(lower, strip),
        _time_tips(upper, lower, strip),
    )


def _rate(bits_per_second: float) -> str:
    text = human_bytes(bits_per_second)
    return text[:-1].rstrip() + (" bit/s" if text.endswith(" B") else "bit/s")


def _time_axis(frame: Frame, strip: TimeStrip) -> str:
    span = strip.bytes.shape[1] * strip.width_us
    parts = [_line(frame.left, frame.bottom, frame.right, frame.bottom, "base")]
    for tick in nice_ticks(span, 8):
        x = frame.x(tick / span)
        label = "0" if tick == 0 else "+" + human_duration(tick)
        parts.append(_line(x, frame.bottom, x, frame.bottom + 5, "base"))
        parts.append(_text(min(x, frame.right - 20), frame.bottom + 20, label))
    parts.append(_text(frame.left, frame.bottom + 38, f"0 is {human_time(strip.start_us)}", "start", "axis"))
    return "".join(parts)


def _time_tips(upper: Frame, lower: Frame, strip: TimeStrip) -> str:
    parts = []
    bins = strip.bytes.shape[1]
    for at in range(bins):
        if not strip.bytes[:, at].any():
            continue
        words = [f"+{human_duration(at * strip.width_us)} to +{human_duration((at + 1) * strip.width_us)}"]
        words += [
            f"{name}: {human_bytes(strip.bytes[i, at])}" for i, name in enumerate(CLASS_NAMES) if strip.bytes[i, at]
        ]
        x, width = upper.x(at / bins), (upper.right - upper.left) / bins
        height = lower.bottom - upper.top
        parts.append(
            f'<rect class="tip" x="{x:.1f}" y="{upper.top:g}" width="{width:.2f}" height="{height:g}">'
            f"<title>{escape(chr(10).join(words))}</title></rect>"
        )
    return "".join(parts)


def scatter_plot(sample: Sample) -> str:
    """Mean packet size against the mean gap between bursts; flows with one burst lie in a lane of their own."""
    width, height = 560, 400
    frame = Frame(78, 16, width - 14, 300)
    lane = Frame(78, 312, width - 14, 342)
    sizes_of, gaps_of = {}, {}
    for index, name in enumerate(CLASS_NAMES):
        rows = sample.rows(index)
        sizes_of[name] = rows["bytes"].astype(np.float64) / np.maximum(rows["packets"], 1)
        gaps_of[name] = rows["gap_us"].astype(np.float64)
    sizes = np.concatenate(list(sizes_of.values()))
    gaps = np.concatenate(list(gaps_of.values()))
    known = gaps[np.isfinite(gaps)]
    largest = max(float(sizes.max(initial=0.0)), 100.0) * 1.03
    low = math.floor(math.log10(max(known.min(initial=1e3), 1.0)))
    high = max(math.ceil(math.log10(max(known.max(initial=1e6), 1.0))), low + 1)
    decades = range(low, high + 1, max(1, -(-(high - low) // 8)))
    parts = [_horizontal_grid(frame, [((d - low) / (high - low), human_duration(10.0**d)) for d in decades])]
    for tick in nice_ticks(largest, 6):
        x = frame.x(tick / largest)
        parts.append(_line(x, frame.top, x, lane.bottom, "grid"))
        parts.append(_text(x, lane.bottom + 18, f"{tick:,.0f}"))
    parts.append(_line(lane.left, lane.bottom, lane.right, lane.bottom, "base"))
    parts.append(_text(lane.left - 8, (lane.top + lane.bottom) / 2 + 4, "one burst", "end"))
    # The most frequent class first: the rare ones lie on top.
    for name in reversed(CLASS_NAMES):
        for size, gap, jitter in zip(sizes_of[name], gaps_of[name], _jitter(len(sizes_of[name])), strict=True):
            if math.isfinite(gap):
                y = frame.y((math.log10(max(gap, 1.0)) - low) / (high - low))
            else:
                y = lane.y(jitter)
            parts.append(f'<circle class="c-{name} dot" cx="{frame.x(size / largest):.1f}" cy="{y:.1f}" r="3.2"/>')
    parts.append(_text((frame.left + frame.right) / 2, height - 8, "mean packet size, bytes of IP", style="axis"))
    parts.append(_turned(14, (frame.top + frame.bottom) / 2, "mean gap between bursts"))
    return _svg(width, height, "Mean packet size against mean gap between bursts, a sample of flows", *parts)


def _jitter(count: int) -> list[float]:
    """Evenly spread heights, so that dots in the lane do not hide each other."""
    return [(index * 0.618034) % 1 * 0.8 + 0.1 for index in range(count)]


def confidence_plot(digest: Digest) -> str:
    """How many flows were classified with which confidence, stacked by class."""
    width, height = 560, 400
    frame = Frame(78, 16, width - 14, 342)
    counts = digest.confidence
    bins = counts.shape[1]
    highest = float(counts.sum(axis=0).max(initial=0))
    ticks = [tick for tick in nice_ticks(max(highest, 1.0) * 1.02, 5) if tick == int(tick)]
    scale = max(highest * 1.02, ticks[-1], 1.0)
    parts = [_horizontal_grid(frame, [(tick / scale, human_count(tick)) for tick in ticks])]
    for at in range(bins):
        below = 0
        for index, name in enumerate(CLASS_NAMES):
            count = int(counts[index, at])
            if not count:
                continue
            top, bottom = frame.y((below + count) / scale), frame.y(below / scale)
            x, wide = frame.x(at / bins) + 1, (frame.right - frame.left) / bins - 2
            parts.append(
                f'<rect class="c-{name}" x="{x:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{bottom - top:.1f}">'
                f"<title>{escape(f'{name}, {at / bins:.2f} to {(at + 1) / bins:.2f}: {count:,} flows')}</title></rect>"
            )
            below += count
    parts.append(_line(frame.left, frame.bottom, frame.right, frame.bottom, "base"))
    parts += [_text(frame.x(tick / 5), frame.bottom + 18, f"{tick / 5:.1f}") for tick in range(6)]
    parts.append(_text((frame.left + frame.right) / 2, height - 8, "confidence", style="axis"))
    parts.append(_turned(14, (frame.top + frame.bottom) / 2, "flows"))
    return _svg(width, height, "Flows by confidence and class", *parts)


def share_bar(values: Sequence[float]) -> str:
    """One bar of the classes' shares."""
    total = sum(values) or 1
    parts, at = [], 0.0
    for name, value in zip(CLASS_NAMES, values, strict=True):
        wide = _WIDTH * value / total
        if wide > 0:
            parts.append(
                f'<rect class="c-{name}" x="{at:.2f}" y="0" width="{wide:.2f}" height="12">'
                f"<title>{escape(f'{name}: {100 * value / total:.1f} %')}</title></rect>"
            )
        at += wide
    return (
        f'<svg viewBox="0 0 {_WIDTH} 12" preserveAspectRatio="none" class="bar" role="img" '
        f'aria-label="Share of bytes by class">{"".join(parts)}</svg>'
    )
