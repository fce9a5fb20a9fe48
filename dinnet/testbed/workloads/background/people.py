"""Background: what people do and watch over TCP, at a person's pace."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from dinnet.testbed.workloads.background.dialogue import Dialogue, TcpBackground


class SshInteractive(TcpBackground):
    """Typed keys with their echoes, and the output of a command after each line (sizes of SSH packets)."""

    name: ClassVar[str] = "ssh/interactive"
    connections: ClassVar[tuple[int, int]] = (5, 14)
    start_within: ClassVar[float] = 0.5

    async def talk(self, dialogue: Dialogue) -> None:
        rng = dialogue.rng
        await _ssh_start(dialogue)
        while True:
            for _ in range(rng.randint(2, 20)):
                await dialogue.ask(36, 36 if rng.random() < 0.9 else 84, think_s=0.0006)
                await dialogue.pause(0.14, 0.5)
            output = dialogue.size(rng.choice((60, 600, 2_500, 12_000)), 0.8)
            await dialogue.ask(36, output, think_s=dialogue.draw(0.01, 1.2), pieces=rng.randint(1, 4), gap_s=0.003)
            await dialogue.pause(0.8, 0.8)


class Scp(TcpBackground):
    """A file copied up over SSH: writes of 32 KiB, as many as the channel's window lets out at once."""

    name: ClassVar[str] = "ssh/scp-upload"
    connections: ClassVar[tuple[int, int]] = (2, 6)
    start_within: ClassVar[float] = 0.4

    async def talk(self, dialogue: Dialogue) -> None:
        await _ssh_start(dialogue)
        for _ in range(dialogue.rng.randint(1, 4)):
            await dialogue.ask(140, 100, think_s=0.002)
            for _ in range(max(1, dialogue.size(3_000_000, 1.0) // (64 * 32_796))):
                for _ in range(63):
                    await dialogue.ask(32_796)
                await dialogue.ask(32_796, 44)


class ChatWebsocket(TcpBackground):
    """Idle for most of the time; sporadic messages and notifications, with pings in between."""

    name: ClassVar[str] = "chat/websocket"
    tls: ClassVar[bool] = True
    connections: ClassVar[tuple[int, int]] = (5, 20)
    start_within: ClassVar[float] = 0.4

    async def talk(self, dialogue: Dialogue) -> None:
        rng = dialogue.rng
        await dialogue.ask(620, 190, think_s=0.01)
        while True:
            kind = rng.random()
            if kind < 0.3:
                await dialogue.ask(dialogue.size(130, 0.7), 60, think_s=dialogue.draw(0.02))
            elif kind < 0.8:  # a notification: the server's answer to nothing much, a while later
                await dialogue.ask(20, dialogue.size(260, 0.8), think_s=dialogue.draw(0.4, 1.0))
            else:
                await dialogue.ask(20, 20)
            await dialogue.pause(0.6, 1.0)


class ChatIrc(TcpBackground):
    """A busy channel: lines from others in irregular bursts, now and then an own one."""

    name: ClassVar[str] = "chat/irc"
    connections: ClassVar[tuple[int, int]] = (4, 12)
    start_within: ClassVar[float] = 0.4

    async def talk(self, dialogue: Dialogue) -> None:
        rng = dialogue.rng
        await dialogue.ask(60, dialogue.size(3_500, 0.4), think_s=0.03, pieces=4, gap_s=0.02)
        while True:
            lines = rng.randint(1, 9)
            gap_s = rng.choice((0.05, 0.3, 0.6))
            await dialogue.ask(dialogue.size(70, 0.5), lines * dialogue.size(95, 0.4), pieces=lines, gap_s=gap_s)
            await dialogue.pause(0.4, 1.0)


class LogTail(TcpBackground):
    """Somebody watches a log: lines in bursts as things happen on the server, now and then a key."""

    name: ClassVar[str] = "logs/tail"
    connections: ClassVar[tuple[int, int]] = (3, 10)
    start_within: ClassVar[float] = 0.4

    async def talk(self, dialogue: Dialogue) -> None:
        rng = dialogue.rng
        await _ssh_start(dialogue)
        await dialogue.ask(120, dialogue.size(1_600, 0.5), think_s=0.02)
        while True:
            lines = rng.choice((1, 2, 3, 12, 60))
            size = lines * dialogue.size(180, 0.5)
            await dialogue.ask(36, size, pieces=lines, gap_s=rng.choice((0.0005, 0.01, 0.2)))
            await dialogue.pause(0.3, 1.3)


class RemoteDesktop(TcpBackground):
    """A screen at a distance: mouse and keys one way, changed parts of the picture the other way."""

    name: ClassVar[str] = "desktop/remote"
    tls: ClassVar[bool] = True
    connections: ClassVar[tuple[int, int]] = (2, 5)
    start_within: ClassVar[float] = 0.3

    async def talk(self, dialogue: Dialogue) -> None:
        rng = dialogue.rng
        frame_s = 1 / rng.choice((12, 20, 30))
        await dialogue.ask(900, dialogue.size(60_000, 0.5), think_s=0.05)
        while True:
            busy = rng.random() < 0.3
            for _ in range(rng.randint(5, 40)):
                change = dialogue.size(14_000 if busy else 900, 1.0)
                await dialogue.ask(rng.randint(40, 90), change, think_s=0.003)
                await asyncio.sleep(frame_s * rng.uniform(0.8, 1.3))
            await dialogue.pause(0.4, 1.0)


async def _ssh_start(dialogue: Dialogue) -> None:
    """Version, key exchange, authentication: sizes as OpenSSH's."""
    await dialogue.ask(40, 40)
    await dialogue.ask(1_500, 1_080)
    await dialogue.ask(dialogue.rng.choice((48, 1_230)), dialogue.rng.choice((450, 1_560)), think_s=0.004)
    for answer in (44, 60, 28):
        await dialogue.ask(dialogue.rng.randint(60, 400), answer, think_s=dialogue.draw(0.004))


PEOPLE = (SshInteractive, Scp, ChatWebsocket, ChatIrc, LogTail, RemoteDesktop)
