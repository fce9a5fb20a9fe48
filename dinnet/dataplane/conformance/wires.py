"""Ports of a switch under test: veths in a network namespace of their own, with packet sockets on the far ends."""

from __future__ import annotations

import itertools
import os
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from dinnet.errors import DinnetError
from dinnet.netns import inside

_RUNS: Final = itertools.count()
_SOL_PACKET: Final = 263
_PACKET_AUXDATA: Final = 8
_PACKET_IGNORE_OUTGOING: Final = 23
_ETH_P_ALL: Final = 3
_STATUS_VLAN_VALID: Final = 0x10
_STATUS_VLAN_TPID_VALID: Final = 0x40
_AUXDATA: Final = struct.Struct("=IIIHHHH")  # struct tpacket_auxdata
_ROOM_BYTES: Final = 1 << 16


class Wires:
    """Port n of the switch is the interface `pn`; what is sent on the wire's other end comes in there."""

    def __init__(self, namespace: str, sockets: dict[int, socket.socket]) -> None:
        self.namespace = namespace
        self.ports = tuple(sockets)
        self._sockets = sockets

    def send(self, port: int, frame: bytes) -> None:
        self._sockets[port].send(frame)

    def received(self) -> list[tuple[int, bytes]]:
        """What came out since the last call: port and frame."""
        found = []
        for port, sock in self._sockets.items():
            while True:
                try:
                    data, ancillary, _, _ = sock.recvmsg(_ROOM_BYTES, socket.CMSG_SPACE(_AUXDATA.size))
                except BlockingIOError:
                    break
                found.append((port, _with_tag(data, ancillary)))
        return found


def _with_tag(data: bytes, ancillary: list[tuple[int, int, bytes]]) -> bytes:
    """The frame as it was on the wire: the kernel takes the outermost VLAN tag out."""
    for level, kind, value in ancillary:
        if level == _SOL_PACKET and kind == _PACKET_AUXDATA:
            status, _, _, _, _, tci, tpid = _AUXDATA.unpack(value[: _AUXDATA.size])
            if status & _STATUS_VLAN_VALID:
                tpid = tpid if status & _STATUS_VLAN_TPID_VALID else 0x8100
                return data[:12] + struct.pack("!HH", tpid, tci) + data[12:]
    return data


@contextmanager
def wires(ports: int) -> Iterator[Wires]:
    """Ports 1 to `ports`, gone at the end whatever happens.

    Raises:
        DinnetError: The kernel refuses; most often for want of root.
    """
    name = f"dinnet-cf{os.getpid()}-{next(_RUNS)}"
    with ExitStack() as stack:
        _ip("netns", "add", name)
        stack.callback(subprocess.run, ["ip", "netns", "del", name], check=False, capture_output=True)
        with inside(name):
            for scope in ("all", "default"):
                Path(f"/proc/sys/net/ipv6/conf/{scope}/disable_ipv6").write_text("1")
            _ip("link", "set", "lo", "up")
            sockets = {}
            for port in range(1, ports + 1):
                _ip("link", "add", f"p{port}", "mtu", "9000", "type", "veth", "peer", "name", f"t{port}", "mtu", "9000")
                _ip("link", "set", f"p{port}", "up")
                _ip("link", "set", f"t{port}", "up")
                sock = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
                sock.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
                sock.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
                sock.setblocking(False)
                sock.bind((f"t{port}", _ETH_P_ALL))
                sockets[port] = sock
        yield Wires(name, sockets)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise DinnetError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
