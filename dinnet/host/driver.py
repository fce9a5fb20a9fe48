"""A Linux host's slices and routes: look at them, plan the smallest change, make it, count.

All of it is in the kernel and told apart there: dinnet's root qdisc by its r2q, leaf queues and filters by their
handles, routes by their protocol number. Nothing is kept on disk, so a run that was killed half-way is simply gone on
with by the next plan.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Self

from dinnet import netns as namespaces
from dinnet.errors import DinnetError
from dinnet.host import routes, wire
from dinnet.host.check import check_state
from dinnet.host.features import Features, features
from dinnet.host.objects import Root
from dinnet.host.routes import Key
from dinnet.host.sizes import Clock
from dinnet.host.state import ROOT_HANDLE, Change, HostState, Plan, Problem, QueueCounters, Route, queue_of
from dinnet.host.tree import Device, Difference, Foreign, Means, Step, is_ours
from dinnet.host.watch import Watch

_ETHERNET_BYTES: Final = 14


@dataclass(frozen=True, slots=True)
class Observed:
    """What a host has: by dinnet, and by others where they share a place with it."""

    devices: dict[str, Device]
    routes: dict[Key, Route]
    other_routes: dict[Key, int]  # protocol numbers


class Host:
    """The host, or one of its network namespaces. It may be used from several threads, not inside an event loop.

    Args:
        netns: Name of a network namespace, as in `ip netns`; None: the calling thread's.

    Raises:
        DinnetError: No such namespace, or pyroute2 is not installed.
    """

    def __init__(self, netns: str | None = None) -> None:
        try:
            import pyroute2  # noqa: F401
        except ImportError:
            raise DinnetError(
                "slices on a host need pyroute2, which is not installed: pip install 'dinnet[host]'"
            ) from None
        self.netns = netns
        with self._inside():
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held open; what was applied stays."""

    def features(self) -> Features:
        """What the kernel offers; tried once in this process.

        Raises:
            DinnetError: Not root.
        """
        return features()

    def observe(self) -> Observed:
        """What is there now.

        Raises:
            DinnetError: The kernel refused to tell.
        """
        with self._netlink() as ip:
            names = {link["index"]: link for link in ip.get_links()}
            qdiscs: dict[int, list[Any]] = {}
            for message in wire.dump(ip, "qdisc"):
                qdiscs.setdefault(message["index"], []).append(message)
            devices = {}
            for index, link in names.items():
                device = _device(ip, index, link, qdiscs.get(index, []))
                devices[device.name] = device
            by_index = {device.index: name for name, device in devices.items()}
            return Observed(devices, *routes.read(ip, by_index))

    def plan(self, desired: HostState) -> Plan:
        """The changes from what is there to what is desired, none where all is as it should be.

        What dinnet made and is not desired is taken away; what others made is left alone.

        Raises:
            DinnetError: Impossible input: see `dinnet.host.check`.
        """
        check_state(desired)
        return self.difference(desired, self.observe())

    def difference(self, desired: HostState, observed: Observed) -> Plan:
        """The same against what was observed before."""
        offers = self.features()
        changes: list[Change] = []
        problems: list[Problem] = []
        links = {link.device: link for link in desired.links}
        if links and not (offers.htb and (offers.u32 or offers.flower)):
            lacking = "HTB" if not offers.htb else "u32 and flower"
            problem = Problem("kernel", f"it has no {lacking}", "it needs CONFIG_NET_SCH_HTB and CONFIG_NET_CLS_U32")
            return Plan((), (problem,))
        means = Means(Clock.read(), "fq_codel" if offers.fq_codel else "bfifo", "flower" if offers.flower else "u32")
        for name, device in observed.devices.items():
            step = Difference(device, means)
            if name in links:
                step.to(links[name])
            else:
                step.to_nothing()
            changes += step.changes
            problems += step.problems
        for name in sorted(links.keys() - observed.devices.keys()):
            problems.append(Problem(name, "there is no such interface", "make it, or name another"))
        indexes = {name: device.index for name, device in observed.devices.items()}
        more = routes.difference(desired.routes, observed.routes, observed.other_routes, indexes, offers.seg6)
        return Plan((*changes, *more[0]), (*problems, *more[1]))

    def apply(self, plan: Plan) -> None:
        """Make a plan's changes, one after the other.

        Raises:
            DinnetError: The kernel refused one, which is named. Those before it stay; another plan goes on from there.
        """
        from pyroute2.netlink.exceptions import NetlinkError

        with self._netlink() as ip:
            for change in plan.changes:
                try:
                    _make(ip, change.payload)
                except NetlinkError as error:
                    raise DinnetError(
                        f"{change.where}: the kernel refused to {change.action} {change.what}: {_why(error)}; "
                        "what came before it is in force: plan again"
                    ) from error

    def counters(self) -> list[QueueCounters]:
        """What each queue of dinnet's has done; drops are those of its class and of the queue in it."""
        found = []
        for device, message, drops in self._queues():
            number = queue_of(message["handle"])
            if number is not None:
                stats = wire.statistics(message)
                found.append(
                    QueueCounters(
                        device, *number, stats["bytes"], stats["packets"], max(drops, stats["drops"]),
                        stats["backlog"], stats["qlen"], stats["borrows"], stats["overlimits"],
                    )
                )  # fmt: skip
        return found

    def _queues(self) -> Iterator[tuple[str, Any, int]]:
        with self._netlink() as ip:
            qdiscs = wire.dump(ip, "qdisc")
            ours = {each["index"] for each in qdiscs if each["parent"] == wire.ROOT_PARENT and wire.read_root(each)}
            drops = {(each["index"], each["parent"]): wire.statistics(each)["drops"] for each in qdiscs}
            names = {link["index"]: link.get_attr("IFLA_IFNAME") for link in ip.get_links()} if ours else {}
            for index in sorted(ours & names.keys()):
                for message in wire.dump(ip, "class", index):
                    yield names[index], message, drops.get((index, message["handle"]), 0)

    def watch(self) -> Watch:
        """Changes of interfaces, queues and routes as they happen, by whomever.

        Raises:
            DinnetError: The kernel refused.
        """
        with self._inside():
            return Watch()

    def remove(self) -> tuple[Problem, ...]:
        """Take away all that dinnet made; returns what keeps a part of it there.

        Raises:
            DinnetError: The kernel refused.
        """
        plan = self.plan(HostState())
        self.apply(plan)
        return plan.problems

    def _inside(self) -> contextlib.AbstractContextManager[None]:
        return namespaces.inside(self.netns) if self.netns is not None else contextlib.nullcontext()

    @contextlib.contextmanager
    def _netlink(self) -> Iterator[Any]:
        """A socket for one piece of work, so that threads do not share one."""
        from pyroute2 import IPRoute
        from pyroute2.netlink.exceptions import NetlinkError

        with self._inside(), IPRoute(ext_ack=True) as ip:
            ip.register_policy(wire.MESSAGES)
            try:
                yield ip
            except NetlinkError as error:
                raise DinnetError(f"{self.netns or 'this host'}: the kernel refused: {_why(error)}") from error


def _why(error: Any) -> str:
    """The kernel's own words where it has some."""
    words = [str(each) for each in error.args[1:] if each] or [str(error)]
    return f"{words[0]} (error {error.code})"


def _make(ip: Any, step: Step | routes.RouteStep) -> None:
    if isinstance(step, routes.RouteStep):
        routes.apply(ip, step)
    elif isinstance(step.what, Foreign):
        parent = step.what.parent
        wire.delete_qdisc(ip, step.index, step.what.handle, parent)
    else:
        {"add": wire.add, "change": wire.change, "delete": wire.delete}[step.action](ip, step.index, step.what)


def _device(ip: Any, index: int, link: Any, qdiscs: Iterable[Any]) -> Device:
    name = str(link.get_attr("IFLA_IFNAME"))
    frame = int(link.get_attr("IFLA_MTU") or 1500) + _ETHERNET_BYTES
    root: Root | Foreign | None = None
    inner = []
    for message in qdiscs:
        if message["parent"] == wire.ROOT_PARENT:
            if message["handle"]:  # the kernel's own default has none
                kind = f"qdisc {message.get_attr('TCA_KIND')}"
                root = wire.read_root(message) or Foreign(kind, message["handle"], wire.ROOT_PARENT)
        elif message["parent"] >> 16 == ROOT_HANDLE >> 16:
            inner.append(message)
    if not isinstance(root, Root):
        return Device(name, index, frame, root)
    foreign, taken = [], set()
    classes, leaves, filters = {}, {}, []
    for message in wire.dump(ip, "class", index):
        found = wire.read_class(message)
        if found is None:
            continue
        if is_ours(found.number):
            # Of classes with classes in them the kernel tells what they had before, not what they have.
            classes[found.number] = found if queue_of(found.number) else found.without_turns()
        else:
            foreign.append(Foreign("class htb", found.number, found.parent))
    for message in inner:
        leaf = wire.read_leaf(message)
        if leaf.parent in classes:
            leaves[leaf.parent] = leaf
    for message in wire.dump(ip, "filter", index, ROOT_HANDLE):
        if not message["handle"]:
            continue
        one = wire.read_filter(message)
        if one is not None and one.is_ours:
            filters.append(one)
        else:
            taken.add(wire.priority_of(message))
            if one is not None:
                foreign.append(Foreign(f"filter {one.kind}", one.handle, ROOT_HANDLE, one.target))
            elif message.get_attr("TCA_KIND") != "u32":
                foreign.append(Foreign(f"filter {message.get_attr('TCA_KIND')}", message["handle"], ROOT_HANDLE))
    # u32 lists its hash tables, too: under priorities of our own filters they are ours.
    own = {each.priority for each in filters}
    return Device(name, index, frame, root, classes, leaves, tuple(filters), tuple(foreign), frozenset(taken - own))
