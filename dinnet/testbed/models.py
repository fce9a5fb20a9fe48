"""Shapes of public language models: what their weights, KV cache and activations weigh on a network.

Every shape is read from the model's own public `config.json` (num_hidden_layers, hidden_size,
num_key_value_heads, head_dim; kv_lora_rank and qk_rope_head_dim for multi-head latent attention) and
its parameter count from its model card:
HuggingFaceTB/SmolLM2-135M, HuggingFaceTB/SmolLM2-1.7B, Qwen/Qwen2.5-0.5B, Qwen/Qwen2.5-7B, Qwen/Qwen2.5-32B,
Qwen/Qwen3-30B-A3B, meta-llama/Llama-3.2-1B, meta-llama/Llama-3.1-8B, -70B and -405B,
mistralai/Mixtral-8x7B-v0.1, deepseek-ai/DeepSeek-V2-Lite, deepseek-ai/DeepSeek-V3.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

LARGE_PARAMS = 10_000_000_000  # a model is "large" from here on


@dataclass(frozen=True)
class ModelShape:
    """The numbers of a transformer that decide how many bytes cross the network."""

    name: str
    params: int
    layers: int
    hidden: int
    kv_heads: int
    head_dim: int
    dtype_bytes: int = 2  # of a weight: 2 for fp16 and bf16, 1 for fp8
    kv_dtype_bytes: int = 2  # of a cached value
    active_params: int = 0  # used per token, where experts are mixed; 0: all of them
    kv_lora_rank: int = 0  # multi-head latent attention caches one latent vector a layer ...
    rope_dim: int = 0  # ... and the rotated part of the key, shared by all heads

    @property
    def large(self) -> bool:
        """Whether the model has at least ten billion parameters."""
        return self.params >= LARGE_PARAMS

    def kv_bytes_per_token_layer(self) -> int:
        """Bytes that one token takes in the KV cache of one layer.

        Key and value of every KV head (GQA: Ainslie et al. 2023), or the latent vector and the rotated
        key (MLA: DeepSeek-V2, section 2.1: d_c + d_h^R elements).
        """
        elements = self.kv_lora_rank + self.rope_dim if self.kv_lora_rank else 2 * self.kv_heads * self.head_dim
        return elements * self.kv_dtype_bytes

    def kv_bytes_per_token(self) -> int:
        """Bytes that one token takes in the KV cache of all layers."""
        return self.layers * self.kv_bytes_per_token_layer()

    def activation_bytes(self, tokens: int) -> int:
        """Bytes handed from one pipeline stage to the next for `tokens` tokens: hidden states in 16 bits.

        Models with fp8 weights keep 16-bit hidden states between their layers.
        """
        return tokens * self.hidden * 2

    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        return self.params * self.dtype_bytes

    def active_weight_bytes(self) -> int:
        """Bytes of the weights that one token's step reads."""
        return (self.active_params or self.params) * self.dtype_bytes


def _fp8(shape: ModelShape) -> ModelShape:
    return replace(shape, name=f"{shape.name}-fp8", dtype_bytes=1, kv_dtype_bytes=1)


_M, _B = 1_000_000, 1_000_000_000
_LLAMA_8B = ModelShape("llama-3.1-8b", 8_030 * _M, 32, 4096, 8, 128)
_LLAMA_70B = ModelShape("llama-3.1-70b", 70_554 * _M, 80, 8192, 8, 128)
_LLAMA_405B = ModelShape("llama-3.1-405b", 405_853 * _M, 126, 16384, 8, 128)

_SHAPES = (
    ModelShape("smollm2-135m", 135 * _M, 30, 576, 3, 64),
    ModelShape("qwen2.5-0.5b", 494 * _M, 24, 896, 2, 64),
    ModelShape("llama-3.2-1b", 1_236 * _M, 16, 2048, 8, 64),
    ModelShape("smollm2-1.7b", 1_711 * _M, 24, 2048, 32, 64),
    ModelShape("qwen2.5-7b", 7_616 * _M, 28, 3584, 4, 128),
    _LLAMA_8B,
    _fp8(_LLAMA_8B),
    ModelShape("deepseek-v2-lite", 15_706 * _M, 27, 2048, 0, 0, 2, 2, 2_400 * _M, 512, 64),
    ModelShape("qwen3-30b-a3b", 30_532 * _M, 48, 2048, 4, 128, active_params=3_300 * _M),
    ModelShape("qwen2.5-32b", 32_764 * _M, 64, 5120, 8, 128),
    ModelShape("mixtral-8x7b", 46_703 * _M, 32, 4096, 8, 128, active_params=12_900 * _M),
    _LLAMA_70B,
    _fp8(_LLAMA_70B),
    _LLAMA_405B,
    _fp8(_LLAMA_405B),
    ModelShape("deepseek-v3-fp8", 671 * _B, 61, 7168, 0, 0, 1, 1, 37 * _B, 512, 64),
)

MODELS: dict[str, ModelShape] = {shape.name: shape for shape in _SHAPES}
