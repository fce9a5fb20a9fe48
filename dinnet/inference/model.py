"""One stage of a model: the layers that a worker owns, built from transformers' own modules."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from transformers import AttentionInterface, AutoConfig

from dinnet.errors import DinnetError
from dinnet.inference import attention
from dinnet.inference.kv import KvPool, KvShape, Piece, Step
from dinnet.inference.layers import LayerRange
from dinnet.inference.weights import Weights, model_hash

AttentionInterface.register(attention.NAME, attention.block_attention)

DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
#: Family -> the prefix of its classes in transformers.
_FAMILIES: Final = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}

#: Called after each layer with its number and the step.
AfterLayer = Callable[[int, Step], None]


class Stage:
    """Some layers of a causal language model, with the embedding if they are the first and the head if the last."""

    def __init__(self, folder: Path, layers: LayerRange | None, dtype: str, device: str) -> None:
        """Load a stage; `layers` None means all of them.

        Raises:
            DinnetError: The model or a part of it is missing, damaged or of an unknown kind.
        """
        if dtype not in DTYPES:
            raise DinnetError(f"dtype {dtype} is none of {', '.join(DTYPES)}")
        try:
            self.config: Any = AutoConfig.from_pretrained(folder)
        except (OSError, ValueError, KeyError) as error:
            raise DinnetError(f"{folder}: config.json: {' '.join(str(error).split())}") from error
        family = _FAMILIES.get(self.config.model_type)
        if family is None:
            raise DinnetError(f"{folder}: model type {self.config.model_type} is none of {', '.join(_FAMILIES)}")
        self.total = int(self.config.num_hidden_layers)
        self.layers = layers or LayerRange(0, self.total - 1)
        if self.layers.last >= self.total:
            raise DinnetError(f"{folder}: layers {self.layers}: the model has the layers 0-{self.total - 1}")
        self.config._attn_implementation = attention.NAME
        self.dtype, self.dtype_name, self.device = DTYPES[dtype], dtype, device
        self.hash = model_hash(folder)
        self.first, self.last = self.layers.first == 0, self.layers.last == self.total - 1
        self._build(
            importlib.import_module(f"transformers.models.{self.config.model_type}.modeling_{self.config.model_type}"),
            family,
        )
        self._load(Weights.open(folder))
        #: The name of transformers' cache argument; releases before 5.2x call it past_key_values.
        parameters = inspect.signature(inspect.unwrap(type(self._blocks[0]).forward)).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"

    def _build(self, source: Any, family: str) -> None:
        config = self.config
        with torch.device("meta"):
            self._blocks: list[nn.Module] = [
                getattr(source, f"{family}DecoderLayer")(config, layer)
                for layer in range(self.layers.first, self.layers.last + 1)
            ]
            self._embed = nn.Embedding(config.vocab_size, config.hidden_size) if self.first else None
            self._norm = (
                getattr(source, f"{family}RMSNorm")(config.hidden_size, config.rms_norm_eps) if self.last else None
            )
            self._head = nn.Linear(config.hidden_size, config.vocab_size, bias=False) if self.last else None
        # Its tables are computed, not loaded.
        self._rotary = getattr(source, f"{family}RotaryEmbedding")(config).to(self.device)

    def _load(self, weights: Weights) -> None:
        parts: dict[str, nn.Module] = {
            f"model.layers.{layer}": block for layer, block in enumerate(self._blocks, self.layers.first)
        }
        if self._embed is not None:
            parts["model.embed_tokens"] = self._embed
        if self._norm is not None and self._head is not None:
            parts["model.norm"] = self._norm
            tied = self.config.tie_word_embeddings or "lm_head.weight" not in weights.files
            parts["lm_head"] = self._head
        for prefix, module in parts.items():
            module.eval()
            source = "model.embed_tokens" if prefix == "lm_head" and tied else prefix
            if prefix == "lm_head" and tied and self._embed is not None:
                module.weight = self._embed.weight
                continue
            names = {f"{source}.{name}": name for name in module.state_dict()}
            loaded = weights.read(names, self.dtype, self.device)
            expected = {name: tensor.shape for name, tensor in module.state_dict().items()}
            for full, name in names.items():
                if loaded[full].shape != expected[name]:
                    raise DinnetError(
                        f"{weights.folder}: tensor {full} is {tuple(loaded[full].shape)}, "
                        f"where config.json tells {tuple(expected[name])}"
                    )
            module.load_state_dict({names[full]: tensor for full, tensor in loaded.items()}, assign=True)
            module.requires_grad_(False)

    def kv_shape(self, block_size: int) -> KvShape:
        """What this model keeps of each token."""
        config = self.config
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return KvShape(config.num_key_value_heads, head_dim, self.dtype, block_size)

    def weight_bytes(self) -> int:
        """Memory that the stage's weights take; a shared embedding counts once."""
        parts = [*self._blocks, self._embed, self._norm, self._head]
        tensors = {id(p): p for part in parts if part is not None for p in part.parameters()}
        return sum(p.numel() * p.itemsize for p in tensors.values())

    @torch.inference_mode()
    def run(
        self, pool: KvPool, pieces: list[Piece], given: torch.Tensor, after_layer: AfterLayer | None = None
    ) -> torch.Tensor:
        """Compute a step.

        Args:
            pool: The cache, with blocks for every piece.
            pieces: What is computed; the rows of `given` follow their order.
            given: Token ids [tokens] for the first stage, else hidden states [tokens, hidden].
            after_layer: Called after each layer; its keys and values are in the cache by then.

        Returns:
            Hidden states [tokens, hidden]; from the last stage, logits [pieces, vocabulary] of each piece's last token.
        """
        step = Step(pool, pieces, self.device)
        given = given.to(self.device)
        hidden = self._embed(given).unsqueeze(0) if self._embed is not None else given.unsqueeze(0)
        rotary = self._rotary(hidden, step.positions)
        extra = {self._cache_name: step, "step": step}
        for layer, block in enumerate(self._blocks, self.layers.first):
            hidden = block(hidden, position_embeddings=rotary, position_ids=step.positions, **extra)
            if after_layer is not None:
                after_layer(layer, step)
        if self._norm is None or self._head is None:
            return hidden[0]
        ends = torch.tensor([piece.count for piece in pieces], device=self.device).cumsum(0) - 1
        logits: torch.Tensor = self._head(self._norm(hidden[0, ends]))
        return logits
