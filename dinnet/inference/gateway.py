"""The HTTP side: /v1/generate, OpenAI's completions and chat completions, models, health, metrics."""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic import BaseModel, ConfigDict, Field

from dinnet.errors import DinnetError
from dinnet.inference.sampling import Sampling
from dinnet.inference.scheduler import Overloaded, Scheduler, Unavailable
from dinnet.inference.text import TextStream

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class _Wishes(BaseModel):
    """What all three ways of asking have in common; keys of OpenAI's that change nothing here are let through."""

    model_config = ConfigDict(extra="ignore")
    model: str | None = None
    max_tokens: Annotated[int | None, Field(ge=1)] = None
    min_tokens: Annotated[int, Field(ge=0)] = 0
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] = 0
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool = False
    ignore_eos: bool = False


class GenerateBody(_Wishes):
    prompt: str


class CompletionBody(_Wishes):
    prompt: str | list[int]


class Message(BaseModel):
    model_config = ConfigDict(extra="ignore")
    role: str
    content: str


class ChatBody(_Wishes):
    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int | None, Field(ge=1)] = None


@dataclass(frozen=True, slots=True)
class _Delta:
    text: str
    tokens: int  # so far
    finish: str | None


class _Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("inference_requests", "Requests by outcome.", ["outcome"], registry=self.registry)
        self.tokens = Counter("inference_tokens", "Tokens given to clients.", registry=self.registry)
        self.ttft = Histogram("inference_ttft_seconds", "First token.", buckets=_SECONDS, registry=self.registry)
        self.itl = Histogram("inference_itl_seconds", "Token to token.", buckets=_SECONDS, registry=self.registry)
        self.kv = Gauge("inference_kv_cache_usage_ratio", "KV blocks in use.", ["node"], registry=self.registry)
        self.handoff = Histogram(
            "inference_pd_handoff_delay_seconds",
            "Last prefill layer computed to decode ready.",
            ["prefill_node", "decode_node"],
            buckets=_SECONDS,
            registry=self.registry,
        )


class _Gateway:
    def __init__(self, scheduler: Scheduler, tokenizer: Any, model_name: str, eos: tuple[int, ...]) -> None:
        self.scheduler, self.tokenizer, self.model_name, self.eos = scheduler, tokenizer, model_name, eos
        self.metrics = _Metrics()

    def sampling(self, body: _Wishes, max_tokens: int) -> Sampling:
        return Sampling(
            temperature=1.0 if body.temperature is None else body.temperature,
            top_p=1.0 if body.top_p is None else body.top_p,
            top_k=body.top_k,
            seed=random.getrandbits(63) if body.seed is None else body.seed,
            max_tokens=max_tokens,
            min_tokens=body.min_tokens,
            eos=() if body.ignore_eos else self.eos,
        )

    async def deltas(self, prompt: list[int], wishes: Sampling, stop: list[str]) -> AsyncGenerator[_Delta, None]:
        """Text as it becomes certain. Closing this cancels the request on all workers."""
        begun = last = time.perf_counter()
        text = TextStream(self.tokenizer, stop)
        count = 0
        async with aclosing(self.scheduler.generate(prompt, wishes)) as tokens:
            async for token in tokens:
                now = time.perf_counter()
                (self.metrics.itl if count else self.metrics.ttft).observe(now - (last if count else begun))
                last = now
                count += 1
                self.metrics.tokens.inc()
                piece = "" if token.token in wishes.eos else text.push(token.token)
                if text.stopped or token.finish:
                    piece += text.finish()
                    self.metrics.requests.labels("done").inc()
                    yield _Delta(piece, count, "stop" if text.stopped else token.finish)
                    return
                yield _Delta(piece, count, None)

    def prometheus(self) -> bytes:
        for prefill, decode, delay_s in self.scheduler.handoffs:
            self.metrics.handoff.labels(prefill, decode).observe(delay_s)
        self.scheduler.handoffs.clear()
        self.metrics.kv.clear()
        for node in self.scheduler.nodes.values():
            self.metrics.kv.labels(node.name).set(1 - node.free_blocks / node.hello["kv_blocks"])
        return generate_latest(self.metrics.registry)


def _error(status: int, message: str, kind: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "type": kind, "code": status}}, status, headers)


def _told(error: DinnetError) -> JSONResponse:
    if isinstance(error, Unavailable):
        return _error(503, str(error), "unavailable")
    if isinstance(error, Overloaded):
        return _error(429, str(error), "overloaded", {"Retry-After": "1"})
    return _error(400, str(error), "invalid_request_error")


def make_app(scheduler: Scheduler, tokenizer: Any, model_name: str, eos: tuple[int, ...]) -> FastAPI:
    """The HTTP application in front of a scheduler."""
    app = FastAPI(title="dinnet", docs_url=None, redoc_url=None)
    gateway = _Gateway(scheduler, tokenizer, model_name, eos)

    @app.exception_handler(DinnetError)
    async def _expected(_: Request, error: DinnetError) -> JSONResponse:
        return _told(error)

    @app.exception_handler(RequestValidationError)
    async def _invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        return _error(400, f"{'.'.join(map(str, first['loc']))}: {first['msg']}", "invalid_request_error")

    @app.get("/healthz")
    async def _health() -> JSONResponse:
        faults = scheduler.faults()
        return JSONResponse({"ok": not faults, "faults": faults}, 503 if faults else 200)

    @app.get("/metrics")
    async def _metrics() -> Response:
        return Response(gateway.prometheus(), media_type="text/plain; version=0.0.4")

    @app.get("/v1/models")
    async def _models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": model_name, "object": "model", "owned_by": "dinnet"}]}

    @app.post("/v1/generate")
    async def _generate(body: GenerateBody, request: Request) -> Response:
        def part(delta: _Delta) -> dict[str, Any]:
            return {"text": delta.text, "finish_reason": delta.finish}

        return await _answer(gateway, request, body, tokenizer.encode(body.prompt), 128, part, part)

    @app.post("/v1/completions")
    async def _completions(body: CompletionBody, request: Request) -> Response:
        ids = tokenizer.encode(body.prompt) if isinstance(body.prompt, str) else body.prompt
        common = _common("cmpl", "text_completion", model_name)

        def part(delta: _Delta) -> dict[str, Any]:
            choice = {"index": 0, "text": delta.text, "logprobs": None, "finish_reason": delta.finish}
            return common | {"choices": [choice]}

        return await _answer(gateway, request, body, ids, 16, part, part)

    @app.post("/v1/chat/completions")
    async def _chat(body: ChatBody, request: Request) -> Response:
        messages = [message.model_dump() for message in body.messages]
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
        common = _common("chatcmpl", "chat.completion", model_name)

        def whole(delta: _Delta) -> dict[str, Any]:
            message = {"role": "assistant", "content": delta.text}
            return common | {"choices": [{"index": 0, "message": message, "finish_reason": delta.finish}]}

        def part(delta: _Delta) -> dict[str, Any]:
            content = {"content": delta.text} | ({"role": "assistant"} if delta.tokens == 1 else {})
            choice = {"index": 0, "delta": content, "finish_reason": delta.finish}
            return common | {"object": "chat.completion.chunk", "choices": [choice]}

        return await _answer(gateway, request, body, ids, body.max_completion_tokens or 512, whole, part)

    return app


def _common(prefix: str, kind: str, model: str) -> dict[str, Any]:
    return {"id": f"{prefix}-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": model}


async def _answer(
    gateway: _Gateway, request: Request, body: _Wishes, ids: list[int], default_max: int, whole: Any, part: Any
) -> Response:
    if body.model not in (None, gateway.model_name):
        return _error(404, f"model {body.model!r} is not served here, but {gateway.model_name!r}", "not_found_error")
    if not ids:
        return _error(400, "the prompt holds no token", "invalid_request_error")
    vocabulary = len(gateway.tokenizer)
    if any(not 0 <= token < vocabulary for token in ids):
        return _error(400, f"the prompt holds tokens beyond the vocabulary of {vocabulary}", "invalid_request_error")
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
    wishes = gateway.sampling(body, body.max_tokens or default_max)
    deltas = gateway.deltas(ids, wishes, stop)
    # The first token decides about the status: what fails before it is no 200.
    try:
        first = await anext(deltas)
    except BaseException:
        gateway.metrics.requests.labels("failed").inc()
        await deltas.aclose()
        raise
    if body.stream:
        return StreamingResponse(_events(first, deltas, part), media_type="text/event-stream")
    text, last = first.text, first
    async with aclosing(deltas):
        async for last in deltas:
            text += last.text
            if await request.is_disconnected():
                gateway.metrics.requests.labels("cancelled").inc()
                return Response(status_code=499)
    answer = whole(_Delta(text, last.tokens, last.finish))
    usage = {"prompt_tokens": len(ids), "completion_tokens": last.tokens, "total_tokens": len(ids) + last.tokens}
    return JSONResponse(answer | {"usage": usage})


async def _events(first: _Delta, deltas: AsyncGenerator[_Delta, None], part: Any) -> AsyncIterator[str]:
    async with aclosing(deltas):
        try:
            yield _event(part(first))
            async for delta in deltas:
                if delta.text or delta.finish:
                    yield _event(part(delta))
        except DinnetError as error:
            yield _event({"error": {"message": str(error), "type": "server_error"}})
    yield "data: [DONE]\n\n"


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"
