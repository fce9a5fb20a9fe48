"""What else goes on around an inference server: metric scrapes, health probes, weights fetched from storage."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from dinnet.errors import DinnetError
from dinnet.testbed.vllm.http import Connection
from dinnet.testbed.workloads.base import LabelLog

Endpoint = tuple[str, int]

_RANGE: Final = re.compile(rb"^range: *bytes=(\d+)-(\d+)\r?$", re.IGNORECASE | re.MULTILINE)
_SCRAPE_ACCEPT: Final = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


async def scrape(
    servers: Sequence[Endpoint], log: LabelLog, *, every_s: float, keep: bool, until: Callable[[], bool]
) -> None:
    """Read /metrics of all servers every `every_s` seconds, as Prometheus does, on kept or on fresh connections."""
    described = {"group": "control", "transport": "vllm/metrics-http"}
    fields = {"Accept": _SCRAPE_ACCEPT, "X-Prometheus-Scrape-Timeout-Seconds": "10"}
    kept: dict[Endpoint, Connection] = {}
    try:
        while not until():
            started = time.monotonic()
            for server in servers:
                connection = kept.pop(server, None)
                if connection is not None and not connection.usable:
                    await connection.close()
                    connection = None
                connection = connection or await Connection.open(*server, log, described)
                response = await connection.request("GET", "/metrics", keep=keep, fields=fields)
                if response.status != 200 or b"vllm" not in response.body:
                    raise DinnetError(f"{server[0]}:{server[1]}/metrics answered {response.status}, not vLLM's metrics")
                if keep and not response.closing:
                    kept[server] = connection
                else:
                    await connection.close()
            await asyncio.sleep(max(0.0, every_s - (time.monotonic() - started)))
    finally:
        for connection in kept.values():
            await connection.close()


async def probe(servers: Sequence[Endpoint], log: LabelLog, *, every_s: float, until: Callable[[], bool]) -> None:
    """Ask /health of all servers every `every_s` seconds, each time on a connection of its own."""
    described = {"group": "control", "transport": "vllm/health-http"}
    while not until():
        for server in servers:
            connection = await Connection.open(*server, log, described)
            try:
                response = await connection.request("GET", "/health", keep=False)
            finally:
                await connection.close()
            if response.status != 200:
                raise DinnetError(f"{server[0]}:{server[1]}/health answered {response.status}")
        await asyncio.sleep(every_s)


async def serve_file(host: str, path: Path, ready: Callable[[int], None]) -> None:
    """Serve one file by HTTP range requests (RFC 9110, section 14) until cancelled; `ready` is told the port."""
    size = path.stat().st_size

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        try:
            with path.open("rb") as file:
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    found = _RANGE.search(head)
                    first, last = (int(found[1]), min(int(found[2]), size - 1)) if found else (0, size - 1)
                    lines = ["HTTP/1.1 206 Partial Content", "Content-Type: application/octet-stream"]
                    lines += [f"Content-Range: bytes {first}-{last}/{size}", f"Content-Length: {last - first + 1}"]
                    writer.write("\r\n".join([*lines, "", ""]).encode())
                    await writer.drain()
                    await loop.sendfile(writer.transport, file, first, last - first + 1)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has all that it wanted
        finally:
            writer.close()

    server = await asyncio.start_server(answer, host, 0)
    async with server:
        ready(server.sockets[0].getsockname()[1])
        await server.serve_forever()


async def fetch_weights(
    storage: Endpoint, log: LabelLog, *, model: str, total_bytes: int, part_bytes: int, parallel: int, keep: bool
) -> int:
    """Fetch the first `total_bytes` of the stored file in parts, `parallel` at a time; returns the bytes received.

    With `keep`, each of the parallel clients uses one connection for all its parts.
    """
    described = {"group": "data", "transport": "vllm/weights-http-range", "model": model}
    starts = iter(range(0, total_bytes, part_bytes))

    async def work() -> int:
        received = 0
        connection: Connection | None = None
        try:
            for first in starts:
                connection = connection or await Connection.open(*storage, log, described)
                last = min(first + part_bytes, total_bytes) - 1
                response = await connection.request(
                    "GET", "/model.safetensors", fields={"Range": f"bytes={first}-{last}"}
                )
                received += len(response.body)
                if not keep:
                    await connection.close()
                    connection = None
        finally:
            if connection is not None:
                await connection.close()
        return received

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work()) for _ in range(parallel)]
    return sum(task.result() for task in tasks)
