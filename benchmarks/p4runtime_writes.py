"""Table entries a second through P4Runtime: dinnet's switch against BMv2, driven by the same client.

Micro-flows are inserted, in batches and one a call, into empty tables; then 100,000 are inserted into dinnet's switch,
read back and compared. Both switches run as processes of their own, the client in this one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from harness import cannot_run, figure, in_turn, report

ROUNDS = 3
BATCHED, SINGLE, MANY = 5_000, 300, 100_000
PATIENCE_S = 60.0


def microflows(count: int) -> list[object]:
    """Different conversations of one host, each with a mark."""
    from dinnet.dataplane.tables import Microflow, SetMark

    source = 0xFFFF_0A00_0001
    return [
        Microflow(
            src=source, dst=0xFFFF_0A01_0000 + (number >> 8), proto=6, sport=1024 + (number & 0xFF), dport=443, vlan=0,
            flow_label=0, action=SetMark(slice=1, tc=number & 3, microflow_id=number),
        )
        for number in range(count)
    ]  # fmt: skip


@contextlib.asynccontextmanager
async def dinnet_switch(ports: object, folder: Path) -> AsyncIterator[object]:
    """`dinnet switch up` on the ports, and a session with it that is primary."""
    from dinnet.dataplane.program import dinnet_program
    from dinnet.dataplane.session import connected
    from dinnet.switch.attach import take_down

    address = f"unix:{folder}/p4rt"
    config, log = folder / "switch.yaml", folder / "log"
    listed = ", ".join(f"{port}: p{port}" for port in ports.ports)  # type: ignore[attr-defined]
    namespace = ports.namespace  # type: ignore[attr-defined]
    config.write_text(f"netns: {namespace}\nports: {{{listed}}}\np4runtime: {{listen: '{address}'}}\n")
    with log.open("wb") as out:
        process = subprocess.Popen([sys.executable, "-m", "dinnet", "switch", "up", "-c", str(config)], stderr=out)
    try:
        end = time.monotonic() + PATIENCE_S
        while "P4Runtime on" not in log.read_text():
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the switch does not come up: {log.read_text().strip()}")
            await asyncio.sleep(0.05)
        async with connected(address, dinnet_program()) as session:
            await session.until_primary()
            yield session
    finally:
        process.terminate()
        process.wait()
        await asyncio.to_thread(take_down, namespace)


async def timed_inserts(session: object, entries: list[object], batch: int) -> float:
    """Entries a second into empty tables."""
    await session.replace_pipeline()  # type: ignore[attr-defined]
    started = time.perf_counter()
    if batch > 1:
        await session.insert(entries)  # type: ignore[attr-defined] # which makes batches of 1,000
    else:
        for entry in entries:
            await session.insert([entry])  # type: ignore[attr-defined]
    return len(entries) / (time.perf_counter() - started)


async def round_trip(session: object, entries: list[object]) -> float:
    """Seconds to insert, read back and compare."""
    await session.replace_pipeline()  # type: ignore[attr-defined]
    started = time.perf_counter()
    await session.insert(entries)  # type: ignore[attr-defined]
    changes = await session.reconcile(entries)  # type: ignore[attr-defined]
    seconds = time.perf_counter() - started
    if changes.insert or changes.modify or changes.delete:
        raise RuntimeError("what was read back is not what was written")
    return seconds


def measure(binary: Path) -> None:
    from dinnet.dataplane.conformance.systems import bmv2, bmv2_version
    from dinnet.dataplane.conformance.wires import wires
    from dinnet.dataplane.program import dinnet_program

    def run(make: Callable[[object, Path], object], work: Callable[[object], object]) -> float:
        async def go() -> float:
            with wires(2) as ports, tempfile.TemporaryDirectory(prefix="dinnet-bench-") as folder:
                async with make(ports, Path(folder)) as session:  # type: ignore[attr-defined]
                    return float(await work(session))  # type: ignore[misc]

        return asyncio.run(go())

    def theirs(ports: object, folder: Path) -> object:
        return bmv2(binary, ports, dinnet_program())  # type: ignore[arg-type]

    figures = []
    for name, count, batch in (("batches of 1,000", BATCHED, 1000), ("one a call", SINGLE, 1)):
        entries = microflows(count)

        def side(make: Callable[[object, Path], object], entries: list[object] = entries, batch: int = batch) -> float:
            return run(make, lambda session: timed_inserts(session, entries, batch))

        ours, peer = in_turn(ROUNDS, [lambda s=side: s(dinnet_switch), lambda s=side: s(theirs)])
        figures.append(figure(f"micro-flows inserted, {name}", "entries/s", ours, "BMv2", peer))
    seconds = [run(dinnet_switch, lambda session: round_trip(session, microflows(MANY))) for _ in range(ROUNDS)]
    goal = figure(f"{MANY:,} micro-flows written, read back, compared", "s", seconds, "goal", [20.0] * ROUNDS)
    report([*figures, goal], [f"BMv2 {bmv2_version(binary)}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bmv2", type=Path, help="simple_switch_grpc; by default the one on the PATH")
    given = parser.parse_args()
    binary = given.bmv2 or shutil.which("simple_switch_grpc")
    if os.geteuid() != 0:
        cannot_run("loading the switch needs root")
    if binary is None:
        cannot_run("BMv2's simple_switch_grpc is not on the PATH")
    measure(Path(binary))


if __name__ == "__main__":
    main()
