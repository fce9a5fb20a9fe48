"""Flow records of a million live flows through P4Runtime: what arrives at a client, and what is counted as lost.

The kernel itself sends four packets of each flow (BPF_F_TEST_XDP_LIVE_FRAMES), paced, through the embedded switch; the
fourth is a flow's first checkpoint, at which its record is due. `dinnet switch up` and the sender are processes of
their own, dinnet's client is in this one. Each rate has flows of its own, and all of them stay in the table. At every
rate, records received and records counted as lost must be exactly those that were due.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes as c
import os
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from harness import cannot_run, figure, report
from switchrun import Running, dinnet_switch

from dinnet.dataplane.conformance.wires import wires
from dinnet.dataplane.entity import DigestConfig
from dinnet.dataplane.tables import ForwardL2, ToPort
from dinnet.errors import DinnetError
from dinnet.netns import inside
from dinnet.switch.bpfmap import create_array
from dinnet.switch.libbpf import TestRunOptions, check, library
from dinnet.switch.snapshot import opened

#: Flows a second, and flows in all at that rate. The first fills the table.
PLAN = ((40_000, 1_000_000), (2_500, 25_000), (5_000, 50_000), (10_000, 100_000))
GOAL = 5_000
PACKETS = 4  # of each flow: its first checkpoint
TABLES = f"{{flows: {1 << 22}}}"
SRC, DST = 0x02AA00000001, 0x02AA00000002
BURST_S = 0.005
QUIET_S = 1.0
BATCH = 64


def packet() -> bytes:
    """UDP over IPv6, which has no header checksum that another address would change."""
    head = DST.to_bytes(6) + SRC.to_bytes(6) + b"\x86\xdd" + struct.pack(">IHBB", 6 << 28, 28, 17, 64)
    return head + bytes.fromhex("fd00" + "00" * 13 + "01" + "fd00" + "00" * 13 + "02") + struct.pack(
        ">HHHH", 4000, 80, 28, 0
    ) + bytes(20)  # fmt: skip


def generator(first: int) -> int:
    """An XDP program that gives each four packets the next source address, from `first` on, and passes them on."""
    counter = create_array("packets", np.dtype("u8"), 1)
    counter.put(np.zeros(1, np.uint32), np.array([first * PACKETS], np.uint64))

    def step(code: int, registers: int = 0, offset: int = 0, value: int = 0) -> bytes:
        return struct.pack("<BBhi", code, registers, offset, value)

    program = b"".join(
        [
            step(0xBF, 0x16),  # r6 = r1
            step(0x62, 0x0A, -4, 0),  # the key on the stack: 0
            step(0x18, 0x11, 0, counter.fd),  # r1 = the map
            step(0x00),
            step(0xBF, 0xA2),  # r2 = r10
            step(0x07, 0x02, value=-4),  # r2 -= 4
            step(0x85, value=1),  # r0 = bpf_map_lookup_elem(r1, r2)
            step(0x15, 0x00, 11, 0),  # if r0 == 0, to the end
            step(0x79, 0x07, 0),  # r7 = *r0
            step(0xBF, 0x78),  # r8 = r7
            step(0x07, 0x08, value=1),  # r8 += 1
            step(0x7B, 0x80, 0),  # *r0 = r8
            step(0x77, 0x07, value=2),  # r7 >>= 2
            step(0x61, 0x62, 0),  # r2 = r6->data
            step(0x61, 0x63, 4),  # r3 = r6->data_end
            step(0xBF, 0x24),  # r4 = r2
            step(0x07, 0x04, value=54),  # r4 += 54
            step(0x2D, 0x34, 1),  # if r4 > r3, to the end
            step(0x63, 0x72, 30),  # source address, bytes 8 to 11 = r7
            step(0xB7, 0x00, value=2),  # r0 = XDP_PASS
            step(0x95),
        ]
    )
    fd = library().bpf_prog_load(6, b"flows", b"GPL", program, len(program) // 8, None)
    return check(fd, "cannot load the generator")


def send(namespace: str, rate: int, flows: int, first: int) -> None:
    """Send `flows` flows, `rate` of them a second, into port 1; prints the seconds that took."""
    with inside(namespace):
        import socket

        index = socket.if_nametoindex("p1")
        fd = generator(first)
        frame = packet()
        given = c.create_string_buffer(frame, len(frame))
        context = (c.c_uint32 * 6)(0, len(frame), 0, index, 0, 0)  # struct xdp_md
        sent, started = 0, time.monotonic()
        while sent < flows:
            due = min(flows, int((time.monotonic() - started + BURST_S) * rate))
            if due > sent:
                options = TestRunOptions(
                    size=c.sizeof(TestRunOptions), data_in=c.addressof(given), data_size_in=len(frame),
                    repeat=(due - sent) * PACKETS, ctx_in=c.addressof(context), ctx_size_in=c.sizeof(context), flags=2,
                    batch_size=BATCH,
                )  # fmt: skip
                check(library().bpf_prog_test_run_opts(fd, c.byref(options)), "cannot send live frames")
                sent = due
            time.sleep(BURST_S / 2)
        print(time.monotonic() - started)


class Counts:
    """What the pipeline has counted so far."""

    def __init__(self, namespace: str) -> None:
        with opened(namespace) as datapath:
            self.lost = datapath.lost_events()[0]
            self.without_record = datapath.flow_collisions().packets
            self.packets = sum(cell.packets for cell in datapath.parsed().values())


async def receive(session: Any, until: asyncio.Event) -> tuple[int, int]:
    """Records that arrive until there has been silence after the sender's end; and how many different flows."""
    received, seen = 0, []
    while True:
        try:
            got = await asyncio.wait_for(session.digests.get(), QUIET_S)
        except TimeoutError:
            if until.is_set():
                break
            continue
        received += len(got.records)
        seen.append(got.records["src_lo"].copy())
    return received, len(np.unique(np.concatenate(seen))) if seen else 0


async def at_rate(running: Running, rate: int, flows: int, first: int) -> dict[str, Any]:
    before = await asyncio.to_thread(Counts, running.namespace)
    ended = asyncio.Event()
    receiving = asyncio.create_task(receive(running.session, ended))
    command = [sys.executable, __file__, "--send", running.namespace, str(rate), str(flows), str(first)]
    sender = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    told, _ = await sender.communicate()
    ended.set()
    if sender.returncode != 0:
        raise RuntimeError("the sender failed")
    received, different = await receiving
    after = await asyncio.to_thread(Counts, running.namespace)
    packets = after.packets - before.packets
    without = after.without_record - before.without_record
    lost = after.lost - before.lost
    # All four packets of a flow find its place taken, or none does.
    due = (packets - without) // PACKETS
    return {
        "rate": flows / float(told), "flows": flows, "packets": packets, "without": without, "due": due,
        "received": received, "different": different, "lost": lost,
        "dropped": running.session.dropped,
    }  # fmt: skip


async def measure(plan: tuple[tuple[int, int], ...]) -> tuple[list[dict[str, Any]], list[str]]:
    results, notes = [], []
    with wires(2) as ports, tempfile.TemporaryDirectory(prefix="dinnet-bench-") as folder:
        async with dinnet_switch(ports, Path(folder), TABLES) as running:
            digest = next(iter(running.session.program.info.digests.values())).name
            await running.session.insert([DigestConfig(digest, 256, 5_000_000), ForwardL2(vlan=0, dst=DST,
                                         action=ToPort(port=2))])  # fmt: skip
            first = 0
            for rate, flows in plan:
                result = await at_rate(running, rate, flows, first)
                first += flows
                results.append(result)
                counted = result["received"] + result["lost"]
                exact = (
                    "exact" if counted == result["due"] and result["different"] == result["received"] else "NOT EXACT"
                )
                notes.append(
                    f"  {result['rate']:,.0f} new flows/s, {flows:,} flows: {result['due']:,} records due, "
                    f"{result['received']:,} received, {result['lost']:,} counted as lost: {exact}; "
                    f"{result['without'] // PACKETS:,} flows found no place in the table"
                )
                if exact != "exact" or result["dropped"]:
                    raise RuntimeError(f"the counts do not agree: {result}")
            server, maps = running.memory_mib()
            notes.append(
                f"With {first:,} flows under way: server {server:,.0f} MiB, maps in the kernel {maps:,.0f} MiB"
            )
    return results, notes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--send", nargs=4, metavar=("NAMESPACE", "RATE", "FLOWS", "FIRST"), help=argparse.SUPPRESS)
    parser.add_argument("--flows", type=int, help="of the first step, instead of a million")
    given = parser.parse_args()
    if given.send:
        namespace, *numbers = given.send
        send(namespace, *map(int, numbers))
        return
    if os.geteuid() != 0:
        cannot_run("loading the switch needs root")
    plan = ((PLAN[0][0], given.flows), *PLAN[1:]) if given.flows else PLAN
    try:
        results, notes = asyncio.run(measure(plan))
    except (DinnetError, ImportError) as error:
        cannot_run(str(error))
    at_goal = next(result for (rate, _), result in zip(plan, results, strict=True) if rate == GOAL)
    best = max(results, key=lambda result: result["received"] / result["flows"] * result["rate"])
    taken = best["received"] / best["flows"] * best["rate"]
    report(
        [
            figure(f"records lost at {GOAL:,} new flows/s", "records", [float(at_goal["lost"])], "received",
                   [float(at_goal["received"])]),
            figure("records received a second, most", "records/s", [taken], "goal", [float(GOAL)]),
        ],
        notes,
    )  # fmt: skip


if __name__ == "__main__":
    main()
