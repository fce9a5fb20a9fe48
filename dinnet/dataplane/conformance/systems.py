"""The switches that vectors are played on, each on the ports of some wires, with a session that is primary."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from dinnet.dataplane.conformance.wires import Wires
from dinnet.dataplane.errors import SessionLost
from dinnet.dataplane.program import Program
from dinnet.dataplane.session import Session, SessionOptions, connected
from dinnet.errors import DinnetError
from dinnet.netns import inside

CPU_PORT: Final = 510
_PATIENCE_S: Final = 30.0
_STOP_S: Final = 10.0
_ENTRIES: Final = 4096


def bmv2_version(binary: Path) -> str:
    """What `simple_switch_grpc --version` says.

    Raises:
        DinnetError: It cannot be run.
    """
    try:
        done = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, check=True, env=_environment(binary)
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise DinnetError(f"{binary}: cannot be run: {error}") from error
    return done.stdout.strip()


@asynccontextmanager
async def bmv2(binary: Path, wires: Wires, program: Program) -> AsyncIterator[Session]:
    """A BMv2 of its own, in the wires' namespace; gone at the end.

    Raises:
        DinnetError: It does not come up.
    """
    with tempfile.TemporaryDirectory(prefix="dinnet-bmv2-") as folder:
        socket = Path(folder, "p4rt")
        log = Path(folder, "log")
        ports = [argument for port in wires.ports for argument in ("-i", f"{port}@p{port}")]
        command = [
            str(binary), "--device-id", "1", "--no-p4", "-L", "off", "--thrift-port", "9090", *ports, "--",
            "--grpc-server-addr", f"unix:{socket}", "--cpu-port", str(CPU_PORT),
        ]  # fmt: skip
        with log.open("wb") as output, inside(wires.namespace):
            process = subprocess.Popen(
                command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=_environment(binary), cwd=folder
            )
        try:
            async with _connected_when_up(f"unix:{socket}", _small(program), process, log) as session:
                yield session
        finally:
            process.terminate()
            try:
                await asyncio.to_thread(process.wait, _STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _small(program: Program) -> Program:
    """The same with less room: BMv2 takes a kilobyte for each meter that there may be, and never gives it back."""
    config = json.loads(program.device_config)
    for table in (table for pipeline in config["pipelines"] for table in pipeline["tables"]):
        table["max_size"] = min(table["max_size"], _ENTRIES)
    for meter in config["meter_arrays"]:
        if meter["is_direct"]:
            meter["size"] = min(meter["size"], _ENTRIES)
    return replace(program, device_config=json.dumps(config).encode())


@asynccontextmanager
async def _connected_when_up(
    address: str, program: Program, process: subprocess.Popen[bytes], log: Path
) -> AsyncIterator[Session]:
    end = time.monotonic() + _PATIENCE_S
    session = Session(address, program, SessionOptions())
    while True:
        try:
            await session.open()
            break
        except SessionLost as error:
            if process.poll() is not None or time.monotonic() > end:
                said = log.read_text(errors="replace").strip().splitlines()[-3:]
                raise DinnetError(f"BMv2 does not come up: {error}: {' '.join(said)}") from error
            await asyncio.sleep(0.05)
            session = Session(address, program, SessionOptions())
    try:
        await session.until_primary()
        yield session
    finally:
        await session.close()


@asynccontextmanager
async def embedded(wires: Wires, program: Program) -> AsyncIterator[Session]:
    """dinnet's own switch, in this process; its filters are gone at the end.

    Raises:
        DinnetError: The kernel does not take it.
    """
    from dinnet.switch.attach import PortConfig, Switch
    from dinnet.switch.contract import Sizes
    from dinnet.switch.ebpf import EbpfTarget
    from dinnet.switch.server import ServerOptions, serving

    ports = [PortConfig(port, f"p{port}") for port in wires.ports]

    def up() -> Switch:
        return Switch.up(ports, namespace=wires.namespace, sizes=Sizes(microflows=1024, flows=1 << 14))

    # pyroute2 has an event loop of its own, so its calls need a thread of their own.
    switch = await asyncio.to_thread(up)
    try:
        async with (
            serving(EbpfTarget(switch), ServerOptions("127.0.0.1:0")) as server,
            connected(server.address, program) as session,
        ):
            await session.until_primary()
            yield session
    finally:
        await asyncio.to_thread(switch.down)


def _environment(binary: Path) -> dict[str, str]:
    """With the libraries that were installed beside the binary."""
    libraries = binary.resolve().parents[1] / "lib"
    before = os.environ.get("LD_LIBRARY_PATH")
    return os.environ | {"LD_LIBRARY_PATH": f"{libraries}:{before}" if before else str(libraries)}
