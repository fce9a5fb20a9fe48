"""Captures beyond 2 and 4 GiB: every packet and byte counted, in memory that does not grow with them."""

from __future__ import annotations

import errno
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import capturekit as kit
import peakmemory
import pytest

GIB = 1 << 30

#: Reads a small capture, so that all code is loaded, and then a large one.
READ = """
from dinnet.capture import open_capture
from dinnet.flows.reading import capture_records

def count(source):
    flows = packets = ip_bytes = 0
    with open_capture(source) as capture:
        for records in capture_records(capture):
            flows += len(records)
            packets += int(records["fwd_packets"].sum())
            ip_bytes += int(records["fwd_bytes"].sum())
        stats = capture.stats
        return {
            "flows": flows, "packets": packets, "ip_bytes": ip_bytes, "frames": stats.frames,
            "frame_bytes": stats.frame_bytes, "span_us": stats.last_us - stats.first_us,
            "warnings": capture.warnings, "position": capture.position,
        }

count(sys.argv[1])
before = peak_mib()
print(json.dumps({**count(sys.argv[2]), "grown_mib": peak_mib() - before}))
"""


def start_of_file(format_: str) -> bytes:
    return kit.pcap_header() if format_ == "pcap" else kit.shb() + kit.idb()


def head_of_record(format_: str, number: int, captured: int) -> bytes:
    """All of a record that comes before its frame; record `number` is captured `number` microseconds after T0."""
    # The builders take the frame's bytes along: an empty one's record is cut, and its lengths are put right.
    if format_ == "pcap":
        size = captured.to_bytes(4, "little")
        return kit.pcap_record(kit.at(number, b""))[:8] + size + size
    size = captured.to_bytes(4, "little")
    block = kit.epb("<", 0, kit.T0 + number, b"")
    return block[:4] + (32 + captured).to_bytes(4, "little") + block[8:20] + size + size


def end_of_record(format_: str, captured: int) -> bytes:
    return b"" if format_ == "pcap" else (32 + captured).to_bytes(4, "little")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    frame = kit.ethernet(kit.ipv4(kit.udp(7, 8), kit.UDP))
    path = tmp_path / "small.pcap"
    path.write_bytes(kit.pcap([kit.at(0, frame)]))
    return path


def check(said: dict[str, Any], frames: int, frame_bytes: int, ip_bytes: int) -> None:
    assert said["warnings"] == []
    assert (said["flows"], said["packets"], said["frames"]) == (1, frames, frames)
    assert (said["frame_bytes"], said["ip_bytes"]) == (frames * frame_bytes, frames * ip_bytes)
    assert said["span_us"] == frames - 1
    assert said["grown_mib"] < 64


# --- through a pipe ---------------------------------------------------------------------------------------


def write_large(out: BinaryIO, format_: str, frames: int, frame: bytes) -> None:
    """Write a capture of `frames` times the same frame."""
    assert len(frame) % 4 == 0  # a block of pcapng is padded to that
    out.write(start_of_file(format_))
    tail = frame + end_of_record(format_, len(frame))
    for number in range(frames):
        out.write(head_of_record(format_, number, len(frame)))
        out.write(tail)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("format_", ["pcap", "pcapng"])
def test_more_than_2_gib_through_standard_input(format_: str, small: Path) -> None:
    payload = bytes(65_498 - 20 - 8)
    frame = kit.ethernet(kit.ipv4(kit.udp(1000, 80, payload), kit.UDP))
    frames = 21 * GIB // 10 // len(frame)
    child = peakmemory.start(READ, small, "-", stdin=subprocess.PIPE)
    assert child.stdin is not None
    with child.stdin as pipe:
        write_large(pipe, format_, frames, frame)  # type: ignore[arg-type]
    check(peakmemory.result(child), frames, len(frame), len(frame) - 14)


# --- from a file ------------------------------------------------------------------------------------------

#: The most that capture tools keep of a packet.
LARGE_FRAME = 262_144


@pytest.fixture
def sparse_file(tmp_path: Path) -> Iterator[Path]:
    """A file whose holes take no room; skips where there is no room even for what lies between them."""
    path = tmp_path / "large"
    with path.open("wb") as out:
        out.truncate(1 << 24)
    has_holes = path.stat().st_blocks < 1 << 10
    needed = (GIB >> 2) if has_holes else 5 * GIB
    free = shutil.disk_usage(tmp_path).free
    if free < needed:
        pytest.skip(f"needs {needed >> 20} MiB in {tmp_path}, which has {free >> 20}")
    yield path
    path.unlink()


def write_sparse(path: Path, format_: str, frames: int, head: bytes) -> None:
    """Write a capture of frames of LARGE_FRAME bytes that begin with `head` and go on with zeros."""
    end = end_of_record(format_, LARGE_FRAME)
    with path.open("wb") as out:
        out.write(start_of_file(format_))
        position = out.tell()
        for number in range(frames):
            out.seek(position)
            record = head_of_record(format_, number, LARGE_FRAME)
            out.write(record + head)
            position += len(record) + LARGE_FRAME
            if end:
                out.seek(position)
                out.write(end)
                position += len(end)
        out.truncate(position)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("format_", "gib"), [("pcap", 4), ("pcapng", 2)])
def test_more_than_2_and_4_gib_in_a_file(format_: str, gib: int, small: Path, sparse_file: Path) -> None:
    # An IP length of 0: segmentation offload, and the packet is as long as it was on the wire.
    head = kit.ethernet(kit.ipv4(kit.tcp(1000, 80), kit.TCP, total=0))
    frames = gib * GIB // LARGE_FRAME + 400
    try:
        write_sparse(sparse_file, format_, frames, head)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
            pytest.skip(f"cannot write a file of {gib} GiB here: {error.strerror}")
        raise
    said = peakmemory.result(peakmemory.start(READ, small, sparse_file))
    check(said, frames, LARGE_FRAME, LARGE_FRAME - 14)
    assert said["position"] == sparse_file.stat().st_size > gib * GIB
