"""Features that are not in the log: a file or table of items or users, joined to each row by its id.

The file is read as `ftrie store load` reads it, so that training sees what will be served. Log columns win.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from model_store.errors import InputError, SpecError
from model_store.spec.sections import InputSection
from model_store.spec.values import category_text
from trainer.formats.batch import RowBatch
from trainer.formats.cells import column_text
from trainer.formats.record_files import ITEM_IDS, USER_IDS, read_records, records_of

Note = Callable[[str], None]

_LOOKED_AT = 1000
"""Ids without a record, of which one is sought in another spelling."""


@dataclass
class Misses:
    """Rows joined, how many of them found no record, and some of their ids, as keys in order of appearance."""

    rows: int = 0
    count: int = 0
    ids: dict[bytes, None] = field(default_factory=dict)

    def remark(self, table: SideTable) -> str:
        """How many rows found no record, with an id, in both spellings if the table has another one of it."""
        other = {_bare(each): each for each in reversed(table.ids.to_pylist())}
        found = next((each for each in self.ids if each and _bare(each) in other), next(iter(self.ids)))
        shown = other.get(_bare(found)) if found else None
        text = f"{table.path}: {self.count:,} of {self.rows:,} rows found no record by their {table.key}"
        if shown is None:
            return f"{text}, for example {_quoted(found)}"
        spellings = f"the log has {_quoted(found)}, the table {_quoted(shown)}"
        return f"{text}: {spellings}; ids are compared by their exact text"


def _bare(text: bytes) -> bytes:
    """An id without what its spellings differ by: 102.0, 0102, " 102" and 102 are one."""
    return category_text(text.strip()).lower().lstrip(b"0")


def _quoted(text: bytes) -> str:
    return repr(text.decode(errors="replace"))


@dataclass(frozen=True)
class SideTable:
    """Records as columns: `ids` and each of `columns` are binary arrays, one value a record.

    `name` is items or users, `sha256` that of the file at `path`; a table in memory has its name as path, and "". `key`
    is the log column that holds a record's id. A row whose id they lack has no value of these columns.
    """

    name: str
    path: Path
    sha256: str
    key: str
    ids: Any
    columns: dict[str, Any]

    @classmethod
    def of_items(
        cls, source: Path | pa.Table, section: InputSection, on_note: Note = lambda text: None
    ) -> SideTable:
        """The items of a file or table, joined by the log's `input.item`. Raises SpecError, InputError."""
        return _load(source, "items", section.item, ITEM_IDS, on_note)

    @classmethod
    def of_users(
        cls, source: Path | pa.Table, section: InputSection, on_note: Note = lambda text: None
    ) -> SideTable:
        """The users of a file or table, joined by the log's `input.cookie`. Raises SpecError, InputError."""
        return _load(source, "users", section.cookie, USER_IDS, on_note)

    def join(self, batch: RowBatch, wanted: Iterable[str], misses: Misses | None = None) -> RowBatch:
        """The batch with the `wanted` columns that it lacks and this table has. misses: counts rows without one."""
        missing = [name for name in wanted if name in self.columns and name not in batch.columns]
        if not missing:
            return batch
        ids = column_text(batch.columns[self.key])
        records = pc.index_in(ids, value_set=self.ids)
        if misses is not None:
            misses.rows += batch.rows
            misses.count += records.null_count
            if records.null_count and len(misses.ids) < _LOOKED_AT:
                misses.ids |= dict.fromkeys(ids.filter(records.is_null())[:_LOOKED_AT].to_pylist())
        joined = {name: self.columns[name].take(records) for name in missing}
        return replace(batch, columns={**batch.columns, **joined})


def side_tables(
    items: Path | pa.Table | None,
    users: Path | pa.Table | None,
    section: InputSection,
    on_note: Note = lambda text: None,
) -> list[SideTable]:
    """The tables of the files and Arrow tables given. Raises SpecError, InputError."""
    tables = [SideTable.of_items(items, section, on_note)] if items is not None else []
    return [*tables, SideTable.of_users(users, section, on_note)] if users is not None else tables


def joined(
    batches: Iterable[RowBatch],
    tables: Sequence[SideTable],
    wanted: Sequence[str],
    on_note: Note = lambda text: None,
) -> Iterator[RowBatch]:
    """Every batch with all `wanted` columns: from the log, else from a table, else (optional fields) empty.

    After the last one, on_note says how many rows found no record of a table.
    """
    found = [(table, Misses()) for table in tables]
    for batch in batches:
        for table, misses in found:
            batch = table.join(batch, wanted, misses)
        absent = {name: pa.nulls(batch.rows) for name in wanted if name not in batch.columns}
        yield replace(batch, columns={**batch.columns, **absent}) if absent else batch
    for table, misses in found:
        if misses.count:
            on_note(misses.remark(table))


def _load(
    source: Path | pa.Table, what: str, key: str | None, usual_ids: Sequence[str], on_note: Note
) -> SideTable:
    if key is None:
        member = "item" if what == "items" else "cookie"
        raise SpecError(
            f"input.{member} is missing: --{what} needs the log column with the id of each row's {member}"
        )
    ids: dict[bytes, int] = {}
    columns: dict[str, list[bytes | None]] = {}
    if isinstance(source, Path):
        with source.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        path, records = source, read_records(source, usual_ids, None, on_note)
    else:
        path, digest, records = Path(what), "", records_of(source, what, usual_ids)
    for row, (record_id, record) in enumerate(records):
        before = ids.setdefault(record_id.encode(), row)
        if before != row:
            raise InputError(
                f"{path}: the id {record_id!r} is there twice, in records {before + 1:,} and {row + 1:,}; "
                "expected each once"
            )
        for each, value in record.items():
            column = columns.setdefault(each, [])
            column += [None] * (row - len(column))
            column.append(value.encode())
    whole = {name: column + [None] * (len(ids) - len(column)) for name, column in columns.items()}
    arrays = {column: pa.array(values, pa.binary()) for column, values in whole.items()}
    return SideTable(what, path, digest, key, pa.array(list(ids), pa.binary()), arrays)
