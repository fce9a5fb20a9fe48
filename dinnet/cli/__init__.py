"""The `dinnet` command: one module per noun, each imported only when it is used."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import typer

from dinnet import __version__
from dinnet.cli.lazy import LazyGroup, Part
from dinnet.cli.streams import give_up_output, prepare_streams, tell
from dinnet.errors import DinnetError, reason

EXIT_INTERRUPTED = 128 + 2  # as a shell reports SIGINT
EXIT_BROKEN_PIPE = 128 + 13  # as a shell reports SIGPIPE

#: Click's class for wrong arguments; newer releases of Typer bring their own copy of it.
_TyperUsageError: Final[Any] = typer.BadParameter.__mro__[1]

_NOUNS: Final = {
    "demo": Part("dinnet.cli.demo", "app", "Record a short labelled capture, classify it, score the classes."),
    "classify": Part("dinnet.cli.classify", "app", "Tell the flows of LLM inference apart, from a capture or live."),
    "train": Part("dinnet.cli.train", "app", "Train a classifier on a corpus of labelled flow records."),
    "evaluate": Part("dinnet.cli.evaluate", "app", "Score a classifier on scenarios it has never seen."),
    "features": Part("dinnet.cli.features", "app", "Explain the features that the classifier looks at."),
    "controller": Part("dinnet.cli.controller", "app", "Keep switches and hosts as an intent file wants them."),
    "switch": Part("dinnet.cli.switch", "app", "Run and look at the embedded eBPF switch."),
    "inference": Part("dinnet.cli.inference", "app", "Prepare models for the inference backend."),
    "scheduler": Part("dinnet.cli.scheduler", "scheduler", "Plan inference requests onto workers, and serve HTTP."),
    "worker": Part("dinnet.cli.worker", "worker", "Serve a stage of a language model."),
    "host": Part("dinnet.cli.host", "app", "Give a host's links slices and queues, and look at them."),
    "macsec": Part("dinnet.cli.macsec", "app", "Encrypt links with MACsec, and rotate their keys."),
    "testbed": Part(
        "dinnet.cli.testbed", "app", "Run measured traffic on a testbed of namespaces, or record it with labels."
    ),
}


class _Nouns(LazyGroup):
    parts = _NOUNS

    def make_context(self, *args: Any, **extra: Any) -> Any:
        with _told_in_one_line():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        with _told_in_one_line():
            return super().invoke(ctx)


@contextmanager
def _told_in_one_line() -> Iterator[None]:
    """Turn every expected failure into one line on standard error and an exit code.

    Typer has handlers of its own around everything; ours must come first to give the exit codes of the design.
    """
    try:
        yield
    except DinnetError as error:
        tell(f"dinnet: error: {error}")
        raise typer.Exit(error.exit_code) from error
    except _TyperUsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help
            raise
        tell(f"dinnet: error: {_in_one_line(error)}")
        raise typer.Exit(error.exit_code) from error
    except KeyboardInterrupt as error:
        tell("dinnet: interrupted")
        raise typer.Exit(EXIT_INTERRUPTED) from error
    except BrokenPipeError as error:
        # The reader of our output (head, less) went away: not an error.
        give_up_output()
        raise typer.Exit(EXIT_BROKEN_PIPE) from error
    except OSError as error:
        # A full disk behind standard output, a folder that may not be entered: no fault of this program.
        what = f"{error.filename}: {reason(error)}" if error.filename else error.strerror or error
        tell(f"dinnet: error: {what}")
        give_up_output()
        raise typer.Exit(1) from error


def _in_one_line(error: Any) -> str:
    """What is wrong with the command's arguments, and where to read about the right ones."""
    what = " ".join(error.format_message().split()).rstrip(".")
    path = error.ctx.command_path if error.ctx else "dinnet"
    return f"{what}; see {path} --help"


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
    prepare_streams()
    try:
        return app(prog_name="dinnet")
    except KeyboardInterrupt:
        tell("dinnet: interrupted")
        sys.exit(EXIT_INTERRUPTED)


def din_scheduler() -> Any:
    """`din-scheduler`: `dinnet scheduler` by the name that the DIN documents use."""
    sys.argv.insert(1, "scheduler")
    return main()


def din_worker() -> Any:
    """`din-worker`: `dinnet worker` by the name that the DIN documents use."""
    sys.argv.insert(1, "worker")
    return main()
