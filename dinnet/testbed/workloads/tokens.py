"""Prompts of clients and the answers that come back to them, token by token or whole (class decode)."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from typing import Any, ClassVar

from dinnet.testbed.traces import stream_shapes
from dinnet.testbed.workloads import http1
from dinnet.testbed.workloads.base import Profile
from dinnet.testbed.workloads.channel import TLS_OVERHEAD, Channel, payload
from dinnet.testbed.workloads.http2 import GRPC_TRAILERS, Http2, Stream, request_fields, response_fields
from dinnet.testbed.workloads.links import Link, RawLink, WebSocketLink, ZmqLink, linked
from dinnet.testbed.workloads.prompts import TEXT_BYTES_PER_TOKEN
from dinnet.testbed.workloads.session import GRACE_S, Client, Job, Session, SocketWorkload

ABOUT_BYTES = 128  # of a request in HTTP/2, so that its reader knows where the prompt starts


class TokenStream(SocketWorkload):
    """Ask, wait for the first token, take the tokens as they come; several requests on a connection."""

    group = "decode"
    needs_model = True
    weighed_by = "output_tokens"
    per_connection = (1, 5)
    streaming: ClassVar[bool] = True
    event_bytes: ClassVar[tuple[int, int]] = (90, 330)  # around the text of one event

    def __init__(self, profile: Profile) -> None:
        super().__init__(profile)
        self.every = self.rng.choice((1, 1, 1, 1, 2, 4, 8))  # tokens that go out together
        self.frame_bytes = self.rng.randint(*self.event_bytes)

    def asked(self, client: Client, job: Job) -> tuple[dict[str, Any], int] | None:
        """What to ask for so that it fits the time and the bytes left: its description and the prompt's bytes."""
        request = job.request
        prefill_s = self.accelerator.prefill_s(self.model, request.new_tokens)
        left_s = client.left_s + GRACE_S / 2 - prefill_s
        if client.left_s <= 0:
            return None
        prompt = min(int(request.prompt_tokens * TEXT_BYTES_PER_TOKEN), job.max_bytes // 3)
        affordable = (job.max_bytes - prompt) // ((self.frame_bytes + 40) // self.every + 5)
        timely = int(left_s / (self.accelerator.step_s(self.model, 8) * 1.15))
        tokens = max(1, min(request.output_tokens, affordable, timely))
        return {"new": request.new_tokens, "max_tokens": tokens, "stream": self.streaming}, prompt

    async def texts(self, rng: random.Random, about: dict[str, Any]) -> AsyncIterator[int]:
        """The server's work: the length of each event's text, when it is there."""
        tokens = int(about["max_tokens"])
        await asyncio.sleep(self.accelerator.pause(rng, self.accelerator.prefill_s(self.model, int(about["new"]))))
        step_s = self.accelerator.step_s(self.model, rng.choice((1, 4, 8, 8)))
        while tokens > 0:
            count = min(tokens, self.every)
            yield sum(rng.choice((1, 2, 3, 4, 4, 5, 6, 8, 11)) for _ in range(count))
            tokens -= count
            if tokens:
                await asyncio.sleep(self.accelerator.pause(rng, step_s * count))


class HttpTokens(TokenStream):
    """HTTP/1.1, one request after the other on a connection."""

    content_type: ClassVar[str] = "text/event-stream"

    async def session(self, client: Client, session: Session) -> None:
        fields = http1.client_fields(session.rng)
        described = {"streaming": self.streaming, "first_request": session.first_request}
        async with client.connection(session.rng, **described) as channel:
            for job in session.jobs:
                await client.until(job.at_s)
                if (asked := self.asked(client, job)) is None:
                    return
                about, prompt = asked
                text = json.dumps({"model": self.model.name, **about, "messages": [{"role": "user"}]}).encode()
                start = "POST /v1/chat/completions HTTP/1.1"
                size = len(text) + prompt
                message = http1.head(start, fields, content_type="application/json", content_length=size)
                # The prompt is padding after the JSON document: only its length matters.
                if session.rng.random() < 0.5:
                    await channel.send(message, text, payload(prompt))
                else:
                    await channel.send(message)
                    await channel.send(text, payload(prompt))
                await http1.skip_body(channel, await http1.read_head(channel))

    async def answer(self, channel: Channel, rng: random.Random) -> None:
        fields = http1.server_fields(rng)
        while True:
            body = await http1.read_body(channel, await http1.read_head(channel))
            about = json.JSONDecoder().raw_decode(body[:1024].decode("latin-1"))[0]
            if self.streaming:
                kind = {"content_type": self.content_type, "transfer_encoding": "chunked"}
                await self.stream(channel, rng, http1.head("HTTP/1.1 200 OK", fields, **kind), about)
                await http1.send_chunk(channel, b"")
            else:
                size = 0
                async for text in self.texts(rng, about):
                    size += text
                kind = {"content_type": "application/json", "content_length": str(self.frame_bytes + 250 + size)}
                message = http1.head("HTTP/1.1 200 OK", fields, **kind)
                await http1.send_with_body(channel, message, self.frame_bytes + 250 + size)

    async def stream(self, channel: Channel, rng: random.Random, message: bytes, about: dict[str, Any]) -> None:
        """Send the response's head and its chunks."""
        early = rng.random() < 0.5  # many servers send the head before the first token is there
        if early:
            await channel.send(message)
        async for text in self.texts(rng, about):
            if not early:
                await channel.send(message)
                early = True
            await http1.send_chunk(channel, payload(self.frame_bytes + text))


class SseTokens(HttpTokens):
    name = "tokens/sse-http1"


class SseTlsTokens(HttpTokens):
    name = "tokens/sse-tls"
    tls = True


class RecordedTlsTokens(HttpTokens):
    """Answers with the TLS record lengths and gaps of recorded ones."""

    name = "tokens/sse-tls-recorded"
    tls = True

    async def stream(self, channel: Channel, rng: random.Random, message: bytes, about: dict[str, Any]) -> None:
        await channel.send(message)
        shape = rng.choice(stream_shapes())
        left = int(about["max_tokens"]) * (self.frame_bytes + 40)
        pace = rng.uniform(0.7, 1.5)
        tokens = 0.0
        for size, gap_s in zip(shape.record_bytes[2:], shape.gaps_s[2:], strict=True):
            tokens += shape.tokens / len(shape.record_bytes)
            left -= size
            if left < 0 or tokens > about["max_tokens"]:
                return
            await asyncio.sleep(gap_s * pace)
            # Of a record: its tag, and the chunk's own size line and end.
            await http1.send_chunk(channel, payload(max(8, size - TLS_OVERHEAD - 7)))


class NdjsonTokens(HttpTokens):
    """A line of JSON a token."""

    name = "tokens/ndjson"
    content_type = "application/x-ndjson"
    event_bytes = (75, 140)


class WholeAnswer(HttpTokens):
    """No stream: the whole answer when all of it is there."""

    name = "tokens/whole-answer"
    streaming = False


class WholeAnswerTls(WholeAnswer):
    name = "tokens/whole-answer-tls"
    tls = True


class Http2Tokens(TokenStream):
    """Server-sent events in DATA frames; the requests of a connection share it, each in a stream of its own."""

    name = "tokens/sse-http2"
    tls = True
    grpc: ClassVar[bool] = False

    async def session(self, client: Client, session: Session) -> None:
        described = {"streaming": self.streaming, "first_request": session.first_request}
        async with (
            client.connection(session.rng, **described) as channel,
            Http2(channel, True, session.rng) as http2,
            asyncio.TaskGroup() as group,
        ):
            for job in session.jobs:
                group.create_task(self._ask(client, http2, job))

    async def _ask(self, client: Client, http2: Http2, job: Job) -> None:
        await client.until(job.at_s)
        if (asked := self.asked(client, job)) is None or http2.gone:
            return
        about, prompt = asked
        text = json.dumps(about).encode().ljust(ABOUT_BYTES)
        if self.grpc:
            stream = await http2.open(request_fields("/inference.v1.Generation/GenerateStream"))
            await stream.send_message(text, prompt, end=True)
        else:
            stream = await http2.open(request_fields("/v1/chat/completions", "application/json"))
            await stream.send(text + bytes(payload(prompt)), end=True)
        await stream.rest()

    async def answer(self, channel: Channel, rng: random.Random) -> None:
        async with Http2(channel, False, rng) as http2, asyncio.TaskGroup() as group:
            async for stream in http2.incoming():
                group.create_task(self._stream(stream, random.Random(rng.getrandbits(64))))

    async def _stream(self, stream: Stream, rng: random.Random) -> None:
        about = await self._read(stream)
        kind = "application/grpc" if self.grpc else "text/event-stream"
        try:
            await stream.respond(response_fields(kind))
            async for text in self.texts(rng, about):
                if self.grpc:
                    await stream.send_message(b"", self.frame_bytes // 4 + text)
                else:
                    await stream.send(payload(self.frame_bytes + text))
            if self.grpc:
                await stream.respond(GRPC_TRAILERS, end=True)
            else:
                await stream.send(b"data: [DONE]\n\n", end=True)
        except ConnectionResetError:
            return  # this client has left; the connection's other streams go on

    async def _read(self, stream: Stream) -> dict[str, Any]:
        body = (await stream.message())[0] if self.grpc else await stream.exactly(ABOUT_BYTES)
        about: dict[str, Any] = json.JSONDecoder().raw_decode(body[:1024].decode("latin-1"))[0]
        await stream.rest()
        return about


class GrpcTokens(Http2Tokens):
    name = "tokens/grpc-stream"
    tls = False
    grpc = True


class LinkTokens(TokenStream):
    """One message an event."""

    link: ClassVar[type[Link]]
    event_bytes = (0, 200)

    async def session(self, client: Client, session: Session) -> None:
        described = {"streaming": self.streaming, "first_request": session.first_request}
        async with (
            client.connection(session.rng, **described) as channel,
            linked(self.link, channel, True, session.rng) as link,
        ):
            for job in session.jobs:
                await client.until(job.at_s)
                if (asked := self.asked(client, job)) is None:
                    return
                about, prompt = asked
                await link.send(prompt, **about)
                while not (told := (await link.receive()).about).get("finish"):
                    self.arrived(client, told)

    def arrived(self, client: Client, about: dict[str, Any]) -> None:
        """What the client does with an event."""

    async def answer(self, channel: Channel, rng: random.Random) -> None:
        async with linked(self.link, channel, False, rng) as link:
            while True:
                about = (await link.receive()).about
                async for text in self.texts(rng, about):
                    await self.event(link, text)
                await link.send(finish="stop")

    async def event(self, link: Link, text: int) -> None:
        await link.send(delta="t" * (text + self.frame_bytes))


class WebSocketTokens(LinkTokens):
    name = "tokens/websocket"
    link = WebSocketLink


class ZmqTokens(LinkTokens):
    """From an engine's core to the front end that turns them into text."""

    name = "tokens/zmq"
    link = ZmqLink


class RawTokens(LinkTokens):
    """From the last stage's node to the gateway, in small binary messages."""

    name = "tokens/raw-tcp"
    link = RawLink
    event_bytes = (0, 30)


TOKENS: tuple[type[TokenStream], ...] = (
    SseTokens,
    SseTlsTokens,
    RecordedTlsTokens,
    NdjsonTokens,
    WholeAnswer,
    WholeAnswerTls,
    Http2Tokens,
    GrpcTokens,
    WebSocketTokens,
    ZmqTokens,
    RawTokens,
)
