"""A capture and a model small enough to know every answer, and the command line run inside the test's own process."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from dinnet.classifier.forest import LEAF, ForestArrays
from dinnet.classifier.modelfile import ModelFile, write_model
from dinnet.flows.features import FEATURE_NAMES

T0 = 1_700_000_000


def frame(sport: int, dport: int, payload: int) -> bytes:
    """An Ethernet frame with an IPv4 UDP packet from 10.0.0.1 to 10.0.0.2."""
    udp = struct.pack("!HHHH", sport, dport, 8 + payload, 0) + bytes(payload)
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0, b"\x0a\0\0\1", b"\x0a\0\0\2")
    return b"\2\0\0\0\0\2\2\0\0\0\0\1\x08\0" + ip + udp


def capture(flows: int, *, first_port: int = 1000, packets: int = 5) -> bytes:
    """A pcap; flow i has `packets` packets from port first_port + i, one a millisecond.

    Flows with an even number have 1000 payload bytes a packet (IP length 1028), others 72 (IP length 100).
    """
    out = [struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)]
    for step in range(packets):
        for flow in range(flows):
            data = frame(first_port + flow, 9000, 72 if flow % 2 else 1000)
            out.append(struct.pack("<IIII", T0, 1000 * step, len(data), len(data)) + data)
    return b"".join(out)


def leaf_only(*probabilities: float) -> ForestArrays:
    return ForestArrays(
        np.array([0, 1], np.uint32),
        np.array([LEAF], np.uint16),
        np.zeros(1, np.float32),
        np.zeros(1, np.uint32),
        np.array([probabilities], np.float32),
    )


def write_tiny_model(folder: Path) -> None:
    """A model by which a mean packet size up to 400 bytes is decode with 0.75, above it prefill with 0.9."""
    by_size = ForestArrays(
        np.array([0, 3], np.uint32),
        np.array([FEATURE_NAMES.index("packet_size_mean"), LEAF, LEAF], np.uint16),
        np.array([400, 0, 0], np.float32),
        np.array([1, 0, 1], np.uint32),
        np.array([[0.05, 0.75, 0.1, 0.1, 0], [0.9, 0.1, 0, 0, 0]], np.float32),
    )
    forests = {"class": by_size, "streaming": leaf_only(0.1, 0.9), "large_model": leaf_only(0.8, 0.2)}
    write_model(folder, ModelFile(tuple(FEATURE_NAMES), 0.7, forests), {})


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


def dinnet_here(capfd: pytest.CaptureFixture[str], *arguments: str | Path) -> Done:
    """Run the command line in this process: milliseconds where a new one takes a second."""
    from dinnet.cli import app

    capfd.readouterr()
    with pytest.raises(SystemExit) as ended:
        app([str(argument) for argument in arguments], prog_name="dinnet")
    out, err = capfd.readouterr()
    assert isinstance(ended.value.code, int)
    return Done(ended.value.code, out, err)
