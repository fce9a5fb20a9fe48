"""What queue telemetry costs a packet: the switch before an HTB that never holds a packet back, with it and without.

The kernel itself sends (see switch_vs_bridge.py). Every packet enters a queue and leaves it, so both tracepoints run.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time

from harness import cannot_run, figure, in_turn, report
from switch_vs_bridge import DST, fill, frame, generator, received, send, wires

from dinnet.errors import DinnetError
from dinnet.netns import inside
from dinnet.switch.attach import PortConfig, Switch
from dinnet.switch.contract import Action, Forward, Sizes
from dinnet.switch.queues import measuring, misses, read

ROUNDS = int(os.environ.get("ROUNDS", "9"))
PACKETS = int(os.environ.get("PACKETS", "500000"))
NAME = f"dinnet-bench{os.getpid()}-q"
BYTES_PER_SECOND = 12_500_000_000


def main() -> None:
    try:
        fd = generator()
        with wires(NAME) as (ip, source):
            out = ip.link_lookup(ifname="s1")[0]
            with inside(NAME):
                ip.tc("add", "htb", out, 0x10000, default=0x10)
                for minor in (0x10, 0x17):  # the default, and the queue of slice 1, traffic class 3
                    ip.tc("add-class", "htb", out, 0x10000 | minor, parent=0x10000, rate=BYTES_PER_SECOND)
            ports = [PortConfig(1, "s0"), PortConfig(2, "s1")]
            with Switch.up(ports, namespace=NAME, sizes=Sizes(microflows=4096, flows=65536)) as switch:
                switch.datapath.station(0, DST, Forward(Action.PORT, 2))
                fill(switch.datapath, 2)

                def ns_a_packet(telemetry: bool) -> float:
                    with (
                        inside(NAME),
                        measuring(switch.datapath, NAME) if telemetry else contextlib.nullcontext(),
                    ):
                        send(fd, frame(64), source, PACKETS // 20)
                        before, start = received(ip), time.monotonic()
                        send(fd, frame(64), source, PACKETS)
                        took = time.monotonic() - start
                        if (lost := PACKETS - (received(ip) - before)) > 0.01 * PACKETS:
                            raise DinnetError(f"{lost} of {PACKETS} packets were lost")
                        return took / PACKETS * 1e9

                with_it, without = in_turn(ROUNDS, [lambda: ns_a_packet(True), lambda: ns_a_packet(False)])
                timed = sum(queue.timed for queue in read(switch.datapath))
                missed = sum(cell.packets for cell in misses(switch.datapath).values())
                switch.down()
        os.close(fd)
    except (DinnetError, ImportError) as error:
        cannot_run(str(error))
    added = [mine - other for mine, other in zip(with_it, without, strict=True)]
    notes = [
        f"added: {statistics.median(added):.0f} ns a packet (the median of the rounds' own differences, which go from "
        f"{min(added):.0f} to {max(added):.0f})",
        f"{timed:,} packets were timed, {missed:,} were not",
    ]
    report([figure("queue_telemetry", "ns/packet", with_it, "the same without it", without)], notes)


if __name__ == "__main__":
    main()
