"""What the library takes as data: files, tables in memory and streams of tables, as the trainer's `Log`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from ftrie.library.output import warn
from model_store.spec.sections import InputSection
from trainer.examples.open_log import Log
from trainer.examples.side_tables import side_tables
from trainer.logs.tables import Table, table_of
from trainer.output import Output
from trainer.runs.first_spec import first_spec

Data: TypeAlias = Any
"""A path, a glob or a list of them; or a table: pyarrow, pandas, polars, a DuckDB relation, a mapping of columns, or a
list of rows as dictionaries; or an iterator of such tables, which is read once."""


def log_of(
    data: Data,
    section: InputSection | None = None,
    *,
    items: Data | None = None,
    users: Data | None = None,
    format: str | None = None,
    no_header: bool = False,
    since: str | None = None,
    until: str | None = None,
    unlabelled: bool = False,
) -> Log:
    """The log that `data` stands for, with the features of items and users joined by the ids that `section` names.

    unlabelled: rows are only scored. Raises InputError for an object that is no log, SpecError for a table of items or
    users without an id column.
    """
    tables = []
    if section is not None:
        tables = side_tables(_records(items), _records(users), section)
    files = files_of(data)
    return Log(
        files or (),
        format,
        tables,
        _note,
        no_header=no_header,
        since=since,
        until=until,
        table=None if files else table_of(data),
        unlabelled=unlabelled,
    )


def files_of(data: Data) -> list[str] | None:
    """The paths and globs that `data` names; None if it is a table."""
    if isinstance(data, str | os.PathLike):
        return [os.fspath(data)]
    if isinstance(data, Sequence) and data and all(isinstance(each, str | os.PathLike) for each in data):
        return [os.fspath(each) for each in data]
    return None


def one_table(data: Data) -> pa.Table:
    """A table in memory as an Arrow table; an iterator is read to its end. Raises InputError."""
    if isinstance(data, Table):
        table = data
    else:
        table = table_of(data)
    return pa.Table.from_batches(table.batches())


def as_given(table: pa.Table, data: Data) -> Any:
    """An answer with a line for each row of `data`, in its type: pandas, with its index, polars, else Arrow.

    A pandas DataFrame has `column(name)` too, so that code which reads Arrow tables reads it alike.
    """
    library = type(data).__module__.partition(".")[0]
    if library == "pandas":
        frame = table.to_pandas().set_index(data.index)
        object.__setattr__(frame, "column", frame.__getitem__)
        return frame
    if library == "polars":
        return sys.modules[library].from_arrow(table)
    return table


def guessed_text(
    data: Data,
    label: str | None,
    *,
    name: str | None,
    format: str | None,
    no_header: bool,
    quick: bool,
    output: Output,
) -> str:
    """The spec that `ftrie init` writes for the log, as TOML text. Raises InputError, SpecError."""
    log = log_of(data, format=format, no_header=no_header)
    return first_spec(log, label, name=name or "", measures=not quick, output=output).text


def is_path(data: Data) -> Path | None:
    """The path of one file; None if it is a table."""
    return Path(data) if isinstance(data, str | os.PathLike) else None


def _records(data: Data | None) -> Path | pa.Table | None:
    """A table of items or users: a file, or a table in memory."""
    return None if data is None else is_path(data) or one_table(data)


def _note(message: str) -> None:
    """Remarks on files that look suspicious are warnings to a caller in Python."""
    warn(message)
