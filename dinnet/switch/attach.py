"""The switch on real interfaces: a program on each port's ingress, which outlives the process that put it there.

An interface holds its program, the program its maps, and the kernel gives all of them out by number. So what is in
force is found again by looking at the interfaces, and needs no BPF file system: pins would be one more state that could
contradict what is attached, and a container or a rescue shell often has no such file system mounted.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from dinnet.errors import DinnetError, reason
from dinnet.netns import inside
from dinnet.switch.contract import Port, Sizes
from dinnet.switch.datapath import Datapath
from dinnet.switch.hooks import Attached, attach, detach, find
from dinnet.switch.libbpf import BpfError

_LOCKS: Final = Path("/run/dinnet")
_LOOPBACK: Final = 772  # ARPHRD_LOOPBACK


@dataclass(frozen=True)
class PortConfig:
    """A port as an operator describes it; a port of a switch that is taken over stays as it was configured there."""

    number: int
    interface: str
    trusted: bool = False
    flow_labels: bool = False


class Switch:
    """The pipeline on its ports. Closing it lets go and leaves everything in force; `down` takes it away."""

    def __init__(
        self, datapath: Datapath, namespace: str | None, claims: contextlib.ExitStack, *, adopted: bool
    ) -> None:
        self.datapath = datapath
        self.namespace = namespace
        self.adopted = adopted  # it was in force before
        self._claims = claims

    @classmethod
    def up(
        cls,
        ports: list[PortConfig],
        *,
        namespace: str | None = None,
        sizes: Sizes | None = None,
        queues: Mapping[int, int] | None = None,
    ) -> Self:
        """Bring a switch into force, or take over the one that is in force on these interfaces, tables and all.

        Args:
            ports: Each on an interface of its own.
            namespace: Name of the network namespace; None: the calling thread's.
            sizes: Room in the tables of a new switch.
            queues: skb->priority by slice << 2 | traffic class; None: 1:(0x10 + slice * 4 + tc).

        Raises:
            BpfError: The kernel refused, or what is in force is of another version.
            DinnetError: No such interface, or another process has one of them.
        """
        with contextlib.ExitStack() as undo, _netlink(namespace) as ip:
            indexes = {port.interface: _index(ip, port.interface) for port in ports}
            if len(indexes) < len(ports) or len({port.number for port in ports}) < len(ports):
                raise DinnetError("each port of a switch needs a number and an interface of its own")
            claims = undo.enter_context(contextlib.ExitStack())
            for interface, index in sorted(indexes.items(), key=lambda item: item[1]):
                claims.enter_context(_claim(interface, index))
            found = find(ip)
            programs = {each.program_id for each in found if each.interface in indexes}
            if len(programs) > 1:
                raise BpfError("parts of two switches are on these interfaces: take one of them down first")
            datapath = Datapath.adopt(programs.pop()) if programs else Datapath.load(sizes)
            undo.callback(datapath.close)
            adopted = datapath.program.id in {each.program_id for each in found}
            wanted = {(port.number, indexes[port.interface]) for port in ports}
            for old in datapath.ports():
                if (old.number, old.ifindex) not in wanted:
                    datapath.remove_port(old.number)
            for each in found:
                if each.program_id == datapath.program.id and each.interface not in indexes:
                    detach(ip, each)
            if queues is not None:
                datapath.set_queues(queues)
            present = {each.ifindex for each in found}
            connected = {(port.number, port.ifindex) for port in datapath.ports()}
            for config in ports:
                index = indexes[config.interface]
                if (config.number, index) in connected:
                    continue  # as it was left: a controller may have configured it since
                datapath.set_port(Port(config.number, index, config.trusted, config.flow_labels))
            try:
                for index in indexes.values():
                    if index not in present:
                        attach(ip, index, datapath.program.fd, datapath.program.id)
            except BaseException:
                for each in find(ip):
                    if each.program_id == datapath.program.id and not adopted:
                        detach(ip, each)
                raise
            undo.pop_all()
            return cls(datapath, namespace, claims, adopted=adopted)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let go; the switch goes on forwarding, and can be taken over."""
        self.datapath.close()
        self._claims.close()

    def down(self) -> None:
        """Take the switch away without a trace: interfaces are as they were before."""
        with _netlink(self.namespace) as ip:
            for each in find(ip):
                if each.program_id == self.datapath.program.id:
                    detach(ip, each)
        self.close()


def attached(namespace: str | None = None) -> list[Attached]:
    """Where a switch of any version is in force."""
    with _netlink(namespace) as ip:
        return find(ip)


def take_down(namespace: str | None = None) -> list[str]:
    """Take away what switches of any version are in force, where no process has them; returns the interfaces.

    Raises:
        DinnetError: A process has one of the interfaces.
    """
    with _netlink(namespace) as ip, contextlib.ExitStack() as claims:
        found = find(ip)
        for each in found:
            claims.enter_context(_claim(each.interface, each.ifindex))
        for each in found:
            detach(ip, each)
        return [each.interface for each in found]


def interface_counts(namespace: str | None = None) -> dict[int, tuple[str, tuple[int, int], tuple[int, int], int]]:
    """By interface index: name, (packets, bytes) received, (packets, bytes) sent, packets dropped when sending."""
    found = {}
    with _netlink(namespace) as ip:
        for link in ip.get_links():
            if link.get_attr("IFLA_LINKINFO") is None and link["ifi_type"] == _LOOPBACK:
                continue
            stats = link.get_attr("IFLA_STATS64")
            found[int(link["index"])] = (
                str(link.get_attr("IFLA_IFNAME")),
                (int(stats["rx_packets"]), int(stats["rx_bytes"])),
                (int(stats["tx_packets"]), int(stats["tx_bytes"])),
                int(stats["tx_dropped"]),
            )
    return found


@contextlib.contextmanager
def _netlink(namespace: str | None) -> Iterator[Any]:
    """A netlink socket of a namespace, with the calling thread in it."""
    try:
        from pyroute2 import IPRoute
        from pyroute2.netlink.exceptions import NetlinkError
    except ImportError:
        raise DinnetError("the switch needs pyroute2, which is not installed: pip install 'dinnet[switch]'") from None
    with inside(namespace) if namespace else contextlib.nullcontext(), IPRoute() as ip:
        try:
            yield ip
        except NetlinkError as error:
            raise BpfError("the kernel refused to change what is on an interface", error.code) from error


def _index(ip: Any, interface: str) -> int:
    found = ip.link_lookup(ifname=interface)
    if not found:
        raise DinnetError(f"there is no interface {interface}")
    return int(found[0])


@contextlib.contextmanager
def _claim(interface: str, index: int) -> Iterator[None]:
    """Be the only process that has an interface. The kernel takes the claim away when the process dies."""
    namespace = Path("/proc/thread-self/ns/net").stat().st_ino
    path = _LOCKS / f"switch-{namespace}-{index}.lock"
    try:
        _LOCKS.mkdir(mode=0o755, exist_ok=True)
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Whoever had it may have removed it in between.
                if path.exists() and os.path.samestat(os.fstat(descriptor), path.lstat()):
                    break
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
    except BlockingIOError:
        raise DinnetError(f"{interface}: another dinnet switch is running on it") from None
    except OSError as error:
        raise DinnetError(f"{path}: cannot claim {interface}: {reason(error)}") from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)
