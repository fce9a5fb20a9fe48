"""Rows to text by compiled code: a million flows must not cost a minute of Python formatting.

A text format is a list of columns, each with the bytes that go before it. The kernel knows five kinds
of cell and nothing of CSV or JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dinnet.jit import compiled_as
from dinnet.report.rows import Rows

UNSIGNED: Final = 0
SIGNED: Final = 1
WORD: Final = 2  # index into the column's own word list
ADDRESS: Final = 3  # two cells: the halves of an address
FRACTION: Final = 4  # number of ten-thousandths

_MAX_BYTES: Final = {UNSIGNED: 20, SIGNED: 20, ADDRESS: 39, FRACTION: 22}
_CHUNK_ROWS: Final = 4096


@dataclass(frozen=True)
class TextColumn:
    """One column: the row fields it is made from, how it is written and what is written before it."""

    prefix: bytes
    kind: int
    fields: tuple[str, ...]
    words: tuple[bytes, ...] = ()
    shift: int = 0  # added to the field before it is used as an index into `words`


class TextRenderer:
    """Writes rows one after the other: every column's prefix and cell, then `suffix`."""

    def __init__(self, columns: Sequence[TextColumn], suffix: bytes) -> None:
        self._columns = tuple(columns)
        self._kinds = np.array([column.kind for column in columns], np.int64)
        literals = [column.prefix for column in columns] + [suffix]
        self._literals, self._literal_at = _pack(literals)
        words = [word for column in columns for word in column.words]
        self._words, self._word_at = _pack(words)
        firsts = np.cumsum([0] + [len(column.words) for column in columns])
        self._first_word = firsts[:-1].astype(np.int64)
        self._row_bytes = sum(map(len, literals)) + sum(
            max(map(len, column.words)) if column.kind == WORD else _MAX_BYTES[column.kind] for column in columns
        )
        self._out = np.empty(self._row_bytes * _CHUNK_ROWS, np.uint8)

    def render(self, rows: Rows) -> Iterator[memoryview]:
        """Yield the text of `rows` in pieces; a piece is valid until the next one is asked for."""
        for start in range(0, len(rows), _CHUNK_ROWS):
            part = rows[start : start + _CHUNK_ROWS]
            length = _render(
                self._cells(part),
                self._kinds,
                self._literals,
                self._literal_at,
                self._words,
                self._word_at,
                self._first_word,
                self._out,
            )
            yield self._out[:length].data

    def _cells(self, rows: Rows) -> NDArray[np.uint64]:
        """One unsigned cell for each field, shape (n, fields)."""
        width = sum(len(column.fields) for column in self._columns)
        cells = np.empty((len(rows), width), np.uint64)
        at = 0
        for column in self._columns:
            for name in column.fields:
                values = rows[name]
                if column.kind == FRACTION:
                    cells[:, at] = ten_thousandths(values)
                elif column.kind in (WORD, SIGNED):
                    cells[:, at] = (values.astype(np.int64) + column.shift).view(np.uint64)
                else:
                    cells[:, at] = values
                at += 1
        return cells


def ten_thousandths(values: NDArray[np.float32]) -> NDArray[np.uint64]:
    """A fraction, 0 to 1, as a whole number of ten-thousandths; all ones for NaN."""
    missing = np.isnan(values)
    scaled = np.rint(np.where(missing, 0.0, values.astype(np.float64)) * 10_000)
    return np.where(missing, np.uint64(2**64 - 1), scaled.astype(np.uint64))


def address_strings(hi: NDArray[np.uint64], lo: NDArray[np.uint64]) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """The usual text of addresses: all bytes one after the other, and n + 1 offsets into them."""
    out = np.empty(39 * len(hi), np.uint8)
    offsets = np.empty(len(hi) + 1, np.int32)
    length = _addresses(np.ascontiguousarray(hi), np.ascontiguousarray(lo), out, offsets)
    return out[:length], offsets


def _pack(parts: Sequence[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    data = np.frombuffer(b"".join(parts) or b"\0", np.uint8).copy()
    return data, np.cumsum([0] + [len(part) for part in parts]).astype(np.int64)


@compiled_as("i8(u8, u1[::1], i8)")
def _put_unsigned(value, out, at):  # type: ignore[no-untyped-def]
    length = 1
    rest = value // np.uint64(10)
    while rest:
        length += 1
        rest //= np.uint64(10)
    for place in range(at + length - 1, at - 1, -1):
        rest = value // np.uint64(10)
        out[place] = 48 + value - rest * np.uint64(10)
        value = rest
    return at + length


@compiled_as("i8(u8, u1[::1], i8)")
def _put_group(value, out, at):  # type: ignore[no-untyped-def]
    started = False
    for shift in (12, 8, 4, 0):
        digit = (value >> np.uint64(shift)) & np.uint64(15)
        if digit or started or shift == 0:
            started = True
            out[at] = digit + np.uint64(48 if digit < 10 else 87)
            at += 1
    return at


@compiled_as("i8(u8, u8, u1[::1], i8)")
def _put_address(hi, lo, out, at):  # type: ignore[no-untyped-def]
    if hi == 0 and lo >> np.uint64(32) == np.uint64(0xFFFF):
        for shift in (24, 16, 8, 0):
            at = _put_unsigned((lo >> np.uint64(shift)) & np.uint64(255), out, at)
            if shift:
                out[at] = 46
                at += 1
        return at
    # RFC 5952 section 4.2: the first of the longest runs of two or more zero groups becomes "::".
    groups = np.empty(8, np.uint64)
    for index in range(8):
        half = hi if index < 4 else lo
        groups[index] = (half >> np.uint64(48 - 16 * (index % 4))) & np.uint64(0xFFFF)
    best, best_length, run = 0, 1, 0
    for index in range(8):
        run = run + 1 if groups[index] == 0 else 0
        if run > best_length:
            best, best_length = index - run + 1, run
    if best_length == 1:
        best = 8
    index = 0
    while index < 8:
        if index == best:
            out[at] = 58
            out[at + 1] = 58
            at += 2
            index += best_length
            continue
        if index and index != best + best_length:
            out[at] = 58
            at += 1
        at = _put_group(groups[index], out, at)
        index += 1
    return at


@compiled_as("i8(u8[::1], u8[::1], u1[::1], i4[::1])")
def _addresses(hi, lo, out, offsets):  # type: ignore[no-untyped-def]
    at = 0
    offsets[0] = 0
    for index in range(len(hi)):
        at = _put_address(hi[index], lo[index], out, at)
        offsets[index + 1] = at
    return at


@compiled_as("i8(u8[:, ::1], i8[::1], u1[::1], i8[::1], u1[::1], i8[::1], i8[::1], u1[::1])")
def _render(cells, kinds, literals, literal_at, words, word_at, first_word, out):  # type: ignore[no-untyped-def]
    at = 0
    columns = len(kinds)
    for row in range(len(cells)):
        cell = 0
        for column in range(columns + 1):
            for place in range(literal_at[column], literal_at[column + 1]):
                out[at] = literals[place]
                at += 1
            if column == columns:
                break
            kind = kinds[column]
            value = cells[row, cell]
            if kind == UNSIGNED:
                at = _put_unsigned(value, out, at)
            elif kind == WORD:
                word = first_word[column] + np.int64(value)
                for place in range(word_at[word], word_at[word + 1]):
                    out[at] = words[place]
                    at += 1
            elif kind == ADDRESS:
                cell += 1
                at = _put_address(value, cells[row, cell], out, at)
            elif kind == SIGNED:
                signed = np.int64(value)
                if signed < 0:
                    out[at] = 45
                    at += 1
                    value = np.uint64(0) - value
                at = _put_unsigned(value, out, at)
            elif value == np.uint64(2**64 - 1):
                word = first_word[column]
                for place in range(word_at[word], word_at[word + 1]):
                    out[at] = words[place]
                    at += 1
            else:
                at = _put_unsigned(value // np.uint64(10_000), out, at)
                out[at] = 46
                for digit in range(4, 0, -1):
                    out[at + digit] = 48 + value % np.uint64(10)
                    value //= np.uint64(10)
                at += 5
            cell += 1
    return at
