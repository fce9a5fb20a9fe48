"""The switch on real interfaces: a filter on each port's clsact, which outlives the process that put it there.

A filter holds its program, the program its maps, and the kernel gives all of them out by number. So what is in force
is found again by looking at the interfaces, and needs no BPF file system: pins would be one more state that could
contradict what is attached, and a container or a rescue shell often has no such file system mounted. The filter's
name says whose it is.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from dinnet.errors import DinnetError, reason
from dinnet.netns import inside
from dinnet.switch.datapath import Datapath, Port, Sizes
from dinnet.switch.libbpf import BpfError

_INGRESS: Final = 0xFFFFFFF2
_EGRESS: Final = 0xFFFFFFF3
_HANDLE: Final = 0xD1
_PRIORITY: Final = 0xD1
#: Program number, and whether the clsact was made for it.
_NAME: Final = re.compile(r"dinnet-switch/(\d+)/(clsact|filter)")
_LOCKS: Final = Path("/run/dinnet")
_LOOPBACK: Final = 772  # ARPHRD_LOOPBACK


@dataclass(frozen=True)
class PortConfig:
    """A port as an operator describes it; a port of a switch that is taken over stays as it was configured there."""

    number: int
    interface: str
    trusted: bool = False
    flow_labels: bool = False


@dataclass(frozen=True)
class Attached:
    """A filter of ours that was found on an interface."""

    interface: str
    ifindex: int
    program_id: int
    made_clsact: bool


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
            found = _attached(ip)
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
                    _detach(ip, each)
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
                        _attach(ip, index, datapath.program.fd, datapath.program.id)
            except BaseException:
                for each in _attached(ip):
                    if each.program_id == datapath.program.id and not adopted:
                        _detach(ip, each)
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
            for each in _attached(ip):
                if each.program_id == self.datapath.program.id:
                    _detach(ip, each)
        self.close()


def attached(namespace: str | None = None) -> list[Attached]:
    """Where a switch of any version is in force."""
    with _netlink(namespace) as ip:
        return _attached(ip)


def take_down(namespace: str | None = None) -> list[str]:
    """Take away what switches of any version are in force, where no process has them; returns the interfaces.

    Raises:
        DinnetError: A process has one of the interfaces.
    """
    with _netlink(namespace) as ip, contextlib.ExitStack() as claims:
        found = _attached(ip)
        for each in found:
            claims.enter_context(_claim(each.interface, each.ifindex))
        for each in found:
            _detach(ip, each)
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
            raise BpfError("the kernel refused to change a filter", error.code) from error


def _index(ip: Any, interface: str) -> int:
    found = ip.link_lookup(ifname=interface)
    if not found:
        raise DinnetError(f"there is no interface {interface}")
    return int(found[0])


def _attached(ip: Any) -> list[Attached]:
    found = []
    for link in ip.get_links():
        for message in ip.get_filters(link["index"], parent=_INGRESS):
            options = message.get_attr("TCA_OPTIONS")
            name = options.get_attr("TCA_BPF_NAME") if options and message.get_attr("TCA_KIND") == "bpf" else None
            match = _NAME.fullmatch(name or "")
            if match:
                interface = link.get_attr("IFLA_IFNAME")
                found.append(Attached(interface, link["index"], int(match[1]), match[2] == "clsact"))
    return found


def _attach(ip: Any, index: int, fd: int, program_id: int) -> None:
    has_clsact = any(
        qdisc["index"] == index and qdisc.get_attr("TCA_KIND") == "clsact" for qdisc in ip.get_qdiscs(index)
    )
    if not has_clsact:
        ip.tc("add", "clsact", index)
    try:
        ip.tc(
            "add-filter", "bpf", index, _HANDLE, fd=fd, parent=_INGRESS, prio=_PRIORITY, direct_action=True,
            name=f"dinnet-switch/{program_id}/{'filter' if has_clsact else 'clsact'}",
        )  # fmt: skip
    except BaseException:
        if not has_clsact:
            ip.tc("del", "clsact", index)
        raise


def _detach(ip: Any, each: Attached) -> None:
    """Remove a filter, and the clsact where it was made for it and nobody else uses it by now."""
    ip.tc("del-filter", "bpf", each.ifindex, _HANDLE, parent=_INGRESS, prio=_PRIORITY)
    if each.made_clsact and not any(list(ip.get_filters(each.ifindex, parent=p)) for p in (_INGRESS, _EGRESS)):
        ip.tc("del", "clsact", each.ifindex)


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
