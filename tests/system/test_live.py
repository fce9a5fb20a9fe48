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
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from dinnet.capture.live import LiveCapture
from dinnet.capture.packet import KIND_FLOW
from dinnet.errors import DinnetError, UsageError

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces and packet sockets"),
]

_T = TypeVar("_T")
_PATIENCE_S = 30.0
_A, _B = "10.77.0.1", "10.77.0.2"
_MAC_A, _MAC_B = bytes.fromhex("020000000001"), bytes.fromhex("020000000002")
_UDP, _TCP = 17, 6


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _in_thread(action: Callable[[], _T]) -> _T:
    """Run `action` in a thread of its own, whose namespace and capabilities end with it."""
    results: list[_T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(action())
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _within(namespace: str, action: Callable[[], _T]) -> _T:
    def enter() -> _T:
        with Path("/run/netns", namespace).open() as handle:
            assert ctypes.CDLL(None, use_errno=True).setns(handle.fileno(), 0x40000000) == 0
        return action()

    return _in_thread(enter)


class Pair:
    """Namespaces `a` and `b`, joined by the veth pair va-vb, quiet unless a test sends something."""

    def __init__(self, tag: str, stack: ExitStack) -> None:
        self.a, self.b = f"dinnet-{tag}-a", f"dinnet-{tag}-b"
        for name in (self.a, self.b):
            _ip("netns", "add", name)
            stack.callback(subprocess.run, ["ip", "netns", "del", name], check=False)
            # No router solicitations and no neighbour discovery: the counts are to be exact.
            _within(name, lambda: Path("/proc/sys/net/ipv6/conf/all/disable_ipv6").write_text("1"))
            _within(name, lambda: Path("/proc/sys/net/ipv6/conf/default/disable_ipv6").write_text("1"))
        _ip("-n", self.a, "link", "add", "va", "address", _MAC_A.hex(":"), "type", "veth",
            "peer", "name", "vb", "address", _MAC_B.hex(":"), "netns", self.b)  # fmt: skip
        for name, device, own, other, mac in (
            (self.a, "va", _A, _B, _MAC_B),
            (self.b, "vb", _B, _A, _MAC_A),
        ):
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "addr", "add", f"{own}/24", "dev", device)
            _ip("-n", name, "link", "set", device, "up")
            _ip("-n", name, "neigh", "replace", other, "lladdr", mac.hex(":"), "dev", device, "nud", "permanent")

    def udp(self, namespace: str, address: str, port: int) -> socket.socket:
        def make() -> socket.socket:
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sock.bind((address, port))
            return sock

        return _within(namespace, make)

    def tcp(self, namespace: str) -> socket.socket:
        return _within(namespace, lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))

    def raw(self, namespace: str, device: str) -> socket.socket:
        def make() -> socket.socket:
            sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            sock.bind((device, 0))
            return sock

        return _within(namespace, make)


@pytest.fixture
def pair() -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(f"{os.getpid()}", stack)


def _collect(capture: LiveCapture, **limits: float | int) -> np.ndarray:
    """All packets until the capture ends, copied."""
    batches = [batch.copy() for batch in capture.batches(**limits)]  # type: ignore[arg-type]
    return np.concatenate(batches) if batches else np.zeros(0)


def _until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"waited in vain: {what}"
        time.sleep(0.02)


def _tcp_exchange(pair: Pair, port: int, size: int) -> None:
    """One TCP connection from a to b that carries `size` bytes and is closed in order by both sides."""
    with pair.tcp(pair.b) as listener, pair.tcp(pair.a) as client:
        listener.bind((_B, port))
        listener.listen(1)
        client.connect((_B, port))
        server, _ = listener.accept()
        with server:
            sender = threading.Thread(target=lambda: (client.sendall(b"x" * size), client.shutdown(socket.SHUT_WR)))
            sender.start()
            got = 0
            while chunk := server.recv(65536):
                got += len(chunk)
            sender.join()
            assert got == size
            server.shutdown(socket.SHUT_WR)
            assert client.recv(1) == b""


def _udp_frame(tags: bytes, payload: bytes, sport: int, dport: int) -> bytes:
    """An Ethernet frame from a to b, with `tags` after the addresses; checksums are left out."""
    udp = struct.pack("!4H", sport, dport, 8 + len(payload), 0) + payload
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 1, 0, 64, _UDP, 0,
                     socket.inet_aton(_A), socket.inet_aton(_B))  # fmt: skip
    return _MAC_B + _MAC_A + tags + b"\x08\x00" + ip + udp


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


def _tshark(path: Path, *fields: str) -> list[list[str]]:
    if shutil.which("tshark") is None:
        pytest.skip("tshark is not installed")
    arguments = [item for field in fields for item in ("-e", field)]
    command = ["tshark", "-n", "-r", str(path), "-T", "fields", *arguments]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [line.split("\t") for line in output.splitlines()]


def test_udp_counts_equal_the_senders(pair: Pair, tmp_path: Path) -> None:
    sizes = [1 + 7 * k for k in range(200)]
    path = tmp_path / "a.pcapng"
    with (
        LiveCapture("vb", netns=pair.b, write=path) as capture,
        pair.udp(pair.b, _B, 7000) as receiver,
        pair.udp(pair.a, _A, 7001) as sender,
    ):
        for size in sizes:
            sender.sendto(bytes(size), (_B, 7000))
        receiver.sendto(b"ok", (_A, 7001))
        capture.stop()
        packets = _collect(capture)
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
    assert [int(length) for [length] in _tshark(path, "udp.length")] == [size + 8 for size in sizes] + [10]


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
            with LiveCapture("vb", netns=pair.b) as capture, pair.udp(pair.a, _A, 7003) as sender:
                _tcp_exchange(pair, 7002, 500_000)
                sender.sendto(b"end", (_B, 7003))
                capture.stop()
                packets = _collect(capture)
                assert capture.dropped == 0
            _until(lambda: path.exists() and any(data.endswith(b"end") for _, data in _pcap_packets(path)), "tcpdump")
        finally:
            tcpdump.send_signal(signal.SIGINT)
            tcpdump.wait(_PATIENCE_S)
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
        packets = _collect(capture)
    packets = packets[packets["proto"] == _UDP]
    assert [tuple(row) for row in packets[["sport", "vlan", "inner_vlan", "ip_bytes"]].tolist()] == [
        (1, 0, 0, 128),
        (2, 42, 0, 128),
        (3, 42, 7, 128),
        (4, 0, 0, 128),
    ]
    rows = _tshark(path, "frame.len", "udp.srcport", "ieee8021ad.id", "vlan.id")
    # b answers what is addressed to it and untagged with an ICMP error that quotes the datagram.
    rows = [row for row in rows if "," not in row[1]]
    assert rows == [["142", "1", "", ""], ["146", "2", "", "42"], ["150", "3", "42", "7"], ["146", "4", "", "0"]]


def test_packets_without_room_are_counted(pair: Pair, tmp_path: Path) -> None:
    path = tmp_path / "a.pcapng"
    count = 2000
    with (
        LiveCapture("vb", netns=pair.b, snaplen=4096, ring_bytes=8 * 4096, block_bytes=4096, write=path) as capture,
        pair.udp(pair.b, _B, 7000),
        pair.udp(pair.a, _A, 7001) as sender,
    ):
        for _ in range(count):
            sender.sendto(bytes(900), (_B, 7000))
        capture.stop()
        packets = _collect(capture)
        received, dropped = capture.received, capture.dropped
    # A block of 4096 bytes holds three of these packets: 48 bytes of its own, then 96 + 942 each.
    assert len(packets) == 8 * 3
    assert dropped == count - len(packets)
    assert received == count
    assert len(_tshark(path, "frame.len")) == len(packets)


def test_snap_length_keeps_the_true_length(pair: Pair, tmp_path: Path) -> None:
    path = tmp_path / "a.pcapng"
    with (
        LiveCapture("vb", netns=pair.b, snaplen=64, write=path) as capture,
        pair.udp(pair.b, _B, 7000),
        pair.udp(pair.a, _A, 7001) as sender,
    ):
        for size in (5, 1000):
            sender.sendto(bytes(size), (_B, 7000))
        capture.stop()
        packets = _collect(capture)
    assert packets["payload_bytes"].tolist() == [5, 1000]
    assert _tshark(path, "frame.cap_len", "frame.len") == [["47", "47"], ["64", "1042"]]


def test_loopback_packets_count_once(pair: Pair) -> None:
    with LiveCapture("lo", netns=pair.a) as capture:
        with pair.udp(pair.a, "127.0.0.1", 7000), pair.udp(pair.a, "127.0.0.1", 7001) as sender:
            for size in range(50):
                sender.sendto(bytes(size), ("127.0.0.1", 7000))
        capture.stop()
        packets = _collect(capture)
    assert packets["payload_bytes"].tolist() == list(range(50))


def test_tun_device_is_raw_ip(pair: Pair) -> None:
    """A device without a link layer: frames start with the IP header."""
    import fcntl

    def make() -> int:
        tun = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(tun, 0x400454CA, struct.pack("16sH22x", b"tun7", 0x0001 | 0x1000))  # TUNSETIFF, IFF_TUN | IFF_NO_PI
        return tun

    if not Path("/dev/net/tun").exists():
        pytest.skip("no /dev/net/tun")
    tun = _within(pair.a, make)
    try:
        _ip("-n", pair.a, "link", "set", "tun7", "up")
        with LiveCapture("tun7", netns=pair.a) as capture:
            os.write(tun, _udp_frame(b"", b"z" * 33, 5, 6)[14:])
            capture.stop()
            packets = _collect(capture)
        assert capture.stats.link_types == ["RAW"]
        assert packets[["sport", "dport", "payload_bytes"]].tolist() == [(5, 6, 33)]
    finally:
        os.close(tun)


def test_ends_after_so_many_packets(pair: Pair, tmp_path: Path) -> None:
    path = tmp_path / "a.pcapng"
    with (
        LiveCapture("vb", netns=pair.b, write=path) as capture,
        pair.udp(pair.b, _B, 7000),
        pair.udp(pair.a, _A, 7001) as sender,
    ):
        for size in range(20):
            sender.sendto(bytes(size), (_B, 7000))
        packets = _collect(capture, max_packets=7)
    assert packets["payload_bytes"].tolist() == list(range(7))
    assert capture.stats.frames == 7
    assert len(_tshark(path, "frame.len")) == 7


def test_stop_from_another_thread_ends_a_quiet_capture(pair: Pair) -> None:
    with LiveCapture("vb", netns=pair.b) as capture:
        batches = capture.batches(tick_s=0.01)
        before = capture.now_us
        assert len(next(batches)) == 0
        first = capture.now_us
        assert first > before
        assert len(next(batches)) == 0
        assert capture.now_us > first, "the clock goes on without packets"
        assert abs(capture.now_us - time.time_ns() // 1000) < _PATIENCE_S * 1_000_000
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
        with pair.udp(pair.b, _B, 7000), pair.udp(pair.a, _A, 7001) as sender:
            for size in range(20):
                sender.sendto(bytes(size), (_B, 7000))
            _ip("-n", pair.b, *command)
        with pytest.raises(DinnetError, match=reason + ": 20 packets were captured before"):
            for batch in capture.batches():
                got += len(batch)
    assert got == 20
    assert len(_tshark(path, "frame.len")) == 20


def test_what_cannot_be_captured(pair: Pair, tmp_path: Path) -> None:
    with pytest.raises(DinnetError, match=f"no interface nope in namespace {pair.b}: `ip link`"):
        LiveCapture("nope", netns=pair.b)
    with pytest.raises(DinnetError, match="no interface a-name-of-more-than-15-bytes: "):
        LiveCapture("a-name-of-more-than-15-bytes")
    with pytest.raises(DinnetError, match="no network namespace dinnet-none: `ip netns list`"):
        LiveCapture("vb", netns="dinnet-none")
    _ip("-n", pair.b, "link", "set", "vb", "down")
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
        _in_thread(powerless)


def test_two_captures_see_the_same(pair: Pair) -> None:
    """What leaves va arrives at vb: times differ, nothing else."""
    with (
        LiveCapture("va", netns=pair.a) as left,
        LiveCapture("vb", netns=pair.b) as right,
        pair.udp(pair.b, _B, 7000),
    ):
        _tcp_exchange(pair, 7002, 30_000)
        left.stop()
        right.stop()
        columns = ["src_lo", "sport", "ip_bytes", "seq", "ack", "flags"]
        seen = [Counter(map(tuple, _collect(capture)[columns].tolist())) for capture in (left, right)]
    assert seen[0] == seen[1]
    assert sum(seen[0].values()) > 6
