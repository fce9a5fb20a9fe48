"""The way of one packet through a switch's tables, read from the tables without sending anything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from dinnet.capture.packet import (
    FRAME_DTYPE,
    KIND_FLOW,
    KIND_NOT_IP,
    MARK_FRAGMENT,
    PACKET_DTYPE,
)
from dinnet.capture.parse import FRAGMENT_DTYPE, parse_frames
from dinnet.errors import DinnetError
from dinnet.flows.record import format_address
from dinnet.switch.contract import SLICES, Action, Bucket, Exceed, Port
from dinnet.switch.datapath import Datapath
from dinnet.switch.sliceselect import Match
from dinnet.switch.tokens import NANO

_ETHERNET: Final = 1
_CPU_PORT, _NO_PORT = 510, 511


class Step(NamedTuple):
    """What one stage of the pipeline did."""

    stage: str
    outcome: str


class _Way(NamedTuple):
    action: Action
    port: int


def trace(datapath: Datapath, port: int, frame: bytes) -> Iterator[Step]:
    """What the tables, as they are now, do to a frame that comes in on a port.

    Token buckets are shown as they stand; whether the packet would find tokens depends on the moment.

    Raises:
        DinnetError: The switch has no such port.
    """
    config = next((each for each in datapath.ports() if each.number == port), None)
    if config is None:
        raise DinnetError(f"the switch has no port {port}; it has {_listed(datapath)}")
    packet = _parse(frame)
    yield Step("ingress_port", f"{port}: {'trusted' if config.trusted else 'its DSCP does not count'}")
    yield Step("parse", _describe(packet, frame))
    if packet["kind"] not in (KIND_FLOW, KIND_NOT_IP):
        yield Step("verdict", "dropped: malformed")
        return
    found, outcome = _forward(datapath, packet, frame)
    yield Step("forward", outcome)
    if found.action in (Action.MISS, Action.DROP):
        yield Step("verdict", f"dropped: {'no route' if found.action is Action.MISS else 'forward'}")
        return
    if packet["kind"] == KIND_NOT_IP:
        yield Step("verdict", f"{_destination(datapath, found)}, unmarked")
        return
    yield from _mark(datapath, config, packet, frame, found)


def _mark(datapath: Datapath, config: Port, packet: Any, frame: bytes, found: _Way) -> Iterator[Step]:
    slice_number = tc = 0
    if config.trusted:
        dscp = _dscp(frame, packet)
        plan = datapath.table("dscp_to_mark").get(np.array([dscp]))[0][0]
        slice_number, tc = (int(plan["slice"]), int(plan["tc"])) if plan["valid"] else (dscp >> 2, dscp & 3)
        yield Step("dscp_to_mark", f"DSCP {dscp} -> slice {slice_number}, tc {tc}")
    selected = _select(datapath, config.number, packet)
    if selected is None:
        yield Step("slice_select", "no entry")
    else:
        slice_number, tc = selected.slice, selected.tc
        yield Step("slice_select", f"priority {selected.priority} -> slice {slice_number}, tc {tc}")
    microflow = _microflow(datapath, config, packet)
    if microflow is None:
        yield Step("microflow", "no entry")
    else:
        slice_number, tc = int(microflow["slice"][0]), int(microflow["tc"][0])
        meter = (
            ", " + _bucket(datapath, "microflow_meter", int(microflow["state"][0])) if microflow["metered"][0] else ""
        )
        yield Step("microflow", f"id {int(microflow['id'][0])} -> slice {slice_number}, tc {tc}{meter}")
        if meter:
            yield Step("exceed", "if red: " + _exceed(datapath, slice_number, Bucket.MICROFLOW))
    index = found.port * SLICES + slice_number
    state = _bucket(datapath, "slice_meter", index)
    yield Step("slice_meter", f"port {found.port}, slice {slice_number}: {state}")
    if state != "not set":
        yield Step("exceed", "if red: " + _exceed(datapath, slice_number, Bucket.SLICE))
    mark = slice_number << 2 | tc
    plan = datapath.table("mark_to_dscp").get(np.array([mark]))[0][0]
    queue = int(datapath.table("queue_of_mark").get(np.array([mark]))[0][0])
    yield Step("mark", f"DSCP {int(plan['dscp']) if plan['valid'] else mark}, queue {queue >> 16:x}:{queue & 0xFFFF:x}")
    yield Step("verdict", _destination(datapath, found))


def _parse(frame: bytes) -> Any:
    frames = np.zeros(1, FRAME_DTYPE)
    frames[0]["captured"] = frames[0]["wire"] = len(frame)
    frames[0]["link_type"] = _ETHERNET
    packets = np.zeros(1, PACKET_DTYPE)
    data = np.frombuffer(bytearray(frame), np.uint8)
    # The switch looks into no tunnel and remembers no fragments.
    parse_frames(data, frames, 1, False, np.zeros(1 << 14, FRAGMENT_DTYPE), packets)
    return packets[0]


def _describe(packet: Any, frame: bytes) -> str:
    if packet["kind"] == KIND_NOT_IP:
        return f"{len(frame)} bytes, not IP"
    if packet["kind"] != KIND_FLOW:
        return f"{len(frame)} bytes, malformed"
    tags = "".join(f", VLAN {int(packet[name])}" for name in ("vlan", "inner_vlan") if packet[name])
    label = f", flow label {int(packet['flow_label']):#x}" if packet["flow_label"] else ""
    fragment = ", a fragment without ports" if packet["marks"] & MARK_FRAGMENT else ""
    ends = [
        f"{format_address(packet[f'{end}_hi'], packet[f'{end}_lo'])} port {int(packet[port])}"
        for end, port in (("src", "sport"), ("dst", "dport"))
    ]
    return f"IPv{int(packet['ip_version'])} protocol {int(packet['proto'])}, {' -> '.join(ends)}{tags}{label}{fragment}"


def _forward(datapath: Datapath, packet: Any, frame: bytes) -> tuple[_Way, str]:
    tried = []
    if packet["kind"] == KIND_FLOW:
        name, key = _route_key(datapath, packet)
        values, there = datapath.table(name).get(key)
        if there[0]:
            return _way(name, values[0])
        tried.append(name)
    table = datapath.table("forward_l2")
    station = np.array([(int(packet["vlan"]), np.frombuffer(frame[:6], np.uint8))], table.key)
    values, there = table.get(station)
    if there[0]:
        return _way("forward_l2", values[0])
    values, there = datapath.table("forward_default").get(np.zeros(1))
    if there[0] and values[0]["action"]:
        return _way("forward_l2's default", values[0])
    return _Way(Action.MISS, _NO_PORT), f"no entry in {', '.join([*tried, 'forward_l2'])}"


def _route_key(datapath: Datapath, packet: Any) -> tuple[str, Any]:
    high, low = int(packet["dst_hi"]), int(packet["dst_lo"])
    if packet["ip_version"] == 4:
        name, address = "forward_v4", (low & 0xFFFFFFFF).to_bytes(4)
    else:
        name, address = "forward_v6", (high << 64 | low).to_bytes(16)
    value = (8 * len(address), np.frombuffer(address, np.uint8))
    return name, np.array([value], datapath.table(name).key)


def _way(name: str, value: Any) -> tuple[_Way, str]:
    action, port = Action(int(value["action"])), int(value["port"])
    if action is Action.FLOOD:
        return _Way(action, _NO_PORT), f"{name}: flood to group {port}"
    if action is Action.CONTROLLER:
        return _Way(action, _CPU_PORT), f"{name}: to the controller"
    if action is Action.DROP:
        return _Way(action, _NO_PORT), f"{name}: drop"
    stations = f", {_mac(value['src'])} -> {_mac(value['dst'])}, one hop less" if action is Action.ROUTE else ""
    return _Way(action, port), f"{name}: to port {port}{stations}"


def _select(datapath: Datapath, port: int, packet: Any) -> Any:
    fields = Match(
        *((value, value) for value in (
            port, int(packet["src_hi"]) << 64 | int(packet["src_lo"]),
            int(packet["dst_hi"]) << 64 | int(packet["dst_lo"]), int(packet["proto"]), int(packet["sport"]),
            int(packet["dport"]), int(packet["vlan"]),
        ))
    )  # fmt: skip
    matching = [
        entry
        for entry in datapath.slice_select.entries()
        if all(have & mask == want for (want, mask), (have, _) in zip(entry.match, fields, strict=True))
    ]
    return max(matching, key=lambda entry: entry.priority, default=None)


def _microflow(datapath: Datapath, config: Port, packet: Any) -> Any:
    if packet["marks"] & MARK_FRAGMENT:
        return None
    key = np.zeros(1, datapath.microflows.key)
    for name in ("src_hi", "src_lo", "dst_hi", "dst_lo", "sport", "dport", "vlan", "proto"):
        key[name] = packet[name]
    key["flow_label"] = packet["flow_label"] if config.flow_labels else 0
    values, there = datapath.microflows.get(key)
    return values if there[0] else None


def _bucket(datapath: Datapath, table: str, cell: int) -> str:
    meter = datapath.table(table).get(np.array([cell]))[0][0]
    if not meter["configured"]:
        return "not set"
    parts = [
        f"{name} {int(meter[side]['rate']):,} B/s with {int(meter[side]['tokens']) // NANO:,} of "
        f"{int(meter[side]['burst']) // NANO:,} bytes left"
        for name, side in (("committed", "committed"), ("peak", "peak"))
    ]
    return ", ".join(parts)


def _exceed(datapath: Datapath, slice_number: int, bucket: Bucket) -> str:
    table = datapath.table("exceed")
    for key in (slice_number << 2 | bucket, 64):
        values, there = table.get(np.array([key]))
        if there[0]:
            action = Exceed(int(values[0]["action"]))
            return f"reroute to port {int(values[0]['port'])}" if action is Exceed.REROUTE else action.name.lower()
    return "degrade"


def _dscp(frame: bytes, packet: Any) -> int:
    at = 14
    while frame[at - 2 : at] in (b"\x81\x00", b"\x88\xa8"):
        at += 4
    head = int.from_bytes(frame[at : at + 2])
    return head >> 2 & 0x3F if packet["ip_version"] == 4 else head >> 6 & 0x3F


def _destination(datapath: Datapath, found: _Way) -> str:
    if found.action is Action.FLOOD:
        return "to the ports of the group, but not back"
    if found.action is Action.CONTROLLER:
        return "to the controller"
    if not datapath.table("egress_port").get(np.array([found.port]))[0][0]:
        return f"dropped: there is no port {found.port}"
    return f"to port {found.port}"


def _listed(datapath: Datapath) -> str:
    return ", ".join(str(port.number) for port in datapath.ports() if port.number < _CPU_PORT)


def _mac(value: Any) -> str:
    return bytes(value).hex(":")
