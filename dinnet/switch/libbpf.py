"""What the switch needs of libbpf (https://libbpf.readthedocs.io), through ctypes.

libbpf comes with every distribution and has a stable interface; the bindings on PyPI bring a compiler of their own or
do not build on current Pythons.
"""

from __future__ import annotations

import ctypes as c
import ctypes.util
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from dinnet.errors import DinnetError
from dinnet.switch.btf import Btf

BPF_ANY, BPF_NOEXIST, BPF_EXIST = 0, 1, 2

_PTR, _INT, _U32, _SIZE, _TEXT = c.c_void_p, c.c_int, c.c_uint32, c.c_size_t, c.c_char_p
_FUNCTIONS: Final[dict[str, tuple[Any, ...]]] = {
    # name: result, arguments
    "libbpf_set_print": (_PTR, _PTR),
    "bpf_object__open_file": (_PTR, _TEXT, _PTR),
    "bpf_object__load": (_INT, _PTR),
    "bpf_object__close": (None, _PTR),
    "bpf_object__btf": (_PTR, _PTR),
    "btf__raw_data": (_PTR, _PTR, c.POINTER(_U32)),
    "bpf_object__find_program_by_name": (_PTR, _PTR, _TEXT),
    "bpf_program__fd": (_INT, _PTR),
    "bpf_object__find_map_by_name": (_PTR, _PTR, _TEXT),
    "bpf_object__next_map": (_PTR, _PTR, _PTR),
    "bpf_map__name": (_TEXT, _PTR),
    "bpf_map__fd": (_INT, _PTR),
    "bpf_map__set_max_entries": (_INT, _PTR, _U32),
    "bpf_map__max_entries": (_U32, _PTR),
    "bpf_map__key_size": (_U32, _PTR),
    "bpf_map__value_size": (_U32, _PTR),
    "bpf_map__initial_value": (_PTR, _PTR, c.POINTER(_SIZE)),
    "bpf_map__set_initial_value": (_INT, _PTR, _PTR, _SIZE),
    "bpf_map_update_elem": (_INT, _INT, _PTR, _PTR, c.c_uint64),
    "bpf_map_lookup_elem": (_INT, _INT, _PTR, _PTR),
    "bpf_map_delete_elem": (_INT, _INT, _PTR),
    "bpf_map_update_batch": (_INT, _INT, _PTR, _PTR, c.POINTER(_U32), _PTR),
    "bpf_map_lookup_batch": (_INT, _INT, _PTR, _PTR, _PTR, _PTR, c.POINTER(_U32), _PTR),
    "bpf_map_delete_batch": (_INT, _INT, _PTR, c.POINTER(_U32), _PTR),
    "bpf_obj_pin": (_INT, _INT, _TEXT),
    "bpf_obj_get": (_INT, _TEXT),
    "bpf_prog_test_run_opts": (_INT, _INT, _PTR),
    "ring_buffer__new": (_PTR, _INT, _PTR, _PTR, _PTR),
    "ring_buffer__consume": (_INT, _PTR),
    "ring_buffer__epoll_fd": (_INT, _PTR),
    "ring_buffer__free": (None, _PTR),
    "libbpf_num_possible_cpus": (_INT,),
}
_PRINT = c.CFUNCTYPE(_INT, _INT, _TEXT, _PTR)
_SAMPLE = c.CFUNCTYPE(_INT, _PTR, _PTR, _SIZE)


class BpfError(DinnetError):
    """The kernel or libbpf refused something."""


@cache
def _library() -> Any:
    name = ctypes.util.find_library("bpf") or "libbpf.so.1"
    try:
        library = c.CDLL(name, use_errno=True)
        for function, (result, *arguments) in _FUNCTIONS.items():
            bound = getattr(library, function)
            bound.restype, bound.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise BpfError(f"libbpf 1.1 or newer is needed: install Debian's libbpf1 ({error})") from error
    library.libbpf_set_print(None)  # what it says about programs is asked for where it is of use
    return library


def _check(result: int | None, what: str) -> int:
    """The result, where it is no failure."""
    if result is None or result < 0:
        code = c.get_errno() or -(result or -errno.EINVAL)
        raise BpfError(f"{what}: {os.strerror(code)}" + ("; this needs root" if code == errno.EPERM else ""))
    return result


def _address(array: NDArray[Any]) -> c.c_void_p:
    return c.c_void_p(array.ctypes.data)


class _BatchOptions(c.Structure):
    _fields_ = (("size", _SIZE), ("elem_flags", c.c_uint64), ("flags", c.c_uint64))


class Map:
    """One map: keys and values are NumPy arrays of its layouts."""

    def __init__(self, fd: int, name: str, key: np.dtype[Any], value: np.dtype[Any], max_entries: int) -> None:
        self.fd = fd
        self.name = name
        self.key = key
        self.value = value
        self.max_entries = max_entries

    def put(self, keys: NDArray[Any], values: NDArray[Any]) -> int:
        """Insert or overwrite entries; returns how many there was room for, from the first on.

        Args:
            keys: (n,) of the key layout.
            values: (n,) of the value layout.

        Raises:
            BpfError: The kernel refused for another reason than a full map.
        """
        keys, values = np.ascontiguousarray(keys), np.ascontiguousarray(values)
        if len(keys) == 0:
            return 0
        count = _U32(len(keys))
        options = _BatchOptions(c.sizeof(_BatchOptions), BPF_ANY, 0)
        result = _library().bpf_map_update_batch(
            self.fd, _address(keys), _address(values), c.byref(count), c.byref(options)
        )
        if result < 0 and c.get_errno() not in (errno.E2BIG, errno.ENOSPC, errno.ENOMEM):
            _check(result, f"cannot write to {self.name}")
        return count.value

    def get(self, key: NDArray[Any]) -> NDArray[Any] | None:
        """The value of one key, (1,) of the value layout, or None."""
        value = np.zeros(1, self.value)
        if _library().bpf_map_lookup_elem(self.fd, _address(np.ascontiguousarray(key)), _address(value)) < 0:
            return None
        return value

    def delete(self, keys: NDArray[Any]) -> None:
        """Remove entries; those that are not there are left out."""
        for key in np.ascontiguousarray(keys).reshape(-1, 1):
            result = _library().bpf_map_delete_elem(self.fd, _address(key))
            if result < 0 and c.get_errno() != errno.ENOENT:
                _check(result, f"cannot delete from {self.name}")

    def items(self, chunk: int = 8192) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """All entries, in arrays of up to `chunk` or more, while the pipeline goes on changing them."""
        cursor, at = np.zeros(max(self.key.itemsize, 8), np.uint8), None
        options = _BatchOptions(c.sizeof(_BatchOptions), 0, 0)
        while True:
            keys, values = np.zeros(chunk, self.key), np.zeros(chunk, self.value)
            count = _U32(chunk)
            result = _library().bpf_map_lookup_batch(
                self.fd, at, _address(cursor), _address(keys), _address(values), c.byref(count), c.byref(options)
            )
            code = c.get_errno()
            if result < 0 and code == errno.ENOSPC:  # a hash bucket holds more than a chunk
                chunk *= 2
                continue
            if result < 0 and code != errno.ENOENT:
                _check(result, f"cannot read {self.name}")
            if count.value:
                yield keys[: count.value], values[: count.value]
            if result < 0:
                return
            at = _address(cursor)


class Object:
    """An object file with programs and maps, opened, and loaded once `load` has been called."""

    def __init__(self, path: Path) -> None:
        """Open an object file.

        Raises:
            BpfError: There is none, or it is not one.
        """
        self._library = _library()
        self._path = path
        self._object = self._library.bpf_object__open_file(os.fsencode(path), None)
        if not self._object:
            raise BpfError(f"{path}: cannot open it as a BPF object: {os.strerror(c.get_errno())}")
        size = _U32()
        raw = self._library.btf__raw_data(self._library.bpf_object__btf(self._object), c.byref(size))
        self.btf = Btf(c.string_at(raw, size.value))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let go of it; what is attached or pinned stays."""
        if self._object:
            self._library.bpf_object__close(self._object)
            self._object = None

    def set_size(self, name: str, entries: int) -> None:
        """Set how many entries a map holds, before loading."""
        _check(self._library.bpf_map__set_max_entries(self._map(name), entries), f"map {name}")

    def set_constants(self, values: dict[str, tuple[int, int]], section: str = ".rodata") -> None:
        """Set the object's constants before loading: name -> (offset, value). See `constant_offsets`."""
        raise NotImplementedError

    def load(self) -> None:
        """Have the kernel verify and load everything.

        Raises:
            BpfError: It refused; with the end of the verifier's log.
        """
        lines: list[bytes] = []
        printer = _PRINT(lambda level, text, arguments: 0)
        del printer, lines
        _check(self._library.bpf_object__load(self._object), f"{self._path}: the kernel does not load it")

    def _map(self, name: str) -> int:
        found: int | None = self._library.bpf_object__find_map_by_name(self._object, name.encode())
        if not found:
            raise BpfError(f"{self._path}: has no map {name}")
        return found
