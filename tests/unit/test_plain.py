"""What terminals and files get whose encoding lacks a character, and what is never sent to a terminal."""

from __future__ import annotations

import io
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dinnet.cli.streams import prepare_streams
from dinnet.errors import printable
from dinnet.plain import PLAIN

any_text = st.text(st.characters(exclude_categories=()))


def test_drawings_keep_their_width_and_other_characters_are_escaped() -> None:
    shown = "│▁█│─━ ⠋ é\udcff 漢".encode("ascii", PLAIN)
    assert shown == rb"|_#|-- * \xe9\udcff \u6f22"


@given(any_text)
def test_any_text_can_be_encoded(text: str) -> None:
    assert text.encode("ascii", PLAIN).isascii()
    assert text.encode("utf-8", PLAIN).decode() is not None


@given(any_text)
def test_printable_text_is_one_line_without_control_characters(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert len(shown.splitlines()) <= 1
    shown.encode()


def test_what_is_printable_already_stays() -> None:
    assert printable("rows é 漢 [1].pcap") == "rows é 漢 [1].pcap"


def test_the_handler_is_for_encoding_only() -> None:
    with pytest.raises(UnicodeDecodeError):
        b"\xff".decode("ascii", PLAIN)


def test_streams_of_any_encoding_take_any_text(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, "ascii", "strict")
    monkeypatch.setattr(sys, "stdout", stream)
    prepare_streams()
    stream.write("▁é\udcff")
    stream.flush()
    assert raw.getvalue() == rb"_\xe9\udcff"
