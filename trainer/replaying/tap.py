"""Keeps what the join gives out, for estimates: every impression's rows in the order shown, with what came of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from model_store.spec import ModelSpec
from trainer.hashing.examples import ExampleMaker
from trainer.joining.join import Joined
from trainer.joining.segments import Segments
from trainer.replaying.columns import Layout
from trainer.replaying.logged import LoggedRows, RowCollector
from trainer.replaying.reading import bad_rows
from trainer.sources import Position, RowBatch

_ROWS_A_SEGMENT = 40
"""Bits of a row's number in its key; the segment's number stands above them."""


@dataclass
class JoinedTap:
    """Collects joined rows. columns: those that estimates want, besides what the spec of the replay wants.

    A row that the join gives out again, corrected by a late click, counts as it was given out last.
    """

    spec: ModelSpec
    columns: Sequence[str]
    _batches: list[RowBatch] = field(default_factory=list)
    _keys: list[Any] = field(default_factory=list)
    _rows: int = 0

    def add(self, joined: Joined, segments: Segments) -> None:
        """Keep the rows of one step."""
        keys = joined.segment.astype(np.int64) << _ROWS_A_SEGMENT | joined.row
        for first, columns in segments.gather(joined.segment, joined.row):
            rows = len(next(iter(columns.values())))
            mine = slice(first, first + rows)
            label = pa.array(joined.label[mine].astype(np.int64))
            self._batches.append(
                RowBatch(
                    columns={**columns, self.spec.input.label: label},
                    lines=np.arange(self._rows, self._rows + rows, dtype=np.int64),
                    file="join",
                    rejects=(),
                    rows=rows,
                    stop=Position("join"),
                )
            )
            self._keys.append(keys[mine])
            self._rows += rows

    def read(
        self,
        models: Sequence[ModelSpec],
        propensity: str | None,
        position: str | None,
        decision: str,
        on_rows: Callable[[int], None] = lambda rows: None,
    ) -> tuple[LoggedRows, Layout]:
        """The rows, without those that are no example to one of the (resolved) models. Raises SpecError, InputError."""
        names = tuple(self._batches[0].columns) if self._batches else ()
        layout = Layout.of(names, propensity, position)
        collector = RowCollector(self.spec.input, layout)
        makers = [ExampleMaker(spec) for spec in models]
        rows = 0
        for batch, keys in zip(self._batches, self._keys, strict=True):
            collector.add(batch, bad_rows(batch, makers), keys)
            rows += batch.rows
            on_rows(rows)
        return collector.rows(decision), layout
