"""Prompts on their way from a scheduler to a prefill node (class prefill)."""

from __future__ import annotations

import asyncio
import random
from typing import ClassVar

from dinnet.testbed.workloads.links import GrpcUnaryLink, HttpLink, Link, LinkWorkload, RawLink, ZmqLink
from dinnet.testbed.workloads.session import Client, Session

TEXT_BYTES_PER_TOKEN = 4.2  # English text under the tokenizers of the models here


class Prompt(LinkWorkload):
    """Send the prompt, get back the first token and where the KV cache lies once prefill is done."""

    group = "prefill"
    needs_model = True
    volume = 1.5
    weighed_by = "prompt_tokens"
    bytes_per_token: ClassVar[float]
    longest_bytes: ClassVar[int] = 2**31  # of the prompts that this way is used for

    async def session(self, client: Client, session: Session) -> None:
        answer_bytes = session.rng.choice((0, 120, 400, 1200))
        async with self.connect(client, session.rng, first_request=session.first_request) as link:
            for job in session.jobs:
                await client.until(job.at_s)
                if client.left_s <= 0:
                    return
                wanted = min(int(job.request.prompt_tokens * self.bytes_per_token), self.longest_bytes)
                size = min(wanted, job.max_bytes)
                await link.ask(size, new=job.request.new_tokens, max_tokens=1, answer_bytes=answer_bytes)

    async def reply(self, link: Link, rng: random.Random) -> None:
        while True:
            message = await link.receive()
            await asyncio.sleep(
                self.accelerator.pause(rng, self.accelerator.prefill_s(self.model, message.about["new"]))
            )
            await link.send(
                message.about["answer_bytes"], token=rng.randrange(128_000), kv="remote-engine", finish="length"
            )


class HttpJsonPrompt(Prompt):
    name = "prompt/http-json"
    link = HttpLink
    bytes_per_token = TEXT_BYTES_PER_TOKEN


class ChatPrompt(HttpJsonPrompt):
    """Short questions, a connection each, as a proxy before single-request servers sends them."""

    name = "prompt/http-chat"
    per_connection = (1, 1)
    connections = (10, 40)
    longest_bytes = 3_000


class TlsJsonPrompt(Prompt):
    name = "prompt/https-json"
    link = HttpLink
    tls = True
    bytes_per_token = TEXT_BYTES_PER_TOKEN


class GrpcPrompt(Prompt):
    """Token identifiers as protobuf's varints: most of a 128,000-word vocabulary takes three bytes."""

    name = "prompt/grpc"
    link = GrpcUnaryLink
    bytes_per_token = 2.6


class TokenIdsPrompt(Prompt):
    """Token identifiers as 32-bit integers."""

    name = "prompt/token-ids-tcp"
    link = RawLink
    bytes_per_token = 4.0


class ZmqPrompt(Prompt):
    """Token identifiers in msgpack, as engines pass them to their core processes."""

    name = "prompt/zmq"
    link = ZmqLink
    bytes_per_token = 3.4


PROMPTS: tuple[type[Prompt], ...] = (HttpJsonPrompt, ChatPrompt, TlsJsonPrompt, GrpcPrompt, TokenIdsPrompt, ZmqPrompt)
