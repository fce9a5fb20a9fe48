"""What `dinnet scheduler --config FILE` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dinnet.yamlfile import load_yaml

_STRICT: Final = ConfigDict(extra="forbid", frozen=True)
#: Below this, a slow step would be taken for a dead stage.
_LEAST_STAGE_TIMEOUT_MS: Final = 1500
Address = Annotated[str, Field(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]/]+):\d{1,5}$", description="HOST:PORT")]


class Retry(BaseModel):
    """Requests whose worker died start again elsewhere, and go on after the last token that was delivered."""

    model_config = _STRICT
    max_retries: int = Field(default=2, ge=0, le=20)
    backoff_ms: int = Field(default=200, ge=0, le=60_000)  # doubled at each try, with jitter
    recover_ms: int = Field(default=30_000, ge=0)  # how long a request under way waits for layers that are missing


class SchedulerConfig(BaseModel):
    model_config = _STRICT
    model_path: Path | None = None  # for its tokenizer and chat template
    model_name: str | None = None
    listen: Address = "127.0.0.1:9000"  # workers
    http: Address = "127.0.0.1:8000"
    batch_window_ms: Annotated[int, Field(ge=0, le=1000)] = 15
    max_batch_size: int = Field(default=32, ge=1, le=1024)
    pipeline_depth: int = Field(default=2, ge=1, le=64)
    stage_timeout_ms: int = Field(default=3000, ge=1)
    force: bool = False  # allow a stage_timeout_ms below 1500
    local_queue_max: int = Field(default=8, ge=1)
    retry: Retry = Retry()

    @model_validator(mode="after")
    def _timeout_fits(self) -> Self:
        if self.stage_timeout_ms < _LEAST_STAGE_TIMEOUT_MS and not self.force:
            raise ValueError(
                f"stage_timeout_ms {self.stage_timeout_ms} is below {_LEAST_STAGE_TIMEOUT_MS}: slow steps would be "
                "taken for dead stages (force: true allows it)"
            )
        return self


def load_config(path: Path) -> SchedulerConfig:
    """Read a scheduler's description; `model_path` is relative to the file.

    Raises:
        DinnetError: It cannot be read, or a value in it is wrong; with file, line and reason.
    """
    config = load_yaml(path, SchedulerConfig)
    if config.model_path is None:
        return config
    return config.model_copy(update={"model_path": path.parent / config.model_path})
