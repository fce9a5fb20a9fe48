"""`dinnet train`: a classifier from labelled flow records."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})


@app.command()
def train(
    corpus: Annotated[list[Path], typer.Argument(help="Corpus files (.npz), or folders of them.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the model.")] = Path("models/default"),
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="The recipe (YAML): what is held out, forests, weights.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Overrides the recipe's seed.", min=0)] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", help="Processor cores to use; 0: all.", min=0)] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Train and score, write nothing.")] = False,
) -> None:
    """Train a classifier on a corpus of labelled flow records.

    Whole scenarios are held out (transports, models, links), and the scores are those on them.
    """
    from dinnet.classifier.card import write_trained
    from dinnet.classifier.corpus import load_corpus
    from dinnet.classifier.train import TrainOptions
    from dinnet.classifier.train import train as train_model
    from dinnet.cli.evaluate import print_parts
    from dinnet.cli.streams import tell
    from dinnet.errors import DinnetError

    options = TrainOptions() if config is None else TrainOptions.read(config)
    if seed is not None:
        options = options.model_copy(update={"seed": seed})
    labelled = load_corpus(corpus)

    try:
        trained = train_model(labelled, options, jobs=jobs or None, progress=tell)
        if not dry_run:
            with _cleaned_up(out):
                write_trained(out, trained)
            tell(f"wrote {out}")
    except ImportError as error:
        raise DinnetError(f"training needs {error.name}: pip install 'dinnet[train]'") from error
    parts = dict(trained.scores["test"])
    if trained.scores["cross_validation"] is not None:
        parts["cross-validation"] = trained.scores["cross_validation"]
    print_parts(parts)


@contextmanager
def _cleaned_up(out: Path) -> Iterator[None]:
    """Remove what killed runs left beside the model folder `out`, and keep others from doing so during the block.

    Models are written into a folder `.NAME.XXXXXXXX` and swapped in. All that write one here share a lock on the
    folder around it, and nobody is at work where it can be had alone.
    """
    try:
        around = os.open(out.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:  # not there yet, so nothing was left there
        yield
        return
    try:
        with suppress(OSError):
            fcntl.flock(around, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_left(out)
        with suppress(OSError):
            fcntl.flock(around, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield
    finally:
        os.close(around)


def _remove_left(out: Path) -> None:
    left = re.compile(re.escape(f".{out.name}.") + r"[a-z0-9_]{8}(\.old)?")
    for path in sorted(out.parent.iterdir()):
        status = path.lstat()
        if not left.fullmatch(path.name) or status.st_uid != os.geteuid() or not stat.S_ISDIR(status.st_mode):
            continue
        if path.name.endswith(".old") and not out.exists():
            path.rename(out)  # killed between taking the older model away and putting the new one there
        else:
            shutil.rmtree(path, ignore_errors=True)
