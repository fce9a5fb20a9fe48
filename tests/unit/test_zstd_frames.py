"""Compressed captures that end too early, wherever that is, and those of several frames."""

from __future__ import annotations

import gzip
import io
import struct
from pathlib import Path

import pytest
import zstandard
from capturekit import at, ethernet, ip, pcap, udp
from hypothesis import given
from hypothesis import strategies as st

from dinnet.capture import CaptureError, open_capture
from dinnet.capture.zstdframes import ZSTD_MAGIC, ZstdFrames

FRAMES = 5
PLAIN = pcap([at(number, ethernet(ip(udp(1000, 2000, bytes(range(60))), 17, "10.0.0.1", "10.0.0.2")))
              for number in range(FRAMES)])  # fmt: skip


def skippable(data: bytes, kind: int = 0) -> bytes:
    """A frame that decompressors pass over (RFC 8878, section 3.1.2)."""
    return struct.pack("<II", 0x184D2A50 + kind, len(data)) + data


def packed(data: bytes = PLAIN, **options: bool) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(data)  # type: ignore[arg-type]


def streamed(data: bytes = PLAIN) -> bytes:
    """A frame of several blocks that doesn't tell its size, as `zstd` makes of a pipe."""
    raw = io.BytesIO()
    with zstandard.ZstdCompressor(write_checksum=True).stream_writer(raw, closefd=False) as writer:
        for start in range(0, len(data), 100):
            writer.write(data[start : start + 100])
            writer.flush(zstandard.FLUSH_BLOCK)
    return raw.getvalue()


WHOLE = {
    "one frame": packed(),
    "checksum": packed(write_checksum=True),
    "no size": packed(write_content_size=False),
    "streamed": streamed(),
    "two frames": packed(PLAIN[:200]) + packed(PLAIN[200:]),
    "an empty frame": packed() + packed(b""),
    "skippable frames": packed(PLAIN[:99]) + skippable(b"x" * 40) + streamed(PLAIN[99:]) + skippable(b"", 15),
    "repeated bytes": packed(PLAIN + bytes(76)),
}


def whole_after(data: bytes, step: int) -> bool:
    frames = ZstdFrames()
    for start in range(0, len(data), step):
        frames.feed(memoryview(data)[start : start + step])
    return frames.whole


def ends_of_frames(data: bytes) -> set[int]:
    """Where frames end, by the decompressor: what is left over once it has come to the end of each."""
    ends, rest = {0}, data
    while rest:
        if rest[1:4] == b"\x2a\x4d\x18":
            rest = rest[8 + struct.unpack_from("<I", rest, 4)[0] :]
        else:
            one = zstandard.ZstdDecompressor().decompressobj()
            one.decompress(rest)
            assert one.eof
            rest = one.unused_data
        ends.add(len(data) - len(rest))
    return ends


@pytest.mark.parametrize("data", WHOLE.values(), ids=WHOLE.keys())
@pytest.mark.parametrize("step", [1, 3, 10_000])
def test_a_stream_is_whole_just_where_a_frame_ends(data: bytes, step: int) -> None:
    ends = ends_of_frames(data)
    assert [cut for cut in range(len(data) + 1) if whole_after(data[:cut], step)] == sorted(ends)


@given(st.lists(st.tuples(st.binary(max_size=300), st.booleans(), st.booleans()), max_size=4), st.data())
def test_frames_of_anything(contents: list[tuple[bytes, bool, bool]], data: st.DataObject) -> None:
    stream = b"".join(packed(c, write_checksum=sum_) if frame else skippable(c) for c, frame, sum_ in contents)
    cut = data.draw(st.integers(0, len(stream)))
    step = data.draw(st.integers(1, 50))
    assert whole_after(stream[:cut], step) == (cut in ends_of_frames(stream))


@given(st.binary(max_size=200))
def test_garbage_is_taken_without_an_exception(data: bytes) -> None:
    ZstdFrames().feed(memoryview(data))


def read(data: bytes) -> tuple[int, bool]:
    """Packets of a capture, and whether it is told to be cut."""
    with open_capture(io.BytesIO(data)) as capture:
        count = sum(len(packets) for packets in capture.batches())
        assert bool(capture.warnings) == capture.stats.cut
        return count, capture.stats.cut


@pytest.mark.parametrize("name", ["one frame", "checksum", "streamed", "two frames", "skippable frames"])
def test_a_cut_is_told_wherever_it_is(name: str) -> None:
    whole = WHOLE[name]
    ends = ends_of_frames(whole)
    counts = []
    for cut in range(4, len(whole)):
        try:
            count, told = read(whole[:cut])
        except CaptureError as error:
            assert "\n" not in str(error)
            count, told = 0, True
        # A cut between two frames is a cut inside of the capture, unless only skippable frames are missing.
        assert told or (cut in ends and count == FRAMES)
        counts.append(count)
    assert counts == sorted(counts)
    assert read(whole) == (FRAMES, False)


def test_a_cut_in_gzip_is_told_wherever_it_is() -> None:
    whole = gzip.compress(PLAIN[:200]) + gzip.compress(PLAIN[200:])
    for cut in range(2, len(whole)):
        try:
            count, told = read(whole[:cut])
        except CaptureError:
            continue
        assert told
        assert count < FRAMES or cut >= len(whole) - 9  # only the end mark, sum and size are missing
    assert read(whole) == (FRAMES, False)


@pytest.mark.parametrize("magic", [ZSTD_MAGIC, b"\x1f\x8b", b"\x1f\x8b\x08\x00", ZSTD_MAGIC + b"\x00"])
def test_a_file_of_magic_only_is_refused_with_a_reason(magic: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.pcap"
    path.write_bytes(magic)
    with pytest.raises(CaptureError, match=r"a\.pcap: not a readable (zstd|gzip) file: it is cut"):
        open_capture(path)


@pytest.mark.parametrize("compress", [gzip.compress, packed])
def test_a_compressed_nothing_is_an_empty_capture(compress: object, tmp_path: Path) -> None:
    path = tmp_path / "a.pcap"
    path.write_bytes(compress(b""))  # type: ignore[operator]
    with pytest.raises(CaptureError, match=r"a\.pcap is empty"):
        open_capture(path)
