"""From the intent to what each switch and host should have. Pure functions."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Final

from dinnet.controller.intent import Intent
from dinnet.controller.intent_slices import Link as LinkIntent
from dinnet.controller.intent_switch import INT_BITS, Match, Switch, Telemetry, Watch
from dinnet.controller.values import of
from dinnet.dataplane.entity import (
    ANY,
    CloneSession,
    DefaultEntry,
    DigestConfig,
    Entity,
    Group,
    MeterCell,
    Rates,
    Ternary,
    address,
    mac,
    prefix,
)
from dinnet.dataplane.tables import (
    ConfigurePort,
    Degrade,
    DscpToMark,
    Exceed,
    Flood,
    ForwardDrop,
    ForwardL2,
    ForwardV4,
    ForwardV6,
    IngressPort,
    IntCollector,
    IntMd,
    IntNode,
    IntSource,
    IntXd,
    MarkToDscp,
    MetersDrop,
    NoInt,
    ReadDscp,
    Reroute,
    Route,
    SetCollector,
    SetDscp,
    SetNode,
    SetSlice,
    SliceSelect,
    ToController,
    ToPort,
)
from dinnet.host import state

DIGEST: Final = "flow_record_t"
_SLICES: Final = 16  # of the pipeline: the stride of slice_meter
_MICROFLOW_BUCKET, _SLICE_BUCKET = 1, 2  # bucket_t of p4/include/metadata.p4
_INT_SESSION: Final = 1
#: A policed slice may burst for so long, and by at least this: two full-size frames with offloads.
_BURST_S: Final = 0.02
_BURST_BYTES: Final = 131_072


def switch_entities(intent: Intent, name: str) -> list[Entity]:
    """All that a switch should have, but for the marks of live micro-flows, which the classification loop owns."""
    switch = intent.switches[name]
    numbers = {label: each.number for label, each in intent.slices.items()}
    found: list[Entity] = [
        IngressPort(port=number, action=ConfigurePort(int(port.trusted), int(port.flow_labels)))
        for number, port in switch.ports.items()
    ]
    found += _forwarding(switch)
    found += [
        SliceSelect(**_match(rule), priority=rule.priority, action=SetSlice(numbers[rule.slice], rule.tc))
        for rule in switch.rules
    ]
    found += _exceeding(intent, switch)
    found += _policing(intent, name)
    for line in intent.dscp:
        found.append(MarkToDscp(slice=numbers[line.slice], tc=line.tc, action=SetDscp(line.dscp)))
        found.append(DscpToMark(dscp=line.dscp, action=ReadDscp(numbers[line.slice], line.tc)))
    if switch.telemetry is not None:
        found += _telemetry(switch, switch.telemetry)
    if intent.classifier.enabled:
        delay_ns = round(intent.classifier.digest_delay_ms * 1_000_000)
        found.append(DigestConfig(DIGEST, intent.classifier.batch, delay_ns))
    return found


def _forwarding(switch: Switch) -> Iterator[Entity]:
    for each in switch.routes:
        action: Route | ForwardDrop | ToController
        if each.port is not None:
            action = Route(each.port, mac(each.src), mac(each.dst))
        else:
            action = ForwardDrop() if each.drop else ToController()
        yield (ForwardV6 if ":" in each.to else ForwardV4)(dst=prefix(each.to), action=action)
    for number, ports in switch.groups.items():
        yield Group(number, tuple(sorted(ports)))
    for station in switch.stations:
        way: ToPort | Flood | ForwardDrop
        if station.port is not None:
            way = ToPort(station.port)
        else:
            way = Flood(station.flood) if station.flood is not None else ForwardDrop()
        yield ForwardL2(vlan=station.vlan, dst=mac(station.mac), action=way)
    if switch.flood_unknown is not None:
        yield DefaultEntry("forward_l2", Flood(switch.flood_unknown))


def _match(given: Match) -> dict[str, Ternary]:
    """The keys of a ternary table; what is not given matches everything."""
    found = {name: _exactly(getattr(given, own), bits) for own, name, bits in _KEYS if getattr(given, own) is not None}
    for name in ("src", "dst"):
        if (text := getattr(given, name)) is not None:
            network = ipaddress.ip_network(text)
            mask = int(network.netmask) | ((1 << 96) - 1 << 32 if network.version == 4 else 0)
            found[name] = Ternary(address(str(network.network_address)), mask) if mask else ANY
    return found


_KEYS: Final = (
    ("port", "ingress_port", 9),
    ("proto", "proto", 8),
    ("sport", "sport", 16),
    ("dport", "dport", 16),
    ("vlan", "vlan", 12),
)


def _exactly(value: int, bits: int) -> Ternary:
    return Ternary(value, (1 << bits) - 1)


def _exceeding(intent: Intent, switch: Switch) -> Iterator[Entity]:
    for label, each in intent.slices.items():
        for bucket, wanted in ((_MICROFLOW_BUCKET, each.exceed.microflow), (_SLICE_BUCKET, each.exceed.slice)):
            action: Degrade | Reroute | MetersDrop
            if wanted == "degrade":
                continue  # as the table begins
            if wanted == "drop":
                action = MetersDrop()
            else:
                other = switch.reroute[label]
                action = Reroute(other.port, mac(other.src), mac(other.dst))
            yield Exceed(slice=each.number, bucket=bucket, action=action)


def _policing(intent: Intent, name: str) -> Iterator[Entity]:
    for link in intent.links.values():
        for text in link.ends:
            end = intent.end(text)
            if end is None or end[0] != name or not isinstance(end[1], int) or not link.police:
                continue
            for label, each in intent.slices.items():
                guarantee, ceiling = (bps // 8 for bps in intent.share_of(link, label))
                rates = Rates(guarantee, burst_bytes(guarantee), ceiling, burst_bytes(ceiling))
                yield MeterCell("slice_meter", end[1] * _SLICES + each.number, rates)


def burst_bytes(rate: int, seconds: float = _BURST_S) -> int:
    """The burst of a token bucket of `rate` bytes a second."""
    return max(_BURST_BYTES, int(rate * seconds))


def _telemetry(switch: Switch, wanted: Telemetry) -> Iterator[Entity]:
    for number, port in switch.ports.items():
        yield IntNode(port=number, action=SetNode(wanted.node_id, int(port.int_sink), port.mtu))
    for watch in wanted.watch:
        yield IntSource(**_match(watch), priority=watch.priority, action=_watching(watch))
    if (to := wanted.collector) is not None:
        src, dst = (int(ipaddress.ip_address(text)) for text in (to.src, to.dst))
        yield CloneSession(_INT_SESSION, (to.port,))
        yield IntCollector(action=SetCollector(mac(to.src_mac), mac(to.dst_mac), src, dst, to.sport, to.dport))


def _watching(watch: Watch) -> IntMd | IntXd | NoInt:
    bits = sum(INT_BITS[name] for name in set(watch.fields))
    if watch.mode == "md":
        return IntMd(bits, watch.hops)
    return IntXd(bits) if watch.mode == "xd" else NoInt()


def host_state(intent: Intent, name: str) -> state.HostState:
    """All that a host should have."""
    links = []
    for link in intent.links.values():
        for text in link.ends:
            end = intent.end(text)
            if end is not None and end[0] == name and isinstance(end[1], str):
                links.append(_host_link(intent, link, end[1]))
    return state.HostState(links=tuple(links))


def _host_link(intent: Intent, link: LinkIntent, device: str) -> state.Link:
    slices = []
    for label, each in sorted(intent.slices.items(), key=lambda item: item[1].number):
        guarantee, ceiling = intent.share_of(link, label)
        queues = tuple(
            state.Queue(
                tc, of(queue.guarantee, guarantee), of(queue.ceiling, ceiling), queue.priority, queue.target_delay_ms
            )
            for tc, queue in sorted(each.queues.items())
        )
        slices.append(state.Slice(each.number, label, guarantee, ceiling, queues))
    return state.Link(
        device, link.rate, tuple(slices), overhead_bytes=link.overhead_bytes, dscp=_dscp(intent),
        replace_foreign=link.replace_foreign,
    )  # fmt: skip


def _dscp(intent: Intent) -> tuple[tuple[int, int, int], ...]:
    """(DSCP, slice, tc) of every mark: the plan's own lines, and the usual coding where they say nothing."""
    own = {line.dscp: (intent.slices[line.slice].number, line.tc) for line in intent.dscp}
    said = set(own.values())
    for each in intent.slices.values():
        for tc in each.queues:
            code = each.number << 2 | tc
            if (each.number, tc) not in said and code not in own:
                own[code] = (each.number, tc)
    return tuple((code, *mark) for code, mark in sorted(own.items()))
