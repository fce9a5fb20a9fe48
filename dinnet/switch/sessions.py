"""One controller's stream, seen from the server: what is waiting to be sent on it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from finsy.proto import p4r

#: Messages that must not be lost, above which a controller that does not read has lost its stream.
MAX_WAITING: Final = 1024
#: Bytes that may wait for a slow controller; packets, digests and notifications above them are dropped.
MAX_WAITING_BYTES: Final = 32 << 20


class Session:
    """A stream's queue and who is at its other end."""

    def __init__(self) -> None:
        self.role: str | None = None  # None: it has not said who it is
        self.election_id: int | None = None
        self.is_open = True
        self.is_stalled = False  # the controller does not read
        self._waiting: deque[tuple[p4r.StreamMessageResponse, int]] = deque()
        self._waiting_bytes = 0
        self._musts = 0  # of those that wait, messages that must not be lost
        self._arrived = asyncio.Event()

    def send(self, message: p4r.StreamMessageResponse) -> None:
        """Queue a message that the controller must get; the stream ends where too many wait."""
        if not self.is_open:
            return
        if self._musts >= MAX_WAITING:
            self.is_stalled = True
            self.end()
            return
        self._musts += 1
        self._put(message, 0)

    def offer(self, message: p4r.StreamMessageResponse) -> bool:
        """Queue a message, unless too much is waiting already."""
        size = message.ByteSize()
        if not self.is_open or (self._waiting_bytes and self._waiting_bytes + size > MAX_WAITING_BYTES):
            return False
        self._put(message, size)
        return True

    @property
    def is_behind(self) -> bool:
        """Whether so much is waiting that what can wait elsewhere should."""
        return self.is_open and self._waiting_bytes > MAX_WAITING_BYTES // 4

    def _put(self, message: p4r.StreamMessageResponse, size: int) -> None:
        self._waiting.append((message, size))
        self._waiting_bytes += size
        self._arrived.set()

    def end(self) -> None:
        """Nothing more is to be sent after what is waiting."""
        self.is_open = False
        self._arrived.set()

    async def next(self) -> p4r.StreamMessageResponse | None:
        """The message that has waited longest; None: there will be no more."""
        while not self._waiting:
            if not self.is_open:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        message, size = self._waiting.popleft()
        self._waiting_bytes -= size
        self._musts -= not size
        return message
