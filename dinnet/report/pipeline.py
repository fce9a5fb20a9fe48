"""From one capture to rows: reader, flow table and classifier in a line, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from dinnet.errors import DinnetError
from dinnet.flows.record import RECORD_DTYPE, End, Records
from dinnet.report.rows import Rows, flow_rows

if TYPE_CHECKING:
    from dinnet.flows.table import FlowOptions

#: Records handed to the classifier at once: it is fastest on large blocks.
BLOCK_RECORDS: Final = 1 << 14

Checkpoint = Literal["first", "last", "all"]
Tunnel = Literal["inner", "outer"]


@dataclass(frozen=True, slots=True)
class Settings:
    """How captures are read and judged; small and picklable, so that a worker can be given it."""

    tunnel: Tunnel = "inner"
    idle_timeout_s: float = 120.0
    active_timeout_s: float = 1800.0
    checkpoint: Checkpoint = "last"
    join_vlans: bool = False
    split_flow_labels: bool = False
    model: str | None = None
    min_confidence: float = 0.0

    def flow_options(self) -> FlowOptions:
        from dinnet.flows.table import FlowOptions

        return FlowOptions(
            idle_timeout_s=self.idle_timeout_s,
            active_timeout_s=self.active_timeout_s,
            emit=self.checkpoint,
            join_vlans=self.join_vlans,
            split_flow_labels=self.split_flow_labels,
        )


@dataclass
class CaptureFacts:
    """What is known of one capture after it has been read."""

    name: str
    format: str = ""
    link_types: list[str] = field(default_factory=list)
    interfaces: int = 0
    frames: int = 0
    frame_bytes: int = 0
    flow_packets: int = 0
    not_ip: int = 0
    malformed: int = 0
    cut: bool = False
    first_us: int | None = None
    last_us: int | None = None
    flows: int = 0
    rows: int = 0
    warnings: list[str] = field(default_factory=list)
    error: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the reading of one capture is."""

    position: int  # bytes of the file
    size: int | None
    frames: int
    frame_bytes: int


class Judge(Protocol):
    """What classifies: `dinnet.classifier.Classifier`, or a stand-in."""

    def classify(self, records: Records) -> NDArray[np.void]: ...


class Watched:
    """A capture whose progress is told, and whose damage ends it instead of losing its live flows.

    Attributes:
        failure: What stopped the reading, to be raised once the flows until then are out.
    """

    def __init__(self, capture: Any, on_progress: Callable[[Progress], None] | None) -> None:
        self._capture = capture
        self._on_progress = on_progress
        self.stats = capture.stats
        self.failure: DinnetError | None = None

    def batches(self, keep: int = 1) -> Iterator[NDArray[np.void]]:
        stats = self.stats
        try:
            for packets in self._capture.batches(keep):
                if self._on_progress:
                    self._on_progress(
                        Progress(self._capture.position, self._capture.size, stats.frames, stats.frame_bytes)
                    )
                yield packets
        except DinnetError as error:
            self.failure = error


class Source(Protocol):
    """Opens a capture by its name: `dinnet.capture.open_capture`, or a stand-in."""

    def __call__(self, source: str, *, tunnel: Tunnel) -> AbstractContextManager[Any]: ...


class Meter(Protocol):
    """Flow records of an open capture: `dinnet.flows.reading.capture_records`, or a stand-in."""

    def __call__(self, capture: Any, options: Any, /) -> Iterator[Records]: ...


def load_judge(settings: Settings) -> Judge:
    """The classifier that `settings` names: the shipped one where they name none.

    Raises:
        DinnetError: The model is missing, or is not what its metadata says.
    """
    from dinnet.classifier import Classifier

    judge: Judge = Classifier.load(Path(settings.model) if settings.model else None)
    return judge


def classify_capture(
    source: str,
    settings: Settings,
    judge: Judge,
    facts: CaptureFacts,
    *,
    file: int = 0,
    on_progress: Callable[[Progress], None] | None = None,
    open_source: Source | None = None,
    meter: Meter | None = None,
) -> Iterator[Rows]:
    """Yield the rows of one capture in blocks; fill `facts` while doing so.

    Args:
        source: Path of a capture, or "-".
        settings: How to read and judge.
        judge: The classifier.
        facts: Filled in; complete when the iterator is exhausted or has raised.
        file: Index written into the rows.
        on_progress: Called after each batch of packets, from the thread that reads.
        open_source: Opens the capture; for tests.
        meter: Makes flow records of it; for tests.

    Raises:
        DinnetError: The file is no capture, or damaged; the rows before that place have been yielded.
    """
    opener, records_of = open_source or _open_capture(), meter or _capture_records()
    with opener(source, tunnel=settings.tunnel) as capture:
        watched = Watched(capture, on_progress)
        try:
            for block in regroup(records_of(watched, settings.flow_options()), BLOCK_RECORDS):
                facts.flows += len(block) if settings.checkpoint != "all" else int((block["end"] != End.LIVE).sum())
                facts.rows += len(block)
                verdicts = judge.classify(block)
                yield flow_rows(block, verdicts, min_confidence=settings.min_confidence, file=file)
        finally:
            _take_stats(facts, capture)
        if watched.failure:
            raise watched.failure


def _open_capture() -> Source:
    from dinnet.capture import open_capture
    from dinnet.report.interrupt import stream_or_path

    @contextmanager
    def opened(source: str, *, tunnel: Tunnel) -> Iterator[Any]:
        with ExitStack() as stack:
            stream: Any = stream_or_path(source)
            if not isinstance(stream, str):
                stack.callback(stream.close)
            yield stack.enter_context(open_capture(stream, tunnel=tunnel))

    return opened


def _capture_records() -> Meter:
    from dinnet.flows.reading import capture_records

    return capture_records


def _take_stats(facts: CaptureFacts, capture: Any) -> None:
    stats = capture.stats
    for name in ("format", "interfaces", "frames", "frame_bytes", "flow_packets", "not_ip", "malformed", "cut"):
        setattr(facts, name, getattr(stats, name))
    facts.link_types = list(stats.link_types)
    facts.first_us, facts.last_us = stats.first_us, stats.last_us
    facts.warnings = list(capture.warnings)


def regroup(blocks: Iterable[Records], size: int) -> Iterator[Records]:
    """Join small blocks and cut large ones, to `size` records each but the last; what is yielded is a copy."""
    waiting = np.empty(size, RECORD_DTYPE)
    filled = 0
    for block in blocks:
        taken = 0
        while taken < len(block):
            count = min(size - filled, len(block) - taken)
            waiting[filled : filled + count] = block[taken : taken + count]
            filled += count
            taken += count
            if filled == size:
                yield waiting
                waiting = np.empty(size, RECORD_DTYPE)
                filled = 0
    if filled:
        yield waiting[:filled]


def ended(rows: Rows, checkpoint: Checkpoint) -> Rows:
    """The rows that count in sums: with every checkpoint shown, only the last of each flow does."""
    if checkpoint != "all":
        return rows
    kept: Rows = rows[rows["end"] != End.LIVE]
    return kept
