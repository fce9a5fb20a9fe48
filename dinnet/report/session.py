"""One run of `dinnet classify pcap`: from the list of captures to everything that was asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from dinnet.errors import DinnetError, UsageError
from dinnet.report.digest import Digest, TopRows
from dinnet.report.engines import Finished, OnProgress
from dinnet.report.output import Output, atomic_output, is_terminal, standard_output
from dinnet.report.pipeline import CaptureFacts, Checkpoint, Settings, ended
from dinnet.report.rows import Rows

Format = Literal["table", "json", "ndjson", "csv", "parquet"]
Items = Generator[Rows | Finished]

FORMATS: Final = ("table", "json", "ndjson", "csv", "parquet")
_BY_SUFFIX: Final = {
    ".csv": "csv",
    ".json": "json",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".parquet": "parquet",
    ".pq": "parquet",
}
#: What tables can be sorted by, and whether the largest comes first.
SORT_KEYS: Final = {
    "bytes": True,
    "packets": True,
    "duration": True,
    "confidence": True,
    "first": False,
    "last": False,
    "class": False,
}
_TERMINAL_ROWS: Final = 40


@dataclass(frozen=True, slots=True)
class View:
    """What is shown of the rows, and where."""

    format: Format
    out: Path | None
    html: Path | None
    summary: bool
    sort: str | None
    top: int | None  # rows of a table; 0 = all, None = what suits the place it goes to


def choose_format(asked: str | None, out: Path | None) -> Format:
    """The format asked for, else the one that the output file's name says, else a table."""
    chosen = asked or (_BY_SUFFIX.get(out.suffix.lower(), "table") if out else "table")
    return chosen  # type: ignore[return-value]  # one of FORMATS: checked by the caller's option type


def check_view(view: View, files: Sequence[str] = ()) -> None:
    """Refuse what cannot be, before any work; `files` are the captures, which must not be written over.

    Raises:
        UsageError: With what to do instead.
    """
    if view.format == "parquet" and view.out is None and is_terminal(sys.stdout):
        raise UsageError("--format parquet is binary and is not written to a terminal; use --out FILE or redirect it")
    if view.format != "table" and (view.sort is not None or view.top is not None):
        raise UsageError(f"--sort and --top are for tables; --format {view.format} gives all flows as they end")
    for name, target in (("--out", view.out), ("--html", view.html)):
        if target is not None and any(_same_file(target, Path(file)) for file in files):
            raise UsageError(f"{name} {target}: is one of the captures; write to another file")
    if view.html is not None and view.out is not None and os.path.realpath(view.html) == os.path.realpath(view.out):
        raise UsageError(f"--html and --out name the same file, {view.out}; give two")


def _same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:  # one of them is not there: told by whoever opens it
        return False


def present(
    files: Sequence[str], items: Items, view: View, settings: Settings, notify: Callable[[str], None]
) -> list[CaptureFacts]:
    """Take all rows and write everything that `view` asks for; files appear only when all of it is done.

    Args:
        files: Names of the captures.
        items: Rows of each capture, followed by its `Finished`.
        view: What to write.
        settings: How the captures were read.
        notify: Called with each warning and each failed capture's error.

    Returns:
        The facts of every capture, in order.

    Raises:
        DinnetError: Output cannot be written, or the only capture there is has failed.
    """
    digest = Digest(plots=view.html is not None) if view.summary or view.html else None
    captures: list[CaptureFacts] = []
    with ExitStack() as stack:
        page = stack.enter_context(atomic_output(view.html)) if view.html else None
        output = stack.enter_context(atomic_output(view.out) if view.out else standard_output())
        stack.enter_context(closing(items))
        # Made late: a run that fails at once writes nothing, not even a heading.
        writer: _Programs | _Table | _Lines | None = None
        for item in items:
            if isinstance(item, Finished):
                _take_facts(item.facts, captures, notify, only=len(files) == 1)
                continue
            writer = writer or _writer(output, files, view)
            writer.write(item)
            if digest:
                digest.add(ended(item, settings.checkpoint))
        if captures and all(fact.error and not fact.frames for fact in captures):
            raise DinnetError(f"none of the {len(captures)} captures could be read; the reasons stand above")
        if page and digest:
            from dinnet.report.html import html_report

            page.write(html_report(digest, captures).encode())
        writer = writer or _writer(output, files, view)
        writer.finish(captures, digest if view.summary else None)
    return captures


def _take_facts(
    facts: CaptureFacts, captures: list[CaptureFacts], notify: Callable[[str], None], *, only: bool
) -> None:
    captures.append(facts)
    for warning in facts.warnings:
        notify(f"warning: {warning}")
    if facts.error is None:
        return
    if only and not facts.rows:
        raise DinnetError(facts.error)
    notify(f"error: {facts.error}")


class _Programs:
    """Writes a format for programs; the summary goes into the document, else to standard error."""

    def __init__(self, output: Output, files: Sequence[str], view: View) -> None:
        from dinnet.report.sinks import SINKS

        self._sink = SINKS[view.format](output, files)
        self._inside = view.format == "json"

    def write(self, rows: Rows) -> None:
        self._sink.write(rows)

    def finish(self, captures: Sequence[CaptureFacts], digest: Digest | None) -> None:
        self._sink.finish([fact.as_dict() for fact in captures], digest.as_dict() if digest else None)
        if digest and not self._inside:
            from rich.console import Console

            from dinnet.report.table import summary_panel

            Console(stderr=True).print(summary_panel(digest, captures))


class _Table:
    """The sorted table of the largest flows, and the summary below it."""

    def __init__(self, output: Output, files: Sequence[str], view: View) -> None:
        self._output = output
        self._files = files
        self._order = view.sort or "bytes"
        count = _TERMINAL_ROWS if view.top is None else view.top
        if view.top is None and not _on_terminal(view):
            count = 0
        self._top = TopRows(count, self._order, SORT_KEYS[self._order])
        self._view = view

    def write(self, rows: Rows) -> None:
        self._top.add(rows)

    def finish(self, captures: Sequence[CaptureFacts], digest: Digest | None) -> None:
        from dinnet.report.table import flow_table, rendered, summary_panel

        console = _console(self._view)
        rows = self._top.rows()
        parts = [flow_table(rows, self._files, console.width, self._top.seen, order=self._order)] if len(rows) else []
        text = rendered(console, *parts, *([summary_panel(digest, captures)] if digest else []))
        self._output.write_text(text or "no flows\n")


class _Lines:
    """Every flow as an aligned line, as it ends: what a table is in a pipe or a file."""

    def __init__(self, output: Output, files: Sequence[str], view: View) -> None:
        from dinnet.report.table import plain_heading

        self._output = output
        self._files = files
        self._view = view
        output.write_text(plain_heading())

    def write(self, rows: Rows) -> None:
        from dinnet.report.table import plain_lines

        self._output.write_text(plain_lines(rows, self._files))

    def finish(self, captures: Sequence[CaptureFacts], digest: Digest | None) -> None:
        if digest:
            from dinnet.report.table import rendered, summary_panel

            self._output.write_text(rendered(_console(self._view), summary_panel(digest, captures)))


def _writer(output: Output, files: Sequence[str], view: View) -> _Programs | _Table | _Lines:
    if view.format != "table":
        return _Programs(output, files, view)
    if _on_terminal(view) or view.sort is not None or view.top is not None:
        return _Table(output, files, view)
    return _Lines(output, files, view)


def _on_terminal(view: View) -> bool:
    return view.out is None and is_terminal(sys.stdout)


def _console(view: View) -> Any:
    from rich.console import Console

    if _on_terminal(view):
        return Console()
    return Console(force_terminal=False, color_system=None, width=200)


def exit_code(captures: Iterable[CaptureFacts]) -> int:
    """0 when every capture was read, 1 when one was not."""
    return int(any(fact.error for fact in captures))


def run_engine(
    files: Sequence[str], settings: Settings, *, engine: str, workers: int | None, on_progress: OnProgress | None
) -> Items:
    """The rows of all captures, by the engine asked for.

    Raises:
        DinnetError: The model or the engine is not there.
    """
    from dinnet.report.engines import classify_by_processes, classify_in_turn
    from dinnet.report.pipeline import load_judge

    if engine == "ray":
        from dinnet.report.engine_ray import classify_by_ray

        return classify_by_ray(files, settings, workers)
    count = min(workers or 1, len(files))
    if count > 1:
        return classify_by_processes(files, settings, count, on_progress)
    return classify_in_turn(files, settings, load_judge(settings), on_progress)


__all__ = ["FORMATS", "SORT_KEYS", "Checkpoint", "Format", "View", "check_view", "choose_format", "exit_code"]
