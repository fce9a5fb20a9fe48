"""A switch and hosts in network namespaces, on links with a rate, a delay, loss, and offloads on or off."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
import shutil
import signal
import socket
import struct
import threading
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from dinnet.errors import DinnetError
from dinnet.netns import NETNS_FOLDER, inside
from dinnet.testbed.process import Child, fork, stop_all

_RUNS: Final = itertools.count()
_NAME: Final = re.compile(r"dn(\d+)\.\d+-[a-z0-9-]+")
_QUEUE_S: Final = 0.03  # what the queue in front of a link may hold, in seconds of the link's rate
_OFFLOAD_FRAME_BYTES: Final = 32_768  # a usual size of a segmentation-offload packet under load
_SIOCETHTOOL: Final = 0x8946
# linux/ethtool.h: set scatter-gather, TCP segmentation, generic segmentation, generic receive offload
_ETHTOOL_SET: Final = {"sg": 0x19, "tso": 0x1F, "gso": 0x24, "gro": 0x2C}
IFA_F_NODAD: Final = 0x02
_CONGESTION_CONTROL: Final = "cubic"  # the usual default of the world; some kernels are built with another
_ALLOWED_CONTROLS: Final = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")


class Link(BaseModel):
    """The condition that all hosts of a network are connected under."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = ""
    rate_mbit: float = Field(gt=0, le=10_000)
    delay_ms: float = Field(default=0.0, ge=0, le=1_000, description="one way; 0 leaves the relay out")
    loss: float = Field(default=0.0, ge=0, lt=1, description="chance that a frame is lost, in each direction")
    offload: bool = Field(default=False, description="segmentation and receive offload on the hosts and the switch")
    ip: Literal[4, 6] = 4
    mtu: int = Field(default=1500, ge=1280, le=9_000)
    bottleneck: Literal["host", "switch"] = Field(default="host", description="whose sending side is held to the rate")
    tap: Literal["near", "far"] = Field(
        default="near", description="where captures see the delay: beyond or before the tap"
    )


@dataclass
class Network:
    """A built network. Hosts are names such as "client"; the last one lies behind the delay relay."""

    link: Link
    prefix: str
    hosts: tuple[str, ...]
    folder: Path  # for the relay's log
    children: list[Child] = field(default_factory=list)

    @property
    def switch(self) -> str:
        """Name of the switch's namespace."""
        return f"{self.prefix}-switch"

    def namespace(self, host: str) -> str:
        """Name of a host's namespace."""
        return f"{self.prefix}-{host}"

    def address(self, host: str) -> str:
        """The host's address of the link's IP version."""
        number = self.hosts.index(host) + 1
        return f"10.77.0.{number}" if self.link.ip == 4 else f"fd77::{number:x}"

    @property
    def tap(self) -> tuple[str, str]:
        """Namespace and interface to capture on: the switch's port of the first or of the last host."""
        return self.switch, "port0" if self.link.tap == "near" else f"port{len(self.hosts) - 1}"


@contextlib.contextmanager
def network(
    link: Link, folder: Path, hosts: tuple[str, ...] = ("client", "server"), seed: int = 0
) -> Iterator[Network]:
    """Build a network and take it down again, whatever happens in between.

    SIGTERM and SIGHUP become `Terminated` while it stands, so that it is taken down then, too.

    Raises:
        DinnetError: No root, a missing tool, or a kernel that lacks a feature; says which.
    """
    require_root()
    built = Network(link, new_prefix(), hosts, folder)
    with terminable():
        try:
            _build(built, seed)
            yield built
        finally:
            with uninterrupted():
                stop_all(built.children)
                for namespace in (built.switch, *map(built.namespace, hosts)):
                    remove_namespace(namespace)


def new_prefix() -> str:
    """What the names of a network's namespaces begin with: tells whose they are, so that leftovers are found."""
    return f"dn{os.getpid()}.{next(_RUNS)}"


class Terminated(BaseException):
    """The process was asked to end; not an `Exception`, so that nothing on the way takes it for a failure."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by signal {number}")
        self.number = number


def require_root(*tools: str) -> None:
    """Raise DinnetError where namespaces cannot be made or one of `tools` is not installed."""
    if os.geteuid() != 0:
        raise DinnetError("the testbed makes network namespaces and needs root: run it with sudo")
    for tool in tools:
        if shutil.which(tool) is None:
            raise DinnetError(f"the testbed needs {tool}, which is not installed: apt-get install {tool}")


def leftovers() -> list[str]:
    """Names of namespaces whose owner no longer runs."""
    if not NETNS_FOLDER.is_dir():
        return []
    found = []
    for path in NETNS_FOLDER.iterdir():
        match = _NAME.fullmatch(path.name)
        if match and not Path(f"/proc/{match[1]}").exists():
            found.append(path.name)
    return sorted(found)


def remove_leftovers() -> list[str]:
    """Remove the namespaces of runs that were killed; returns their names."""
    require_root()
    names = leftovers()
    for name in names:
        remove_namespace(name)
    return names


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into an exception while the block runs, or at its end.

    Python drops an exception that is raised in a finalizer or a fork's hook, and a signal may come in one.
    """
    arrived: list[int] = []

    def raise_terminated(number: int, frame: FrameType | None) -> None:
        arrived.append(number)
        raise Terminated(number)

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    before = {number: signal.signal(number, raise_terminated) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if arrived:
        raise Terminated(arrived[0])


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back Ctrl-C and termination until the block is through."""
    held = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def remove_namespace(namespace: str) -> None:
    from pyroute2 import netns

    if (NETNS_FOLDER / namespace).exists():
        netns.remove(namespace)


def _build(built: Network, seed: int) -> None:
    try:
        from pyroute2 import netns
        from pyroute2.netlink.exceptions import NetlinkError
    except ImportError:
        raise DinnetError("the testbed needs pyroute2, which is not installed: pip install 'dinnet[testbed]'") from None
    link = built.link
    relayed = link.delay_ms > 0 or link.loss > 0
    try:
        with congestion_control_allowed():
            for namespace in (built.switch, *map(built.namespace, built.hosts)):
                netns.create(namespace)
                with inside(namespace):
                    settle(namespace == built.switch)
        _wire(built, relayed)
        for number, host in enumerate(built.hosts, start=1):
            _configure_host(built, host, number)
    except NetlinkError as error:
        raise DinnetError(
            f"the kernel refused to build the testbed ({error}): it needs namespaces, veth, bridge and HTB"
        ) from error
    except OSError as error:
        raise DinnetError(f"cannot build the testbed: {error.strerror or error}") from error
    if relayed:
        sides = ((built.switch, "relay-host"), (built.switch, "relay-port"))
        built.children.append(start_relay(sides, link.delay_ms, link.loss, seed, built.folder / "relay.log"))


@contextlib.contextmanager
def congestion_control_allowed() -> Iterator[None]:
    """Let namespaces choose our congestion control: they may only take one that is on the machine's allowed list."""
    NETNS_FOLDER.mkdir(parents=True, exist_ok=True)
    lock = os.open(NETNS_FOLDER, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another testbed must not put the list back while we rely on it
        before = _ALLOWED_CONTROLS.read_text()
        with contextlib.suppress(OSError):  # the kernel lacks it; choosing it fails with a message of its own
            _ALLOWED_CONTROLS.write_text(f"{before.strip()} {_CONGESTION_CONTROL}")
        try:
            yield
        finally:
            _ALLOWED_CONTROLS.write_text(before)
    finally:
        os.close(lock)


def settle(is_switch: bool) -> None:
    """Set the kernel's network options of the namespace that this thread is in."""
    options = {
        "ipv4/tcp_congestion_control": _CONGESTION_CONTROL,
        "ipv4/tcp_no_metrics_save": "1",  # one connection must not teach the next
        "ipv4/ip_local_port_range": "20000 60999",
        "ipv6/conf/all/accept_ra": "0",
    }
    if is_switch:
        options = {"ipv6/conf/all/disable_ipv6": "1", "ipv6/conf/default/disable_ipv6": "1"}
        if Path("/proc/sys/net/bridge").exists():
            options |= {f"bridge/bridge-nf-call-{kind}tables": "0" for kind in ("ip", "ip6", "arp")}
    for name, value in options.items():
        try:
            (Path("/proc/sys/net") / name).write_text(value)
        except OSError as error:
            if "congestion" in name:
                raise DinnetError(f"the kernel lacks TCP {_CONGESTION_CONTROL}: {error.strerror}") from error
            if not name.startswith(("bridge/", "ipv6/")):
                raise


def _wire(built: Network, relayed: bool) -> None:
    """Make the bridge and the hosts' veth pairs, hosts' ends in the hosts' namespaces."""
    from pyroute2 import IPRoute

    link = built.link
    # With segmentation offload a frame is what the sender's stack handed down.
    waiting = queue_frames(link.rate_mbit, _OFFLOAD_FRAME_BYTES if link.offload else link.mtu)
    with inside(built.switch), IPRoute() as ip:
        ip.link("add", ifname="br0", kind="bridge", br_mcast_snooping=0, br_forward_delay=0)
        bridge = ip.link_lookup(ifname="br0")[0]
        last = len(built.hosts) - 1
        ports = []
        for number, host in enumerate(built.hosts):
            behind_relay = relayed and number == last
            with (NETNS_FOLDER / built.namespace(host)).open() as there:
                outer = "relay-host" if behind_relay else f"port{number}"
                peer = {"ifname": "eth0", "net_ns_fd": there.fileno(), "mtu": link.mtu, "txqlen": waiting}
                ip.link("add", ifname=outer, kind="veth", mtu=link.mtu, txqlen=waiting, peer=peer)
            names = [outer]
            if behind_relay:
                peer = {"ifname": "relay-port", "mtu": link.mtu, "txqlen": 10_000}
                ip.link("add", ifname=f"port{number}", kind="veth", mtu=link.mtu, txqlen=waiting, peer=peer)
                names += [f"port{number}", "relay-port"]
            ports.append(ip.link_lookup(ifname=f"port{number}")[0])
            for name in names:
                set_offloads(name, link.offload)
                ip.link("set", index=ip.link_lookup(ifname=name)[0], state="up")
            ip.link("set", index=ports[-1], master=bridge)
            if link.bottleneck == "switch":
                limit(ip, ports[-1], link.rate_mbit, link.mtu)
        ip.link("set", index=bridge, mtu=link.mtu, state="up")


def _configure_host(built: Network, host: str, number: int) -> None:
    from pyroute2 import IPRoute

    with inside(built.namespace(host)), IPRoute() as ip:
        ip.link("set", index=ip.link_lookup(ifname="lo")[0], state="up")
        index = ip.link_lookup(ifname="eth0")[0]
        set_offloads("eth0", built.link.offload)
        ip.link("set", index=index, state="up")
        ip.addr("add", index=index, address=f"10.77.0.{number}", prefixlen=24)
        ip.addr("add", index=index, address=f"fd77::{number:x}", prefixlen=64, flags=IFA_F_NODAD)
        if built.link.bottleneck == "host":
            limit(ip, index, built.link.rate_mbit, built.link.mtu)


def queue_frames(rate_mbit: float, frame_bytes: int) -> int:
    """Frames that the queue in front of a link holds: 30 ms at its rate."""
    return max(32, int(rate_mbit * 125_000 * _QUEUE_S / frame_bytes))


def limit(ip: Any, index: int, rate_mbit: float, mtu: int) -> None:
    """Hold an interface's sending side to a rate. HTB's own queue takes the interface's queue length."""
    rate_bytes = int(rate_mbit * 125_000)
    # HTB sends at most a burst per timer tick, and a burst must hold the largest frame.
    burst = max(2 * mtu, rate_bytes // 4_000)
    ip.tc("add", "htb", index, handle=0x10000, default=0x10)
    ip.tc(
        "add-class", "htb", index,
        handle=0x10010, parent=0x10000, rate=rate_bytes, ceil=rate_bytes, burst=burst, cburst=burst,
    )  # fmt: skip


def set_offloads(interface: str, on: bool) -> None:
    """Switch the offloads of an interface of the current namespace, by ethtool's ioctl."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for name, command in _ETHTOOL_SET.items():
            if name == "sg" and not on:
                continue  # software needs scatter-gather as much as hardware does
            value = array("I", [command, int(on)])
            request = struct.pack("16sP8x", interface.encode(), value.buffer_info()[0])
            try:
                fcntl.ioctl(control, _SIOCETHTOOL, request)
            except OSError as error:
                raise DinnetError(
                    f"the kernel cannot switch {name} {'on' if on else 'off'} on veth: {error.strerror}"
                ) from error


def start_relay(
    sides: tuple[tuple[str, str], tuple[str, str]], delay_ms: float, loss: float, seed: int, log: Path
) -> Child:
    """Carry frames between two interfaces, each given as (namespace, name), until the child is ended."""
    from dinnet.testbed.relay import open_side, relay

    opened = []
    for namespace, interface in sides:
        with inside(namespace):
            opened.append(open_side(interface))
    ends = (opened[0], opened[1])

    def work() -> None:
        # A late wake-up of the relay is jitter that nobody asked for.
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
        relay(ends, delay_ms / 1_000, loss, seed)

    child = fork("relay", sides[0][0], log, work)
    for side in opened:
        side.close()
    return child
