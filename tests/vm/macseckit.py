"""Two ends of a MACsec link in namespaces, with the controller's part played by `exchange`."""

from __future__ import annotations

import secrets
import socket
import struct
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from namespacekit import ip, until, within

from dinnet.host.macsec import MacsecEnd, MacsecLink
from dinnet.host.macsec_kernel import Counters, KernelMacsec, channel_id
from dinnet.host.macsec_netlink import MACsec

MACS = {"a": "02:00:00:00:00:0a", "b": "02:00:00:00:00:0b"}
ADDRESSES = {"a": "10.1.0.1", "b": "10.1.0.2"}
MACSEC = 0x88E5
_PACKET_IGNORE_OUTGOING = 23


class Wire:
    """Ends a and b on the veth pair va-vb, in namespaces ma and mb."""

    def __init__(self, folder: Path, stack: ExitStack, **settings: Any) -> None:
        self.folder, self.stack = folder, stack
        self.key = folder / "link.key"
        self.key.touch(0o600)
        self.key.write_text(secrets.token_hex(32))
        for end in "ab":
            ip("netns", "add", f"m{end}")
            stack.callback(subprocess.run, ["ip", "netns", "del", f"m{end}"], check=False)
        ip("-n", "ma", "link", "add", "va", "address", MACS["a"], "mtu", "1500", "type", "veth",
           "peer", "name", "vb", "address", MACS["b"], "netns", "mb")  # fmt: skip
        self.ends = {}
        for end, other in ("ab", "ba"):
            ip("-n", f"m{end}", "link", "set", f"v{end}", "up")
            link = MacsecLink("a-b", "ms0", f"v{end}", MACS[other], self.key, **settings)
            self.ends[end] = MacsecEnd(link, folder / end, f"m{end}")

    @property
    def a(self) -> MacsecEnd:
        return self.ends["a"]

    @property
    def b(self) -> MacsecEnd:
        return self.ends["b"]

    def exchange(self) -> None:
        """What the controller does: carry announcements until nothing changes any more."""
        told: dict[str, str | None] = {"a": None, "b": None}
        for _ in range(6):
            changed = False
            for end, other in ("ab", "ba"):
                plan = self.ends[end].apply(told[other])
                assert all("announcement" in problem.advice for problem in plan.problems), plan.problems
                changed |= bool(plan.changes)
                told[end] = self.ends[end].announcement()
            if not changed:
                break
        else:
            raise AssertionError("the ends do not settle")

    def up(self) -> None:
        self.exchange()
        for end, other in ("ab", "ba"):
            ip("-n", f"m{end}", "addr", "add", f"{ADDRESSES[end]}/24", "dev", "ms0")
            mac = MACS[other]
            ip("-n", f"m{end}", "neigh", "replace", ADDRESSES[other], "lladdr", mac, "dev", "ms0", "nud", "permanent")
            # The kernel lets packets through a moment after the interface is up.
            until(lambda end=end: "state UP" in _shown(f"m{end}"), "ms0 is up")  # type: ignore[misc]

    def with_settings(self, end: str, **settings: Any) -> MacsecEnd:
        present = self.ends[end]
        return MacsecEnd(replace(present.link, **settings), present.folder, present.namespace)

    def socket(self, end: str, port: int = 5000) -> socket.socket:
        def make() -> socket.socket:
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sock.bind((ADDRESSES[end], port))
            sock.settimeout(5)
            return sock

        return self.stack.enter_context(within(f"m{end}", make))

    def tap(self, end: str) -> socket.socket:
        """Frames as they come in on an end's veth, and a way to put frames on the wire from there.

        It must be for all protocols: a tap for MACsec's alone comes after the interface on top, which takes them.
        """

        def make() -> socket.socket:
            sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            sock.bind((f"v{end}", 3))
            sock.setsockopt(socket.SOL_SOCKET, 33, 16 << 20)  # SO_RCVBUFFORCE
            sock.setsockopt(263, _PACKET_IGNORE_OUTGOING, 1)  # SOL_PACKET
            sock.settimeout(5)
            return sock

        return self.stack.enter_context(within(f"m{end}", make))

    def counters(self, end: str) -> Counters:
        found = self.ends[end].status().counters
        assert found is not None
        return found

    def raw(self, end: str, action: Callable[[MACsec, int, int], None]) -> None:
        """Do something to an end's associations behind dinnet's back: (family, interface, the peer's SCI)."""

        def go() -> None:
            with KernelMacsec.opened(f"m{end}") as kernel, MACsec() as family:
                action(family, kernel.index("ms0"), self.ends[end].link.peer)

        go()

    def own_sci(self, end: str) -> int:
        return channel_id(MACS[end], 1)

    def passes(self, count: int = 3) -> bool:
        """Whether datagrams pass both ways, each with its answer."""
        with ExitStack() as stack:
            a, b = (within(f"m{end}", lambda end=end: _bound(end)) for end in "ab")  # type: ignore[misc]
            stack.callback(a.close)
            stack.callback(b.close)
            try:
                for number in range(count):
                    a.sendto(number.to_bytes(4), (ADDRESSES["b"], 5999))
                    assert b.recv(64) == number.to_bytes(4)
                    b.sendto(b"answer", (ADDRESSES["a"], 5999))
                    assert a.recv(64) == b"answer"
            except TimeoutError:
                return False
            return True


def _shown(namespace: str) -> str:
    command = ["ip", "-n", namespace, "link", "show", "ms0"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _bound(end: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((ADDRESSES[end], 5999))
    sock.settimeout(2)
    return sock


def tag(frame: bytes) -> tuple[int, int, int, int]:
    """TCI and AN, packet number, SCI of a frame with a SecTAG (802.1AE clause 9.3)."""
    ethertype, tci_an, _, number, sci = struct.unpack_from(">HBBIQ", frame, 12)
    assert ethertype == MACSEC
    return tci_an & 0xFC, tci_an & 3, number, sci
