"""The proxy in front of disaggregated vLLM: each request first to the prefill server, then to the decode server."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from dinnet.errors import DinnetError
from dinnet.testbed.traces import Request
from dinnet.testbed.vllm.http import Connection
from dinnet.testbed.workloads.base import LabelLog

Body = dict[str, Any]
Endpoint = tuple[str, int]

#: What vLLM's NixlConnector wants to see in a request whose KV cache another server will pull.
REMOTE_DECODE: Final[Mapping[str, object]] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
#: What the prefill server's answer must tell, so that the decode server can pull.
PULL_FIELDS: Final = ("remote_engine_id", "remote_block_ids", "remote_host", "remote_port", "remote_request_id")
_KEEP_IDLE_S: Final = 3.0  # uvicorn closes a connection that is idle for five seconds
_WORDS: Final = """
    the of and to in is that for it as was with be by on not he his but at are this have from or had an they which
    one you were all her she there would their we him been has when who will no more if out so up said what its
    about than into them can only other time new some could these two may first then do any like my now over such
    our man me even most made after also did many off before must well back through years much where your way down
""".split()  # noqa: SIM905 - a hundred short words read best as text


@dataclass(frozen=True)
class Load:
    """What the proxy is asked to do."""

    requests: tuple[Request, ...]
    duration_s: float  # no request starts later
    concurrency: int
    seed: int
    model: str
    max_model_len: int


@dataclass
class Conversation:
    """What was said so far; a turn that carries it on brings all of it again."""

    chat: bool
    streaming: bool
    text: str = ""
    messages: list[dict[str, str]] = field(default_factory=list)
    turns: int = 0
    tokens: int = 0  # estimate: the vocabulary has a token for each of the words used

    def ask(self, words: str, tokens: int) -> tuple[str, Body]:
        """Path and body of the next turn's request."""
        self.turns += 1
        self.tokens += tokens
        if self.chat:
            self.messages.append({"role": "user", "content": words})
            return "/v1/chat/completions", {"messages": list(self.messages)}
        self.text += words
        return "/v1/completions", {"prompt": self.text}

    def answered(self, words: str, tokens: int) -> None:
        """Remember the answer."""
        self.tokens += tokens
        if self.chat:
            self.messages.append({"role": "assistant", "content": words})
        else:
            self.text += words


def prefill_body(body: Body) -> Body:
    """The request for the prefill server: one token, and keep the KV cache for another server."""
    short = {name: value for name, value in body.items() if name != "stream_options"}
    return {**short, "stream": False, "max_tokens": 1, "kv_transfer_params": dict(REMOTE_DECODE)}


def decode_body(body: Body, prefilled: Mapping[str, Any]) -> Body:
    """The request for the decode server: the whole prompt again, and where its KV cache lies.

    Raises:
        DinnetError: The prefill server's answer does not tell; its KV connector is not NixlConnector, or is off.
    """
    params = prefilled.get("kv_transfer_params")
    if not isinstance(params, dict):
        raise DinnetError("the prefill server's answer has no kv_transfer_params: start it with NixlConnector")
    missing = [name for name in PULL_FIELDS if not params.get(name)]
    if missing or not params.get("do_remote_prefill"):
        what = ", ".join(missing) or "do_remote_prefill"
        raise DinnetError(f"the prefill server's kv_transfer_params lack {what}: this vLLM speaks another protocol")
    return {**body, "kv_transfer_params": params}


def scaled(requests: Sequence[Request], mean_prompt: int, mean_output: int, max_model_len: int) -> tuple[Request, ...]:
    """Requests with the same spread of lengths about other means, each within the model's context."""
    if not requests:
        return ()
    prompt_scale = mean_prompt * len(requests) / sum(request.prompt_tokens for request in requests)
    output_scale = mean_output * len(requests) / sum(request.output_tokens for request in requests)
    fitted = []
    for request in requests:
        output = min(max(4, round(request.output_tokens * output_scale)), 4 * mean_output, max_model_len // 4)
        # A quarter is left free: chat templates and rare words take more tokens than words are counted.
        prompt = min(max(8, round(request.prompt_tokens * prompt_scale)), max_model_len * 3 // 4 - output)
        prefix = int(prompt * request.prefix_tokens / max(1, request.prompt_tokens))
        fitted.append(replace(request, prompt_tokens=prompt, output_tokens=output, prefix_tokens=prefix))
    return tuple(fitted)


async def drive(prefill: Endpoint, decode: Endpoint, load: Load, log: LabelLog) -> int:
    """Put all requests of `load` through both servers; returns how many were answered.

    Clients work side by side. Every second one keeps its connections for several requests, the others open two for
    each request.
    """
    started = time.monotonic()
    waiting = iter(load.requests)
    workers = [_Worker(number, prefill, decode, load, log) for number in range(load.concurrency)]

    async def work(worker: _Worker) -> int:
        answered = 0
        try:
            for request in waiting:
                await asyncio.sleep(max(0.0, started + request.arrival_s - time.monotonic()))
                if time.monotonic() - started >= load.duration_s:
                    break
                await worker.put_through(request)
                answered += 1
        finally:
            await worker.close()
        return answered

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work(worker)) for worker in workers]
    return sum(task.result() for task in tasks)


class _Worker:
    """One client's conversations and connections."""

    def __init__(self, number: int, prefill: Endpoint, decode: Endpoint, load: Load, log: LabelLog) -> None:
        self._rng = random.Random(f"{load.seed}/client/{number}")
        self._prefill, self._decode, self._load, self._log = prefill, decode, load, log
        self._keeps = number % 2 == 0
        self._idle: dict[tuple[object, ...], tuple[Connection, float]] = {}
        self._open: list[Conversation] = []

    async def put_through(self, request: Request) -> None:
        conversation, fresh = self._conversation(request)
        words = " ".join(self._rng.choices(_WORDS, k=fresh)) + " "
        path, body = conversation.ask(words, fresh)
        body |= {
            "model": self._load.model,
            "max_tokens": request.output_tokens,
            "stream": conversation.streaming,
            "ignore_eos": True,
        }
        first = conversation.turns == 1
        described = {
            "group": "prefill",
            "transport": "vllm/prompt-http",
            "model": self._load.model,
            "first_request": first,
            "large_model": False,
        }
        prefilled = await self._post(self._prefill, path, prefill_body(body), described)
        described = described | {  # a new one: the first belongs to the prefill connection's label
            "group": "decode",
            "transport": "vllm/tokens-sse" if conversation.streaming else "vllm/tokens-http-json",
            "streaming": conversation.streaming,
        }
        answer = await self._post(self._decode, path, decode_body(body, prefilled), described)
        conversation.answered(str(answer["text"]), request.output_tokens)

    def _conversation(self, request: Request) -> tuple[Conversation, int]:
        """The conversation that a request starts or carries on, and how many tokens it brings to it."""
        room = self._load.max_model_len * 3 // 4 - request.output_tokens
        if request.continued:
            fitting = [known for known in self._open if known.tokens + request.new_tokens + 16 <= room]
            if fitting:
                return fitting[-1], max(8, min(request.new_tokens, request.prompt_tokens // 2))
        rng = self._rng
        conversation = Conversation(chat=rng.random() < 0.5, streaming=rng.random() < 0.7)
        self._open = [*self._open[-3:], conversation]
        return conversation, request.prompt_tokens

    async def _post(self, server: Endpoint, path: str, body: Body, described: Mapping[str, object]) -> dict[str, Any]:
        key = (server, described.get("streaming"), described["first_request"])
        connection, since = self._idle.pop(key, (None, 0.0))
        if connection is not None and (not connection.usable or time.monotonic() - since > _KEEP_IDLE_S):
            await connection.close()
            connection = None
        if connection is None:
            connection = await Connection.open(*server, self._log, described)
        keep = self._keeps and connection.requests < 11
        done = False
        try:
            response = await connection.request("POST", path, body, keep=keep)
            done = True
        finally:
            if done and keep and not response.closing:
                self._idle[key] = (connection, time.monotonic())
            else:
                await connection.close()
        if body["stream"]:
            return _joined(response.status, response.events())
        found = response.json()
        choice = found["choices"][0]
        return {**found, "text": choice.get("text") or (choice.get("message") or {}).get("content") or ""}

    async def close(self) -> None:
        """Close what is kept open."""
        for connection, _ in self._idle.values():
            await connection.close()
        self._idle.clear()


def _joined(status: int, events: Sequence[str]) -> dict[str, Any]:
    """The text of a streamed answer, which must be whole."""
    import json

    if status != 200 or not events or events[-1] != "[DONE]":
        raise DinnetError(f"the decode server's stream was cut (status {status}, {len(events)} events)")
    text = []
    for event in events[:-1]:
        for choice in json.loads(event).get("choices", ()):
            text.append(choice.get("text") or (choice.get("delta") or {}).get("content") or "")
    return {"text": "".join(text), "events": len(events) - 1}
