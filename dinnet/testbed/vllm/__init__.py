"""Real vLLM on the testbed: prefill and decode servers in two namespaces, the KV cache handed over by NIXL on TCP."""

from __future__ import annotations

from dinnet.testbed.vllm.recording import ROUNDS, Round, record_vllm

__all__ = ["ROUNDS", "Round", "record_vllm"]
