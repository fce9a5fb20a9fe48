"""From slices to what the kernel is to have, and from there to the smallest change. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, Literal

from dinnet.host import sizes
from dinnet.host.objects import (
    LINK_CLASS,
    Filter,
    HtbClass,
    Leaf,
    Object,
    Protocol,
    Root,
    dscp_node,
    handle,
    is_slice_class,
    leaf_handle,
    node,
    priorities,
    slice_class,
)
from dinnet.host.sizes import Clock, bytes_per_second
from dinnet.host.state import ROOT_HANDLE, Change, Kind, Link, Problem, class_id, queue_of

#: The queue that ARP is put into, where the default slice has one: without ARP nothing goes.
_CONTROL_TC: Final = 2


@dataclass(frozen=True, slots=True)
class Foreign:
    """What somebody else has set: a qdisc, by its handle and parent, or a class or filter in dinnet's tree."""

    kind: str
    handle: int
    parent: int
    target: int = 0  # where a filter leads

    def text(self) -> str:
        return f"{self.kind} {handle(self.handle)} parent {'root' if self.parent > 1 << 31 else handle(self.parent)}"


@dataclass(frozen=True, slots=True)
class Device:
    """What an interface has."""

    name: str
    index: int
    frame: int  # its largest, in bytes, with the Ethernet header
    root: Root | Foreign | None = None  # None: the one that the kernel gives everybody
    classes: dict[int, HtbClass] = field(default_factory=dict)  # by number
    leaves: dict[int, Leaf] = field(default_factory=dict)  # by the class they are in
    filters: tuple[Filter, ...] = ()
    foreign: tuple[Foreign, ...] = ()  # in dinnet's tree
    taken: frozenset[int] = frozenset()  # priorities of others' filters

    @property
    def ours(self) -> bool:
        return isinstance(self.root, Root)


@dataclass(frozen=True, slots=True)
class Means:
    """What the kernel offers for slices."""

    clock: Clock
    leaf: Literal["fq_codel", "bfifo"]
    filter: Literal["flower", "u32"]


@dataclass(frozen=True, slots=True)
class Step:
    """What a change is to the kernel."""

    index: int
    action: Literal["add", "change", "delete", "unset"]  # unset: somebody else's qdisc
    what: Object | Foreign


def classes(link: Link, frame: int, clock: Clock) -> dict[int, HtbClass]:
    """The classes of a link, parents first."""
    rate = bytes_per_second(link.rate_bps)

    def make(number: int, parent: int, guarantee_bps: int, ceiling_bps: int) -> HtbClass:
        low, high = bytes_per_second(guarantee_bps), bytes_per_second(max(ceiling_bps, guarantee_bps))
        burst, cburst = (sizes.burst_ticks(each, frame, clock) for each in (low, high))
        return HtbClass(number, parent, low, high, burst, cburst, overhead=link.overhead_bytes)

    found = {LINK_CLASS: make(LINK_CLASS, ROOT_HANDLE, link.rate_bps, link.rate_bps)}
    for each in link.slices:
        above = slice_class(each.number)
        found[above] = make(above, LINK_CLASS, each.guarantee_bps, each.ceiling_bps)
    for each in link.slices:
        for queue in each.queues:
            made = make(
                class_id(each.number, queue.tc), slice_class(each.number), queue.guarantee_bps, queue.ceiling_bps
            )
            turn = sizes.quantum(made.rate, rate, frame)
            found[made.number] = replace(made, quantum=turn, priority=queue.priority)
    return found


def leaves(link: Link, frame: int, kind: str) -> dict[int, Leaf]:
    """The queue in each queue's class."""
    found = {}
    for each in link.slices:
        for queue in each.queues:
            parent, ceiling = class_id(each.number, queue.tc), bytes_per_second(queue.ceiling_bps)
            common = leaf_handle(parent), parent, kind
            if kind == "fq_codel":
                target = sizes.codel_target_us(ceiling, queue.target_delay_ms, frame)
                interval = sizes.codel_interval_us(target)
                times = map(sizes.codel_time_us, (target, interval))
                found[parent] = Leaf(*common, 0, *times)
            else:
                found[parent] = Leaf(*common, sizes.fifo_bytes(ceiling, queue.target_delay_ms, frame))
    return found


def filters(link: Link, kind: str, device: Device) -> list[Filter]:
    """The filters of a link; those that are there keep their priorities, new ones get such as nobody has."""
    wanted: list[tuple[Protocol, int, int]] = []
    default = class_id(link.default_slice, link.default_tc)
    for protocol in (Protocol.IP, Protocol.IPV6):
        wanted += [(protocol, dscp_node(dscp), class_id(number, tc)) for dscp, number, tc in sorted(link.dscp)]
    queues = {class_id(each.number, queue.tc) for each in link.slices for queue in each.queues}
    control = class_id(link.default_slice, _CONTROL_TC)
    if control in queues and control != default:
        wanted.append((Protocol.ARP, node(Protocol.ARP), control))
    if default != class_id(0, 0):
        wanted.append((Protocol.ALL, node(Protocol.ALL), default))
    used: dict[Protocol, int] = {}
    for each in device.filters:
        if each.kind == kind:
            used.setdefault(each.protocol, each.priority)
    taken = {*device.taken, *(each.priority for each in device.filters)}
    found = []
    for protocol, number, target in wanted:
        if protocol not in used:
            # The kernel keeps filters of one protocol and kind under a priority, and refuses others there.
            used[protocol] = next(p for p in priorities(protocol) if p not in taken)
            taken.add(used[protocol])
        handle_of = number if kind == "u32" else used[protocol] << 16 | number
        found.append(Filter(kind, protocol, used[protocol], handle_of, target))
    return found


class Difference:
    """The changes that one interface needs, in order: what is new first, what goes last, so that packets find a way."""

    def __init__(self, device: Device, means: Means) -> None:
        self.device = device
        self.means = means
        self.changes: list[Change] = []
        self.problems: list[Problem] = []

    def to(self, link: Link) -> None:
        """Towards a link's slices."""
        device, means = self.device, self.means
        if isinstance(device.root, Foreign):
            if not link.replace_foreign:
                self._problem(
                    f"{device.root.text()} is in the way, which dinnet did not make",
                    f"remove it (tc qdisc del dev {device.name} root), or say replace_foreign",
                )
                return
            self._step("unset", device.root)
        if not device.ours:
            self._step("add", Root())
        wanted = classes(link, device.frame, means.clock)
        for number, each in wanted.items():
            old = device.classes.get(number)
            if old is None:
                self._step("add", each)
            elif old.parent != each.parent:
                self._problem(f"class {handle(number)} is in another place", "remove dinnet's tree and apply again")
            elif old != each:
                self._step("change", each, old)
        self._leaves(leaves(link, device.frame, means.leaf), link.replace_foreign)
        selected = filters(link, means.filter, device)
        present = {(each.kind, each.protocol, each.priority, each.node): each for each in device.filters}
        for new in selected:
            was = present.pop((new.kind, new.protocol, new.priority, new.node), None)
            if was is None:
                self._step("add", new)
            elif was.target != new.target:
                self._step("change", Filter(was.kind, was.protocol, was.priority, was.handle, new.target), was)
        for gone in present.values():
            self._step("delete", gone)
        self._remove_classes({number for number in device.classes if number not in wanted})

    def to_nothing(self) -> None:
        """Take away all that dinnet made, and nothing else."""
        if not self.device.ours:
            return
        if not self.device.foreign:
            self._step("delete", Root())
            return
        for each in self.device.filters:
            self._step("delete", each)
        self._remove_classes(set(self.device.classes))
        self._problem(
            f"{self.device.foreign[0].text()} is in dinnet's tree, which somebody else made",
            f"the rest of the tree goes with it (tc qdisc del dev {self.device.name} root)",
        )

    def _leaves(self, wanted: dict[int, Leaf], replace_foreign: bool) -> None:
        for parent, new in wanted.items():
            old = self.device.leaves.get(parent)
            if old is not None and old.handle != new.handle:
                other = Foreign(f"qdisc {old.kind}", old.handle, parent)
                if not replace_foreign:
                    self._problem(
                        f"{other.text()} is in the way, which dinnet did not make",
                        f"remove it (tc qdisc del dev {self.device.name} parent {handle(parent)}), "
                        "or say replace_foreign",
                    )
                    continue
                self._step("unset", other)
                old = None
            if old is not None and old.kind != new.kind:
                self._step("delete", old)
                old = None
            if old is None:
                self._step("add", new)
            elif old != new:
                self._step("change", new, old)

    def _remove_classes(self, gone: set[int]) -> None:
        kept: set[int] = set()
        for other in self.device.foreign:
            for number in (other.parent, other.target):
                while number in gone:
                    kept.add(number)
                    number = self.device.classes[number].parent
        for number in sorted(kept):
            self._problem(
                f"class {handle(number)} is no longer wanted, but something that dinnet did not make needs it",
                f"look at tc class show dev {self.device.name} and tc filter show dev {self.device.name}",
            )
        # Queues before slices, slices before the link: a class with classes in it cannot go.
        for number in sorted(gone - kept, key=lambda each: (not queue_of(each), not is_slice_class(each), each)):
            self._step("delete", self.device.classes[number])

    def _step(
        self, action: Literal["add", "change", "delete", "unset"], what: Object | Foreign, old: Object | None = None
    ) -> None:
        kinds: dict[type, Kind] = {Root: "qdisc", HtbClass: "class", Leaf: "leaf", Filter: "filter", Foreign: "qdisc"}
        shown: Literal["add", "change", "delete"] = "delete" if action == "unset" else action
        before = self._text(old) if old else self._text(what) if shown == "delete" else None
        step = Step(self.device.index, action, what)
        self.changes.append(Change(shown, kinds[type(what)], self.device.name, self._text(what), before, step))

    def _text(self, what: Object | Foreign) -> str:
        return what.text(self.means.clock) if isinstance(what, HtbClass) else what.text()

    def _problem(self, what: str, advice: str) -> None:
        self.problems.append(Problem(self.device.name, what, advice))


def is_ours(number: int) -> bool:
    """Whether a class under dinnet's root is dinnet's."""
    return number == LINK_CLASS or is_slice_class(number) or queue_of(number) is not None
