"""Background: what browsers and programs do over HTTP."""

from __future__ import annotations

from typing import ClassVar

from dinnet.testbed.workloads.background.dialogue import Ask, Dialogue, TcpBackground


class Browsing(TcpBackground):
    """Pages of many small objects over kept-alive TLS connections."""

    name: ClassVar[str] = "web/browsing"
    tls: ClassVar[bool] = True
    connections: ClassVar[tuple[int, int]] = (8, 24)

    async def talk(self, dialogue: Dialogue) -> None:
        rng = dialogue.rng
        for _ in range(rng.randint(1, 4)):
            for _ in range(rng.randint(1, 12)):
                answer = dialogue.size(rng.choice((800, 6_000, 14_000, 40_000)), 0.9)
                await dialogue.ask(rng.randint(320, 950), answer, think_s=dialogue.draw(0.012, 0.9))
            await dialogue.pause(0.7)


class BrowsingPlain(TcpBackground):
    """HTTP/1.1 without TLS: one or a few objects a connection, closed after that."""

    name: ClassVar[str] = "web/http-plain"
    connections: ClassVar[tuple[int, int]] = (12, 30)

    async def talk(self, dialogue: Dialogue) -> None:
        for _ in range(dialogue.rng.choice((1, 1, 1, 2, 5))):
            await dialogue.ask(dialogue.size(380, 0.3), dialogue.size(9_000, 1.2), think_s=dialogue.draw(0.006, 1.0))


class RestCalls(TcpBackground):
    """A program that calls a JSON interface: some calls upload documents, most fetch them."""

    name: ClassVar[str] = "web/rest-json"
    tls: ClassVar[bool] = True

    async def talk(self, dialogue: Dialogue) -> None:
        rng = dialogue.rng
        for _ in range(rng.randint(1, 25)):
            upload = rng.random() < 0.25
            request = 420 + (dialogue.size(2_500, 1.0) if upload else rng.randint(0, 300))
            answer = 380 + (rng.randint(20, 200) if upload else dialogue.size(2_200, 1.2))
            await dialogue.ask(request, answer, think_s=dialogue.draw(0.02, 1.0))
            await dialogue.pause(0.12, 1.0)


class Download(TcpBackground):
    """One large file from a far server, which is the slower end."""

    name: ClassVar[str] = "web/file-download"
    tls: ClassVar[bool] = True
    connections: ClassVar[tuple[int, int]] = (2, 6)
    start_within: ClassVar[float] = 0.4

    async def talk(self, dialogue: Dialogue) -> None:
        size = min(dialogue.left_bytes, dialogue.size(8_000_000, 0.8))
        piece = dialogue.rng.choice((16_384, 65_536, 131_072))
        far_rate = dialogue.rng.uniform(0.5e6, 6e6)  # bytes a second
        await dialogue.ask(
            500, size, think_s=dialogue.draw(0.03), pieces=min(60_000, size // piece + 1), gap_s=piece / far_rate
        )


class DashVideo(TcpBackground):
    """Segments of a video: a burst to fill the buffer, then one segment after another with pauses."""

    name: ClassVar[str] = "video/dash"
    tls: ClassVar[bool] = True
    connections: ClassVar[tuple[int, int]] = (2, 6)
    start_within: ClassVar[float] = 0.3

    async def talk(self, dialogue: Dialogue) -> None:
        rng = dialogue.rng
        segment = min(rng.choice((60_000, 180_000, 450_000, 900_000)), max(20_000, dialogue.left_bytes // 8))
        period_s = rng.uniform(0.4, 2.0)
        for number in range(40):
            audio = Ask(610, dialogue.size(24_000, 0.15), think_s=0.004)
            await dialogue.ask_all([Ask(620, dialogue.size(segment, 0.3), think_s=0.006), audio])
            if number >= 2:
                await dialogue.pause(period_s, 0.1)


class LongPoll(TcpBackground):
    """A browser tab that waits for news: requests that are answered seconds later, or by nothing new."""

    name: ClassVar[str] = "web/long-poll"
    tls: ClassVar[bool] = True
    connections: ClassVar[tuple[int, int]] = (4, 12)
    start_within: ClassVar[float] = 0.5

    async def talk(self, dialogue: Dialogue) -> None:
        for _ in range(12):
            await dialogue.ask(dialogue.size(700, 0.2), dialogue.size(350, 0.7), think_s=dialogue.draw(0.9, 0.8))


class GitClone(TcpBackground):
    """Reference list, negotiation, then a pack that the server compresses as it goes."""

    name: ClassVar[str] = "git/clone"
    tls: ClassVar[bool] = True
    connections: ClassVar[tuple[int, int]] = (3, 10)

    async def talk(self, dialogue: Dialogue) -> None:
        rng = dialogue.rng
        await dialogue.ask(260, dialogue.size(18_000, 1.0), think_s=dialogue.draw(0.04))
        for _ in range(rng.randint(1, 4)):
            await dialogue.ask(dialogue.size(1_800, 0.7), rng.randint(60, 900), think_s=dialogue.draw(0.01))
        pack = min(dialogue.size(1_500_000, 1.2), dialogue.left_bytes)
        # Side-band packets hold up to 65,520 bytes (gitprotocol-pack).
        await dialogue.ask(
            600, pack, think_s=dialogue.draw(0.15), pieces=pack // 65_520 + 1, gap_s=rng.uniform(0, 0.02)
        )


WEB = (Browsing, BrowsingPlain, RestCalls, Download, DashVideo, LongPoll, GitClone)
