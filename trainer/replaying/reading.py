"""Reads the rows that estimates rest on, once for all policies: the columns that any of their models wants.

A row that one model's fields cannot take is left out for all, so that all are judged on the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.spec import ModelSpec
from trainer.beginning import begin
from trainer.hashing.examples import ExampleMaker
from trainer.replaying.columns import Layout
from trainer.replaying.logged import LoggedRows, RowCollector
from trainer.side_tables import SideTable, joined
from trainer.sources import LogReader, RowBatch

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class LogOfRows:
    """Labelled rows, as `ftrie train` reads them. decision: what a row is, see `logged`."""

    inputs: Sequence[str]
    format: str | None
    tables: Sequence[SideTable]
    propensity: str | None
    position: str | None
    decision: str
    on_note: Callable[[str], None]

    def read(
        self, spec: ModelSpec, models: Sequence[ModelSpec], on_rows: Callable[[int], None] = lambda rows: None
    ) -> tuple[LoggedRows, Layout, list[ModelSpec]]:
        """The rows with the columns of all models; the models' specs, resolved. `spec` names the label and the item.

        Raises SpecError where a column is missing, InputError where the log cannot be read or has no row.
        """
        with LogReader(self.inputs, format=self.format, on_note=self.on_note) as reader:
            beginnings = [begin(each, reader, self.tables, self.on_note) for each in (spec, *models)]
            layout = Layout.of(reader.columns(), self.propensity, self.position)
            named = beginnings[0].resolved.input.named_columns
            read = _each_once([*(each.columns for each in beginnings), named, layout.wanted])
            wanted = _each_once(
                [*(each.resolved.wanted_columns() for each in beginnings), named, layout.wanted]
            )
            resolved = [each.resolved for each in beginnings[1:]]
            in_log = tuple(name for name in read if name in reader.columns() or reader.may_have(name))
            collector = RowCollector(beginnings[0].resolved.input, layout)
            collect(collector, joined(reader.batches(in_log), self.tables, wanted), resolved, on_rows)
        return collector.rows(self.decision), layout, resolved


def collect(
    collector: RowCollector,
    batches: Iterable[RowBatch],
    resolved: Sequence[ModelSpec],
    on_rows: Callable[[int], None] = lambda rows: None,
) -> None:
    """Hand batches to a collector, without the rows that are no example to one of the models."""
    makers = [ExampleMaker(spec) for spec in resolved]
    rows = 0
    for batch in batches:
        collector.add(batch, bad_rows(batch, makers))
        rows += batch.rows
        on_rows(rows)


def bad_rows(batch: RowBatch, makers: Sequence[ExampleMaker]) -> list[int]:
    """The places of rows that one of the makers cannot make an example of."""
    good = np.ones(batch.rows, bool)
    for maker in makers:
        mine = np.zeros(batch.rows, bool)
        mine[maker.make(batch).rows] = True
        good &= mine
    return [int(row) for row in np.flatnonzero(~good)]


def _each_once(names: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for some in names for name in some))
