"""Packets per second through the embedded switch, a Linux bridge and BMv2, with the kernel itself as the sender.

A test run of an XDP program with live frames (BPF_F_TEST_XDP_LIVE_FRAMES) puts packets onto a veth's receive path. They
are forwarded to another veth, whose peer counts them. Marking, metering and flow records are on, over 1,024
micro-flows; so they are on BMv2 (simple_switch_grpc on the PATH), which a flood makes collapse: it is offered paced
traffic, and its rate is the highest at which it loses less than a hundredth. Where the switch's time goes is measured
by test runs of its own program.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes as c
import os
import shutil
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from harness import cannot_run, figure, in_turn, report

from dinnet.errors import DinnetError
from dinnet.netns import inside
from dinnet.switch.attach import PortConfig, Switch
from dinnet.switch.bpfobject import test_run
from dinnet.switch.contract import Action, Forward, Port, Sizes
from dinnet.switch.datapath import Datapath
from dinnet.switch.libbpf import TestRunOptions, check, library
from dinnet.switch.tokens import Rates

ROUNDS = int(os.environ.get("ROUNDS", "5"))
PACKETS = int(os.environ.get("PACKETS", "2000000"))
FLOWS = 1024
SIZES = (64, 1400)
SRC, DST = 0x02AA00000001, 0x02AA00000002
NAME = f"dinnet-bench{os.getpid()}"
PLENTY = Rates(10**11, 10**9, 10**11, 10**9)
BMV2_RATES = (100, 100_000)  # between which it is searched
BMV2_S = 1.0
BURST_S = 0.002
XDP_PASS, BPF_PROG_TYPE_XDP, LIVE_FRAMES = 2, 6, 2


def frame(size: int) -> bytes:
    """A UDP packet of `size` bytes from Ethernet address to payload, without the frame check."""
    total = size - 14
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, total, 0, 0, 64, 17, 0, bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2]))
    words = sum(struct.unpack(">10H", ip))
    checksum = ~((words & 0xFFFF) + (words >> 16)) & 0xFFFF
    udp = struct.pack(">HHHH", 0, 80, total - 20, 0)
    return (
        DST.to_bytes(6)
        + SRC.to_bytes(6)
        + b"\x08\x00"
        + ip[:10]
        + checksum.to_bytes(2)
        + ip[12:]
        + udp
        + bytes(total - 28)
    )


def generator() -> int:
    """An XDP program that gives a packet one of FLOWS source ports and passes it on; returns its descriptor."""

    def step(code: int, registers: int = 0, offset: int = 0, value: int = 0) -> bytes:
        return struct.pack("<BBhi", code, registers, offset, value)

    program = b"".join(
        [
            step(0xBF, 0x16),  # r6 = r1
            step(0x85, value=7),  # r0 = bpf_get_prandom_u32()
            step(0x61, 0x62, 0),  # r2 = r6->data
            step(0x61, 0x63, 4),  # r3 = r6->data_end
            step(0xBF, 0x24),  # r4 = r2
            step(0x07, 0x04, value=36),  # r4 += 36
            step(0x2D, 0x34, 2),  # if r4 > r3, skip the next two
            step(0x57, 0x00, value=FLOWS - 1),  # r0 &= FLOWS - 1
            step(0x6B, 0x02, 34),  # source port = r0
            step(0xB7, 0x00, value=XDP_PASS),  # r0 = XDP_PASS
            step(0x95),  # return
        ]
    )
    fd = library().bpf_prog_load(BPF_PROG_TYPE_XDP, b"generator", b"GPL", program, len(program) // 8, None)
    return check(fd, "cannot load the generator")


def send(fd: int, packet: bytes, ifindex: int, count: int) -> None:
    """Have `count` packets received on an interface of the calling thread's namespace."""
    given = c.create_string_buffer(packet, len(packet))
    context = (c.c_uint32 * 6)(0, len(packet), 0, ifindex, 0, 0)  # struct xdp_md
    options = TestRunOptions(
        size=c.sizeof(TestRunOptions), data_in=c.addressof(given), data_size_in=len(packet), repeat=count,
        ctx_in=c.addressof(context), ctx_size_in=c.sizeof(context), flags=LIVE_FRAMES, batch_size=64,
    )  # fmt: skip
    check(library().bpf_prog_test_run_opts(fd, c.byref(options)), "cannot send live frames")


@contextlib.contextmanager
def wires(name: str) -> Iterator[tuple[Any, int]]:
    """A namespace with veths s0 and s1, and their peers d0 and d1; netlink, and the number of s0."""
    from pyroute2 import IPRoute, netns

    netns.create(name)
    try:
        with inside(name), IPRoute() as ip:
            for scope in ("all", "default"):
                Path(f"/proc/sys/net/ipv6/conf/{scope}/disable_ipv6").write_text("1")
            for number in range(2):
                ip.link("add", ifname=f"s{number}", kind="veth", peer={"ifname": f"d{number}"})
                for end in ("s", "d"):
                    ip.link("set", index=ip.link_lookup(ifname=f"{end}{number}")[0], state="up")
            yield ip, ip.link_lookup(ifname="s0")[0]
    finally:
        netns.remove(name)


def received(ip: Any) -> int:
    (link,) = ip.get_links(ifname="d1")
    return int(link.get_attr("IFLA_STATS64")["rx_packets"])


def rate(ip: Any, fd: int, ifindex: int, size: int) -> float:
    """Packets that came through in a second."""
    send(fd, frame(size), ifindex, PACKETS // 20)
    before, start = received(ip), time.monotonic()
    send(fd, frame(size), ifindex, PACKETS)
    took = time.monotonic() - start
    got = received(ip) - before
    if got < 0.99 * PACKETS:
        raise RuntimeError(f"{PACKETS - got} of {PACKETS} packets were lost")
    return got / took


def fill(datapath: Datapath, port: int) -> None:
    """A marked and metered micro-flow for each source port, and a meter for their slice."""
    keys = np.zeros(FLOWS, datapath.microflows.key)
    keys["src_lo"], keys["dst_lo"] = (0xFFFF << 32 | 0x0A000000 | host for host in (1, 2))
    keys["proto"], keys["dport"] = 17, 80
    keys["sport"] = np.arange(FLOWS, dtype=np.uint16).byteswap()
    marks = np.zeros(FLOWS, [("id", "u4"), ("slice", "u1"), ("tc", "u1"), ("idle_ns", "u8")])
    marks["slice"], marks["tc"] = 1, 3
    datapath.microflows.insert(keys, marks, [PLENTY] * FLOWS)
    datapath.set_slice_meters(port * 16 + 1, [PLENTY])


def loss(fd: int, size: int, offered: int) -> float:
    """The part of the packets that is lost where `offered` a second are sent into p1, of those that should reach t2."""
    index, data = socket.if_nametoindex("p1"), frame(size)

    def counted() -> int:
        from pyroute2 import IPRoute

        with IPRoute() as ip:
            (link,) = ip.get_links(ifname="t2")
            return int(link.get_attr("IFLA_STATS64")["rx_packets"])

    before, sent, start = counted(), 0, time.monotonic()
    while sent < offered * BMV2_S:
        due = int(min(time.monotonic() - start + BURST_S, BMV2_S) * offered)
        if due > sent:
            send(fd, data, index, due - sent)
            sent = due
        time.sleep(BURST_S / 2)
    got = -1
    while (now := counted() - before) != got:  # what is in its queues may still come
        got = now
        time.sleep(0.3)
    return 1 - got / sent


async def bmv2_rates(fd: int, binary: Path) -> list[int]:
    """The highest rate of each of SIZES that BMv2 forwards, with the same tables as the switch; 0: less than tried."""
    from dinnet.dataplane.conformance.systems import bmv2
    from dinnet.dataplane.conformance.wires import wires as conformance_wires
    from dinnet.dataplane.entity import MeterCell
    from dinnet.dataplane.entity import Rates as EntityRates
    from dinnet.dataplane.program import dinnet_program
    from dinnet.dataplane.tables import ForwardL2, Microflow, SetMark, ToPort

    plenty = EntityRates(*PLENTY)
    entries = [
        Microflow(
            src=0xFFFF << 32 | 0x0A000001, dst=0xFFFF << 32 | 0x0A000002, proto=17, sport=sport, dport=80, vlan=0,
            flow_label=0, action=SetMark(slice=1, tc=3, microflow_id=sport), rates=plenty,
        )
        for sport in range(FLOWS)
    ]  # fmt: skip
    found = []
    with conformance_wires(2) as ports:
        async with bmv2(binary, ports, dinnet_program()) as session:
            await session.replace_pipeline()
            await session.insert([ForwardL2(vlan=0, dst=DST, action=ToPort(port=2)), *entries])
            await session.modify([MeterCell("slice_meter", 2 * 16 + 1, plenty)])

            def search(size: int) -> int:
                low, high = BMV2_RATES
                with inside(ports.namespace):
                    while high - low > low // 20:
                        middle = (low + high) // 2
                        if loss(fd, size, middle) < 0.01:
                            low = middle
                        else:
                            high = middle
                return low if low > BMV2_RATES[0] else 0

            for size in SIZES:
                found.append(await asyncio.to_thread(search, size))
    return found


def stages(size: int) -> list[str]:
    """Nanoseconds a packet for the program without, and with, each part of its work."""
    packet = frame(size)
    with Datapath.load(Sizes(microflows=4096, flows=4096)) as datapath:

        def cost(data: bytes) -> int:
            return min(test_run(datapath.program.fd, data, repeat=300_000).duration_ns for _ in range(3))

        found = [("no port: passed by", cost(packet))]
        datapath.set_port(Port(1, 1))
        datapath.table("egress_port").put(np.array([2]), np.array([1]))
        datapath.station(0, DST, Forward(Action.PORT, 2))
        later = bytearray(packet)
        later[20:22] = b"\x00\x01"  # a fragment that is not the first: no flow record, no micro-flow
        found.append(("not IP: to its station", cost(packet[:12] + b"\x88\xb5" + packet[14:])))
        found.append(("parsed and marked by port", cost(bytes(later))))
        found.append(("and counted into its flow record", cost(packet)))
        fill(datapath, 2)
        found.append(("and with micro-flow and both meters", cost(packet)))
    return [f"  {size} bytes, {name}: {ns} ns" for name, ns in found]


def main() -> None:
    try:
        fd = generator()
        figures = []
        notes: list[str] = []
        own: dict[int, list[float]] = {}
        with wires(f"{NAME}-s") as (ip_s, in_s), wires(f"{NAME}-b") as (ip_b, in_b):
            ports = [PortConfig(1, "s0"), PortConfig(2, "s1")]
            with Switch.up(ports, namespace=f"{NAME}-s", sizes=Sizes(microflows=4096, flows=65536)) as switch:
                switch.datapath.station(0, DST, Forward(Action.PORT, 2))
                fill(switch.datapath, 2)
                with inside(f"{NAME}-b"):
                    ip_b.link("add", ifname="br0", kind="bridge", br_mcast_snooping=0)
                    bridge = ip_b.link_lookup(ifname="br0")[0]
                    for name in ("s0", "s1"):
                        ip_b.link("set", index=ip_b.link_lookup(ifname=name)[0], master=bridge)
                    ip_b.link("set", index=bridge, state="up")
                    with contextlib.suppress(OSError):  # a kernel without the hook
                        Path("/proc/sys/net/bridge/bridge-nf-call-iptables").write_text("0")
                    time.sleep(1)  # the bridge's ports begin to forward
                    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as station:  # tells it where DST is
                        station.sendto(SRC.to_bytes(6) + DST.to_bytes(6) + b"\x88\xb5" + bytes(46), ("d1", 0))

                def through(namespace: str, ip: Any, ifindex: int, size: int) -> float:
                    with inside(namespace):
                        return rate(ip, fd, ifindex, size)

                for size in SIZES:
                    ours, bridges = in_turn(
                        ROUNDS,
                        [
                            lambda size=size: through(f"{NAME}-s", ip_s, in_s, size),  # type: ignore[misc]
                            lambda size=size: through(f"{NAME}-b", ip_b, in_b, size),  # type: ignore[misc]
                        ],
                    )
                    own[size] = ours
                    figures.append(figure(f"switch_{size}_bytes", "packets/s", ours, "Linux bridge", bridges))
                switch.down()
        binary = shutil.which("simple_switch_grpc")
        if binary:
            for size, found in zip(SIZES, asyncio.run(bmv2_rates(fd, Path(binary))), strict=True):
                if found:
                    name = f"switch_{size}_bytes_bmv2"
                    figures.append(figure(name, "packets/s", own[size], "BMv2", [float(found)] * ROUNDS))
                else:
                    notes.append(
                        f"No figure of BMv2 with {size} bytes: it lost 1 % or more even of {BMV2_RATES[0]:,} packets/s."
                    )
        os.close(fd)
        notes += ["Cost of a packet in the switch's own program, from test runs:"]
        for size in SIZES:
            notes += stages(size)
        if not binary:
            notes.append("Not measured: BMv2, whose simple_switch_grpc is not on the PATH.")
    except (DinnetError, ImportError) as error:
        cannot_run(str(error))
    report(figures, notes)


if __name__ == "__main__":
    main()
