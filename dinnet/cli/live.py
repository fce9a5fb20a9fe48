"""`dinnet classify live`: the flows of an interface and their classes, as they happen."""

from __future__ import annotations

import queue
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final

import numpy as np
import typer

from dinnet.cli.options import finite
from dinnet.cli.streams import need_output, tell
from dinnet.errors import DinnetError
from dinnet.flows.record import RECORD_DTYPE

if TYPE_CHECKING:
    from dinnet.capture.live import LiveCapture
    from dinnet.cli.live_board import FlowBoard
    from dinnet.cli.live_view import Reading
    from dinnet.flows import FlowTable, Records
    from dinnet.report.rows import Rows

#: Seconds between two looks for flows that have become idle, and between two pictures.
_EXPIRE_S: Final = 0.25
_REFRESH_S: Final = 1.0
_UNLIMITED_WIDTH: Final = 200
#: Chunks of records that may wait to be classified; then packets wait in the ring, which counts its drops.
_CHUNKS_WAITING: Final = 64
_RECORDS_AT_ONCE: Final = 4096
_NOTHING: Final = np.zeros(0, RECORD_DTYPE)


class Format(StrEnum):
    TABLE = "table"
    NDJSON = "ndjson"


class Checkpoint(StrEnum):
    FIRST = "first"
    LAST = "last"
    ALL = "all"


class TunnelSide(StrEnum):
    INNER = "inner"
    OUTER = "outer"


def live(
    interface: Annotated[str, typer.Argument(metavar="IFACE", help="Network interface to listen on.")],
    duration: Annotated[
        float | None, typer.Option(min=0.001, callback=finite, metavar="S", help="End after S seconds.")
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, metavar="N", help="End after N packets.")] = None,
    write: Annotated[
        Path | None,
        typer.Option(metavar="FILE.pcapng", dir_okay=False, help="Keep the packets in this file, replacing it."),
    ] = None,
    output_format: Annotated[
        Format,
        typer.Option(
            "--format", "-f", help="A rolling table for people, or one JSON object a line as flows end, for programs."
        ),
    ] = Format.TABLE,
    checkpoint: Annotated[
        Checkpoint,
        typer.Option(help="ndjson: a flow's row at its end, at its first checkpoint (4 packets), or at each of them."),
    ] = Checkpoint.LAST,
    min_confidence: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, callback=finite, help="A class with less confidence becomes unclassified."),
    ] = 0.0,
    netns: Annotated[
        str | None, typer.Option(metavar="NAME", help="Network namespace of the interface, a name or a path.")
    ] = None,
    snaplen: Annotated[int, typer.Option(min=64, max=262_144, help="Most bytes of a packet to keep.")] = 262_144,
    ring_mib: Annotated[int, typer.Option(min=2, max=4096, help="Memory for packets that wait, MiB.")] = 32,
    promiscuous: Annotated[bool, typer.Option(help="Also see what is sent to other hosts.")] = True,
    tunnel: Annotated[TunnelSide, typer.Option(help="Which IP packet of a tunnelled one counts.")] = TunnelSide.INNER,
    idle_timeout: Annotated[
        float, typer.Option(callback=finite, metavar="S", help="A flow ends after S quiet seconds.")
    ] = 120.0,
    active_timeout: Annotated[
        float,
        typer.Option(callback=finite, metavar="S", help="A flow that lasts longer than S seconds gets a new row."),
    ] = 1800.0,
    join_vlans: Annotated[bool, typer.Option("--join-vlans", help="Leave VLAN IDs out of a flow's key.")] = False,
    split_flow_labels: Annotated[
        bool, typer.Option("--split-flow-labels", help="Put the IPv6 flow label into a flow's key.")
    ] = False,
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", file_okay=False, help="Model to classify with, instead of the one that came along."
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=1, max=128, help="Flows in the table at the end.")] = 20,
) -> None:
    """Classify the flows on IFACE as they happen, until Ctrl-C.

    Exit codes: 0 good, also when Ctrl-C or SIGTERM ended it; 1 the interface or the output failed; 2 wrong use.
    """
    from dinnet.capture.live import LiveCapture
    from dinnet.classifier import Classifier
    from dinnet.flows import FlowOptions, FlowTable

    need_output()
    # A table shows flows under way, so it needs every checkpoint, whatever is asked for programs.
    emit = Checkpoint.ALL if output_format is Format.TABLE else checkpoint
    options = FlowOptions(
        idle_timeout_s=idle_timeout,
        active_timeout_s=active_timeout,
        emit=emit.value,
        join_vlans=join_vlans,
        split_flow_labels=split_flow_labels,
    )
    table = FlowTable(options)
    classifier = Classifier.load(model)
    _load_kernels(classifier)
    with LiveCapture(
        interface,
        netns=netns,
        snaplen=snaplen,
        ring_bytes=ring_mib << 20,
        promiscuous=promiscuous,
        tunnel=tunnel.value,
        write=write,
    ) as capture:
        run = _Run(capture, table, classifier, min_confidence)
        with _ending_on_signals(capture):
            tell(f"dinnet: listening on {interface} ({', '.join(capture.stats.link_types)}); Ctrl-C ends it")
            if output_format is Format.NDJSON:
                _write_lines(run, duration, count)
            else:
                _show_table(run, duration, count, top)
    if capture.dropped:
        tell(f"dinnet: {capture.dropped} of {capture.received} packets were dropped: a larger --ring-mib may help")
    if run.failure:
        raise run.failure


def _load_kernels(classifier: Any) -> None:
    """Have all compiled code ready before the first packet, on a flow of one packet that nobody sees."""
    from dinnet.capture.packet import KIND_FLOW, PACKET_DTYPE
    from dinnet.flows import FlowTable
    from dinnet.report.rows import flow_rows

    packet = np.zeros(1, PACKET_DTYPE)
    packet["kind"] = KIND_FLOW
    table = FlowTable()
    table.update(packet)
    table.expire(0)
    for records in table.flush():
        flow_rows(records, classifier.classify(records))


@contextmanager
def _ending_on_signals(capture: LiveCapture) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM ends the capture in order; another Ctrl-C ends the program at once."""

    def end(number: int, _frame: FrameType | None) -> None:
        capture.stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Run:
    """Captures and counts in a thread of its own, so that classifying and drawing never hold up the ring."""

    def __init__(self, capture: LiveCapture, table: FlowTable, classifier: Any, min_confidence: float) -> None:
        self.capture = capture
        self.table = table
        self.failure: DinnetError | None = None
        self._classifier = classifier
        self._min_confidence = min_confidence
        self._records: queue.Queue[Records | BaseException | None] = queue.Queue(_CHUNKS_WAITING)
        self._given_up = threading.Event()

    def rows(self, duration: float | None, count: int | None) -> Generator[Rows | None]:
        """Yield rows as flows pass checkpoints and end, and None about once a second.

        A failure of the capture ends the rows; it is then in `failure`.
        """
        thread = threading.Thread(target=self._capture, args=(duration, count), name="capture", daemon=True)
        thread.start()
        try:
            yield from self._classified()
        finally:
            self._given_up.set()
            self.capture.stop()
            thread.join()

    def _classified(self) -> Iterator[Rows | None]:
        from dinnet.report.rows import flow_rows

        due = time.monotonic() + _REFRESH_S
        while True:
            try:
                item = self._records.get(timeout=max(0.0, due - time.monotonic()))
            except queue.Empty:
                item = _NOTHING
            if item is None:
                return
            if isinstance(item, DinnetError):
                self.failure = item
                return
            if isinstance(item, BaseException):
                raise item
            for start in range(0, len(item), _RECORDS_AT_ONCE):
                part = item[start : start + _RECORDS_AT_ONCE]
                yield flow_rows(part, self._classifier.classify(part), min_confidence=self._min_confidence)
            if time.monotonic() >= due:
                yield None
                due = time.monotonic() + _REFRESH_S

    def _capture(self, duration: float | None, count: int | None) -> None:
        outcome: BaseException | None = None
        try:
            expire_at = time.monotonic() + _EXPIRE_S
            for packets in self.capture.batches(tick_s=_EXPIRE_S, duration_s=duration, max_packets=count):
                self._hand_over(self.table.update(packets))
                if time.monotonic() >= expire_at:
                    self._hand_over(self.table.expire(self.capture.now_us))
                    expire_at = time.monotonic() + _EXPIRE_S
        except BaseException as error:  # noqa: BLE001 - handed to the main thread, which raises it
            outcome = error
        try:
            # Also after a failure: what was captured until then counts.
            for records in self.table.flush(self.capture.now_us):
                self._hand_over(records)
        except BaseException as error:  # noqa: BLE001 - as above
            outcome = outcome or error
        self._put(outcome)

    def _hand_over(self, records: Records) -> None:
        if len(records):
            self._put(records)

    def _put(self, item: Records | BaseException | None) -> None:
        while not self._given_up.is_set():
            try:
                self._records.put(item, timeout=0.1)
                return
            except queue.Full:
                continue


def _write_lines(run: _Run, duration: float | None, count: int | None) -> None:
    from dinnet.report.output import standard_output
    from dinnet.report.sinks import NdjsonSink

    with standard_output() as output, closing(run.rows(duration, count)) as batches:
        sink = NdjsonSink(output, [run.capture.interface])
        for rows in batches:
            if rows is not None:
                sink.write(rows)


def _show_table(run: _Run, duration: float | None, count: int | None, top: int) -> None:
    from rich.console import Console
    from rich.live import Live

    from dinnet.cli.live_board import FlowBoard
    from dinnet.cli.live_view import final_table, screen

    board = FlowBoard()
    # A file or a pipe has no width: leave room for every column.
    console = Console(width=None if sys.stdout.isatty() else _UNLIMITED_WIDTH)
    meter = _Meter(run)
    with ExitStack() as stack:
        picture = None
        if sys.stdout.isatty():
            picture = stack.enter_context(Live(console=console, auto_refresh=False, screen=True))
        for rows in stack.enter_context(closing(run.rows(duration, count))):
            if rows is not None:
                board.add(rows)
            elif picture:
                picture.update(screen(meter.tick(board), board, console.width, console.height), refresh=True)
    console.print(final_table(meter.total(), board, console.width, top))


class _Meter:
    """Rates between two looks at the capture's counters, and over all of it."""

    def __init__(self, run: _Run) -> None:
        self._run = run
        self._started = self._looked = time.monotonic()
        self._packets = self._bytes = 0

    def tick(self, board: FlowBoard) -> Reading:
        now = time.monotonic()
        seconds = now - self._looked
        self._looked = now
        board.tick(seconds)
        stats = self._run.capture.stats
        reading = self._reading(stats.frames - self._packets, stats.frame_bytes - self._bytes, seconds)
        self._packets, self._bytes = stats.frames, stats.frame_bytes
        return reading

    def total(self) -> Reading:
        stats = self._run.capture.stats
        return self._reading(stats.frames, stats.frame_bytes, time.monotonic() - self._started)

    def _reading(self, packets: int, size: int, seconds: float) -> Reading:
        from dinnet.cli.live_view import Reading

        stats = self._run.capture.stats
        return Reading(
            interface=self._run.capture.interface,
            seconds=time.monotonic() - self._started,
            packets=stats.frames,
            bytes=stats.frame_bytes,
            dropped=self._run.capture.dropped,
            live=self._run.table.live,
            packets_per_s=packets / max(seconds, 1e-3),
            bytes_per_s=size / max(seconds, 1e-3),
        )
