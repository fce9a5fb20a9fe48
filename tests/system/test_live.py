"""Live capture between two network namespaces of our own, with the kernel's own traffic."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from namespacekit import MAC_A, MAC_B, PATIENCE_S, A, B, Pair, in_thread, ip, tcp_exchange, tshark, until, within

from dinnet.capture.live import LiveCapture
from dinnet.capture.packet import KIND_FLOW
from dinnet.errors import DinnetError, UsageError

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces and packet sockets"),
]

_UDP, _TCP = 17, 6


@pytest.fixture
def pair() -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(f"{os.getpid()}", stack)


def collect(capture: LiveCapture, **limits: float | int) -> np.ndarray:
    """All packets until the capture ends, copied."""
    batches = [batch.copy() for batch in capture.batches(**limits)]  # type: ignore[arg-type]
    return np.concatenate(batches) if batches else np.zeros(0)


def _udp_frame(tags: bytes, payload: bytes, sport: int, dport: int) -> bytes:
    """An Ethernet frame from a to b, with `tags` after the addresses; checksums are left out."""
    udp = struct.pack("!4H", sport, dport, 8 + len(payload), 0) + payload
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 1, 0, 64, _UDP, 0,
                     socket.inet_aton(A), socket.inet_aton(B))  # fmt: skip
    return MAC_B + MAC_A + tags + b"\x08\x00" + ip + udp


def _pcap_packets(path: Path) -> list[tuple[int, bytes]]:
    """Wire length and content of the whole packets in a little-endian pcap file."""
    data = path.read_bytes()
    packets, at = [], 24
    while at + 16 <= len(data):
        captured, wire = struct.unpack_from("<II", data, at + 8)
        if at + 16 + captured > len(data):
            break
        packets.append((wire, data[at + 16 : at + 16 + captured]))
        at += 16 + captured
    return packets


def test_udp_counts_equal_the_senders(pair: Pair, tmp_path: Path) -> None:
    sizes = [1 + 7 * k for k in range(200)]
    path = tmp_path / "a.pcapng"
    with (
        LiveCapture("vb", netns=pair.b, write=path) as capture,
        pair.udp(pair.b, B, 7000) as receiver,
        pair.udp(pair.a, A, 7001) as sender,
    ):
        for size in sizes:
            sender.sendto(bytes(size), (B, 7000))
        receiver.sendto(b"ok", (A, 7001))
        capture.stop()
        packets = collect(capture)
        assert capture.dropped == 0
        assert capture.received == len(sizes) + 1
    assert len(packets) == len(sizes) + 1
    assert (packets["kind"] == KIND_FLOW).all() and (packets["proto"] == _UDP).all()
    there = packets[packets["sport"] == 7001]
    assert there["payload_bytes"].tolist() == sizes
    assert there["ip_bytes"].tolist() == [size + 28 for size in sizes]
    [back] = packets[packets["sport"] == 7000]
    assert (back["payload_bytes"], back["ip_bytes"]) == (2, 30)
    assert capture.stats.frame_bytes == sum(size + 42 for size in sizes) + 44
    assert capture.stats.frames == capture.stats.flow_packets == len(sizes) + 1
    assert [int(length) for [length] in tshark(path, "udp.length")] == [size + 8 for size in sizes] + [10]


@pytest.mark.skipif(shutil.which("tcpdump") is None, reason="tcpdump is not installed")
def test_tcp_packets_equal_tcpdumps(pair: Pair, tmp_path: Path) -> None:
    """Not even the sender knows how TCP cuts its bytes; tcpdump on the same device does."""
    path = tmp_path / "tcpdump.pcap"
    # Its own reader of the ring may lag: a last datagram to a port of its own says when it is done.
    command = ["ip", "netns", "exec", pair.b, "tcpdump", "-i", "vb", "-n", "-s", "0", "-B", "8192", "-U",
               "--immediate-mode", "-Z", "root", "-w", str(path)]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tcpdump:
        try:
            assert tcpdump.stderr is not None
            while "listening on" not in (line := tcpdump.stderr.readline()):
                assert line, "tcpdump ended early"
            with LiveCapture("vb", netns=pair.b) as capture, pair.udp(pair.a, A, 7003) as sender:
                tcp_exchange(pair, 7002, 500_000)
                sender.sendto(b"end", (B, 7003))
                capture.stop()
                packets = collect(capture)
                assert capture.dropped == 0
            until(lambda: path.exists() and any(data.endswith(b"end") for _, data in _pcap_packets(path)), "tcpdump")
        finally:
            tcpdump.send_signal(signal.SIGINT)
            tcpdump.wait(PATIENCE_S)
    expected = [(wire, struct.unpack_from("!H", data, 16)[0], data[23]) for wire, data in _pcap_packets(path)]
    # b answers the last datagram with an ICMP error, which either capture may or may not have caught.
    expected = [packet for packet in expected if packet[2] != 1]
    found = packets[packets["proto"] != 1]
    assert len(expected) > 20
    assert found["ip_bytes"].tolist() == [ip_bytes for _, ip_bytes, _ in expected]
    tcp = found[found["proto"] == _TCP]
    assert int(tcp["payload_bytes"][tcp["dport"] == 7002].sum()) == 500_000
    assert int(tcp["payload_bytes"][tcp["sport"] == 7002].sum()) == 0
    assert (np.diff(packets["time_us"]) >= 0).all()


def test_vlan_tags_are_kept(pair: Pair, tmp_path: Path) -> None:
    """The kernel takes the outer tag out of a received frame; it has to be there again, in the file as well."""
    path = tmp_path / "a.pcapng"
    tags = {
        1: b"",
        2: b"\x81\x00\x00\x2a",
        3: b"\x88\xa8\x00\x2a\x81\x00\x20\x07",
        4: b"\x81\x00\xe0\x00",  # priority only
    }
    frames = [_udp_frame(tag, b"p" * 100, sport, 9) for sport, tag in tags.items()]
    with LiveCapture("vb", netns=pair.b, write=path) as capture, pair.raw(pair.a, "va") as sender:
        for frame in frames:
            sender.send(frame)
        capture.stop()
        packets = collect(capture)
    packets = packets[packets["proto"] == _UDP]
    assert [tuple(row) for row in packets[["sport", "vlan", "inner_vlan", "ip_bytes"]].tolist()] == [
        (1, 0, 0, 128),
        (2, 42, 0, 128),
        (3, 42, 7, 128),
        (4, 0, 0, 128),
    ]
    rows = tshark(path, "frame.len", "udp.srcport", "ieee8021ad.id", "vlan.id")
    # b answers what is addressed to it and untagged with an ICMP error that quotes the datagram.
    rows = [row for row in rows if "," not in row[1]]
    assert rows == [["142", "1", "", ""], ["146", "2", "", "42"], ["150", "3", "42", "7"], ["146", "4", "", "0"]]


def test_packets_without_room_are_counted(pair: Pair, tmp_path: Path) -> None:
    path = tmp_path / "a.pcapng"
    count = 2000
    with (
        LiveCapture("vb", netns=pair.b, snaplen=4096, ring_bytes=8 * 4096, block_bytes=4096, write=path) as capture,
        pair.udp(pair.b, B, 7000),
        pair.udp(pair.a, A, 7001) as sender,
    ):
        for _ in range(count):
            sender.sendto(bytes(900), (B, 7000))
        capture.stop()
        packets = collect(capture)
        received, dropped = capture.received, capture.dropped
    # A block of 4096 bytes holds three of these packets: 48 bytes of its own, then 96 + 942 each.
    assert len(packets) == 8 * 3
    assert dropped == count - len(packets)
    assert received == count
    assert len(tshark(path, "frame.len")) == len(packets)


def test_snap_length_keeps_the_true_length(pair: Pair, tmp_path: Path) -> None:
    path = tmp_path / "a.pcapng"
    with (
        LiveCapture("vb", netns=pair.b, snaplen=64, write=path) as capture,
        pair.udp(pair.b, B, 7000),
        pair.udp(pair.a, A, 7001) as sender,
    ):
        for size in (5, 1000):
            sender.sendto(bytes(size), (B, 7000))
        capture.stop()
        packets = collect(capture)
    assert packets["payload_bytes"].tolist() == [5, 1000]
    assert tshark(path, "frame.cap_len", "frame.len") == [["47", "47"], ["64", "1042"]]


def test_loopback_packets_count_once(pair: Pair) -> None:
    with LiveCapture("lo", netns=pair.a) as capture:
        with pair.udp(pair.a, "127.0.0.1", 7000), pair.udp(pair.a, "127.0.0.1", 7001) as sender:
            for size in range(50):
                sender.sendto(bytes(size), ("127.0.0.1", 7000))
        capture.stop()
        packets = collect(capture)
    assert packets["payload_bytes"].tolist() == list(range(50))


def test_tun_device_is_rawip(pair: Pair) -> None:
    """A device without a link layer: frames start with the IP header."""
    import fcntl

    def make() -> int:
        tun = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(tun, 0x400454CA, struct.pack("16sH22x", b"tun7", 0x0001 | 0x1000))  # TUNSETIFF, IFF_TUN | IFF_NO_PI
        return tun

    if not Path("/dev/net/tun").exists():
        pytest.skip("no /dev/net/tun")
    tun = within(pair.a, make)
    try:
        ip("-n", pair.a, "link", "set", "tun7", "up")
        with LiveCapture("tun7", netns=pair.a) as capture:
            os.write(tun, _udp_frame(b"", b"z" * 33, 5, 6)[14:])
            capture.stop()
            packets = collect(capture)
        assert capture.stats.link_types == ["RAW"]
        assert packets[["sport", "dport", "payload_bytes"]].tolist() == [(5, 6, 33)]
    finally:
        os.close(tun)


def test_ends_after_so_many_packets(pair: Pair, tmp_path: Path) -> None:
    path = tmp_path / "a.pcapng"
    with (
        LiveCapture("vb", netns=pair.b, write=path) as capture,
        pair.udp(pair.b, B, 7000),
        pair.udp(pair.a, A, 7001) as sender,
    ):
        for size in range(20):
            sender.sendto(bytes(size), (B, 7000))
        packets = collect(capture, max_packets=7)
    assert packets["payload_bytes"].tolist() == list(range(7))
    assert capture.stats.frames == 7
    assert len(tshark(path, "frame.len")) == 7


def test_stop_from_another_thread_ends_a_quiet_capture(pair: Pair) -> None:
    with LiveCapture("vb", netns=pair.b) as capture:
        batches = capture.batches(tick_s=0.01)
        before = capture.now_us
        assert len(next(batches)) == 0
        first = capture.now_us
        assert first > before
        assert len(next(batches)) == 0
        assert capture.now_us > first, "the clock goes on without packets"
        assert abs(capture.now_us - time.time_ns() // 1000) < PATIENCE_S * 1_000_000
        waiting = capture.batches(tick_s=3600)
        threading.Timer(0.1, capture.stop).start()
        assert sum(len(batch) for batch in waiting) == 0


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (("link", "set", "vb", "down"), r"interface vb in namespace \S+ went down during the capture"),
        (("link", "del", "vb"), r"interface vb in namespace \S+ was removed during the capture"),
    ],
)
def test_interface_lost_in_the_middle(pair: Pair, tmp_path: Path, command: tuple[str, ...], reason: str) -> None:
    path = tmp_path / "a.pcapng"
    got = 0
    with LiveCapture("vb", netns=pair.b, write=path) as capture:
        with pair.udp(pair.b, B, 7000), pair.udp(pair.a, A, 7001) as sender:
            for size in range(20):
                sender.sendto(bytes(size), (B, 7000))
            ip("-n", pair.b, *command)
        with pytest.raises(DinnetError, match=reason + ": 20 packets were captured before"):
            for batch in capture.batches():
                got += len(batch)
    assert got == 20
    assert len(tshark(path, "frame.len")) == 20


def test_what_cannot_be_captured(pair: Pair, tmp_path: Path) -> None:
    with pytest.raises(DinnetError, match=f"no interface nope in namespace {pair.b}: `ip link`"):
        LiveCapture("nope", netns=pair.b)
    with pytest.raises(DinnetError, match="no interface a-name-of-more-than-15-bytes: "):
        LiveCapture("a-name-of-more-than-15-bytes")
    with pytest.raises(DinnetError, match="no network namespace dinnet-none: `ip netns list`"):
        LiveCapture("vb", netns="dinnet-none")
    ip("-n", pair.b, "link", "set", "vb", "down")
    with pytest.raises(DinnetError, match=f"interface vb in namespace {pair.b} is down"):
        LiveCapture("vb", netns=pair.b)
    with pytest.raises(UsageError, match="snap length 0"):
        LiveCapture("vb", netns=pair.a, snaplen=0)
    with pytest.raises(UsageError, match="packet ring of 1000 bytes is too small"):
        LiveCapture("vb", netns=pair.a, ring_bytes=1000)
    with pytest.raises(DinnetError, match="cannot write packets here"):
        LiveCapture("va", netns=pair.a, write=tmp_path / "none" / "a.pcapng")


def test_without_the_capability() -> None:
    def powerless() -> None:
        # _LINUX_CAPABILITY_VERSION_3, this thread, and empty sets.
        header, sets = struct.pack("Ii", 0x20080522, 0), bytes(24)
        assert ctypes.CDLL(None, use_errno=True).capset(header, sets) == 0
        LiveCapture("lo")

    with pytest.raises(DinnetError, match="live capture needs root or the capability CAP_NET_RAW"):
        in_thread(powerless)


def test_two_captures_see_the_same(pair: Pair) -> None:
    """What leaves va arrives at vb: times differ, nothing else."""
    with (
        LiveCapture("va", netns=pair.a) as left,
        LiveCapture("vb", netns=pair.b) as right,
        pair.udp(pair.b, B, 7000),
    ):
        tcp_exchange(pair, 7002, 30_000)
        left.stop()
        right.stop()
        columns = ["src_lo", "sport", "ip_bytes", "seq", "ack", "flags"]
        seen = [Counter(map(tuple, collect(capture)[columns].tolist())) for capture in (left, right)]
    assert seen[0] == seen[1]
    assert sum(seen[0].values()) > 6
