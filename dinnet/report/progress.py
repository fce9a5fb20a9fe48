"""The progress bar: on standard error, and only where a person looks at it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dinnet.errors import printable
from dinnet.report.engines import OnProgress
from dinnet.report.output import is_terminal
from dinnet.report.pipeline import Progress
from dinnet.report.units import human_bytes, human_count

if TYPE_CHECKING:
    from rich.progress import Task

#: The bar comes up only for work that takes longer than this; short work leaves the screen alone.
_PATIENCE_S: Final = 0.5


@contextmanager
def progress_bar(files: Sequence[str]) -> Iterator[tuple[Any, OnProgress | None]]:
    """Yield the console that messages go to while the bar is up, and the function to report progress to."""
    if not is_terminal(sys.stderr):
        yield None, None
        return
    from rich.console import Console
    from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            elapsed = task.elapsed or 0.0
            if elapsed <= 0:
                return Text("")
            frames, amount = task.fields["frames"], task.fields["frame_bytes"]
            return Text(f"{human_count(frames / elapsed)} packets/s  {human_bytes(amount / elapsed)}/s")

    console = Console(stderr=True)
    bar = Bar(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        Rate(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    sizes = [_size_of(name) for name in files]
    total = float(sum(size for size in sizes if size is not None)) if None not in sizes else None
    description = printable(files[0]) if len(files) == 1 else f"{len(files)} captures"
    task = bar.add_task(description, total=total, frames=0, frame_bytes=0)
    seen: dict[int, Progress] = {}
    started = time.monotonic()

    def report(index: int, progress: Progress) -> None:
        seen[index] = progress
        states = list(seen.values())
        bar.update(
            task,
            completed=sum(state.position for state in states),
            frames=sum(state.frames for state in states),
            frame_bytes=sum(state.frame_bytes for state in states),
        )
        if not bar.live.is_started and time.monotonic() - started > _PATIENCE_S:
            bar.start()

    try:
        yield console, report
    finally:
        bar.stop()


def _size_of(name: str) -> int | None:
    try:
        status = Path(name).stat()
    except OSError:
        return None
    return status.st_size if name != "-" else None
