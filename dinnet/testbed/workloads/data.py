"""Bulk without a deadline of its own (class data): weights, checkpoints, logs, samples for later training."""

from __future__ import annotations

import asyncio
import random
import struct
from typing import ClassVar

from dinnet.testbed.workloads import http1
from dinnet.testbed.workloads.channel import DISCONNECTED, Channel, payload
from dinnet.testbed.workloads.links import GrpcLink, HttpLink, Link, LinkWorkload, RawLink
from dinnet.testbed.workloads.session import Client, Job, Session, SocketWorkload

FRAME_BYTES = 1_200  # planned for the heads of one exchange
MIB = 1 << 20
BULK_LOAD = (0.4, 0.9)  # bulk takes what the link gives
BULK_VOLUME = 8.0
BULK_CONNECTIONS = (2, 8)
BULK_LEAST_BYTES = 2_000_000  # of a connection


async def send_paced(channel: Channel, size: int, rng: random.Random, paced: bool) -> None:
    """Bulk bytes as a disk or an object store gives them: evenly, or in blocks with waits between."""
    if not paced:
        await channel.send_bulk(size)
        return
    block = rng.choice((128 << 10, 512 << 10, MIB))
    wait_s = rng.uniform(0.001, 0.03)
    for at in range(0, size, block):
        await channel.send_bulk(min(block, size - at))
        await asyncio.sleep(wait_s * rng.uniform(0.5, 1.5))


class HttpDownload(SocketWorkload):
    """GET of a file's ranges, one after the other on a connection, several connections in parallel."""

    group = "data"
    load = BULK_LOAD
    volume = BULK_VOLUME
    needs_model = True
    connections = BULK_CONNECTIONS
    least_bytes = BULK_LEAST_BYTES
    per_connection = (1, 6)
    ranges: ClassVar[bool] = True
    chunk_bytes: ClassVar[int] = 0  # of a chunked answer; 0: Content-Length

    async def session(self, client: Client, session: Session) -> None:
        rng = session.rng
        fields = http1.client_fields(rng)
        part = rng.choice((8, 16, 32, 64)) * MIB
        async with client.connection(rng) as channel:
            at = 0
            for job in session.jobs:
                if self.ranges or rng.random() < 0.5:  # a downloader's next range follows at once
                    await asyncio.sleep(rng.uniform(0, 0.05))
                else:
                    await client.until(job.at_s)
                if client.left_s <= 0:
                    return
                size = min(part, max(1, job.max_bytes - FRAME_BYTES))
                ranged = f"{fields}Range: bytes={at}-{at + size - 1}\r\n"
                await channel.send(http1.head("GET /models/model-00001-of-00030.safetensors HTTP/1.1", ranged))
                await http1.skip_body(channel, await http1.read_head(channel))
                at += size

    async def answer(self, channel: Channel, rng: random.Random) -> None:
        fields = http1.server_fields(rng)
        paced = rng.random() < 0.3
        while True:
            asked = await http1.read_head(channel)
            first, last = asked.fields["range"].removeprefix("bytes=").split("-")
            size = int(last) - int(first) + 1
            await asyncio.sleep(rng.uniform(0.001, 0.08))  # an object store's time to first byte
            kind = "binary/octet-stream"
            if self.chunk_bytes:
                message = http1.head("HTTP/1.1 200 OK", fields, content_type=kind, transfer_encoding="chunked")
                await channel.send(message)
                await http1.send_chunked(channel, size, self.chunk_bytes)
            else:
                more: dict[str, str | int] = {
                    "content_type": kind,
                    "content_length": size,
                    "content_range": f"bytes {first}-{last}/*",
                }
                await channel.send(http1.head("HTTP/1.1 206 Partial Content", fields, **more))
                await send_paced(channel, size, rng, paced)


class RangeGet(HttpDownload):
    name = "data/http-range"


class TlsWeights(HttpDownload):
    name = "data/https-weights"
    tls = True


class ChunkedGet(HttpDownload):
    """One GET of a whole file, chunked."""

    name = "data/http-chunked-get"
    ranges = False
    per_connection = (1, 2)
    chunk_bytes = 65_536


class MultipartUpload(SocketWorkload):
    """An object store's multipart upload: start, parts of 5 to 16 MiB, complete."""

    name = "data/multipart-upload"
    group = "data"
    load = BULK_LOAD
    volume = BULK_VOLUME
    connections = BULK_CONNECTIONS
    least_bytes = BULK_LEAST_BYTES
    per_connection = (1, 6)

    async def session(self, client: Client, session: Session) -> None:
        rng = session.rng
        fields = http1.client_fields(rng) + f"x-amz-content-sha256: {'0' * 64}\r\nExpect: 100-continue\r\n"
        part = rng.choice((5, 8, 16)) * MIB
        paced = rng.random() < 0.3
        async with client.connection(rng) as channel:
            await self._exchange(channel, http1.head("POST /bucket/object?uploads HTTP/1.1", fields, content_length=0))
            for number, job in enumerate(session.jobs):
                size = min(part, max(1, job.max_bytes - FRAME_BYTES))
                start = f"PUT /bucket/object?partNumber={number + 1}&uploadId={'u' * 60} HTTP/1.1"
                await channel.send(http1.head(start, fields, content_length=size))
                await http1.read_head(channel)  # 100 Continue
                await send_paced(channel, size, rng, paced)
                await self._exchange(channel)
                if client.left_s <= 0:
                    break
            message = http1.head("POST /bucket/object?uploadId=u HTTP/1.1", fields, content_length=300)
            await channel.send(message, payload(300))
            await self._exchange(channel)

    @staticmethod
    async def _exchange(channel: Channel, message: bytes = b"") -> None:
        if message:
            await channel.send(message)
        await http1.skip_body(channel, await http1.read_head(channel))

    async def answer(self, channel: Channel, rng: random.Random) -> None:
        fields = http1.server_fields(rng)
        while True:
            asked = await http1.read_head(channel)
            size = int(asked.fields["content-length"])
            if asked.start.startswith("PUT"):
                await channel.send(b"HTTP/1.1 100 Continue\r\n\r\n")
            await channel.skip(size)
            await asyncio.sleep(rng.uniform(0.001, 0.05))
            body = 0 if size > 300 else rng.randint(200, 500)
            message = http1.head("HTTP/1.1 200 OK", fields, etag="e" * 34, content_length=body)
            await channel.send(message, payload(body))


class MultipartUploadTls(MultipartUpload):
    name = "data/https-multipart-upload"
    tls = True


class RsyncPush(SocketWorkload):
    """rsync: greetings, a file list, per file the receiver's checksums and the sender's tokens, multiplexed."""

    name = "data/rsync-push"
    group = "data"
    load = BULK_LOAD
    volume = BULK_VOLUME
    connections = BULK_CONNECTIONS
    least_bytes = BULK_LEAST_BYTES
    per_connection = (1, 12)

    async def session(self, client: Client, session: Session) -> None:
        rng = session.rng
        async with client.connection(rng) as channel:
            await channel.send(b"@RSYNCD: 32.0 sha512 sha256 md5\n")
            await channel.until(b"\n")
            listing = min(len(session.jobs) * rng.randint(40, 90), session.max_bytes // 8)
            await channel.send(struct.pack("<I", listing), payload(listing))
            for job in session.jobs:
                await asyncio.sleep(rng.uniform(0, 0.02))
                # The receiver's block sums of what it has: 6 bytes each 700 bytes of the old file, often none.
                sums = rng.choice((0, 0, job.max_bytes // 120))
                size = max(1, job.max_bytes - sums - FRAME_BYTES)
                await channel.send(struct.pack("<II", sums, size))
                await channel.skip(sums)
                for at in range(0, size, 32_768):  # rsync's literal tokens are 32 KiB, behind a multiplex header
                    piece = min(32_768, size - at)
                    await channel.send(struct.pack("<I", piece), payload(piece))
                if client.left_s <= 0:
                    break
            await channel.send(struct.pack("<II", 0, 0))
            await channel.skip(12)

    async def answer(self, channel: Channel, rng: random.Random) -> None:
        await channel.until(b"\n")
        await channel.send(b"@RSYNCD: 31.0 md5\n")
        await channel.skip(struct.unpack("<I", await channel.exactly(4))[0])
        while True:
            sums, size = struct.unpack("<II", await channel.exactly(8))
            if not size:
                await channel.send(bytes(12))
                return
            await channel.send_bulk(sums)
            while size > 0:
                (piece,) = struct.unpack("<I", await channel.exactly(4))
                await channel.skip(piece)
                size -= piece


class Batches(LinkWorkload):
    """Batches at an interval, each confirmed: logs, samples."""

    group = "data"
    volume = 1.5
    per_connection = (1, 1)
    connections = (3, 16)
    interval_s: ClassVar[tuple[float, float]] = (0.2, 2.0)
    batch_bytes: ClassVar[tuple[int, int]] = (1_000, 200_000)
    confirmed: ClassVar[bool] = True

    async def session(self, client: Client, session: Session) -> None:
        rng = session.rng
        interval_s = rng.uniform(*self.interval_s)
        typical = rng.randint(*self.batch_bytes)
        left = session.max_bytes
        async with self.connect(client, rng) as link:
            while client.left_s > 0 and left > 2 * FRAME_BYTES:
                size = min(int(typical * rng.lognormvariate(0, 0.5)), left - FRAME_BYTES)
                left -= size + FRAME_BYTES
                lines = max(1, size // 40)
                if self.confirmed or link.alternating:
                    await link.ask(size, lines=lines, codec="zstd", ack=True)
                else:
                    await link.send(size, lines=lines, codec="zstd")
                await asyncio.sleep(min(max(0.0, client.left_s), interval_s * rng.uniform(0.7, 1.3)))

    async def reply(self, link: Link, rng: random.Random) -> None:
        while True:
            message = await link.receive()
            if link.alternating or message.about.get("ack"):
                await asyncio.sleep(rng.uniform(0.0005, 0.02))
                await link.send(ok=True)


class LogShippingTcp(Batches):
    name = "data/logs-tcp"
    link = RawLink


class LogShippingHttp(Batches):
    """Bulk inserts into a log store."""

    name = "data/logs-http"
    link = HttpLink


class SamplesUpload(Batches):
    """Prompts, answers and log-probabilities for post-training, as a gRPC stream."""

    name = "data/samples-grpc"
    link = GrpcLink
    interval_s = (0.02, 0.5)
    batch_bytes = (10_000, 500_000)
    confirmed = False


class CheckpointUpload(LinkWorkload):
    """Shards of a checkpoint, each confirmed with its hash; the next one is read from the device meanwhile."""

    name = "data/checkpoint-tcp"
    group = "data"
    load = BULK_LOAD
    volume = BULK_VOLUME
    needs_model = True
    connections = BULK_CONNECTIONS
    least_bytes = BULK_LEAST_BYTES
    per_connection = (1, 8)
    link = RawLink

    async def session(self, client: Client, session: Session) -> None:
        rng = session.rng
        async with self.connect(client, rng) as link:
            for number, job in enumerate(session.jobs):
                await self._shard(link, job, number)
                await asyncio.sleep(rng.uniform(0, 0.2))
                if client.left_s <= 0:
                    return

    @staticmethod
    async def _shard(link: Link, job: Job, number: int) -> None:
        await link.ask(max(1, job.max_bytes - FRAME_BYTES), shard=number, sha256="0" * 64)

    async def reply(self, link: Link, rng: random.Random) -> None:
        while True:
            await link.receive()
            await asyncio.sleep(rng.uniform(0.001, 0.1))
            await link.send(stored=True, sha256="0" * 64)


class CheckpointUploadTls(CheckpointUpload):
    name = "data/checkpoint-tls"
    tls = True


class PeerExchange(LinkWorkload):
    """Peers that fetch pieces of a model from each other, over the same connection in both directions."""

    name = "data/p2p-pieces"
    group = "data"
    load = BULK_LOAD
    volume = BULK_VOLUME
    needs_model = True
    connections = BULK_CONNECTIONS
    least_bytes = BULK_LEAST_BYTES
    per_connection = (1, 10)
    link = RawLink

    async def session(self, client: Client, session: Session) -> None:
        rng = session.rng
        async with self.connect(client, rng) as link:
            await link.ask(rng.randint(50, 400), want=rng.randint(50, 400), bitfield=True)
            for number, job in enumerate(session.jobs):
                # Pieces of up to 4 MiB; now and then the peer wants one from here as well.
                size = min(4 * MIB, max(1, job.max_bytes - FRAME_BYTES))
                given = size // 2 if rng.random() < 0.4 else 0
                try:
                    await link.ask(given, want=size - given, piece=number)
                except DISCONNECTED:
                    return
                await link.send(have=number, want=None)
                await asyncio.sleep(rng.uniform(0, 0.1))
                if client.left_s <= 0:
                    return

    async def reply(self, link: Link, rng: random.Random) -> None:
        while True:
            want = (await link.receive()).about["want"]
            if want is not None:
                await link.send(want)


DATA: tuple[type[SocketWorkload], ...] = (
    RangeGet,
    TlsWeights,
    ChunkedGet,
    MultipartUpload,
    MultipartUploadTls,
    RsyncPush,
    LogShippingTcp,
    LogShippingHttp,
    SamplesUpload,
    CheckpointUpload,
    CheckpointUploadTls,
    PeerExchange,
)
