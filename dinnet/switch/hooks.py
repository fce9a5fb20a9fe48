"""Where the program sits on an interface's ingress: at tcx from Linux 6.6 on, else as a filter of its clsact.

tcx calls the program without the machinery of classifiers, which takes a tenth of the time that a forwarded packet
takes. Either place holds the program until it is taken away or the interface goes, whoever put it there and however
that process ended.
"""

from __future__ import annotations

import ctypes as c
import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from dinnet.switch.libbpf import BpfError, check, library, map_info, program_info

#: The program's name, and a map that it has in every version.
PROGRAM: Final = "ingress"
_MAP: Final = "microflow"
INGRESS: Final = 0xFFFFFFF2
_EGRESS: Final = 0xFFFFFFF3
_HANDLE: Final = 0xD1
_PRIORITY: Final = 0xD1
#: A filter's name: program number, and whether the clsact was made for it.
_NAME: Final = re.compile(r"dinnet-switch/(\d+)/(clsact|filter)")
_TCX_INGRESS: Final = 46  # enum bpf_attach_type
_MOST: Final = 64  # programs at one hook, the kernel's own limit


class Hook(StrEnum):
    """How a program is attached."""

    TCX = "tcx"
    FILTER = "filter"
    OWN_CLSACT = "clsact"  # a filter, and the clsact was made for it


@dataclass(frozen=True)
class Attached:
    """A switch that was found on an interface."""

    interface: str
    ifindex: int
    program_id: int
    hook: Hook


def find(ip: Any) -> list[Attached]:
    """Where switches are in force, in the calling thread's namespace, which is that of the netlink socket."""
    found = []
    for link in ip.get_links():
        interface, index = link.get_attr("IFLA_IFNAME"), link["index"]
        found += [Attached(interface, index, number, Hook.TCX) for number in _at_tcx(index) if _is_switch(number)]
        found += [Attached(interface, index, number, hook) for number, hook in _filters(ip, index)]
    return found


def attach(ip: Any, index: int, fd: int, program_id: int) -> None:
    """Put a program onto an interface's ingress, behind what is there already.

    Raises:
        BpfError: The kernel refused.
    """
    if not attach_tcx(index, fd):
        _attach_filter(ip, index, fd, program_id)


def detach(ip: Any, each: Attached) -> None:
    """Take a program away, and the clsact where it was made for it and nobody else uses it by now."""
    if each.hook is Hook.TCX:
        fd = check(library().bpf_prog_get_fd_by_id(each.program_id), f"cannot get BPF program {each.program_id}")
        try:
            what = f"cannot take the switch away from {each.interface}"
            check(library().bpf_prog_detach2(fd, each.ifindex, _TCX_INGRESS), what)
        finally:
            os.close(fd)
        return
    ip.tc("del-filter", "bpf", each.ifindex, _HANDLE, parent=INGRESS, prio=_PRIORITY)
    if each.hook is Hook.OWN_CLSACT and not any(
        list(ip.get_filters(each.ifindex, parent=parent)) for parent in (INGRESS, _EGRESS)
    ):
        ip.tc("del", "clsact", each.ifindex)


def attach_tcx(index: int, fd: int) -> bool:
    """Whether the kernel has tcx; then the program is there.

    Raises:
        BpfError: It has, and refused.
    """
    if library().bpf_prog_attach(fd, index, _TCX_INGRESS, 0) == 0:
        return True
    code = c.get_errno()
    if code == errno.EINVAL:
        return False
    raise BpfError("cannot attach the switch to an interface", code)


def _at_tcx(index: int) -> list[int]:
    numbers, count, flags = (c.c_uint32 * _MOST)(), c.c_uint32(_MOST), c.c_uint32()
    if library().bpf_prog_query(index, _TCX_INGRESS, 0, c.byref(flags), numbers, c.byref(count)) == 0:
        return list(numbers[: count.value])
    code = c.get_errno()
    if code in (errno.EINVAL, errno.ENOENT, errno.ENODEV):  # a kernel without tcx, no program, no such interface now
        return []
    raise BpfError(f"cannot see which programs are on interface {index}", code)


def _is_switch(program_id: int) -> bool:
    fd = library().bpf_prog_get_fd_by_id(program_id)
    if fd < 0:
        return False  # it has gone
    try:
        info, maps = program_info(fd)
        return info.name == PROGRAM.encode() and _MAP.encode() in _map_names(maps)
    finally:
        os.close(fd)


def _map_names(numbers: list[int]) -> Iterator[bytes]:
    for number in numbers:
        fd = library().bpf_map_get_fd_by_id(number)
        if fd >= 0:
            try:
                yield map_info(fd).name
            finally:
                os.close(fd)


def _filters(ip: Any, index: int) -> Iterator[tuple[int, Hook]]:
    for message in ip.get_filters(index, parent=INGRESS):
        options = message.get_attr("TCA_OPTIONS")
        name = options.get_attr("TCA_BPF_NAME") if options and message.get_attr("TCA_KIND") == "bpf" else None
        if match := _NAME.fullmatch(name or ""):
            yield int(match[1]), Hook(match[2])


def _attach_filter(ip: Any, index: int, fd: int, program_id: int) -> None:
    has_clsact = any(
        qdisc["index"] == index and qdisc.get_attr("TCA_KIND") == "clsact" for qdisc in ip.get_qdiscs(index)
    )
    if not has_clsact:
        ip.tc("add", "clsact", index)
    try:
        ip.tc(
            "add-filter", "bpf", index, _HANDLE, fd=fd, parent=INGRESS, prio=_PRIORITY, direct_action=True,
            name=f"dinnet-switch/{program_id}/{Hook.FILTER if has_clsact else Hook.OWN_CLSACT}",
        )  # fmt: skip
    except BaseException:
        if not has_clsact:
            ip.tc("del", "clsact", index)
        raise
