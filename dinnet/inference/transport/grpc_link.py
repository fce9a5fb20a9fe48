"""Frames over gRPC: one bidirectional stream of raw bytes between two processes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

import grpc

from dinnet.errors import DinnetError
from dinnet.inference.transport.frame import Frame, decode, encode

_METHOD: Final = "/dinnet.inference.Link/Frames"
#: Frames that wait to be sent before the sender itself waits.
_WAITING: Final = 64
_SEND_S: Final = 30.0
_OPTIONS: Final = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.use_local_subchannel_pool", 1),
]

OnFrame = Callable[["Link", Frame], None]
OnClose = Callable[["Link", str], None]


class LinkClosed(DinnetError):
    """The other end is gone."""


class Link:
    """One end of a stream. `send` may be called from any thread; it waits when too much is under way."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.closed = threading.Event()
        self._waiting: queue.Queue[bytes | None] = queue.Queue(_WAITING)
        self.context: Any = None  # for who serves the link

    def send(self, frame: Frame) -> None:
        """Send a frame.

        Raises:
            LinkClosed: The other end is gone, or takes nothing any more.
        """
        if self.closed.is_set():
            raise LinkClosed(f"{self.name}: the connection is closed")
        try:
            self._waiting.put(encode(frame), timeout=_SEND_S)
        except queue.Full as error:
            raise LinkClosed(f"{self.name}: takes nothing since {_SEND_S:g} s") from error

    def has_room(self) -> bool:
        """Whether `send` would not wait."""
        return not self._waiting.full()

    def close(self) -> None:
        self.closed.set()
        with suppress(queue.Full):
            self._waiting.put_nowait(None)

    def outgoing(self) -> Iterator[bytes]:
        """What gRPC sends, until the link is closed and all is sent."""
        while True:
            try:
                data = self._waiting.get(timeout=1.0)
            except queue.Empty:
                if self.closed.is_set():
                    return
                continue
            if data is None:
                return
            yield data

    def pump(self, incoming: Iterator[bytes], on_frame: OnFrame, on_close: OnClose) -> None:
        """Hand incoming frames on until the stream ends, for whatever reason."""
        why = "the other end closed the connection"
        try:
            for data in incoming:
                on_frame(self, decode(data))
        except grpc.RpcError as error:
            why = getattr(error, "details", str)() or "the connection broke"
        except DinnetError as error:
            why = str(error)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            why = f"a message made no sense: {error!r}"
        finally:
            self.close()
            on_close(self, why)


def connect(address: str, on_frame: OnFrame, on_close: OnClose) -> Link:
    """Open a stream to `address`; whether it is there shows when frames, or its end, come in."""
    channel = grpc.insecure_channel(address, options=_OPTIONS)
    link = Link(address)
    call: Any = channel.stream_stream(_METHOD)(link.outgoing())  # type: ignore[arg-type]

    def run() -> None:
        try:
            link.pump(call, on_frame, on_close)
        finally:
            channel.close()

    threading.Thread(target=run, name=f"link to {address}", daemon=True).start()
    return link


class LinkServer:
    """Listens for streams; each runs in a thread of its own."""

    def __init__(self, address: str, on_frame: OnFrame, on_close: OnClose) -> None:
        """Start to listen.

        Raises:
            DinnetError: The address cannot be listened on.
        """
        self._on_frame, self._on_close = on_frame, on_close
        self._links: set[Link] = set()
        self._server = grpc.server(ThreadPoolExecutor(256, thread_name_prefix="link"), options=_OPTIONS)
        handler: Any = grpc.stream_stream_rpc_method_handler(self._serve)
        service, method = _METHOD[1:].split("/")
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        try:
            port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise DinnetError(
                f"{address}: cannot listen there; is the address in use, or not this machine's?"
            ) from error
        self.address = f"{address.rpartition(':')[0]}:{port}"
        self._server.start()

    def _serve(self, incoming: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        link = Link(context.peer())
        self._links.add(link)
        context.add_callback(link.close)
        reader = threading.Thread(target=link.pump, args=(incoming, self._on_frame, self._on_close), daemon=True)
        reader.start()
        try:
            yield from link.outgoing()
        finally:
            self._links.discard(link)

    def stop(self) -> None:
        for link in list(self._links):
            link.close()
        self._server.stop(0.5).wait()
