"""A loaded pipeline for tests, fed by test runs."""

from __future__ import annotations

import ctypes as c
import os
import socket
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from namespacekit import ip, within

from dinnet.flows.record import RECORD_DTYPE, End
from dinnet.switch.bpfobject import Ran, program_info, test_run
from dinnet.switch.contract import PacketIn, Port, Sizes
from dinnet.switch.datapath import Datapath
from dinnet.switch.libbpf import BpfError, check, library

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

    def run(self, frame: bytes, time_ns: int | None = None, repeat: int = 1, gso_size: int = 0) -> Ran:
        """One packet in at port IN, by default a second after the one before."""
        if time_ns is None:
            self.time_ns += 10**9
            time_ns = self.time_ns
        fd = self.datapath.program.fd
        return test_run(fd, frame, ifindex=LOOPBACK, time_ns=time_ns, repeat=repeat, gso_size=gso_size)

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


MACS = (0x02AA00000001, 0x02AA00000002)
SWITCH = f"dinnet-sw{os.getpid()}"
HOSTS = (f"{SWITCH}-a", f"{SWITCH}-b")
"""Names of namespaces."""


@contextmanager
def wired() -> Iterator[None]:
    """Two hosts, 10.9.0.1 and 10.9.0.2, on p1 and p2 of the switch's namespace."""
    with ExitStack() as stack:
        for name in (SWITCH, *HOSTS):
            ip("netns", "add", name)
            stack.callback(subprocess.run, ["ip", "netns", "del", name], check=False)
            for scope in ("all", "default"):  # no packets but the tests' own
                path = Path(f"/proc/sys/net/ipv6/conf/{scope}/disable_ipv6")
                within(name, lambda path=path: path.write_text("1"))  # type: ignore[misc]
        for number, host in enumerate(HOSTS, start=1):
            ip("-n", SWITCH, "link", "add", f"p{number}", "type", "veth", "peer", "name", "eth0", "netns", host)
            ip("-n", SWITCH, "link", "set", f"p{number}", "up")
            mac = MACS[number - 1].to_bytes(6).hex(":")
            ip("-n", host, "link", "set", "eth0", "address", mac, "up")
            ip("-n", host, "addr", "add", f"10.9.0.{number}/24", "dev", "eth0")
            other = MACS[2 - number].to_bytes(6).hex(":")
            ip("-n", host, "neigh", "replace", f"10.9.0.{3 - number}", "lladdr", other, "dev", "eth0")
        yield


def exchange(count: int = 1) -> None:
    """A datagram from a to b, and its answer, for each; none may be lost."""

    def bound(host: int) -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind((f"10.9.0.{host}", 5000))
        sock.settimeout(20)
        return sock

    with within(HOSTS[0], lambda: bound(1)) as a, within(HOSTS[1], lambda: bound(2)) as b:
        for number in range(count):
            a.sendto(number.to_bytes(4), ("10.9.0.2", 5000))
            assert b.recv(64) == number.to_bytes(4)
            b.sendto(b"answer", ("10.9.0.1", 5000))
            assert a.recv(64) == b"answer"


def programs() -> dict[int, str]:
    """All BPF programs of this machine: number -> name."""
    found, id = {}, c.c_uint32(0)
    while library().bpf_prog_get_next_id(id, c.byref(id)) == 0:
        with suppress(BpfError):  # it ended meanwhile
            fd = check(library().bpf_prog_get_fd_by_id(id.value), "cannot open a BPF program")
            try:
                found[id.value] = program_info(fd)[0].name.decode()
            finally:
                os.close(fd)
    return found
