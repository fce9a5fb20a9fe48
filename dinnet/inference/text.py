"""Tokens to text, piece by piece: no half characters, no half stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

_HALF: Final = "\ufffd"  # what a decoder gives for bytes that are no whole character yet


class TextStream:
    """The text of one answer while its tokens come in."""

    def __init__(self, tokenizer: Any, stop: Sequence[str] = ()) -> None:
        self._tokenizer, self._stop = tokenizer, [s for s in stop if s]
        self._tokens: list[int] = []
        self._begin = self._read = 0  # tokens before `_read` are text already; decoding starts at `_begin`
        self._waiting = ""  # text that may be the start of a stop string
        self.stopped = False

    def push(self, token: int) -> str:
        """The text that is certain after one more token."""
        if self.stopped:
            return ""
        self._tokens.append(token)
        before, whole = self._decode(self._begin, self._read), self._decode(self._begin, len(self._tokens))
        # A character of many bytes is spread over tokens: wait for the rest of it.
        if len(whole) <= len(before) or whole.endswith(_HALF):
            return ""
        self._begin, self._read = self._read, len(self._tokens)
        return self._certain(whole[len(before) :])

    def finish(self) -> str:
        """What is left when no more tokens come."""
        if self.stopped:
            return ""
        before, whole = self._decode(self._begin, self._read), self._decode(self._begin, len(self._tokens))
        self._read = self._begin = len(self._tokens)
        text = self._certain(whole[len(before) :])
        if self.stopped:
            return text
        text, self._waiting = text + self._waiting, ""
        return text

    def _decode(self, start: int, end: int) -> str:
        return str(self._tokenizer.decode(self._tokens[start:end], skip_special_tokens=True))

    def _certain(self, text: str) -> str:
        text = self._waiting + text
        found = [place for place in (text.find(stop) for stop in self._stop) if place >= 0]
        if found:
            self.stopped, self._waiting = True, ""
            return text[: min(found)]
        held = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._waiting = text[len(text) - held :]
        return text[: len(text) - held]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that `stop` starts with."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
