"""Background on TCP: the client says with each message what the server is to answer, and how.

An order is the first bytes of the request itself, so that the bytes on the wire are those of the protocol that is
imitated: only sizes, directions and times can be told apart from outside, and these are what a workload sets.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from abc import abstractmethod
from asyncio import IncompleteReadError
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from dinnet.testbed.workloads.base import Group, LabelLog, Workload, label_socket, now_us
from dinnet.testbed.workloads.channel import BLOCK, Channel, TlsChannel, payload

# Bytes that follow in this request, bytes to answer, wait before the answer, pieces of the answer, wait between them.
_ORDER: Final = struct.Struct("!IIIHI")
LEAST_REQUEST: Final = _ORDER.size
GRACE_S: Final = 0.5  # that conversations get after the profile's duration


class Spent(Exception):
    """The conversation has used up its bytes."""


@dataclass(frozen=True)
class Ask:
    """One message to the server and the answer to it."""

    request: int  # bytes; at least LEAST_REQUEST are sent
    answer: int = 0  # bytes; 0: none is sent
    think_s: float = 0.0
    pieces: int = 1  # writes that the answer comes in ...
    gap_s: float = 0.0  # ... and about how far apart


class Dialogue:
    """The client's end of one conversation."""

    def __init__(self, channel: Channel, rng: random.Random, max_bytes: int) -> None:
        self.channel = channel
        self.rng = rng
        self.left_bytes = max_bytes

    async def ask(self, request: int, answer: int = 0, **how: float) -> None:
        """Send one message and wait for its whole answer; `how` as in Ask."""
        await self.ask_all([Ask(request, answer, **how)])  # type: ignore[arg-type]

    async def ask_all(self, asks: Iterable[Ask]) -> None:
        """Send messages in one go (pipelined), then wait for all answers. Raises Spent when the bytes are used up."""
        answers = 0
        parts: list[bytes | memoryview] = []
        bulk = 0
        for ask in asks:
            if self.left_bytes <= 0:
                break
            request = min(max(ask.request, LEAST_REQUEST), self.left_bytes + LEAST_REQUEST)
            answer = min(ask.answer, self.left_bytes)
            self.left_bytes -= request + answer
            answers += answer
            rest = request - LEAST_REQUEST
            parts.append(_ORDER.pack(rest, answer, int(ask.think_s * 1e6), max(1, ask.pieces), int(ask.gap_s * 1e6)))
            if rest > BLOCK:
                bulk += rest  # only ever the last message of a pipeline
            else:
                parts.append(payload(rest))
        if not parts:
            raise Spent
        await self.channel.send(*parts)
        if bulk:
            await self.channel.send_bulk(bulk)
        await self.channel.skip(answers)

    async def pause(self, median_s: float, spread: float = 0.6) -> None:
        """Wait for a log-normal time."""
        await asyncio.sleep(self.draw(median_s, spread))

    def draw(self, median: float, spread: float = 0.6) -> float:
        """A log-normal draw: sizes and human times spread over powers of ten rather than around a mean."""
        return self.rng.lognormvariate(0.0, spread) * median

    def size(self, median: int, spread: float = 0.6) -> int:
        """A log-normal size in bytes, at least 1."""
        return max(1, round(self.draw(median, spread)))


class TcpBackground(Workload):
    """Conversations that start at random times; subclasses say how one goes."""

    group: ClassVar[Group] = "other"
    tls: ClassVar[bool] = False
    connections: ClassVar[tuple[int, int]] = (5, 20)
    start_within: ClassVar[float] = 0.8  # share of the duration in which conversations start

    @abstractmethod
    async def talk(self, dialogue: Dialogue) -> None:
        """One conversation, from connected to closed; cut short where the time or the bytes run out."""

    async def serve(self, host: str, ready: Callable[[int], None]) -> None:
        """Bind to (`host`, 0), call `ready` with the port, answer until cancelled."""
        server = await asyncio.start_server(self._connected, host, 0, limit=BLOCK)
        async with server:
            ready(server.sockets[0].getsockname()[1])
            await server.serve_forever()

    async def drive(self, server: tuple[str, int], log: LabelLog) -> None:
        """Hold all conversations, write one label each."""
        rng = self.profile.rng(self.name)
        count = rng.randint(*self.connections)
        end_s = asyncio.get_running_loop().time() + self.profile.duration_s
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                start_s = rng.uniform(0.0, self.start_within * self.profile.duration_s)
                group.create_task(self._conversation(server, log, start_s, end_s, count, number))

    async def _conversation(
        self, server: tuple[str, int], log: LabelLog, start_s: float, end_s: float, count: int, number: int
    ) -> None:
        rng = self.profile.rng(f"{self.name}/{number}")
        await asyncio.sleep(start_s)
        try:
            async with asyncio.timeout_at(end_s + GRACE_S):
                await self._connect_and_talk(server, log, rng, self.profile.byte_budget // count)
        except (TimeoutError, OSError, IncompleteReadError):
            return  # the time is up, or the link lost too much: such connections are on real links, too

    async def _connect_and_talk(
        self, server: tuple[str, int], log: LabelLog, rng: random.Random, max_bytes: int
    ) -> None:
        opened_us = now_us()
        reader, writer = await asyncio.open_connection(*server, limit=BLOCK)
        label = label_socket(_socket(writer), opened_us, group=self.group, transport=self.name)
        channel = (TlsChannel if self.tls else Channel)(reader, writer)
        try:
            await channel.handshake(True, rng)
            with contextlib.suppress(Spent):
                await self.talk(Dialogue(channel, rng, max_bytes))
            await channel.close()
        finally:
            writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()
            log.write(replace(label, t1_us=now_us()))

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        rng = self.profile.rng(f"{self.name}/server/{writer.get_extra_info('peername')[1] % 64}")
        channel = (TlsChannel if self.tls else Channel)(reader, writer)
        try:
            await channel.handshake(False, rng)
            while True:
                await _answer(channel, rng)
        except (IncompleteReadError, OSError):
            return  # the client has ended the conversation
        finally:
            writer.close()


async def _answer(channel: Channel, rng: random.Random) -> None:
    rest, answer, think_us, pieces, gap_us = _ORDER.unpack(await channel.exactly(_ORDER.size))
    await channel.skip(rest)
    if think_us:
        await asyncio.sleep(think_us / 1e6)
    piece = -(-answer // pieces)
    while answer > 0:
        await channel.send_bulk(min(piece, answer))
        answer -= piece
        if answer > 0 and gap_us:
            await asyncio.sleep(gap_us / 1e6 * rng.lognormvariate(0.0, 0.4))


def _socket(writer: asyncio.StreamWriter) -> socket.socket:
    found: socket.socket = writer.get_extra_info("socket")
    return found
