"""What clients note on entries, which no packet looks at: kept in the kernel beside the entries, for the next owner."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np

from dinnet.switch.bpfmap import Map, create_hash
from dinnet.switch.target import Entry

NAME: Final = "entry_notes"
_DATA: Final = 52
#: The digest of table and key, and which piece of the note it is.
_KEY: Final = np.dtype([("entry", "V16"), ("piece", "u4")])
_VALUE: Final = np.dtype([("controller", "u8"), ("length", "u4"), ("data", f"V{_DATA}")])


def create(pieces: int) -> Map:
    """An empty map with room for so many pieces of notes.

    Raises:
        BpfError: The kernel refused.
    """
    return create_hash(NAME, np.dtype((np.void, _KEY.itemsize)), np.dtype((np.void, _VALUE.itemsize)), pieces)


class EntryNotes:
    """The metadata of entries. One owner at a time."""

    def __init__(self, table: Map) -> None:
        """Go on with what is in the map.

        Raises:
            BpfError: It cannot be read.
        """
        self._map = table
        keys, values = (array.view(layout) for array, layout in zip(table.all(), (_KEY, _VALUE), strict=True))
        found: dict[bytes, dict[int, tuple[int, bytes]]] = {}
        for key, value in zip(keys, values, strict=True):
            piece = int(value["controller"]), value["data"].tobytes()[: int(value["length"])]
            found.setdefault(key["entry"].tobytes(), {})[int(key["piece"])] = piece
        self._found = found
        self._pieces = {entry: len(pieces) for entry, pieces in found.items()}

    def put(self, table_id: int, entries: Sequence[Entry]) -> list[bool]:
        """Note what entries have, instead of what they had; whether there was room, for each."""
        return [self._put(table_id, entry) for entry in entries]

    def _put(self, table_id: int, entry: Entry) -> bool:
        if not entry.metadata and not entry.controller_metadata:
            self._remove(table_id, entry)
            return True
        place, data = _place(table_id, entry), entry.metadata
        pieces = [data[at : at + _DATA] for at in range(0, len(data), _DATA)] or [b""]
        keys, values = np.zeros(len(pieces), _KEY), np.zeros(len(pieces), _VALUE)
        keys["entry"], keys["piece"] = np.void(place), np.arange(len(pieces))
        values["controller"] = entry.controller_metadata
        for number, piece in enumerate(pieces):
            values[number] = entry.controller_metadata, len(piece), np.void(piece.ljust(_DATA, b"\0"))
        before = self._pieces.get(place, 0)
        written = self._map.put(keys.view(self._map.key), values.view(self._map.value))
        self._pieces[place] = max(before, len(pieces))
        if written < len(pieces):
            self._remove(table_id, entry)
            return False
        self._cut(place, len(pieces))
        return True

    def remove(self, table_id: int, entries: Sequence[Entry]) -> None:
        """Forget what was noted on entries."""
        for entry in entries:
            self._remove(table_id, entry)

    def _remove(self, table_id: int, entry: Entry) -> None:
        if self._pieces:
            self._cut(_place(table_id, entry), 0)

    def _cut(self, place: bytes, pieces: int) -> None:
        before = self._pieces.get(place, 0)
        if before > pieces:
            keys = np.zeros(before - pieces, _KEY)
            keys["entry"], keys["piece"] = np.void(place), np.arange(pieces, before)
            self._map.delete(keys.view(self._map.key))
        if pieces:
            self._pieces[place] = pieces
        else:
            self._pieces.pop(place, None)

    def on(self, table_id: int, entries: Sequence[Entry]) -> list[Entry]:
        """The entries of a table as the last owner left them, with what it noted on them. Told once."""
        if not self._found:
            return list(entries)
        noted = []
        for entry in entries:
            pieces = self._found.pop(_place(table_id, entry), None)
            if pieces:
                data = b"".join(data for _, (_, data) in sorted(pieces.items()))
                entry = entry._replace(metadata=data, controller_metadata=pieces[min(pieces)][0])
            noted.append(entry)
        return noted

    def clear(self) -> None:
        """Forget everything."""
        self._map.clear()
        self._pieces.clear()
        self._found.clear()


def _place(table_id: int, entry: Entry) -> bytes:
    return hashlib.blake2b(repr((table_id, entry.key)).encode(), digest_size=16).digest()
