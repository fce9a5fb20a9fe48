"""The scheduler: knows the workers, plans each request onto a prefill and a decode chain, and sees it through.

Everything here runs in one asyncio loop; the links' threads only hand frames to it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import random
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from dinnet.errors import DinnetError
from dinnet.inference.layers import LayerRange, cover_faults, joined_chains
from dinnet.inference.sampling import Sampling
from dinnet.inference.scheduler_config import SchedulerConfig
from dinnet.inference.transport.frame import Frame, misfits
from dinnet.inference.transport.grpc_link import Link, LinkClosed, LinkServer

_log = logging.getLogger(__name__)
_AGREED: Final = ("version", "torch", "model_hash", "dtype", "block_size", "total_layers")
#: Heartbeats come every second; a worker that misses so many is taken for dead.
_HEARTBEATS_MISSED_S: Final = 5.0
_OPEN_S: Final = 10.0


class Unavailable(DinnetError):
    """No workers can take the request now (HTTP 503)."""


class Overloaded(DinnetError):
    """Too many requests wait already (HTTP 429)."""


@dataclass(slots=True, eq=False)
class Node:
    """A worker, as its greeting and heartbeats tell."""

    link: Link
    hello: dict[str, Any]
    seen_s: float
    free_blocks: int
    requests: int = 0  # planned onto it and under way

    @property
    def layers(self) -> LayerRange:
        return LayerRange(*self.hello["layers"])

    @property
    def address(self) -> str:
        return str(self.hello["address"])

    @property
    def name(self) -> str:
        return str(self.hello["name"])


@dataclass(frozen=True, slots=True)
class Token:
    token: int
    finish: str | None  # "stop", "length", or None: more will come
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class _Attempt:
    key: str
    prefill: list[Node]
    decode: list[Node]
    prefill_ended: bool = False
    opened: dict[str, bool] = field(default_factory=dict)
    all_opened: asyncio.Event = field(default_factory=asyncio.Event)
    events: asyncio.Queue[tuple[str, Any]] = field(default_factory=asyncio.Queue)

    @property
    def nodes(self) -> list[Node]:
        return list(dict.fromkeys([*self.prefill, *self.decode]))


class Scheduler:
    def __init__(self, config: SchedulerConfig) -> None:
        """Start to listen for workers; must be called inside the loop.

        Raises:
            DinnetError: The address cannot be listened on.
        """
        self.config = config
        self._loop = asyncio.get_running_loop()
        self.nodes: dict[str, Node] = {}  # by address
        self._attempts: dict[str, _Attempt] = {}
        self._numbers = itertools.count(1)
        self._run = f"{random.getrandbits(32):08x}"
        self.waiting = 0
        self.handoffs: list[tuple[str, str, float]] = []
        self._server = LinkServer(config.listen, self._from_thread, self._closed_in_thread)
        self.address = self._server.address
        self._watch = asyncio.create_task(self._watch_heartbeats())

    async def stop(self) -> None:
        self._watch.cancel()
        await asyncio.to_thread(self._server.stop)

    # --- workers ----------------------------------------------------------------------------------------------------

    def _from_thread(self, link: Link, frame: Frame) -> None:
        self._loop.call_soon_threadsafe(self._on_frame, link, frame)

    def _closed_in_thread(self, link: Link, why: str) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._lose, link, why)

    def _on_frame(self, link: Link, frame: Frame) -> None:
        if frame.kind == "hello":
            self._welcome(link, frame.meta)
            return
        node: Node | None = link.context
        if node is None:
            return
        node.seen_s = time.monotonic()
        match frame.kind:
            case "heartbeat":
                node.free_blocks = frame.meta["free_blocks"]
            case "opened":
                self._opened(node, frame.meta)
            case "tokens":
                for key, index, chosen, ended in frame.meta["tokens"]:
                    if attempt := self._attempts.get(key):
                        attempt.events.put_nowait(("token", (index, chosen, ended)))
            case "handed_over":
                if attempt := self._attempts.get(frame.meta["key"]):
                    self.handoffs.append((attempt.prefill[0].name, attempt.decode[0].name, frame.meta["delay_s"]))
            case "failed":
                for key in frame.meta["keys"]:
                    if attempt := self._attempts.get(key):
                        attempt.events.put_nowait(("lost", f"{node.name}: {frame.meta['why']}"))
            case "trouble":
                _log.warning("%s: %s", node.name, frame.meta["why"])

    def _welcome(self, link: Link, hello: dict[str, Any]) -> None:
        others = [node for node in self.nodes.values() if node.address != hello["address"]]
        faults = misfits(others[0].hello, hello, _AGREED) if others else []
        if faults:
            self._tell(link, "refused", {"why": "; ".join(faults)})
            _log.warning("worker %s is refused: %s", hello.get("name"), "; ".join(faults))
            return
        if (old := self.nodes.get(hello["address"])) is not None:
            self._lose(old.link, "it has started again")
        link.context = node = Node(link, hello, time.monotonic(), hello["kv_blocks"])
        self.nodes[node.address] = node
        _log.info("worker %s: %s, layers %s, at %s", node.name, hello["role"], node.layers, node.address)

    def _lose(self, link: Link, why: str) -> None:
        node: Node | None = link.context
        link.context = None
        link.close()
        if node is None or self.nodes.get(node.address) is not node:
            return
        del self.nodes[node.address]
        _log.warning("worker %s is gone: %s", node.name, why)
        for attempt in self._attempts.values():
            if node in attempt.nodes:
                attempt.events.put_nowait(("lost", f"worker {node.name} is gone: {why}"))
                attempt.opened[node.address] = False
                attempt.all_opened.set()

    async def _watch_heartbeats(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            for node in list(self.nodes.values()):
                if time.monotonic() - node.seen_s > _HEARTBEATS_MISSED_S:
                    self._lose(node.link, f"no heartbeat for {_HEARTBEATS_MISSED_S:g} s")

    def _tell(self, link: Link, kind: str, meta: dict[str, Any]) -> None:
        async def send() -> None:
            try:
                await asyncio.to_thread(link.send, Frame(kind, meta))
            except LinkClosed as error:
                self._lose(link, str(error))

        # Its queue is nearly always free: then no thread is needed.
        try:
            if link.has_room():
                link.send(Frame(kind, meta))
            else:
                task = asyncio.create_task(send())
                task.add_done_callback(lambda _: None)
        except LinkClosed as error:
            self._loop.call_soon(self._lose, link, str(error))

    # --- planning ----------------------------------------------------------------------------------------------------

    def faults(self) -> list[str]:
        """Why requests cannot be served now; empty when they can."""
        if not self.nodes:
            return ["no worker is connected"]
        total = next(iter(self.nodes.values())).hello["total_layers"]
        found = []
        for role in ("prefill", "decode"):
            ranges = [n.layers for n in self.nodes.values() if n.hello["role"] in (role, "both")]
            if not joined_chains(ranges, total):
                found.append(f"{role}: {'; '.join(cover_faults(ranges, total)) or 'stages do not join'}")
        return found

    def _chain(self, role: str, blocks: int) -> list[Node] | None:
        fitting = [n for n in self.nodes.values() if n.hello["role"] in (role, "both") and n.free_blocks >= blocks]
        if not fitting:
            return None
        best: tuple[float, list[Node]] | None = None
        for chain in joined_chains([n.layers for n in fitting], fitting[0].hello["total_layers"]):
            nodes = [
                min(
                    (n for n in fitting if n.layers == part),
                    key=lambda n: (n.requests, n.hello["role"] == "both", -n.free_blocks),
                )
                for part in chain
            ]
            load = max(n.requests for n in nodes) + 0.1 * len(nodes)
            if best is None or load < best[0]:
                best = load, nodes
        return best[1] if best else None

    # --- requests ----------------------------------------------------------------------------------------------------

    async def generate(self, prompt: list[int], wishes: Sampling) -> AsyncGenerator[Token, None]:
        """The tokens of an answer, each exactly once, whatever workers die meanwhile.

        Raises:
            Unavailable: No chain of workers holds the model, or too many died.
            Overloaded: Too many requests wait for free KV.
        """
        number = f"{self._run}-{next(self._numbers)}"
        given: list[int] = []
        failures = 0
        while True:
            attempt = await self._place(f"{number}.{failures}", prompt + given, wishes, len(given))
            early: dict[int, Any] = {}  # the second token may overtake the first: they come from different workers
            try:
                while True:
                    event, content = await attempt.events.get()
                    if event == "lost":
                        lost = content
                        break
                    early[content[0]] = content
                    while (following := early.pop(len(given), None)) is not None:
                        _, chosen, ended = following
                        self._end_prefill(attempt)
                        given.append(chosen["token"])
                        yield Token(chosen["token"], ended, chosen["logprob"], tuple(map(tuple, chosen["top"])))
                        if ended:
                            return
            finally:
                self._end(attempt)
            failures += 1
            if failures > self.config.retry.max_retries:
                raise Unavailable(f"gave up after {failures} tries: {lost}")
            wait_s = self.config.retry.backoff_ms / 1000 * 2 ** (failures - 1) * random.uniform(0.5, 1.5)
            _log.warning("request %s starts again after %d tokens: %s", number, len(given), lost)
            await asyncio.sleep(wait_s)

    async def _place(self, key: str, tokens: list[int], wishes: Sampling, first_index: int) -> _Attempt:
        """Find workers and reserve blocks on all of them, waiting for free ones where they are busy."""
        queued = False
        # A new request is refused at once where layers are missing; one under way has text to lose, and waits.
        patient_until = time.monotonic() + (self.config.retry.recover_ms / 1000 if not key.endswith(".0") else 0)
        try:
            for turn in itertools.count():
                attempt = self._plan(f"{key}.{turn}", tokens, wishes, first_index)
                if attempt is not None and await self._open(attempt, tokens, wishes, first_index):
                    return attempt
                if faults := self.faults():
                    if time.monotonic() >= patient_until:
                        raise Unavailable("; ".join(faults))
                elif not queued:
                    if self.waiting >= self.config.local_queue_max * len(self.nodes):
                        raise Overloaded("too many requests wait for free KV already; try again later")
                    queued, self.waiting = True, self.waiting + 1
                await asyncio.sleep(0.02)
        finally:
            self.waiting -= queued
        raise AssertionError

    def _plan(self, key: str, tokens: list[int], wishes: Sampling, first_index: int) -> _Attempt | None:
        if not self.nodes:
            return None
        hello = next(iter(self.nodes.values())).hello
        size, left = hello["block_size"], wishes.max_tokens - first_index
        if len(tokens) + left > min(hello["context"], size * max(n.hello["kv_blocks"] for n in self.nodes.values())):
            raise DinnetError(
                f"prompt of {len(tokens)} tokens and {left} more do not fit the context of {hello['context']} tokens, "
                "or the workers' KV cache"
            )
        whole = math.ceil((len(tokens) + left) / size)
        decode = self._chain("decode", whole)
        prefill = self._chain("prefill", math.ceil(len(tokens) / size))
        if decode is None or prefill is None:
            return None
        if all(n.hello["role"] == "both" for n in [*prefill, *decode]):
            prefill = decode  # nothing is gained by a hand-off
        elif set(prefill) & set(decode):
            raise Unavailable("a worker of role both is a part of a prefill and of a decode chain; give it one role")
        return _Attempt(key, prefill, decode)

    async def _open(self, attempt: _Attempt, tokens: list[int], wishes: Sampling, first_index: int) -> bool:
        self._attempts[attempt.key] = attempt
        together = attempt.prefill == attempt.decode
        left = wishes.max_tokens - first_index
        handoff = [] if together else [[n.address, n.layers.first, n.layers.last] for n in attempt.decode]
        common = {"key": attempt.key, "prompt": len(tokens), "sampling": asdict(wishes), "first_index": first_index}
        for node in attempt.nodes:
            node.requests += 1
            before = node in attempt.prefill
            chain = attempt.prefill if before else attempt.decode
            meta = common | {
                "chain": [n.address for n in chain],
                "tokens": tokens if node is chain[0] else [],
                "reserve": len(tokens) + (left if together or not before else 0),
                "handoff": handoff if before else [],
                "decode_head": attempt.decode[0].address if before and not together else None,
            }
            self._tell(node.link, "open", meta)
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(attempt.all_opened.wait(), _OPEN_S)
        except asyncio.CancelledError:
            self._end(attempt)
            raise
        if len(attempt.opened) == len(attempt.nodes) and all(attempt.opened.values()):
            self._tell(attempt.prefill[0].link, "start", {"key": attempt.key})
            return True
        self._end(attempt)
        return False

    def _opened(self, node: Node, meta: dict[str, Any]) -> None:
        if attempt := self._attempts.get(meta["key"]):
            attempt.opened[node.address] = meta["ok"]
            if not meta["ok"]:
                node.free_blocks = 0  # until its next heartbeat
            if len(attempt.opened) == len(attempt.nodes) or not meta["ok"]:
                attempt.all_opened.set()

    def _end_prefill(self, attempt: _Attempt) -> None:
        """Prefill is over with the first token: its blocks are free for the next prompt."""
        if attempt.prefill_ended:
            return
        attempt.prefill_ended = True
        for node in attempt.prefill:
            if node not in attempt.decode:
                self._tell(node.link, "close", {"key": attempt.key})

    def _end(self, attempt: _Attempt) -> None:
        if self._attempts.pop(attempt.key, None) is None:
            return
        for node in attempt.nodes:
            node.requests -= 1
            if self.nodes.get(node.address) is node:
                self._tell(node.link, "close", {"key": attempt.key})
