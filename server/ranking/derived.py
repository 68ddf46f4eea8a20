"""Gives the candidates of a request their derived values: those that depend on the request, and those of inline items.

A catalogue row whose values depend on the request becomes an inline item over its record, so that scores, explanations,
impressions, filters and shadows all see the same value.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.features.derived import value_number
from model_store.features.values import Value
from server.model.catalogue import Catalogue, InlineItem, StoredItem
from server.model.derived import DerivedFields
from server.ranking.query import Candidates, RequestFeatures
from server.ranking.scoring_kernels import FIRST_INLINE, NO_ITEM
from server.ranking.served import ServedVersion

Array = npt.NDArray[Any]


def with_item_values(
    served: ServedVersion, derived: DerivedFields, candidates: Candidates, features: RequestFeatures
) -> Candidates:
    """The candidates with their computed values. Items without a record or given features have none. O(candidates)."""
    request = features.values() if derived.from_request else {}
    given = _given(served, derived, candidates)
    values = derived.of_candidates(request, given, len(candidates.rows))
    rows, items = candidates.rows.copy(), list[InlineItem]()
    for place, row in enumerate(candidates.rows.tolist()):
        if row == NO_ITEM or (row >= 0 and not derived.per_request):
            continue
        own = {name: float(found[place]) for name, found in values.items() if isnan(given[name][place])}
        rows[place] = FIRST_INLINE - len(items)
        items.append(_item(served.catalogue, candidates, place, row, own))
    return served.ranker.with_items(candidates, rows, items)


def _item(
    catalogue: Catalogue, candidates: Candidates, place: int, row: int, own: Mapping[str, float]
) -> InlineItem:
    """A candidate as an inline item. own: its computed values, NaN where it has none."""
    found: Mapping[str, Value]
    if row >= 0:
        item_id, found = candidates.ids[place], StoredItem({}, catalogue, row)
    else:
        item_id, found = candidates.items[FIRST_INLINE - row]
    if isinstance(found, StoredItem):  # "" hides what the catalogue computed of the record alone
        over = {name: "" if isnan(value) else value for name, value in own.items()}
        return item_id, StoredItem({**found.given, **over}, catalogue, found.row)
    return item_id, {**found, **{name: value for name, value in own.items() if not isnan(value)}}


def _given(served: ServedVersion, derived: DerivedFields, candidates: Candidates) -> dict[str, Array]:
    """The numbers that records, or inline items over them, have of each of `from_items`: float64[candidates]."""
    rows, stored = candidates.rows, served.catalogue.numbers
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
    return given
