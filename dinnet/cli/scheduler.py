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
    from pydantic import ValidationError

    from dinnet.errors import UsageError
    from dinnet.inference.scheduler_config import SchedulerConfig, load_config

    described = load_config(config) if config else SchedulerConfig()
    given = {"listen": listen, "http": http, "model_path": model_path}
    given = {key: value for key, value in given.items() if value is not None}
    try:
        described = SchedulerConfig.model_validate({**described.model_dump(), **given})
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        raise UsageError(f"--{name.replace('_', '-')} {given[name]}: an address is HOST:PORT") from None

    from dinnet.inference.serve import run_scheduler

    run_scheduler(described, tell)
