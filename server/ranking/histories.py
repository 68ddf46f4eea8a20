"""The values of history fields at the time of a request: the user's own, and those of each candidate.

A history is what the trainer has written of the user's earlier events, as read with the user's record;
`model_store.features.history` computes, the same code as in the trainer. A candidate with such a value becomes an
inline item over its record, so that scores, explanations and impressions all see the same value.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from model_store.features.history import ITEM, HistoryPlan, UserHistory, absent
from model_store.features.values import Value
from server.model.catalogue import InlineItem, StoredItem
from server.ranking.query import Candidates
from server.ranking.scoring_kernels import FIRST_INLINE, NO_ITEM
from server.ranking.served import ServedVersion


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


def with_history_values(
    served: ServedVersion, plan: HistoryPlan, candidates: Candidates, history: UserHistory, now_us: int
) -> Candidates:
    """The candidates with the values of fields of the candidate. Unknown items have none. O(candidates · fields)."""
    tables = [(each, history.of_items(each, now_us), absent(each)) for each in plan.item_fields]
    rows, items, unknown = candidates.rows.copy(), list[InlineItem](), frozenset(candidates.unknown)
    for place, row in enumerate(candidates.rows.tolist()):
        if row == NO_ITEM:
            continue
        features: Mapping[str, Value]
        if row >= 0:
            item_id, features = candidates.ids[place], StoredItem({}, served.catalogue, row)
        else:
            item_id, features = candidates.items[FIRST_INLINE - row]
        rows[place] = FIRST_INLINE - len(items)
        if item_id in unknown and not features:
            items.append((item_id, features))
            continue
        given = features.given if isinstance(features, StoredItem) else features
        more: dict[str, Value] = {}
        for each, values, other in tables:
            if given.get(each.name) not in (None, ""):
                continue
            text = _shared(served, plan.columns[each.of], item_id, features)
            value = values.get(text, other) if text else None
            if value is not None:
                more[each.name] = value
        if isinstance(features, StoredItem):
            items.append((item_id, StoredItem({**features.given, **more}, served.catalogue, features.row)))
        else:
            items.append((item_id, {**features, **more}))
    return served.ranker.with_items(candidates, np.asarray(rows), items)


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
