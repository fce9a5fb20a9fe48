"""A topology in the kernel: a namespace for each node, veth cables, relays where a link has delay or loss."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dinnet.errors import DinnetError
from dinnet.netns import NETNS_FOLDER, inside
from dinnet.testbed.network import (
    IFA_F_NODAD,
    congestion_control_allowed,
    limit,
    new_prefix,
    queue_frames,
    remove_namespace,
    require_root,
    set_offloads,
    settle,
    start_relay,
    terminable,
    uninterrupted,
)
from dinnet.testbed.process import Child, stop_all
from dinnet.testbed.topology import Link, Topology, interface_to

_QUEUE_FRAMES = 1_000  # of an interface whose rate nothing limits


@dataclass
class Wired:
    """A topology that stands."""

    topology: Topology
    prefix: str
    folder: Path
    children: list[Child] = field(default_factory=list)

    def namespace(self, node: str) -> str:
        return f"{self.prefix}-{node}"

    @property
    def namespaces(self) -> dict[str, str]:
        return {node: self.namespace(node) for node in (*self.topology.hosts, *self.topology.switches)}


@contextlib.contextmanager
def wired(topology: Topology, folder: Path) -> Iterator[Wired]:
    """Build a topology and take it down again, whatever happens in between. Nothing forwards yet.

    SIGTERM and SIGHUP become `Terminated` while it stands, so that it is taken down then, too.

    Raises:
        DinnetError: No root, or a kernel that lacks a feature; says which.
    """
    require_root()
    built = Wired(topology, new_prefix(), folder)
    with terminable():
        try:
            _build(built)
            yield built
        finally:
            with uninterrupted():
                stop_all(built.children)
                for namespace in built.namespaces.values():
                    remove_namespace(namespace)


def _build(built: Wired) -> None:
    from pyroute2 import netns
    from pyroute2.netlink.exceptions import NetlinkError

    topology = built.topology
    try:
        with congestion_control_allowed():
            for node, namespace in built.namespaces.items():
                netns.create(namespace)
                with inside(namespace):
                    settle(node in topology.switches)
        for number, link in enumerate(topology.links):
            _lay(built, number, link)
        for host in topology.hosts:
            _configure(built, host)
    except NetlinkError as error:
        raise DinnetError(f"the kernel refused to build the testbed ({error}): it needs namespaces and veth") from error


def _lay(built: Wired, number: int, link: Link) -> None:
    """One cable; with delay or loss, two of them with a relay in between, in the first end's namespace."""
    first, second = link.ends
    if link.delay_ms == 0 and link.loss == 0:
        _veth(built, (first, interface_to(second)), (second, interface_to(first)))
        return
    inner = (f"relay{number}a", f"relay{number}b")
    _veth(built, (first, interface_to(second)), (first, inner[0]))
    _veth(built, (first, inner[1]), (second, interface_to(first)))
    namespace = built.namespace(first)
    sides = ((namespace, inner[0]), (namespace, inner[1]))
    log = built.folder / f"relay{number}.log"
    built.children.append(start_relay(sides, link.delay_ms, link.loss, built.topology.seed + number, log))


def _veth(built: Wired, one: tuple[str, str], other: tuple[str, str]) -> None:
    """A pair of interfaces, each given as (node, name), without offloads: a frame is what a cable carries."""
    from pyroute2 import IPRoute

    mtu = built.topology.mtu
    with inside(built.namespace(one[0])), IPRoute() as ip, (NETNS_FOLDER / built.namespace(other[0])).open() as there:
        peer = {"ifname": other[1], "net_ns_fd": there.fileno(), "mtu": mtu, "txqlen": _QUEUE_FRAMES}
        ip.link("add", ifname=one[1], kind="veth", mtu=mtu, txqlen=_QUEUE_FRAMES, peer=peer)
    for node, name in (one, other):
        with inside(built.namespace(node)), IPRoute() as ip:
            set_offloads(name, False)
            ip.link("set", index=ip.link_lookup(ifname=name)[0], state="up")


def _configure(built: Wired, host: str) -> None:
    """Addresses, and those of all others: the switches forward by station and flood nothing."""
    from pyroute2 import IPRoute

    topology = built.topology
    own = topology.station(host)
    with inside(built.namespace(host)), IPRoute() as ip:
        ip.link("set", index=ip.link_lookup(ifname="lo")[0], state="up")
        index = ip.link_lookup(ifname=interface_to(topology.neighbours(host)[0]))[0]
        ip.link("set", index=index, state="down")
        ip.link("set", index=index, address=own.mac)
        ip.link("set", index=index, state="up")
        ip.addr("add", index=index, address=own.v4, prefixlen=24)
        ip.addr("add", index=index, address=own.v6, prefixlen=64, flags=IFA_F_NODAD)
        for other in topology.hosts:
            if other != host:
                station = topology.station(other)
                for address in (station.v4, station.v6):
                    ip.neigh("replace", dst=address, lladdr=station.mac, ifindex=index, state="permanent")


@contextlib.contextmanager
def one_queue(built: Wired) -> Iterator[None]:
    """What a network without slices has: one first-in first-out queue of 30 ms in front of each link of a switch."""
    from pyroute2 import IPRoute

    topology = built.topology
    placed = [
        (built.namespace(here), interface_to(there), link)
        for link in topology.links
        for here, there in (link.ends, link.ends[::-1])
        if here in topology.switches
    ]
    for namespace, name, link in placed:
        with inside(namespace), IPRoute() as ip:
            index = ip.link_lookup(ifname=name)[0]
            ip.link("set", index=index, txqlen=queue_frames(link.rate_mbit, topology.mtu))
            limit(ip, index, link.rate_mbit, topology.mtu)
    try:
        yield
    finally:
        for namespace, name, _ in placed:
            with inside(namespace), IPRoute() as ip:
                ip.tc("del", index=ip.link_lookup(ifname=name)[0], root=True)
