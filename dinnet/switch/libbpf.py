"""What the switch calls of libbpf (https://libbpf.readthedocs.io), through ctypes.

libbpf comes with every distribution and has a stable interface; the bindings on PyPI bring a compiler of their own or
do not build on current Pythons.
"""

from __future__ import annotations

import ctypes as c
import errno
import os
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dinnet.errors import DinnetError

_PTR, _INT, _U32, _SIZE, _TEXT = c.c_void_p, c.c_int, c.c_uint32, c.c_size_t, c.c_char_p
_COUNT: Final = c.POINTER(_U32)
#: Error number of the kernel that the C library has no name for: not done by this kind of map.
ENOTSUPP: Final = 524


class OpenOptions(c.Structure):
    """struct bpf_object_open_opts of libbpf.h."""

    _fields_ = (
        ("size", _SIZE), ("object_name", _TEXT), ("relaxed_maps", c.c_bool), ("pin_root_path", _TEXT),
        ("unused", _U32), ("kconfig", _TEXT), ("btf_custom_path", _TEXT),
        ("log", _PTR), ("log_bytes", _SIZE), ("log_level", _U32),
    )  # fmt: skip


class BatchOptions(c.Structure):
    """struct bpf_map_batch_opts of bpf.h."""

    _fields_ = (("size", _SIZE), ("elem_flags", c.c_uint64), ("flags", c.c_uint64))


class MapOptions(c.Structure):
    """struct bpf_map_create_opts of bpf.h."""

    _fields_ = (
        ("size", _SIZE), ("btf_fd", _U32), ("btf_key_type_id", _U32), ("btf_value_type_id", _U32),
        ("btf_vmlinux_value_type_id", _U32), ("inner_map_fd", _U32), ("map_flags", _U32), ("map_extra", c.c_uint64),
        ("numa_node", _U32), ("map_ifindex", _U32),
    )  # fmt: skip


class TestRunOptions(c.Structure):
    """struct bpf_test_run_opts of bpf.h."""

    __test__ = False  # no test of pytest's
    _fields_ = (
        ("size", _SIZE), ("data_in", _PTR), ("data_out", _PTR), ("data_size_in", _U32), ("data_size_out", _U32),
        ("ctx_in", _PTR), ("ctx_out", _PTR), ("ctx_size_in", _U32), ("ctx_size_out", _U32), ("retval", _U32),
        ("repeat", _INT), ("duration", _U32), ("flags", _U32), ("cpu", _U32), ("batch_size", _U32),
    )  # fmt: skip


class ProgramInfo(c.Structure):
    """The beginning of struct bpf_prog_info of linux/bpf.h, which the kernel fills as far as there is room."""

    _fields_ = (
        ("type", _U32), ("id", _U32), ("tag", c.c_uint8 * 8), ("jited_bytes", _U32), ("xlated_bytes", _U32),
        ("jited", c.c_uint64), ("xlated", c.c_uint64), ("load_time", c.c_uint64), ("uid", _U32),
        ("map_count", _U32), ("map_ids", c.c_uint64), ("name", c.c_char * 16),
    )  # fmt: skip


class MapInfo(c.Structure):
    """The beginning of struct bpf_map_info of linux/bpf.h."""

    _fields_ = (
        ("type", _U32), ("id", _U32), ("key_bytes", _U32), ("value_bytes", _U32), ("max_entries", _U32),
        ("flags", _U32), ("name", c.c_char * 16), ("ifindex", _U32), ("btf_vmlinux_value_type_id", _U32),
        ("netns_dev", c.c_uint64), ("netns_ino", c.c_uint64),
        ("btf_id", _U32), ("btf_key_type_id", _U32), ("btf_value_type_id", _U32),
    )  # fmt: skip


class LinkInfo(c.Structure):
    """The beginning of struct bpf_link_info of linux/bpf.h."""

    _fields_ = (("type", _U32), ("id", _U32), ("program_id", _U32), ("rest", c.c_uint8 * 52))


SAMPLE: Final = c.CFUNCTYPE(_INT, _PTR, _PTR, _SIZE)
_FUNCTIONS: Final[dict[str, tuple[Any, ...]]] = {
    # name: result, arguments
    "libbpf_set_print": (_PTR, _PTR),
    "libbpf_num_possible_cpus": (_INT,),
    "bpf_object__open_file": (_PTR, _TEXT, c.POINTER(OpenOptions)),
    "bpf_object__load": (_INT, _PTR),
    "bpf_object__close": (None, _PTR),
    "bpf_object__btf": (_PTR, _PTR),
    "btf__raw_data": (_PTR, _PTR, _COUNT),
    "bpf_object__find_program_by_name": (_PTR, _PTR, _TEXT),
    "bpf_program__fd": (_INT, _PTR),
    "bpf_object__find_map_by_name": (_PTR, _PTR, _TEXT),
    "bpf_map__fd": (_INT, _PTR),
    "bpf_map__reuse_fd": (_INT, _PTR, _INT),
    "bpf_program__attach": (_PTR, _PTR),
    "bpf_link__fd": (_INT, _PTR),
    "bpf_link__destroy": (_INT, _PTR),
    "bpf_link_get_fd_by_id": (_INT, _U32),
    "bpf_map__set_max_entries": (_INT, _PTR, _U32),
    "bpf_map__initial_value": (_PTR, _PTR, c.POINTER(_SIZE)),
    "bpf_map__set_initial_value": (_INT, _PTR, _PTR, _SIZE),
    "bpf_map_create": (_INT, _INT, _TEXT, _U32, _U32, _U32, c.POINTER(MapOptions)),
    "bpf_map_update_elem": (_INT, _INT, _PTR, _PTR, c.c_uint64),
    "bpf_map_lookup_elem_flags": (_INT, _INT, _PTR, _PTR, c.c_uint64),
    "bpf_map_delete_elem": (_INT, _INT, _PTR),
    "bpf_map_get_next_key": (_INT, _INT, _PTR, _PTR),
    "bpf_map_update_batch": (_INT, _INT, _PTR, _PTR, _COUNT, c.POINTER(BatchOptions)),
    "bpf_map_lookup_batch": (_INT, _INT, _PTR, _PTR, _PTR, _PTR, _COUNT, c.POINTER(BatchOptions)),
    "bpf_map_delete_batch": (_INT, _INT, _PTR, _COUNT, c.POINTER(BatchOptions)),
    "bpf_prog_get_fd_by_id": (_INT, _U32),
    "bpf_map_get_fd_by_id": (_INT, _U32),
    "bpf_btf_get_fd_by_id": (_INT, _U32),
    "bpf_obj_get_info_by_fd": (_INT, _INT, _PTR, _COUNT),
    "btf__load_vmlinux_btf": (_PTR,),
    "btf__free": (None, _PTR),
    "btf__find_by_name_kind": (c.c_int32, _PTR, _TEXT, _U32),
    "btf__type_by_id": (_PTR, _PTR, _U32),
    "btf__name_by_offset": (_TEXT, _PTR, _U32),
    "bpf_prog_load": (_INT, _INT, _TEXT, _TEXT, _PTR, _SIZE, _PTR),
    "bpf_prog_bind_map": (_INT, _INT, _INT, _PTR),
    "bpf_prog_attach": (_INT, _INT, _INT, _INT, _U32),
    "bpf_prog_detach2": (_INT, _INT, _INT, _INT),
    "bpf_prog_query": (_INT, _INT, _INT, _U32, _COUNT, _COUNT, _COUNT),
    "bpf_prog_test_run_opts": (_INT, _INT, c.POINTER(TestRunOptions)),
    "ring_buffer__new": (_PTR, _INT, SAMPLE, _PTR, _PTR),
    "ring_buffer__consume": (_INT, _PTR),
    "ring_buffer__epoll_fd": (_INT, _PTR),
    "ring_buffer__free": (None, _PTR),
}


class BpfError(DinnetError):
    """The kernel or libbpf refused something."""

    def __init__(self, what: str, code: int = 0) -> None:
        """`code` is the error number, 0 where there is none."""
        self.code = code
        why = f": {os.strerror(code)}" if code else ""
        super().__init__(f"{what}{why}{'; this needs root' if code == errno.EPERM else ''}")


@cache
def library() -> Any:
    """libbpf with typed functions.

    Raises:
        BpfError: It is not installed, or too old.
    """
    try:
        found = c.CDLL("libbpf.so.1", use_errno=True)
        for function, (result, *arguments) in _FUNCTIONS.items():
            bound = getattr(found, function)
            bound.restype, bound.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise BpfError(f"the switch needs libbpf 1.1 or newer, for example Debian's libbpf1 ({error})") from error
    found.libbpf_set_print(None)  # why a program was refused is in the verifier's log, which is asked for
    return found


def check(result: int | None, what: str) -> int:
    """The result, where it is no failure.

    Raises:
        BpfError: It is one.
    """
    if result is None or result < 0:
        raise BpfError(what, c.get_errno() or -(result or -errno.EINVAL))
    return result


def address(array: NDArray[Any]) -> c.c_void_p:
    """Where the array's bytes are."""
    return c.c_void_p(array.ctypes.data)


@cache
def possible_cpus() -> int:
    """How many values a per-CPU map has for each key."""
    return check(library().libbpf_num_possible_cpus(), "cannot count the CPUs")


def program_info(fd: int) -> tuple[ProgramInfo, list[int]]:
    """What the kernel tells of a program, and the numbers of the maps that it holds.

    Raises:
        BpfError: It does not tell.
    """
    info = ProgramInfo()
    size = _U32(c.sizeof(info))
    check(library().bpf_obj_get_info_by_fd(fd, c.byref(info), c.byref(size)), "cannot read about a BPF program")
    ids = np.zeros(info.map_count, np.uint32)
    info = ProgramInfo(map_count=len(ids), map_ids=ids.ctypes.data)
    size = _U32(c.sizeof(info))
    check(library().bpf_obj_get_info_by_fd(fd, c.byref(info), c.byref(size)), "cannot read about a BPF program")
    return info, ids[: info.map_count].tolist()


def map_info(fd: int) -> MapInfo:
    """What the kernel tells of a map.

    Raises:
        BpfError: It does not tell.
    """
    info = MapInfo()
    size = _U32(c.sizeof(info))
    check(library().bpf_obj_get_info_by_fd(fd, c.byref(info), c.byref(size)), "cannot read about a BPF map")
    return info
