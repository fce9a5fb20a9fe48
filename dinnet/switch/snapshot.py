"""What a switch that is in force does, read from the kernel beside whoever drives it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from dinnet.errors import DinnetError
from dinnet.flows.record import End, format_address
from dinnet.switch.attach import attached, interface_counts
from dinnet.switch.contract import SLICES, Cell
from dinnet.switch.datapath import Datapath
from dinnet.switch.queues import Queue, class_name, is_measuring, misses
from dinnet.switch.queues import read as read_queues

COLOURS: Final = ("green", "yellow", "red")
_EXCEED: Final = ("degraded", "rerouted", "dropped")
_BUCKETS: Final = {1: "micro-flow", 2: "slice"}


@dataclass(frozen=True)
class PortCounts:
    """A port and its interface's own counters."""

    number: int
    interface: str
    trusted: bool
    flow_labels: bool
    rx: Cell
    tx: Cell
    tx_dropped: int  # by the interface's queue


@dataclass(frozen=True)
class Snapshot:
    """Counters since the switch came into force, at one moment."""

    at_s: float  # monotonic
    ports: tuple[PortCounts, ...]
    parsed: dict[str, Cell]
    drops: dict[str, Cell]
    marks: dict[tuple[int, int, str], Cell]  # slice, traffic class, colour; only those with packets
    exceeded: dict[tuple[int, str, str], Cell]  # slice, whose bucket, what was done; only those with packets
    entries: dict[str, int]
    flows: int  # records under way
    collisions: Cell  # packets in no flow record for want of room
    lost_records: int
    lost_packet_ins: int
    queues: tuple[Queue, ...]  # by port and class
    queue_misses: dict[str, Cell]  # what was not measured
    measuring: bool  # the queues, at this moment


@contextmanager
def opened(namespace: str | None = None) -> Iterator[Datapath]:
    """The switch in force in a namespace, to be read.

    Raises:
        DinnetError: There is none, there are several, or it is another version's.
    """
    programs = {each.program_id for each in attached(namespace)}
    where = f" in network namespace {namespace}" if namespace else ""
    if not programs:
        raise DinnetError(f"no dinnet switch is in force{where}; `dinnet switch up -c FILE` starts one")
    if len(programs) > 1:
        raise DinnetError(f"several switches are in force{where}; give each a network namespace of its own")
    with Datapath.adopt(programs.pop()) as datapath:
        yield datapath


def take(datapath: Datapath, namespace: str | None = None) -> Snapshot:
    """Read everything that `Snapshot` holds."""
    counts = interface_counts(namespace)
    ports = []
    for port in datapath.ports():
        if port.ifindex not in counts:
            continue  # the controller's own
        name, rx, tx, dropped = counts[port.ifindex]
        ports.append(PortCounts(port.number, name, port.trusted, port.flow_labels, Cell(*rx), Cell(*tx), dropped))
    marked, exceeded = datapath.counters("marked"), datapath.counters("exceeded")
    lost = datapath.lost_events()
    return Snapshot(
        at_s=time.monotonic(),
        ports=tuple(ports),
        parsed={kind.name.lower(): cell for kind, cell in datapath.parsed().items()},
        drops={reason.name.lower(): cell for reason, cell in datapath.drops().items()},
        marks={
            (cell >> 4, cell >> 2 & 3, COLOURS[cell & 3]): Cell(int(value["packets"]), int(value["bytes"]))
            for cell, value in enumerate(marked)
            if value["packets"] and cell & 3 < len(COLOURS)
        },
        exceeded={
            (cell >> 4, _BUCKETS[cell >> 2 & 3], _EXCEED[cell & 3]): Cell(int(value["packets"]), int(value["bytes"]))
            for cell, value in enumerate(exceeded[: SLICES * 16])
            if value["packets"] and cell >> 2 & 3 in _BUCKETS and cell & 3 < len(_EXCEED)
        },
        entries={
            name: len(datapath.table(name).all()[0])
            for name in ("forward_v4", "forward_v6", "forward_l2", "groups", "slice_select", "microflow")
        },
        flows=sum(len(part) for part in datapath.flow_table()),
        collisions=datapath.flow_collisions(),
        lost_records=lost[0],
        lost_packet_ins=lost[1],
        queues=tuple(read_queues(datapath)),
        queue_misses={miss.name.lower(): cell for miss, cell in misses(datapath).items()},
        measuring=is_measuring(datapath),
    )


def queue_row(queue: Queue) -> dict[str, object]:
    """A queue's counts as a plain dictionary; times in microseconds."""

    def us(ns: float | None) -> float | None:
        return None if ns is None else round(ns / 1e3, 3)

    return {
        "port": queue.port,
        "class": class_name(queue.classid),
        "slice": queue.mark[0] if queue.mark else None,
        "tc": queue.mark[1] if queue.mark else None,
        "enqueued": queue.enqueued._asdict(),
        "sent": queue.sent._asdict(),
        "drops": {**queue.drops._asdict(), "reasons": queue.drop_reasons},
        "backlog": queue.backlog._asdict(),
        "backlog_max": queue.backlog_max._asdict(),
        "found_sum": queue.found._asdict(),
        "timed": queue.timed,
        "residence_us": {
            "sum": us(queue.residence_sum_ns),
            "max": us(queue.residence_max_ns),
            "p50": us(queue.residence_p50_ns),
            "p99": us(queue.residence_p99_ns),
        },
    }


def microflow_rows(datapath: Datapath) -> Iterator[dict[str, object]]:
    """One dictionary a micro-flow: its key, its mark, its counters and its meter."""
    keys, values = datapath.microflows.all()
    states, rates = datapath.microflows.states(values), datapath.microflows.rates(values)
    now_ns = time.monotonic_ns()
    for key, value, state, rate in zip(keys, values, states, rates, strict=True):
        yield {
            "src": format_address(key["src_hi"], key["src_lo"]),
            "sport": int(key["sport"]),
            "dst": format_address(key["dst_hi"], key["dst_lo"]),
            "dport": int(key["dport"]),
            "proto": int(key["proto"]),
            "vlan": int(key["vlan"]),
            "flow_label": int(key["flow_label"]),
            "id": int(value["id"]),
            "slice": int(value["slice"]),
            "tc": int(value["tc"]),
            "packets": int(state["counter"]["packets"]),
            "bytes": int(state["counter"]["bytes"]),
            "idle_s": round((now_ns - int(state["last_ns"])) / 1e9, 3),
            "meter": rate._asdict() if rate else None,
        }


def flow_rows(datapath: Datapath) -> Iterator[dict[str, object]]:
    """One dictionary a flow record under way, with the fields that people look for first."""
    for records in datapath.flow_table():
        for record in records:
            yield {
                "src": format_address(record["src_hi"], record["src_lo"]),
                "sport": int(record["sport"]),
                "dst": format_address(record["dst_hi"], record["dst_lo"]),
                "dport": int(record["dport"]),
                "proto": int(record["proto"]),
                "vlan": int(record["vlan"]),
                "flow_label": int(record["flow_label"]),
                "duration_us": int(record["duration_us"]),
                "fwd_packets": int(record["fwd_packets"]),
                "rev_packets": int(record["rev_packets"]),
                "fwd_bytes": int(record["fwd_bytes"]),
                "rev_bytes": int(record["rev_bytes"]),
                "checkpoint": int(record["checkpoint"]),
                "end": End(int(record["end"])).name.lower(),
            }
