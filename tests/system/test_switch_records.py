"""Flow records of the embedded switch and of the capture reader from the same packets, field by field."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import capturekit as kit
import numpy as np
import pytest
import switchkit
import zstandard
from capturekit import ACK, FIN, PSH, RST, SYN, T0, Frame
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dinnet.flows import FlowOptions, read_records
from dinnet.flows.record import RECORD_DTYPE, End

pytestmark = [switchkit.needs_bpf, pytest.mark.root]
SAMPLE = Path(__file__).resolve().parents[2] / "examples" / "sample.pcap.zst"
Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def module_bench() -> Iterator[switchkit.Bench]:
    bench = switchkit.Bench()
    yield bench
    bench.close()


@pytest.fixture
def bench(module_bench: switchkit.Bench) -> switchkit.Bench:
    module_bench.reset()
    return module_bench


def from_capture(frames: Sequence[Frame], **options: Any) -> Array:
    capture = io.BytesIO(kit.pcap(frames, magic=kit.NANO))
    chunks = [chunk.copy() for chunk in read_records(capture, options=FlowOptions(emit="all", **options))]
    return np.concatenate([np.zeros(0, RECORD_DTYPE), *chunks])


def from_switch(bench: switchkit.Bench, frames: Sequence[Frame]) -> Array:
    return bench.replay((frame.ns, frame.data) for frame in frames)


def compare(switch: Array, capture: Array) -> None:
    """Both hold the same records. Why a flow is over is not compared where only the capture's end shows that it is."""
    assert len(switch) == len(capture)
    switch, capture = switch.copy(), capture.copy()
    for records in (switch, capture):
        silent = ~np.isin(records["end"], (End.ACTIVE, End.REUSE))
        # A flow under way has the same sums as the record that the end of the capture makes of it.
        last = silent & (records["end"] != End.LIVE)
        records["end"][last] = End.LIVE
    names = list(RECORD_DTYPE.names or ())
    order = [np.lexsort([records[name] for name in reversed(names)]) for records in (switch, capture)]
    switch, capture = switch[order[0]], capture[order[1]]
    for name in names:
        np.testing.assert_array_equal(switch[name], capture[name], err_msg=name)


def sample_frames() -> list[Frame]:
    data = zstandard.ZstdDecompressor().stream_reader(SAMPLE.read_bytes()).read()
    magic = struct.unpack_from("<I", data)[0]
    assert magic in (kit.MICRO, kit.NANO)
    scale, at, frames = (1 if magic == kit.NANO else 1000), 24, []
    while at < len(data):
        seconds, part, captured, wire = struct.unpack_from("<IIII", data, at)
        frames.append(Frame(data[at + 16 : at + 16 + captured], seconds * 10**9 + part * scale, wire))
        at += 16 + captured
    return frames


def test_sample_capture(bench: switchkit.Bench) -> None:
    frames = [frame for frame in sample_frames() if frame.wire == len(frame.data)]
    switch, capture = from_switch(bench, frames), from_capture(frames)
    assert len(capture) > 1000
    assert bench.datapath.lost_events() == (0, 0)
    assert bench.datapath.flow_collisions().packets == 0
    compare(switch, capture)
