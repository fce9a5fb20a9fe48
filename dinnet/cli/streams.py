"""The three standard streams, whatever the caller left of them."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import Final

import typer

from dinnet.errors import DinnetError, printable
from dinnet.plain import PLAIN

#: How /dev/null is opened in place of a closed stream: what would use the stream all the same still fails.
_PLACEHOLDERS: Final = {0: os.O_WRONLY, 1: os.O_RDONLY, 2: os.O_WRONLY}


def prepare_streams() -> None:
    """Make it safe to open files and to print.

    The number of a closed stream is taken: else the next file that is opened would get it, and what is
    printed would end up in that file. Characters that a stream cannot encode are replaced.
    """
    for descriptor, mode in _PLACEHOLDERS.items():
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, mode)  # gets the lowest number that is free: this one
    if sys.stdout is None:
        sys.stdout = _Closed()
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 - a descriptor, for the whole run
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=PLAIN)


class _Closed(io.StringIO):
    """Standard output that the caller has closed."""

    def write(self, text: str, /) -> int:
        raise self._error()

    def fileno(self) -> int:
        raise self._error()

    def _error(self) -> DinnetError:
        return DinnetError("standard output is closed; leave it open, or redirect it to /dev/null")


def need_output() -> None:
    """Refuse a closed standard output before long work instead of after it.

    Raises:
        DinnetError: It is closed.
    """
    if isinstance(sys.stdout, _Closed):
        sys.stdout.fileno()


def show(text: str = "") -> None:
    """Print one line on standard output."""
    typer.echo(printable(text))


def tell(text: str) -> None:
    """Print one line on standard error, where that is possible: there is no other place to complain."""
    try:
        typer.echo(printable(text), err=True)
    except OSError:
        _give_up(2)


def give_up_output() -> None:
    """Drop what waits to be written to standard output: it cannot be, and Python would complain at its exit."""
    with suppress(OSError, DinnetError):
        _give_up(sys.stdout.fileno())


def _give_up(descriptor: int) -> None:
    with suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, descriptor)
        os.close(null)
