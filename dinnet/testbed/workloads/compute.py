"""How long accelerators take: the pauses between messages that inference traffic shows."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from dinnet.testbed.models import ModelShape


@dataclass(frozen=True)
class Accelerator:
    """A set of devices large enough for a model, drawn at random."""

    flops: float  # that prefill reaches, operations per second
    memory_bps: float  # that decode reaches, bytes per second
    step_overhead_s: float  # of a decode step, whatever the model: kernels, sampling, scheduling
    jitter: float  # sigma of the log-normal factor on every pause

    @classmethod
    def draw(cls, rng: random.Random, model: ModelShape) -> Accelerator:
        """Devices from a CPU socket to the newest GPUs, as many as the weights need."""
        small = model.params < 4_000_000_000
        if small and rng.random() < 0.3:
            flops, memory, held = 1.5e12, 150e9, 256e9
        else:
            flops, memory, held = rng.choice(
                ((60e12, 0.5e12, 20e9), (120e12, 1.5e12, 60e9), (400e12, 2.5e12, 60e9), (800e12, 4e12, 120e9))
            )
        devices = 1 << math.ceil(math.log2(max(1.0, model.weight_bytes() / held)))
        return cls(
            flops * devices * rng.uniform(0.3, 0.6),
            memory * devices * rng.uniform(0.5, 0.8),
            math.exp(rng.uniform(math.log(0.003), math.log(0.02))),
            rng.uniform(0.03, 0.35),
        )

    def prefill_s(self, model: ModelShape, tokens: int) -> float:
        """Time for the prompt: two operations per active parameter and token; kept within 5 ms and 1.5 s."""
        operations = 2.0 * (model.active_params or model.params) * tokens
        return min(1.5, max(0.005, operations / self.flops))

    def step_s(self, model: ModelShape, batch: int = 1) -> float:
        """Time of one decode step: all active weights read once; kept within 5 ms and 150 ms."""
        experts = min(model.weight_bytes(), model.active_weight_bytes() * (1 + math.log2(max(1, batch))))
        return min(0.15, max(0.005, self.step_overhead_s + experts / self.memory_bps))

    def pause(self, rng: random.Random, mean_s: float) -> float:
        """One pause around `mean_s`; at times a long one, where another request's prefill comes between."""
        drawn = mean_s * rng.lognormvariate(0.0, self.jitter)
        return drawn + rng.uniform(0.03, 0.2) if rng.random() < 0.01 else drawn
