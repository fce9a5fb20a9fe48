"""Every nth golden vector of every file, played on the embedded switch of the kernel that this runs on (root).

`play_vectors.py STEP` prints where the outcome differs from BMv2's (exit code 1), then, as its last line, one JSON
object: the kernel's release, how many instructions its verifier went through, whether queues are measured, and how many
vectors of each file were played.
"""

from __future__ import annotations

import asyncio
import ctypes as c
import json
import os
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from dinnet.dataplane.conformance.player import PORTS, Player, differences
from dinnet.dataplane.conformance.systems import embedded
from dinnet.dataplane.conformance.vectors import Result, load
from dinnet.dataplane.conformance.wires import wires
from dinnet.dataplane.program import dinnet_program
from dinnet.switch import queues
from dinnet.switch.contract import Sizes
from dinnet.switch.datapath import Datapath
from dinnet.switch.libbpf import check, library

VECTORS = Path(__file__).parents[1] / "conformance/vectors"
GRACE_S = 0.01
COLLECTOR_PORT = "7ffe"
"""That the vectors' reports go to."""
VERIFIED_AT = 216
"""Where struct bpf_prog_info of linux/bpf.h has verified_insns."""


def verified() -> int:
    """Instructions that the verifier went through for the program."""
    with Datapath.load(Sizes(microflows=64, flows=64)) as datapath:
        info = c.create_string_buffer(VERIFIED_AT + 4)
        size = c.c_uint32(len(info))
        check(library().bpf_obj_get_info_by_fd(datapath.program.fd, info, c.byref(size)), "cannot read about it")
        return int.from_bytes(info.raw[VERIFIED_AT:], sys.byteorder)


def measures_queues() -> bool:
    """Whether the tracing programs load and attach, too."""
    with Datapath.load(Sizes(microflows=64, flows=64)) as datapath, queues.measuring(datapath):
        return queues.is_measuring(datapath)


def without_sequence(result: Result) -> Result:
    """The same with reports' sequence numbers 0: they count the reports of the vectors before, which are not played.

    It is the low 22 bits of the word behind Ethernet, IPv4 and UDP (Telemetry Report 2.0, 3.1).
    """

    def zeroed(sent: dict[str, Any]) -> dict[str, Any]:
        packet = sent["packet"]
        if packet[24:28] == "0800" and packet[46:48] == "11" and packet[72:76] == COLLECTOR_PORT:
            word = int(packet[84:92], 16) & ~0x3FFFFF
            return {**sent, "packet": f"{packet[:84]}{word:08x}{packet[92:]}"}
        return sent

    return replace(result, steps=tuple(replace(seen, out=[*map(zeroed, seen.out)]) for seen in result.steps))


async def play(step: int) -> tuple[Counter[str], list[str]]:
    played: Counter[str] = Counter()
    found = []
    with wires(PORTS) as ports:
        async with embedded(ports, dinnet_program()) as session:
            player = Player(session, ports, GRACE_S)
            for path in sorted(VECTORS.glob("*.json")):
                await player.begin()
                for vector in load(path).vectors[::step]:
                    assert vector.expected is not None
                    seen = without_sequence(await player.play(vector))
                    lines = differences(without_sequence(vector.expected), seen)
                    found += [f"{path.stem}, {vector.name}: {line}" for line in lines]
                    played[path.stem] += 1
    return played, found


if __name__ == "__main__":
    instructions, measured = verified(), measures_queues()
    counts, wrong = asyncio.run(play(int(sys.argv[1])))
    told = {"release": os.uname().release, "verified": instructions, "queues": measured, "played": counts}
    sys.stdout.writelines(f"{line}\n" for line in [*wrong, json.dumps(told)])
    sys.exit(1 if wrong else 0)
