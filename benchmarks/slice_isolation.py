"""What slices do for small packets when bulk is offered at five times the link, against one FIFO for all.

Two namespaces, joined by a veth that is held to 100 Mbit/s. A delay is the kernel's receive time stamp less the time
just before sending, so that the receiver's own waiting for a processor does not count. Shares are
of HTB's own counters.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import statistics
import struct
import subprocess
import time
from collections.abc import Iterator

from harness import cannot_run, figure, in_turn, report

from dinnet.errors import DinnetError
from dinnet.host.driver import Host
from dinnet.host.state import HostState, Link, Queue, Slice, class_id
from dinnet.netns import inside

ROUNDS = int(os.environ.get("ROUNDS", "5"))
SECONDS = float(os.environ.get("SECONDS", "4"))
NAME = f"dinnet-slices{os.getpid()}"
MBIT = 10**6
RATE = 100 * MBIT
SO_TIMESTAMPNS = 35
SO_SNDBUFFORCE = 32
BULK, TOKENS, PROMPTS, CHAT = class_id(3, 1), class_id(1, 3), class_id(1, 1), class_id(2, 3)
# Queues of 50 ms, but for tokens: senders that wait for a processor must not leave the link idle.
LINK = Link(
    "va", RATE,
    (
        Slice(0, "default", MBIT, RATE, (Queue(0, MBIT, RATE, 5),)),
        Slice(1, "realtime", 39 * MBIT, RATE, (Queue(3, 9 * MBIT, RATE, 0), Queue(1, 30 * MBIT, RATE, 3, 50))),
        Slice(2, "interactive", 20 * MBIT, RATE, (Queue(3, 20 * MBIT, RATE, 3, 50),)),
        Slice(3, "bulk", 40 * MBIT, RATE, (Queue(1, 40 * MBIT, RATE, 3, 50),)),
    ),
)  # fmt: skip
GUARANTEES = {TOKENS: 9 * MBIT, PROMPTS: 30 * MBIT, CHAT: 20 * MBIT, BULK: 40 * MBIT}


def ip(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@contextlib.contextmanager
def network() -> Iterator[tuple[str, str]]:
    """Namespaces of a sender and a receiver."""
    names = f"{NAME}-a", f"{NAME}-b"
    try:
        for name in names:
            ip("ip", "netns", "add", name)
        ip("ip", "-n", names[0], "link", "add", "va", "type", "veth", "peer", "name", "vb", "netns", names[1])
        for number, (name, device) in enumerate(zip(names, ("va", "vb"), strict=True), start=1):
            ip("ip", "-n", name, "addr", "add", f"10.9.0.{number}/24", "dev", device)
            ip("ip", "-n", name, "link", "set", device, "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def sender(namespace: str, priority: int) -> socket.socket:
    with inside(namespace):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 1 << 25)  # the queue is to drop, not the socket to wait
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, priority)
    sock.connect(("10.9.0.2", 9000 + (priority & 0xFF)))
    return sock


def flood(sock: socket.socket, rate_bps: int, size: int = 1400) -> None:
    """Send at a rate, in small bursts, until killed."""
    packet, step = bytes(size), 0.0005
    share = rate_bps * step / 8 / (size + 42)
    due, owed = time.monotonic(), 0.0
    while True:
        owed += share
        for _ in range(int(owed)):
            with contextlib.suppress(OSError):
                sock.send(packet)
        owed -= int(owed)
        due += step
        time.sleep(max(0.0, due - time.monotonic()))


@contextlib.contextmanager
def floods(namespace: str, rates: dict[int, int]) -> Iterator[None]:
    context = multiprocessing.get_context("fork")
    senders = [sender(namespace, priority) for priority in rates]
    workers = [context.Process(target=flood, args=pair, daemon=True) for pair in zip(senders, rates.values())]  # noqa: B905
    try:
        for worker in workers:
            worker.start()
        time.sleep(0.5)
        yield
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
        for sock in senders:
            sock.close()


def delays_ms(namespaces: tuple[str, str], seconds: float) -> list[float]:
    """Of token-sized packets, one each 2 ms."""
    with inside(namespaces[1]):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with receiver, sender(namespaces[0], TOKENS) as sock:
        receiver.bind(("10.9.0.2", 9000 + (TOKENS & 0xFF)))
        receiver.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        receiver.setblocking(False)
        found: list[float] = []

        def take() -> None:
            with contextlib.suppress(BlockingIOError):
                while True:
                    data, ancillary, _, _ = receiver.recvmsg(64, 64)
                    seconds_, nanoseconds = struct.unpack("=qq", ancillary[0][2])
                    found.append((seconds_ * 10**9 + nanoseconds - struct.unpack_from("=Q", data)[0]) / 1e6)

        sent = 0
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            sock.send(struct.pack("=Q", time.time_ns()) + bytes(150))
            sent += 1
            time.sleep(0.002)
            take()
        time.sleep(0.5)
        take()
    lost = sent - len(found)
    if lost > sent / 2:
        raise RuntimeError(f"{lost} of {sent} small packets were lost")
    # A packet that was dropped waited longer than any that came.
    return sorted(found) + [max(found)] * lost


def p99(values: list[float]) -> float:
    return values[int(len(values) * 0.99)]


def with_slices(namespaces: tuple[str, str]) -> float:
    with Host(namespaces[0]) as host:
        host.apply(host.plan(HostState((LINK,))))
        try:
            with floods(namespaces[0], {BULK: 5 * RATE}):
                return p99(delays_ms(namespaces, SECONDS))
        finally:
            host.remove()


def with_one_fifo(namespaces: tuple[str, str]) -> float:
    """The same link with the queue that HTB gives a class of itself: 1,000 packets."""
    tc = ("tc", "-n", namespaces[0])
    ip(*tc, "qdisc", "add", "dev", "va", "root", "handle", "9:", "htb", "default", "1")
    ip(*tc, "class", "add", "dev", "va", "parent", "9:", "classid", "9:1", "htb", "rate", "100mbit", "quantum", "1514")
    try:
        with floods(namespaces[0], {BULK: 5 * RATE}):
            return p99(delays_ms(namespaces, SECONDS))
    finally:
        ip(*tc, "qdisc", "del", "dev", "va", "root")


def rates(host: Host, seconds: float) -> dict[int, float]:
    """Bits per second by class, in a while."""

    def look() -> tuple[float, dict[int, int]]:
        found = {class_id(each.slice, each.tc): each.bytes for each in host.counters()}
        return time.monotonic(), found

    start, before = look()
    time.sleep(seconds)
    end, after = look()
    return {number: (after[number] - before[number]) * 8 / (end - start) for number in after}


def shares(namespaces: tuple[str, str]) -> tuple[float, float]:
    """The worst ratio of a slice's rate to its guarantee with all of them overloaded; of the link, with bulk alone."""
    with Host(namespaces[0]) as host:
        host.apply(host.plan(HostState((LINK,))))
        try:
            with floods(namespaces[0], {number: 5 * rate for number, rate in GUARANTEES.items()}):
                found = rates(host, SECONDS)
            worst = min(found[number] / guarantee for number, guarantee in GUARANTEES.items())
            with floods(namespaces[0], {BULK: 5 * RATE}):
                lent = rates(host, SECONDS)[BULK] / RATE
            return worst, lent
        finally:
            host.remove()


def main() -> None:
    try:
        with network() as namespaces:
            ours, fifo = in_turn(ROUNDS, [lambda: with_slices(namespaces), lambda: with_one_fifo(namespaces)])
            found = [shares(namespaces) for _ in range(ROUNDS)]
    except (DinnetError, OSError, subprocess.CalledProcessError) as error:
        cannot_run(str(error))
    guaranteed, lent = ([100 * each[index] for each in found] for index in range(2))
    report(
        [
            figure("queueing of tokens, p99", "ms", ours, "one FIFO of 1,000 packets", fifo)
            | {"ratio": round(statistics.median(ours) / statistics.median(fifo), 5)},  # two digits would be none
            figure("worst slice, of its guarantee", "%", guaranteed, "guarantee", [100.0] * ROUNDS),
            figure("bulk alone, of the link", "%", lent, "link", [100.0] * ROUNDS),
        ],
        [
            "100 Mbit/s; bulk at 500 Mbit/s for the first and third figure,",
            "all slices at five times their guarantee for the second",
        ],
    )


if __name__ == "__main__":
    main()
