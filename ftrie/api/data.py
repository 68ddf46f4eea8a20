"""What names a log: files, tables in memory or streams of tables, and the arguments beside them.

An argument is declared once: `since=` of `ftrie.train` and `--since` of `ftrie train` are one field.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypedDict, Unpack

from ftrie.api.output import warn
from model_store.flags import Flag

if TYPE_CHECKING:
    import pyarrow as pa

    from model_store.spec.sections import InputSection
    from trainer.examples.open_log import Log as EngineLog
    from trainer.formats.dialect import Dialect

Data: TypeAlias = Any
"""A path, a glob or a list of them; or a table: pyarrow, pandas, polars, a DuckDB relation, a mapping of columns, or a
list of rows as dictionaries; or an iterator of such tables, which is read once."""


class Tables(TypedDict, total=False):
    """Features that the log lacks: files, or tables in memory."""

    items: Annotated[
        Data | None,
        Flag(
            "A file of items: columns that the log lacks, joined by input.item.",
            "FILE",
            type=Path | None,
            file="reads",
        ),
    ]
    users: Annotated[
        Data | None,
        Flag(
            "A file of users: columns that the log lacks, joined by input.cookie.",
            "FILE",
            type=Path | None,
            file="reads",
        ),
    ]


class Format(TypedDict, total=False):
    """How the log's files are written, where names and first lines do not show it."""

    format: Annotated[
        str | None,
        Flag(
            "Format of the log: csv, tsv, jsonl, parquet, vw, libsvm, libffm, or events (impressions and clicks); "
            "default: detected.",
            "NAME",
        ),
    ]
    no_header: Annotated[
        bool,
        Flag(
            "CSV, TSV: the first line is a row; the columns are c1, c2, …, or those of [input] columns. Default: "
            "detected."
        ),
    ]


class Log(Tables, Format, total=False):
    """The arguments of a log of rows. A `TimedLog` is learned or judged in part; of a `CachedLog` rows may be kept."""


class TimedLog(Log, total=False):
    """A log, and the time from and until which its rows count."""

    since: Annotated[
        str | None,
        Flag("Only rows from this time of input.timestamp on; earlier ones count as history.", "TIME"),
    ]
    until: Annotated[str | None, Flag("Only rows before this time of input.timestamp.", "TIME")]


class _Cache(TypedDict, total=False):
    cache: Annotated[
        Path | None,
        Flag(
            "Keep the log's rows in this file, and read them from there as long as the log stays the same.",
            "FILE",
            file="keeps",
        ),
    ]


class CachedLog(Log, _Cache, total=False):
    """A log whose rows may be kept in a file."""


class CachedTimedLog(TimedLog, _Cache, total=False):
    """A log whose rows may be kept in a file, and the time from and until which they count."""


def log_of(
    data: Data,
    section: InputSection | None = None,
    *,
    note: Callable[[str], None] | None = None,
    dialect: Dialect | None = None,
    batch_bytes: int | None = None,
    unlabelled: bool = False,
    **log: Unpack[CachedTimedLog],
) -> EngineLog:
    """The log of `data`, with the features of items and users joined by the ids that `section` names.

    note: takes remarks on files that look suspicious; by default they are warnings to a caller in Python. dialect: of a
    CSV file that no spec describes. batch_bytes: of text read at once. unlabelled: rows are only scored. Raises
    InputError for an object that is no log, SpecError for a table of items or users without an id column.
    """
    from trainer.examples.open_log import Log as EngineLog
    from trainer.examples.side_tables import side_tables
    from trainer.formats.dialect import UNKNOWN
    from trainer.formats.reader import BATCH_BYTES
    from trainer.formats.tables import table_of

    items, users = (_records(log.get(name)) for name in ("items", "users"))
    files = files_of(data)
    return EngineLog(
        files or (),
        log.get("format"),
        side_tables(items, users, section, note or (lambda text: None)) if section is not None else [],
        note or warn,
        batch_bytes or BATCH_BYTES,
        no_header=log.get("no_header", False),
        dialect=dialect or UNKNOWN,
        since=log.get("since"),
        until=log.get("until"),
        cache=log.get("cache"),
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
    """A table in memory as an Arrow table; an iterator is read to its end. Raises InputError, also for no rows."""
    import pyarrow as pa

    from model_store.errors import InputError
    from trainer.formats.tables import Table, table_of

    batches = list((data if isinstance(data, Table) else table_of(data)).batches())
    if not batches:
        raise InputError("got no row and no column; expected a table with columns, or at least one row")
    return pa.Table.from_batches(batches)


def as_given(table: pa.Table, data: Data) -> Any:
    """An answer with a line for each row of `data`, in its type: pandas, with its index, polars, else Arrow.

    A pandas DataFrame has `column(name)` too, so that code which reads Arrow tables reads it alike.
    """
    # By the name of the type's module: neither library is imported for it.
    library = type(data).__module__.partition(".")[0]
    if library == "pandas":
        frame = table.to_pandas().set_index(data.index)
        # Past pandas' own __setattr__, which would assign to a column of this name.
        object.__setattr__(frame, "column", frame.__getitem__)
        return frame
    if library == "polars":
        return sys.modules[library].from_arrow(table)
    return table


def is_path(data: Data) -> Path | None:
    """The path of one file; None if it is a table."""
    return Path(data) if isinstance(data, str | os.PathLike) else None


def _records(data: Data | None) -> Path | pa.Table | None:
    """A table of items or users: a file, or a table in memory."""
    return None if data is None else is_path(data) or one_table(data)
