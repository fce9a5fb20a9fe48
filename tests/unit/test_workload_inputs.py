"""Model shapes against bytes worked out by hand; traces against files written here and against the real ones."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest

from dinnet.testbed.models import MODELS
from dinnet.testbed.traces import (
    AZURE_FILES,
    MOONCAKE_FILES,
    STREAMS_FILE,
    SYNTHETIC,
    Request,
    TraceError,
    read_azure,
    read_mooncake,
    read_trace,
    requests,
    stream_shapes,
    synthetic,
    synthetic_streams,
)

TRACES = Path(os.environ.get("DINNET_TRACES", Path(__file__).parents[3] / "shared" / "traces"))


@pytest.mark.parametrize(
    ("name", "kv_bytes_per_token"),
    [
        ("smollm2-135m", 30 * 2 * 3 * 64 * 2),  # 23,040
        ("llama-3.1-8b", 131_072),  # 32 layers x 2 x 8 heads x 128 x 2 bytes: 128 KiB
        ("llama-3.1-70b", 327_680),  # 80 layers x 2 x 8 heads x 128 x 2 bytes: 320 KiB
        ("llama-3.1-70b-fp8", 163_840),
        ("llama-3.1-405b", 516_096),  # 126 layers
        ("deepseek-v3-fp8", 35_136),  # 61 layers x (512 latent + 64 rotated) x 1 byte
        ("deepseek-v2-lite", 31_104),  # 27 layers x 576 x 2 bytes
    ],
)
def test_kv_bytes_per_token(name: str, kv_bytes_per_token: int) -> None:
    assert MODELS[name].kv_bytes_per_token() == kv_bytes_per_token


def test_activations_and_weights() -> None:
    model = MODELS["llama-3.1-70b-fp8"]
    assert model.activation_bytes(2048) == 33_554_432  # 2048 x 8192 hidden x 2 bytes
    assert model.weight_bytes() == 70_554_000_000  # a byte a parameter
    assert MODELS["llama-3.1-70b"].weight_bytes() == 2 * model.weight_bytes()
    assert MODELS["mixtral-8x7b"].active_weight_bytes() == 25_800_000_000  # 12.9 billion of 46.7


def test_models_span_what_is_served() -> None:
    assert len(MODELS) >= 8
    assert min(model.params for model in MODELS.values()) == 135_000_000
    assert MODELS["llama-3.1-405b"].params > 400_000_000_000
    assert {model.dtype_bytes for model in MODELS.values()} == {1, 2}
    assert any(model.kv_lora_rank for model in MODELS.values())
    assert not MODELS["llama-3.1-8b"].large
    assert MODELS["qwen2.5-32b"].large


def test_azure_lines(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 23:59:59.5000000,4808,10\n"
        "2023-11-17 00:00:01.2500001,31,8\n"
    )
    assert read_azure(path) == (Request(0.0, 4808, 10), Request(1.75, 31, 8))


def test_mooncake_prefixes_and_rounded_arrivals(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 0, "input_length": 1200, "output_length": 5, "hash_ids": [0, 1, 2]},
        {"timestamp": 0, "input_length": 1100, "output_length": 6, "hash_ids": [0, 1, 9]},
        {"timestamp": 3000, "input_length": 700, "output_length": 7, "hash_ids": [0, 1]},
        {"timestamp": 6000, "input_length": 600, "output_length": 8, "hash_ids": [7, 0]},
    ]
    path = tmp_path / "mooncake.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_mooncake(path) == (
        Request(0.0, 1200, 5, 0),
        Request(1.5, 1100, 6, 1024),  # two blocks of 512 seen before; the second of two within 3 s
        Request(3.0, 700, 7, 700),  # both blocks seen, and no more than the prompt has
        Request(6.0, 600, 8, 0),  # a known block behind an unknown one is no prefix
    )


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,many,1\n", "line 2"),
        ("t.csv", "a,b\n1,2\n", "line 2"),
        ("t.jsonl", '{"timestamp": 1}\n', "line 1"),
        ("t.txt", "", "not a trace"),
        ("u.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "no requests"),
    ],
)
def test_unreadable_traces_are_refused_by_name_and_line(tmp_path: Path, name: str, text: str, said: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(TraceError, match=rf"{name}.*{said}"):
        requests(path, 1, 5.0)


def test_a_missing_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"absent\.csv: cannot be opened"):
        read_trace(tmp_path / "absent.csv")


def test_requests_have_the_asked_rate_and_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DINNET_TRACES", raising=False)
    found = requests(None, seed=5, duration_s=10.0, rate=7.0)
    assert len(found) == 70
    arrivals = [request.arrival_s for request in found]
    assert arrivals == sorted(arrivals)
    assert arrivals[0] == 0.0
    assert arrivals[-1] < 10.0
    assert found == requests(None, seed=5, duration_s=10.0, rate=7.0)
    assert found != requests(None, seed=6, duration_s=10.0, rate=7.0)
    assert all(0 <= request.prefix_tokens <= request.prompt_tokens for request in found)


def test_continuation_is_half_a_prompt_known_before() -> None:
    assert Request(0, 1000, 1, 500).continued
    assert not Request(0, 1000, 1, 499).continued
    assert Request(0, 1000, 1, 400).new_tokens == 600
    assert Request(0, 1000, 1, 1000).new_tokens == 1


def _near(drawn: list[float], real: list[float], share: float) -> None:
    for at in (25, 50, 75, 90):
        expected = statistics.quantiles(real, n=100)[at - 1]
        assert statistics.quantiles(drawn, n=100)[at - 1] == pytest.approx(expected, rel=share, abs=2), at


@pytest.mark.skipif(not TRACES.is_dir(), reason="the public traces are not here")
@pytest.mark.parametrize(
    ("kind", "name"),
    [("azure-code", AZURE_FILES[0]), ("azure-conv", AZURE_FILES[1]), ("mooncake-conversation", MOONCAKE_FILES[0])],
)
def test_fallback_has_the_statistics_of_the_trace(kind: str, name: str) -> None:
    real = read_trace(TRACES / name)
    drawn = synthetic(kind, seed=1, count=8000)
    lengths: tuple[Callable[[Request], float], ...] = (lambda r: r.prompt_tokens, lambda r: r.output_tokens)
    for length in lengths:
        _near([length(request) for request in drawn], [length(request) for request in real], 0.12)
    pace = [len(trace) / trace[-1].arrival_s for trace in (drawn, real)]
    # Azure's code trace has pauses of minutes, which eight thousand draws from quantiles cannot weigh exactly.
    assert pace[0] == pytest.approx(pace[1], rel=0.5 if kind == "azure-code" else 0.15)
    assert set(SYNTHETIC) == {"azure-code", "azure-conv", "mooncake-conversation"}


@pytest.mark.skipif(not (TRACES / STREAMS_FILE).is_file(), reason="the recorded streams are not here")
def test_fallback_streams_have_the_statistics_of_the_recorded_ones() -> None:
    real, drawn = stream_shapes(TRACES), synthetic_streams(seed=1, count=180)
    assert len(real) == 180
    assert min(min(shape.gaps_s) for shape in real) >= 0
    for shapes in (real, drawn):
        lengths = [length for shape in shapes for length in shape.record_bytes]
        assert statistics.median(lengths) == 721
        gaps_ms = [1000 * gap for shape in shapes for gap in shape.gaps_s[2:]]
        assert statistics.median(gaps_ms) == pytest.approx(9.25, rel=0.1)
        assert statistics.quantiles(gaps_ms, n=10)[8] == pytest.approx(48.7, rel=0.1)
