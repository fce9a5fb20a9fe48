"""Damaged captures: packets or a `CaptureError`, never anything else, and never a look beyond a frame's bytes."""

from __future__ import annotations

import random
import tracemalloc

import capturekit as kit
import fuzz_reader
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

SEEDS = fuzz_reader.small_seeds()


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**64))
def test_mutated_captures(seed: int) -> None:
    fuzz_reader.check(fuzz_reader.Mutator(SEEDS, random.Random(seed)).mutate())


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300), st.sampled_from([b"", *(seed[:24] for seed in SEEDS), kit.shb() + kit.idb()]))
def test_any_bytes_behind_a_good_start(data: bytes, start: bytes) -> None:
    fuzz_reader.check(start + data)


def test_every_cut_of_every_seed() -> None:
    for seed in SEEDS:
        for size in range(0, len(seed), 7):
            fuzz_reader.check(seed[:size])


FRAMES = [(1, frame) for frame in fuzz_reader.sample_frames()] + [(101, p) for p in fuzz_reader.sample_packets()]


@settings(max_examples=600, deadline=None)
@given(st.sampled_from(FRAMES), st.integers(0, 2**64), st.integers(0, 200))
def test_a_frame_is_read_from_its_own_bytes_only(shape: tuple[int, bytes], seed: int, size: int) -> None:
    link, data = shape
    rng = random.Random(seed)
    frame = bytearray(data[:size])
    for _ in range(rng.randrange(6)):
        if frame:
            frame[rng.randrange(len(frame))] = rng.choice([0, 255, 0x45, 0x60, 0x81, rng.randrange(256)])
    wire = len(frame) + rng.choice([0, 1, 1000])
    results = []
    for filler in (b"\x00" * 60, b"\xff" * 60, bytes(range(60))):
        # What lies behind the frame in the file differs; what is read from it may not.
        listed = [kit.at(0, bytes(frame), wire), kit.at(1, filler), kit.at(2, filler)]
        results.append(kit.read(kit.pcap(listed, link=link)).all[0].tobytes())
    assert results[0] == results[1] == results[2]


def test_impossible_lengths_take_no_memory() -> None:
    record = np.frombuffer(kit.pcap_record(kit.at(0, b"x" * 60)), "<u4").copy()
    kit.read(SEEDS[0])
    tracemalloc.start()
    for size in (0x7FFF_FFFF, 0x1000_0000, 0xFFFF_FFFF):
        record[2] = record[3] = size
        fuzz_reader.check(kit.pcap_header() + record.tobytes())
        block = kit.shb() + kit.idb() + (6).to_bytes(4, "little") + (size & ~3).to_bytes(4, "little") + bytes(100)
        fuzz_reader.check(block)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100 << 20


def test_a_compression_bomb_is_read_in_bounded_memory() -> None:
    import zstandard

    frame = kit.ethernet(kit.ipv4(kit.udp(1, 2, bytes(1400)), kit.UDP))
    record = kit.pcap_record(kit.at(0, frame))
    count = 200_000
    packer = zstandard.ZstdCompressor().compressobj()
    packed = packer.compress(kit.pcap_header()) + b"".join(packer.compress(record * 1000) for _ in range(count // 1000))
    packed += packer.flush()
    assert len(packed) * 1000 < count * len(record)
    tracemalloc.start()
    from io import BytesIO

    from dinnet.capture import open_capture

    with open_capture(BytesIO(packed)) as capture:
        assert sum(len(batch) for batch in capture.batches()) == count
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 << 20
