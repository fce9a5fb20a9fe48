"""HTTP/1.1 messages (RFC 9112), as far as workloads need them, with the header volumes of real programs."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from dinnet.testbed.workloads.channel import BLOCK, Channel, payload

_AGENTS = (
    "curl/8.5.0",
    "python-requests/2.32.3",
    "Python/3.11 aiohttp/3.10.5",
    "OpenAI/Python 1.51.0",
    "Go-http-client/1.1",
    "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/131.0.0.0 Safari/537.36",
)


@dataclass(frozen=True)
class Head:
    """The start line and the fields (names in lower case) of a message."""

    start: str
    fields: dict[str, str] = field(default_factory=dict)

    @property
    def target(self) -> str:
        return self.start.split(" ")[1]


def client_fields(rng: random.Random) -> str:
    """The header fields that one client program always sends."""
    lines = [f"User-Agent: {rng.choice(_AGENTS)}", "Accept: */*", "Accept-Encoding: gzip, deflate, br, zstd"]
    if rng.random() < 0.5:
        lines.append("Authorization: Bearer " + "k" * rng.choice((24, 51, 164, 700)))
    if rng.random() < 0.3:
        lines += [f"x-stainless-{name}: {'v' * 7}" for name in ("arch", "lang", "os", "runtime", "package-version")]
    if rng.random() < 0.2:
        lines.append("Cookie: session=" + "c" * rng.randint(80, 1400))
    if rng.random() < 0.5:
        lines.append("traceparent: 00-" + "a" * 32 + "-" + "b" * 16 + "-01")
    return "\r\n".join(lines) + "\r\n"


def server_fields(rng: random.Random) -> str:
    """The header fields that one server program always sends."""
    lines = [f"Server: {rng.choice(('uvicorn', 'nginx/1.27.1', 'envoy', 'hypercorn-h11', 'cloudflare'))}"]
    lines.append("Date: Tue, 01 Dec 2026 08:00:00 GMT")
    if rng.random() < 0.5:
        lines += [f"x-ratelimit-{name}: 99999" for name in ("limit-requests", "remaining-requests", "reset-tokens")]
    if rng.random() < 0.4:
        lines.append("x-request-id: req_" + "f" * 32)
    if rng.random() < 0.2:
        lines.append("Set-Cookie: __cf_bm=" + "c" * rng.randint(100, 600))
    return "\r\n".join(lines) + "\r\n"


def head(start: str, fields: str, **more: str | int) -> bytes:
    """A message head; keyword `content_type` becomes the field Content-Type."""
    named = "".join(f"{name.replace('_', '-').title()}: {value}\r\n" for name, value in more.items())
    return f"{start}\r\n{fields}{named}\r\n".encode()


async def read_head(channel: Channel) -> Head:
    """Read up to the empty line."""
    lines = (await channel.until(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    pairs = (line.split(":", 1) for line in lines[1:] if line)
    return Head(lines[0], {name.lower(): value.strip() for name, value in pairs})


async def read_body(channel: Channel, message: Head) -> bytes:
    """The whole body, for small ones."""
    if message.fields.get("transfer-encoding") != "chunked":
        return await channel.exactly(int(message.fields.get("content-length", "0")))
    parts = []
    while size := int(await channel.until(b"\r\n"), 16):
        parts.append(await channel.exactly(size))
        await channel.skip(2)
    await channel.skip(2)
    return b"".join(parts)


async def skip_body(channel: Channel, message: Head) -> int:
    """Drop the body; return its length."""
    if message.fields.get("transfer-encoding") != "chunked":
        size = int(message.fields.get("content-length", "0"))
        await channel.skip(size)
        return size
    total = 0
    while size := int(await channel.until(b"\r\n"), 16):
        await channel.skip(size + 2)
        total += size
    await channel.skip(2)
    return total


async def send_chunk(channel: Channel, data: bytes | memoryview) -> None:
    """One chunk of a chunked body; an empty one ends the body."""
    await channel.send(b"%x\r\n" % len(data), data, b"\r\n")


async def send_chunked(channel: Channel, size: int, chunk: int) -> None:
    """A chunked body of `size` bytes that mean nothing, `chunk` bytes (at most 1 MiB) at a time."""
    while size > 0:
        piece = min(size, chunk)
        await send_chunk(channel, payload(piece))
        size -= piece
    await send_chunk(channel, b"")


async def send_with_body(channel: Channel, message: bytes, size: int) -> None:
    """A head and a body that means nothing; a small body goes with the head in one write."""
    if size <= BLOCK:
        await channel.send(message, payload(size))
    else:
        await channel.send(message)
        await channel.send_bulk(size)
