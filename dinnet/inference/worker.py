"""A worker: one stage of a model, in a prefill chain, a decode chain or both.

One thread computes and owns all state; the links' threads only bring frames to it, and write handed-over KV into
blocks that are reserved for it. The first stage of a chain, its head, decides what each step computes; the last one
chooses tokens and tells the head.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import torch

from dinnet import __version__
from dinnet.errors import DinnetError
from dinnet.inference.kv import KvPool, Piece, Step
from dinnet.inference.model import DTYPES, Stage
from dinnet.inference.sampling import Sampling, choose
from dinnet.inference.transport.frame import Frame, misfits
from dinnet.inference.transport.grpc_link import Link, LinkClosed, LinkServer, connect

#: What two ends must have in common.
AGREED: Final = ("version", "torch", "model_hash", "dtype", "block_size")
_RECONNECT_S: Final = (0.5, 30.0)


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    scheduler: str
    name: str
    stage_id: int = 0
    role: str = "both"
    listen: str = "127.0.0.1:0"
    block_size: int = 16
    kv_blocks: int = 2048
    chunk_tokens: int = 256
    max_batch_size: int = 32
    pipeline_depth: int = 2
    heartbeat_s: float = 1.0


@dataclass(slots=True)
class _Request:
    """What a stage knows of a request; the head of a chain uses all of it."""

    key: str
    prompt: int  # tokens that prefill computes
    chain: list[str]  # addresses, from the head on
    sampling: Sampling
    first_index: int  # number of the next token in the whole answer: above 0 after a retry
    tokens: list[int]
    handoff: list[tuple[str, int, int]]  # address, first and last layer
    decode_head: str | None  # where the first token goes; None: decode goes on here
    computed: int = 0
    chosen: int = 0
    started: bool = False
    busy: bool = False
    ready: set[str] = field(default_factory=set)  # decode stages that have all KV
    prefill_end_s: float = 0.0


class Worker:
    """Runs until `stop`."""

    def __init__(self, stage: Stage, options: WorkerOptions) -> None:
        self.stage, self.options = stage, options
        self.pool = KvPool(stage.kv_shape(options.block_size), stage.layers, options.kv_blocks, stage.device)
        self._epoch = random.getrandbits(32)
        self._requests: dict[str, _Request] = {}
        self._inbox: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._steps: dict[int, set[str]] = {}  # under way, as head: number -> requests that are still wanted
        self._next_step = 0
        self._peers: dict[str, Link] = {}
        self._control: Link | None = None
        self._stopped = threading.Event()
        self.fault: str | None = None  # why it stopped by itself
        self._server = LinkServer(options.listen, self._on_frame, lambda link, why: None)
        self.address = self._server.address
        threading.Thread(target=self._compute, name="compute", daemon=True).start()
        threading.Thread(target=self._stay_connected, name="control", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        self._inbox.put(None)
        for link in [*self._peers.values(), *([self._control] if self._control else [])]:
            link.close()
        self._server.stop()

    def wait(self) -> None:
        """Until the worker is stopped, or stops by itself: `fault` says why then."""
        self._stopped.wait()

    def _fail(self, why: str) -> None:
        self.fault = why
        self._stopped.set()

    # --- greeting -------------------------------------------------------------------------------------------------

    def greeting(self) -> dict[str, Any]:
        """What a worker tells of itself."""
        o, s = self.options, self.stage
        return {
            "name": o.name,
            "address": self.address,
            "stage_id": o.stage_id,
            "role": o.role,
            "layers": list(s.layers),
            "total_layers": s.total,
            "version": ".".join(__version__.split(".")[:2]),
            "torch": torch.__version__.split(".")[0],
            "model_hash": f"{s.hash:016x}",
            "dtype": s.dtype_name,
            "block_size": o.block_size,
            "kv_blocks": o.kv_blocks,
            "epoch": self._epoch,
            "context": int(s.config.max_position_embeddings),
        }

    def _frame(self, kind: str, meta: dict[str, Any], tensor: torch.Tensor | None = None) -> Frame:
        common: dict[str, Any] = {
            "block_size": self.options.block_size,
            "epoch": self._epoch,
            "model_hash": self.stage.hash,
        }
        if tensor is None:
            return Frame(kind, meta, **common)
        dtype = str(tensor.dtype).removeprefix("torch.")
        raw: Any = tensor.contiguous().cpu().view(torch.uint8).numpy()
        return Frame(kind, meta, memoryview(raw).cast("B"), dtype, tuple(tensor.shape), **common)

    def _tensor(self, frame: Frame) -> torch.Tensor:
        if frame.model_hash != self.stage.hash or frame.block_size != self.options.block_size:
            raise DinnetError(
                f"{frame.kind}: model {frame.model_hash:016x}, blocks of {frame.block_size} tokens do not fit "
                f"this worker's {self.stage.hash:016x}, {self.options.block_size}"
            )
        if frame.dtype == "int64":
            return torch.frombuffer(bytearray(frame.payload), dtype=torch.int64).view(frame.shape)
        if frame.dtype != self.stage.dtype_name:
            raise DinnetError(
                f"{frame.kind}: {frame.dtype} tensors are refused: this worker computes in {self.stage.dtype_name}"
            )
        return torch.frombuffer(bytearray(frame.payload), dtype=DTYPES[frame.dtype]).view(frame.shape)

    def _stay_connected(self) -> None:
        wait_s = _RECONNECT_S[0]
        while not self._stopped.is_set():
            gone = threading.Event()
            link = connect(self.options.scheduler, self._on_frame, lambda link, why, gone=gone: gone.set())  # type: ignore[misc]
            self._control = link
            beats = 0
            try:
                link.send(Frame("hello", self.greeting()))
                while not gone.wait(self.options.heartbeat_s * random.uniform(0.8, 1.2)) and not self._stopped.is_set():
                    link.send(
                        Frame("heartbeat", {"free_blocks": self.pool.free_blocks, "requests": len(self._requests)})
                    )
                    beats += 1
            except LinkClosed:
                pass
            link.close()
            # The scheduler that comes back knows nothing of what was under way here.
            self._inbox.put(self._drop_all)
            wait_s = _RECONNECT_S[0] if beats > 2 else min(wait_s * 2, _RECONNECT_S[1])
            self._stopped.wait(wait_s * random.uniform(0.8, 1.2))

    # --- frames, in the links' threads -----------------------------------------------------------------------------

    def _on_frame(self, link: Link, frame: Frame) -> None:
        if frame.kind == "hello":
            if faults := misfits(self.greeting(), frame.meta, AGREED):
                link.send(Frame("refused", {"why": "; ".join(faults)}))
                link.close()
        elif frame.kind == "refused":
            if link is self._control:
                self._fail(f"{link.name} refuses this worker: {frame.meta['why']}")
            link.close()
        elif frame.kind == "kv":
            self._receive_kv(frame)
        else:
            handler = getattr(self, f"_do_{frame.kind}", None)
            if handler is None:
                raise DinnetError(f"{link.name}: message {frame.kind!r} is unknown here")
            self._inbox.put(lambda: handler(frame))

    def _receive_kv(self, frame: Frame) -> None:
        meta = frame.meta
        if self.pool.receive(meta["key"], meta["layer"], meta["start"], self._tensor(frame)):
            self._inbox.put(lambda: self._check_received(meta["key"]))

    def _peer(self, address: str) -> Link:
        link = self._peers.get(address)
        if link is None or link.closed.is_set():
            link = connect(address, self._on_frame, lambda link, why: None)
            link.send(Frame("hello", self.greeting()))
            self._peers[address] = link
        return link

    def _send(self, address: str, kind: str, meta: dict[str, Any], tensor: torch.Tensor | None = None) -> None:
        """To another worker, or to ourselves without a detour."""
        frame = self._frame(kind, meta, tensor)
        if address == self.address:
            self._on_frame(Link("itself"), frame)
        else:
            self._peer(address).send(frame)

    def _report(self, kind: str, meta: dict[str, Any]) -> None:
        if self._control is not None and not self._control.closed.is_set():
            with suppress(LinkClosed):  # the scheduler has forgotten us by now, and starts the requests again
                self._control.send(Frame(kind, meta))

    # --- work, in the compute thread --------------------------------------------------------------------------------

    def _compute(self) -> None:
        try:
            while not self._stopped.is_set():
                stepped = self._head_step()
                with suppress(queue.Empty):
                    while (work := self._inbox.get(block=not stepped)) is not None:
                        self._take(work)
                        stepped = True
        finally:
            # Without this thread the worker would go on to tell its scheduler that all is well.
            if not self._stopped.is_set():
                self._fail("a step of the computation failed in a way that it must not: see the traceback above")

    def _take(self, work: Callable[[], None]) -> None:
        """Do what a message asks for; one that makes no sense is told to the scheduler, and forgotten."""
        try:
            work()
        except DinnetError as error:
            self._report("trouble", {"why": str(error)})
        except (KeyError, TypeError, ValueError, IndexError) as error:
            self._report("trouble", {"why": f"a message made no sense: {error!r}"})

    def _do_open(self, frame: Frame) -> None:
        m = frame.meta
        if not self.pool.reserve(m["key"], m["reserve"]):
            self._report("opened", {"key": m["key"], "ok": False, "why": "no free KV blocks"})
            return
        sampling = Sampling(**{**m["sampling"], "eos": tuple(m["sampling"]["eos"])})
        handoff = [(a, first, last) for a, first, last in m["handoff"]]
        self._requests[m["key"]] = _Request(
            m["key"], m["prompt"], m["chain"], sampling, m["first_index"], list(m["tokens"]), handoff, m["decode_head"]
        )
        self._report("opened", {"key": m["key"], "ok": True})

    def _do_start(self, frame: Frame) -> None:
        if request := self._requests.get(frame.meta["key"]):
            request.started = True

    def _do_close(self, frame: Frame) -> None:
        self._drop(frame.meta["key"])

    def _drop(self, key: str) -> None:
        self._requests.pop(key, None)
        self.pool.free(key)
        # A step that was lost on its way to a dead worker has no other end than that of its requests.
        for step in [step for step, keys in self._steps.items() if keys <= {key}]:
            del self._steps[step]
        for keys in self._steps.values():
            keys.discard(key)

    def _drop_all(self) -> None:
        for key in list(self._requests):
            self._drop(key)

    def _check_received(self, key: str) -> None:
        request = self._requests.get(key)
        if request is not None and self.pool.received(key) == request.prompt:
            self._guarded([key], lambda: self._send(request.chain[0], "kv_ready", {"key": key, "from": self.address}))

    def _do_kv_ready(self, frame: Frame) -> None:
        if request := self._requests.get(frame.meta["key"]):
            request.ready.add(frame.meta["from"])
            self._begin_decode(request)

    def _do_first(self, frame: Frame) -> None:
        """The first token, from the prefill chain: decode starts once all stages have the KV."""
        if request := self._requests.get(frame.meta["key"]):
            request.tokens.append(frame.meta["token"])
            request.chosen = 1
            request.computed = request.prompt
            request.prefill_end_s = frame.meta["prefill_end_s"]
            self._begin_decode(request)

    def _begin_decode(self, request: _Request) -> None:
        if request.chosen == 1 and not request.started and request.ready >= set(request.chain):
            request.started = True
            self._report("handed_over", {"key": request.key, "delay_s": max(0.0, time.time() - request.prefill_end_s)})

    def _head_step(self) -> bool:
        """Compute one step of the requests that this worker heads; False when there is nothing to do."""
        if len(self._steps) >= self.options.pipeline_depth:
            return False
        ready = [r for r in self._requests.values() if r.started and not r.busy and r.chain[0] == self.address]
        if not ready:
            return False
        chain = ready[0].chain
        left = self.options.chunk_tokens
        chosen: list[tuple[_Request, Piece]] = []
        # Tokens of answers first: a long prompt takes what is left of the step.
        for request in sorted(ready, key=lambda r: r.computed < r.prompt):
            if request.chain != chain or len(chosen) == self.options.max_batch_size:
                continue
            count = min(len(request.tokens) - request.computed, left)
            if count > 0:
                chosen.append((request, Piece(request.key, request.computed, count)))
                left -= count
        if not chosen:
            return False
        pieces, tokens = [], []
        for request, piece in chosen:
            end = piece.start + piece.count
            wishes = asdict(request.sampling) | {"index": request.first_index + request.chosen}
            pieces.append([*asdict(piece).values(), wishes if end == len(request.tokens) else None])
            tokens += request.tokens[piece.start : end]
            request.busy = True
        self._next_step += 1
        self._steps[self._next_step] = {request.key for request, _ in chosen}
        self._run({"step": self._next_step, "pieces": pieces, "chain": chain}, torch.tensor(tokens))
        return True

    def _do_activation(self, frame: Frame) -> None:
        self._run(frame.meta, self._tensor(frame))

    def _run(self, step: dict[str, Any], given: torch.Tensor) -> None:
        self._guarded([piece[0] for piece in step["pieces"]], lambda: self._run_stage(step, given))

    def _run_stage(self, step: dict[str, Any], given: torch.Tensor) -> None:
        # A request that was cancelled on its way has no blocks any more: its rows are left out.
        rows, kept, offset = [], [], 0
        for key, start, count, wishes in step["pieces"]:
            if key in self._requests:
                kept.append([key, start, count, wishes])
                rows.append(given[offset : offset + count])
            offset += count
        pieces = [Piece(key, start, count) for key, start, count, _ in kept]
        out = self.stage.run(self.pool, pieces, torch.cat(rows), self._hand_over) if pieces else None
        done_s = time.time()
        chain = step["chain"]
        if not self.stage.last and out is not None:
            self._send(chain[chain.index(self.address) + 1], "activation", step | {"pieces": kept}, out)
            return
        results = []
        for row, (key, start, count, wishes) in enumerate(kept):
            token = None
            if wishes is not None and out is not None:
                index = wishes.pop("index")
                token = asdict(choose(out[row], Sampling(**{**wishes, "eos": tuple(wishes["eos"])}), index))
            results.append([key, start + count, token])
        self._send(chain[0], "results", {"step": step["step"], "results": results, "s": done_s})

    def _hand_over(self, layer: int, step: Step) -> None:
        """Send a layer's new keys and values while the next layer is computed."""
        for piece in step.pieces:
            request = self._requests[piece.key]
            for address, first, last in request.handoff:
                if first <= layer <= last:
                    kv = self.pool.read(piece.key, layer, piece.start, piece.start + piece.count)
                    self._send(address, "kv", {"key": piece.key, "layer": layer, "start": piece.start}, kv)

    def _do_results(self, frame: Frame) -> None:
        tokens = []
        for key in self._steps.pop(frame.meta["step"], ()):
            if key in self._requests:
                self._requests[key].busy = False
        for key, computed, chosen in frame.meta["results"]:
            request = self._requests.get(key)
            if request is None:
                continue
            request.computed = computed
            if chosen is None:
                continue
            index = request.first_index + request.chosen
            request.tokens.append(chosen["token"])
            request.chosen += 1
            ended = self._ended(request, chosen["token"])
            tokens.append([key, index, chosen, ended])
            if ended or request.decode_head is not None:
                request.started = False
            if request.decode_head is not None and not ended:
                first = {"key": key, "token": chosen["token"], "prefill_end_s": frame.meta["s"]}
                head = request.decode_head
                self._guarded([key], lambda head=head, first=first: self._send(head, "first", first))  # type: ignore[misc]
        if tokens:
            self._report("tokens", {"tokens": tokens})

    def _ended(self, request: _Request, token: int) -> str | None:
        if token in request.sampling.eos:
            return "stop"
        return "length" if request.first_index + request.chosen >= request.sampling.max_tokens else None

    def _guarded(self, keys: list[str], work: Callable[[], None]) -> None:
        """Do what needs other workers, or memory; where it fails, the scheduler is told which requests suffer."""
        try:
            work()
        except (DinnetError, RuntimeError) as error:  # torch's word for memory that is not there
            self._report("failed", {"keys": keys, "why": str(error)})
