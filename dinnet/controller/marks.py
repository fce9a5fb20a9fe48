"""From verdicts to marks: which entries a switch's microflow table gets, and when a mark changes. Nothing is sent here.

A class that the forest is sure of counts at once. One that it is less sure of must come several checkpoints in turn
before it changes what is there, so that a flow between two classes does not flap; so must the verdict that takes a
mark away, unclassified.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from dinnet.controller.intent import CLASSES, Intent
from dinnet.dataplane.diff import Changes
from dinnet.dataplane.entity import Entity, Rates, address
from dinnet.dataplane.tables import Microflow, SetMark
from dinnet.flows.record import End, Records

UNCLASSIFIED: Final = len(CLASSES)
_LAST_ID: Final = 2**32 - 1
_NAMES: Final = (
    "src_hi",
    "src_lo",
    "dst_hi",
    "dst_lo",
    "proto",
    "sport",
    "dport",
    "vlan",
    "flow_label",
    "end",
    "rev_packets",
)
_OVER: Final = (End.IDLE, End.FIN, End.RST, End.REUSE)


class Key(NamedTuple):
    """One direction of a micro-flow, as the table matches it."""

    src: int
    dst: int
    proto: int
    sport: int
    dport: int
    vlan: int
    flow_label: int

    @property
    def back(self) -> Key:
        """The other direction. Its flow label is its own sender's, who is taken to set none."""
        return Key(self.dst, self.src, self.proto, self.dport, self.sport, self.vlan, 0)


@dataclass(slots=True)
class Mark:
    """What is known of one micro-flow, both directions."""

    keys: set[Key]
    slice: int
    tc: int
    class_id: int | None  # None: taken over from another controller, which knew
    confidence: float
    id: int
    rates: Rates | None = None
    other: int | None = None  # the class that speaks against it, for `times` checkpoints in turn
    times: int = 0
    entries: dict[Key, Microflow] = field(default_factory=dict)


class Decided(NamedTuple):
    changes: Changes
    rows: list[int]  # of the records that changed something


class MarkBook:
    """The micro-flows of one switch that have a mark."""

    def __init__(self, intent: Intent, newcomer: Callable[[int], Rates | None] = lambda _: None) -> None:
        self._newcomer = newcomer  # the token bucket of a flow that comes into a slice, until buckets are dealt anew
        self.marks: dict[Key, Mark] = {}  # by each direction
        self.classified: Counter[int] = Counter()  # records by verdict, since they were taken last
        self._last_id = 0
        self.use(intent)

    def use(self, intent: Intent) -> None:
        """Another intent; marks that are there change at their next checkpoint."""
        self._settings = intent.classifier
        numbers = {name: each.number for name, each in intent.slices.items()}
        targets = [getattr(intent.policy, name) for name in CLASSES]
        self._inside = [(numbers[each.slice], each.tc) for each in targets]
        client = intent.policy.client_slice
        self._outside = list(self._inside)
        if client is not None:
            for place in (CLASSES.index("prefill"), CLASSES.index("decode")):
                self._outside[place] = (numbers[client], self._inside[place][1])
        self._networks = []
        for text in intent.policy.inference:
            network = ipaddress.ip_network(text)
            first, last = (address(str(each)) for each in (network[0], network[-1]))
            self._networks.append((first, last))
        self._idle_ns = round(self._settings.idle_s * 1_000_000_000)

    def __len__(self) -> int:
        """Micro-flows, not entries."""
        return len({id(mark) for mark in self.marks.values()})

    def adopt(self, entries: Iterable[Entity]) -> None:
        """The table as the switch has it: what is unknown is taken over, what is not there is forgotten."""
        there = {key_of(entry): entry for entry in entries if isinstance(entry, Microflow)}
        for key in self.marks.keys() - there.keys():
            self._forget(key)
        for key, entry in there.items():
            mark = self.marks.get(key) or self.marks.get(key.back)
            action = entry.action
            if mark is None:
                mark = Mark(set(), action.slice, action.tc, None, 0.0, action.microflow_id, entry.rates)
            mark.keys.add(key)
            mark.entries[key] = entry
            self.marks[key] = mark
            self._last_id = max(self._last_id, action.microflow_id)

    def decide(self, records: Records, verdicts: Any, splits: Sequence[bool]) -> Decided:
        """What to write for records of digests, in their order.

        Args:
            records: RECORD_DTYPE, shape (n,).
            verdicts: VERDICT_DTYPE, shape (n,).
            splits: Whether the flow label is a part of the flow's key at the port it came in on.
        """
        columns = zip(*(records[name].tolist() for name in _NAMES), strict=True)
        classes, confidences = verdicts["class_id"].tolist(), verdicts["confidence"].tolist()
        before: dict[Key, Microflow | None] = {}
        rows = []
        for row, (src_hi, src_lo, dst_hi, dst_lo, proto, sport, dport, vlan, label, end, back) in enumerate(columns):
            label = label if splits[row] else 0
            key = Key(src_hi << 64 | src_lo, dst_hi << 64 | dst_lo, proto, sport, dport, vlan, label)
            self.classified[classes[row]] += 1
            mark = self.marks.get(key) or self.marks.get(key.back)
            if end in _OVER:
                changed = mark is not None and self._set(mark, None, before)
            else:
                changed = self._judge(key, back > 0, mark, classes[row], confidences[row], before)
            if changed:
                rows.append(row)
        return Decided(self._changes(before), rows)

    def _judge(
        self,
        key: Key,
        answered: bool,
        mark: Mark | None,
        class_id: int,
        confidence: float,
        before: dict[Key, Microflow | None],
    ) -> bool:
        if class_id >= UNCLASSIFIED:
            if mark is None:
                return False
            return self._speaks_against(mark, class_id) and self._set(mark, None, before)
        target = self._target(key, class_id)
        if mark is None:
            self._last_id = self._last_id % _LAST_ID + 1
            fresh = Mark({key, key.back}, *target, class_id, confidence, self._last_id)
            return self._set(fresh, target, before)
        if mark.class_id in (class_id, None) or confidence >= self._settings.sure:
            settled = True
        else:
            settled = self._speaks_against(mark, class_id)
        if not settled:
            return False
        mark.class_id, mark.confidence = class_id, confidence
        mark.other, mark.times = None, 0
        # A direction that was idle has lost its entry.
        lacking = {key, *([key.back] if answered else [])} - mark.keys
        mark.keys |= lacking
        return (bool(lacking) or target != (mark.slice, mark.tc)) and self._set(mark, target, before)

    def _speaks_against(self, mark: Mark, class_id: int) -> bool:
        """Count one more checkpoint that does; whether they are enough."""
        mark.times = mark.times + 1 if mark.other == class_id else 1
        mark.other = class_id
        return mark.times >= self._settings.patience

    def _target(self, key: Key, class_id: int) -> tuple[int, int]:
        within = all(any(first <= end <= last for first, last in self._networks) for end in (key.src, key.dst))
        return (self._inside if within or not self._networks else self._outside)[class_id]

    def _set(self, mark: Mark, target: tuple[int, int] | None, before: dict[Key, Microflow | None]) -> bool:
        """Give a micro-flow its entries, or take them away."""
        if target is not None and (target[0] != mark.slice or not mark.entries):
            mark.rates = self._newcomer(target[0])
        for key in mark.keys:
            before.setdefault(key, mark.entries.get(key))
            if target is None:
                self.marks.pop(key, None)
                mark.entries.pop(key, None)
            else:
                mark.slice, mark.tc = target
                action = SetMark(mark.slice, mark.tc, mark.id)
                mark.entries[key] = Microflow(
                    **key._asdict(), action=action, rates=mark.rates, idle_timeout_ns=self._idle_ns
                )
                self.marks[key] = mark
        return True

    def _changes(self, before: dict[Key, Microflow | None]) -> Changes:
        insert, modify, delete = [], [], []
        for key, old in before.items():
            mark = self.marks.get(key)
            new = mark.entries[key] if mark is not None else None
            if new is not None and old is None:
                insert.append(new)
            elif new is not None and new != old:
                modify.append(new)
            elif new is None and old is not None:
                delete.append(old)
        return Changes(tuple(insert), tuple(modify), tuple(delete))

    def idle(self, entries: Iterable[Entity]) -> Changes:
        """Entries that no packet has met for the idle timeout are to go, each direction by itself."""
        gone = []
        for entry in entries:
            if isinstance(entry, Microflow):
                gone.append(entry)
                self._forget(key_of(entry))
        return Changes(delete=tuple(gone))

    def forget(self, entries: Iterable[Entity]) -> None:
        """Entries that the switch did not take."""
        for entry in entries:
            if isinstance(entry, Microflow):
                self._forget(key_of(entry))

    def _forget(self, key: Key) -> None:
        mark = self.marks.pop(key, None)
        if mark is not None:
            mark.keys.discard(key)
            mark.entries.pop(key, None)

    def retune(self, rates: dict[int, Rates | None]) -> Changes:
        """Other token buckets, by the micro-flow's number; those that are not named stay.

        Those that give come before those that take, so that the sum is never above the slice.
        """
        give: list[Entity] = []
        take: list[Entity] = []
        for mark in {id(each): each for each in self.marks.values()}.values():
            if mark.id in rates and rates[mark.id] != mark.rates:
                old, mark.rates = mark.rates, rates[mark.id]
                is_less = mark.rates is not None and (old is None or mark.rates.cir < old.cir)
                for key, entry in mark.entries.items():
                    mark.entries[key] = replace(entry, rates=mark.rates)
                    (give if is_less else take).append(mark.entries[key])
        return Changes(modify=(*give, *take))


def key_of(entry: Microflow) -> Key:
    return Key(entry.src, entry.dst, entry.proto, entry.sport, entry.dport, entry.vlan, entry.flow_label)
