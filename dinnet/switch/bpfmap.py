"""BPF maps, whose keys and values are NumPy arrays."""

from __future__ import annotations

import ctypes as c
import errno
import os
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dinnet.switch.libbpf import (
    ENOTSUPP,
    BatchOptions,
    BpfError,
    MapOptions,
    address,
    check,
    library,
    map_info,
    possible_cpus,
)

_ROOM: Final = frozenset({errno.E2BIG, errno.ENOSPC, errno.ENOMEM})
_NO_BATCHES: Final = frozenset({ENOTSUPP, errno.EOPNOTSUPP, errno.EINVAL})
_HASH: Final = 1
_ARRAY: Final = 2
_NO_PREALLOC: Final = 1  # BPF_F_NO_PREALLOC
_PER_CPU: Final = frozenset({5, 6, 10})  # hash, array, LRU hash


class Put(IntEnum):
    """When an entry is written."""

    ANY = 0
    NEW = 1  #: only where there is none
    OLD = 2  #: only where there is one


class Map:
    """One map. A per-CPU map reads as the sum over all CPUs, and what is written to it is one CPU's."""

    def __init__(self, fd: int, key: np.dtype[Any], value: np.dtype[Any]) -> None:
        """Take over a descriptor.

        Raises:
            BpfError: The layouts are not the map's.
        """
        info = map_info(fd)
        self.fd = fd
        self.id: int = info.id
        self.name: str = info.name.decode()
        self.max_entries: int = info.max_entries
        self.key = key
        self.value = value
        if (info.key_bytes, info.value_bytes) != (key.itemsize, value.itemsize):
            raise BpfError(f"map {self.name} has another layout than this version of dinnet writes")
        self._kind: int = info.type
        self._cpus = possible_cpus() if info.type in _PER_CPU else 0
        self._raw = np.dtype((value, (self._cpus,))) if self._cpus else value

    def close(self) -> None:
        """Let go of it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def put(self, keys: NDArray[Any], values: NDArray[Any]) -> int:
        """Insert or overwrite entries; returns how many there was room for, from the first on.

        Args:
            keys: (n,) of the key layout.
            values: (n,) of the value layout.

        Raises:
            BpfError: The kernel refused for another reason than a full map.
        """
        keys, values = self._keys(keys), self._values(values)
        if len(keys) == 0:
            return 0
        count = c.c_uint32(len(keys))
        options = BatchOptions(c.sizeof(BatchOptions), 0, 0)
        result = library().bpf_map_update_batch(
            self.fd, address(keys), address(values), c.byref(count), c.byref(options)
        )
        if result == 0:
            return len(keys)
        code = c.get_errno()
        if code in _NO_BATCHES:
            codes = self._put_each(keys, values, Put.ANY, until_full=True)
            return len(codes) - (1 if codes and codes[-1] else 0)
        if code not in _ROOM:
            raise BpfError(f"cannot write to {self.name}", code)
        return int(count.value)

    def put_each(self, keys: NDArray[Any], values: NDArray[Any], when: Put = Put.ANY) -> list[int]:
        """Write entries one by one; returns for each 0, or the error: EEXIST, ENOENT, or that there is no room.

        Raises:
            BpfError: The kernel refused for another reason.
        """
        return self._put_each(self._keys(keys), self._values(values), when, until_full=False)

    def _put_each(self, keys: NDArray[Any], values: NDArray[Any], when: Put, *, until_full: bool) -> list[int]:
        update, fd, flags = library().bpf_map_update_elem, self.fd, int(when)
        key_at, value_at = keys.ctypes.data, values.ctypes.data
        key_step, value_step = self.key.itemsize, self._raw.itemsize
        codes = []
        for number in range(len(keys)):
            code = 0
            if update(fd, key_at + number * key_step, value_at + number * value_step, flags) < 0:
                code = c.get_errno()
                if code not in _ROOM and code not in (errno.EEXIST, errno.ENOENT):
                    raise BpfError(f"cannot write to {self.name}", code)
            codes.append(code)
            if code and until_full:
                break
        return codes

    def get(self, keys: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Values of the keys, zeros where there is none, and which there are: (n,) each."""
        keys = self._keys(keys)
        raw = np.zeros(len(keys), self._raw)
        found = np.zeros(len(keys), np.bool_)
        lookup, fd, step, size = library().bpf_map_lookup_elem_flags, self.fd, raw.strides[0], self.key.itemsize
        key_at, value_at = keys.ctypes.data, raw.ctypes.data
        for number in range(len(keys)):
            if lookup(fd, key_at + number * size, value_at + number * step, 0) == 0:
                found[number] = True
            elif c.get_errno() != errno.ENOENT:
                raise BpfError(f"cannot read {self.name}", c.get_errno())
        return self._summed(raw), found

    def delete(self, keys: NDArray[Any]) -> NDArray[np.bool_]:
        """Remove entries; returns which there were, (n,).

        Raises:
            BpfError: The kernel refused.
        """
        keys = self._keys(keys)
        found = np.zeros(len(keys), np.bool_)
        remove, fd, at, step = library().bpf_map_delete_elem, self.fd, keys.ctypes.data, self.key.itemsize
        for number in range(len(keys)):
            if remove(fd, at + number * step) == 0:
                found[number] = True
            elif c.get_errno() != errno.ENOENT:
                raise BpfError(f"cannot delete from {self.name}", c.get_errno())
        return found

    def clear(self) -> None:
        """Remove all entries; an array's become zeros."""
        for keys, values in list(self.items()):
            if self._is_array:
                self.put(keys, np.zeros_like(values))
            else:
                self.delete(keys)

    def items(self, chunk: int = 4096) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """All entries, in arrays of `chunk` or more, while the pipeline goes on changing them."""
        cursor, at = np.zeros(max(self.key.itemsize, 8), np.uint8), None
        options = BatchOptions(c.sizeof(BatchOptions), 0, 0)
        while True:
            keys, raw = np.zeros(chunk, self.key), np.zeros(chunk, self._raw)
            count = c.c_uint32(chunk)
            result = library().bpf_map_lookup_batch(
                self.fd, at, address(cursor), address(keys), address(raw), c.byref(count), c.byref(options)
            )
            code = c.get_errno() if result < 0 else 0
            if code == errno.ENOSPC:  # a bucket of the hash holds more than a chunk
                chunk *= 2
                continue
            if code in _NO_BATCHES and at is None:
                yield from self._items_one_by_one()
                return
            if code not in (0, errno.ENOENT):
                raise BpfError(f"cannot read {self.name}", code)
            if count.value:
                yield keys[: count.value], self._summed(raw[: count.value])
            if code:
                return
            cursor = cursor.copy()
            at = address(cursor)

    def all(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """All keys and all values."""
        chunks = list(self.items())
        if not chunks:
            return np.zeros(0, self.key), np.zeros(0, self.value)
        return np.concatenate([keys for keys, _ in chunks]), np.concatenate([values for _, values in chunks])

    def _items_one_by_one(self) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        key, at = np.zeros(1, self.key), None
        while library().bpf_map_get_next_key(self.fd, at, address(key)) == 0:
            values, found = self.get(key)
            if found[0]:
                yield key.copy(), values
            at = address(key)

    @property
    def _is_array(self) -> bool:
        return self._kind in (_ARRAY, 6)

    def _keys(self, keys: NDArray[Any]) -> NDArray[Any]:
        return np.ascontiguousarray(keys, self.key)

    def _values(self, values: NDArray[Any]) -> NDArray[Any]:
        if not self._cpus:
            return np.ascontiguousarray(values, self.value)
        raw = np.zeros(len(values), self._raw)
        raw[:, 0] = values
        return raw

    def _summed(self, raw: NDArray[Any]) -> NDArray[Any]:
        if not self._cpus:
            return raw
        if self.value.names is None:
            return np.asarray(raw.sum(axis=1, dtype=self.value))
        summed = np.zeros(len(raw), self.value)
        for name in self.value.names:
            summed[name] = raw[name].sum(axis=1)
        return summed


def create_array(name: str, value: np.dtype[Any], entries: int) -> Map:
    """A new array map.

    Raises:
        BpfError: The kernel refused.
    """
    fd = library().bpf_map_create(_ARRAY, name.encode(), 4, value.itemsize, entries, None)
    return Map(check(fd, f"cannot make map {name}"), np.dtype("u4"), value)


def create_hash(name: str, key: np.dtype[Any], value: np.dtype[Any], entries: int) -> Map:
    """A new hash map, which takes memory for the entries that are in it.

    Raises:
        BpfError: The kernel refused.
    """
    options = MapOptions(size=c.sizeof(MapOptions), map_flags=_NO_PREALLOC)
    fd = library().bpf_map_create(_HASH, name.encode(), key.itemsize, value.itemsize, entries, c.byref(options))
    return Map(check(fd, f"cannot make map {name}"), key, value)


def create_like(other: Map) -> Map:
    """A new, empty array map that can take the place of `other` in a map of maps.

    Linux 6.1 takes a map there only if it has type information where the one that it was made for has some.

    Raises:
        BpfError: The kernel refused.
    """
    info = map_info(other.fd)
    what = f"cannot make map {info.name.decode()}"
    btf = check(library().bpf_btf_get_fd_by_id(info.btf_id), what)
    try:
        options = MapOptions(
            size=c.sizeof(MapOptions), btf_fd=btf, btf_key_type_id=info.btf_key_type_id,
            btf_value_type_id=info.btf_value_type_id,
        )  # fmt: skip
        sizes = info.key_bytes, info.value_bytes, info.max_entries
        fd = library().bpf_map_create(info.type, info.name, *sizes, c.byref(options))
        return Map(check(fd, what), other.key, other.value)
    finally:
        os.close(btf)
