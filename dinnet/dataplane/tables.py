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

    port: int  # 9 bits
    src: int  # 48 bits
    dst: int  # 48 bits


@dataclass(frozen=True, slots=True)
class ToPort(Action):
    ALIAS: ClassVar[str] = "to_port"

    port: int  # 9 bits


@dataclass(frozen=True, slots=True)
class Flood(Action):
    ALIAS: ClassVar[str] = "flood"

    group: int  # 16 bits


@dataclass(frozen=True, slots=True)
class SetSlice(Action):
    ALIAS: ClassVar[str] = "set_slice"

    slice: int  # 4 bits
    tc: int  # 2 bits


@dataclass(frozen=True, slots=True)
class SetMark(Action):
    ALIAS: ClassVar[str] = "set_mark"

    slice: int  # 4 bits
    tc: int  # 2 bits
    microflow_id: int  # 32 bits


@dataclass(frozen=True, slots=True)
class ReadDscp(Action):
    ALIAS: ClassVar[str] = "read_dscp"

    slice: int  # 4 bits
    tc: int  # 2 bits


@dataclass(frozen=True, slots=True)
class Degrade(Action):
    ALIAS: ClassVar[str] = "degrade"


@dataclass(frozen=True, slots=True)
class Reroute(Action):
    ALIAS: ClassVar[str] = "reroute"

    port: int  # 9 bits
    src: int  # 48 bits
    dst: int  # 48 bits


@dataclass(frozen=True, slots=True)
class MetersDrop(Action):
    ALIAS: ClassVar[str] = "meters.drop"


@dataclass(frozen=True, slots=True)
class SetDscp(Action):
    ALIAS: ClassVar[str] = "set_dscp"

    dscp: int  # 6 bits


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

    instructions: int  # 16 bits
    hops: int  # 8 bits


@dataclass(frozen=True, slots=True)
class IntXd(Action):
    ALIAS: ClassVar[str] = "int_xd"

    instructions: int  # 16 bits


@dataclass(frozen=True, slots=True)
class SetNode(Action):
    ALIAS: ClassVar[str] = "set_node"

    node_id: int  # 32 bits
    is_sink: int  # 1 bits
    mtu: int  # 16 bits


@dataclass(frozen=True, slots=True)
class ConfigurePort(Action):
    ALIAS: ClassVar[str] = "configure_port"

    trusted: int  # 1 bits
    flow_labels: int  # 1 bits


@dataclass(frozen=True, slots=True)
class CountParsed(Action):
    ALIAS: ClassVar[str] = "count_parsed"


@dataclass(frozen=True, slots=True)
class SetCollector(Action):
    ALIAS: ClassVar[str] = "set_collector"

    src_mac: int  # 48 bits
    dst_mac: int  # 48 bits
    src: int  # 32 bits
    dst: int  # 32 bits
    sport: int  # 16 bits
    dport: int  # 16 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardV4(TableEntry):
    TABLE: ClassVar[str] = "forward_v4"
    MATCH: ClassVar[tuple[str, ...]] = ("dst",)

    dst: Lpm  # 32 bits
    action: Route | ForwardDrop | ToController


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardV6(TableEntry):
    TABLE: ClassVar[str] = "forward_v6"
    MATCH: ClassVar[tuple[str, ...]] = ("dst",)

    dst: Lpm  # 128 bits
    action: Route | ForwardDrop | ToController


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardL2(TableEntry):
    TABLE: ClassVar[str] = "forward_l2"
    MATCH: ClassVar[tuple[str, ...]] = ("vlan", "dst")

    vlan: int  # 12 bits
    dst: int  # 48 bits
    action: ToPort | Flood | ForwardDrop | ToController


@dataclass(frozen=True, slots=True, kw_only=True)
class DscpToMark(TableEntry):
    TABLE: ClassVar[str] = "dscp_to_mark"
    MATCH: ClassVar[tuple[str, ...]] = ("dscp",)

    dscp: int  # 6 bits
    action: ReadDscp


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceSelect(TableEntry):
    TABLE: ClassVar[str] = "slice_select"
    MATCH: ClassVar[tuple[str, ...]] = ("ingress_port", "src", "dst", "proto", "sport", "dport", "vlan")

    ingress_port: Ternary = ANY  # 9 bits
    src: Ternary = ANY  # 128 bits
    dst: Ternary = ANY  # 128 bits
    proto: Ternary = ANY  # 8 bits
    sport: Ternary = ANY  # 16 bits
    dport: Ternary = ANY  # 16 bits
    vlan: Ternary = ANY  # 12 bits
    priority: int  # the highest wins
    action: SetSlice


@dataclass(frozen=True, slots=True, kw_only=True)
class Microflow(TableEntry):
    TABLE: ClassVar[str] = "microflow"
    MATCH: ClassVar[tuple[str, ...]] = ("src", "dst", "proto", "sport", "dport", "vlan", "flow_label")

    src: int  # 128 bits
    dst: int  # 128 bits
    proto: int  # 8 bits
    sport: int  # 16 bits
    dport: int  # 16 bits
    vlan: int  # 12 bits
    flow_label: int  # 20 bits
    action: SetMark
    rates: Rates | None = None  # None: every packet is green
    idle_timeout_ns: int = 0  # 0: never


@dataclass(frozen=True, slots=True, kw_only=True)
class Exceed(TableEntry):
    TABLE: ClassVar[str] = "exceed"
    MATCH: ClassVar[tuple[str, ...]] = ("slice", "bucket")

    slice: int  # 4 bits
    bucket: int  # 2 bits
    action: Degrade | Reroute | MetersDrop


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkToDscp(TableEntry):
    TABLE: ClassVar[str] = "mark_to_dscp"
    MATCH: ClassVar[tuple[str, ...]] = ("slice", "tc")

    slice: int  # 4 bits
    tc: int  # 2 bits
    action: SetDscp


@dataclass(frozen=True, slots=True, kw_only=True)
class IntSource(TableEntry):
    TABLE: ClassVar[str] = "int_source"
    MATCH: ClassVar[tuple[str, ...]] = ("ingress_port", "src", "dst", "proto", "sport", "dport", "vlan")

    ingress_port: Ternary = ANY  # 9 bits
    src: Ternary = ANY  # 128 bits
    dst: Ternary = ANY  # 128 bits
    proto: Ternary = ANY  # 8 bits
    sport: Ternary = ANY  # 16 bits
    dport: Ternary = ANY  # 16 bits
    vlan: Ternary = ANY  # 12 bits
    priority: int  # the highest wins
    action: IntMd | IntXd | NoInt


@dataclass(frozen=True, slots=True, kw_only=True)
class IntNode(TableEntry):
    TABLE: ClassVar[str] = "int_node"
    MATCH: ClassVar[tuple[str, ...]] = ("port",)

    port: int  # 9 bits
    action: SetNode


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressPort(TableEntry):
    TABLE: ClassVar[str] = "ingress_port"
    MATCH: ClassVar[tuple[str, ...]] = ("port",)

    port: int  # 9 bits
    action: ConfigurePort


@dataclass(frozen=True, slots=True, kw_only=True)
class IntCollector(TableEntry):
    TABLE: ClassVar[str] = "int_collector"
    MATCH: ClassVar[tuple[str, ...]] = ()

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
