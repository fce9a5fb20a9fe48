"""Join what the senders said to the flow records of the capture."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np
from numpy.typing import NDArray

from dinnet.classifier.corpus import GROUPS, LabelledRecords
from dinnet.errors import DinnetError
from dinnet.flows.record import RECORD_DTYPE, End, Records
from dinnet.testbed.workloads.base import Group, Label

#: A sender notes the time just before it connects and just after it closes: later packets are its own, too.
SLACK_US: Final = 500_000
#: Checkpoints kept of each flow: all up to this one, then each at least STEP times the one before.
ALL_UP_TO: Final = 6
STEP: Final = 1.25

_PROTO: Final = {"tcp": 6, "udp": 17}
_TERNARY: Final = {None: -1, False: 0, True: 1}
_FIELDS: Final = frozenset(Label.__dataclass_fields__)
_REQUIRED: Final = ("t0_us", "t1_us", "proto", "src", "sport", "dst", "dport", "group", "transport")

Endpoint = tuple[int, int, int]  # high and low half of the address, port
Conversation = tuple[int, Endpoint, Endpoint]  # protocol, and the two ends in order

# The corpus's group numbers and the senders' words are the same list.
assert set(GROUPS) == set(get_args(Group))


@dataclass(frozen=True)
class Joined:
    """Labelled records, and what could not be labelled."""

    labelled: LabelledRecords
    flows: int
    unlabelled_flows: int  # ARP never gets here; neighbour discovery, stray resets and empty connections do
    unmatched_labels: int  # labels of connections that left no payload in the capture


def read_labels(path: Path) -> list[Label]:
    """The labels in a JSON-lines file.

    Raises:
        DinnetError: A line is not a label; names the line.
    """
    labels = []
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise DinnetError(f"{path}: cannot read the labels: {error.strerror}") from error
    for number, line in enumerate(lines, start=1):
        try:
            found = json.loads(line)
            if not isinstance(found, dict) or set(found) - _FIELDS or set(_REQUIRED) - set(found):
                raise ValueError("keys missing or unknown")
            label = Label(**found)
            if label.group not in GROUPS or label.proto not in _PROTO:
                raise ValueError(f"unknown group {label.group!r} or protocol {label.proto!r}")
            _endpoint(label.src, label.sport)
            _endpoint(label.dst, label.dport)
        except (ValueError, TypeError) as error:
            raise DinnetError(f"{path}:{number}: not a label: {error}") from error
        labels.append(label)
    return labels


def join(parts: Iterable[Records], labels: Iterable[Label], manifest: dict[str, Any]) -> Joined:
    """Label flow records by 5-tuple, either direction, and time.

    A flow that carried no payload gets none: whatever its sender wanted, nothing of it can be seen.
    Of several labels of one 5-tuple (ports are used again) the one that shares the most time with the flow is taken,
    with `SLACK_US` around each. `manifest` gets "transports" and "models". Checkpoint records are thinned.

    Args:
        parts: Arrays of RECORD_DTYPE, of all checkpoints and ends, in the order of emission.
        labels: What the senders said.
        manifest: What the corpus file says of itself.
    """
    by_conversation: dict[Conversation, list[int]] = {}
    known = list(labels)
    for index, label in enumerate(known):
        key = _conversation(_PROTO[label.proto], _endpoint(label.src, label.sport), _endpoint(label.dst, label.dport))
        by_conversation.setdefault(key, []).append(index)

    records = np.concatenate([np.zeros(0, RECORD_DTYPE), *parts])
    flow, last = _flows(records)
    label_of_flow = np.full(len(last), -1, np.int64)
    for number, record in enumerate(records[last]):
        if not (record["fwd_payload_bytes"] or record["rev_payload_bytes"]):
            continue
        candidates = by_conversation.get(_conversation_of(record), ())
        label_of_flow[number] = _best(known, candidates, int(record["first_us"]), int(record["duration_us"]))

    kept = np.flatnonzero((label_of_flow[flow] >= 0) & thinned(records, flow))
    which = label_of_flow[flow[kept]]
    transports = sorted({label.transport for label in known})
    models = sorted({label.model for label in known})
    columns: dict[str, NDArray[Any]] = {
        "group": np.array([GROUPS.index(label.group) for label in known], np.uint8),
        "transport": np.array([transports.index(label.transport) for label in known], np.uint16),
        "model": np.array([models.index(label.model) for label in known], np.uint16),
        "streaming": np.array([_TERNARY[label.streaming] for label in known], np.int8),
        "first_request": np.array([_TERNARY[label.first_request] for label in known], np.int8),
        "large_model": np.array([_TERNARY[label.large_model] for label in known], np.int8),
    }
    labelled = LabelledRecords(
        records=records[kept],
        flow=np.unique(flow[kept], return_inverse=True)[1].reshape(-1).astype(np.uint32),
        manifest={**manifest, "transports": transports, "models": models},
        **{name: column[which] for name, column in columns.items()},
    )
    matched = np.unique(label_of_flow[label_of_flow >= 0])
    return Joined(labelled, len(last), int((label_of_flow < 0).sum()), len(known) - len(matched))


def all_background(captures: Mapping[str, Iterable[Records]], manifest: dict[str, Any]) -> LabelledRecords:
    """Label every flow of captures that hold no inference traffic as such.

    Args:
        captures: Records of all checkpoints and ends, by what the traffic is: its "transport".
        manifest: What the corpus file says of itself; gets "transports" and "models".
    """
    transports = sorted(captures)
    parts, flows, kinds, seen = [], [], [], 0
    for number, name in enumerate(transports):
        records = np.concatenate([np.zeros(0, RECORD_DTYPE), *captures[name]])
        own, last = _flows(records)
        kept = np.flatnonzero(thinned(records, own))
        parts.append(records[kept])
        flows.append(own[kept] + seen)
        kinds.append(np.full(len(kept), number, np.uint16))
        seen += len(last)
    flow: NDArray[np.uint32] = np.unique(np.concatenate(flows), return_inverse=True)[1].reshape(-1).astype(np.uint32)
    unknown = np.full(len(flow), -1, np.int8)
    return LabelledRecords(
        records=np.concatenate(parts),
        group=np.full(len(flow), GROUPS.index("other"), np.uint8),
        flow=flow,
        streaming=unknown,
        first_request=unknown,
        large_model=unknown,
        transport=np.concatenate(kinds),
        model=np.zeros(len(flow), np.uint16),
        manifest={**manifest, "transports": transports, "models": [""]},
    )


def thinned(records: Records, flow: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Which records to keep: a long flow's checkpoints say nearly the same, and must not outweigh short flows.

    Kept are checkpoints 1 to `ALL_UP_TO`, then each one at least `STEP` times as far as the last, and end records.
    """
    keep = np.zeros(len(records), np.bool_)
    next_checkpoint: dict[int, float] = {}
    for row, (number, checkpoint, end) in enumerate(
        zip(flow.tolist(), records["checkpoint"].tolist(), records["end"].tolist(), strict=True)
    ):
        if end != End.LIVE:
            keep[row] = True
        elif checkpoint <= ALL_UP_TO or checkpoint >= next_checkpoint.get(number, 0.0):
            keep[row] = True
            next_checkpoint[number] = max(ALL_UP_TO + 1, checkpoint * STEP)
    return keep


def _flows(records: Records) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """For each record its flow's number, and for each flow the row of its last record."""
    key = ["src_hi", "src_lo", "dst_hi", "dst_lo", "sport", "dport", "proto", "vlan", "inner_vlan"]
    _, flow = np.unique(records[[*key, "tunnel_id", "flow_label", "first_us"]], return_inverse=True)
    flow = flow.reshape(-1)
    last = np.zeros(int(flow.max()) + 1 if len(flow) else 0, np.intp)
    last[flow] = np.arange(len(flow))  # of rows written to one place, the last one stays
    return flow, last


def _best(labels: list[Label], candidates: Iterable[int], first_us: int, duration_us: int) -> int:
    """Index of the label that shares the most time with a flow, or -1."""
    best, best_overlap = -1, 0
    for index in candidates:
        label = labels[index]
        start = max(first_us, label.t0_us - SLACK_US)
        overlap = min(first_us + duration_us, label.t1_us + SLACK_US) - start + 1
        if overlap > best_overlap:
            best, best_overlap = index, overlap
    return best


def _endpoint(address: str, port: int) -> Endpoint:
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped:
        ip = ip.ipv4_mapped
    # As in PACKET_DTYPE: an IPv4 address is written as its IPv4-mapped IPv6 address.
    value = int(ip) | 0xFFFF << 32 if ip.version == 4 else int(ip)
    return value >> 64, value & (2**64 - 1), port


def _conversation(proto: int, a: Endpoint, b: Endpoint) -> Conversation:
    return (proto, a, b) if a <= b else (proto, b, a)


def _conversation_of(record: np.void) -> Conversation:
    src = (int(record["src_hi"]), int(record["src_lo"]), int(record["sport"]))
    dst = (int(record["dst_hi"]), int(record["dst_lo"]), int(record["dport"]))
    return _conversation(int(record["proto"]), src, dst)
