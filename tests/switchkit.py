"""A loaded pipeline for tests, fed by test runs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from dinnet.flows.record import RECORD_DTYPE, End
from dinnet.switch.bpfobject import Ran, test_run
from dinnet.switch.datapath import Datapath, PacketIn, Port, Sizes
from dinnet.switch.libbpf import BpfError, library

SIZES = Sizes(microflows=4096, flows=1 << 14)
LOOPBACK = 1  # the interface that test runs come in on where nothing else is said
IN, OUT, OTHER = 1, 2, 3
"""Port numbers: packets come in at IN."""


def why_not() -> str:
    """Why the switch cannot be loaded here, "" where it can."""
    if os.geteuid() != 0:
        return "loading BPF programs needs root"
    try:
        library()
    except BpfError as error:
        return str(error)
    return ""


needs_bpf = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")


class Bench:
    """A pipeline with the packets' own clock; port IN is the loopback interface, the other ports lead nowhere real."""

    def __init__(self) -> None:
        self.datapath = Datapath.load(SIZES, packet_clock=True)
        self.records: list[Any] = []
        self.packets: list[PacketIn] = []
        self.ring = self.datapath.events(lambda port, record: self.records.append(record[0]), self.packets.append)
        self.time_ns = 10**18
        self.reset()

    def reset(self) -> None:
        """Empty all tables, counters and records, and connect the ports anew."""
        pipe = self.datapath
        pipe.clear()
        for name in ("ingress_port", "egress_port"):
            pipe.table(name).clear()
        self.configure()
        # Ports that are named in tables must lead to an interface; test runs send nothing there.
        for number in (OUT, OTHER):
            pipe.table("egress_port").put(np.array([number]), np.array([LOOPBACK]))
        self.drain()

    def configure(self, *, trusted: bool = False, flow_labels: bool = False) -> None:
        self.datapath.set_port(Port(IN, LOOPBACK, trusted, flow_labels))

    def drain(self) -> None:
        self.ring.poll()
        self.records.clear()
        self.packets.clear()

    def run(self, frame: bytes, time_ns: int | None = None, repeat: int = 1) -> Ran:
        """One packet in at port IN, by default a second after the one before."""
        if time_ns is None:
            self.time_ns += 10**9
            time_ns = self.time_ns
        return test_run(self.datapath.program.fd, frame, ifindex=LOOPBACK, time_ns=time_ns, repeat=repeat)

    def replay(self, frames: Iterable[tuple[int, bytes]]) -> np.ndarray[Any, Any]:
        """Feed (nanoseconds, frame); returns all records: those emitted, then those under way as if a capture ended."""
        for number, (time_ns, frame) in enumerate(frames):
            self.run(frame, time_ns)
            if number % 512 == 0:
                self.ring.poll()
        self.ring.poll()
        emitted = np.array(self.records, RECORD_DTYPE)
        under_way = np.concatenate([emitted[:0], *self.datapath.flow_table()])
        under_way["end"][under_way["end"] == End.LIVE] = End.CAPTURE
        return np.concatenate([emitted, under_way])

    def close(self) -> None:
        self.ring.close()
        self.datapath.close()
