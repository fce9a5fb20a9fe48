"""A small HTTP/1.1 client (RFC 9112) that labels the connections it opens."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dinnet.errors import DinnetError
from dinnet.testbed.workloads.base import Label, LabelLog, now_us

_LIMIT: Final = 1 << 20  # longest line of a head or chunk header
_TIMEOUT_S: Final = 120.0  # for one answer


@dataclass(frozen=True)
class Response:
    """A whole answer."""

    status: int
    fields: dict[str, str]  # names in lower case
    body: bytes
    closing: bool  # the server will close the connection

    def json(self) -> dict[str, Any]:
        """The body as a JSON object; DinnetError where the answer is an error or no such object."""
        if self.status != 200:
            raise DinnetError(f"the server answered {self.status}: {self.body[:200].decode(errors='replace')}")
        try:
            found = json.loads(self.body)
        except ValueError as error:
            raise DinnetError(f"the server's answer is not JSON: {error}") from error
        if not isinstance(found, dict):
            raise DinnetError("the server's answer is not a JSON object")
        return found

    def events(self) -> list[str]:
        """The data of each server-sent event (HTML standard, section 9.2), for answers with one line an event."""
        lines = self.body.decode(errors="replace").split("\n")
        return [line.removeprefix("data:").strip() for line in lines if line.startswith("data:")]


class Connection:
    """One connection to an HTTP server; `close` writes its label."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        opened_us: int,
        host: str,
        log: LabelLog,
        described: Mapping[str, Any],
    ) -> None:
        self._reader, self._writer, self._opened_us, self._host = reader, writer, opened_us, host
        self._log, self._described = log, dict(described)
        self.requests = 0

    @classmethod
    async def open(cls, host: str, port: int, log: LabelLog, described: Mapping[str, Any]) -> Connection:
        """Connect; `described` holds the label's fields beside times and addresses."""
        opened_us = now_us()
        reader, writer = await asyncio.open_connection(host, port, limit=_LIMIT)
        name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return cls(reader, writer, opened_us, name, log, described)

    @property
    def usable(self) -> bool:
        """Whether the server has not closed its side."""
        return not (self._reader.at_eof() or self._writer.is_closing())

    async def request(
        self, method: str, path: str, body: object = None, *, keep: bool = True, fields: Mapping[str, str] | None = None
    ) -> Response:
        """Send a request, read the whole answer as it comes.

        Raises:
            DinnetError: No whole answer within two minutes.
        """
        content = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._host}", "Accept: */*", "User-Agent: dinnet-testbed"]
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
        if not keep:
            lines.append("Connection: close")
        lines += [f"{name}: {value}" for name, value in (fields or {}).items()]
        self._writer.write("\r\n".join([*lines, "", ""]).encode() + content)
        self.requests += 1
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await self._writer.drain()
                return await self._response()
        except (OSError, EOFError, ValueError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise DinnetError(f"{self._host}: no whole answer to {method} {path}: {reason}") from error

    async def _response(self) -> Response:
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        if fields.get("transfer-encoding", "").lower() == "chunked":
            parts = []
            while size := int((await self._reader.readline()).split(b";")[0], 16):
                parts.append((await self._reader.readexactly(size + 2))[:-2])
            await self._reader.readline()
            content = b"".join(parts)
        elif "content-length" in fields:
            content = await self._reader.readexactly(int(fields["content-length"]))
        else:
            content = await self._reader.read()
        return Response(int(head[0].split(" ")[1]), fields, content, fields.get("connection", "").lower() == "close")

    async def close(self) -> None:
        """Close, and write the label."""
        # As they were when it was opened: the kernel no longer tells them of a connection that was reset.
        own, peer = self._writer.get_extra_info("sockname"), self._writer.get_extra_info("peername")
        self._writer.close()
        with contextlib.suppress(OSError):  # a reset by the other side closes just as well
            await self._writer.wait_closed()
        self._log.write(Label(self._opened_us, now_us(), "tcp", *own[:2], *peer[:2], **self._described))
