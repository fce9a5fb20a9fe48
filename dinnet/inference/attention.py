"""Attention over the blocks of the KV cache, called by transformers' own attention modules."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.nn.functional import scaled_dot_product_attention

from dinnet.inference.kv import Step

NAME: Final = "dinnet_blocks"


def block_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: object,
    *,
    scaling: float,
    step: Step,
    sliding_window: int | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Attention of a step's tokens, each to its own request's tokens up to itself.

    `query` is [1, heads, tokens, head_dim]; the answer [1, tokens, heads, head_dim]. Keys and values are in the
    cache already.
    """
    store = step.pool.layer(module.layer_idx)
    if step.single:
        return _one_token_each(query, store, step, scaling, sliding_window), None
    parts = []
    offset = 0
    for piece in step.pieces:
        end = piece.start + piece.count
        kv = store.index_select(1, step.pool.slots(piece.key, 0, end)).transpose(1, 2).unsqueeze(1)
        mask = None
        causal = piece.start == 0 and piece.count > 1 and sliding_window is None
        if not causal and (piece.count > 1 or sliding_window is not None):
            mask = _visible(torch.arange(piece.start, end, device=query.device), end, sliding_window)
        parts.append(
            scaled_dot_product_attention(
                query[:, :, offset : offset + piece.count],
                kv[0],
                kv[1],
                attn_mask=mask,
                is_causal=causal,
                scale=scaling,
                enable_gqa=query.shape[1] != kv.shape[2],
            )
        )
        offset += piece.count
    return torch.cat(parts, dim=2).transpose(1, 2).contiguous(), None


def _one_token_each(
    query: torch.Tensor, store: torch.Tensor, step: Step, scaling: float, window: int | None
) -> torch.Tensor:
    batch, longest = step.padded.shape
    kv = store.index_select(1, step.padded.flatten())
    kv = kv.view(2, batch, longest, *store.shape[2:]).transpose(2, 3)  # [2, batch, kv heads, tokens, head_dim]
    # The heads of one group share keys: as rows of one query, the keys need not be repeated.
    grouped = query[0].transpose(0, 1).reshape(batch, store.shape[2], -1, query.shape[-1])
    places = torch.arange(longest, device=query.device)
    mask = places < step.lengths.unsqueeze(1)
    if window is not None:
        mask &= places >= step.lengths.unsqueeze(1) - window
    out = scaled_dot_product_attention(grouped, kv[0], kv[1], attn_mask=mask[:, None, None], scale=scaling)
    return out.reshape(1, batch, query.shape[1], query.shape[-1])


def _visible(places: torch.Tensor, end: int, window: int | None) -> torch.Tensor:
    others = torch.arange(end, device=places.device)
    mask = others <= places.unsqueeze(1)
    if window is not None:
        mask &= others > places.unsqueeze(1) - window
    return mask
