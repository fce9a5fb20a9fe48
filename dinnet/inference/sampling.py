"""How the next token is chosen."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
import xxhash

from dinnet.errors import UsageError


@dataclass(frozen=True, slots=True)
class Sampling:
    """Wishes of a request. Temperature 0 takes the likeliest token."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0  # 0: all
    seed: int = 0
    max_tokens: int = 16
    min_tokens: int = 0  # no end of text before
    logprobs: int | None = None  # this many alternatives beside the token's own
    eos: tuple[int, ...] = field(default=())

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and 0 <= self.temperature <= 100):
            raise UsageError(f"temperature {self.temperature}: it goes from 0 to 100")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top_p {self.top_p}: it must be above 0 and at most 1")
        if self.top_k < 0:
            raise UsageError(f"top_k {self.top_k}: it must be 0 (all) or more")
        if self.max_tokens < 1:
            raise UsageError(f"max_tokens {self.max_tokens}: it must be 1 or more")
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise UsageError(f"min_tokens {self.min_tokens}: it goes from 0 to max_tokens, {self.max_tokens}")
        if self.logprobs is not None and not 0 <= self.logprobs <= 20:
            raise UsageError(f"logprobs {self.logprobs}: it goes from 0 to 20")


@dataclass(frozen=True, slots=True)
class Chosen:
    token: int
    logprob: float | None = None  # natural logarithm, of the model's own distribution
    top: tuple[tuple[int, float], ...] = ()


def choose(logits: torch.Tensor, wishes: Sampling, index: int) -> Chosen:
    """Choose the token with number `index` of an answer from logits [vocabulary].

    The random number depends on seed and index alone: a request that goes on elsewhere goes on alike.
    """
    scores = logits.float()
    if index < wishes.min_tokens and wishes.eos:
        scores = scores.clone()
        scores[list(wishes.eos)] = -math.inf
    token = int(scores.argmax()) if wishes.temperature == 0 else _drawn(scores, wishes, index)
    if wishes.logprobs is None:
        return Chosen(token)
    logs = logits.float().log_softmax(-1)
    best = logs.topk(wishes.logprobs) if wishes.logprobs else None
    top = tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True)) if best else ()
    return Chosen(token, float(logs[token]), top)


def _drawn(scores: torch.Tensor, wishes: Sampling, index: int) -> int:
    count = min(wishes.top_k, len(scores)) if wishes.top_k else len(scores)
    # float64: the last sums of a large vocabulary decide where the draw falls.
    ordered, tokens = (scores.double() / wishes.temperature).topk(count)
    shares = ordered.softmax(-1)
    if wishes.top_p < 1:
        kept = max(1, int((shares.cumsum(-1) - shares < wishes.top_p).sum()))
        shares, tokens = shares[:kept], tokens[:kept]
    sums = shares.cumsum(-1)
    draw = xxhash.xxh3_64_intdigest(index.to_bytes(8, "little"), wishes.seed & (2**64 - 1)) / 2**64
    place = int(torch.searchsorted(sums, torch.tensor(draw * float(sums[-1]), dtype=sums.dtype), right=True))
    return int(tokens[min(place, len(tokens) - 1)])
