"""Label the connections between the two servers, which vLLM, ZeroMQ and UCX open, by watching the kernel's list."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from dinnet.errors import DinnetError
from dinnet.netns import inside
from dinnet.testbed.workloads.base import Label, now_us

_COUNTER: Final = re.compile(r"\bbytes_(sent|received):(\d+)")


@dataclass(frozen=True)
class Seen:
    """A TCP connection as the decode server's kernel tells it."""

    own_port: int
    peer_port: int
    peer: str
    payload_bytes: int  # sent and received so far; 0 where the kernel no longer counts


@dataclass
class Watcher:
    """Keeps what was seen of the connections between `own` and `peer`; `look` is called about once a second."""

    namespace: str
    own: str
    peer: str
    connections: dict[tuple[int, int], Seen] = field(default_factory=dict)
    first_us: dict[tuple[int, int], int] = field(default_factory=dict)
    listening: set[int] = field(default_factory=set)
    _last_look_us: int = field(default_factory=now_us)

    def look(self) -> None:
        """Read the kernel's list once.

        Raises:
            DinnetError: ss cannot be run.
        """
        before = now_us()
        try:
            with inside(self.namespace):
                done = subprocess.run(["ss", "-tainHO"], capture_output=True, text=True, check=True, timeout=60)
        except (OSError, subprocess.SubprocessError) as error:
            raise DinnetError(f"cannot list connections with ss: {error}") from error
        listening, connections = parse(done.stdout.splitlines(), self.own)
        self.listening |= listening
        for seen in connections:
            if seen.peer != self.peer:
                continue
            key = (seen.own_port, seen.peer_port)
            self.first_us.setdefault(key, self._last_look_us)
            known = self.connections.get(key, seen)
            self.connections[key] = replace(seen, payload_bytes=max(seen.payload_bytes, known.payload_bytes))
        self._last_look_us = before

    def labels(self, *, side_channel_ports: Iterable[int], kv_bytes_per_token: int, model: str) -> list[Label]:
        """One label for each connection seen. It ends now: the servers close them when they are stopped."""
        ports = frozenset(side_channel_ports)
        ended_us = now_us()
        found = []
        for key, seen in self.connections.items():
            ends = [(self.own, seen.own_port), (self.peer, seen.peer_port)]
            if seen.own_port in self.listening:
                ends.reverse()
            (src, sport), (dst, dport) = ends
            group, transport = classify(dport, seen.payload_bytes, ports, kv_bytes_per_token)
            prefill = group == "prefill"
            found.append(
                Label(
                    self.first_us[key], ended_us, "tcp", src, sport, dst, dport,
                    group="prefill" if prefill else "control",
                    transport=transport,
                    model=model,
                    large_model=False if prefill else None,
                )
            )  # fmt: skip
        return found


def classify(
    dport: int, payload_bytes: int, side_channel_ports: frozenset[int], kv_bytes_per_token: int
) -> tuple[str, str]:
    """Group and transport of a connection between the two servers.

    The side channel carries the handshake. Everything else is UCX's; what never carried as much as one token's KV
    cache was only set up (UCX opens one for each of NIXL's threads) and hands nothing over.
    """
    if dport in side_channel_ports:
        return "control", "vllm/nixl-handshake-zmq"
    if payload_bytes < kv_bytes_per_token:
        return "control", "vllm/nixl-ucx-idle"
    return "prefill", "vllm/nixl-ucx-tcp"


def parse(lines: Iterable[str], own: str) -> tuple[set[int], list[Seen]]:
    """Listening ports and connections of address `own`, from lines of `ss -tainHO`."""
    listening: set[int] = set()
    connections: list[Seen] = []
    for line in lines:
        words = line.split(None, 5)
        if len(words) < 5:
            continue
        address, _, port = words[3].rpartition(":")
        if words[0] == "LISTEN":
            if _plain(address) in (own, "0.0.0.0", "*", "::", ""):
                listening.add(int(port))
            continue
        if _plain(address) != own:
            continue
        peer, _, peer_port = words[4].rpartition(":")
        payload = sum(int(number) for _, number in _COUNTER.findall(words[5] if len(words) > 5 else ""))
        connections.append(Seen(int(port), int(peer_port), _plain(peer), payload))
    return listening, connections


def _plain(address: str) -> str:
    return address.strip("[]").removeprefix("::ffff:").partition("%")[0]
