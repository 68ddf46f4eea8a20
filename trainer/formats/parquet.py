"""Parquet files as batches, row group by row group; standard input and compressed files are read into memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from model_store.errors import InputError
from trainer.formats.batch import LazyColumns, Position, RowBatch, coded, is_several, is_usable, steps_to
from trainer.formats.row_file import Format, RowFile
from trainer.formats.streams import ALL, ByteStream, Share, too_short

FEWEST_ROWS = 1024
MOST_ROWS = 65_536
_GROUPS_A_READER = 4  # with fewer, shares by row groups would be unequal
_READ_AHEAD_BYTES = 256 * 1024


class ParquetInput(RowFile):
    """One Parquet file.

    `columns` are those whose values can become features, `left_out` the others. A field `b` of a struct `a`
    is the column `a.b`.
    """

    is_text = False

    def __init__(self, stream: ByteStream, batch_bytes: int) -> None:
        self._stream = stream
        self._source = stream.name if stream.is_plain_file else pa.BufferReader(stream.read_all())
        self._file = self._open(())
        self._rows = max(self._file.metadata.num_rows, 1)
        text = sum(self._file.metadata.row_group(i).total_byte_size for i in range(self._file.num_row_groups))
        self._batch_rows = min(max(batch_bytes * self._rows // max(text, 1), FEWEST_ROWS), MOST_ROWS)
        found = dict(paths(self._file.schema_arrow))
        self.columns = tuple(found)
        self.left_out = left_out(self._file.schema_arrow)
        self.kinds = {name: "set" for name, kind in found.items() if is_several(kind)}
        self._row = 0

    def go_on(self, position: Position) -> None:
        """Skip the rows before a position of an earlier run. Raises InputError if there are fewer."""
        if position.offset > self._file.metadata.num_rows:
            raise too_short(position.file)
        self._row = position.offset

    def batches(self, wanted: Sequence[str], share: Share = ALL) -> Iterator[RowBatch]:
        """The rest of the rows. Raises InputError where the file is damaged, after the row groups before.

        A share is of row groups, or of batches where there are few row groups.
        """
        self._file = self._open(self._coded(wanted))
        row = self._row
        for table in self._tables(wanted, share):
            if isinstance(table, int):
                row += table
                continue
            lines = np.arange(row + 1, row + table.num_rows + 1, dtype=np.int64)
            columns = LazyColumns({name: coded(find(table, name)) for name in wanted})
            row += table.num_rows
            if self._stream.is_plain_file:
                self._stream.report(self._stream.size * row // self._rows)
            stop = Position(self._stream.name, row, row + 1)
            yield RowBatch(columns, lines, self._stream.name, (), table.num_rows, stop)

    def _open(self, coded: Sequence[str]) -> pq.ParquetFile:
        """The file, which gives these columns with their dictionaries. Raises InputError."""
        try:
            # Pre-buffering would keep a piece of every row group that was read.
            return pq.ParquetFile(
                self._source, buffer_size=_READ_AHEAD_BYTES, pre_buffer=False, read_dictionary=list(coded)
            )
        except (OSError, pa.ArrowException) as error:
            raise InputError(f"{self._stream.name}: not a whole Parquet file: {error}") from error

    def _coded(self, wanted: Sequence[str]) -> list[str]:
        """The wanted columns of text that the first row group has a dictionary for."""
        if not self._file.num_row_groups:
            return []
        group, schema = self._file.metadata.row_group(0), self._file.schema_arrow
        chunks = (group.column(place) for place in range(group.num_columns))
        return [
            chunk.path_in_schema
            for chunk in chunks
            if chunk.path_in_schema in wanted
            and chunk.has_dictionary_page
            and chunk.path_in_schema in schema.names
            and schema.field(chunk.path_in_schema).type in (pa.string(), pa.binary())
        ]

    def _tables(self, wanted: Sequence[str], share: Share) -> Iterator[pa.RecordBatch | int]:
        """The batches; for one that another reader takes, or a row group of them, the number of its rows."""
        passed = self._row
        by_groups = self._file.num_row_groups >= _GROUPS_A_READER * share.of > _GROUPS_A_READER
        try:
            for group in range(self._file.num_row_groups):
                rows = self._file.metadata.row_group(group).num_rows
                if passed >= rows:
                    passed -= rows
                    continue
                mine = share.mine
                if by_groups:
                    share.count_block()
                    if not mine:
                        yield rows - passed
                        passed = 0
                        continue
                for table in self._file.iter_batches(
                    self._batch_rows, row_groups=[group], columns=list(wanted), use_threads=False
                ):
                    if passed < table.num_rows:
                        mine = by_groups or share.mine
                        yield table.slice(passed) if mine else table.num_rows - passed
                        if not by_groups:
                            share.count_block()
                    passed = max(passed - table.num_rows, 0)
        except (OSError, pa.ArrowException) as error:
            raise InputError(f"{self._stream.name}: damaged: {error}") from error


def paths(fields: Iterable[pa.Field], prefix: str = "") -> Iterator[tuple[str, pa.DataType]]:
    """The columns whose values can become features, with their types; those of structs as `a.b`."""
    for field in fields:
        if pa.types.is_struct(field.type):
            yield from paths(field.type, f"{prefix}{field.name}.")
        elif is_usable(field.type):
            yield prefix + field.name, field.type


def left_out(fields: Iterable[pa.Field]) -> tuple[str, ...]:
    """The columns of which nothing can become a feature, such as lists of structs."""
    return tuple(field.name for field in fields if not any(paths([field])))


def find(table: pa.RecordBatch, name: str) -> pa.Array:
    """The column that `paths` names. Raises KeyError if the batch lacks it."""
    top, *path = steps_to(name, table.schema)
    return pc.struct_field(table.column(top), path) if path else table.column(top)


FORMATS = (
    Format(
        "parquet",
        "Parquet",
        (".parquet", ".pq"),
        lambda text: text.startswith(b"PAR1"),
        lambda file: ParquetInput(file.stream, file.batch_bytes),
        holds="it is Parquet",
        is_text=False,
    ),
)
