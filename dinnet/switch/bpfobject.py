"""Object files, loaded programs with their maps, ring buffers, and test runs."""

from __future__ import annotations

import ctypes as c
import errno
import fcntl
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

from dinnet.switch.bpfmap import Map
from dinnet.switch.btf import Btf
from dinnet.switch.libbpf import (
    SAMPLE,
    BpfError,
    LinkInfo,
    OpenOptions,
    TestRunOptions,
    check,
    library,
    map_info,
    program_info,
)

_LOG_BYTES: Final = 1 << 20
_LOG_LINES: Final = 12
_NO_LAYOUT: Final = np.dtype("u4")


class Object:
    """An object file with programs and maps that can be loaded once."""

    def __init__(self, path: Path) -> None:
        """Open an object file.

        Raises:
            BpfError: There is none, or it is not one.
        """
        self._path = path
        self._log = c.create_string_buffer(_LOG_BYTES)
        options = OpenOptions(size=c.sizeof(OpenOptions), log=c.addressof(self._log), log_bytes=_LOG_BYTES)
        self._object = library().bpf_object__open_file(os.fsencode(path), c.byref(options))
        if not self._object:
            raise BpfError(f"{path}: cannot open it as a BPF object", c.get_errno())
        size = c.c_uint32()
        raw = library().btf__raw_data(library().bpf_object__btf(self._object), c.byref(size))
        self.btf = Btf(c.string_at(raw, size.value))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let go of it; what was taken from it stays."""
        if self._object:
            library().bpf_object__close(self._object)
            self._object = None

    def set_size(self, name: str, entries: int) -> None:
        """Set how many entries a map holds, before loading.

        Raises:
            BpfError: There is no such map.
        """
        check(library().bpf_map__set_max_entries(self._map(name), entries), f"cannot set the size of map {name}")

    def set_constants(self, values: Mapping[str, int]) -> None:
        """Set constants of the object's programs by name, before loading.

        Raises:
            BpfError: There is no such constant, or the value does not fit.
        """
        data = self._map(".rodata")
        size = c.c_size_t()
        raw = bytearray(c.string_at(library().bpf_map__initial_value(data, c.byref(size)), size.value))
        known = self.btf.variables(".rodata")
        for name, value in values.items():
            if name not in known:
                raise BpfError(f"{self._path}: has no constant {name}")
            offset, layout = known[name]
            try:
                encoded = np.array(value, layout).tobytes()
            except OverflowError as error:
                raise BpfError(f"{self._path}: constant {name} cannot be {value}") from error
            raw[offset : offset + len(encoded)] = encoded
        buffer = (c.c_char * len(raw)).from_buffer(raw)
        check(library().bpf_map__set_initial_value(data, buffer, len(raw)), "cannot set constants")

    def share(self, name: str, fd: int) -> None:
        """Have a map of the object be one that is in the kernel already, before loading.

        Raises:
            BpfError: There is no such map in the object, or it is another one.
        """
        check(library().bpf_map__reuse_fd(self._map(name), fd), f"cannot share map {name}")

    def load(self, name: str, *, hold: Sequence[str] = ()) -> Program:
        """Have the kernel verify and load everything; returns program `name` with its maps.

        Args:
            name: Of the program.
            hold: Maps that it does not use and that are to live as long as it does.

        Raises:
            BpfError: It refused; with the end of the verifier's log.
        """
        self.load_all()
        fd = fcntl.fcntl(library().bpf_program__fd(self._program(name)), fcntl.F_DUPFD_CLOEXEC, 0)
        try:
            for each in hold:
                check(
                    library().bpf_prog_bind_map(fd, library().bpf_map__fd(self._map(each)), None), f"cannot bind {each}"
                )
        except BaseException:
            os.close(fd)
            raise
        return Program(fd, self.btf)

    def load_all(self) -> None:
        """Have the kernel verify and load everything.

        Raises:
            BpfError: It refused; with the end of the verifier's log.
        """
        if library().bpf_object__load(self._object) < 0:
            code = c.get_errno()
            log = self._log.value.decode(errors="replace").strip().splitlines()[-_LOG_LINES:]
            error = BpfError(f"{self._path}: the kernel does not load it", code)
            raise BpfError("\n  ".join([str(error), *log]), 0) from None if log else error

    def attach(self, name: str) -> Link:
        """Have a loaded program run where its section says.

        Raises:
            BpfError: There is no such place in this kernel.
        """
        found = library().bpf_program__attach(self._program(name))
        if not found:
            raise BpfError(f"{self._path}: the kernel does not run {name}", c.get_errno())
        return Link(found)

    def _program(self, name: str) -> int:
        found: int | None = library().bpf_object__find_program_by_name(self._object, name.encode())
        if not found:
            raise BpfError(f"{self._path}: has no program {name}")
        return found

    def _map(self, name: str) -> int:
        found: int | None = library().bpf_object__find_map_by_name(self._object, name.encode())
        if not found:
            raise BpfError(f"{self._path}: has no map {name}")
        return found


class Link:
    """A program where it runs; it runs no more when this is closed or the process ends."""

    def __init__(self, handle: int) -> None:
        self._handle: int | None = handle

    @property
    def id(self) -> int:
        """The kernel's number for it.

        Raises:
            BpfError: The kernel does not tell.
        """
        info = LinkInfo()
        size = c.c_uint32(c.sizeof(info))
        fd = library().bpf_link__fd(self._handle)
        check(library().bpf_obj_get_info_by_fd(fd, c.byref(info), c.byref(size)), "cannot read about a BPF link")
        return int(info.id)

    def close(self) -> None:
        if self._handle is not None:
            library().bpf_link__destroy(self._handle)
            self._handle = None


def is_link(number: int) -> bool:
    """Whether there is a link of that number."""
    fd = library().bpf_link_get_fd_by_id(number)
    if fd < 0:
        return False
    os.close(fd)
    return True


class Program:
    """A loaded program and its maps, which live for as long as anything holds the program."""

    def __init__(self, fd: int, btf: Btf) -> None:
        """Take over a descriptor; `btf` is the object's that the program came from.

        Raises:
            BpfError: The kernel does not give the maps.
        """
        self.fd = fd
        self.btf = btf
        self.maps: dict[str, Map] = {}
        self.constants: dict[str, int] = {}
        info, map_ids = program_info(fd)
        self.id: int = info.id
        self.name: str = info.name.decode()
        try:
            for number in map_ids:
                self._take(check(library().bpf_map_get_fd_by_id(number), "cannot get a map of a program"))
        except BaseException:
            self.close()
            raise

    @classmethod
    def by_id(cls, number: int, btf: Btf) -> Program:
        """The loaded program with that number.

        Raises:
            BpfError: There is none, or it is of another version.
        """
        return cls(check(library().bpf_prog_get_fd_by_id(number), f"cannot get BPF program {number}"), btf)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let go of program and maps; an attached program stays."""
        for each in self.maps.values():
            each.close()
        self.maps.clear()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def bind(self, new: Map) -> None:
        """Have the program hold a map that it does not use, so that the map lives as long as the program.

        Raises:
            BpfError: The kernel refused.
        """
        check(library().bpf_prog_bind_map(self.fd, new.fd, None), f"cannot bind map {new.name}")
        self.maps[new.name] = new

    def _take(self, fd: int) -> None:
        info = map_info(fd)
        name = info.name.decode()
        if name.endswith(".rodata"):
            data = Map(fd, _NO_LAYOUT, np.dtype((np.void, info.value_bytes)))
            raw = data.get(np.zeros(1, _NO_LAYOUT))[0].tobytes()
            data.close()
            for variable, (offset, layout) in self.btf.variables(".rodata").items():
                self.constants[variable] = int(np.frombuffer(raw, layout, 1, offset)[0])
            return
        layouts = self.btf.map_layout(name)
        if layouts is None:
            layouts = np.dtype((np.void, info.key_bytes)), np.dtype((np.void, info.value_bytes))
            if info.key_bytes == 4:
                layouts = _NO_LAYOUT, layouts[1]
            if info.value_bytes == 4:
                layouts = layouts[0], _NO_LAYOUT
        self.maps[name] = Map(fd, *layouts)


class RingBuffer:
    """Events of a program, in the order in which they were made."""

    def __init__(self, fd: int, consume: Callable[[bytes], None]) -> None:
        """`consume` is called with each event's bytes, from `poll`.

        Raises:
            BpfError: The map is no ring buffer.
        """
        self._consume = consume
        self._failure: BaseException | None = None
        self._count = self._limit = 0
        self._sample = SAMPLE(self._take)
        self._ring = library().ring_buffer__new(fd, self._sample, None, None)
        if not self._ring:
            raise BpfError("cannot read the ring buffer", c.get_errno())

    def _take(self, context: int, data: int, size: int) -> int:
        try:
            self._consume(c.string_at(data, size))
        except BaseException as error:  # noqa: BLE001 - C cannot pass it on; `poll` raises it
            self._failure = error
            return -errno.ECANCELED
        self._count += 1
        return -errno.EAGAIN if self._count == self._limit else 0

    @property
    def epoll_fd(self) -> int:
        """Becomes readable when there are events."""
        return int(library().ring_buffer__epoll_fd(self._ring))

    def poll(self, limit: int = 0) -> int:
        """Consume what there is, or `limit` events of it; returns how many events that was.

        Raises:
            BaseException: What `consume` raised.
        """
        self._count, self._limit = 0, limit
        code = library().ring_buffer__consume(self._ring)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if code != -errno.EAGAIN:
            check(code, "cannot read the ring buffer")
        return self._count

    def close(self) -> None:
        """Free it; the events stay in the map."""
        if self._ring:
            library().ring_buffer__free(self._ring)
            self._ring = None


class Skb(c.Structure):
    """struct __sk_buff of linux/bpf.h, as far as test runs use it."""

    _fields_ = (
        *((name, c.c_uint32) for name in (
            "len", "pkt_type", "mark", "queue_mapping", "protocol", "vlan_present", "vlan_tci", "vlan_proto",
            "priority", "ingress_ifindex", "ifindex", "tc_index",
        )),
        ("cb", c.c_uint32 * 5),
        *((name, c.c_uint32) for name in (
            "hash", "tc_classid", "data", "data_end", "napi_id", "family", "remote_ip4", "local_ip4",
        )),
        ("remote_ip6", c.c_uint32 * 4), ("local_ip6", c.c_uint32 * 4),
        *((name, c.c_uint32) for name in ("remote_port", "local_port", "data_meta")),
        ("flow_keys", c.c_uint64), ("tstamp", c.c_uint64), ("wire_len", c.c_uint32), ("gso_segs", c.c_uint32),
        ("sk", c.c_uint64), ("gso_size", c.c_uint32), ("tstamp_type", c.c_uint8), ("pad", c.c_uint8 * 3),
        ("hwtstamp", c.c_uint64),
    )  # fmt: skip


@dataclass(frozen=True)
class Ran:
    """What a test run left: the program's answer, the packet, and its context."""

    answer: int
    packet: bytes
    skb: Any  # a Skb
    duration_ns: int  # of one repetition


def test_run(fd: int, packet: bytes, *, ifindex: int = 1, time_ns: int = 0, repeat: int = 1, gso_size: int = 0) -> Ran:
    """Run a tc program on a packet as if it had come in on an interface of the calling thread's namespace.

    What the program redirects goes nowhere; what it clones is sent. With `gso_size` the packet stands for segments with
    that much payload, as offloads hand them over.

    Raises:
        BpfError: The kernel refused: fewer than 14 bytes, no such interface.
    """
    before, after = Skb(ifindex=ifindex, tstamp=time_ns, gso_size=gso_size), Skb()
    given = c.create_string_buffer(packet, len(packet))
    room = c.create_string_buffer(len(packet) + 256)
    options = TestRunOptions(
        size=c.sizeof(TestRunOptions), data_in=c.addressof(given), data_size_in=len(packet),
        data_out=c.addressof(room), data_size_out=len(room), ctx_in=c.addressof(before), ctx_size_in=c.sizeof(before),
        ctx_out=c.addressof(after), ctx_size_out=c.sizeof(after), repeat=repeat,
    )  # fmt: skip
    check(library().bpf_prog_test_run_opts(fd, c.byref(options)), "cannot run the program on a packet")
    return Ran(options.retval, room.raw[: options.data_size_out], after, options.duration)


test_run.__test__ = False  # type: ignore[attr-defined]  # no test of pytest's
