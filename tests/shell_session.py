"""A session of p4runtime-shell, run by its own interpreter: `ADDRESS P4INFO [DEVICE_CONFIG]`.

Prints one JSON object of what it saw.

Nothing of dinnet may be imported here: the shell needs a protobuf that dinnet does not live with.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import p4runtime_sh.shell as sh  # type: ignore[import-not-found]
from p4runtime_sh.p4runtime import P4RuntimeWriteException  # type: ignore[import-not-found]

MICROFLOW = {
    "src": "::ffff:10.0.0.1",
    "dst": "::ffff:10.0.0.2",
    "proto": "6",
    "sport": "1000",
    "dport": "443",
    "vlan": "0",
    "flow_label": "0",
}


def microflow() -> sh.TableEntry:
    entry = sh.TableEntry("microflow")(action="set_mark")
    for name, value in MICROFLOW.items():
        entry.match[name] = value
    entry.action["slice"], entry.action["tc"], entry.action["microflow_id"] = "1", "3", "7"
    meter = entry.meter_config
    meter.cir, meter.cburst, meter.pir, meter.pburst = 1, 2, 3, 4
    return entry


ENTRIES = (
    # table, action, its parameters, other ones for the modification, match, priority
    ("ingress_port", "configure_port", {"trusted": "1", "flow_labels": "0"}, {"flow_labels": "1"}, {"port": "3"}, 0),
    ("forward_v4", "route", {"port": "2", "src": "02:00:00:00:00:01", "dst": "02:00:00:00:00:02"}, {"port": "4"},
     {"dst": "10.0.0.0/8"}, 0),
    ("forward_v6", "to_controller", {}, {}, {"dst": "2001:db8::/32"}, 0),
    ("forward_l2", "to_port", {"port": "5"}, {"port": "6"}, {"vlan": "7", "dst": "02:00:00:00:00:09"}, 0),
    ("dscp_to_mark", "read_dscp", {"slice": "1", "tc": "3"}, {"tc": "2"}, {"dscp": "46"}, 0),
    ("mark_to_dscp", "set_dscp", {"dscp": "46"}, {"dscp": "34"}, {"slice": "1", "tc": "3"}, 0),
    ("slice_select", "set_slice", {"slice": "2", "tc": "1"}, {"slice": "3"}, {"proto": "6&&&0xff"}, 10),
    ("exceed", "reroute", {"port": "2", "src": "00:00:00:00:00:00", "dst": "00:00:00:00:00:00"}, {"port": "4"},
     {"slice": "1", "bucket": "2"}, 0),
    ("int_source", "int_md", {"instructions": "0xd000", "hops": "8"}, {"hops": "4"}, {"dport": "80&&&0xffff"}, 5),
    ("int_node", "set_node", {"node_id": "7", "is_sink": "1", "mtu": "1500"}, {"mtu": "9000"}, {"port": "2"}, 0),
)  # fmt: skip


def make(row: tuple[object, ...], params: dict[str, str]) -> sh.TableEntry:
    table, action, _, _, match, priority = row
    entry = sh.TableEntry(table)(action=action)
    for name, value in match.items():  # type: ignore[attr-defined]
        entry.match[name] = value
    for name, value in params.items():
        entry.action[name] = value
    if priority:
        entry.priority = priority
    return entry


def shortest(value: bytes) -> bytes:
    return value.lstrip(b"\0") or b"\0"


def is_shortest(entry: sh.TableEntry) -> bool:
    """Whether values were read in their shortest bytes, as the specification demands."""
    message = entry.msg()
    values = [param.value for param in message.action.action.params]
    values += [match.exact.value for match in message.match if match.HasField("exact")]
    return all(value == shortest(value) for value in values)


def plain(entry: sh.TableEntry) -> list[object]:
    """What an entry says, in whatever order, with the shortest bytes: the shell writes as many as fit the field."""
    message = entry.msg()
    call = message.action.action
    for param in call.params:
        param.value = shortest(param.value)
    for match in message.match:
        if match.HasField("exact"):
            match.exact.value = shortest(match.exact.value)
        if match.HasField("ternary"):
            match.ternary.value = shortest(match.ternary.value)
    return [sorted(map(str, message.match)), call.action_id, sorted(map(str, call.params)), message.priority]


def every_table() -> dict[str, list[object]]:
    """Insert, modify, read and delete in each table; what was read, and what was left."""
    seen: dict[str, list[object]] = {}
    for row in ENTRIES:
        table, params, changed = str(row[0]), row[2], row[3]
        make(row, params).insert()  # type: ignore[arg-type]
        entry = make(row, {**params, **changed})  # type: ignore[dict-item]
        entry.modify()
        found = list(sh.TableEntry(table).read())
        are_shortest = all(map(is_shortest, found))
        read = [plain(item) for item in found]
        entry.delete()
        seen[table] = [read == [plain(entry)], are_shortest, len(list(sh.TableEntry(table).read()))]
    return seen


def refused() -> list[object]:
    """Priority 0 in a ternary table, with a match and with wildcards all over."""
    codes: list[object] = []
    for row in ((*ENTRIES[6][:5], 0), (*ENTRIES[6][:4], {}, 0)):
        try:
            make(row, ENTRIES[6][2]).insert()  # type: ignore[arg-type]
            codes.append(0)
        except P4RuntimeWriteException as error:
            codes += [detail.canonical_code for _, detail in error.errors]
    return codes


def meters_and_counters() -> dict[str, object]:
    """An indexed meter set, read, and cleared."""
    meter = sh.MeterEntry("slice_meter")
    meter.index, meter.cir, meter.cburst, meter.pir, meter.pburst = 33, 10, 20, 30, 40
    meter.modify()
    read: list[object] = []
    again = sh.MeterEntry("slice_meter")
    again.index = 33
    again.read(lambda cell: read.append([cell.cir, cell.cburst, cell.pir, cell.pburst]))
    flow = microflow()
    flow.insert()
    counter = sh.DirectCounterEntry("microflow_counter")
    for name, value in MICROFLOW.items():
        counter.table_entry.match[name] = value
    counter.packet_count, counter.byte_count = 3, 200
    counter.modify()
    counts: list[object] = []
    sh.DirectCounterEntry("microflow_counter").read(lambda cell: counts.append([cell.packet_count, cell.byte_count]))
    flow.delete()
    return {"slice_meter": read, "microflow_counter": counts}


def records() -> dict[str, object]:
    """Four packets of one flow, from the controller into the pipeline, make a flow record, which comes as a digest.

    Where they go to is told to the controller: packet-outs come back as packet-ins.
    """
    digest = sh.DigestEntry("flow_record_t")
    digest.max_list_size, digest.max_timeout_ns = 10, 1000000
    digest.insert()
    route = sh.TableEntry("forward_v4")(action="to_controller")
    route.match["dst"] = "10.0.0.2/32"
    route.insert()
    frame = bytes.fromhex("02000000000202000000000108004500001d000000004011") + bytes(2)
    frame += bytes([10, 0, 0, 1, 10, 0, 0, 2]) + bytes.fromhex("03e8005000090000") + b"x"
    packet_in, got = sh.PacketIn(), []
    for _ in range(4):
        sh.PacketOut(frame, egress_port="511", pad="0").send()  # 511: as if it had come in
    packet_in.sniff(lambda packet: got.append(packet.packet.payload == frame), timeout=5)
    listed = next(iter(sh.DigestList().sniff(timeout=5)), None)
    route.delete()
    digest.delete()
    members = listed.digest.data[0].struct.members if listed is not None else []
    return {"packet_ins": got, "record_ports": [members[at].bitstring.hex() for at in (7, 8)] if members else None}


def session(is_switch: bool) -> dict[str, object]:
    """Where it is no real switch there are fewer tables, and no packets."""
    seen: dict[str, object] = {}
    if is_switch:
        seen = {"tables": every_table(), "refused": refused(), **meters_and_counters(), **records()}
    entry = microflow()
    entry.insert()
    try:
        entry.insert()
    except P4RuntimeWriteException as error:
        seen["duplicate"] = [(place, detail.canonical_code) for place, detail in error.errors]
    found = list(sh.TableEntry("microflow").read())
    seen["entries"] = [item.action["microflow_id"].value.hex() for item in found]
    meters: list[object] = []
    sh.DirectMeterEntry("microflow_meter").read(meters.append)
    seen["meters"] = [(meter.cir, meter.pburst) for meter in meters]  # type: ignore[attr-defined]
    default = sh.TableEntry("forward_l2")(action="flood", is_default=True)
    default.action["group"] = "1"
    default.modify()
    group = sh.MulticastGroupEntry(1).add(5, 1).add(6, 1)
    group.insert()
    groups: list[object] = []
    sh.MulticastGroupEntry(1).read(groups.append)
    seen["replicas"] = [(replica.egress_port, replica.instance) for replica in groups[0].replicas]  # type: ignore[attr-defined]
    counter = sh.CounterEntry("drops")
    counter.index, counter.packet_count = 1, 4
    counter.modify()
    cells: list[int] = []
    sh.CounterEntry("drops").read(lambda cell: cells.append(cell.packet_count))
    seen["drops"] = cells
    sh.PacketOut(bytes(14) + b"hello", egress_port="5", pad="0").send()
    entry.delete()
    seen["left"] = len(list(sh.TableEntry("microflow").read()))
    return seen


def main() -> None:
    address, p4info, *blobs = sys.argv[1:]
    is_switch = bool(blobs)
    if not is_switch:
        blobs = [str(Path(p4info).with_suffix(".json"))]
        Path(blobs[0]).write_bytes(b"{}")
    config = sh.FwdPipeConfig(p4info, blobs[0])
    sh.setup(device_id=1, grpc_addr=address, election_id=(0, 1), config=config, verbose=False)
    try:
        sys.stdout.write(json.dumps(session(is_switch)) + "\n")
    finally:
        sh.teardown()


if __name__ == "__main__":
    main()
