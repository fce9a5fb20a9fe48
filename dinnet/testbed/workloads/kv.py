"""The KV hand-off from prefill to decode nodes (class prefill): who pulls or pushes, when, and in what pieces."""

from __future__ import annotations

import asyncio
import random
import struct
from typing import ClassVar

from dinnet.testbed.workloads.channel import DISCONNECTED, Channel, payload
from dinnet.testbed.workloads.links import GrpcLink, HttpLink, Link, LinkWorkload, RawLink, RespLink, ZmqLink
from dinnet.testbed.workloads.session import Client, Job, Session, SocketWorkload

BLOCK_TOKENS = 16  # of a KV cache block, vLLM's default
READ_HEADER_BYTES = 21  # of a piece of an answer to a remote read
LEAST_MESSAGE = 16_384  # smaller layers are sent together
VOLUME = 8.0  # the KV cache is most of what inference sends
CONNECTIONS = (2, 8)  # a pair of nodes keeps one, or one for each rank of a tensor-parallel group
HAND_OFFS = (2, 10)  # of a connection within a scenario's few seconds
LEAST_BYTES = 1_000_000


def _kv_bytes(workload: SocketWorkload, job: Job) -> int:
    """What this connection carries of the request's KV cache, cut to what it may cost."""
    return min(job.request.new_tokens * workload.model.kv_bytes_per_token() // job.ways, int(job.max_bytes * 0.95))


class KvPush(LinkWorkload):
    """The prefill node sends layers as they finish; the decode node says when it has all of them."""

    group = "prefill"
    needs_model = True
    volume = VOLUME
    connections = CONNECTIONS
    per_connection = HAND_OFFS
    least_bytes = LEAST_BYTES
    link: ClassVar[type[Link]] = RawLink
    layerwise: ClassVar[bool] = True

    async def session(self, client: Client, session: Session) -> None:
        ack_each = session.rng.random() < 0.3
        async with self.connect(client, session.rng, first_request=session.first_request) as link:
            for job in session.jobs:
                await client.until(job.at_s)
                if client.left_s <= 0:
                    return
                await self.hand_off(client, link, job, session.rng, ack_each)

    def pieces(self, job: Job, rng: random.Random) -> list[int]:
        """Sizes of the messages: one a layer or a few layers, at least 16 KiB each."""
        total = _kv_bytes(self, job)
        count = max(1, min(self.model.layers // rng.choice((1, 1, 1, 2, 4)), total // LEAST_MESSAGE))
        return [total // count] * count

    async def hand_off(self, client: Client, link: Link, job: Job, rng: random.Random, ack_each: bool) -> None:
        sizes = self.pieces(job, rng)
        prefill_s = self.accelerator.prefill_s(self.model, job.request.new_tokens)
        await link.push(
            request=f"{rng.getrandbits(64):016x}", pieces=len(sizes), blocks=list(range(min(64, len(sizes))))
        )
        if not self.layerwise:
            await asyncio.sleep(prefill_s)
        for number, size in enumerate(sizes):
            if self.layerwise:
                await asyncio.sleep(self.accelerator.pause(rng, prefill_s / len(sizes)))
            if ack_each and not link.alternating:
                await link.ask(size, piece=number, ack=True)
            else:
                await link.push(size, piece=number)
        await link.ask(done=True, ack=True)

    async def reply(self, link: Link, rng: random.Random) -> None:
        while True:
            message = await link.receive()
            if link.alternating or message.about.get("ack"):
                await link.send(ok=True)


class KvRawTcp(KvPush):
    name = "kv/raw-tcp-layerwise"


class KvTls(KvPush):
    name = "kv/tls-layerwise"
    tls = True


class KvHttpPut(KvPush):
    name = "kv/http-put-layers"
    link = HttpLink


class KvGrpcStream(KvPush):
    name = "kv/grpc-stream-layers"
    link = GrpcLink


class KvZmq(KvPush):
    name = "kv/zmq-layers"
    link = ZmqLink


class KvOneShot(KvPush):
    """Everything at once when prefill is done."""

    name = "kv/raw-tcp-oneshot"
    layerwise = False
    connections = (3, 12)
    per_connection = (1, 4)  # some systems connect anew for each request

    def pieces(self, job: Job, rng: random.Random) -> list[int]:
        return [_kv_bytes(self, job)]


class KvRedis(KvPush):
    """Chunks of 256 tokens put into a store after prefill, as KV caching layers do."""

    name = "kv/redis-chunks"
    link = RespLink
    layerwise = False

    def pieces(self, job: Job, rng: random.Random) -> list[int]:
        total = _kv_bytes(self, job)
        count = max(1, min(-(-job.request.new_tokens // 256), total // LEAST_MESSAGE))
        return [total // count] * count


class KvParallel(KvPush):
    """One request's cache over several connections at once, each with its share of every layer."""

    name = "kv/parallel-tcp"
    connections = (1, 3)

    async def session(self, client: Client, session: Session) -> None:
        ways = max(1, min(session.rng.choice((2, 3, 4, 8)), session.max_bytes // 32_768))
        shares = [
            Session(way, tuple(_share(job, ways) for job in session.jobs), random.Random(session.rng.getrandbits(64)))
            for way in range(ways)
        ]
        async with asyncio.TaskGroup() as group:
            for share in shares:
                group.create_task(self._one(client, share))

    async def _one(self, client: Client, session: Session) -> None:
        try:
            await super().session(client, session)
        except DISCONNECTED:
            return  # the other ways go on


def _share(job: Job, ways: int) -> Job:
    return Job(job.at_s, job.request, job.max_bytes // ways, ways)


class KvSlices(SocketWorkload):
    """Batches of 64 KiB slices, each behind a header of size, address and operation, as Mooncake's TCP transport."""

    name = "kv/slices-64k"
    group = "prefill"
    needs_model = True
    volume = VOLUME
    connections = CONNECTIONS
    per_connection = HAND_OFFS
    least_bytes = LEAST_BYTES

    async def session(self, client: Client, session: Session) -> None:
        rng = session.rng
        window = rng.choice((1, 4, 16))  # slices under way before one must be confirmed
        async with client.connection(rng, first_request=session.first_request) as channel:
            for job in session.jobs:
                await client.until(job.at_s)
                if client.left_s <= 0:
                    return
                await self._batch(channel, job, rng, window)

    async def _batch(self, channel: Channel, job: Job, rng: random.Random, window: int) -> None:
        total = _kv_bytes(self, job)
        await asyncio.sleep(self.accelerator.pause(rng, self.accelerator.prefill_s(self.model, job.request.new_tokens)))
        owed = 0
        for at in range(0, total, 65_536):
            size = min(65_536, total - at)
            await channel.send(struct.pack("<QQB", size, at, 1), payload(size))
            owed += 1
            if owed == window:
                await channel.skip(17)
                owed -= 1
        await channel.skip(17 * owed)

    async def answer(self, channel: Channel, rng: random.Random) -> None:
        while True:
            size, at, _ = struct.unpack("<QQB", await channel.exactly(17))
            await channel.skip(size)
            await channel.send(struct.pack("<QQB", 0, at, 2))


class KvPull(LinkWorkload):
    """The decode node reads: metadata first, then batches of blocks, then word that the blocks may be freed."""

    name = "kv/pull-blocks"
    group = "prefill"
    needs_model = True
    volume = VOLUME
    connections = CONNECTIONS
    per_connection = HAND_OFFS
    least_bytes = LEAST_BYTES
    link: ClassVar[type[Link]] = RawLink
    metadata_bytes: ClassVar[tuple[int, int]] = (800, 6000)

    async def session(self, client: Client, session: Session) -> None:
        rng = session.rng
        batch = rng.choice((4, 16, 64, 256))
        async with self.connect(client, rng, first_request=session.first_request) as link:
            ours, theirs = (min(rng.randint(*self.metadata_bytes), session.max_bytes // 20) for _ in range(2))
            await link.ask(ours, want=theirs)
            for job in session.jobs:
                await client.until(job.at_s)
                if client.left_s <= 0:
                    return
                await self._read(link, job, batch)

    async def _read(self, link: Link, job: Job, batch: int) -> None:
        total = _kv_bytes(self, job)
        blocks = max(1, min(-(-job.request.new_tokens // BLOCK_TOKENS), total // 4096))
        per_block = total // blocks
        for first in range(0, blocks, batch):
            count = min(batch, blocks - first)
            # A descriptor of a remote block is an address, a length and a device: 20 bytes.
            await link.ask(20 * count if total > 100_000 else 0, want=count * per_block)
        await link.ask(want=0, done=True)

    async def reply(self, link: Link, rng: random.Random) -> None:
        while True:
            message = await link.receive()
            await link.send(message.about["want"], ok=True)


class KvHttpGet(KvPull):
    """The same reads as GETs from a KV store that speaks HTTP."""

    name = "kv/http-get-blocks"
    link = HttpLink
    metadata_bytes = (0, 600)


class KvTlsPull(KvPull):
    name = "kv/tls-pull-blocks"
    tls = True


class KvRemoteRead(SocketWorkload):
    """Remote reads emulated on TCP: a small request for each block and layer, all sent at once, answered in order.

    As RDMA libraries do where there is no RDMA: an active-message header of 5 bytes, a request of an address, a
    length and a key, answers cut into messages of a few KiB, and a notice when the blocks may be freed.
    """

    name = "kv/remote-read"
    group = "prefill"
    needs_model = True
    volume = VOLUME
    connections = CONNECTIONS
    per_connection = HAND_OFFS
    least_bytes = LEAST_BYTES

    async def session(self, client: Client, session: Session) -> None:
        rng = session.rng
        segment = rng.choice((8_192, 8_192, 65_536))
        hello = rng.randint(30, 400)
        async with client.connection(rng, first_request=session.first_request) as channel:
            await channel.send(struct.pack("<BIII", 0, hello, segment, 0), payload(hello))
            await channel.skip(hello)
            for job in session.jobs:
                await client.until(job.at_s)
                if client.left_s <= 0:
                    return
                await self._read(channel, job, segment, rng.randint(40, 120))

    async def _read(self, channel: Channel, job: Job, segment: int, notice: int) -> None:
        total = _kv_bytes(self, job)
        blocks = -(-job.request.new_tokens // BLOCK_TOKENS) * self.model.layers
        reads = max(1, min(blocks, total // 2_048))
        size = total // reads
        answers = reads * (size + READ_HEADER_BYTES * -(-size // segment))
        receiving = asyncio.create_task(channel.skip(answers))
        for first in range(0, reads, 64):  # a queue of requests is written as one
            count = min(64, reads - first)
            await channel.send(b"".join(struct.pack("<BI40xII", 1, 48, size, 0) for _ in range(count)))
        await receiving
        await channel.send(struct.pack("<BIII", 2, notice, 0, 0), payload(notice))

    async def answer(self, channel: Channel, rng: random.Random) -> None:
        _, hello, segment, _ = struct.unpack("<BIII", await channel.exactly(13))
        await channel.skip(hello)
        await channel.send(payload(hello))
        while True:
            kind, length = struct.unpack("<BI", await channel.exactly(5))
            if kind == 2:
                await channel.skip(8 + length)
                continue
            size, _ = struct.unpack("<40xII", await channel.exactly(48))
            for at in range(0, size, segment):
                piece = min(segment, size - at)
                await channel.send(struct.pack("<BI16x", 3, piece), payload(piece))


KV: tuple[type[SocketWorkload], ...] = (
    KvRawTcp,
    KvTls,
    KvHttpPut,
    KvGrpcStream,
    KvZmq,
    KvOneShot,
    KvRedis,
    KvParallel,
    KvSlices,
    KvPull,
    KvHttpGet,
    KvTlsPull,
    KvRemoteRead,
)
