"""A small HTTP/1.1 server for the controller's API: no dependency, one request a connection, small bodies."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import stat
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from dinnet.errors import DinnetError, reason

_log: Final = logging.getLogger(__name__)
_MOST_BODY: Final = 65_536
_MOST_HEADERS: Final = 64
_PATIENCE_S: Final = 10.0
_REASONS: Final = {200: "OK", 204: "No Content", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found",
                   405: "Method Not Allowed", 413: "Content Too Large", 500: "Internal Server Error"}  # fmt: skip


class Request(NamedTuple):
    method: str
    path: str
    headers: Mapping[str, str]  # names in lower case
    body: bytes


class Answer(NamedTuple):
    status: int
    body: bytes = b""
    kind: str = "application/json"


def told(status: int, what: object) -> Answer:
    """An answer in JSON."""
    return Answer(status, json.dumps(what).encode() + b"\n")


Handler = Callable[[Request], Answer]


@asynccontextmanager
async def listening(endpoint: str, handler: Handler) -> AsyncIterator[str]:
    """Serve until the block ends; gives the endpoint, with the port where 0 was asked for.

    Raises:
        DinnetError: Nothing can listen there, or another controller does.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                answer = await _answered(reader, handler)
                head = (
                    f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}\r\nContent-Type: {answer.kind}\r\n"
                    f"Content-Length: {len(answer.body)}\r\nConnection: close\r\n\r\n"
                )
                writer.write(head.encode() + answer.body)
                await writer.drain()
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError):
            pass  # the client went away, or says nothing
        finally:
            writer.close()

    try:
        if endpoint.startswith("unix:"):
            path = Path(endpoint.removeprefix("unix:"))
            await _make_way(path)
            mask = os.umask(0o177)
            try:
                server = await asyncio.start_unix_server(serve, path)
            finally:
                os.umask(mask)
        else:
            host, _, port = endpoint.rpartition(":")
            server = await asyncio.start_server(serve, host.strip("[]"), int(port))
            host, port = server.sockets[0].getsockname()[:2]
            endpoint = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    except (OSError, OverflowError) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        raise DinnetError(f"{endpoint}: cannot listen: {why}") from error
    try:
        yield endpoint
    finally:
        server.close()
        if endpoint.startswith("unix:"):
            Path(endpoint.removeprefix("unix:")).unlink(missing_ok=True)


async def _make_way(path: Path) -> None:
    """Remove the socket of a controller that was killed; refuse to take a live one's."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise DinnetError(f"{path}: is there and no socket; name another place for the API")
    except FileNotFoundError:
        return
    try:
        _, writer = await asyncio.open_unix_connection(path)
    except ConnectionRefusedError:
        path.unlink(missing_ok=True)
        return
    writer.close()
    raise DinnetError(f"{path}: another controller answers there; stop it, or give this one another controller.api")


async def _answered(reader: asyncio.StreamReader, handler: Handler) -> Answer:
    try:
        first = (await reader.readline()).decode("latin-1").split()
        if len(first) != 3:
            return told(400, {"error": "no HTTP request"})
        headers: dict[str, str] = {}
        while (line := (await reader.readline()).decode("latin-1").strip()) and len(headers) < _MOST_HEADERS:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > _MOST_BODY:
            return told(413, {"error": f"a body has at most {_MOST_BODY} bytes, and says how many"})
        body = await reader.readexactly(int(length))
    except ValueError:  # a line longer than the reader's limit
        return told(400, {"error": "a line that is too long"})
    try:
        return handler(Request(first[0], first[1].partition("?")[0], headers, body))
    except Exception:  # noqa: BLE001 - told, and the controller goes on
        _log.exception("API: %s %s", first[0], first[1])
        return told(500, {"error": "a fault of the controller's own"})


async def asked(endpoint: str, path: str) -> Any:
    """What a controller's API answers to GET, from JSON.

    Raises:
        DinnetError: Nobody answers there, or not with what was asked for.
    """
    try:
        async with asyncio.timeout(_PATIENCE_S):
            if endpoint.startswith("unix:"):
                reader, writer = await asyncio.open_unix_connection(endpoint.removeprefix("unix:"))
            else:
                host, _, port = endpoint.rpartition(":")
                reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: dinnet\r\nConnection: close\r\n\r\n".encode())
                data = await reader.read()
            finally:
                writer.close()
    except (OSError, TimeoutError) as error:
        why = reason(error) if isinstance(error, OSError) and not isinstance(error, TimeoutError) else "no answer"
        raise DinnetError(f"{endpoint}: no controller answers: {why}; is `dinnet controller up` running?") from error
    head, _, body = data.partition(b"\r\n\r\n")
    if b" 200 " not in head.partition(b"\r\n")[0]:
        raise DinnetError(f"{endpoint}: the controller refused: {body.decode(errors='replace').strip()}")
    return json.loads(body)
