"""The backend's tokens against transformers' own: families, splits, batches, block edges, and what goes wrong."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs dinnet[inference]: torch")
pytest.importorskip("transformers", reason="needs dinnet[inference]: transformers")
pytest.importorskip("xxhash", reason="needs dinnet[inference]: xxhash")

import torch
from inferencekit import LAYERS, answer, backend, make_model, prompts, reference, splits, start_worker, until

from dinnet.errors import DinnetError
from dinnet.inference.kv import KvPool, Piece
from dinnet.inference.layers import LayerRange
from dinnet.inference.model import Stage
from dinnet.inference.scheduler import Unavailable
from dinnet.inference.transport.frame import Frame
from dinnet.inference.transport.grpc_link import connect
from dinnet.inference.worker import Worker

BLOCK = 16
EDGES = [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, object]:
    folder = tmp_path_factory.mktemp("llama")
    return folder, make_model(folder)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"tie_word_embeddings": True}),
        ("qwen2", {}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2}),
        ("qwen3", {}),
    ],
)
def test_each_family_chooses_as_transformers_does(tmp_path: Path, family: str, changes: dict[str, object]) -> None:
    model = make_model(tmp_path, family, **changes)
    stage = Stage(tmp_path, None, "float32", "cpu")
    pool = KvPool(stage.kv_shape(BLOCK), stage.layers, 32, "cpu")
    [prompt] = prompts([21])
    expected = reference(model, prompt, 12)
    pool.reserve("a", 40)
    tokens, computed = list(prompt), 0
    while len(tokens) < 33:
        count = min(8, len(tokens) - computed)  # chunks of the prompt, then token by token
        out = stage.run(pool, [Piece("a", computed, count)], torch.tensor(tokens[computed : computed + count]))
        computed += count
        if computed == len(tokens):
            tokens.append(int(out[0].argmax()))
    assert tokens[21:] == expected


@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"])
@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_greedy_tokens_are_those_of_transformers(llama: tuple[Path, object], stages: int, apart: bool) -> None:
    folder, model = llama
    asked = prompts([*EDGES, *range(20, 31)])  # 16 at once
    expected = [reference(model, prompt, 10) for prompt in asked]
    layout = [("both", part) for part in splits(stages)]
    if apart:  # the two chains are cut at different layers
        layout = [("prefill", p) for p in splits(stages)] + [
            ("decode", p) for p in splits(6 - stages if stages > 1 else 2)
        ]

    async def run() -> None:
        async with backend(folder, *layout, chunk_tokens=24) as (scheduler, workers):
            assert [await answer(scheduler, prompt, 10) for prompt in asked[:3]] == expected[:3]
            assert await asyncio.gather(*(answer(scheduler, prompt, 10) for prompt in asked)) == expected
            assert (len(scheduler.handoffs) == len(asked) + 3) == apart
            await until(lambda: all(worker.pool.free_blocks == 256 for worker in workers))

    asyncio.run(run())


def test_a_request_outlives_its_workers(llama: tuple[Path, object]) -> None:
    folder, model = llama
    asked = prompts([17] * 6)
    expected = [reference(model, prompt, 60) for prompt in asked]
    whole = LayerRange(0, LAYERS - 1)

    async def run() -> None:
        layout = [("prefill", whole), ("prefill", whole), ("decode", whole), ("decode", whole)]
        async with backend(folder, *layout) as (scheduler, workers):
            answers = [asyncio.create_task(answer(scheduler, prompt, 60)) for prompt in asked]
            for place, role in ((2, "decode"), (0, "prefill")):
                await asyncio.sleep(0.1)
                assert not all(task.done() for task in answers)
                victim: Worker = workers[place]
                await asyncio.to_thread(victim.stop)
                workers[place] = await asyncio.to_thread(start_worker, folder, scheduler.address, role, whole)
            assert await asyncio.gather(*answers) == expected
            await until(lambda: all(worker.pool.free_blocks == 256 for worker in workers))

    asyncio.run(run())


def test_a_seed_gives_the_same_tokens_on_every_split(llama: tuple[Path, object]) -> None:
    [prompt] = prompts([19])
    wishes = {"temperature": 1.0, "top_p": 0.9, "top_k": 40, "seed": 5}

    async def run(layout: list[tuple[str, LayerRange]]) -> list[int]:
        async with backend(llama[0], *layout) as (scheduler, _):
            return await answer(scheduler, prompt, 20, **wishes)

    one = asyncio.run(run([("both", LayerRange(0, 4))]))
    assert len(set(one)) > 3
    assert asyncio.run(run([("prefill", LayerRange(0, 4)), *(("decode", p) for p in splits(2))])) == one


def test_cancelling_frees_the_blocks_everywhere(llama: tuple[Path, object]) -> None:
    async def run() -> None:
        layout = [("prefill", LayerRange(0, 4)), *(("decode", part) for part in splits(2))]
        async with backend(llama[0], *layout) as (scheduler, workers):
            task = asyncio.create_task(answer(scheduler, prompts([200])[0], 300))
            await until(lambda: workers[2].pool.free_blocks < 256)
            task.cancel()
            await until(lambda: all(worker.pool.free_blocks == 256 for worker in workers))

    asyncio.run(run())


def test_gaps_and_misfits_are_named(llama: tuple[Path, object]) -> None:
    folder = llama[0]

    async def run() -> None:
        async with backend(folder, ("both", LayerRange(0, 1)), ("both", LayerRange(4, 4))) as (scheduler, _):
            assert scheduler.faults() == ["prefill: layers 2-3 are missing", "decode: layers 2-3 are missing"]
            with pytest.raises(Unavailable, match="layers 2-3 are missing"):
                await answer(scheduler, [3, 4], 4)
            for changes, words in (
                ({"block_size": 8}, "block size is 8 there and 16 here"),
                ({"dtype": "bfloat16"}, "dtype is 'bfloat16' there and 'float32' here"),
            ):
                stranger = await asyncio.to_thread(
                    start_worker, folder, scheduler.address, "both", LayerRange(2, 3), **changes
                )
                await until(lambda stranger=stranger: stranger.fault is not None)
                assert words in str(stranger.fault)
                await asyncio.to_thread(stranger.stop)

    asyncio.run(run())


def test_messages_that_make_no_sense_stop_nothing(llama: tuple[Path, object]) -> None:
    folder, model = llama

    async def run() -> None:
        async with backend(folder, ("both", LayerRange(0, LAYERS - 1))) as (scheduler, (worker,)):
            link = connect(worker.address, lambda link, frame: None, lambda link, why: None)
            for kind in ("open", "start", "close", "kv_ready", "first", "activation", "results"):
                link.send(Frame(kind, {}))
            link.send(Frame("open", {"key": 5, "reserve": "much"}))
            (prompt,) = prompts([20])
            assert await answer(scheduler, prompt, 8) == reference(model, prompt, 8)
            assert worker.fault is None
            link.close()

    asyncio.run(run())


def test_a_step_without_memory_is_tried_again(llama: tuple[Path, object], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, model = llama

    async def run() -> None:
        async with backend(folder, ("both", LayerRange(0, LAYERS - 1))) as (scheduler, (worker,)):
            real, calls = worker.stage.run, []

            def failing(*given: object) -> object:
                calls.append(given)
                if len(calls) == 3:
                    raise torch.OutOfMemoryError("no memory")
                return real(*given)  # type: ignore[arg-type]

            monkeypatch.setattr(worker.stage, "run", failing)
            (prompt,) = prompts([20])
            assert await answer(scheduler, prompt, 8) == reference(model, prompt, 8)
            assert len(calls) > 3
            await until(lambda: worker.pool.free_blocks == 256)

    asyncio.run(run())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_worker_that_cannot_compute_any_more_says_so_and_ends(llama: tuple[Path, object]) -> None:
    folder = llama[0]

    async def run() -> None:
        async with backend(folder, ("both", LayerRange(0, LAYERS - 1))) as (_, (worker,)):
            worker._inbox.put(lambda: 1 // 0)
            await until(lambda: worker.fault is not None)
            await asyncio.to_thread(worker.wait)

    asyncio.run(run())


def test_a_stage_takes_memory_for_its_own_layers_only(llama: tuple[Path, object]) -> None:
    whole, middle = Stage(llama[0], None, "float32", "cpu"), Stage(llama[0], LayerRange(2, 2), "float32", "cpu")
    # q and o 48x48, k and v 24x48, three of 48x96, two norms of 48; float32
    layer = 4 * (2 * 48 * 48 + 2 * 24 * 48 + 3 * 48 * 96 + 2 * 48)
    assert middle.weight_bytes() == layer
    assert whole.weight_bytes() == LAYERS * layer + 4 * (2 * 211 * 48 + 48)


def test_what_is_missing_is_said_in_a_line(tmp_path: Path) -> None:
    make_model(tmp_path)
    with pytest.raises(DinnetError, match="layers 4-5: the model has the layers 0-4"):
        Stage(tmp_path, LayerRange(4, 5), "float32", "cpu")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "gpt2"}))
    with pytest.raises(DinnetError, match="model type gpt2 is none of"):
        Stage(tmp_path, None, "float32", "cpu")
    (tmp_path / "config.json").write_text(json.dumps(config))
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(DinnetError, match=r"model\.safetensors: not a safetensors file, or cut short"):
        Stage(tmp_path, None, "float32", "cpu")
    weights.unlink()
    with pytest.raises(DinnetError, match="is this a model's folder"):
        Stage(tmp_path, None, "float32", "cpu")
