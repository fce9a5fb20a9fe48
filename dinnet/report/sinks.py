"""Rows to csv, ndjson, json and parquet, in batches as they come: memory does not grow with the flows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np

from dinnet import __version__
from dinnet.errors import DinnetError
from dinnet.report.output import Output
from dinnet.report.render import (
    ADDRESS,
    FRACTION,
    SIGNED,
    UNSIGNED,
    WORD,
    TextColumn,
    TextRenderer,
    address_strings,
    ten_thousandths,
)
from dinnet.report.rows import CLASS_NAMES, END_NAMES, UNKNOWN, Rows

#: Output columns and the row fields they come from, in order. `file` is written where there are several captures.
COLUMNS: Final[Mapping[str, tuple[int, tuple[str, ...]]]] = {
    "src": (ADDRESS, ("src_hi", "src_lo")),
    "sport": (UNSIGNED, ("sport",)),
    "dst": (ADDRESS, ("dst_hi", "dst_lo")),
    "dport": (UNSIGNED, ("dport",)),
    "proto": (UNSIGNED, ("proto",)),
    "flow_label": (UNSIGNED, ("flow_label",)),
    "vlan": (UNSIGNED, ("vlan",)),
    "first_us": (SIGNED, ("first_us",)),
    "last_us": (SIGNED, ("last_us",)),
    "packets": (UNSIGNED, ("packets",)),
    "bytes": (UNSIGNED, ("bytes",)),
    "fwd_packets": (UNSIGNED, ("fwd_packets",)),
    "rev_packets": (UNSIGNED, ("rev_packets",)),
    "fwd_bytes": (UNSIGNED, ("fwd_bytes",)),
    "rev_bytes": (UNSIGNED, ("rev_bytes",)),
    "class": (WORD, ("class_id",)),
    "confidence": (FRACTION, ("confidence",)),
    "checkpoint": (UNSIGNED, ("checkpoint",)),
    "streaming": (WORD, ("streaming",)),
    "first_request": (WORD, ("first_request",)),
    "model_size": (WORD, ("large_model",)),
    "end": (WORD, ("end",)),
    "tunnel_id": (UNSIGNED, ("tunnel_id",)),
    "inner_vlan": (UNSIGNED, ("inner_vlan",)),
    "file": (WORD, ("file",)),
}

#: What the words of a WORD column mean, from the lowest value of its field on; None is "does not apply".
_YES_NO: Final = (None, False, True)
_WORDS: Final[Mapping[str, tuple[str | bool | None, ...]]] = {
    "class": CLASS_NAMES,
    "streaming": _YES_NO,
    "first_request": _YES_NO,
    "model_size": (None, "small", "large"),
    "end": END_NAMES,
}
_LOWEST: Final = {"streaming": UNKNOWN, "first_request": UNKNOWN, "model_size": UNKNOWN}

_ROW_GROUP: Final = 1 << 17


class Sink(Protocol):
    """Takes rows batch by batch, in order."""

    def write(self, rows: Rows) -> None: ...

    def finish(self, captures: Sequence[Mapping[str, Any]], summary: Mapping[str, Any] | None) -> None: ...


def column_names(files: Sequence[str]) -> list[str]:
    """The columns of the output: `file` only where rows come from several captures."""
    return [name for name in COLUMNS if name != "file" or len(files) > 1]


def _words_of(name: str, files: Sequence[str]) -> tuple[str | bool | None, ...]:
    return tuple(map(_printable, files)) if name == "file" else _WORDS[name]


def _printable(name: str) -> str:
    """A file name as text that every encoder takes, whatever bytes the file system gave."""
    return name.encode("utf-8", "replace").decode()


def _csv_word(value: str | bool | None) -> bytes:
    if value is None:
        return b""
    if isinstance(value, bool):
        return b"true" if value else b"false"
    quoted = '"' + value.replace('"', '""') + '"' if any(mark in value for mark in ',"\r\n') else value
    return quoted.encode()


def _json_word(value: str | bool | None) -> bytes:
    return json.dumps(value).encode()


class CsvSink:
    """RFC 4180 with a header line; missing values are empty."""

    def __init__(self, output: Output, files: Sequence[str]) -> None:
        self._output = output
        names = column_names(files)
        columns = []
        for position, name in enumerate(names):
            kind, fields = COLUMNS[name]
            prefix = b"," if position else b""
            words = tuple(map(_csv_word, _words_of(name, files))) if kind == WORD else (b"",)
            columns.append(TextColumn(prefix, kind, fields, words, -_LOWEST.get(name, 0)))
        self._renderer = TextRenderer(columns, b"\n")
        output.write((",".join(names) + "\n").encode())

    def write(self, rows: Rows) -> None:
        for piece in self._renderer.render(rows):
            self._output.write(piece)

    def finish(self, captures: Sequence[Mapping[str, Any]], summary: Mapping[str, Any] | None) -> None:
        """Nothing follows the rows."""


def _json_renderer(files: Sequence[str], opening: bytes, closing: bytes) -> TextRenderer:
    columns = []
    for position, name in enumerate(column_names(files)):
        kind, fields = COLUMNS[name]
        before = (b'"' if position else b"") if _ends_quoted(position, files) else b""
        prefix = before + (b", " if position else opening + b"{") + json.dumps(name).encode() + b": "
        if kind == ADDRESS:
            prefix += b'"'
        words = tuple(map(_json_word, _words_of(name, files))) if kind == WORD else (b"null",)
        columns.append(TextColumn(prefix, kind, fields, words, -_LOWEST.get(name, 0)))
    return TextRenderer(columns, b"}" + closing)


def _ends_quoted(position: int, files: Sequence[str]) -> bool:
    """Whether the column before `position` is an address, whose closing quote is still missing."""
    return position > 0 and COLUMNS[column_names(files)[position - 1]][0] == ADDRESS


class NdjsonSink:
    """One JSON object a line."""

    def __init__(self, output: Output, files: Sequence[str]) -> None:
        self._output = output
        self._renderer = _json_renderer(files, b"", b"\n")

    def write(self, rows: Rows) -> None:
        for piece in self._renderer.render(rows):
            self._output.write(piece)

    def finish(self, captures: Sequence[Mapping[str, Any]], summary: Mapping[str, Any] | None) -> None:
        """Nothing follows the rows."""


class JsonSink:
    """One document: {"flows": [...], "captures": [...]} and, where asked for, "summary"."""

    def __init__(self, output: Output, files: Sequence[str]) -> None:
        self._output = output
        self._renderer = _json_renderer(files, b",\n", b"")
        self._empty = True
        output.write(b'{"flows": [')

    def write(self, rows: Rows) -> None:
        for piece in self._renderer.render(rows):
            self._output.write(piece[1:] if self._empty else piece)
            self._empty = False

    def finish(self, captures: Sequence[Mapping[str, Any]], summary: Mapping[str, Any] | None) -> None:
        rest: dict[str, Any] = {"captures": list(captures)}
        if summary is not None:
            rest["summary"] = summary
        rest["version"] = __version__
        # As in the rows, bytes of a file name that are no text become "?": strict parsers refuse lone surrogates.
        self._output.write(b"\n], " + json.dumps(rest, ensure_ascii=False).encode("utf-8", "replace")[1:] + b"\n")


class ParquetSink:
    """Parquet, zstd-compressed; missing values are nulls."""

    def __init__(self, output: Output, files: Sequence[str]) -> None:
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError as error:
            raise DinnetError("--format parquet needs pyarrow; install dinnet[parquet]") from error
        self._pa = pa
        self._files = files
        self._names = column_names(files)
        self._waiting: list[Rows] = []
        self._waiting_rows = 0
        self._schema = pa.schema([(name, self._type_of(name)) for name in self._names])
        self._schema = self._schema.with_metadata({"dinnet_version": __version__})
        self._sink = pa.PythonFile(output, mode="w")
        self._writer = pq.ParquetWriter(self._sink, self._schema, compression="zstd")

    def _type_of(self, name: str) -> Any:
        from dinnet.report.rows import ROW_DTYPE

        kind, fields = COLUMNS[name]
        if kind == FRACTION:
            return self._pa.float64()
        if kind == ADDRESS:
            return self._pa.string()
        if kind == WORD:
            return self._pa.bool_() if name in ("streaming", "first_request") else self._pa.string()
        return self._pa.from_numpy_dtype(ROW_DTYPE[fields[0]])

    def write(self, rows: Rows) -> None:
        self._waiting.append(rows)
        self._waiting_rows += len(rows)
        if self._waiting_rows >= _ROW_GROUP:
            self._write_group()

    def _write_group(self) -> None:
        if not self._waiting_rows:
            return
        rows = np.concatenate(self._waiting)
        self._waiting, self._waiting_rows = [], 0
        arrays = [self._array(name, rows) for name in self._names]
        self._writer.write_table(self._pa.table(arrays, schema=self._schema), row_group_size=len(rows))

    def _array(self, name: str, rows: Rows) -> Any:
        pa = self._pa
        kind, fields = COLUMNS[name]
        if kind == ADDRESS:
            data, offsets = address_strings(rows[fields[0]], rows[fields[1]])
            return pa.StringArray.from_buffers(len(rows), pa.py_buffer(offsets), pa.py_buffer(data))
        values = np.ascontiguousarray(rows[fields[0]])
        if kind == FRACTION:
            return pa.array(ten_thousandths(values) / 10_000, mask=np.isnan(values))
        if kind == WORD:
            words = pa.array(_words_of(name, self._files), self._type_of(name))
            return words.take(pa.array(values.astype(np.int64) - _LOWEST.get(name, 0)))
        return pa.array(values)

    def finish(self, captures: Sequence[Mapping[str, Any]], summary: Mapping[str, Any] | None) -> None:
        self._write_group()
        self._writer.close()
        self._sink.close()


SINKS: Final[Mapping[str, type[CsvSink] | type[NdjsonSink] | type[JsonSink] | type[ParquetSink]]] = {
    "csv": CsvSink,
    "ndjson": NdjsonSink,
    "json": JsonSink,
    "parquet": ParquetSink,
}
