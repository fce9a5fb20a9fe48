"""A small made-up corpus: flows whose sums are drawn by group, with the record's own rules kept."""

from __future__ import annotations

import numpy as np

from dinnet.classifier.corpus import GROUPS, LabelledRecords
from dinnet.flows.record import CHECKPOINTS, RECORD_DTYPE, UNSET, End

#: Mean packet size, share of forward packets, mean gap in microseconds, for each group.
_SHAPES = {
    "prefill": (1300, 0.6, 40),
    "decode": (220, 0.4, 25_000),
    "control": (140, 0.5, 400_000),
    "data": (1450, 0.05, 60),
    "other": (600, 0.5, 9_000),
}
TRANSPORTS = tuple(f"{group}/way-{way}" for group in GROUPS for way in range(4))
MODELS = ("", "small-1b", "large-70b", "large-405b")


def _direction(record: np.void, side: str, packets: int, size: float, gap: float, rng: np.random.Generator) -> None:
    sizes = np.clip(rng.normal(size, size / 8, packets), 40, 1500).astype(np.uint64)
    gaps = rng.exponential(gap, max(packets - 1, 0)).astype(np.uint64)
    bursts = 1 + int(np.sum(gaps >= 2_000)) if packets else 0
    record[f"{side}_packets"] = packets
    record[f"{side}_bytes"] = sizes.sum()
    record[f"{side}_payload_bytes"] = (sizes - 40).sum()
    record[f"{side}_payload_packets"] = int(np.sum(sizes > 40))
    record[f"{side}_len_sumsq"] = (sizes**2).sum()
    record[f"{side}_len_min"] = sizes.min() if packets else 0
    record[f"{side}_len_max"] = sizes.max() if packets else 0
    record[f"{side}_iat_min_us"] = gaps.min() if len(gaps) else UNSET
    record[f"{side}_iat_max_us"] = gaps.max() if len(gaps) else 0
    record[f"{side}_iat_sum_us"] = gaps.sum()
    record[f"{side}_iat_sumsq_us"] = (gaps**2).sum()
    record[f"{side}_bursts"] = bursts
    record[f"{side}_gap_sum_us"] = gaps[gaps >= 2_000].sum()
    record[f"{side}_gap_sumsq_us"] = (gaps[gaps >= 2_000] ** 2).sum()
    record[f"{side}_burst_max_bytes"] = sizes.sum() // max(bursts, 1)
    record[f"{side}_window_sum"] = packets * 500
    record[f"{side}_window_min"] = 500
    record[f"{side}_ack"] = packets
    record[f"{side}_full_segments"] = int(np.sum(sizes >= 1280))


def make(seed: int, flows: int = 200, link: str = "1g-5ms", scenario: str = "made-up") -> LabelledRecords:
    """`flows` flows over all groups, transports and models, five or so records each."""
    rng = np.random.default_rng(seed)
    rows: list[np.ndarray] = []
    columns: dict[str, list[int]] = {
        name: [] for name in ("group", "flow", "streaming", "first_request", "large_model", "transport", "model")
    }
    for flow in range(flows):
        group = flow % len(GROUPS)
        way = int(rng.integers(4))
        model = int(rng.integers(1, len(MODELS))) if group < 4 else 0
        size, forward, gap = _SHAPES[GROUPS[group]]
        size *= 1 + 0.02 * way
        last = int(rng.integers(6, 200))
        stops = [n for n in CHECKPOINTS if n <= last] + [last]
        for index, packets in enumerate(stops):
            record = np.zeros(1, RECORD_DTYPE)
            end = index == len(stops) - 1
            n_forward = max(1, round(packets * forward))
            _direction(record[0], "fwd", n_forward, size, gap, rng)
            _direction(record[0], "rev", packets - n_forward, 1500 if group == 3 else 90, gap, rng)
            record["duration_us"] = max(record["fwd_iat_sum_us"][0], record["rev_iat_sum_us"][0])
            record["turns"] = packets // 3
            record["proto"] = 6
            record["end"] = End.FIN if end else End.LIVE
            record["checkpoint"] = index if end else index + 1
            record["first_us"] = flow * 1000
            rows.append(record)
            columns["group"].append(group)
            columns["flow"].append(flow)
            columns["streaming"].append(way % 2 if group == 1 else -1)
            columns["first_request"].append(way // 2 if group == 0 else -1)
            columns["large_model"].append(int(model > 1) if group < 2 else -1)
            columns["transport"].append(group * 4 + way)
            columns["model"].append(model)
    kinds = {"group": "u1", "flow": "u4", "transport": "u2", "model": "u2"}
    return LabelledRecords(
        records=np.concatenate(rows),
        manifest={
            "scenario": scenario,
            "link": {"name": link},
            "transports": list(TRANSPORTS),
            "models": list(MODELS),
            "seed": seed,
        },
        **{name: np.array(values, kinds.get(name, "i1")) for name, values in columns.items()},
    )
