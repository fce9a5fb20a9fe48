"""`dinnet train`: a classifier from labelled flow records."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Final

import typer

from dinnet.errors import DinnetError, UsageError, reason

_MOST_SEED: Final = 2**32 - 1  # as in the recipe

#: What the files of a model folder end in.
_MODEL_SUFFIXES: Final = frozenset({".json", ".md", ".npz", ".png", ".skops"})

app = typer.Typer(add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})


@app.command()
def train(
    corpus: Annotated[list[Path], typer.Argument(help="Corpus files (.npz), or folders of them.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the model.")] = Path("models/default"),
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="The recipe (YAML): what is held out, forests, weights.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Overrides the recipe's seed.", min=0, max=_MOST_SEED)
    ] = None,
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
    from dinnet.cli.streams import need_output, tell

    options = TrainOptions() if config is None else TrainOptions.read(config)
    if seed is not None:
        options = options.model_copy(update={"seed": seed})
    if not dry_run:
        _check_out(out)
    need_output()
    labelled = load_corpus(corpus)
    cores = min(jobs, os.cpu_count() or 1) or None  # more threads than cores gain nothing, and may not be had

    try:
        trained = train_model(labelled, options, jobs=cores, progress=tell)
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


def _check_out(out: Path) -> None:
    """Refuse a place that no model can be written to, before the hours of training instead of after them.

    Raises:
        UsageError: `out` is a file, or a folder of other things.
        DinnetError: A folder cannot be made there.
    """
    try:
        if out.is_dir():
            if any(out.iterdir()) and not (out / "model.json").exists():
                raise UsageError(f"{out}: holds other things than a model; name a new folder")
        elif os.path.lexists(out):
            raise UsageError(f"{out}: is no folder; name one for the model")
        around = next(folder for folder in out.absolute().parents if os.path.lexists(folder))
        Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=around)).rmdir()  # just as the model will be made
    except OSError as error:
        raise DinnetError(f"{out}: cannot write the model: {reason(error)}") from error


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
        if not all(file.suffix in _MODEL_SUFFIXES and file.is_file() for file in path.iterdir()):
            continue  # somebody else's, under a name like ours
        if path.name.endswith(".old") and not out.exists():
            path.rename(out)  # killed between taking the older model away and putting the new one there
        else:
            shutil.rmtree(path, ignore_errors=True)
