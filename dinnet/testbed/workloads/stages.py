"""Hidden states between pipeline stages: chunks of prompts (class prefill), steps of batches (class decode)."""

from __future__ import annotations

import asyncio
import random

from dinnet.testbed.workloads.base import Profile
from dinnet.testbed.workloads.links import GrpcLink, GrpcUnaryLink, Link, LinkWorkload, RawLink, WebSocketLink, ZmqLink
from dinnet.testbed.workloads.session import Client, Job, Session

STEP_FRAME_BYTES = 1_000  # planned for what a step carries beside the hidden states
LEAST_STEPS = 40  # of a connection between decode stages


class PrefillStage(LinkWorkload):
    """Chunked prefill: each chunk's hidden states go on to the next stage while this one computes the next chunk."""

    group = "prefill"
    needs_model = True
    volume = 4.0
    connections = (3, 12)
    per_connection = (1, 10)
    least_bytes = 500_000

    async def session(self, client: Client, session: Session) -> None:
        rng = session.rng
        chunk_tokens = rng.choice((512, 1024, 2048, 4096, 8192))
        tensors = rng.choice((1, 1, 2))  # some models hand a residual on beside the hidden states
        stages = rng.choice((2, 4, 8))
        if not (jobs := self._affordable(session, chunk_tokens, tensors)):
            return
        async with self.connect(client, rng) as link:
            for job in jobs:
                await client.until(job.at_s)
                if client.left_s <= 0:
                    return
                await self._prompt(link, job, chunk_tokens, tensors, stages, rng)

    def _affordable(self, session: Session, chunk_tokens: int, tensors: int) -> list[Job]:
        """The session's jobs without those that the connection's bytes do not suffice for.

        Short prompts cost more for the frames around their chunks than for the chunks.
        """
        jobs, left = [], session.max_bytes
        for job in session.jobs:
            chunks = -(-job.request.new_tokens // chunk_tokens)
            cost = self._states_bytes(job, tensors) + STEP_FRAME_BYTES * (chunks * tensors + 1)
            if cost <= left:
                jobs.append(job)
                left -= cost
        return jobs

    def _states_bytes(self, job: Job, tensors: int) -> int:
        """The prompt's hidden states, cut to what they may cost."""
        return min(self.model.activation_bytes(job.request.new_tokens) * tensors, int(job.max_bytes * 0.9))

    async def _prompt(
        self, link: Link, job: Job, chunk_tokens: int, tensors: int, stages: int, rng: random.Random
    ) -> None:
        chunks = -(-job.request.new_tokens // chunk_tokens)
        tokens = min(chunk_tokens, job.request.new_tokens)
        size = self._states_bytes(job, tensors) // (chunks * tensors)
        for number in range(chunks):
            await asyncio.sleep(self.accelerator.pause(rng, self.accelerator.prefill_s(self.model, tokens) / stages))
            for _ in range(tensors):
                await link.push(size, chunk=number, shape=[tokens, self.model.hidden], dtype="bfloat16")
        # The last stage's sampled token comes back to where the request started.
        await link.ask(sample=True)

    async def reply(self, link: Link, rng: random.Random) -> None:
        while True:
            message = await link.receive()
            if link.alternating or message.about.get("sample"):
                await link.send(token=rng.randrange(128_000))


class PrefillStageTcp(PrefillStage):
    name = "stage/prefill-raw-tcp"
    link = RawLink


class PrefillStageGrpc(PrefillStage):
    name = "stage/prefill-grpc-stream"
    link = GrpcLink


class PrefillStageZmq(PrefillStage):
    name = "stage/prefill-zmq"
    link = ZmqLink


class DecodeStage(LinkWorkload):
    """Every step the batch's hidden states go forward; hidden states or only sampled tokens come back."""

    group = "decode"
    needs_model = True
    volume = 2.0
    connections = (5, 16)
    per_connection = (1, 1)

    def __init__(self, profile: Profile) -> None:
        super().__init__(profile)
        self.least_bytes = LEAST_STEPS * (2 * self.model.activation_bytes(1) + STEP_FRAME_BYTES)

    async def session(self, client: Client, session: Session) -> None:
        rng = session.rng
        batch = rng.choice((1, 1, 2, 4, 8, 16, 32, 64))
        back = rng.random() < 0.5  # a ring of two stages sends hidden states both ways
        ways = 2 if back else 1
        # Rather a smaller batch than a handful of steps.
        affordable = (session.max_bytes // 25 - STEP_FRAME_BYTES) // (self.model.activation_bytes(1) * ways)
        batch = max(1, min(batch, affordable))
        left = session.max_bytes
        async with self.connect(client, rng) as link:
            while client.left_s > 0:
                now = max(1, min(batch, batch + rng.randint(-2, 2)))
                size = self.model.activation_bytes(now)
                left -= size * ways + STEP_FRAME_BYTES
                if left < 0:
                    return
                step_s = self.accelerator.step_s(self.model, now)
                await asyncio.sleep(self.accelerator.pause(rng, step_s / 2))
                await link.ask(size, batch=now, back=size if back else 8 * now, half_s=round(step_s / 2, 4))

    async def reply(self, link: Link, rng: random.Random) -> None:
        while True:
            message = await link.receive()
            await asyncio.sleep(self.accelerator.pause(rng, message.about["half_s"]))
            await link.send(message.about["back"], batch=message.about["batch"])


class DecodeStageTcp(DecodeStage):
    name = "stage/decode-raw-tcp"
    link = RawLink


class DecodeStageGrpc(DecodeStage):
    name = "stage/decode-grpc-stream"
    link = GrpcLink


class DecodeStageGrpcUnary(DecodeStage):
    name = "stage/decode-grpc-unary"
    link = GrpcUnaryLink


class DecodeStageZmq(DecodeStage):
    name = "stage/decode-zmq"
    link = ZmqLink


class DecodeStageWebSocket(DecodeStage):
    """Stages on volunteers' machines, behind firewalls."""

    name = "stage/decode-websocket"
    link = WebSocketLink


STAGES: tuple[type[LinkWorkload], ...] = (
    PrefillStageTcp,
    PrefillStageGrpc,
    PrefillStageZmq,
    DecodeStageTcp,
    DecodeStageGrpc,
    DecodeStageGrpcUnary,
    DecodeStageZmq,
    DecodeStageWebSocket,
)
