"""Traffic control messages of rtnetlink (linux/rtnetlink.h, pkt_sched.h, pkt_cls.h).

pyroute2 moves the messages; their options are made here, for it has no flower, and leaves a rate's link layer and a
burst's rounding to guesses.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

from pyroute2.netlink import NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST, nlmsg
from pyroute2.netlink.rtnl import (
    RTM_DELQDISC,
    RTM_DELTCLASS,
    RTM_DELTFILTER,
    RTM_GETQDISC,
    RTM_GETTCLASS,
    RTM_GETTFILTER,
    RTM_NEWQDISC,
    RTM_NEWTCLASS,
    RTM_NEWTFILTER,
)

from dinnet.host.objects import R2Q_SIGNATURE, Filter, HtbClass, Leaf, Object, Protocol, Root
from dinnet.host.state import ROOT_HANDLE

ROOT_PARENT: Final = 0xFFFF_FFFF
_ETHERNET: Final = 1  # the link layer of a rate; 0 has the kernel guess
_U32_MAX: Final = 0xFFFF_FFFF
_RATE: Final = struct.Struct("=BBHhHI")  # tc_ratespec: cell_log, linklayer, overhead, cell_align, mpu, rate
_CLASS_REST: Final = struct.Struct("=IIIII")  # tc_htb_opt: buffer, cbuffer, quantum, level, prio
#: Classes with classes in them send nothing themselves; a quantum keeps the kernel from warning about its own.
_NO_TURN: Final = 1_514
_FQ_TARGET, _FQ_LIMIT, _FQ_INTERVAL, _FQ_ECN = 1, 2, 3, 4
_FLOWER_CLASSID, _FLOWER_ETH_TYPE, _FLOWER_TOS, _FLOWER_TOS_MASK = 1, 8, 73, 74
_U32_CLASSID, _U32_SEL = 1, 5
_DSCP_BITS: Final = 0xFC


class TcMessage(nlmsg):  # type: ignore[misc]
    """struct tcmsg, with options and statistics as the bytes they are."""

    prefix = "TCA_"
    fields = (
        ("family", "B"), ("pad1", "B"), ("pad2", "H"), ("index", "i"), ("handle", "I"), ("parent", "I"), ("info", "I"),
    )  # fmt: skip
    nla_map = (
        ("TCA_UNSPEC", "none"),
        ("TCA_KIND", "asciiz"),
        ("TCA_OPTIONS", "cdata"),
        ("TCA_STATS", "cdata"),
        ("TCA_XSTATS", "cdata"),
        ("TCA_RATE", "cdata"),
        ("TCA_FCNT", "cdata"),
        ("TCA_STATS2", "cdata"),
        ("TCA_STAB", "cdata"),
    )


MESSAGES: Final = dict.fromkeys((RTM_NEWQDISC, RTM_NEWTCLASS, RTM_NEWTFILTER), TcMessage)
_TYPES: Final = {
    Root: (RTM_NEWQDISC, RTM_DELQDISC),
    Leaf: (RTM_NEWQDISC, RTM_DELQDISC),
    HtbClass: (RTM_NEWTCLASS, RTM_DELTCLASS),
    Filter: (RTM_NEWTFILTER, RTM_DELTFILTER),
}


def attribute(number: int, payload: bytes) -> bytes:
    """A netlink attribute."""
    return struct.pack("=HH", 4 + len(payload), number) + payload + bytes(-len(payload) % 4)


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The reverse of some of them in a row."""
    while len(data) >= 4:
        length, number = struct.unpack_from("=HH", data)
        if length < 4:
            return
        yield number & 0x3FFF, data[4:length]
        data = data[length + 3 & ~3 :]


def dump(ip: Any, what: str, index: int = 0, parent: int = 0) -> list[Any]:
    """All qdiscs, or classes or filters of an interface."""
    kind = {"qdisc": RTM_GETQDISC, "class": RTM_GETTCLASS, "filter": RTM_GETTFILTER}[what]
    message = TcMessage()
    message["index"], message["parent"] = index, parent
    return _exchange(ip, kind, NLM_F_REQUEST | NLM_F_DUMP, message)


def add(ip: Any, index: int, what: Object) -> None:
    """Make something that is not there yet."""
    _send(ip, _TYPES[type(what)][0], NLM_F_CREATE | NLM_F_EXCL, _message(index, what))


def change(ip: Any, index: int, what: Object) -> None:
    """Change something in place; packets in it stay."""
    _send(ip, _TYPES[type(what)][0], 0, _message(index, what))


def delete(ip: Any, index: int, what: Object) -> None:
    """Take something away, and all that is in it."""
    message = _message(index, what)
    message["attrs"] = message["attrs"][:1]
    _send(ip, _TYPES[type(what)][1], 0, message)


def delete_qdisc(ip: Any, index: int, number: int, parent: int = ROOT_PARENT) -> None:
    """Take a queueing discipline away, whoever made it."""
    message = TcMessage()
    message["index"], message["handle"], message["parent"] = index, number, parent
    _send(ip, RTM_DELQDISC, 0, message)


def _send(ip: Any, kind: int, flags: int, message: TcMessage) -> None:
    _exchange(ip, kind, NLM_F_REQUEST | NLM_F_ACK | flags, message)


def _exchange(ip: Any, kind: int, flags: int, message: TcMessage) -> list[Any]:
    message["header"]["type"], message["header"]["flags"] = kind, flags
    return list(ip.nlm_request_batch([message]))


def _message(index: int, what: Object) -> TcMessage:
    message = TcMessage()
    message["index"] = index
    kind, options = _options(what)
    if isinstance(what, Root):
        message["handle"], message["parent"] = ROOT_HANDLE, ROOT_PARENT
    elif isinstance(what, HtbClass):
        message["handle"], message["parent"] = what.number, what.parent
    elif isinstance(what, Leaf):
        message["handle"], message["parent"] = what.handle, what.parent
    else:
        message["handle"], message["parent"] = what.handle, ROOT_HANDLE
        message["info"] = what.priority << 16 | struct.unpack("=H", struct.pack(">H", what.protocol))[0]
    message["attrs"] = [("TCA_KIND", kind), ("TCA_OPTIONS", options)]
    return message


def _options(what: Object) -> tuple[str, bytes]:
    if isinstance(what, Root):
        return "htb", attribute(2, struct.pack("=IIIII", 3, R2Q_SIGNATURE, what.default, 0, 0))  # tc_htb_glob
    if isinstance(what, HtbClass):
        rates = b"".join(
            _RATE.pack(0, _ETHERNET, what.overhead, -1, 0, min(rate, _U32_MAX)) for rate in (what.rate, what.ceil)
        )
        data = attribute(
            1, rates + _CLASS_REST.pack(what.burst, what.cburst, what.quantum or _NO_TURN, 0, what.priority)
        )
        for number, rate in ((6, what.rate), (7, what.ceil)):
            if rate >= 1 << 32:
                data += attribute(number, struct.pack("=Q", rate))
        return "htb", data
    if isinstance(what, Leaf):
        if what.kind == "bfifo":
            return "bfifo", struct.pack("=I", what.limit)
        # Times are rounded down to units of 1,024 ns: a microsecond more, and what was read back stays what it is.
        pairs = ((_FQ_TARGET, what.target_us + 1), (_FQ_INTERVAL, what.interval_us + 1), (_FQ_ECN, 1))
        return what.kind, b"".join(attribute(number, struct.pack("=I", value)) for number, value in pairs)
    return what.kind, _flower(what) if what.kind == "flower" else _u32(what)


def _flower(what: Filter) -> bytes:
    data = attribute(_FLOWER_CLASSID, struct.pack("=I", what.target))
    if what.protocol is not Protocol.ALL:
        data += attribute(_FLOWER_ETH_TYPE, struct.pack(">H", what.protocol))
    if what.dscp is not None:
        data += attribute(_FLOWER_TOS, bytes([what.dscp << 2])) + attribute(_FLOWER_TOS_MASK, bytes([_DSCP_BITS]))
    return data


def _u32(what: Filter) -> bytes:
    value = mask = 0
    if what.dscp is not None:
        # The first word of the header: version and length, then the type of service; in IPv6 it is the traffic class,
        # four bits earlier.
        shift = 20 if what.protocol is Protocol.IPV6 else 16
        value, mask = what.dscp << 2 << shift, _DSCP_BITS << shift
    selector = struct.pack("=BBBxHHhhI", 1, 0, 1, 0, 0, 0, 0, 0) + struct.pack(">II", mask, value) + bytes(8)
    return attribute(_U32_CLASSID, struct.pack("=I", what.target)) + attribute(_U32_SEL, selector)


def read_root(message: Any) -> Root | None:
    """The root qdisc that dinnet made; None where somebody else did."""
    if message["handle"] != ROOT_HANDLE or message.get_attr("TCA_KIND") != "htb":
        return None
    for number, data in attributes(message.get_attr("TCA_OPTIONS") or b""):
        if number == 2:
            _, r2q, default, _, _ = struct.unpack_from("=IIIII", data)
            return Root(default) if r2q == R2Q_SIGNATURE else None
    return None


def read_class(message: Any) -> HtbClass | None:
    """A class of HTB."""
    found = dict(attributes(message.get_attr("TCA_OPTIONS") or b""))
    if 1 not in found:
        return None
    data = found[1]
    _, _, overhead, _, _, rate = _RATE.unpack_from(data)
    ceil = _RATE.unpack_from(data, _RATE.size)[5]
    burst, cburst, turn, _, priority = _CLASS_REST.unpack_from(data, 2 * _RATE.size)
    rate, ceil = (
        struct.unpack("=Q", found[number])[0] if number in found else low for number, low in ((6, rate), (7, ceil))
    )
    parent = message["parent"] if message["parent"] != ROOT_PARENT else ROOT_HANDLE
    return HtbClass(message["handle"], parent, rate, ceil, burst, cburst, turn, priority, overhead)


def read_leaf(message: Any) -> Leaf:
    """A qdisc in a class; of kinds that dinnet does not make, the kind only."""
    kind = message.get_attr("TCA_KIND")
    options = message.get_attr("TCA_OPTIONS") or b""
    common = message["handle"], message["parent"], kind
    if kind == "bfifo" and len(options) >= 4:
        return Leaf(*common, limit=struct.unpack_from("=I", options)[0])
    if kind == "fq_codel":
        found = {number: struct.unpack("=I", data)[0] for number, data in attributes(options) if len(data) == 4}
        target, interval = found.get(_FQ_TARGET, 0), found.get(_FQ_INTERVAL, 0)
        return Leaf(*common, target_us=target, interval_us=interval)
    return Leaf(*common)


def read_filter(message: Any) -> Filter | None:
    """A filter; None for a mere list of them, and for protocols that dinnet has no filters for."""
    kind, info = message.get_attr("TCA_KIND"), message["info"]
    protocol = struct.unpack(">H", struct.pack("=H", info & 0xFFFF))[0]
    options = dict(attributes(message.get_attr("TCA_OPTIONS") or b""))
    if not message["handle"] or (kind == "u32" and not message["handle"] & 0xFFF):
        return None
    if protocol not in list(Protocol):
        return None
    target = struct.unpack("=I", options[1])[0] if 1 in options and len(options[1]) == 4 else 0
    return Filter(kind, Protocol(protocol), info >> 16, message["handle"], target)


def priority_of(message: Any) -> int:
    """The priority (tc: pref) of any filter."""
    return int(message["info"] >> 16)


def statistics(message: Any) -> dict[str, int]:
    """Counters of a class or qdisc, by the kernel's names (linux/gen_stats.h); HTB's own among them."""
    found = {"bytes": 0, "packets": 0, "qlen": 0, "backlog": 0, "drops": 0, "overlimits": 0, "borrows": 0}
    for number, data in attributes(message.get_attr("TCA_STATS2") or b""):
        if number == 1:
            found["bytes"], low = struct.unpack_from("=QI", data)
            found["packets"] = max(found["packets"], low)
        elif number == 3:
            names = ("qlen", "backlog", "drops", "requeues", "overlimits")
            found.update(zip(names, struct.unpack_from("=IIIII", data), strict=True))
        elif number == 4 and message["header"]["type"] == RTM_NEWTCLASS and len(data) >= 8:
            found["borrows"] = struct.unpack_from("=II", data)[1]
        elif number == 8:  # where the number of packets needs more than 32 bits
            found["packets"] = max(found["packets"], struct.unpack_from("=Q", data)[0])
    return found
