"""Reads user and item records: from CSV, TSV, JSON lines and Parquet files, gzip, zstd or plain, and from Arrow tables.

A row becomes an id and a mapping of column to text, without empty cells.
"""

from __future__ import annotations

import io
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa

from model_store import bounded
from model_store.errors import FieldValueError, InputError, SpecError, shown_names
from model_store.spec.values import set_members, text_of
from trainer.formats.cells import column_text
from trainer.formats.reader import LogReader
from trainer.formats.row_file import Header

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
USER_IDS = ("cookie", "user", "user_id")
ITEM_IDS = ("item", "item_id", "id")

Row = Mapping[str, Any]


@dataclass(frozen=True)
class RecordTable:
    """An open file: its columns (for JSON lines those of the first row) and its rows with their numbers."""

    path: Path
    columns: tuple[str, ...]
    rows: Iterator[tuple[int, Row]]


def read_records(
    path: Path,
    usual_ids: Sequence[str],
    id_column: str | None = None,
    on_note: Callable[[str], None] = lambda text: None,
) -> Iterator[tuple[str, dict[str, str]]]:
    """Each row's id and record; lists become JSON arrays, weighted sets JSON objects; unnamed columns are skipped.

    The id is in `id_column`, by default the first of `usual_ids` that the file has. Raises SpecError without such a
    column, InputError naming a line that cannot be read. on_note: receives remarks, as on an unusual dialect.
    """
    known = frozenset([id_column] if id_column else usual_ids)
    return _records(_open_table(path, known, on_note), usual_ids, id_column)


def records_of(
    data: pa.Table, what: str, usual_ids: Sequence[str], id_column: str | None = None
) -> Iterator[tuple[str, dict[str, str]]]:
    """The same from a table in memory; `what` is its name in messages, which have the row's number: `items:7`."""
    columns = tuple(name for name in data.schema.names if name)
    rows = enumerate((row for batch in data.to_batches() for row in batch.to_pylist()), 1)
    return _records(RecordTable(Path(what), columns, rows), usual_ids, id_column)


def read_ids(path: Path) -> Iterator[str]:
    """The ids of a file with one id per line; blank lines are skipped."""
    with _text(path) as lines:
        yield from (line.strip() for line in _decoded(path, lines) if line.strip())


def _open_table(path: Path, known: frozenset[str], on_note: Callable[[str], None]) -> RecordTable:
    """Open a file by its extensions. known: names that tell a header. Raises InputError for one that cannot be read."""
    suffix = (path.with_suffix("") if path.suffix in COMPRESSIONS else path).suffix
    if suffix in (".csv", ".tsv"):
        return _open_delimited(path, suffix[1:], known, on_note)
    if suffix in (".jsonl", ".ndjson"):
        return _open_json_lines(path)
    if suffix == ".parquet":
        return _open_parquet(path)
    raise InputError(
        f"{path}: expected a name that ends in .csv, .tsv, .jsonl, .ndjson, .parquet (then .gz or .zst, if compressed)"
    )


def cell_text(value: Any) -> str | None:
    """A cell as stored in a record: text, or None if empty. Raises FieldValueError."""
    if value is None or value == "" or value == [] or value == {}:
        return None
    if isinstance(value, list) and isinstance(value[0], tuple):  # an Arrow map
        value = _added_up(value)
    if isinstance(value, dict):
        set_members(value, None)  # raises unless it is a weighted set
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    if isinstance(value, date):
        return value.isoformat()
    return text_of(value).decode("utf-8", "surrogateescape")


def _added_up(entries: list[tuple[Any, float | None]]) -> dict[str, float]:
    """A map's entries as a weighted set; the x of repeated members add up, same as in `values.set_members`."""
    weighted: dict[str, float] = {}
    for member, x in entries:
        name = text_of(member).decode("utf-8", "surrogateescape")
        weighted[name] = weighted.get(name, 0.0) + (x or 0.0)
    return weighted


def _records(
    table: RecordTable, usual_ids: Sequence[str], id_column: str | None
) -> Iterator[tuple[str, dict[str, str]]]:
    wanted = id_column or next((name for name in usual_ids if name in table.columns), None)
    if wanted not in table.columns:
        raise SpecError(
            f"{table.path}: no column {' or '.join([id_column] if id_column else usual_ids)} for the id; "
            f"it has: {shown_names(table.columns)}; name one with --id-column"
        )
    return map(partial(_record, table.path, wanted), table.rows)


def _record(path: Path, id_column: str, numbered: tuple[int, Row]) -> tuple[str, dict[str, str]]:
    line, row = numbered
    try:
        record = {name: text for name, value in row.items() if (text := cell_text(value)) is not None}
    except (FieldValueError, TypeError, ValueError) as error:
        raise InputError(f"{path}:{line}: {error}") from error
    except RecursionError:
        raise InputError(f"{path}:{line}: a value is {bounded.NESTING}") from None
    record_id = record.pop(id_column, None)
    if record_id is None:
        raise InputError(f"{path}:{line}: the id column {id_column!r} is empty")
    return record_id, record


# -- delimited text


def _open_delimited(
    path: Path, format: str, known: frozenset[str], on_note: Callable[[str], None]
) -> RecordTable:
    """A file in any dialect, read as a log is, so that a value has the key that it has there."""
    reader = LogReader([str(path)], format=format, header=Header(known=known), on_note=on_note)
    columns = reader.columns()
    return RecordTable(path, columns, _delimited_rows(path, reader, columns))


def _delimited_rows(path: Path, reader: LogReader, columns: Sequence[str]) -> Iterator[tuple[int, Row]]:
    with reader:
        for batch in reader.batches(columns):
            cells = [column_text(batch.columns[name]).to_pylist() for name in columns]
            first = batch.rejects[0] if batch.rejects else None
            for line, *row in zip(batch.lines.tolist(), *cells, strict=True):
                if first is not None and line > first.line:
                    break
                try:
                    texts = [None if cell is None else cell.decode() for cell in row]
                except UnicodeDecodeError as error:
                    raise InputError(f"{path}:{line}: the text is not UTF-8 ({error.reason})") from error
                yield line, dict(zip(columns, texts, strict=True))
            if first is not None:
                raise InputError(str(first))


def _text(path: Path) -> TextIO:
    try:
        stream = pa.input_stream(str(path), compression=COMPRESSIONS.get(path.suffix))
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {os.strerror(error.errno) if error.errno else error}"
        ) from error
    return io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")


def _decoded(path: Path, lines: TextIO) -> Iterator[str]:
    number = 0
    try:
        for number, line in enumerate(bounded.lines(lines, path), 1):  # noqa: B007 - the number is for the error
            yield line
    except UnicodeDecodeError as error:
        raise InputError(f"{path}:{number + 1}: the text is not UTF-8 ({error.reason})") from error
    except OSError as error:
        raise InputError(f"{path}:{number + 1}: the compressed data is damaged: {error}") from error


# -- JSON lines


def _open_json_lines(path: Path) -> RecordTable:
    rows = _json_rows(path)
    first = next(rows, None)
    if first is None:
        raise InputError(f"{path}: expected a JSON object in each line, got an empty file")
    return RecordTable(path, tuple(first[1]), itertools.chain([first], rows))


def _json_rows(path: Path) -> Iterator[tuple[int, Row]]:
    for line, text in enumerate(_decoded(path, _text(path)), 1):
        if text.strip():
            try:
                row = bounded.json_value(text)
            except ValueError as error:
                raise InputError(f"{path}:{line}: not valid JSON: {error}") from error
            if not isinstance(row, dict):
                raise InputError(f"{path}:{line}: expected a JSON object, got {text.strip()[:60]}")
            yield line, {name: value for name, value in row.items() if name}


# -- Parquet


def _open_parquet(path: Path) -> RecordTable:
    import pyarrow.parquet as pq

    if path.suffix in COMPRESSIONS:
        raise InputError(f"{path}: Parquet compresses inside; expected a name that ends in .parquet")
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"cannot read {path} as Parquet: {error}") from error
    columns = tuple(name for name in file.schema_arrow.names if name)
    return RecordTable(path, columns, _parquet_rows(path, file, columns))


def _parquet_rows(path: Path, file: Any, columns: tuple[str, ...]) -> Iterator[tuple[int, Row]]:
    number = 0
    try:
        for batch in file.iter_batches(columns=list(columns)):
            for row in batch.to_pylist():
                number += 1
                yield number, row
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: damaged after row {number}: {error}") from error
