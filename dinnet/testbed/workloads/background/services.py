"""Background: databases, mail, files and things that report."""

from __future__ import annotations

from typing import ClassVar

from dinnet.testbed.workloads.background.dialogue import LEAST_REQUEST, Ask, Dialogue, TcpBackground


class DnsTcp(TcpBackground):
    """DNS queries over TCP (RFC 7766): one or a few a connection."""

    name: ClassVar[str] = "dns/tcp"
    connections: ClassVar[tuple[int, int]] = (8, 24)

    async def talk(self, dialogue: Dialogue) -> None:
        queries = [
            Ask(dialogue.rng.randint(30, 75), dialogue.size(240, 0.9), think_s=dialogue.draw(0.004, 1.2))
            for _ in range(dialogue.rng.choice((1, 1, 2, 4)))
        ]
        if dialogue.rng.random() < 0.5:
            await dialogue.ask_all(queries)
        else:
            for query in queries:
                await dialogue.ask_all([query])


class Postgres(TcpBackground):
    """Transactions: parse, bind and execute in one message, rows back; some results are long."""

    name: ClassVar[str] = "db/postgres"
    connections: ClassVar[tuple[int, int]] = (5, 16)

    async def talk(self, dialogue: Dialogue) -> None:
        rng = dialogue.rng
        await dialogue.ask(86, 24)
        await dialogue.ask(110, 420, think_s=0.004)
        for _ in range(rng.randint(3, 40)):
            for _ in range(rng.randint(1, 5)):
                rows = dialogue.size(rng.choice((120, 700, 700, 9_000, 60_000)), 0.8)
                await dialogue.ask(dialogue.size(190, 0.6), rows, think_s=dialogue.draw(0.0015, 1.2))
            await dialogue.pause(0.05, 1.2)


class Redis(TcpBackground):
    """Commands in pipelines of up to fifty, most values small."""

    name: ClassVar[str] = "db/redis-pipeline"
    connections: ClassVar[tuple[int, int]] = (4, 12)

    async def talk(self, dialogue: Dialogue) -> None:
        rng = dialogue.rng
        for _ in range(rng.randint(5, 60)):
            await dialogue.ask_all(
                Ask(dialogue.size(48, 0.5), rng.choice((5, 5, dialogue.size(120, 1.2))))
                for _ in range(rng.choice((1, 1, 4, 16, 50)))
            )
            await dialogue.pause(0.03, 1.2)


class Smtp(TcpBackground):
    """A mail delivery: short commands in turn, the message itself, goodbye."""

    name: ClassVar[str] = "mail/smtp"
    connections: ClassVar[tuple[int, int]] = (5, 16)

    async def talk(self, dialogue: Dialogue) -> None:
        rng = dialogue.rng
        await dialogue.ask(24, 190, think_s=dialogue.draw(0.02))
        for _ in range(rng.choice((1, 1, 2))):
            await dialogue.ask(38, 14, think_s=dialogue.draw(0.008))
            for _ in range(rng.choice((1, 1, 3))):
                await dialogue.ask(34, 14, think_s=dialogue.draw(0.015))
            await dialogue.ask(LEAST_REQUEST, 37)
            await dialogue.ask(dialogue.size(rng.choice((3_000, 9_000, 250_000)), 0.8), 44, think_s=dialogue.draw(0.05))
        await dialogue.ask(LEAST_REQUEST, 22)


class Mqtt(TcpBackground):
    """A sensor that publishes readings at its own period and has each acknowledged."""

    name: ClassVar[str] = "iot/mqtt"
    connections: ClassVar[tuple[int, int]] = (6, 24)
    start_within: ClassVar[float] = 0.4

    async def talk(self, dialogue: Dialogue) -> None:
        rng = dialogue.rng
        reading, period_s, confirmed = rng.randint(40, 320), rng.choice((0.1, 0.25, 0.5, 1.0)), rng.random() < 0.7
        await dialogue.ask(rng.randint(40, 120), 4, think_s=0.003)
        while True:
            await dialogue.ask(reading + rng.randint(-12, 12), 4 if confirmed else 0)
            await dialogue.pause(period_s, 0.05)


class FileShare(TcpBackground):
    """Remote files (NFS, SMB): look-ups, then reads and writes of blocks, a few of them at a time."""

    name: ClassVar[str] = "files/share"
    connections: ClassVar[tuple[int, int]] = (2, 6)

    async def talk(self, dialogue: Dialogue) -> None:
        rng = dialogue.rng
        block = rng.choice((4_096, 16_384, 65_536, 131_072))
        for _ in range(rng.randint(2, 8)):
            for _ in range(rng.randint(2, 12)):
                await dialogue.ask(rng.randint(130, 260), rng.randint(110, 330), think_s=dialogue.draw(0.0004, 1.0))
            depth = rng.choice((1, 2, 4))
            writes = rng.random() < 0.35
            for _ in range(rng.randint(2, 12)):
                one = Ask(block + 180, 160, think_s=0.0008) if writes else Ask(180, block + 130, think_s=0.0004)
                await dialogue.ask_all([one] * (1 if writes else depth))
            await dialogue.pause(0.2, 1.0)


class Backup(TcpBackground):
    """A deduplicating backup: asks which blocks are known, uploads packs as fast as it can compress."""

    name: ClassVar[str] = "backup/upload"
    tls: ClassVar[bool] = True
    connections: ClassVar[tuple[int, int]] = (2, 5)
    start_within: ClassVar[float] = 0.3

    async def talk(self, dialogue: Dialogue) -> None:
        rng = dialogue.rng
        compress_rate = rng.uniform(4e6, 4e7)  # bytes a second
        while True:
            await dialogue.ask(dialogue.size(2_500, 0.5), dialogue.size(500, 0.5), think_s=dialogue.draw(0.01))
            pack = min(dialogue.size(1_200_000, 0.6), max(50_000, dialogue.left_bytes // 3))
            for _ in range(0, pack, 131_072):
                await dialogue.ask(131_072)
                await dialogue.pause(131_072 / compress_rate, 0.3)
            await dialogue.ask(220, 260, think_s=dialogue.draw(0.03))


class Replication(TcpBackground):
    """A database replica: the primary's log in small irregular writes, the replica's position back at times."""

    name: ClassVar[str] = "db/replication"
    connections: ClassVar[tuple[int, int]] = (2, 6)
    start_within: ClassVar[float] = 0.3

    async def talk(self, dialogue: Dialogue) -> None:
        rng = dialogue.rng
        await dialogue.ask(120, 260, think_s=0.005)
        while True:
            commits = rng.randint(3, 30)
            await dialogue.ask(
                34, commits * dialogue.size(900, 0.9), pieces=commits, gap_s=rng.choice((0.002, 0.01, 0.05))
            )


SERVICES = (DnsTcp, Postgres, Redis, Smtp, Mqtt, FileShare, Backup, Replication)
