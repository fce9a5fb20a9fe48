"""Two joined network namespaces, sockets in them, and real traffic between them."""

from __future__ import annotations

import ctypes
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import pytest

_T = TypeVar("_T")
PATIENCE_S = 30.0
A, B = "10.77.0.1", "10.77.0.2"
MAC_A, MAC_B = bytes.fromhex("020000000001"), bytes.fromhex("020000000002")


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def in_thread(action: Callable[[], _T]) -> _T:
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


def within(namespace: str, action: Callable[[], _T]) -> _T:
    def enter() -> _T:
        with Path("/run/netns", namespace).open() as handle:
            assert ctypes.CDLL(None, use_errno=True).setns(handle.fileno(), 0x40000000) == 0
        return action()

    return in_thread(enter)


class Pair:
    """Namespaces `a` and `b`, joined by the veth pair va-vb, quiet unless a test sends something."""

    def __init__(self, tag: str, stack: ExitStack) -> None:
        self.a, self.b = f"dinnet-{tag}-a", f"dinnet-{tag}-b"
        for name in (self.a, self.b):
            ip("netns", "add", name)
            stack.callback(subprocess.run, ["ip", "netns", "del", name], check=False)
            # No router solicitations and no neighbour discovery: the counts are to be exact.
            within(name, lambda: Path("/proc/sys/net/ipv6/conf/all/disable_ipv6").write_text("1"))
            within(name, lambda: Path("/proc/sys/net/ipv6/conf/default/disable_ipv6").write_text("1"))
        ip("-n", self.a, "link", "add", "va", "address", MAC_A.hex(":"), "type", "veth",
            "peer", "name", "vb", "address", MAC_B.hex(":"), "netns", self.b)  # fmt: skip
        for name, device, own, other, mac in (
            (self.a, "va", A, B, MAC_B),
            (self.b, "vb", B, A, MAC_A),
        ):
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "addr", "add", f"{own}/24", "dev", device)
            ip("-n", name, "link", "set", device, "up")
            ip("-n", name, "neigh", "replace", other, "lladdr", mac.hex(":"), "dev", device, "nud", "permanent")

    def udp(self, namespace: str, address: str, port: int) -> socket.socket:
        def make() -> socket.socket:
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sock.bind((address, port))
            return sock

        return within(namespace, make)

    def tcp(self, namespace: str) -> socket.socket:
        return within(namespace, lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))

    def raw(self, namespace: str, device: str) -> socket.socket:
        def make() -> socket.socket:
            sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            sock.bind((device, 0))
            return sock

        return within(namespace, make)


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"waited in vain: {what}"
        time.sleep(0.02)


def tcp_exchange(pair: Pair, port: int, size: int) -> None:
    """One TCP connection from a to b that carries `size` bytes and is closed in order by both sides."""
    with pair.tcp(pair.b) as listener, pair.tcp(pair.a) as client:
        listener.bind((B, port))
        listener.listen(1)
        client.connect((B, port))
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


def tshark(path: Path, *fields: str) -> list[list[str]]:
    if shutil.which("tshark") is None:
        pytest.skip("tshark is not installed")
    arguments = [item for field in fields for item in ("-e", field)]
    command = ["tshark", "-n", "-r", str(path), "-T", "fields", *arguments]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [line.split("\t") for line in output.splitlines()]
