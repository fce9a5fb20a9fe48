"""Table entries a second through P4Runtime: dinnet's switch against BMv2, driven by the same client.

Micro-flows are inserted, in batches and one a call, into empty tables; then 100,000 are inserted into dinnet's switch,
read back and compared, and then as many as fit, a million. Both switches run as processes of their own, the client in
this one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from harness import cannot_run, figure, in_turn, report
from switchrun import dinnet_switch

ROUNDS = 2
BATCHED, SINGLE, MANY = 4_000, 1_000, 100_000
MOST = 1 << 20


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


async def fill() -> list[str]:
    """Fill the table, and one entry more; what that took."""
    from dinnet.dataplane.conformance.wires import wires
    from dinnet.dataplane.errors import WriteFailed

    entries = microflows(MOST + 1)
    with wires(2) as ports, tempfile.TemporaryDirectory(prefix="dinnet-bench-") as folder:
        async with dinnet_switch(ports, Path(folder), f"{{microflows: {MOST}}}") as running:
            empty = running.memory_mib()
            started = time.perf_counter()
            await running.session.insert(entries[:-1])
            seconds = time.perf_counter() - started
            full = running.memory_mib()
            try:
                await running.session.insert(entries[-1:])
                raise RuntimeError("an entry more than fit was taken")
            except WriteFailed as error:
                (failure,) = error.failures
    return [
        f"{MOST:,} micro-flows inserted in {seconds:.0f} s ({MOST / seconds:,.0f} entries/s); one more: {failure.code}",
        f"Memory of the server, empty and full: {empty[0]:,.0f} and {full[0]:,.0f} MiB; of the maps in the kernel: "
        f"{empty[1]:,.0f} and {full[1]:,.0f} MiB",
    ]


def measure(binary: Path) -> None:
    from dinnet.dataplane.conformance.systems import bmv2, bmv2_version
    from dinnet.dataplane.conformance.wires import wires
    from dinnet.dataplane.program import dinnet_program

    def ours(ports: object, folder: Path) -> object:
        @contextlib.asynccontextmanager
        async def session() -> AsyncIterator[object]:
            async with dinnet_switch(ports, folder) as running:
                yield running.session

        return session()

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

        own, peer = in_turn(ROUNDS, [lambda s=side: s(ours), lambda s=side: s(theirs)])
        figures.append(figure(f"micro-flows inserted, {name}", "entries/s", own, "BMv2", peer))
    seconds = [run(ours, lambda session: round_trip(session, microflows(MANY))) for _ in range(ROUNDS)]
    goal = figure(f"{MANY:,} micro-flows written, read back, compared", "s", seconds, "goal", [20.0] * ROUNDS)
    report([*figures, goal], [*asyncio.run(fill()), f"BMv2 {bmv2_version(binary)}"])


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
