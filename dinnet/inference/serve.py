"""A scheduler with its HTTP gateway, as a process."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import uvicorn
from transformers import AutoTokenizer

from dinnet.errors import DinnetError
from dinnet.inference.gateway import make_app
from dinnet.inference.scheduler import Scheduler
from dinnet.inference.scheduler_config import SchedulerConfig
from dinnet.inference.weights import model_folder


def run_scheduler(config: SchedulerConfig, tell: Any) -> None:
    """Serve until SIGINT or SIGTERM.

    Raises:
        DinnetError: The model cannot be read, or an address cannot be listened on.
    """
    if config.model_path is None:
        raise DinnetError("model_path is missing: the gateway needs the model's tokenizer")
    folder = model_folder(config.model_path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise DinnetError(f"{folder}: tokenizer: {' '.join(str(error).split())}") from error
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    asyncio.run(_serve(config, tokenizer, folder, tell))


async def _serve(config: SchedulerConfig, tokenizer: Any, folder: Path, tell: Any) -> None:
    scheduler = Scheduler(config)
    try:
        app = make_app(scheduler, tokenizer, config.model_name or folder.name, end_tokens(folder))
        host, _, port = config.http.rpartition(":")
        server = uvicorn.Server(
            uvicorn.Config(app, host=host, port=int(port), log_level="warning", timeout_graceful_shutdown=1)
        )
        tell(f"dinnet: workers at {scheduler.address}, HTTP at {config.http}; Ctrl-C ends the scheduler")
        await server.serve()
    finally:
        await scheduler.stop()


def end_tokens(folder: Path) -> tuple[int, ...]:
    """The tokens that end an answer, from generation_config.json or config.json."""
    for name in ("generation_config.json", "config.json"):
        try:
            found = json.loads((folder / name).read_bytes()).get("eos_token_id")
        except (OSError, ValueError):
            continue
        if found is not None:
            return tuple(found) if isinstance(found, list) else (int(found),)
    return ()
