"""Tables in memory as batches: Arrow, pandas, polars and DuckDB tables, mappings, rows, and iterators of any of them.

In: a Python object. Out: a `Table`, which `TableReader` reads as a `LogReader` reads files. Tables are shared by the
Arrow C stream interface, or by the dataframe interchange protocol, so no library is imported here but Arrow; one that a
caller passes is imported already.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from model_store.errors import InputError, SpecError, listed
from model_store.spec.values import text_of
from trainer.formats.batch import LazyColumns, NotPlain, Position, RowBatch, coded, is_several
from trainer.formats.parquet import FEWEST_ROWS, MOST_ROWS, find, left_out, paths
from trainer.formats.reader import BATCH_BYTES, Bookmarks

NAME = "table"
"""What stands for a file's name in messages; `table:7` is the seventh row."""
_ROW_NUMBERS = re.compile(r"__index_level_\d+__")
_INT64 = 2**63
EXPECTED = (
    "expected the path of a log, or a table: pyarrow, pandas or polars, a DuckDB relation, a mapping of columns, a "
    "list of rows as dictionaries, or an iterator of such tables"
)


class Table:
    """Rows in memory, or a stream of them. `rows` is their number; None for a stream.

    `batches()` starts from the first row. A stream can be read once; only the batches taken inside `kept()` come again.
    """

    def __init__(self, batches: Callable[[], Iterator[pa.RecordBatch]], rows: int | None) -> None:
        self.rows = rows
        self._open = batches
        self._stream: Iterator[pa.RecordBatch] | None = None
        self._first: list[pa.RecordBatch] = []
        self._closed = False

    def batches(self, *, keep: bool = False) -> Iterator[pa.RecordBatch]:
        """All rows. keep: those of a stream that are taken come again at the next call. Raises InputError.

        A stream that was read already raises InputError, which says what to pass instead.
        """
        if self.rows is not None:
            yield from self._open()
            return
        if self._closed:
            raise InputError(
                "the iterator of batches has been read already: pass a table, or a new iterator, to read it again"
            )
        if self._stream is None:
            self._stream = self._open()
        first = iter(self._first)
        if not keep:
            self._closed = True
            self._first = []
        yield from first
        for batch in self._stream:
            if keep:
                self._first.append(batch)
            yield batch


class TableReader:
    """A table as a source of batches, with the methods of a LogReader that `OpenLog` uses. Read once.

    `columns` are those whose values can become features, `left_out` the others; a field `b` of a struct `a` is the
    column `a.b`. keep: see `Table.batches`. on_note: receives remarks.
    """

    columns_without_header: tuple[str, ...] | None = None

    def __init__(
        self,
        table: Table,
        *,
        keep: bool = False,
        batch_bytes: int = BATCH_BYTES,
        on_note: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Takes the first batch. Raises InputError for a table without columns, or that cannot be converted."""
        self._rows, self._batch_bytes = table.rows, batch_bytes
        self._batches = table.batches(keep=keep)
        self.bookmarks = Bookmarks((NAME,), (), on_note)
        first = next(self._batches, None)
        if first is None or not first.schema.names:
            raise InputError(
                "the table has no rows and no columns; expected a column for the label and some features"
            )
        self._batches = itertools.chain([first], self._batches)
        self._fields = dict(paths(first.schema))
        self.left_out = left_out(first.schema)
        self._read = 0

    @property
    def total_bytes(self) -> int | None:
        """The rows of the table; None for a stream."""
        return self._rows

    def bytes_read(self) -> int:
        """Rows read so far, counted like `total_bytes`. May be called from another thread."""
        return self._read

    def columns(self) -> tuple[str, ...]:
        """The columns, in the table's order."""
        return tuple(self._fields)

    def may_have(self, column: str) -> bool:
        """True if the table has the column, and its values can become features."""
        return column in self._fields

    def kinds(self) -> Mapping[str, str | None]:
        """The kinds of columns that are not categories: see `ModelSpec.resolve`."""
        return {name: "set" for name, kind in self._fields.items() if is_several(kind)}

    def batches(self, wanted: Sequence[str]) -> Iterator[RowBatch]:
        """All rows with the `wanted` columns, in batches of about `batch_bytes` bytes.

        Raises SpecError for a column that the table lacks; InputError for a batch of a stream that cannot be converted.
        """
        if missing := [name for name in wanted if name not in self._fields]:
            unusable = [name for name in missing if name.partition(".")[0] in self.left_out]
            reason = f" ({', '.join(unusable)}: of a type that cannot become a feature)" if unusable else ""
            raise SpecError(
                f"the table has no column {', '.join(map(repr, missing))}{reason}; "
                f"it has {listed(self._fields, missing[0])}"
            )
        for batch in self._batches:
            for piece in self._pieces(batch):
                first, self._read = self._read, self._read + piece.num_rows
                lines = np.arange(first + 1, self._read + 1, dtype=np.int64)
                columns = LazyColumns({name: _column(piece, name, first) for name in wanted})
                start, stop = (Position(NAME, row, row + 1) for row in (first, self._read))
                yield RowBatch(columns, lines, NAME, (), piece.num_rows, stop, start)

    def close(self) -> None:
        """Drop the table."""
        self._batches = iter(())

    def __enter__(self) -> TableReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The batch in pieces of about `batch_bytes` bytes."""
        size = self._batch_bytes * batch.num_rows // max(batch.nbytes, 1)
        rows = min(max(size, FEWEST_ROWS), MOST_ROWS)
        for first in range(0, batch.num_rows, rows):
            yield batch.slice(first, rows)


def _column(batch: pa.RecordBatch, name: str, row: int) -> pa.Array:
    """The column as a plain type, or a dictionary of one; `row` rows come before the batch."""
    try:
        return coded(find(batch, name))
    except KeyError:
        raise InputError(
            f"{NAME}:{row + 1}: a batch lacks the column {name!r}, which the first one has; "
            "expected the same columns in all batches"
        ) from None
    except (NotPlain, pa.ArrowException) as error:
        raise InputError(f"{NAME}:{row + 1}: column {name!r}: {error}") from error


def table_of(data: Any) -> Table:
    """The table that a Python object stands for. Raises InputError naming what is expected for anything else.

    An iterator of tables becomes a stream; everything else can be read again. The data is not copied where the library
    that holds it shares it.
    """
    if _is_table(data):
        converted = arrow_table(data)
        return Table(lambda: _batches(converted), converted.num_rows)
    if isinstance(data, pa.RecordBatchReader):
        return Table(lambda: _checked(iter(data)), None)
    if isinstance(data, Iterator) or (
        isinstance(data, Iterable) and not isinstance(data, str | bytes | np.ndarray)
    ):
        return Table(lambda: _batches_of(iter(data)), None)
    raise InputError(f"got {_type_name(data)} as data; {EXPECTED}")


def arrow_table(data: Any) -> pa.Table:
    """A table in memory as an Arrow table; a list of rows by the columns of all of them. Raises InputError."""
    try:
        return _converted(data)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"the {_type_name(data)} cannot be read as a table: {error}; give columns of one type each, for example as "
            "text"
        ) from error


def _is_table(data: Any) -> bool:
    if isinstance(data, pa.Table | pa.RecordBatch | Mapping):
        return True
    if isinstance(data, pa.RecordBatchReader):
        return False
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        return all(isinstance(row, Mapping) for row in data) and bool(data)
    return _speaks_arrow(data) or hasattr(data, "__dataframe__") or _is_lazy(data)


def _speaks_arrow(data: Any) -> bool:
    return hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__")


def _is_lazy(data: Any) -> bool:
    """A lazy table of polars, whose rows come from `collect`."""
    return hasattr(data, "collect") and hasattr(data, "collect_schema")


def _converted(data: Any) -> pa.Table:
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, Mapping):
        return pa.table({str(name): _named(name, values) for name, values in data.items()})
    if isinstance(data, Sequence):
        names = dict.fromkeys(name for row in data for name in row)
        return pa.table({str(name): _named(name, [row.get(name) for row in data]) for name in names})
    if _is_lazy(data) and not _speaks_arrow(data):
        return _converted(data.collect())
    if hasattr(data, "__arrow_c_stream__"):
        try:
            table = pa.RecordBatchReader.from_stream(data).read_all()
        except OverflowError:  # of pandas, whose columns may hold Python's numbers
            return pa.table({str(name): _named(name, list(data[name])) for name in data.columns})
        # The numbers of a pandas table's rows are no column; an index with a name is one.
        return table.drop_columns([name for name in table.column_names if _ROW_NUMBERS.fullmatch(name)])
    if hasattr(data, "__arrow_c_array__"):
        return pa.Table.from_batches([pa.record_batch(data)])
    from pyarrow import interchange

    return interchange.from_dataframe(data)


def _named(name: Any, values: Any) -> pa.Array:
    """`python_array`, whose errors name the column."""
    try:
        return python_array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"column {str(name)!r}: {error}") from error


def python_array(values: Any) -> pa.Array:
    """A column of Python values; mappings to numbers are weighted sets, collections are sets.

    Whole numbers beyond 64 bits are kept as text, digit for digit, as in JSON.
    """
    try:
        return _array_of(values)
    except (OverflowError, pa.ArrowInvalid):
        if not any(isinstance(each, int) and abs(each) >= _INT64 for each in values):
            raise
        present = (None if isinstance(each, float) and each != each else each for each in values)
        return _array_of(
            [text_of(each).decode() if isinstance(each, int | float) else each for each in present]
        )


def _array_of(values: Any) -> pa.Array:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if _speaks_arrow(values):
        return pa.chunked_array(values) if hasattr(values, "__arrow_c_stream__") else pa.array(values)
    if isinstance(values, np.ndarray) and values.dtype != object:
        return pa.array(values)
    values = list(values)
    if any(isinstance(value, Mapping) for value in values):
        pairs = [None if value is None else list(value.items()) for value in values]
        return pa.array(pairs, pa.map_(pa.string(), pa.float64()))
    if any(isinstance(value, set | frozenset) for value in values):
        return pa.array([sorted(value) if isinstance(value, set | frozenset) else value for value in values])
    return pa.array(values, from_pandas=True)


def _batches(table: pa.Table) -> Iterator[pa.RecordBatch]:
    """The batches of a table, at least one, so that a table without rows has columns."""
    if table.num_rows:
        yield from table.to_batches()
    else:
        yield pa.RecordBatch.from_arrays(
            [pa.array([], kind) for kind in table.schema.types], schema=table.schema
        )


def _batches_of(tables: Iterator[Any]) -> Iterator[pa.RecordBatch]:
    """The batches of every table of an iterator."""
    for number, each in enumerate(tables, 1):
        if not _is_table(each):
            raise InputError(f"got {_type_name(each)} as batch {number:,}; {EXPECTED}")
        yield from _batches(arrow_table(each))


def _checked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches; an error of the stream becomes an InputError."""
    try:
        yield from batches
    except pa.ArrowException as error:
        raise InputError(f"the stream of batches failed: {error}") from error


def _type_name(data: Any) -> str:
    kind = type(data)
    return (
        kind.__name__
        if kind.__module__ == "builtins"
        else f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
    )
