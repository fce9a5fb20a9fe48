"""The pipeline's tables and actions. Generated from its P4Info by `make p4`; not to be edited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from dinnet.dataplane.entity import ANY, Action, Lpm, Rates, TableEntry, Ternary


@dataclass(frozen=True, slots=True)
class NoAction(Action):
    ALIAS: ClassVar[str] = "NoAction"


@dataclass(frozen=True, slots=True)
class ForwardDrop(Action):
    ALIAS: ClassVar[str] = "forward.drop"


@dataclass(frozen=True, slots=True)
class ToController(Action):
    ALIAS: ClassVar[str] = "to_controller"


@dataclass(frozen=True, slots=True)
class Route(Action):
    ALIAS: ClassVar[str] = "route"
    BITS: ClassVar[dict[str, int]] = {"port": 9, "src": 48, "dst": 48}

    port: int
    src: int
    dst: int


@dataclass(frozen=True, slots=True)
class ToPort(Action):
    ALIAS: ClassVar[str] = "to_port"
    BITS: ClassVar[dict[str, int]] = {"port": 9}

    port: int


@dataclass(frozen=True, slots=True)
class Flood(Action):
    ALIAS: ClassVar[str] = "flood"
    BITS: ClassVar[dict[str, int]] = {"group": 16}

    group: int


@dataclass(frozen=True, slots=True)
class SetSlice(Action):
    ALIAS: ClassVar[str] = "set_slice"
    BITS: ClassVar[dict[str, int]] = {"slice": 4, "tc": 2}

    slice: int
    tc: int


@dataclass(frozen=True, slots=True)
class SetMark(Action):
    ALIAS: ClassVar[str] = "set_mark"
    BITS: ClassVar[dict[str, int]] = {"slice": 4, "tc": 2, "microflow_id": 32}

    slice: int
    tc: int
    microflow_id: int


@dataclass(frozen=True, slots=True)
class ReadDscp(Action):
    ALIAS: ClassVar[str] = "read_dscp"
    BITS: ClassVar[dict[str, int]] = {"slice": 4, "tc": 2}

    slice: int
    tc: int


@dataclass(frozen=True, slots=True)
class Degrade(Action):
    ALIAS: ClassVar[str] = "degrade"


@dataclass(frozen=True, slots=True)
class Reroute(Action):
    ALIAS: ClassVar[str] = "reroute"
    BITS: ClassVar[dict[str, int]] = {"port": 9, "src": 48, "dst": 48}

    port: int
    src: int
    dst: int


@dataclass(frozen=True, slots=True)
class MetersDrop(Action):
    ALIAS: ClassVar[str] = "meters.drop"


@dataclass(frozen=True, slots=True)
class SetDscp(Action):
    ALIAS: ClassVar[str] = "set_dscp"
    BITS: ClassVar[dict[str, int]] = {"dscp": 6}

    dscp: int


@dataclass(frozen=True, slots=True)
class Emit(Action):
    ALIAS: ClassVar[str] = "emit"


@dataclass(frozen=True, slots=True)
class Clear(Action):
    ALIAS: ClassVar[str] = "clear"


@dataclass(frozen=True, slots=True)
class NoInt(Action):
    ALIAS: ClassVar[str] = "no_int"


@dataclass(frozen=True, slots=True)
class IntMd(Action):
    ALIAS: ClassVar[str] = "int_md"
    BITS: ClassVar[dict[str, int]] = {"instructions": 16, "hops": 8}

    instructions: int
    hops: int


@dataclass(frozen=True, slots=True)
class IntXd(Action):
    ALIAS: ClassVar[str] = "int_xd"
    BITS: ClassVar[dict[str, int]] = {"instructions": 16}

    instructions: int


@dataclass(frozen=True, slots=True)
class SetNode(Action):
    ALIAS: ClassVar[str] = "set_node"
    BITS: ClassVar[dict[str, int]] = {"node_id": 32, "is_sink": 1, "mtu": 16}

    node_id: int
    is_sink: int
    mtu: int


@dataclass(frozen=True, slots=True)
class ConfigurePort(Action):
    ALIAS: ClassVar[str] = "configure_port"
    BITS: ClassVar[dict[str, int]] = {"trusted": 1, "flow_labels": 1}

    trusted: int
    flow_labels: int


@dataclass(frozen=True, slots=True)
class CountParsed(Action):
    ALIAS: ClassVar[str] = "count_parsed"


@dataclass(frozen=True, slots=True)
class SetCollector(Action):
    ALIAS: ClassVar[str] = "set_collector"
    BITS: ClassVar[dict[str, int]] = {"src_mac": 48, "dst_mac": 48, "src": 32, "dst": 32, "sport": 16, "dport": 16}

    src_mac: int
    dst_mac: int
    src: int
    dst: int
    sport: int
    dport: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardV4(TableEntry):
    TABLE: ClassVar[str] = "forward_v4"
    MATCH: ClassVar[tuple[str, ...]] = ("dst",)
    BITS: ClassVar[dict[str, int]] = {"dst": 32}

    dst: Lpm
    action: Route | ForwardDrop | ToController


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardV6(TableEntry):
    TABLE: ClassVar[str] = "forward_v6"
    MATCH: ClassVar[tuple[str, ...]] = ("dst",)
    BITS: ClassVar[dict[str, int]] = {"dst": 128}

    dst: Lpm
    action: Route | ForwardDrop | ToController


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardL2(TableEntry):
    TABLE: ClassVar[str] = "forward_l2"
    MATCH: ClassVar[tuple[str, ...]] = ("vlan", "dst")
    BITS: ClassVar[dict[str, int]] = {"vlan": 12, "dst": 48}

    vlan: int
    dst: int
    action: ToPort | Flood | ForwardDrop | ToController


@dataclass(frozen=True, slots=True, kw_only=True)
class DscpToMark(TableEntry):
    TABLE: ClassVar[str] = "dscp_to_mark"
    MATCH: ClassVar[tuple[str, ...]] = ("dscp",)
    BITS: ClassVar[dict[str, int]] = {"dscp": 6}

    dscp: int
    action: ReadDscp


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceSelect(TableEntry):
    TABLE: ClassVar[str] = "slice_select"
    MATCH: ClassVar[tuple[str, ...]] = ("ingress_port", "src", "dst", "proto", "sport", "dport", "vlan")
    BITS: ClassVar[dict[str, int]] = {
        "ingress_port": 9,
        "src": 128,
        "dst": 128,
        "proto": 8,
        "sport": 16,
        "dport": 16,
        "vlan": 12,
    }

    ingress_port: Ternary = ANY
    src: Ternary = ANY
    dst: Ternary = ANY
    proto: Ternary = ANY
    sport: Ternary = ANY
    dport: Ternary = ANY
    vlan: Ternary = ANY
    priority: int  # the highest wins
    action: SetSlice


@dataclass(frozen=True, slots=True, kw_only=True)
class Microflow(TableEntry):
    TABLE: ClassVar[str] = "microflow"
    MATCH: ClassVar[tuple[str, ...]] = ("src", "dst", "proto", "sport", "dport", "vlan", "flow_label")
    BITS: ClassVar[dict[str, int]] = {
        "src": 128,
        "dst": 128,
        "proto": 8,
        "sport": 16,
        "dport": 16,
        "vlan": 12,
        "flow_label": 20,
    }

    src: int
    dst: int
    proto: int
    sport: int
    dport: int
    vlan: int
    flow_label: int
    action: SetMark
    rates: Rates | None = None  # None: every packet is green
    idle_timeout_ns: int = 0  # 0: never


@dataclass(frozen=True, slots=True, kw_only=True)
class Exceed(TableEntry):
    TABLE: ClassVar[str] = "exceed"
    MATCH: ClassVar[tuple[str, ...]] = ("slice", "bucket")
    BITS: ClassVar[dict[str, int]] = {"slice": 4, "bucket": 2}

    slice: int
    bucket: int
    action: Degrade | Reroute | MetersDrop


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkToDscp(TableEntry):
    TABLE: ClassVar[str] = "mark_to_dscp"
    MATCH: ClassVar[tuple[str, ...]] = ("slice", "tc")
    BITS: ClassVar[dict[str, int]] = {"slice": 4, "tc": 2}

    slice: int
    tc: int
    action: SetDscp


@dataclass(frozen=True, slots=True, kw_only=True)
class IntSource(TableEntry):
    TABLE: ClassVar[str] = "int_source"
    MATCH: ClassVar[tuple[str, ...]] = ("ingress_port", "src", "dst", "proto", "sport", "dport", "vlan")
    BITS: ClassVar[dict[str, int]] = {
        "ingress_port": 9,
        "src": 128,
        "dst": 128,
        "proto": 8,
        "sport": 16,
        "dport": 16,
        "vlan": 12,
    }

    ingress_port: Ternary = ANY
    src: Ternary = ANY
    dst: Ternary = ANY
    proto: Ternary = ANY
    sport: Ternary = ANY
    dport: Ternary = ANY
    vlan: Ternary = ANY
    priority: int  # the highest wins
    action: IntMd | IntXd | NoInt


@dataclass(frozen=True, slots=True, kw_only=True)
class IntNode(TableEntry):
    TABLE: ClassVar[str] = "int_node"
    MATCH: ClassVar[tuple[str, ...]] = ("port",)
    BITS: ClassVar[dict[str, int]] = {"port": 9}

    port: int
    action: SetNode


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressPort(TableEntry):
    TABLE: ClassVar[str] = "ingress_port"
    MATCH: ClassVar[tuple[str, ...]] = ("port",)
    BITS: ClassVar[dict[str, int]] = {"port": 9}

    port: int
    action: ConfigurePort


@dataclass(frozen=True, slots=True, kw_only=True)
class IntCollector(TableEntry):
    TABLE: ClassVar[str] = "int_collector"
    MATCH: ClassVar[tuple[str, ...]] = ()
    BITS: ClassVar[dict[str, int]] = {}

    action: SetCollector


ACTIONS: Final[dict[str, type[Action]]] = {
    "NoAction": NoAction,
    "forward.drop": ForwardDrop,
    "to_controller": ToController,
    "route": Route,
    "to_port": ToPort,
    "flood": Flood,
    "set_slice": SetSlice,
    "set_mark": SetMark,
    "read_dscp": ReadDscp,
    "degrade": Degrade,
    "reroute": Reroute,
    "meters.drop": MetersDrop,
    "set_dscp": SetDscp,
    "emit": Emit,
    "clear": Clear,
    "no_int": NoInt,
    "int_md": IntMd,
    "int_xd": IntXd,
    "set_node": SetNode,
    "configure_port": ConfigurePort,
    "count_parsed": CountParsed,
    "set_collector": SetCollector,
}
TABLES: Final[dict[str, type[TableEntry]]] = {
    "forward_v4": ForwardV4,
    "forward_v6": ForwardV6,
    "forward_l2": ForwardL2,
    "dscp_to_mark": DscpToMark,
    "slice_select": SliceSelect,
    "microflow": Microflow,
    "exceed": Exceed,
    "mark_to_dscp": MarkToDscp,
    "int_source": IntSource,
    "int_node": IntNode,
    "ingress_port": IngressPort,
    "int_collector": IntCollector,
}
#: What becomes of packets that no entry matches, in tables where that can be changed.
DEFAULTS: Final[dict[str, Action]] = {
    "forward_l2": NoAction(),
    "exceed": Degrade(),
    "int_collector": NoAction(),
}
