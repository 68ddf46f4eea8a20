"""Rows that lie in several tables, brought together in a given order. Knows tables and row numbers, no files.

Tables of one schema may differ in this alone: a column without any value is of Arrow's null type, and takes the type
that the others have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Int64s = npt.NDArray[np.int64]
Columns = dict[str, pa.Array]

MOST_ROWS = 1 << 17
"""In one run, so that a run's text stays far below the 2 GiB that Arrow's offsets reach."""


def merged_schema(schemas: Sequence[pa.Schema]) -> pa.Schema | None:
    """The schema that tables with these can share, or None."""
    first = schemas[0]
    if all(schema.equals(first) for schema in schemas):
        return first
    if any(schema.names != first.names for schema in schemas):
        return None
    types = []
    for index in range(len(first)):
        found = {
            schema.field(index).type for schema in schemas if not pa.types.is_null(schema.field(index).type)
        }
        if len(found) > 1:
            return None
        types.append(found.pop() if found else pa.null())
    return pa.schema(list(zip(first.names, types, strict=True)))


def adapted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The same rows with the columns that have no value in the schema's type."""
    if batch.schema.equals(schema):
        return batch
    columns = [
        pa.nulls(batch.num_rows, field.type) if pa.types.is_null(column.type) else column
        for field, column in zip(schema, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def joined_batches(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Batches of one schema as one."""
    if len(batches) == 1:
        return batches[0]
    columns = [
        pa.concat_arrays([batch.column(index) for batch in batches])
        for index in range(len(batches[0].schema))
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batches[0].schema)


def runs(batches: Sequence[pa.RecordBatch], batch_of: Int64s, row: Int64s) -> Iterator[tuple[int, Columns]]:
    """Rows in their order, in stretches of one schema: the number of a stretch's first row, and its columns.

    batch_of, row: int64[m], where each row lies. A stretch has MOST_ROWS at most.
    """
    groups = _groups([batch.schema for batch in batches])
    group_of = np.array([group for group, _ in groups], np.int64)[batch_of]
    edges = np.flatnonzero(np.diff(group_of)) + 1
    for begin, end in zip([0, *edges.tolist()], [*edges.tolist(), row.size], strict=True):
        for first in range(begin, end, MOST_ROWS):
            mine = slice(first, min(first + MOST_ROWS, end))
            schema = groups[int(batch_of[first])][1]
            run = _take(batches, schema, batch_of[mine], row[mine])
            yield first, dict(zip(schema.names, run.columns, strict=True))


def _groups(schemas: Sequence[pa.Schema]) -> list[tuple[int, pa.Schema]]:
    """Of each schema, the number of its group and the schema that the whole group shares."""
    together: list[list[pa.Schema]] = []
    group_of = []
    for schema in schemas:
        for number, group in enumerate(together):
            if (shared := merged_schema([*group, schema])) is not None:
                together[number] = [shared]
                break
        else:
            number = len(together)
            together.append([schema])
        group_of.append(number)
    return [(number, together[number][0]) for number in group_of]


def _take(
    batches: Sequence[pa.RecordBatch], schema: pa.Schema, batch_of: Int64s, row: Int64s
) -> pa.RecordBatch:
    """One take in each batch, then one that brings what was taken into order, where it is not."""
    order = np.argsort(batch_of, kind="stable")
    numbers, starts = np.unique(batch_of[order], return_index=True)
    sorted_rows = row[order]
    taken = [
        adapted(_rows_of(batches[number], rows), schema)
        for number, rows in zip(numbers.tolist(), np.split(sorted_rows, starts[1:]), strict=True)
    ]
    together = joined_batches(taken)
    if np.array_equal(order, np.arange(order.size)):
        return together
    back = np.empty(order.size, np.int64)
    back[order] = np.arange(order.size)
    return together.take(pa.array(back))


def _rows_of(batch: pa.RecordBatch, rows: Int64s) -> pa.RecordBatch:
    first = int(rows[0])
    if int(rows[-1]) - first == rows.size - 1 and bool((np.diff(rows) == 1).all()):
        return batch.slice(first, rows.size)
    return batch.take(pa.array(rows))


def batch_from(columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """Columns of equal lengths as a batch."""
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
