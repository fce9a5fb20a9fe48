"""`dinnet scheduler`, also `din-scheduler`: plan requests onto workers, and serve HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dinnet.cli.streams import tell


def scheduler(
    config: Annotated[Path | None, typer.Option("--config", "-c", dir_okay=False, metavar="FILE", help="YAML.")] = None,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="For workers (127.0.0.1:9000).")] = None,
    http: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="For clients (127.0.0.1:8000).")] = None,
    model_path: Annotated[Path | None, typer.Option(metavar="PATH", help="The model, for its tokenizer.")] = None,
) -> None:
    """Plan requests onto workers and serve HTTP, until Ctrl-C."""
    from dinnet.inference.scheduler_config import SchedulerConfig, load_config

    described = load_config(config) if config else SchedulerConfig()
    given = {"listen": listen, "http": http, "model_path": model_path}
    described = described.model_copy(update={key: value for key, value in given.items() if value is not None})

    from dinnet.inference.serve import run_scheduler

    run_scheduler(described, tell)
