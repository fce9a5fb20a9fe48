"""INT for tests: IPv4 checksums worked out here, and a pipeline whose port OUT is a real wire."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
from types import TracebackType
from typing import Any, Self

import capturekit as kit
import numpy as np
import switchkit
from namespacekit import ip, within
from switchkit import IN, OTHER, OUT

from dinnet.switch.bpfobject import Ran, test_run
from dinnet.switch.contract import Action, Collector, Forward, IntEvent, IntNode
from dinnet.switch.sliceselect import Match, Watch, Watched
from dinnet.telemetry.int_md import Stack
from dinnet.telemetry.report import Report

INT_PORT = 4793
HEADERS = 24  # UDP, shim, INT-MD header
NODE = 0xA0000001
_SOL_PACKET, _PACKET_AUXDATA, _VLAN_VALID = 263, 8, 0x10
COLLECTOR = Collector(OTHER, 0x02_00_00_00_00_0A, 0x02_00_00_00_00_0B, 0x0A000001, 0x0A0000FE, 40000, 32766)


def ones_sum(data: bytes) -> int:
    """RFC 1071, over 16-bit words."""
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def with_checksum(packet: bytes) -> bytes:
    """An IPv4 packet with its header checksum."""
    size = (packet[0] & 15) * 4
    head = packet[:10] + b"\0\0" + packet[12:size]
    return head[:10] + (0xFFFF - ones_sum(head)).to_bytes(2) + head[12:] + packet[size:]


def packet(payload: bytes, proto: int, version: int = 4, tos: int = 0, opts: bytes = b"") -> bytes:
    """An IP packet as the switch leaves it where nothing gives it a mark."""
    if version == 4:
        raw = bytearray(kit.ipv4(payload, proto, opts=opts))
        raw[1] = tos
        return with_checksum(bytes(raw))
    return kit.ipv6(payload, proto, label=0x12345)


def split(frame: bytes, l3: int = 14) -> tuple[bytes, bytes, Stack, bytes]:
    """IP header, INT's UDP header, stack, and the transport header with what follows, of a frame with INT."""
    size = (frame[l3] & 15) * 4 if frame[l3] >> 4 == 4 else 40
    udp = frame[l3 + size : l3 + size + 8]
    stack, taken = Stack.decode(frame[l3 + size + 8 :])
    return frame[l3 : l3 + size], udp, stack, frame[l3 + size + 8 + taken :]


def carrying(original: bytes, stack: Stack, udp_checksum: int = 0) -> bytes:
    """An IP packet with a stack in it."""
    version = original[0] >> 4
    size = (original[0] & 15) * 4 if version == 4 else 40
    raw = stack.encode()
    udp = struct.pack(">HHHH", 0xC001, INT_PORT, 8 + len(raw) + len(original) - size, udp_checksum)
    added = len(udp) + len(raw)
    head = bytearray(original[:size])
    if version == 4:
        head[2:4] = (int.from_bytes(head[2:4]) + added).to_bytes(2)
        head[9] = 17
    else:
        head[4:6] = (int.from_bytes(head[4:6]) + added).to_bytes(2)
        head[6] = 17
    whole = bytes(head) + udp + raw + original[size:]
    return with_checksum(whole) if version == 4 else whole


def opened(frame: bytes) -> Report:
    """The report in a frame to the collector, whose outer headers are checked."""
    assert frame[:12].hex() == "02000000000b02000000000a"
    head = frame[14:34]
    assert frame[12:14] == b"\x08\0" and head[0] == 0x45 and ones_sum(head) == 0xFFFF
    assert int.from_bytes(head[2:4]) == len(frame) - 14
    assert head[6] & 0x40  # must not be fragmented: the identification may be the same in all
    assert head[12:] == bytes.fromhex("0a000001 0a0000fe")
    assert struct.unpack(">HHHH", frame[34:42]) == (40000, 32766, len(frame) - 34, 0)
    return Report.decode(frame[42:])


class IntBench(switchkit.Bench):
    """OUT leads to a wire of a namespace, so that copies of packets that become reports can be seen."""

    def __init__(self) -> None:
        self.namespace = f"dinnet-int{os.getpid()}"
        ip("netns", "add", self.namespace)
        try:
            scopes = [f"net.ipv6.conf.{scope}.disable_ipv6=1" for scope in ("all", "default")]
            subprocess.run(["ip", "netns", "exec", self.namespace, "sysctl", "-qw", *scopes], check=True)
            ip("-n", self.namespace, "link", "add", "o0", "type", "veth", "peer", "name", "o1")
            for name in ("lo", "o0", "o1"):
                ip("-n", self.namespace, "link", "set", name, "up", "mtu", "9000")
            self.wire, self.out = within(self.namespace, self._wire)
            super().__init__()
        except BaseException:
            ip("netns", "del", self.namespace)
            raise

    @staticmethod
    def _wire() -> tuple[socket.socket, int]:
        wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        wire.bind(("o1", 3))
        wire.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
        wire.settimeout(5)
        return wire, socket.if_nametoindex("o0")

    def reset(self) -> None:
        super().reset()
        self.datapath.table("egress_port").put(np.array([OUT]), np.array([self.out]))
        self.datapath.set_default_forward(Forward(Action.PORT, OUT))
        self.datapath.set_collector(COLLECTOR)

    def run(self, frame: bytes, time_ns: int | None = None, repeat: int = 1, gso_size: int = 0) -> Ran:
        if time_ns is None:
            self.time_ns += 10**9
            time_ns = self.time_ns
        fd = self.datapath.program.fd
        return within(
            self.namespace,
            lambda: test_run(fd, frame, ifindex=1, time_ns=time_ns, repeat=repeat, gso_size=gso_size),
        )

    def forwarded(self) -> bytes:
        """The copy that left by OUT, with the tag that the kernel takes out of what it receives."""
        frame, ancillary, _, _ = self.wire.recvmsg(65536, 64)
        status, *_, tci, tag_type = struct.unpack("=IIIHHHH", ancillary[0][2])
        if status & _VLAN_VALID:
            frame = frame[:12] + struct.pack(">HH", tag_type, tci) + frame[12:]
        return frame

    def nothing_forwarded(self) -> bool:
        self.wire.setblocking(False)
        try:
            self.wire.recv(65536)
        except BlockingIOError:
            return True
        finally:
            self.wire.settimeout(5)
        return False

    def watch(self, watch: Watch, instructions: int = 0, hops: int = 0, priority: int = 1, **fields: Any) -> None:
        entry = Watched(Match(**fields), priority, watch, hops, instructions)
        assert self.datapath.int_source.insert([entry]) == [0]

    def node(self, *, is_sink: bool = False, mtu: int = 1500, port: int = OUT, node_id: int = NODE) -> None:
        self.datapath.set_int_node(port, IntNode(node_id, is_sink, mtu))

    def happened(self) -> dict[IntEvent, int]:
        return {event: cell.packets for event, cell in self.datapath.int_events().items() if cell.packets}

    def close(self) -> None:
        super().close()
        self.wire.close()
        ip("netns", "del", self.namespace)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()


assert IN not in (OUT, OTHER)
