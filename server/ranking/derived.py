"""Gives the candidates of a request their derived values: those that depend on the request, and those of inline items.

A catalogue row whose values depend on the request becomes an inline item over its record, so that scores, explanations,
impressions, filters and shadows all see the same value. Its tokens are copied from the catalogue's in one pass, and the
item itself is made when it is read: by an explanation, or by the impression of the few that are shown.

A history is what the trainer has written of the user's earlier events, as read with the user's record. Its fields are
values of the user, or of each candidate, at the time of a request; `model_store.features.history` computes them, the
same code as in the trainer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from model_store.features.derived import value_number
from model_store.features.history import ITEM, HistoryPlan, UserHistory, absent
from model_store.spec.values import Value
from server.model.columns import NO_TEXT, Catalogue, InlineItem, StoredItem
from server.model.derived import DerivedFields
from server.model.tokens import NO_VALUE, TokenTable, number_tokens
from server.ranking.query import Candidates, RequestFeatures
from server.ranking.scoring_kernels import FIRST_INLINE, NO_ITEM
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
        given = derived.fitting(_given(candidates, derived.from_items, served.catalogue))
        values = derived.of_candidates(request, given, len(candidates.rows))
    per_request = derived.per_request if derived is not None else ()
    if histories:
        given |= _given(candidates, tuple(histories), None)
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
        # Numbered behind those of the catalogue's rows: inline items are r = 0, 1, 2 … in this order.
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


def _over(values: Mapping[str, float]) -> dict[str, Value]:
    """Values over a record; "" hides what the catalogue has."""
    return {name: "" if math.isnan(value) else value for name, value in values.items()}


def _inline_item(
    catalogue: Catalogue,
    candidates: Candidates,
    place: int,
    given: Mapping[str, Array],
    values: Mapping[str, Array],
) -> InlineItem:
    item_id, features = candidates.items[FIRST_INLINE - int(candidates.rows[place])]
    own = {name: float(column[place]) for name, column in values.items() if math.isnan(given[name][place])}
    if isinstance(features, StoredItem):
        return item_id, StoredItem({**features.given, **_over(own)}, catalogue, features.row)
    return item_id, {**features, **{name: value for name, value in own.items() if not math.isnan(value)}}


def _given(candidates: Candidates, names: Sequence[str], catalogue: Catalogue | None) -> dict[str, Array]:
    """The numbers that inline items have of these fields, and the catalogue's records, if it is given.

    float64[candidates] by name, NaN where there are none. Inline items over a record go before it.
    """
    rows = candidates.rows.copy()
    own = dict[int, Mapping[str, Value]]()
    for place in np.flatnonzero(rows <= FIRST_INLINE).tolist():
        _, features = candidates.items[FIRST_INLINE - int(rows[place])]
        own[place] = features.given if isinstance(features, StoredItem) else features
        rows[place] = features.row if isinstance(features, StoredItem) else NO_ITEM
    known = np.flatnonzero(rows >= 0)
    given = {name: np.full(len(rows), np.nan) for name in names}
    for name, found in given.items():
        if catalogue is not None:
            found[known] = catalogue.given(name, rows[known])
        for place, features in own.items():
            if name in features:
                found[place] = value_number(features[name])
    return given


def _tokens(served: ServedVersion, rows: Array, columns: Mapping[str, Array]) -> TokenTable:
    """The tokens of catalogue rows with other values in some number fields."""
    catalogue = served.catalogue.tokens_of(served.model.item_id_fields)
    values = catalogue.values[rows]
    fields = served.model.plan.item_fields
    places = [place for place, field in enumerate(fields) if field.name in columns]
    # `values` is a copy of the catalogue's rows, as indexing by an array makes one.
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


# -- histories


def read_history(plan: HistoryPlan, record: bytes) -> UserHistory:
    """The history in a record that was checked; one without events if it is empty. O(events)."""
    return UserHistory.decode(record, plan) if record else UserHistory()


def user_values(plan: HistoryPlan, history: UserHistory, now_us: int) -> dict[str, Value]:
    """The values of the user's fields, by name, without those that are absent."""
    found: dict[str, Value] = {}
    for each in plan.user_fields:
        value = history.of_user(each, now_us)
        if isinstance(value, dict):
            counts = {text.decode(): count for text, count in value.items() if _is_text(text)}
            if counts:
                found[each.name] = counts
        elif isinstance(value, list):
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
    stored = catalogue.columns.get(column) if column != ITEM else None
    if stored is not None and not stored.is_set:
        codes = stored.texts_in(rows)
        of_field[codes != NO_TEXT] = rest
        # A pass over the rows for each text of the history, which has few, instead of a look-up in Python for each row.
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
