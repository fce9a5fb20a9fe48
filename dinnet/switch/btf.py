"""NumPy layouts of C structures, taken from an object file's own type information (BTF).

The format is described in the kernel's documentation (Documentation/bpf/btf.rst).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from dinnet.errors import DinnetError

_MAGIC: Final = 0xEB9F
_HEADER: Final = struct.Struct("<HBBIIIII")
_INT, _PTR, _ARRAY, _STRUCT, _UNION, _ENUM, _FWD, _TYPEDEF, _VOLATILE, _CONST, _RESTRICT = range(1, 12)
_FUNC, _FUNC_PROTO, _VAR, _DATASEC, _FLOAT, _DECL_TAG, _TYPE_TAG, _ENUM64 = range(12, 20)
_THROUGH: Final = frozenset({_TYPEDEF, _VOLATILE, _CONST, _RESTRICT, _TYPE_TAG})
#: Bytes behind a type's 12-byte head: fixed, and for each of its members.
_TAIL: Final = {
    _INT: (4, 0), _PTR: (0, 0), _ARRAY: (12, 0), _STRUCT: (0, 12), _UNION: (0, 12), _ENUM: (0, 8), _FWD: (0, 0),
    _TYPEDEF: (0, 0), _VOLATILE: (0, 0), _CONST: (0, 0), _RESTRICT: (0, 0), _FUNC: (0, 0), _FUNC_PROTO: (0, 8),
    _VAR: (4, 0), _DATASEC: (0, 12), _FLOAT: (0, 0), _DECL_TAG: (4, 0), _TYPE_TAG: (0, 0), _ENUM64: (0, 12),
}  # fmt: skip


@dataclass(frozen=True)
class _Type:
    kind: int
    name: str
    size: int  # or the number of the type that this one refers to
    tail: bytes


class Btf:
    """Type information of one object."""

    def __init__(self, raw: bytes) -> None:
        """Read BTF as it lies in an object's .BTF section.

        Raises:
            DinnetError: It is not BTF of this machine's byte order.
        """
        try:
            magic, _, _, header, type_offset, type_bytes, text_offset, text_bytes = _HEADER.unpack_from(raw)
            if magic != _MAGIC:
                raise ValueError("wrong magic number")
            self._text = raw[header + text_offset :][:text_bytes]
            self._types = self._read_types(raw[header + type_offset :][:type_bytes])
        except (struct.error, ValueError, KeyError, IndexError) as error:
            raise DinnetError(f"the object's type information cannot be read: {error}") from error
        self._by_name = {
            (found.kind, found.name): number
            for number, found in enumerate(self._types)
            if found.kind in (_STRUCT, _VAR, _DATASEC) and found.name
        }

    def dtype(self, name: str) -> np.dtype[Any]:
        """The layout of `struct name`.

        Raises:
            DinnetError: There is no such structure.
        """
        return self._dtype(self._find(name, _STRUCT))

    def variables(self, section: str) -> dict[str, tuple[int, np.dtype[Any]]]:
        """Offset and layout of each variable of a section of data, such as ".rodata".

        Raises:
            DinnetError: There is no such section.
        """
        found = {}
        for number, offset, _ in struct.iter_unpack("<III", self._types[self._find(section, _DATASEC)].tail):
            variable = self._types[number]
            found[variable.name] = (offset, self._dtype(variable.size))
        return found

    def map_layout(self, name: str) -> tuple[np.dtype[Any], np.dtype[Any]] | None:
        """The layouts of a map's keys and values; None where no definition of it names types."""
        if (_VAR, name) not in self._by_name:
            return None
        definition = self._types[self._types[self._find(name, _VAR)].size]
        members = {self._name(at): kind for at, kind, _ in struct.iter_unpack("<III", definition.tail)}
        if definition.kind != _STRUCT or "key" not in members or "value" not in members:
            return None
        # Each is a pointer to the type that is meant.
        return self._dtype(self._types[members["key"]].size), self._dtype(self._types[members["value"]].size)

    def _find(self, name: str, kind: int) -> int:
        number = self._by_name.get((kind, name))
        if number is None:
            what = {_STRUCT: "structure", _VAR: "variable"}.get(kind, "section")
            raise DinnetError(f"the object has no {what} {name!r}; was it built from other sources?")
        return number

    def _name(self, at: int) -> str:
        return self._text[at : self._text.index(b"\0", at)].decode()

    def _read_types(self, data: bytes) -> list[_Type]:
        types = [_Type(0, "", 0, b"")]  # number 0 is void
        at = 0
        while at < len(data):
            name, info, size = struct.unpack_from("<III", data, at)
            kind, members = info >> 24 & 0x1F, info & 0xFFFF
            fixed, each = _TAIL[kind]
            end = at + 12 + fixed + each * members
            types.append(_Type(kind, self._name(name), size, data[at + 12 : end]))
            at = end
        return types

    def _dtype(self, number: int) -> np.dtype[Any]:
        found = self._types[number]
        if found.kind in _THROUGH:
            return self._dtype(found.size)
        if found.kind == _INT:
            signed = found.tail[3] & 1  # bits 24 to 27 hold the encoding
            return np.dtype(f"<{'i' if signed else 'u'}{found.size}")
        if found.kind == _ENUM:
            return np.dtype(f"<u{found.size}")
        if found.kind == _ARRAY:
            element, _, count = struct.unpack("<III", found.tail)
            return np.dtype((self._dtype(element), (count,)))
        if found.kind == _STRUCT:
            members = list(struct.iter_unpack("<III", found.tail))
            return np.dtype(
                {
                    "names": [self._name(name) or f"anonymous_{number}" for number, (name, _, _) in enumerate(members)],
                    "formats": [self._dtype(kind) for _, kind, _ in members],
                    "offsets": [bits // 8 for _, _, bits in members],
                    "itemsize": found.size,
                }
            )
        raise DinnetError(f"type {found.name or number} of the object has no layout in NumPy")
