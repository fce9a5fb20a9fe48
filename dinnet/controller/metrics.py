"""Prometheus metrics of the controller."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from dinnet.errors import DinnetError

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
except ImportError:
    raise DinnetError(
        "the controller needs prometheus-client, which is not installed: pip install 'dinnet[controller]'"
    ) from None

if TYPE_CHECKING:
    from dinnet.host.state import QueueCounters

_LATENCY_S: Final = (
    0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
)  # fmt: skip


class Metrics:
    """A registry of its own: several controllers may live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.classified = self._counter("dinnet_flows_classified", "Flow records by verdict", "switch", "class")
        self.latency = Histogram(
            "dinnet_mark_latency_seconds",
            "From a checkpoint's packet until the mark is in force",
            ["switch"],
            buckets=_LATENCY_S,
            registry=self.registry,
        )
        self.marks = self._gauge("dinnet_marks", "Micro-flows that have a mark", "switch")
        self.refused = self._counter("dinnet_marks_refused", "Entries that a switch did not take", "switch")
        self.lost = self._gauge("dinnet_digest_lists_dropped", "Digest lists that came faster than work", "switch")
        self.runs = self._counter("dinnet_reconcile_runs", "Comparisons of what is and what should be", "device")
        self.changes = self._counter("dinnet_reconcile_changes", "Changes made", "device")
        self.errors = self._counter("dinnet_reconcile_errors", "Rounds that failed", "device")
        self.up = self._gauge("dinnet_device_in_force", "1 where the last round ended as the intent wants it", "device")
        slice_labels = ("host", "link", "slice", "tc")
        self.slice_bytes = self._gauge("dinnet_slice_bytes", "Bytes that a queue has sent", *slice_labels)
        self.slice_drops = self._gauge("dinnet_slice_drops", "Packets that a queue has dropped", *slice_labels)
        self.slice_backlog = self._gauge("dinnet_slice_backlog_bytes", "Bytes that wait in a queue", *slice_labels)
        self.exceeded = self._counter(
            "dinnet_microflow_exceeded",
            "Packets above a token bucket, by what was done",
            "switch", "slice", "bucket", "action",
        )  # fmt: skip

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def queues(self, host: str, counters: Iterable[QueueCounters]) -> None:
        for each in counters:
            labels = (host, each.device, str(each.slice), str(each.tc))
            self.slice_bytes.labels(*labels).set(each.bytes)
            self.slice_drops.labels(*labels).set(each.drops)
            self.slice_backlog.labels(*labels).set(each.backlog_bytes)

    def text(self) -> bytes:
        """In the exposition format."""
        return generate_latest(self.registry)
