"""Mark latency: from a checkpoint's packet in the switch until the flow's mark is in force, 2,000 new flows a second.

Real packets through the embedded switch: connections that open, ask, are answered and ask again half a second later,
as health checks do. The shipped forest takes most of them for control at their second checkpoint, the eighth packet.
Switch, controller and sender are processes of their own. The figures are from the controller's own histogram, between
two of its buckets by straight line; beside them stands the goal. Each flow makes two records; none may be lost.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from harness import cannot_run, report

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

RATE, SECONDS, ROUNDS = 2000, 5, 3
#: Lower than usual: a busy sender bends the times between packets, and what is judged here is not the forest.
THRESHOLD = 0.3
GOAL_MEDIAN_MS, GOAL_P99_MS = 10.0, 50.0
SYN, SYN_ACK, ACK, PUSH = 0x02, 0x12, 0x10, 0x18
#: Time of each packet after the flow's first, whether it goes back, TCP flags, payload bytes.
PACKETS = (
    (0.0, False, SYN, 0),
    (0.0006, True, SYN_ACK, 0),
    (0.0010, False, ACK, 0),
    (0.0011, False, PUSH, 577),
    (0.0016, True, ACK, 0),
    (0.0080, True, PUSH, 345),
    (0.0083, False, ACK, 0),
    (0.6377, False, PUSH, 578),
)


def frame(macs: tuple[int, int], sport: int, back: bool, flags: int, payload: int) -> bytes:
    """An Ethernet frame; the IPv4 checksum is right, TCP's is left out as with offloads."""
    ends, ports = ((b"\x0a\x09\0\1", b"\x0a\x09\0\2"), (sport, 9000))
    if back:
        ends, ports, macs = ends[::-1], ports[::-1], macs[::-1]
    options = 20 if flags & SYN else 12
    header = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 40 + options + payload, 1, 0x4000, 64, 6, 0, *ends)
    total = sum(struct.unpack("!10H", header))
    total = (total & 0xFFFF) + (total >> 16)
    header = header[:10] + struct.pack("!H", ~total & 0xFFFF) + header[12:]
    tcp = struct.pack("!HHIIBBHHH", *ports, 1, 1, (20 + options) // 4 << 4, flags, 64000 if flags & SYN else 502, 0, 0)
    return macs[1].to_bytes(6) + macs[0].to_bytes(6) + b"\x08\0" + header + tcp + b"\x01" * options + b"x" * payload


def send(first_port: int, rate: int, seconds: int, sockets: tuple[Any, Any], macs: tuple[int, int]) -> float:
    """All packets of rate * seconds flows on time; returns by how much the sender was late at worst."""
    plan = []
    for number in range(rate * seconds):
        for after_s, back, flags, payload in PACKETS:
            plan.append((number / rate + after_s, back, frame(macs, first_port + number, back, flags, payload)))
    plan.sort(key=lambda item: item[0])
    late_s, at = 0.0, 0
    begun = time.perf_counter() + 0.1
    while at < len(plan):
        # A turn each half millisecond: a sender that spins would take the switch's processor.
        now_s = time.perf_counter() - begun
        while at < len(plan) and plan[at][0] <= now_s:
            when_s, back, data = plan[at]
            sockets[back].send(data)
            late_s = max(late_s, now_s - when_s)
            at += 1
        time.sleep(0.0005)
    return late_s


def scraped(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        return str(answer.read().decode())


def histogram(text: str) -> dict[float, float]:
    """Bucket bound -> how many were not above it."""
    found = re.findall(r'dinnet_mark_latency_seconds_bucket\{le="([^"]+)",switch="sw"\} (\S+)', text)
    return {float(bound): float(count) for bound, count in found}


def quantile(buckets: dict[float, float], share: float) -> float:
    """Milliseconds; infinite where it is above the last bucket."""
    wanted, low, below = share * max(buckets.values()), 0.0, 0.0
    for bound, count in sorted(buckets.items()):
        if count >= wanted:
            return (low + (bound - low) * (wanted - below) / max(count - below, 1e-9)) * 1000
        low, below = bound, count
    return float("inf")


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def measure(rate: int, seconds: int, folder: Path) -> dict[str, float]:
    import controllerkit
    import namespacekit
    import switchkit

    with ExitStack() as stack:
        stack.enter_context(switchkit.wired())
        p4rt = stack.enter_context(controllerkit.switch(folder, microflows=65536, flows=65536))
        port = free_port()
        wanted = controllerkit.intent(
            folder,
            p4rt,
            hosts={},
            links={},
            classifier={"threshold": THRESHOLD, "sure": THRESHOLD, "digest_delay_ms": 4},
        )
        wanted["controller"] |= {"metrics": f"127.0.0.1:{port}", "resync_s": 30}
        path = controllerkit.write(folder / "intent.yaml", wanted)
        stack.enter_context(controllerkit.running(folder / "up.log", "controller", "up", "-c", path))
        controllerkit.await_status(path, controllerkit.all_in_force, "everything is in force")

        def opened() -> socket.socket:
            sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            sock.bind(("eth0", 0))
            return sock

        sockets = tuple(stack.enter_context(namespacekit.within(name, opened)) for name in switchkit.HOSTS)
        # A second of warm-up, so that no first call is among what is counted.
        send(1024, rate, 1, sockets, switchkit.MACS)
        time.sleep(2)
        before = histogram(scraped(f"127.0.0.1:{port}"))
        records_before = judged(scraped(f"127.0.0.1:{port}"))
        with multiprocessing.get_context("fork").Pool(1) as pool:
            late_s = pool.apply(send, (1024 + rate, rate, seconds, sockets, switchkit.MACS))
        end = time.monotonic() + 30
        while (
            judged(text := scraped(f"127.0.0.1:{port}")) - records_before < 2 * rate * seconds
            and time.monotonic() < end
        ):
            time.sleep(0.2)
        after = histogram(text)
        buckets = {bound: count - before.get(bound, 0) for bound, count in after.items()}
        return {
            "median": quantile(buckets, 0.5),
            "p99": quantile(buckets, 0.99),
            "lost": 2 * rate * seconds - (judged(text) - records_before),
            "marked": max(buckets.values(), default=0),
            "late_ms": late_s * 1000,
        }


def judged(text: str) -> float:
    """Records that got a verdict, whatever it was."""
    return sum(map(float, re.findall(r"dinnet_flows_classified_total\{[^}]*\} (\S+)", text)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=RATE, help="new flows a second")
    parser.add_argument("--seconds", type=int, default=SECONDS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    if os.geteuid() != 0:
        cannot_run("namespaces need root")
    if options.rate * (options.seconds + 1) > 64_000:
        cannot_run("more flows than there are ports")
    found = []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory(prefix="dinnet-marks-") as folder:
            try:
                found.append(measure(options.rate, options.seconds, Path(folder)))
            except (AssertionError, subprocess.CalledProcessError) as error:
                cannot_run(f"the testbed did not come up: {error}")
        print(json.dumps({name: round(value, 2) for name, value in found[-1].items()}), file=sys.stderr)

    def line(name: str, key: str, unit: str, goal: float) -> dict[str, Any]:
        value = sorted(each[key] for each in found)[len(found) // 2]
        ratio = round(value / goal, 2) if goal else None
        return {"name": name, "value": round(value, 2), "unit": unit, "peer": "goal", "peer_value": goal,
                "ratio": ratio, "rounds": len(found)}  # fmt: skip

    report(
        [
            line("mark_latency_median", "median", "ms", GOAL_MEDIAN_MS),
            line("mark_latency_p99", "p99", "ms", GOAL_P99_MS),
            line("records_lost", "lost", "records", 0),
        ],
        [f"{options.rate} new flows a second for {options.seconds} s; "
         f"the sender was up to {max(each['late_ms'] for each in found):.0f} ms late"],
    )  # fmt: skip


if __name__ == "__main__":
    main()
