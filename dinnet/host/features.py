"""What this kernel can do for slices, found out by trying, in a network namespace that nobody else sees."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from dinnet.errors import DinnetError
from dinnet.host import wire
from dinnet.host.objects import Filter, HtbClass, Leaf, Protocol, Root, leaf_handle
from dinnet.host.state import ROOT_HANDLE, class_id

_CLONE_NEWNET: Final = 0x40000000
_LOOPBACK: Final = 1  # the one interface of a new namespace
_ANY_TICKS: Final = 15_625


@dataclass(frozen=True, slots=True)
class Features:
    """Parts of the kernel that are there."""

    htb: bool
    fq_codel: bool
    flower: bool
    u32: bool
    macsec: bool
    seg6: bool


@functools.cache
def features() -> Features:
    """Try each part once in this process; the machine's own network is not touched.

    Raises:
        DinnetError: No right to make a network namespace.
    """
    found: list[Features | BaseException] = []

    def work() -> None:
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.unshare(_CLONE_NEWNET) != 0:  # this thread's alone, and gone when it ends
                raise DinnetError(f"slices on a host need root: {os.strerror(ctypes.get_errno())}")
            found.append(_probe())
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            found.append(error)

    thread = threading.Thread(target=work, name="dinnet-features")
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def _probe() -> Features:
    from pyroute2 import IPRoute

    with IPRoute() as ip:
        ip.register_policy(wire.MESSAGES)
        ip.link("set", index=_LOOPBACK, state="up")
        number = class_id(0, 0)
        one = HtbClass(number, ROOT_HANDLE, 125_000, 125_000, _ANY_TICKS, _ANY_TICKS, 1_514)
        return Features(
            htb=_works(lambda: wire.add(ip, _LOOPBACK, Root())) and _works(lambda: wire.add(ip, _LOOPBACK, one)),
            fq_codel=_works(lambda: wire.add(ip, _LOOPBACK, Leaf(leaf_handle(number), number, "fq_codel"))),
            flower=_works(lambda: wire.add(ip, _LOOPBACK, Filter("flower", Protocol.ARP, 1, 1, number))),
            u32=_works(lambda: wire.add(ip, _LOOPBACK, Filter("u32", Protocol.ARP, 2, 1, number))),
            macsec=_known(lambda: ip.link("add", ifname="probe", kind="macsec", link=_LOOPBACK)),
            seg6=_known(lambda: _route(ip)),
        )


def _route(ip: Any) -> None:
    encap = {"type": "seg6", "mode": "encap", "segs": "fd00::1"}
    ip.route("add", dst="fd00:1::/64", oif=_LOOPBACK, encap=encap)


def _works(action: Callable[[], object]) -> bool:
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        action()
    except NetlinkError:
        return False
    return True


def _known(action: Callable[[], object]) -> bool:
    """Whether the kernel knows what is asked for, even if it does not do it on a loopback interface."""
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        action()
    except NetlinkError as error:
        return int(error.code) != errno.EOPNOTSUPP
    return True
