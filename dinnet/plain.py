"""Text for terminals and files whose encoding lacks some of its characters."""

from __future__ import annotations

import codecs
from typing import Final

#: Name of the error handler that `str.encode` and text streams take.
PLAIN: Final = "dinnet.plain"

#: What is shown instead, each as wide as what it stands for: columns stay aligned.
_INSTEAD: Final = {
    "…": "~",
    **dict(zip("▁▂▃▄▅▆▇█", "_.-:=+*#", strict=True)),
    **dict.fromkeys("─━╌╸╺", "-"),
    **dict.fromkeys("│┃", "|"),
}
_BRAILLE: Final = range(0x2800, 0x2900)  # of spinners


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_instead, error.object[error.start : error.end])), error.end


def _instead(character: str) -> str:
    if ord(character) in _BRAILLE:
        return "*"
    return _INSTEAD.get(character) or character.encode("unicode_escape", "backslashreplace").decode()


codecs.register_error(PLAIN, _plain)
