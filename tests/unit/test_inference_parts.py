"""The backend's small parts: frames, layer ranges, the KV pool, sampling, text."""

from __future__ import annotations

import math
import subprocess
import sys
import threading

import pytest

pytest.importorskip("torch", reason="needs dinnet[inference]: torch")
pytest.importorskip("xxhash", reason="needs dinnet[inference]: xxhash")

import torch
from hypothesis import given
from hypothesis import strategies as st

from dinnet.errors import UsageError
from dinnet.inference.kv import KvPool, KvShape
from dinnet.inference.layers import LayerRange, cover_faults, joined_chains
from dinnet.inference.sampling import Sampling, choose
from dinnet.inference.text import TextStream
from dinnet.inference.transport.frame import Frame, FrameError, decode, encode


class Bytes:
    """A tokenizer whose tokens are single bytes: every character beyond ASCII is spread over several."""

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        return bytes(tokens).decode(errors="replace")


def pieces(text: str, stop: list[str]) -> list[str]:
    stream = TextStream(Bytes(), stop)
    return [piece for piece in [*(stream.push(byte) for byte in text.encode()), stream.finish()] if piece]


def test_a_character_comes_out_whole() -> None:
    assert pieces("a😀中", []) == ["a", "😀", "中"]


def test_a_stop_string_is_found_across_tokens_and_never_shown() -> None:
    assert "".join(pieces("one END two", ["END"])) == "one "
    assert pieces("an E, an EN", ["END"])[-1] == "EN"
    assert pieces("ENDless", ["END"]) == []


def test_half_a_character_at_the_end_is_replaced() -> None:
    stream = TextStream(Bytes())
    assert [stream.push(byte) for byte in "中".encode()[:2]] == ["", ""]
    assert stream.finish() == "\ufffd"


@given(st.text(), st.text(min_size=1, max_size=3))
def test_streamed_text_is_the_text_up_to_the_stop(text: str, stop: str) -> None:
    assert "".join(pieces(text, [stop])) == text.split(stop, maxsplit=1)[0]


@given(st.binary(max_size=64), st.dictionaries(st.text(), st.integers()), st.integers(0, 2**64 - 1))
def test_a_frame_comes_back_as_it_was(payload: bytes, meta: dict[str, int], model_hash: int) -> None:
    frame = Frame("kv", meta, payload, "float16", (2, 3), 16, 7, model_hash)
    back = decode(encode(frame))
    assert bytes(back.payload) == payload
    assert (back.kind, back.meta, back.dtype, back.shape) == ("kv", meta, "float16", (2, 3))
    assert (back.block_size, back.epoch, back.model_hash) == (16, 7, model_hash)


@given(st.data())
def test_a_damaged_frame_is_refused(data: st.DataObject) -> None:
    whole = bytearray(encode(Frame("kv", {"key": "a"}, b"12345678", "float32", (2,))))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(FrameError):
        decode(bytes(whole))
    with pytest.raises(FrameError):
        decode(bytes(whole[:place]))


def test_layers_must_join() -> None:
    a, b, c = LayerRange(0, 4), LayerRange(5, 9), LayerRange(4, 9)
    assert cover_faults([a, a, b], 10) == []
    assert cover_faults([a], 10) == ["layers 5-9 are missing"]
    assert cover_faults([a, c], 10) == ["layers 4-4 are there twice"]
    assert cover_faults([a, LayerRange(5, 10)], 10) == ["layers 5-10 do not exist in a model of 10 layers"]
    assert joined_chains([a, b, c, LayerRange(0, 9)], 10) == [(a, b), (LayerRange(0, 9),)]
    for wrong in ("4-0", "a-b", "3", "-1-2"):
        with pytest.raises(UsageError):
            LayerRange.parse(wrong)


def pool() -> KvPool:
    return KvPool(KvShape(heads=1, head_dim=2, dtype=torch.float32, block_size=4), LayerRange(3, 4), 8, "cpu")


def test_blocks_are_taken_and_given_back() -> None:
    kv = pool()
    assert kv.reserve("a", 9)  # 3 blocks of 4
    assert kv.free_blocks == 5
    assert not kv.reserve("b", 21)
    assert kv.free_blocks == 5
    kv.free("a")
    kv.free("a")
    assert kv.free_blocks == 8


def test_handed_over_values_land_where_they_belong() -> None:
    kv = pool()
    kv.reserve("other", 3)
    kv.reserve("a", 6)
    values = torch.arange(2 * 6 * 2, dtype=torch.float32).view(2, 6, 1, 2)
    for layer in (3, 4):
        kv.receive("a", layer, 2, values[:, 2:])
        assert kv.received("a") == (4 if layer == 4 else 0)
        kv.receive("a", layer, 0, values[:, :2])
    assert kv.received("a") == 6
    assert torch.equal(kv.read("a", 4, 0, 6), values)
    assert not kv.read("other", 4, 0, 3).any()


def test_blocks_are_not_free_while_they_are_written() -> None:
    kv = pool()
    kv.reserve("a", 4)
    with kv._writing("a") as held:
        assert held is not None
        freeing = threading.Thread(target=kv.free, args=("a",))
        freeing.start()
        freeing.join()
        assert kv.free_blocks == 7
        assert not kv.receive("a", 3, 0, torch.zeros(2, 1, 1, 2))
    assert kv.free_blocks == 8


def test_sampling_follows_the_distribution() -> None:
    logits = torch.tensor([0.5, 0.3, 0.2]).log()
    draws = [choose(logits, Sampling(temperature=1, seed=seed), 0).token for seed in range(3000)]
    for token, share in enumerate((0.5, 0.3, 0.2)):  # four standard deviations
        assert abs(draws.count(token) / 3000 - share) < 4 * math.sqrt(share * (1 - share) / 3000)
    assert {choose(logits, Sampling(temperature=1, top_k=1, seed=s), 0).token for s in range(50)} == {0}
    assert {choose(logits, Sampling(temperature=1, top_p=0.6, seed=s), 0).token for s in range(50)} == {0, 1}


def test_no_end_before_min_tokens_and_logprobs_are_the_models() -> None:
    logits = torch.tensor([0.25, 0.75]).log()
    wishes = Sampling(max_tokens=4, min_tokens=2, eos=(1,), logprobs=1)
    assert [choose(logits, wishes, index).token for index in range(3)] == [0, 0, 1]
    chosen = choose(logits, wishes, 0)
    assert chosen.logprob == pytest.approx(math.log(0.25))
    assert chosen.top == ((1, pytest.approx(math.log(0.75))),)


@pytest.mark.parametrize("address", ["8000", "127.0.0.1:", "localhost:http", "http://127.0.0.1:8000", "::1:80"])
def test_an_address_is_host_and_port(address: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dinnet", "scheduler", "--http", address], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == f"dinnet: error: --http {address}: an address is HOST:PORT\n"
