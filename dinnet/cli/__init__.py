"""The `dinnet` command: one module per noun, each imported only when it is used."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click
import typer
from typer.core import TyperGroup

from dinnet import __version__
from dinnet.errors import DinnetError

# noun -> (module, what it is for). The help page is printed from this table without importing the modules.
_NOUNS: dict[str, tuple[str, str]] = {
    "classify": ("dinnet.cli.classify", "Tell the flows of LLM inference apart, from a capture or live."),
    "train": ("dinnet.cli.train", "Train a classifier on a corpus of labelled flow records."),
    "evaluate": ("dinnet.cli.evaluate", "Score a classifier on scenarios it has never seen."),
    "features": ("dinnet.cli.features", "Explain the features that the classifier looks at."),
    "testbed": ("dinnet.cli.testbed", "Build a namespace testbed and record labelled captures on it."),
}


class _LazyGroup(TyperGroup):
    """Lists every noun, imports only the one that is run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_NOUNS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _NOUNS:
            return None
        module, help_text = _NOUNS[cmd_name]
        if ctx.resilient_parsing or cmd_name not in sys.argv:
            return click.Command(cmd_name, help=help_text, short_help=help_text)
        command = typer.main.get_command(importlib.import_module(module).app)
        command.name = cmd_name
        command.short_help = help_text
        return command


app = typer.Typer(
    name="dinnet",
    cls=_LazyGroup,
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
    except DinnetError as error:
        print(f"dinnet: error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("dinnet: interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output (head, less) went away: not an error. Keep the interpreter's
        # own flush at exit from complaining about it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
