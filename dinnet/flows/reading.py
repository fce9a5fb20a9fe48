"""From a capture to flow records, with reading and counting in two threads."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from dinnet.capture import Capture, Tunnel, open_capture
from dinnet.capture.packet import Packets
from dinnet.flows.record import Records
from dinnet.flows.table import FlowOptions, FlowTable

#: Batches read ahead. A batch is still in use while the next ones are filled, so the reader keeps two more.
_AHEAD: Final = 3


def read_records(
    source: str | Path | BinaryIO, *, tunnel: Tunnel = "inner", options: FlowOptions | None = None
) -> Iterator[Records]:
    """Yield the flow records of a capture, RECORD_DTYPE (n,), as they are emitted.

    Raises:
        CaptureError: The capture cannot be read, or not further; records emitted until then were yielded.
    """
    with open_capture(source, tunnel=tunnel) as capture:
        yield from capture_records(capture, options)


def capture_records(capture: Capture, options: FlowOptions | None = None) -> Iterator[Records]:
    """Yield the flow records of an open capture; `capture.stats` and `.warnings` are whole at the end."""
    table = FlowTable(options)
    for packets in _read_ahead(capture):
        records = table.update(packets)
        if len(records):
            yield records
    yield from table.flush(capture.stats.last_us)


def _read_ahead(capture: Capture) -> Iterator[Packets]:
    """The capture's batches, read and parsed by a thread of their own.

    The compiled kernels hold no interpreter lock, so that the next batch is parsed while this one is counted.
    """
    batches: queue.Queue[Packets | BaseException | None] = queue.Queue(_AHEAD)
    stop = threading.Event()

    def put(item: Packets | BaseException | None) -> bool:
        while not stop.is_set():
            try:
                batches.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def read() -> None:
        try:
            for packets in capture.batches(keep=_AHEAD + 3):
                if not put(packets):
                    return
            put(None)
        except BaseException as error:  # noqa: BLE001 - handed to the consumer, which raises it
            put(error)

    thread = threading.Thread(target=read, name="capture reader", daemon=True)
    thread.start()
    try:
        while (item := batches.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()
        thread.join()
