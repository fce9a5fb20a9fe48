"""The pcapng writer, read back by hand, by scapy and by tshark."""

from __future__ import annotations

import errno
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from dinnet.capture.packet import FRAME_DTYPE, Frames
from dinnet.capture.writer import PcapngWriter
from dinnet.errors import DinnetError

_START_NS = 1_764_500_000_123_456_789
# Captured length, wire length, nanoseconds after the start. Lengths cover each remainder of 4.
_PACKETS = ((60, 60, 0), (61, 61, 1), (62, 1514, 999), (63, 63, 5_000_000_001), (64, 70_000, 7_000_000_000))


def _example() -> tuple[NDArray[np.uint8], Frames, NDArray[np.int64], list[bytes]]:
    """Packets that lie in the buffer in another order than they are listed, with rubbish between them."""
    buffer = np.full(1024, 0xEE, np.uint8)
    frames = np.zeros(len(_PACKETS), FRAME_DTYPE)
    contents = []
    for index, (captured, wire, _) in enumerate(_PACKETS):
        content = bytes((index * 50 + k) % 251 for k in range(captured))
        offset = 901 - 180 * index
        buffer[offset : offset + captured] = np.frombuffer(content, np.uint8)
        frames[index]["offset"], frames[index]["captured"], frames[index]["wire"] = offset, captured, wire
        contents.append(content)
    times = np.array([_START_NS + after for _, _, after in _PACKETS], np.int64)
    return buffer, frames, times, contents


def _write_example(path: Path) -> list[bytes]:
    buffer, frames, times, contents = _example()
    with PcapngWriter(path, link_type=1, snaplen=64, interface="eth0.5") as writer:
        writer.write(buffer, frames, times)
        writer.close(received=12, dropped=7)
    return contents


def _blocks(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        kind, total = struct.unpack_from("=II", data, at)
        assert total % 4 == 0 and at + total <= len(data)
        assert struct.unpack_from("=I", data, at + total - 4) == (total,)
        yield kind, data[at + 8 : at + total - 4]
        at += total


def _options(data: bytes) -> dict[int, bytes]:
    options = {}
    at = 0
    while True:
        code, length = struct.unpack_from("=HH", data, at)
        if code == 0:
            assert at + 4 == len(data)
            return options
        options[code] = data[at + 4 : at + 4 + length]
        at += 4 + (length + 3) // 4 * 4


def test_blocks_by_hand(tmp_path: Path) -> None:
    contents = _write_example(tmp_path / "a.pcapng")
    blocks = list(_blocks((tmp_path / "a.pcapng").read_bytes()))
    assert [kind for kind, _ in blocks] == [0x0A0D0D0A, 1, 6, 6, 6, 6, 6, 5]
    section = blocks[0][1]
    assert struct.unpack_from("=IHHq", section) == (0x1A2B3C4D, 1, 0, -1)
    assert _options(section[16:])[4].startswith(b"dinnet ")
    interface = blocks[1][1]
    assert struct.unpack_from("=HHI", interface) == (1, 0, 64)
    assert _options(interface[8:]) == {2: b"eth0.5", 9: b"\x09"}
    for (_, body), content, (captured, wire, after) in zip(blocks[2:7], contents, _PACKETS, strict=True):
        number, high, low, got_captured, got_wire = struct.unpack_from("=5I", body)
        assert (number, high << 32 | low, got_captured, got_wire) == (0, _START_NS + after, captured, wire)
        assert body[20 : 20 + captured] == content
        assert body[20 + captured :] == b"\0" * (-captured % 4)
    statistics = blocks[7][1]
    options = _options(statistics[12:])
    assert struct.unpack("=Q", options[4]) == (12,)
    assert struct.unpack("=Q", options[5]) == (7,)
    assert struct.unpack("=II", options[2]) == (_START_NS >> 32, _START_NS & 0xFFFFFFFF)
    end = _START_NS + 7_000_000_000
    assert struct.unpack("=II", options[3]) == (end >> 32, end & 0xFFFFFFFF)


def test_padding_is_zero_after_a_batch_full_of_ones(tmp_path: Path) -> None:
    ones = np.full(4096, 0xFF, np.uint8)
    times = np.zeros(1, np.int64)
    frame = np.zeros(1, FRAME_DTYPE)
    with PcapngWriter(tmp_path / "a.pcapng", link_type=1, snaplen=0, interface="x") as writer:
        for captured in (4096, 1, 2, 3, 0):
            frame["captured"] = frame["wire"] = captured
            writer.write(ones, frame, times)
    bodies = [body[20:] for kind, body in _blocks((tmp_path / "a.pcapng").read_bytes()) if kind == 6]
    assert bodies == [b"\xff" * 4096, b"\xff\0\0\0", b"\xff\xff\0\0", b"\xff\xff\xff\0", b""]


def test_scapy_reads_it_back(tmp_path: Path) -> None:
    from scapy.utils import RawPcapNgReader

    contents = _write_example(tmp_path / "a.pcapng")
    with RawPcapNgReader(str(tmp_path / "a.pcapng")) as reader:
        packets = list(reader)
    assert [bytes(data) for data, _ in packets] == contents
    assert [meta.wirelen for _, meta in packets] == [wire for _, wire, _ in _PACKETS]
    assert [meta.tshigh << 32 | meta.tslow for _, meta in packets] == [_START_NS + after for _, _, after in _PACKETS]
    assert {meta.tsresol for _, meta in packets} == {10**9}
    assert {meta.linktype for _, meta in packets} == {1}


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
def test_tshark_reads_it_back(tmp_path: Path) -> None:
    _write_example(tmp_path / "a.pcapng")
    fields = ("frame.time_epoch", "frame.cap_len", "frame.len", "frame.interface_name")
    arguments = [item for field in fields for item in ("-e", field)]
    output = subprocess.run(
        ["tshark", "-n", "-r", str(tmp_path / "a.pcapng"), "-T", "fields", *arguments],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    seconds, nanoseconds = divmod(_START_NS, 10**9)
    for line, (captured, wire, after) in zip(output.splitlines(), _PACKETS, strict=True):
        extra, rest = divmod(nanoseconds + after, 10**9)
        assert line.split("\t") == [f"{seconds + extra}.{rest:09d}", str(captured), str(wire), "eth0.5"]


@pytest.mark.parametrize("cut", [0, 1, 28, 91, 92, 93, 190, 300])
def test_full_disk_keeps_the_whole_packets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int) -> None:
    """The disk takes `cut` more bytes. Blocks are 92, 96, 96, 96 and 96 bytes long: 32 + length, padded."""
    path = tmp_path / "a.pcapng"
    buffer, frames, times, contents = _example()
    writer = PcapngWriter(path, link_type=1, snaplen=64, interface="eth0")
    header = path.stat().st_size
    real_write = os.write
    room = cut

    def write(fd: int, data: memoryview) -> int:
        nonlocal room
        if room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = real_write(fd, data[:room])
        room -= done
        return done

    monkeypatch.setattr(os, "write", write)
    whole = [0, 92, 188, 284]
    packets = max(count for count, size in enumerate(whole) if size <= cut)
    with pytest.raises(DinnetError, match=rf"a\.pcapng: disk full; the file holds the first {packets} packets"):
        writer.write(buffer, frames, times)
    assert writer.closed
    assert path.stat().st_size == header + whole[packets]
    kept = [body for kind, body in _blocks(path.read_bytes()) if kind == 6]
    assert [body[20 : 20 + len(content)] for body, content in zip(kept, contents, strict=False)] == contents[:packets]
    writer.close(received=5, dropped=0)
    assert path.stat().st_size == header + whole[packets]


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small file system")
def test_really_full_disk(tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(mount)], check=True)
    try:
        buffer = np.full(1000, 7, np.uint8)
        frames = np.zeros(200, FRAME_DTYPE)
        frames["captured"] = frames["wire"] = 1000
        writer = PcapngWriter(mount / "a.pcapng", link_type=1, snaplen=0, interface="eth0")
        header = (mount / "a.pcapng").stat().st_size
        with pytest.raises(DinnetError, match="disk full"):
            writer.write(buffer, frames, np.zeros(200, np.int64))
        size = (mount / "a.pcapng").stat().st_size
        assert (size - header) % 1032 == 0
        assert size <= 65536 < size + 1032
        assert sum(kind == 6 for kind, _ in _blocks((mount / "a.pcapng").read_bytes())) == (65536 - header) // 1032
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_impossible_paths(tmp_path: Path) -> None:
    with pytest.raises(DinnetError, match="cannot write packets here: no such file or folder"):
        PcapngWriter(tmp_path / "no" / "a.pcapng", link_type=1, snaplen=0, interface="x")
    with pytest.raises(DinnetError, match="cannot write packets here: Is a directory"):
        PcapngWriter(tmp_path, link_type=1, snaplen=0, interface="x")
    with pytest.raises(DinnetError, match="/dev/full: disk full; the file holds the first 0 packets"):
        PcapngWriter("/dev/full", link_type=1, snaplen=0, interface="x")
