"""The P4Info of a pipeline like dinnet's, by hand: what p4c makes of `p4/dinnet.p4` must not be needed here."""

from __future__ import annotations

from finsy.proto import p4i

PORT, MAC, V4, V6 = 9, 48, 32, 128

_ACTIONS: dict[str, list[tuple[str, int]]] = {
    "NoAction": [],
    "configure_port": [("trusted", 1), ("flow_labels", 1)],
    "route": [("port", PORT), ("src", MAC), ("dst", MAC)],
    "drop": [],
    "to_controller": [],
    "to_port": [("port", PORT)],
    "flood": [("group", 16)],
    "read_dscp": [("slice", 4), ("tc", 2)],
    "set_slice": [("slice", 4), ("tc", 2)],
    "set_mark": [("slice", 4), ("tc", 2), ("microflow_id", 32)],
    "degrade": [],
    "reroute": [("port", PORT), ("src", MAC), ("dst", MAC)],
    "set_dscp": [("dscp", 6)],
}
ACTIONS = {name: 0x01000001 + place for place, name in enumerate(_ACTIONS)}

_E, _L, _T = p4i.MatchField.EXACT, p4i.MatchField.LPM, p4i.MatchField.TERNARY
_FIVE = [("src", V6), ("dst", V6), ("proto", 8), ("sport", 16), ("dport", 16), ("vlan", 12)]
#: name -> fields (name, kind, bits), actions, size
_TABLES = {
    "ingress_port": ([("port", _E, PORT)], ["configure_port"], 512),
    "forward_v4": ([("dst", _L, V4)], ["route", "drop", "to_controller"], 65536),
    "forward_v6": ([("dst", _L, V6)], ["route", "drop", "to_controller"], 65536),
    "forward_l2": ([("vlan", _E, 12), ("dst", _E, MAC)], ["to_port", "flood", "drop", "to_controller"], 65536),
    "dscp_to_mark": ([("dscp", _E, 6)], ["read_dscp"], 64),
    "slice_select": ([(n, _T, w) for n, w in [("ingress_port", PORT), *_FIVE]], ["set_slice"], 4096),
    "microflow": ([(n, _E, w) for n, w in [*_FIVE, ("flow_label", 20)]], ["set_mark"], 1048576),
    "exceed": ([("slice", _E, 4), ("bucket", _E, 2)], ["degrade", "reroute", "drop"], 64),
    "mark_to_dscp": ([("slice", _E, 4), ("tc", _E, 2)], ["set_dscp"], 64),
}
TABLES = {name: 0x02000001 + place for place, name in enumerate(_TABLES)}
_MODIFIABLE_DEFAULTS = {"forward_l2": "NoAction", "exceed": "degrade"}

COUNTERS = {
    name: 0x12000001 + place for place, name in enumerate(["drops", "parsed", "marked", "exceeded", "collisions"])
}
_COUNTER_SIZES = [8, 8, 256, 256, 1]
SLICE_SELECT_COUNTER, MICROFLOW_COUNTER = 0x13000001, 0x13000002
SLICE_METER, SLICE_METER_SIZE = 0x14000001, 512 * 16
MICROFLOW_METER = 0x15000001
FLOW_RECORD = 0x17000001
#: Some of the digest's fields: plain ones, a wide one, and a serializable enum.
RECORD_FIELDS = [("src", 128), ("dst", 128), ("first_us", 48), ("sport", 16), ("end", 0), ("fwd_bytes", 64)]


def dinnet_p4info() -> p4i.P4Info:
    """A fresh message."""
    info = p4i.P4Info(pkg_info=p4i.PkgInfo(name="dinnet", arch="v1model"))
    for name, params in _ACTIONS.items():
        action = info.actions.add(preamble=_preamble(ACTIONS[name], f"Ingress.{name}" if params else name))
        for id, (param, width) in enumerate(params, 1):
            action.params.add(id=id, name=param, bitwidth=width)
    for name, (fields, actions, size) in _TABLES.items():
        table = info.tables.add(preamble=_preamble(TABLES[name], f"Ingress.{name}"), size=size)
        for id, (field, kind, width) in enumerate(fields, 1):
            table.match_fields.add(id=id, name=field, match_type=kind, bitwidth=width)
        for action in actions:
            table.action_refs.add(id=ACTIONS[action])
        default = _MODIFIABLE_DEFAULTS.get(name)
        if default is None:
            table.const_default_action_id = ACTIONS["NoAction"]
        table.initial_default_action.action_id = ACTIONS[default or "NoAction"]
        if default != "degrade":
            table.action_refs.add(id=ACTIONS["NoAction"], scope=p4i.ActionRef.DEFAULT_ONLY)
    both = p4i.CounterSpec(unit=p4i.CounterSpec.BOTH)
    for (name, id), size in zip(COUNTERS.items(), _COUNTER_SIZES, strict=True):
        info.counters.add(preamble=_preamble(id, name), spec=both, size=size)
    for id, name in ((SLICE_SELECT_COUNTER, "slice_select"), (MICROFLOW_COUNTER, "microflow")):
        counter = info.direct_counters.add(preamble=_preamble(id, f"{name}_counter"), spec=both)
        counter.direct_table_id = TABLES[name]
        _table(info, name).direct_resource_ids.append(id)
    in_bytes = p4i.MeterSpec(unit=p4i.MeterSpec.BYTES)
    info.meters.add(preamble=_preamble(SLICE_METER, "slice_meter"), spec=in_bytes, size=SLICE_METER_SIZE)
    meter = info.direct_meters.add(preamble=_preamble(MICROFLOW_METER, "microflow_meter"), spec=in_bytes)
    meter.direct_table_id = TABLES["microflow"]
    microflow = _table(info, "microflow")
    microflow.direct_resource_ids.append(MICROFLOW_METER)
    microflow.idle_timeout_behavior = p4i.Table.NOTIFY_CONTROL
    for id, (name, port) in enumerate((("packet_in", "ingress_port"), ("packet_out", "egress_port")), 1):
        header = info.controller_packet_metadata.add(preamble=_preamble(0x04000000 + id, name))
        header.metadata.add(id=1, name=port, bitwidth=PORT)
        header.metadata.add(id=2, name="pad", bitwidth=7)
    _add_digest(info)
    return info


def _add_digest(info: p4i.P4Info) -> None:
    digest = info.digests.add(preamble=_preamble(FLOW_RECORD, "flow_record_t"))
    digest.type_spec.struct.name = "flow_record_t"
    info.type_info.serializable_enums["end_t"].underlying_type.bitwidth = 8
    for name, width in RECORD_FIELDS:
        member = info.type_info.structs["flow_record_t"].members.add(name=name)
        if width:
            member.type_spec.bitstring.bit.bitwidth = width
        else:
            member.type_spec.serializable_enum.name = "end_t"


def _preamble(id: int, name: str) -> p4i.Preamble:
    return p4i.Preamble(id=id, name=name, alias=name.rpartition(".")[2])


def _table(info: p4i.P4Info, name: str) -> p4i.Table:
    return next(table for table in info.tables if table.preamble.id == TABLES[name])
