"""`dinnet worker`, also `din-worker`: serve a stage of a model."""

from __future__ import annotations

import socket
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dinnet.cli.streams import tell


class Role(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"
    BOTH = "both"


class Dtype(StrEnum):
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


def worker(
    scheduler: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where the scheduler listens.")],
    model_path: Annotated[Path, typer.Option(metavar="PATH", help="Model folder (Hugging Face), or a GGUF file.")],
    stage_id: Annotated[int, typer.Option(min=0, help="Number of this stage, for people.")] = 0,
    layers: Annotated[str | None, typer.Option(metavar="A-B", help="First and last layer; all when not given.")] = None,
    device: Annotated[str, typer.Option(help="cpu, or cuda:0 and so on.")] = "cpu",
    role: Annotated[Role, typer.Option(help="Phases that it takes part in.")] = Role.BOTH,
    dtype: Annotated[Dtype, typer.Option(help="What it computes in.")] = Dtype.FLOAT32,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where other workers reach it.")] = "127.0.0.1:0",
    name: Annotated[str | None, typer.Option(help="Its name in logs and metrics.")] = None,
    block_size: Annotated[int, typer.Option(min=1, max=1024, help="Tokens a KV block.")] = 16,
    kv_blocks: Annotated[int, typer.Option(min=1, help="KV blocks to allocate.")] = 2048,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads to compute with.")] = None,
) -> None:
    """Serve a stage of a model until Ctrl-C."""
    import signal

    from dinnet.errors import DinnetError
    from dinnet.inference.layers import LayerRange

    wanted = LayerRange.parse(layers) if layers else None
    import torch

    from dinnet.inference.model import Stage
    from dinnet.inference.weights import model_folder
    from dinnet.inference.worker import Worker, WorkerOptions

    if device.startswith("cuda") and not torch.cuda.is_available():
        raise DinnetError(f"device {device}: no CUDA device is usable here; use --device cpu")
    if threads:
        torch.set_num_threads(threads)
    stage = Stage(model_folder(model_path), wanted, dtype.value, device)
    options = WorkerOptions(
        scheduler=scheduler,
        name=name or f"{socket.gethostname()}-{role.value}-{stage_id}",
        stage_id=stage_id,
        role=role.value,
        listen=listen,
        block_size=block_size,
        kv_blocks=kv_blocks,
    )
    running = Worker(stage, options)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: running.stop())
    tell(f"dinnet: worker {options.name}: layers {stage.layers}, {role.value}, at {running.address}")
    running.wait()
    if running.fault:
        raise DinnetError(running.fault)
