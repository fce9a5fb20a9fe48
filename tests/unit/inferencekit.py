"""Tiny random models on disk, the reference's answers, and a whole backend in one process over real gRPC."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from dinnet.inference.layers import LayerRange
from dinnet.inference.model import Stage
from dinnet.inference.sampling import Sampling
from dinnet.inference.scheduler import Scheduler
from dinnet.inference.scheduler_config import Retry, SchedulerConfig
from dinnet.inference.worker import Worker, WorkerOptions

LAYERS = 5
VOCABULARY = 211
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 512,
    # The usual 0.02 would make all logits nearly alike.
    "initializer_range": 0.3,
}


def make_model(folder: Path, family: str = "llama", **changes: Any) -> Any:
    """Save a random model and give transformers' own object for it."""
    import transformers

    torch.set_num_threads(2)
    torch.manual_seed(7)
    prefix = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[family]
    config = getattr(transformers, f"{prefix}Config")(**SHAPE | changes)
    model = getattr(transformers, f"{prefix}ForCausalLM")(config).eval()
    model.save_pretrained(folder)
    return model


def prompts(lengths: Sequence[int]) -> list[list[int]]:
    numbers = random.Random(1)
    return [[numbers.randrange(3, VOCABULARY) for _ in range(length)] for length in lengths]


def reference(model: Any, prompt: list[int], count: int) -> list[int]:
    """The tokens that `transformers.generate` gives, without an end of text."""
    ids = torch.tensor([prompt])
    whole = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return list(whole[0, len(prompt) :].tolist())


def splits(count: int) -> list[LayerRange]:
    """`LAYERS` layers in `count` stages."""
    edges = [LAYERS * part // count for part in range(count + 1)]
    return [LayerRange(a, b - 1) for a, b in pairwise(edges)]


def start_worker(folder: Path, scheduler: str, role: str, layers: LayerRange, **options: Any) -> Worker:
    dtype = options.pop("dtype", "float32")
    name = options.pop("name", f"{role} {layers}")
    settings = {"kv_blocks": 256, "heartbeat_s": 0.1} | options
    return Worker(Stage(folder, layers, dtype, "cpu"), WorkerOptions(scheduler, name, role=role, **settings))


@asynccontextmanager
async def backend(
    folder: Path, *stages: tuple[str, LayerRange], **options: Any
) -> AsyncIterator[tuple[Scheduler, list[Worker]]]:
    """A scheduler with a worker a stage, all greeted."""
    scheduler = Scheduler(SchedulerConfig(listen="127.0.0.1:0", retry=Retry(max_retries=5, backoff_ms=20)))
    workers: list[Worker] = []
    try:
        for role, layers in stages:
            workers.append(await asyncio.to_thread(start_worker, folder, scheduler.address, role, layers, **options))
        await until(lambda: len(scheduler.nodes) == len(stages))
        yield scheduler, workers
    finally:
        for worker in workers:
            await asyncio.to_thread(worker.stop)
        await scheduler.stop()


async def until(condition: Any, seconds: float = 30) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


async def answer(scheduler: Scheduler, prompt: list[int], count: int, **wishes: Any) -> list[int]:
    return [t.token async for t in scheduler.generate(prompt, Sampling(max_tokens=count, **wishes))]
