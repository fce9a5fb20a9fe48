"""The last good intent on disk, for a start when the file is bad."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from dinnet.controller.intent import Intent, load_intent
from dinnet.errors import DinnetError
from dinnet.parts import new_file

_NAME: Final = "last-good-intent.yaml"


def save(folder: Path, intent: Path) -> None:
    """Keep a copy; an older one stays whole until the new one is.

    Raises:
        OSError: It cannot be written.
    """
    text = intent.read_bytes()
    target = folder / _NAME
    if target.is_file() and target.read_bytes() == text:
        return
    folder.mkdir(parents=True, exist_ok=True)
    descriptor, part = new_file(target)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def load_or_last(path: Path, folder: Path | None) -> tuple[Intent, str]:
    """The intent, or the last good one where it is bad; and what is wrong with it.

    Raises:
        DinnetError: The file is bad, and there is no last good one.
    """
    try:
        return load_intent(path), ""
    except DinnetError as error:
        if folder is None or not (folder / _NAME).is_file():
            raise
        return load_intent(folder / _NAME, path.parent), str(error)
