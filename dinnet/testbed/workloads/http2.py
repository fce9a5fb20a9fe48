"""HTTP/2 (RFC 9113) on a channel, by the library h2, and gRPC's framing on top of it."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings

from dinnet.testbed.workloads.channel import DISCONNECTED, Channel, payload

Fields = Iterable[tuple[str, str]]


@contextmanager
def _closed_is_reset() -> Iterator[None]:
    """The library's word for a stream or connection that the peer has closed becomes the usual one."""
    try:
        yield
    except h2.exceptions.ProtocolError as error:
        raise ConnectionResetError(f"the peer has closed ({error})") from error


class Stream:
    """One HTTP/2 stream: its two directions."""

    def __init__(self, connection: Http2, number: int) -> None:
        self.number = number
        self.fields: dict[str, str] = {}
        self._connection = connection
        self._held = bytearray()
        self._ended = False
        self._changed = asyncio.Event()

    def took(self, data: bytes = b"", ended: bool = False) -> None:
        """Called by the connection with what has come in."""
        self._held += data
        self._ended |= ended
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def headers(self) -> dict[str, str]:
        """The peer's first header block."""
        while not self.fields:
            if self._ended:
                raise ConnectionResetError("the stream ended without a header block")
            await self._change()
        return self.fields

    async def exactly(self, size: int) -> bytes:
        """The next `size` bytes. Raises ConnectionResetError where the stream ends first."""
        while len(self._held) < size:
            if self._ended:
                raise ConnectionResetError("the stream ended early")
            await self._change()
        found = bytes(self._held[:size])
        del self._held[:size]
        return found

    async def skip(self, size: int) -> None:
        """Drop the next `size` bytes."""
        while size > 0:
            piece = min(size, max(1, len(self._held)))
            await self.exactly(piece)
            size -= piece

    async def rest(self) -> int:
        """Drop everything up to the end of the stream; return how much it was."""
        total = 0
        while True:
            total += len(self._held)
            self._held.clear()
            if self._ended:
                return total
            await self._change()

    async def respond(self, fields: Fields, end: bool = False) -> None:
        """Send a header block (or trailers, where `end`)."""
        with _closed_is_reset():
            self._connection.state.send_headers(self.number, list(fields), end_stream=end)
        await self._connection.flush()

    async def send(self, data: bytes | memoryview, end: bool = False) -> None:
        """Send data in frames as large as the peer and its windows allow."""
        state, view = self._connection.state, memoryview(data)
        while True:
            if self._connection.gone:
                raise ConnectionResetError("the connection has gone")
            with _closed_is_reset():
                room = min(state.local_flow_control_window(self.number), state.max_outbound_frame_size)
            if room <= 0 and view:
                await self._connection.window()
                continue
            piece, view = view[:room], view[room:]
            with _closed_is_reset():
                state.send_data(self.number, bytes(piece), end_stream=end and not view)
            await self._connection.flush()
            if not view:
                return

    async def send_bulk(self, size: int, end: bool = False) -> None:
        """Send `size` bytes that mean nothing."""
        while size > 0:
            piece = min(size, len(payload(1 << 20)))
            size -= piece
            await self.send(payload(piece), end and size == 0)

    async def message(self) -> tuple[bytes, int]:
        """A gRPC message (length-prefixed, gRPC over HTTP2): its first bytes (at most 4 KiB) and its length."""
        _, length = struct.unpack("!BI", await self.exactly(5))
        start = await self.exactly(min(length, 4096))
        await self.skip(length - len(start))
        return start, length

    async def send_message(self, data: bytes, bulk: int = 0, end: bool = False) -> None:
        """A gRPC message of `data` and `bulk` bytes more."""
        await self.send(struct.pack("!BI", 0, len(data) + bulk) + data, end and not bulk)
        await self.send_bulk(bulk, end)


class Http2:
    """One side of an HTTP/2 connection; an asynchronous context manager."""

    def __init__(self, channel: Channel, client: bool, rng: random.Random) -> None:
        self.state = h2.connection.H2Connection(h2.config.H2Configuration(client, header_encoding="utf-8"))
        self.gone = False
        self._channel = channel
        self._streams: dict[int, Stream] = {}
        self._incoming: asyncio.Queue[Stream | None] = asyncio.Queue()
        self._window = asyncio.Event()
        self._receive_window = rng.choice((65_535, 1 << 20, 4 << 20))

    async def __aenter__(self) -> Self:
        self.state.initiate_connection()
        self.state.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: self._receive_window})
        if self._receive_window > 65_535:
            self.state.increment_flow_control_window(self._receive_window - 65_535)
        await self.flush()
        self._pump = asyncio.create_task(self._receive())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pump.cancel()
        await asyncio.gather(self._pump, return_exceptions=True)
        if kind is None and not self.gone:
            self.state.close_connection()
            await self.flush()

    async def flush(self) -> None:
        """Send what the protocol's state has to say."""
        if data := self.state.data_to_send():
            await self._channel.send(data)

    async def window(self) -> None:
        """Wait until the peer allows more, or has gone."""
        self._window.clear()
        await self._window.wait()

    async def open(self, fields: Fields, end: bool = False) -> Stream:
        """Open a stream with a header block (client)."""
        if self.gone:
            raise ConnectionResetError("the connection has gone")
        stream = Stream(self, self.state.get_next_available_stream_id())
        self._streams[stream.number] = stream
        self.state.send_headers(stream.number, list(fields), end_stream=end)
        await self.flush()
        return stream

    async def ping(self) -> None:
        """A keep-alive; the answer is awaited by nobody."""
        with _closed_is_reset():
            self.state.ping(bytes(8))
        await self.flush()

    async def incoming(self) -> AsyncIterator[Stream]:
        """Streams that the peer opens (server), until it goes."""
        while (stream := await self._incoming.get()) is not None:
            yield stream

    async def _receive(self) -> None:
        try:
            while True:
                for event in self.state.receive_data(await self._channel.some()):
                    self._handle(event)
                await self.flush()
        except (*DISCONNECTED, h2.exceptions.ProtocolError):
            # A protocol error here means that the peer went while frames were under way.
            return
        finally:
            self.gone = True
            self._window.set()
            self._incoming.put_nowait(None)
            for stream in self._streams.values():
                stream.took(ended=True)

    def _handle(self, event: h2.events.Event) -> None:
        number = getattr(event, "stream_id", None) or 0
        stream = self._streams.get(number)
        if isinstance(event, h2.events.RequestReceived):
            stream = self._streams[number] = Stream(self, number)
            self._incoming.put_nowait(stream)
        if isinstance(event, h2.events.RequestReceived | h2.events.ResponseReceived) and stream:
            stream.fields = dict(event.headers)  # type: ignore[arg-type]
            stream.took()
        elif isinstance(event, h2.events.DataReceived):
            self.state.acknowledge_received_data(event.flow_controlled_length or 0, number)
            if stream:
                stream.took(event.data or b"")
        elif isinstance(event, h2.events.StreamEnded | h2.events.StreamReset):
            if stream:
                stream.took(ended=True)
        elif isinstance(event, h2.events.WindowUpdated | h2.events.RemoteSettingsChanged):
            self._window.set()
        elif isinstance(event, h2.events.ConnectionTerminated):
            raise ConnectionResetError("the peer said goodbye")


def request_fields(path: str, content_type: str = "application/grpc", method: str = "POST") -> Fields:
    """The header block of a request; gRPC's by default."""
    fields = [(":method", method), (":scheme", "http"), (":path", path), (":authority", "node.inference.internal")]
    fields += [("content-type", content_type), ("user-agent", "grpc-python/1.66.1 grpc-c/43.0.0 (linux; chttp2)")]
    if content_type == "application/grpc":
        fields += [("te", "trailers"), ("grpc-accept-encoding", "identity, deflate, gzip"), ("grpc-timeout", "30S")]
    return fields


def response_fields(content_type: str = "application/grpc") -> Fields:
    """The header block of a good answer."""
    return [(":status", "200"), ("content-type", content_type)]


GRPC_TRAILERS: Fields = [("grpc-status", "0"), ("grpc-message", "")]
