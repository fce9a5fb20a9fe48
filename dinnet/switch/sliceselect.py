"""The ternary tables slice_select and int_source: an exact table for each combination of masks (tuple space search)."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from dinnet.switch.bpfmap import Map, Put, create_like
from dinnet.switch.cells import Cells
from dinnet.switch.libbpf import check, library

_64: Final = 2**64 - 1
_ZERO: Final = np.zeros(1, np.uint32)


class Match(NamedTuple):
    """Values and masks of what an entry matches on; addresses are 128 bits, IPv4 as IPv4-mapped IPv6."""

    ingress_port: tuple[int, int] = (0, 0)
    src: tuple[int, int] = (0, 0)
    dst: tuple[int, int] = (0, 0)
    proto: tuple[int, int] = (0, 0)
    sport: tuple[int, int] = (0, 0)
    dport: tuple[int, int] = (0, 0)
    vlan: tuple[int, int] = (0, 0)


class Selected(NamedTuple):
    """An entry of slice_select: the highest priority wins."""

    match: Match
    priority: int
    slice: int
    tc: int


class Watch(IntEnum):
    """enum watch_action"""

    NONE = 0
    MD = 1
    XD = 2


class Watched(NamedTuple):
    """An entry of int_source: the highest priority wins."""

    match: Match
    priority: int
    action: Watch
    hops: int = 0  # that may add metadata
    instructions: int = 0  # the bitmap of INT 2.1, section 5.8


E = TypeVar("E", Selected, Watched)


class _Masks(NamedTuple):
    """What distinguishes the exact tables; `layer` tells entries of the same match and other priorities apart."""

    masks: tuple[int, ...]
    layer: int


_Key = tuple[Match, int]


class Ternary(Generic[E]):
    """Entries are told apart by match and priority. Results are error numbers, 0 where it worked."""

    def __init__(self, entry: type[E], table: Map, masks: Map, state: Map, layout: np.dtype[Any]) -> None:
        """`layout` is that of struct select_mask; `entry` names the fields of a value behind priority and cell."""
        self._entry: type[E] = entry
        self._table = table
        self._lists = masks
        self._state = state
        fd = check(library().bpf_map_get_fd_by_id(int(masks.get(_ZERO)[0][0])), "cannot get the list of masks")
        self._list = Map(fd, np.dtype("u4"), layout)
        self._entries: dict[_Key, tuple[E, _Masks, int]] = {}  # with masks and cell
        self._ids: dict[_Masks, int] = {}
        self._used: dict[_Masks, dict[tuple[int, ...], int]] = {}  # masks -> masked values -> priority
        self._published: list[tuple[_Masks, int]] = []
        cells = self._adopt()
        self._cells = Cells(table.max_entries, np.array(cells, np.uint32))

    def close(self) -> None:
        """Let go of what it opened."""
        self._list.close()

    def insert(self, entries: Sequence[E]) -> list[int]:
        """Add entries: EEXIST where there is one, ENOSPC where there is no room for it or for its masks."""
        codes, new = [], []
        for entry in entries:
            key = _normal(entry.match), entry.priority
            if key in self._entries:
                codes.append(errno.EEXIST)
                continue
            masks = self._place(key) if self._cells.free else None
            if masks is None:
                codes.append(errno.ENOSPC)
                continue
            self._add(entry._replace(match=key[0]), masks, int(self._cells.take(1)[0]))
            new.append(key)
            codes.append(0)
        cells = np.array([self._entries[key][2] for key in new], np.uint32)
        self._state.put(cells, np.zeros(len(cells), self._state.value))
        self._publish()  # first, so that no packet sees an entry without the ones that it must be weighed against
        self._write(new, Put.ANY)
        return codes

    def modify(self, entries: Sequence[E]) -> list[int]:
        """Change what entries do; counters stay. ENOENT: not there."""
        codes, changed = [], []
        for entry in entries:
            key = _normal(entry.match), entry.priority
            if key not in self._entries:
                codes.append(errno.ENOENT)
                continue
            _, masks, cell = self._entries[key]
            self._entries[key] = entry._replace(match=key[0]), masks, cell
            changed.append(key)
            codes.append(0)
        self._write(changed, Put.OLD)
        return codes

    def delete(self, keys: Sequence[_Key]) -> list[int]:
        """Remove entries by match and priority. ENOENT: not there."""
        codes, gone, cells = [], [], []
        for match, priority in keys:
            key = _normal(match), priority
            found = self._entries.pop(key, None)
            codes.append(0 if found else errno.ENOENT)
            if found is None:
                continue
            _, masks, cell = found
            del self._used[masks][_values(key[0])]
            gone.append(self._encode_key(key[0], masks))
            cells.append(cell)
        if gone:
            self._table.delete(np.concatenate(gone))
        for masks in [masks for masks, used in self._used.items() if not used]:
            del self._used[masks], self._ids[masks]
        self._publish()
        self._cells.give_back(np.array(cells, np.uint32))
        return codes

    def entries(self) -> list[E]:
        """All entries."""
        return [entry for entry, _, _ in self._entries.values()]

    def find(self, match: Match, priority: int) -> E | None:
        """An entry by match and priority."""
        found = self._entries.get((_normal(match), priority))
        return found[0] if found else None

    def counters(self, keys: Sequence[_Key]) -> NDArray[Any]:
        """Packets and bytes that each entry won, (n,) of struct cell; 0 for what is not there."""
        out = np.zeros(len(keys), self._state.value)
        found = [(n, self._entries.get((_normal(match), priority))) for n, (match, priority) in enumerate(keys)]
        there = [(number, entry[2]) for number, entry in found if entry]
        if there:
            values, _ = self._state.get(np.array([cell for _, cell in there], np.uint32))
            out[[number for number, _ in there]] = values
        return out

    def set_counters(self, keys: Sequence[_Key], packets: Sequence[int], sizes: Sequence[int]) -> list[int]:
        """Set counters to packets and bytes. ENOENT: not there."""
        codes = []
        for (match, priority), count, size in zip(keys, packets, sizes, strict=True):
            found = self._entries.get((_normal(match), priority))
            codes.append(0 if found else errno.ENOENT)
            if found:
                self._state.put(np.array([found[2]]), np.array([(count, size)], self._state.value))
        return codes

    def clear(self) -> None:
        """Remove all entries."""
        self.delete(list(self._entries))

    def _place(self, key: _Key) -> _Masks | None:
        """The exact table that has room for an entry; None: there are as many of them as there may be."""
        masks, values = tuple(mask for _, mask in key[0]), _values(key[0])
        layer = 0
        while values in self._used.get(_Masks(masks, layer), ()):
            layer += 1
        place = _Masks(masks, layer)
        if place not in self._used:
            if len(self._used) == self._list.max_entries:
                return None
            taken = set(self._ids.values())
            self._ids[place] = next(number for number in range(len(taken) + 1) if number not in taken)
            self._used[place] = {}
        return place

    def _add(self, entry: E, masks: _Masks, cell: int) -> None:
        self._entries[entry.match, entry.priority] = entry, masks, cell
        self._used[masks][_values(entry.match)] = entry.priority

    def _publish(self) -> None:
        """Bring the list of masks into force where it is another one. No packet is at the old one afterwards."""
        wanted = [(masks, max(used.values())) for masks, used in self._used.items() if used]
        wanted.sort(key=lambda item: (-item[1], self._ids[item[0]]))
        if wanted == self._published:
            return
        rows = np.zeros(len(wanted), self._list.value)
        for number, (masks, best) in enumerate(wanted):
            rows[number]["fields"] = _fields(masks.masks, self._ids[masks])
            rows[number]["best_priority"] = best
        new = create_like(self._list)
        try:
            new.put(np.arange(len(rows)), rows)
            # The kernel returns from this when the programs that were running have ended (synchronize_rcu).
            self._lists.put_each(_ZERO, np.array([new.fd], self._lists.value))
        except BaseException:
            new.close()
            raise
        self._list.close()
        self._list = new
        self._published = wanted

    def _write(self, keys: Sequence[_Key], when: Put) -> None:
        if not keys:
            return
        values = np.zeros(len(keys), self._table.value)
        encoded = []
        for number, key in enumerate(keys):
            entry, masks, cell = self._entries[key]
            encoded.append(self._encode_key(key[0], masks))
            values[number]["priority"], values[number]["state"] = entry.priority, cell
            for name in entry._fields[2:]:
                values[number][name] = getattr(entry, name)
        for code in self._table.put_each(np.concatenate(encoded), values, when):
            check(-code, f"cannot write to {self._table.name}")

    def _encode_key(self, match: Match, masks: _Masks) -> NDArray[Any]:
        return np.array([_fields(_values(match), self._ids[masks])], self._table.key)

    def _adopt(self) -> list[int]:
        """Take over what is in force; returns the cells in use."""
        layers: dict[tuple[int, ...], int] = {}
        by_id: dict[int, _Masks] = {}
        _, rows = self._list.all()
        for row in rows[rows["best_priority"] > 0]:
            masks = _unpack(row["fields"])
            place = _Masks(masks, layers.get(masks, 0))
            layers[masks] = place.layer + 1
            by_id[int(row["fields"]["mask_id"])] = place
            self._ids[place] = int(row["fields"]["mask_id"])
            self._used[place] = {}
            self._published.append((place, int(row["best_priority"])))
        keys, values = self._table.all()
        cells, stray = [], []
        for key, value in zip(keys, values, strict=True):
            masks_of = by_id.get(int(key["mask_id"]))
            if masks_of is None:  # the process that wrote it died before it could bring the masks into force
                stray.append(key)
                continue
            match = Match(*zip(_unpack(key), masks_of.masks, strict=True))
            rest: list[int] = [int(value[name]) for name in self._entry._fields[2:]]
            entry = self._entry._make((match, int(value["priority"]), *rest))
            self._add(entry, masks_of, int(value["state"]))
            cells.append(int(value["state"]))
        if stray:
            self._table.delete(np.array(stray, self._table.key))
        for masks_of in [place for place, used in self._used.items() if not used]:
            del self._used[masks_of], self._ids[masks_of]
        return cells


def _normal(match: Match) -> Match:
    return Match(*((value & mask, mask) for value, mask in match))


def _values(match: Match) -> tuple[int, ...]:
    return tuple(value for value, _ in match)


def _fields(words: tuple[int, ...], mask_id: int) -> tuple[int, ...]:
    """Struct select_fields of values or masks in the order of `Match`."""
    port, src, dst, proto, sport, dport, vlan = words
    return src >> 64, src & _64, dst >> 64, dst & _64, port, sport, dport, vlan, proto, mask_id


def _unpack(row: Any) -> tuple[int, ...]:
    """The reverse of `_fields`."""
    src_hi, src_lo, dst_hi, dst_lo, port, sport, dport, vlan, proto, _ = (int(value) for value in row)
    return port, src_hi << 64 | src_lo, dst_hi << 64 | dst_lo, proto, sport, dport, vlan
