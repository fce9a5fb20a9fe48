"""Workloads that tell how long what they sent was on its way: all hosts of a testbed share one clock."""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass
from typing import Any, Final

from dinnet.testbed.workloads.base import LabelLog, Workload
from dinnet.testbed.workloads.kv import KvRawTcp
from dinnet.testbed.workloads.links import Link
from dinnet.testbed.workloads.session import Client, Job
from dinnet.testbed.workloads.tokens import RawTokens


@dataclass
class MeasureLog(LabelLog):
    """Labels, and measures between them."""

    def measure(self, name: str, seconds: float) -> None:
        self.out.write(json.dumps({"measure": name, "seconds": seconds}) + "\n")


def _note(log: LabelLog, name: str, since_ns: int) -> None:
    if isinstance(log, MeasureLog):
        log.measure(name, (time.monotonic_ns() - since_ns) / 1e9)


class MeasuredTokens(RawTokens):
    """Tokens from a decode node, each with the time when it was there. Measure `token`: from then to its arrival."""

    name = "measured/tokens"
    per_connection = (2, 5)

    async def event(self, link: Link, text: int) -> None:
        await link.send(at=time.monotonic_ns(), delta="t" * (text + self.frame_bytes))

    def arrived(self, client: Client, about: dict[str, Any]) -> None:
        _note(client.log, "token", about["at"])


class MeasuredHandOff(KvRawTcp):
    """A KV hand-off, sent when prefill is done. Measure `hand_off`: from then until the decode node has all of it."""

    name = "measured/hand-off"
    connections = (2, 4)

    async def hand_off(self, client: Client, link: Link, job: Job, rng: random.Random, ack_each: bool) -> None:
        sizes = self.pieces(job, rng)
        await asyncio.sleep(self.accelerator.prefill_s(self.model, job.request.new_tokens))
        start = time.monotonic_ns()
        about: dict[str, Any] = {"request": f"{rng.getrandbits(64):016x}", "pieces": len(sizes)}
        await link.push(**about)
        for number, size in enumerate(sizes):
            await link.push(size, piece=number)
        await link.ask(done=True, ack=True)
        _note(client.log, "hand_off", start)


MEASURED: Final[dict[str, type[Workload]]] = {kind.name: kind for kind in (MeasuredTokens, MeasuredHandOff)}
