"""The backend as a user runs it: processes by their documented commands, asked over HTTP."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs dinnet[inference]: torch")
pytest.importorskip("transformers", reason="needs dinnet[inference]: transformers")
pytest.importorskip("fastapi", reason="needs dinnet[inference]: fastapi")

from inferencekit import VOCABULARY, make_model, reference

PROMPT = " ".join(f"w{number}" for number in range(40, 60))
COUNT = 200


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A model whose tokens are the words w0, w1 ...; and the words that transformers answers PROMPT with."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("served")
    made = make_model(folder, eos_token_id=None, bos_token_id=None)
    words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(VOCABULARY)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.decoder = decoders.Metaspace(replacement="_", prepend_scheme="never")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    tokenizer.save_pretrained(folder)
    tokens = reference(made, tokenizer.encode(PROMPT), COUNT)
    return folder, [f"w{token}" for token in tokens]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen([sys.executable, "-m", "dinnet", *arguments], stderr=subprocess.DEVNULL)
    try:
        yield started
    finally:
        started.terminate()
        try:
            started.wait(20)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


def ask(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    return urllib.request.urlopen(request, timeout=60)


def wait_for(url: str) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            with ask(f"{url}/healthz"):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the backend did not come up")


def metric(url: str, start: str) -> list[float]:
    with ask(f"{url}/metrics") as answer:
        return [float(line.split()[-1]) for line in answer.read().decode().splitlines() if line.startswith(start)]


def test_requests_over_http_survive_a_killed_worker(model: tuple[Path, list[str]], tmp_path: Path) -> None:
    folder, expected = model
    workers, url = f"127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
    described = tmp_path / "scheduler.yaml"
    described.write_text(f"model_path: {folder}\nmodel_name: words\nhttp: {url.removeprefix('http://')}\n")
    common = ("worker", "--scheduler", workers, "--model-path", str(folder), "--threads", "1")
    with ExitStack() as stack:
        stack.enter_context(process("scheduler", "--config", str(described), "--listen", workers))
        stack.enter_context(process(*common, "--role", "prefill", "--name", "p"))
        victim = stack.enter_context(process(*common, "--role", "decode", "--layers", "0-2", "--name", "d0"))
        stack.enter_context(process(*common, "--role", "decode", "--layers", "3-4", "--stage-id", "1", "--name", "d1"))
        wait_for(url)
        wishes = {"temperature": 0, "max_tokens": COUNT}

        with ask(f"{url}/v1/generate", {"prompt": PROMPT, **wishes, "max_tokens": 5}) as answer:
            told = json.load(answer)
        assert "".join(told["text"].split()) == "".join(expected[:5])
        assert told["usage"] == {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25}

        stop = {"stop": expected[3]}
        with ask(
            f"{url}/v1/chat/completions", {"messages": [{"role": "user", "content": PROMPT}], **wishes, **stop}
        ) as a:
            choice = json.load(a)["choices"][0]
        assert choice["finish_reason"] == "stop"
        assert "".join(choice["message"]["content"].split()) == "".join(expected).split(expected[3])[0]

        for body, status in (
            ({"prompt": ""}, 400),
            ({"prompt": PROMPT, "max_tokens": 10_000}, 400),
            ({"prompt": PROMPT, "max_tokens": 0}, 400),
            ({"prompt": PROMPT, "model": "other"}, 404),
        ):
            with pytest.raises(urllib.error.HTTPError) as refused:
                ask(f"{url}/v1/completions", body)
            assert refused.value.code == status
            assert json.load(refused.value)["error"]["message"]

        text, killed = "", False
        with ask(f"{url}/v1/completions", {"prompt": PROMPT, **wishes, "stream": True}) as answer:
            for line in answer:
                if line.startswith(b"data: {"):
                    text += json.loads(line[6:])["choices"][0]["text"]
                if text.count("w") > 20 and not killed:
                    killed = True
                    victim.kill()
                    stack.enter_context(process(*common, "--role", "decode", "--layers", "0-2", "--name", "d2"))
        assert killed
        assert "".join(text.split()) == "".join(expected)
        assert sum(metric(url, "inference_pd_handoff_delay_seconds_count")) >= 3
        deadline = time.monotonic() + 20
        while (used := metric(url, "inference_kv_cache_usage_ratio")) != [0, 0, 0] and time.monotonic() < deadline:
            time.sleep(0.1)
        assert used == [0, 0, 0]


def test_help_loads_no_torch() -> None:
    code = "import sys, dinnet.cli.worker, dinnet.cli.scheduler, dinnet.cli.inference, dinnet.cli as c"
    code += "; c.app(['worker', '--help'], standalone_mode=False)"
    code += "; sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0
