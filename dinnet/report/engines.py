"""Several captures at once: by processes of this machine, with rows in the order of the captures."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from dinnet.errors import DinnetError, reason
from dinnet.parts import new_folder
from dinnet.report.pipeline import CaptureFacts, Judge, Progress, Settings, classify_capture, load_judge
from dinnet.report.rows import ROW_DTYPE, Rows

#: Rows read back from a spool file at once.
_SPOOL_ROWS: Final = 1 << 14
_POLL_S: Final = 0.2

OnProgress = Callable[[int, Progress], None]


@dataclass(frozen=True)
class Finished:
    """Comes after the rows of each capture."""

    facts: CaptureFacts


def classify_in_turn(
    files: Sequence[str], settings: Settings, judge: Judge, on_progress: OnProgress | None = None
) -> Generator[Rows | Finished]:
    """Yield the rows of each capture and then its `Finished`, one capture after the other.

    A capture that cannot be read has its `facts.error` set; the others go on.
    """
    for index, name in enumerate(files):
        facts = CaptureFacts(name)
        report = None if on_progress is None else _bound(on_progress, index)
        try:
            yield from classify_capture(name, settings, judge, facts, file=index, on_progress=report)
        except DinnetError as error:
            facts.error = str(error)
        yield Finished(facts)


def _bound(on_progress: OnProgress, index: int) -> Callable[[Progress], None]:
    return lambda progress: on_progress(index, progress)


def classify_by_processes(
    files: Sequence[str], settings: Settings, workers: int, on_progress: OnProgress | None = None
) -> Generator[Rows | Finished]:
    """The same as `classify_in_turn`, `workers` captures at a time.

    A worker puts its rows into a file of its own in the temporary folder, so that neither side holds them.

    Raises:
        DinnetError: The model cannot be loaded, or a worker was killed.
    """
    # Not fork: the compiled code of this process may have started threads.
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    board = context.Array("q", 4 * len(files), lock=False)
    with new_folder(Path(tempfile.gettempdir(), "dinnet-rows")) as folder:
        pool = ProcessPoolExecutor(workers, context, _start_worker, (settings, folder, stop, board))
        try:
            waiting = [pool.submit(_work, index, name) for index, name in enumerate(files)]
            for index, future in enumerate(waiting):
                facts = _result(future, board, on_progress)
                spool = folder / str(index)
                yield from _read_spool(spool)
                spool.unlink()
                yield Finished(facts)
        except BrokenProcessPool as error:
            raise DinnetError(
                "a worker process was killed (out of memory?); use fewer workers, with --workers"
            ) from error
        finally:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)


def _result(future: Future[CaptureFacts], board: Any, on_progress: OnProgress | None) -> CaptureFacts:
    while not wait([future], timeout=_POLL_S).done:
        if on_progress is None:
            continue
        for index in range(len(board) // 4):
            position, size, frames, frame_bytes = board[4 * index : 4 * index + 4]
            if frames:
                on_progress(index, Progress(position, size if size >= 0 else None, frames, frame_bytes))
    return future.result()


def _read_spool(path: Path) -> Iterator[Rows]:
    with path.open("rb") as spool:
        while data := spool.read(_SPOOL_ROWS * ROW_DTYPE.itemsize):
            yield np.frombuffer(data, ROW_DTYPE)


class _Worker:
    """What a worker process keeps between captures."""

    settings: Settings
    folder: Path
    stop: Any
    board: Any
    judge: Judge | None = None


class _Stopped(Exception):
    """The parent wants no more."""


def _start_worker(settings: Settings, folder: Path, stop: Any, board: Any) -> None:
    # The parent hears Ctrl-C and tells; a worker that died of it would print a traceback.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _Worker.settings, _Worker.folder, _Worker.stop, _Worker.board = settings, folder, stop, board


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(index: int, name: str) -> CaptureFacts:
    if _Worker.judge is None:
        _Worker.judge = load_judge(_Worker.settings)
    facts = CaptureFacts(name)
    with (_Worker.folder / str(index)).open("wb") as spool:
        try:
            for rows in classify_capture(
                name, _Worker.settings, _Worker.judge, facts, file=index, on_progress=_bound(_post, index)
            ):
                spool.write(rows.data)
        except DinnetError as error:
            facts.error = str(error)
        except OSError as error:
            raise DinnetError(f"{spool.name}: cannot write: {reason(error)}; set TMPDIR to a larger disk") from error
    return facts


def _post(index: int, progress: Progress) -> None:
    if _Worker.stop.is_set():
        raise _Stopped
    size = -1 if progress.size is None else progress.size
    _Worker.board[4 * index : 4 * index + 4] = [progress.position, size, progress.frames, progress.frame_bytes]
