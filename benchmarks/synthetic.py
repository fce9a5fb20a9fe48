"""Captures of any size for the benchmarks: seeded, with real headers and plausible sizes and times."""

from __future__ import annotations

from pathlib import Path

import numpy as np

_HEADER = 54  # Ethernet, IPv4, TCP
_CHUNK = 100_000


def write_capture(path: Path, *, packets: int, flows: int, seed: int = 1, duration_s: float = 60.0) -> None:
    """Write `packets` TCP packets of `flows` bidirectional flows, in time order, as a pcap with microseconds.

    Payload lengths are drawn from {0, 64, 300, 1460} bytes; every flow starts with a SYN, and its packets
    are spread over the whole capture so that all flows are alive together.
    """
    rng = np.random.default_rng(seed)
    seen = np.zeros(flows, bool)
    with path.open("wb") as out:
        out.write(np.array([0xA1B2C3D4], "<u4").tobytes())
        out.write(np.array([2, 4], "<u2").tobytes())
        out.write(np.array([0, 0, 262_144, 1], "<u4").tobytes())
        for start in range(0, packets, _CHUNK):
            count = min(_CHUNK, packets - start)
            flow = rng.integers(0, flows, count)
            # Every flow comes up at least once.
            first_pass = np.arange(start, start + count)
            flow[first_pass < flows] = first_pass[first_pass < flows]
            times_us = ((start + np.arange(count)) * (duration_s * 1e6 / packets)).astype(np.int64)
            opening = ~seen[flow]
            _, first_index = np.unique(flow, return_index=True)
            only_first = np.zeros(count, bool)
            only_first[first_index] = True
            opening &= only_first
            seen[flow] = True
            out.write(_records(rng, flow, opening, times_us + 1_700_000_000_000_000))


def _records(rng: np.random.Generator, flow: np.ndarray, opening: np.ndarray, times_us: np.ndarray) -> bytes:
    count = len(flow)
    payload = rng.choice(np.array([0, 64, 300, 1460]), count, p=[0.35, 0.25, 0.1, 0.3])
    payload[opening] = 0
    reverse = (rng.random(count) < 0.5) & ~opening
    client = (10 << 24) | (flow & 0xFFFFFF)
    server = (10 << 24) | (200 << 16) | (flow % 251)
    client_port = 1024 + (flow * 7) % 60_000
    head = np.zeros((count, 16 + _HEADER), np.uint8)
    record = np.zeros((count, 4), "<u4")
    record[:, 0] = times_us // 1_000_000
    record[:, 1] = times_us % 1_000_000
    record[:, 2] = record[:, 3] = _HEADER + payload
    head[:, :16] = record.view(np.uint8)
    head[:, 16:28] = 2
    head[:, 28:30] = (0x08, 0x00)
    head[:, 30] = 0x45
    head[:, 32:34] = _big((40 + payload).astype(np.uint16))
    head[:, 38] = 64
    head[:, 39] = 6
    head[:, 42:46] = _big(np.where(reverse, server, client).astype(np.uint32))
    head[:, 46:50] = _big(np.where(reverse, client, server).astype(np.uint32))
    head[:, 50:52] = _big(np.where(reverse, 8000, client_port).astype(np.uint16))
    head[:, 52:54] = _big(np.where(reverse, client_port, 8000).astype(np.uint16))
    head[:, 54:58] = _big(rng.integers(0, 2**32, count, dtype=np.uint64).astype(np.uint32))
    head[:, 62] = 0x50
    head[:, 63] = np.where(opening, 0x02, np.where(payload > 0, 0x18, 0x10))
    head[:, 64:66] = _big(rng.integers(100, 60_000, count).astype(np.uint16))
    lengths = head.shape[1] + payload
    ends = np.cumsum(lengths)
    data = np.zeros(int(ends[-1]), np.uint8)
    data[(ends - lengths)[:, None] + np.arange(head.shape[1])] = head
    return data.tobytes()


def _big(values: np.ndarray) -> np.ndarray:
    """Values as rows of network-order bytes."""
    return values.astype(values.dtype.newbyteorder(">")).view(np.uint8).reshape(len(values), -1)
