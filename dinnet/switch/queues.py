"""Queue telemetry: the programs at the kernel's qdisc tracepoints, and what they counted.

Without a BPF file system nothing but an open descriptor keeps a tracing program running, so measuring ends with the
process that began it. What was counted stays with the switch's program and goes on when a next server measures; what
waited in between is unknown, so backlogs begin at zero again.
"""

from __future__ import annotations

import contextlib
import ctypes as c
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from dinnet.netns import inside
from dinnet.switch.bpfobject import Object, is_link
from dinnet.switch.build import QUEUES_OBJECT
from dinnet.switch.contract import Cell
from dinnet.switch.datapath import QUEUE_TABLES, Datapath
from dinnet.switch.libbpf import BpfError, library
from dinnet.switch.residence import percentile_ns

_BTF: Final = Path("/sys/kernel/btf/vmlinux")
_SHARED: Final = ("ingress_port", "int_sequence", "int_events", "events", "queue_note", *QUEUE_TABLES)
_PROGRAMS: Final = ("freed", "dequeued", "enqueued")
_REASON_PREFIX: Final = "SKB_DROP_REASON_"
_ENUM: Final = 6


class Miss(IntEnum):
    """enum queue_miss: why packets were not measured."""

    NO_ROOM = 0
    LOCKLESS = 1
    CUT = 2
    VANISHED = 3


@dataclass(frozen=True)
class Queue:
    """A class of a port's queue: counts since the switch came into force.

    Backlogs, what was found, and drops count packets before GSO cuts them, as tc does.
    """

    port: int
    classid: int  # skb->priority; 0: it names no class, and the qdisc decides
    mark: tuple[int, int] | None  # slice and traffic class, where the class is one mark's alone
    enqueued: Cell
    sent: Cell
    drops: Cell
    drop_reasons: dict[str, int]  # the kernel's names -> packets
    backlog: Cell
    backlog_max: Cell
    found: Cell  # sums of the backlog that packets found when they came
    timed: int  # packets whose residence was taken
    residence_sum_ns: int
    residence_max_ns: int
    residence_p50_ns: float | None
    residence_p99_ns: float | None


@contextlib.contextmanager
def measuring(datapath: Datapath, namespace: str | None = None) -> Iterator[None]:
    """Measure the queues of a switch's ports until the block ends.

    Args:
        datapath: The switch's.
        namespace: That of its interfaces; None: the calling thread's.

    Raises:
        BpfError: This kernel cannot, with the reason.
    """
    if not _BTF.exists():
        raise BpfError(f"this kernel has no type information ({_BTF})")
    with inside(namespace) if namespace else contextlib.nullcontext():
        inode = Path("/proc/thread-self/ns/net").stat().st_ino
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(Object(QUEUES_OBJECT))
        for name in _SHARED:
            source.share(name, datapath.table(name).fd)
        source.set_constants({"netns_inode": inode})
        source.load_all()
        _forget_backlogs(datapath)
        # Leaving comes first, so that nothing is seen to come in that is not seen to leave.
        for name in _PROGRAMS:
            link = source.attach(name)
            stack.callback(link.close)
        datapath.table("queue_link").put(np.zeros(1), np.array([link.id]))
        yield


def is_measuring(datapath: Datapath) -> bool:
    """Whether some process measures the queues at the moment."""
    number = int(datapath.table("queue_link").get(np.zeros(1))[0][0])
    return bool(number) and is_link(number)


def read(datapath: Datapath) -> list[Queue]:
    """What was counted, by port and class."""
    ports = {port.ifindex: port.number for port in datapath.ports()}
    marks = _marks(datapath)
    reasons: dict[tuple[int, int], dict[str, int]] = {}
    for key, cell in zip(*datapath.table("queue_drops").all(), strict=True):
        at = int(key["ifindex"]), int(key["classid"])
        reasons.setdefault(at, {})[drop_reason(int(key["reason"]))] = int(cell["packets"])
    found = []
    for key, row in zip(*datapath.table("queues").all(), strict=True):
        ifindex, classid = int(key["ifindex"]), int(key["classid"])
        if ifindex in ports:
            found.append(_queue(ports[ifindex], classid, marks.get(classid), row, reasons.get((ifindex, classid), {})))
    return sorted(found, key=lambda queue: (queue.port, queue.classid))


def misses(datapath: Datapath) -> dict[Miss, Cell]:
    """What was not measured, by reason."""
    cells = datapath.counters("queue_misses")
    return {miss: Cell(int(cells[miss]["packets"]), int(cells[miss]["bytes"])) for miss in Miss}


def class_name(classid: int) -> str:
    """As tc writes it."""
    return f"{classid >> 16:x}:{classid & 0xFFFF:x}" if classid else "default"


@cache
def _drop_reasons() -> dict[int, str]:
    """The running kernel's own names for why packets are dropped; empty where it does not tell."""
    btf = library().btf__load_vmlinux_btf()
    if not btf:
        return {}
    try:
        number = library().btf__find_by_name_kind(btf, b"skb_drop_reason", _ENUM)
        if number <= 0:
            return {}
        head = library().btf__type_by_id(btf, number)
        _, info, _ = struct.unpack("<III", c.string_at(head, 12))
        members = struct.iter_unpack("<Ii", c.string_at(head + 12, 8 * (info & 0xFFFF)))
        names = {value: library().btf__name_by_offset(btf, at).decode() for at, value in members}
        return {value: name.removeprefix(_REASON_PREFIX).lower() for value, name in names.items()}
    finally:
        library().btf__free(btf)


def drop_reason(number: int) -> str:
    """The kernel's name for a reason."""
    return _drop_reasons().get(number, str(number))


def _marks(datapath: Datapath) -> dict[int, tuple[int, int]]:
    """The mark of each class that has exactly one."""
    keys, queues = datapath.table("queue_of_mark").all()
    classes, counts = np.unique(queues, return_counts=True)
    single = set(classes[counts == 1].tolist())
    return {
        int(queue): (int(mark) >> 2, int(mark) & 3) for mark, queue in zip(keys, queues, strict=True) if queue in single
    }


def _queue(port: int, classid: int, mark: tuple[int, int] | None, row: Any, reasons: dict[str, int]) -> Queue:
    def cell(packets: str, size: str) -> Cell:
        return Cell(int(row[packets]), int(row[size]))

    return Queue(
        port=port,
        classid=classid,
        mark=mark,
        enqueued=cell("enqueued_packets", "enqueued_bytes"),
        sent=cell("packets", "bytes"),
        drops=cell("drops", "drop_bytes"),
        drop_reasons=reasons,
        backlog=cell("backlog_packets", "backlog_bytes"),
        backlog_max=cell("backlog_max_packets", "backlog_max_bytes"),
        found=cell("found_packets", "found_bytes"),
        timed=int(row["timed"]),
        residence_sum_ns=int(row["residence_sum_ns"]),
        residence_max_ns=int(row["residence_max_ns"]),
        residence_p50_ns=_percentile(row, 0.5),
        residence_p99_ns=_percentile(row, 0.99),
    )


def _percentile(row: Any, share: float) -> float | None:
    """Not above the longest: the step that this lies in reaches further."""
    found = percentile_ns(row["residence"], share)
    return None if found is None else min(found, float(row["residence_max_ns"]))


def _forget_backlogs(datapath: Datapath) -> None:
    table = datapath.table("queues")
    keys, rows = table.all()
    rows["backlog_packets"] = rows["backlog_bytes"] = 0
    table.put(keys, rows)
