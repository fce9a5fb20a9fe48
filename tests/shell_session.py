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


def session() -> dict[str, object]:
    seen: dict[str, object] = {}
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
    if not blobs:
        blobs = [str(Path(p4info).with_suffix(".json"))]
        Path(blobs[0]).write_bytes(b"{}")
    config = sh.FwdPipeConfig(p4info, blobs[0])
    sh.setup(device_id=1, grpc_addr=address, election_id=(0, 1), config=config, verbose=False)
    try:
        sys.stdout.write(json.dumps(session()) + "\n")
    finally:
        sh.teardown()


if __name__ == "__main__":
    main()
