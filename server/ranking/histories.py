"""The values of history fields at the time of a request: the user's own, and those of each candidate.

A history is what the trainer has written of the user's earlier events, as read with the user's record;
`model_store.features.history` computes, the same code as in the trainer; `derived` lays the values of candidates over
their records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.features.history import ITEM, HistoryPlan, UserHistory, absent
from model_store.features.values import Value
from server.model.attributes import NO_TEXT
from server.ranking.query import Candidates
from server.ranking.scoring_kernels import FIRST_INLINE
from server.ranking.served import ServedVersion

Array = npt.NDArray[Any]


def read_history(plan: HistoryPlan, record: bytes) -> UserHistory:
    """The history in a record that was checked; one without events if it is empty. O(events)."""
    return UserHistory.decode(record, plan) if record else UserHistory()


def user_values(plan: HistoryPlan, history: UserHistory, now_us: int) -> dict[str, Value]:
    """The values of the user's fields, by name, without those that are absent."""
    found: dict[str, Value] = {}
    for each in plan.user_fields:
        value = history.of_user(each, now_us)
        if isinstance(value, list):
            texts = [text.decode() for text in value if _is_text(text)]
            if texts:
                found[each.name] = texts
        elif value is not None:
            found[each.name] = value
    return found


def item_values(
    served: ServedVersion, plan: HistoryPlan, candidates: Candidates, history: UserHistory, now_us: int
) -> dict[str, Array]:
    """The values of fields of the candidate, by name: float64[candidates], NaN where absent.

    Items of which nothing is known have none. O(candidates · events), in numpy for items of the catalogue.
    """
    found: dict[str, Array] = {}
    rows = candidates.rows
    known, inline = np.flatnonzero(rows >= 0), np.flatnonzero(rows <= FIRST_INLINE)
    unknown = frozenset(candidates.unknown)
    for each in plan.item_fields:
        values, other = history.of_items(each, now_us), absent(each)
        rest = math.nan if other is None else other
        column = found[each.name] = np.full(len(rows), np.nan)
        column[known] = _of_rows(served, plan.columns[each.of], rows[known], values, rest)
        for place in inline.tolist():
            item_id, features = candidates.items[FIRST_INLINE - int(rows[place])]
            if features or item_id not in unknown:
                text = _shared(served, plan.columns[each.of], item_id, features)
                column[place] = values.get(text, rest) if text else math.nan
    return found


def _of_rows(
    served: ServedVersion, column: str, rows: Array, values: Mapping[bytes, float], rest: float
) -> Array:
    """The value of each of these rows of the catalogue, by its id or its value of a field."""
    of_field, catalogue = np.full(len(rows), np.nan), served.catalogue
    codes = np.full(len(rows), NO_TEXT)
    stored = catalogue.attributes.columns.get(column) if column != ITEM else None
    if stored is not None and stored.start is None:
        codes = stored.codes[rows]
        of_field[codes != NO_TEXT] = rest
        for text, value in values.items():
            if (code := stored.code(text)) != NO_TEXT:
                of_field[codes == code] = value
    if column == ITEM or column in served.model.item_id_fields:  # the id, unless the record has another value
        by_id = codes == NO_TEXT
        of_field[by_id] = rest
        ids = [text.decode() for text in values if _is_text(text)]
        for item_id, row in zip(ids, catalogue.rows.rows(ids)[0].tolist(), strict=True):
            if row >= 0:
                of_field[by_id & (rows == row)] = values[item_id.encode()]
    return of_field


def _shared(served: ServedVersion, column: str, item_id: str, features: Mapping[str, Value]) -> bytes:
    """The text by which a candidate is found in a history: its id, or its value of a field."""
    if column == ITEM:
        return item_id.encode("utf-8", "surrogatepass")
    value = features.get(column)
    if not value and column in served.model.item_id_fields:
        value = item_id
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else b""


def _is_text(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
