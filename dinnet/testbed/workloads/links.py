"""Ways of sending messages over a connection: what pipelines, KV transports and control planes are built on.

A message is a small description (JSON) and any number of bulk bytes that mean nothing.
"""

from __future__ import annotations

import json
import random
import struct
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar, NamedTuple

from dinnet.testbed.workloads import http1
from dinnet.testbed.workloads.channel import BLOCK, Channel, payload
from dinnet.testbed.workloads.http2 import GRPC_TRAILERS, Http2, Stream, request_fields, response_fields
from dinnet.testbed.workloads.session import Client, SocketWorkload


class Message(NamedTuple):
    """What was received."""

    about: dict[str, Any]
    bulk: int


class Link(ABC):
    """Messages both ways. Where `alternating`, every message must be answered before the next."""

    alternating = False

    def __init__(self, channel: Channel, client: bool, rng: random.Random) -> None:
        self.channel = channel
        self.client = client
        self.rng = rng
        # What else descriptions hold in real systems: identifiers, shapes, trace context.
        self._padding = "p" * rng.choice((0, 0, 40, 120, 300))

    async def greet(self) -> None:
        """What the transport exchanges before the first message."""
        return

    async def goodbye(self, failed: bool) -> None:
        """What it does after the last."""
        return

    @abstractmethod
    async def send(self, bulk: int = 0, **about: Any) -> None:
        """Send one message."""

    @abstractmethod
    async def receive(self) -> Message:
        """Wait for one message; raises one of DISCONNECTED at the end."""

    async def push(self, bulk: int = 0, **about: Any) -> None:
        """Send one message and, where the link alternates, wait for its answer."""
        await self.send(bulk, **about)
        if self.alternating:
            await self.receive()

    async def ask(self, bulk: int = 0, **about: Any) -> Message:
        """Send one message and wait for the answer."""
        await self.send(bulk, **about)
        return await self.receive()

    def describe(self, about: dict[str, Any]) -> bytes:
        if self._padding:
            about["context"] = self._padding
        return json.dumps(about).encode()


@asynccontextmanager
async def linked(kind: type[Link], channel: Channel, client: bool, rng: random.Random) -> AsyncIterator[Link]:
    """A link of one kind on a channel, greeted at the start and taken leave of at the end."""
    link = kind(channel, client, rng)
    failed = True
    try:
        await link.greet()
        yield link
        failed = False
    finally:
        await link.goodbye(failed)


class RawLink(Link):
    """Length-prefixed messages straight on TCP."""

    async def send(self, bulk: int = 0, **about: Any) -> None:
        text = self.describe(about)
        start = struct.pack("!IIQ", 0x44494E31, len(text), bulk) + text
        if bulk <= BLOCK and self.rng.random() < 0.9:
            await self.channel.send(start, payload(bulk))
        else:
            await self.channel.send(start)
            await self.channel.send_bulk(bulk)

    async def receive(self) -> Message:
        _, length, bulk = struct.unpack("!IIQ", await self.channel.exactly(16))
        about = json.loads(await self.channel.exactly(length))
        await self.channel.skip(bulk)
        return Message(about, bulk)


class ZmqLink(Link):
    """ZeroMQ's ZMTP 3.1 (rfc.zeromq.org/spec/37): 64-byte greeting, READY commands, frames with a flag octet."""

    async def greet(self) -> None:
        await self.channel.send(b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(48))
        await self.channel.skip(64)
        properties = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"
        await self.channel.send(struct.pack("!BB", 4, len(properties)), properties)
        await self._frame()

    @staticmethod
    def _flags(length: int, more: bool) -> bytes:
        if length < 256:
            return struct.pack("!BB", int(more), length)
        return struct.pack("!BQ", 2 | int(more), length)

    async def send(self, bulk: int = 0, **about: Any) -> None:
        text = self.describe(about)
        start = self._flags(len(text), bulk > 0) + text
        if not bulk:
            await self.channel.send(start)
            return
        # libzmq batches up to 8 KiB into one write and passes larger frames on as they are.
        start += self._flags(bulk, False)
        if bulk <= 8192:
            await self.channel.send(start, payload(bulk))
        else:
            await self.channel.send(start)
            await self.channel.send_bulk(bulk)

    async def _frame(self) -> tuple[int, int]:
        flags = (await self.channel.exactly(1))[0]
        size = (
            struct.unpack("!Q", await self.channel.exactly(8))[0] if flags & 2 else (await self.channel.exactly(1))[0]
        )
        if flags & 4:  # a command
            await self.channel.skip(size)
        return flags, size

    async def receive(self) -> Message:
        flags, size = await self._frame()
        about = json.loads(await self.channel.exactly(size))
        bulk = 0
        while flags & 1:
            flags, size = await self._frame()
            await self.channel.skip(size)
            bulk += size
        return Message(about, bulk)


class GrpcLink(Link):
    """One bidirectional gRPC stream."""

    _stream: Stream

    async def greet(self) -> None:
        self._http2 = Http2(self.channel, self.client, self.rng)
        await self._http2.__aenter__()
        if self.client:
            self._stream = await self._http2.open(request_fields("/inference.v1.Transport/Exchange"))
            return
        async for stream in self._http2.incoming():
            self._stream = stream
            await stream.respond(response_fields())
            return
        raise ConnectionResetError("the peer opened no stream")

    async def goodbye(self, failed: bool) -> None:
        kind = ConnectionError if failed else None
        await self._http2.__aexit__(kind, None, None)

    async def send(self, bulk: int = 0, **about: Any) -> None:
        text = self.describe(about)
        await self._stream.send_message(struct.pack("!I", len(text)) + text, bulk)

    async def receive(self) -> Message:
        return _parsed(*await self._stream.message())


def _parsed(start: bytes, length: int) -> Message:
    (size,) = struct.unpack_from("!I", start)
    return Message(json.loads(start[4 : 4 + size]), length - 4 - size)


class GrpcUnaryLink(Link):
    """A unary gRPC call a message, all on one connection."""

    alternating = True
    _stream: Stream

    async def greet(self) -> None:
        self._http2 = Http2(self.channel, self.client, self.rng)
        await self._http2.__aenter__()
        self._calls = self._http2.incoming()

    async def goodbye(self, failed: bool) -> None:
        await self._http2.__aexit__(ConnectionError if failed else None, None, None)

    async def send(self, bulk: int = 0, **about: Any) -> None:
        text = self.describe(about)
        data = struct.pack("!I", len(text)) + text
        if self.client:
            self._stream = await self._http2.open(request_fields("/inference.v1.Node/Call"))
            await self._stream.send_message(data, bulk, end=True)
        else:
            await self._stream.respond(response_fields())
            await self._stream.send_message(data, bulk)
            await self._stream.respond(GRPC_TRAILERS, end=True)

    async def receive(self) -> Message:
        if not self.client:
            try:
                self._stream = await anext(self._calls)
            except StopAsyncIteration:
                raise ConnectionResetError("the peer has gone") from None
        message = _parsed(*await self._stream.message())
        await self._stream.rest()
        return message


class HttpLink(Link):
    """A POST with the bulk as its body a message, its answer the response."""

    alternating = True

    def __init__(self, channel: Channel, client: bool, rng: random.Random) -> None:
        super().__init__(channel, client, rng)
        self._fields = http1.client_fields(rng) if client else http1.server_fields(rng)
        self._chunk = rng.choice((0, 0, 8192, 65536, 262144))

    async def send(self, bulk: int = 0, **about: Any) -> None:
        fields = self._fields + f"X-Message: {self.describe(about).decode()}\r\n"
        start = f"PUT /v1/transfer/{self.rng.getrandbits(64):016x} HTTP/1.1" if self.client else "HTTP/1.1 200 OK"
        kind = "application/octet-stream"
        if self._chunk and bulk > self._chunk:
            await self.channel.send(http1.head(start, fields, content_type=kind, transfer_encoding="chunked"))
            await http1.send_chunked(self.channel, bulk, self._chunk)
        else:
            message = http1.head(start, fields, content_type=kind, content_length=bulk)
            await http1.send_with_body(self.channel, message, bulk)

    async def receive(self) -> Message:
        message = await http1.read_head(self.channel)
        bulk = await http1.skip_body(self.channel, message)
        return Message(json.loads(message.fields["x-message"]), bulk)


class RespLink(Link):
    """Redis' protocol (RESP2): SET and GET of cache chunks, as KV stores for inference offer it."""

    alternating = True

    async def send(self, bulk: int = 0, **about: Any) -> None:
        text = self.describe(about)
        if self.client:
            start = b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n" % (len(text), text, bulk)
        else:
            start = b"*2\r\n$%d\r\n%s\r\n$%d\r\n" % (len(text), text, bulk)
        if bulk <= BLOCK:
            await self.channel.send(start, payload(bulk), b"\r\n")
        else:
            await self.channel.send(start)
            await self.channel.send_bulk(bulk)
            await self.channel.send(b"\r\n")

    async def _string(self) -> bytes:
        size = int((await self.channel.until(b"\r\n"))[1:])
        return (await self.channel.exactly(size + 2))[:-2]

    async def receive(self) -> Message:
        parts = int((await self.channel.until(b"\r\n"))[1:])
        if parts == 3:
            await self._string()
        about = json.loads(await self._string())
        bulk = int((await self.channel.until(b"\r\n"))[1:])
        await self.channel.skip(bulk + 2)
        return Message(about, bulk)


class WebSocketLink(Link):
    """WebSocket (RFC 6455): the upgrade, then a text frame and a binary frame a message, masked by the client."""

    async def greet(self) -> None:
        if self.client:
            upgrade = {"connection": "Upgrade", "upgrade": "websocket", "sec_websocket_key": "k" * 24}
            fields = http1.client_fields(self.rng) + "Sec-WebSocket-Version: 13\r\n"
            await self.channel.send(http1.head("GET /v1/realtime HTTP/1.1", fields, **upgrade))
            await http1.read_head(self.channel)
        else:
            await http1.read_head(self.channel)
            upgrade = {"connection": "Upgrade", "upgrade": "websocket", "sec_websocket_accept": "a" * 28}
            fields = http1.server_fields(self.rng)
            await self.channel.send(http1.head("HTTP/1.1 101 Switching Protocols", fields, **upgrade))

    def _start(self, opcode: int, size: int) -> bytes:
        masked = 0x80 if self.client else 0
        if size < 126:
            start = struct.pack("!BB", 0x80 | opcode, masked | size)
        elif size < 65536:
            start = struct.pack("!BBH", 0x80 | opcode, masked | 126, size)
        else:
            start = struct.pack("!BBQ", 0x80 | opcode, masked | 127, size)
        # A key of zeros masks nothing: the content has no meaning here, its length and the key's do.
        return start + bytes(4) if self.client else start

    async def send(self, bulk: int = 0, **about: Any) -> None:
        text = self.describe({**about, "more": bulk > 0})
        await self.channel.send(self._start(1, len(text)), text)
        if bulk:
            await self.channel.send(self._start(2, bulk))
            await self.channel.send_bulk(bulk)

    async def _size(self) -> int:
        size = (await self.channel.exactly(2))[1] & 0x7F
        if size > 125:
            length = 2 if size == 126 else 8
            size = int.from_bytes(await self.channel.exactly(length), "big")
        if not self.client:
            await self.channel.skip(4)
        return size

    async def receive(self) -> Message:
        about = json.loads(await self.channel.exactly(await self._size()))
        bulk = 0
        if about.pop("more"):
            bulk = await self._size()
            await self.channel.skip(bulk)
        return Message(about, bulk)


class LinkWorkload(SocketWorkload):
    """A workload of messages on one kind of link."""

    link: ClassVar[type[Link]] = RawLink

    @asynccontextmanager
    async def connect(self, client: Client, rng: random.Random, **described: object) -> AsyncIterator[Link]:
        """A connection of the client with a link on it; `described` are fields of its label."""
        async with client.connection(rng, **described) as channel, linked(self.link, channel, True, rng) as link:
            yield link

    async def answer(self, channel: Channel, rng: random.Random) -> None:
        async with linked(self.link, channel, False, rng) as link:
            await self.reply(link, rng)

    @abstractmethod
    async def reply(self, link: Link, rng: random.Random) -> None:
        """The server's side of one connection, until the peer ends it."""
