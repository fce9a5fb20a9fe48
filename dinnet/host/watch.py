"""What changes on a host, as the kernel tells it."""

from __future__ import annotations

import asyncio
import errno
import select
import socket
import struct
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Final, Literal, Self

from dinnet.errors import DinnetError, reason

_HEADER: Final = struct.Struct("=IHHII")  # nlmsghdr
# linux/rtnetlink.h: groups to join, and the messages that come
_GROUPS: Final = (1, 4, 7, 11)  # links, traffic control, IPv4 routes, IPv6 routes
_MESSAGES: Final[dict[int, tuple[Literal["link", "qdisc", "class", "filter", "route"], bool]]] = {
    16: ("link", True), 17: ("link", False), 24: ("route", True), 25: ("route", False), 36: ("qdisc", True),
    37: ("qdisc", False), 40: ("class", True), 41: ("class", False), 44: ("filter", True), 45: ("filter", False),
}  # fmt: skip
_NETLINK_ADD_MEMBERSHIP: Final = 1
_SOL_NETLINK: Final = 270
_SO_RCVBUFFORCE: Final = 33
_LARGEST: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Event:
    """Something has changed; look again to see what."""

    kind: Literal["link", "qdisc", "class", "filter", "route", "resync"]  # resync: events were lost, look at all
    added: bool = False  # or changed; False: it is gone
    index: int = 0  # of the interface; 0 for routes


class Watch:
    """Events of one network namespace: an iterator that waits, and an asynchronous one.

    Raises:
        DinnetError: The kernel refused.
    """

    def __init__(self, buffer_bytes: int = 1 << 20) -> None:
        try:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        except OSError as error:
            raise DinnetError(f"cannot watch the host's network: {reason(error)}") from error
        try:
            try:
                self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, buffer_bytes)
            except PermissionError:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
            self._socket.bind((0, 0))
            for group in _GROUPS:
                self._socket.setsockopt(_SOL_NETLINK, _NETLINK_ADD_MEMBERSHIP, group)
            self._socket.setblocking(False)
        except OSError as error:
            self._socket.close()
            raise DinnetError(f"cannot watch the host's network: {reason(error)}") from error
        self._events: deque[Event] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def get(self, timeout_s: float | None = None) -> Event | None:
        """The next event; None where none came in time."""
        self._take()
        if not self._events and select.select([self._socket], [], [], timeout_s)[0]:
            self._take()
        return self._events.popleft() if self._events else None

    def __iter__(self) -> Iterator[Event]:
        while True:
            event = self.get()
            if event is not None:
                yield event

    async def __aiter__(self) -> AsyncIterator[Event]:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(self._socket, ready.set)
        try:
            while True:
                ready.clear()
                self._take()
                while self._events:
                    yield self._events.popleft()
                await ready.wait()
        finally:
            loop.remove_reader(self._socket)

    def _take(self) -> None:
        """Read all that has come, without waiting."""
        while True:
            try:
                data = self._socket.recv(_LARGEST)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise DinnetError(f"cannot watch the host's network: {reason(error)}") from error
                # The kernel dropped events: what is known from those before is no longer worth anything.
                self._events.clear()
                self._events.append(Event("resync"))
                continue
            self._events.extend(_parse(data))


def _parse(data: bytes) -> Iterator[Event]:
    while len(data) >= _HEADER.size:
        length, kind, *_ = _HEADER.unpack_from(data)
        if length < _HEADER.size:
            return
        if kind in _MESSAGES:
            name, added = _MESSAGES[kind]
            has_index = name != "route" and length >= _HEADER.size + 8
            # struct ifinfomsg and struct tcmsg both have the interface's number at byte 4.
            yield Event(name, added, struct.unpack_from("=i", data, _HEADER.size + 4)[0] if has_index else 0)
        data = data[length + 3 & ~3 :]
