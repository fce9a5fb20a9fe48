"""The `dinnet` command: one module per noun, each imported only when it is used."""

from __future__ import annotations

import os
import sys
from typing import Any, Final

import typer

from dinnet import __version__
from dinnet.cli.lazy import LazyGroup, Part
from dinnet.errors import DinnetError, printable

EXIT_INTERRUPTED = 128 + 2  # as a shell reports SIGINT
EXIT_BROKEN_PIPE = 128 + 13  # as a shell reports SIGPIPE

_NOUNS: Final = {
    "demo": Part("dinnet.cli.demo", "app", "Record a short labelled capture, classify it, score the classes."),
    "classify": Part("dinnet.cli.classify", "app", "Tell the flows of LLM inference apart, from a capture or live."),
    "train": Part("dinnet.cli.train", "app", "Train a classifier on a corpus of labelled flow records."),
    "evaluate": Part("dinnet.cli.evaluate", "app", "Score a classifier on scenarios it has never seen."),
    "features": Part("dinnet.cli.features", "app", "Explain the features that the classifier looks at."),
    "testbed": Part("dinnet.cli.testbed", "app", "Build a namespace testbed and record labelled captures on it."),
}


class _Nouns(LazyGroup):
    parts = _NOUNS

    def invoke(self, ctx: Any) -> Any:
        # Typer has handlers of its own around this call; ours must come first to give the exit codes of the design.
        try:
            return super().invoke(ctx)
        except DinnetError as error:
            typer.echo(f"dinnet: error: {printable(str(error))}", err=True)
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt as error:
            typer.echo("dinnet: interrupted", err=True)
            raise typer.Exit(EXIT_INTERRUPTED) from error
        except BrokenPipeError as error:
            # The reader of our output (head, less) went away: not an error. Keep the interpreter's
            # own flush at exit from complaining about it.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(EXIT_BROKEN_PIPE) from error
        except OSError as error:
            # A full disk behind standard output, a folder that may not be entered: no fault of this program.
            where = f": {error.filename}" if error.filename else ""
            typer.echo(f"dinnet: error: {printable(f'{error.strerror or error}{where}')}", err=True)
            raise typer.Exit(1) from error


app = typer.Typer(
    name="dinnet",
    cls=_Nouns,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dinnet {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=False)
def _root(
    version: bool = typer.Option(False, "--version", help="Print the version.", callback=_print_version, is_eager=True),
) -> None:
    """The network side of a distributed inference network: see LLM traffic, and treat it right."""


def main() -> Any:
    """Run the command line; every expected failure ends in one line on stderr and an exit code."""
    try:
        return app(prog_name="dinnet")
    except KeyboardInterrupt:
        typer.echo("dinnet: interrupted", err=True)
        sys.exit(EXIT_INTERRUPTED)
