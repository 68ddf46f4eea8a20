"""Derived fields of labelled rows: their columns are filled before rows are sampled and hashed.

In: batches as `WholeRequests` cuts them. Out: the same batches, with a value in the columns of derived fields where the
log has none. `model_store.features.derived` computes the values; events are completed where they are parsed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from model_store.errors import SpecError
from model_store.features.derived import Derivations, Numbers
from model_store.spec.spec import ModelSpec
from trainer.events.derived_columns import numbers_read, with_numbers
from trainer.examples.requests import WholeRequests, request_ids, request_starts
from trainer.examples.row_histories import RowHistories
from trainer.formats.batch import RowBatch

_WAY = ("ratio", "difference", "list", "best", "of", "history", "measure", "last", "within")


class DerivedColumns:
    """Fills the columns of a spec's derived fields. A field that compares candidates gets whole requests."""

    def __init__(self, spec: ModelSpec) -> None:
        self._derivations = Derivations.of(spec.fields)
        self._request = spec.input.request

    def of(self, batches: Iterable[RowBatch]) -> Iterator[RowBatch]:
        """The batches in their order. Those that share a request are held until its last row is there."""
        if not self._derivations:
            yield from batches
            return
        held: list[RowBatch] = []
        for batch in batches:
            held.append(batch)
            if batch.resumable or not self._derivations.compares:
                yield from self.filled(held)
                held = []
        yield from self.filled(held)

    def filled(self, batches: Sequence[RowBatch]) -> Iterator[RowBatch]:
        """Batches that hold whole requests together."""
        if not self._derivations or not batches:
            yield from batches
            return
        parts = [numbers_read(self._derivations, batch.columns, batch.rows) for batch in batches]
        given = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        numbers = self._derivations.computed(given, self._starts(batches))
        first = 0
        for batch in batches:
            own: dict[str, Numbers] = {
                name: found[first : first + batch.rows] for name, found in numbers.items()
            }
            yield replace(batch, columns=with_numbers(self._derivations, batch.columns, own))
            first += batch.rows

    def _starts(self, batches: Sequence[RowBatch]) -> npt.NDArray[np.int64]:
        """Where requests start, and the number of rows."""
        rows = sum(batch.rows for batch in batches)
        if not self._derivations.compares:
            return np.array([0, rows], np.int64)
        ids = np.concatenate([request_ids(batch, self._request) for batch in batches])
        return np.append(np.flatnonzero(request_starts(ids)), rows)


def with_derived(batches: Iterable[RowBatch], specs: Sequence[ModelSpec]) -> Iterator[RowBatch]:
    """Rows that are read by several resolved specs, with the derived and history fields of all.

    Raises as `check_one_way`.
    """
    check_one_way(specs)
    for spec in specs:
        if (histories := RowHistories.of(spec)) is not None:
            batches = histories.filled(batches)
        if spec.derivation:
            batches = DerivedColumns(spec).of(WholeRequests(spec).of(batches))
    return iter(batches)


def check_one_way(specs: Sequence[ModelSpec]) -> None:
    """Raise SpecError if two specs that read the same rows compute one column in two ways."""
    ways: dict[str, tuple[object, ...]] = {}
    for spec in specs:
        for name, field in spec.fields.items():
            column, way = field.column or name, tuple(getattr(field, each) for each in _WAY)
            way += (field.side,) if field.history is not None else ()  # of the user, or of the candidate
            if field.is_derived and ways.setdefault(column, way) != way:
                raise SpecError(
                    f"fields.{name}: two of the models compute the column {column!r} in two ways; rename one of the "
                    "fields, or evaluate one model at a time"
                )


def check_comparable(spec: ModelSpec) -> None:
    """Raise SpecError if a resolved spec compares rows of requests, and labelled rows do not name these."""
    listed = [name for name, field in spec.fields.items() if field.list is not None]
    if listed and spec.input.request is None:
        raise SpecError(
            f'fields.{listed[0]}: list = "{spec.fields[listed[0]].list}" compares the rows of a request: set '
            "input.request, the column with the request of each row"
        )
