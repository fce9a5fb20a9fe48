"""`dinnet switch up` as a process of its own, and what it takes of memory."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PATIENCE_S = 120.0


@dataclass(frozen=True)
class Running:
    session: Any  # that is primary
    pid: int
    namespace: str

    def memory_mib(self) -> tuple[float, float]:
        """Of the server process (resident), and of the maps that it holds (in the kernel)."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        resident_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
        maps = {}
        for entry in Path(f"/proc/{self.pid}/fdinfo").iterdir():
            fields = dict(line.split(":", 1) for line in entry.read_text().splitlines() if ":" in line)
            if "map_id" in fields:
                maps[int(fields["map_id"])] = int(fields["memlock"])
        return resident_kib / 1024, sum(maps.values()) / (1 << 20)


@contextlib.asynccontextmanager
async def dinnet_switch(ports: Any, folder: Path, tables: str = "{}") -> AsyncIterator[Running]:
    """A switch on the ports of `dinnet.dataplane.conformance.wires`; `tables` as in its configuration file."""
    from dinnet.dataplane.program import dinnet_program
    from dinnet.dataplane.session import connected
    from dinnet.switch.attach import take_down

    address = f"unix:{folder}/p4rt"
    config, log = folder / "switch.yaml", folder / "log"
    listed = ", ".join(f"{port}: p{port}" for port in ports.ports)
    namespace = ports.namespace
    config.write_text(
        f"netns: {namespace}\nports: {{{listed}}}\np4runtime: {{listen: '{address}'}}\ntables: {tables}\n"
    )
    with log.open("wb") as out:
        process = subprocess.Popen([sys.executable, "-m", "dinnet", "switch", "up", "-c", str(config)], stderr=out)
    try:
        end = time.monotonic() + _PATIENCE_S
        while "P4Runtime on" not in log.read_text():
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the switch does not come up: {log.read_text().strip()}")
            await asyncio.sleep(0.05)
        async with connected(address, dinnet_program()) as session:
            await session.until_primary()
            yield Running(session, process.pid, namespace)
    finally:
        process.terminate()
        process.wait()
        await asyncio.to_thread(take_down, namespace)
