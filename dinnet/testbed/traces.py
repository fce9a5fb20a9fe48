"""When requests arrive, how long they are, and how a streamed answer is cut into records.

Public traces where they are present: the Azure LLM inference traces of 2023 (CSV; Patel et al.,
"Splitwise", ISCA 2024), the Mooncake traces (JSON lines; Qin et al., FAST 2025) and recorded TLS record
sizes of streamed answers (JSON; the "Whisper Leak" data). Where they are absent, requests and streams are
drawn from the quantiles of those traces, which stand below.
"""

from __future__ import annotations

import csv
import json
import math
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TextIO

from dinnet.errors import DinnetError

TRACES_VARIABLE = "DINNET_TRACES"  # a folder that holds the files below
AZURE_FILES = ("azure_llm_2023_code.csv", "azure_llm_2023_conv.csv")
MOONCAKE_FILES = ("mooncake_conversation.jsonl", "mooncake_synthetic.jsonl")
STREAMS_FILE = "gpt4o_stream_sizes.json"
BLOCK_TOKENS = 512  # of a Mooncake hash block


class TraceError(DinnetError):
    """A trace file that cannot be read."""


@dataclass(frozen=True)
class Request:
    """One request to a model."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    prefix_tokens: int = 0  # of the prompt, how many an earlier request has already brought

    @property
    def new_tokens(self) -> int:
        """Tokens that prefill has to compute; at least one."""
        return max(1, self.prompt_tokens - self.prefix_tokens)

    @property
    def continued(self) -> bool:
        """Whether this carries a conversation on: at least half of its prompt was there before.

        A shared system prompt alone (a small part of the prompt) does not make a continuation.
        """
        return 2 * self.prefix_tokens >= self.prompt_tokens


@dataclass(frozen=True)
class StreamShape:
    """One streamed answer on the wire: the length of each TLS record, and the wait before each."""

    record_bytes: tuple[int, ...]
    gaps_s: tuple[float, ...]
    tokens: int


@dataclass(frozen=True)
class _Statistics:
    """Quantiles (at `_AT`) of one trace; the gaps between arrivals are in seconds."""

    prompt: tuple[float, ...]
    output: tuple[float, ...]
    gap: tuple[float, ...]
    prefix_share: tuple[float, ...]


_AT = (0.0, 0.01, 0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95, 0.99, 1.0)
_MOONCAKE_PREFIX = (0.0, 0.0071, 0.0177, 0.0276, 0.0688, 0.363, 0.712, 0.948, 0.976, 0.999, 1.0)
_POISSON_3 = tuple(-math.log(1 - min(at, 0.9999)) / 3.03 for at in _AT)
SYNTHETIC: dict[str, _Statistics] = {
    "azure-code": _Statistics(
        (3, 17, 75, 147, 578, 1469, 2744, 5188, 7303, 7436, 7437),
        (6, 6, 6, 7, 9, 13, 24, 55, 90, 251, 1899),
        (6e-6, 2.2e-5, 8.8e-5, 2.1e-4, 2.1e-3, 0.0638, 0.104, 0.273, 0.401, 2.2, 217),
        _MOONCAKE_PREFIX,
    ),
    "azure-conv": _Statistics(
        (2, 29, 181, 207, 396, 1020, 1189, 2734, 4083, 4142, 14050),
        (7, 16, 41, 54, 85, 129, 395, 424, 451, 601, 1000),
        (2.1e-6, 5.5e-4, 6.3e-3, 0.0161, 0.0483, 0.118, 0.247, 0.421, 0.565, 0.89, 4.31),
        _MOONCAKE_PREFIX,
    ),
    "mooncake-conversation": _Statistics(
        (891, 894, 901, 964, 2306, 6909, 15367, 27367, 39550, 85400, 126195),
        (1, 3, 10, 24, 156, 350, 472, 597, 698, 1118, 2000),
        _POISSON_3,
        _MOONCAKE_PREFIX,
    ),
}
# A streamed answer: record lengths with their shares, gaps within an answer, gap before the first content.
_RECORD_BYTES = (721, 121, 694, 1347, 1376, 737, 1320, 93, 1034, 1780, 440, 107)
_RECORD_COUNTS = (16686, 4619, 4118, 998, 428, 364, 239, 180, 178, 136, 121, 93)
_RECORD_GAP = (1e-6, 1e-6, 1e-6, 1e-6, 1.7e-3, 9.3e-3, 0.0278, 0.0487, 0.0686, 0.123, 0.6)
_FIRST_GAP = (0.29, 0.3, 0.332, 0.345, 0.369, 0.417, 0.513, 0.875, 1.05, 1.69, 3.29)
_RECORDS = (11, 22, 47, 51, 76, 176, 232, 269, 305, 339, 355)
_TOKENS_PER_RECORD = 1.8


def requests(source: Path | None, seed: int, duration_s: float, rate: float | None = None) -> tuple[Request, ...]:
    """Requests that arrive in [0, `duration_s`), in time order.

    `source` is a trace file, a folder of them (one is chosen by the seed), or None: then the folder that
    the environment variable DINNET_TRACES names, else drawn from known statistics. `rate` is in requests
    a second; successive requests are stretched or squeezed in time to give it. None keeps the trace's own
    pace. Traces without word of reused prefixes get them by Mooncake's statistics.
    """
    rng = random.Random(f"{seed}/requests")
    if source is None and TRACES_VARIABLE in os.environ:
        source = Path(os.environ[TRACES_VARIABLE])
    if source is not None and source.is_dir():
        present = [source / name for name in (*AZURE_FILES, *MOONCAKE_FILES) if (source / name).is_file()]
        source = rng.choice(present) if present else None
    if source is None:
        trace = synthetic(rng.choice(sorted(SYNTHETIC)), seed, max(64, int((rate or 6) * duration_s * 2)))
    else:
        trace = _with_prefixes(read_trace(source), rng)
    if not trace:
        raise TraceError(f"{source}: the trace holds no requests; name another file")
    return _window(trace, rng, duration_s, rate)


def _window(trace: Sequence[Request], rng: random.Random, duration_s: float, rate: float | None) -> tuple[Request, ...]:
    span = trace[-1].arrival_s - trace[0].arrival_s
    pace = len(trace) / span if span > 0 else 1.0
    count = min(len(trace), max(1, round((rate or pace) * duration_s)))
    first = rng.randrange(len(trace) - count + 1)
    chosen = trace[first : first + count]
    start = chosen[0].arrival_s
    if rate is None:
        shifted = [replace(request, arrival_s=request.arrival_s - start) for request in chosen]
        return tuple(request for request in shifted if request.arrival_s < duration_s)
    # One gap more than there are between the chosen ones, so that the last does not stand on the very end.
    chosen_span = (chosen[-1].arrival_s - start) * count / max(1, count - 1)
    scale = duration_s / chosen_span if chosen_span > 0 else 0.0
    return tuple(replace(request, arrival_s=(request.arrival_s - start) * scale) for request in chosen)


def _with_prefixes(trace: Sequence[Request], rng: random.Random) -> tuple[Request, ...]:
    if any(request.prefix_tokens for request in trace):
        return tuple(trace)
    return tuple(
        replace(request, prefix_tokens=int(request.prompt_tokens * quantile_draw(rng, _MOONCAKE_PREFIX)))
        for request in trace
    )


def read_trace(path: Path) -> tuple[Request, ...]:
    """All requests of a trace file: `.csv` is Azure's format, `.jsonl` is Mooncake's."""
    if path.suffix == ".csv":
        return read_azure(path)
    if path.suffix == ".jsonl":
        return read_mooncake(path)
    raise TraceError(f"{path}: not a trace that is known; give an Azure .csv or a Mooncake .jsonl file")


@lru_cache(maxsize=4)
def read_azure(path: Path) -> tuple[Request, ...]:
    """Read TIMESTAMP, ContextTokens, GeneratedTokens; arrivals count from the first line."""
    found: list[tuple[float, int, int]] = []
    with _opened(path) as lines:
        for number, row in enumerate(csv.DictReader(lines), start=2):
            try:
                # The file gives 100 ns; datetime takes microseconds at most.
                moment = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
                found.append((moment, int(row["ContextTokens"]), int(row["GeneratedTokens"])))
            except (KeyError, ValueError, TypeError) as error:
                raise TraceError(f"{path}, line {number}: not an Azure LLM trace line ({error})") from error
    found.sort(key=lambda line: line[0])
    return tuple(Request(moment - found[0][0], prompt, output) for moment, prompt, output in found)


@lru_cache(maxsize=4)
def read_mooncake(path: Path) -> tuple[Request, ...]:
    """Read timestamp (ms), input_length, output_length, hash_ids (512-token blocks).

    A request's prefix is the run of its leading blocks that earlier requests had too. Arrivals that the
    trace rounds to one instant are spread evenly until the next.
    """
    found: list[Request] = []
    seen: set[int] = set()
    with _opened(path) as lines:
        for number, line in enumerate(lines, start=1):
            try:
                entry = json.loads(line)
                blocks = [int(block) for block in entry["hash_ids"]]
                known = next((i for i, block in enumerate(blocks) if block not in seen), len(blocks))
                prompt = int(entry["input_length"])
                prefix = min(prompt, known * BLOCK_TOKENS)
                found.append(Request(entry["timestamp"] / 1000, prompt, int(entry["output_length"]), prefix))
            except (KeyError, ValueError, TypeError) as error:
                raise TraceError(f"{path}, line {number}: not a Mooncake trace line ({error})") from error
            seen.update(blocks)
    return _spread(found)


def _spread(found: list[Request]) -> tuple[Request, ...]:
    found.sort(key=lambda request: request.arrival_s)
    starts = [i for i, request in enumerate(found) if i == 0 or request.arrival_s > found[i - 1].arrival_s]
    spread: list[Request] = []
    for first, following in pairwise([*starts, len(found)]):
        here = found[first].arrival_s
        until = found[following].arrival_s if following < len(found) else here + 1.0
        step = (until - here) / (following - first)
        spread += [replace(found[first + k], arrival_s=here + k * step) for k in range(following - first)]
    return tuple(spread)


def synthetic(kind: str, seed: int, count: int) -> tuple[Request, ...]:
    """`count` requests with the statistics of one trace (a key of SYNTHETIC), without that trace."""
    try:
        statistics = SYNTHETIC[kind]
    except KeyError:
        raise TraceError(f"no statistics named {kind!r}; there are {', '.join(sorted(SYNTHETIC))}") from None
    rng = random.Random(f"{seed}/synthetic/{kind}")
    gaps = [quantile_draw(rng, statistics.gap) for _ in range(count)]
    drawn = []
    for arrival_s in accumulate(gaps):
        prompt = max(1, round(quantile_draw(rng, statistics.prompt)))
        output = max(1, round(quantile_draw(rng, statistics.output)))
        prefix = int(prompt * quantile_draw(rng, statistics.prefix_share))
        drawn.append(Request(arrival_s, prompt, output, prefix))
    return tuple(drawn)


def quantile_draw(rng: random.Random, quantiles: Sequence[float]) -> float:
    """One draw from a distribution given by its quantiles at `_AT`, log-linear between positive ones."""
    u = rng.random()
    i = next(k for k in range(1, len(_AT)) if u <= _AT[k])
    low, high = quantiles[i - 1], quantiles[i]
    share = (u - _AT[i - 1]) / (_AT[i] - _AT[i - 1])
    if low <= 0:
        return low + share * (high - low)
    return float(low * (high / low) ** share)


def stream_shapes(source: Path | None = None) -> tuple[StreamShape, ...]:
    """Streamed answers: read from `source` (a file or its folder), else from DINNET_TRACES, else drawn."""
    if source is None and TRACES_VARIABLE in os.environ:
        source = Path(os.environ[TRACES_VARIABLE])
    if source is not None and source.is_dir():
        source = source / STREAMS_FILE if (source / STREAMS_FILE).is_file() else None
    return synthetic_streams(seed=1, count=180) if source is None else read_streams(source)


@lru_cache(maxsize=2)
def read_streams(source: Path) -> tuple[StreamShape, ...]:
    """Read record_lengths_bytes, record_gaps_s and tokens of each recorded answer."""
    with _opened(source) as text:
        try:
            return tuple(
                StreamShape(
                    tuple(map(int, answer["record_lengths_bytes"])),
                    # The clock of the recording was stepped at times, which left negative gaps.
                    tuple(max(0.0, float(gap)) for gap in answer["record_gaps_s"]),
                    int(answer["tokens"]),
                )
                for answer in json.load(text)
            )
        except (KeyError, ValueError, TypeError) as error:
            raise TraceError(f"{source}: not a file of streamed answers ({error})") from error


@lru_cache(maxsize=2)
def synthetic_streams(seed: int, count: int) -> tuple[StreamShape, ...]:
    """`count` streamed answers with the record lengths and gaps of real ones."""
    rng = random.Random(f"{seed}/streams")
    drawn = []
    for _ in range(count):
        records = max(8, round(quantile_draw(rng, _RECORDS)))
        lengths = (1263, 1780, 440, *rng.choices(_RECORD_BYTES, _RECORD_COUNTS, k=records - 3))
        gaps = [0.0092, quantile_draw(rng, _FIRST_GAP)]
        gaps += [quantile_draw(rng, _RECORD_GAP) for _ in range(records - 2)]
        drawn.append(StreamShape(lengths, tuple(gaps), round(records * _TOKENS_PER_RECORD)))
    return tuple(drawn)


def _opened(path: Path) -> TextIO:
    try:
        return path.open(encoding="utf-8", newline="")
    except OSError as error:
        raise TraceError(f"{path}: cannot be opened ({error.strerror}); name a trace file") from error
