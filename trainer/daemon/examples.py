"""From what the join gives out to hashed examples, and the rows among it that cannot be learned from.

The rows of a joined row's segment are columns already; here they get their label and are hashed by the same code that
hashes a log's. Knows nothing of sources or of the store.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trainer.events.wanted import UNKNOWN
from trainer.hashing.examples import ExampleMaker, Examples
from trainer.joining.join import Joined
from trainer.joining.segments import Segments
from trainer.rejects import Reject
from trainer.sources import Position, RowBatch

JOIN = "join"


@dataclass(frozen=True)
class BadRow:
    """A joined row that is no example: why, and the row as JSON."""

    reason: str
    json: bytes


class JoinedExamples:
    """Makes the examples of joined rows, in their order. `rows` counts them, learned from or not.

    unknown_items: rows that were left out, as the server knew nothing of the item; they are not in `rows`.
    """

    def __init__(
        self, maker: ExampleMaker, segments: Segments, rows: int = 0, unknown_items: int = 0
    ) -> None:
        self._maker = maker
        self._segments = segments
        self._label = maker.spec.input.label
        self._learns_unknown = maker.spec.join.unknown_items == "learn"
        self.rows = rows
        self.unknown_items = unknown_items

    def of(self, joined: Joined) -> Iterator[tuple[Examples, list[BadRow]]]:
        """Runs of rows whose columns have the same types, hashed; and those of them that are bad."""
        for batch in self._batches(joined):
            examples = self._maker.make(batch)
            yield examples, [_bad(batch, reject) for reject in examples.rejects]

    def _batches(self, joined: Joined) -> Iterator[RowBatch]:
        for first, gathered in self._segments.gather(joined.segment, joined.row):
            rows = len(next(iter(gathered.values())))
            mine = np.arange(first, first + rows)
            columns, known = gathered, self._known(gathered)
            if known is not None:
                columns = {name: column.filter(pa.array(known)) for name, column in gathered.items()}
                mine = mine[known]
                self.unknown_items += rows - mine.size
                rows = mine.size
                if not rows:
                    continue
            # What the event says under the label's name is not what became of it.
            labelled = {**columns, self._label: pa.array(joined.label[mine].astype(np.int64))}
            yield RowBatch(
                columns=labelled,
                lines=np.arange(self.rows, self.rows + rows, dtype=np.int64),
                file=JOIN,
                rejects=(),
                rows=rows,
                stop=Position(JOIN),
                first_row=self.rows,
                clicked=joined.clicked[mine],
            )
            self.rows += rows

    def _known(self, columns: Mapping[str, pa.Array]) -> npt.NDArray[np.bool_] | None:
        """bool[rows], which may be learned from; None for all of them."""
        marks = columns.get(UNKNOWN)  # rows of an older checkpoint have no such column
        if self._learns_unknown or marks is None or marks.null_count == len(marks):
            return None
        known: npt.NDArray[np.bool_] = pc.fill_null(marks, 0).to_numpy(zero_copy_only=False) == 0
        return None if known.all() else known


def _bad(batch: RowBatch, reject: Reject) -> BadRow:
    row = reject.line - int(batch.lines[0])
    values = {name: _plain(column[row].as_py()) for name, column in batch.columns.items()}
    return BadRow(reject.reason, json.dumps(values, ensure_ascii=False).encode("utf-8", "surrogateescape"))


def _plain(value: Any) -> Any:
    """As JSON can say it: bytes as text, a map as an object."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, list):
        return dict(value) if value and isinstance(value[0], tuple) else [_plain(each) for each in value]
    return value
