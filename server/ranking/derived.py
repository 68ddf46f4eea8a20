"""Gives the candidates of a request their derived values: those that depend on the request, and those of inline items.

A catalogue row whose values depend on the request becomes an inline item over its record, so that scores, explanations,
impressions, filters and shadows all see the same value. Its tokens are copied from the catalogue's in one pass, and the
item itself is made when it is read: by an explanation, or by the impression of the few that are shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isnan
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from model_store.features.derived import value_number
from model_store.features.values import Value
from server.model.catalogue import Catalogue, InlineItem, StoredItem
from server.model.derived import DerivedFields
from server.model.tokens import NO_VALUE, TokenTable, number_tokens
from server.ranking.query import Candidates, RequestFeatures
from server.ranking.scoring_kernels import FIRST_INLINE
from server.ranking.served import ServedVersion

Array = npt.NDArray[Any]


def with_item_values(
    served: ServedVersion,
    derived: DerivedFields | None,
    candidates: Candidates,
    features: RequestFeatures,
    histories: Mapping[str, Array] | None = None,
) -> Candidates:
    """The candidates with their computed values. Items of which nothing is known have none. O(candidates).

    histories: values of fields of the user's history by name, float64[candidates]; a given value goes before them.
    """
    given, values = dict[str, Array](), dict[str, Array]()
    if derived is not None:
        request = features.values() if derived.from_request else {}
        given = _given(served.catalogue, derived, candidates)
        values = derived.of_candidates(request, given, len(candidates.rows))
    per_request = derived.per_request if derived is not None else ()
    if histories:
        given |= _given_inline(candidates, tuple(histories))
        values = {**values, **histories}
        per_request = (*per_request, *histories)
    known = np.flatnonzero(candidates.rows >= 0) if per_request else np.empty(0, np.int64)
    inline = np.flatnonzero(candidates.rows <= FIRST_INLINE)
    stored = candidates.rows[known]
    columns = {name: values[name][known] for name in per_request}
    more = [_inline_item(served.catalogue, candidates, place, given, values) for place in inline.tolist()]
    items = ComputedItems(served.catalogue, candidates.ids, known, stored, columns, more)
    rows = candidates.rows.copy()
    rows[known] = FIRST_INLINE - np.arange(len(known))
    rows[inline] = FIRST_INLINE - len(known) - np.arange(len(inline))
    tokens = _tokens(served, stored, columns)
    if more:
        tail = served.ranker.item_tokens(more)
        tokens = _below(tokens, tail)
    own = {name: values[name] for name in per_request}
    return Candidates(candidates.ids, rows, items, tokens, candidates.unknown, candidates.rows, own)


class ComputedItems(Sequence[InlineItem]):
    """The inline items of a request: catalogue rows over which values were computed, then others. Immutable.

    place, row: of each of the first ones, among the candidates and in the catalogue; columns: their values by field.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        ids: Sequence[str],
        place: Array,
        row: Array,
        columns: Mapping[str, Array],
        more: Sequence[InlineItem],
    ) -> None:
        self._catalogue, self._ids, self._more = catalogue, ids, more
        self.place, self.row, self.columns = place, row, columns

    def __len__(self) -> int:
        return len(self.row) + len(self._more)

    @overload
    def __getitem__(self, index: int) -> InlineItem: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[InlineItem]: ...

    def __getitem__(self, index: int | slice) -> InlineItem | Sequence[InlineItem]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        if index >= len(self.row):
            return self._more[index - len(self.row)]
        values = {name: float(column[index]) for name, column in self.columns.items()}
        item_id = self._ids[int(self.place[index])]
        return item_id, StoredItem(_over(values), self._catalogue, int(self.row[index]))

    def __iter__(self) -> Iterator[InlineItem]:
        return (self[index] for index in range(len(self)))


def _over(values: Mapping[str, float]) -> dict[str, Value]:
    """Values over a record; "" hides what the catalogue has."""
    return {name: "" if isnan(value) else value for name, value in values.items()}


def _inline_item(
    catalogue: Catalogue,
    candidates: Candidates,
    place: int,
    given: Mapping[str, Array],
    values: Mapping[str, Array],
) -> InlineItem:
    item_id, features = candidates.items[FIRST_INLINE - int(candidates.rows[place])]
    own = {name: float(column[place]) for name, column in values.items() if isnan(given[name][place])}
    if isinstance(features, StoredItem):
        return item_id, StoredItem({**features.given, **_over(own)}, catalogue, features.row)
    return item_id, {**features, **{name: value for name, value in own.items() if not isnan(value)}}


def _given(catalogue: Catalogue, derived: DerivedFields, candidates: Candidates) -> dict[str, Array]:
    """The numbers that records, or inline items over them, have of each of `from_items`: float64[candidates]."""
    rows, stored = candidates.rows, catalogue.numbers
    known = np.flatnonzero(rows >= 0)
    given = {name: np.full(len(rows), np.nan) for name in derived.from_items}
    for name, found in given.items():
        found[known] = stored[name][rows[known]]
    for place in np.flatnonzero(rows <= FIRST_INLINE).tolist():
        _, features = candidates.items[FIRST_INLINE - int(rows[place])]
        for name, found in given.items():
            if isinstance(features, StoredItem) and name not in features.given:
                found[place] = stored[name][features.row]
            else:
                found[place] = value_number(features.get(name))
    return derived.fitting(given)


def _given_inline(candidates: Candidates, names: Sequence[str]) -> dict[str, Array]:
    """The numbers that inline items bring of these fields: float64[candidates], NaN elsewhere."""
    given = {name: np.full(len(candidates.rows), np.nan) for name in names}
    for place in np.flatnonzero(candidates.rows <= FIRST_INLINE).tolist():
        _, features = candidates.items[FIRST_INLINE - int(candidates.rows[place])]
        own = features.given if isinstance(features, StoredItem) else features
        for name, found in given.items():
            found[place] = value_number(own.get(name))
    return given


def _tokens(served: ServedVersion, rows: Array, columns: Mapping[str, Array]) -> TokenTable:
    """The tokens of catalogue rows with other values in some number fields."""
    catalogue = served.catalogue.tokens_of(served.model.item_id_fields)
    values = catalogue.values[rows]
    fields = served.model.plan.item_fields
    places = [place for place, field in enumerate(fields) if field.name in columns]
    values[:, places] = NO_VALUE
    table = catalogue.at(values)
    for place in places:
        own = number_tokens(fields[place], columns[fields[place].name])
        numbered = np.where(own.values[:, 0] == NO_VALUE, NO_VALUE, own.values[:, 0] + len(table))
        table.values[:, place] = numbered
        table = table.followed_by(own, table.values)
    return table


def _below(table: TokenTable, tail: TokenTable) -> TokenTable:
    """The rows of both tables."""
    values = np.where(tail.values == NO_VALUE, NO_VALUE, tail.values + len(table)).astype(np.int32)
    return table.followed_by(tail, np.concatenate([table.values, values]))
