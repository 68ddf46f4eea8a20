"""A chain of versions of a model that learns: a snapshot and deltas of it. It makes them; `publisher` publishes them.

The chain remembers the published value of every key. A delta holds the keys touched since the version before whose
value has moved by more than a threshold from what was published, so that small moves add up and are published in time.
Where weights change without being touched (`untouched_stay`), or slots do not record when they were touched, all keys
are compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.artefact.artefact import Artefact, Delta
from model_store.artefact.changes import differing
from model_store.artefact.rows import Content
from trainer.learn.learners.registry import untouched_stay
from trainer.learn.model import LearningModel
from trainer.learn.table import TableKeys
from trainer.publish.published_rows import PublishedRows, PublishedValues


@dataclass(frozen=True)
class Change:
    """A delta to be published, and what the chain has to remember once it is."""

    delta: Delta
    numbers: npt.NDArray[np.int64]  # of the keys it adds, changes or removes
    published: PublishedValues  # of these keys
    keys: int  # in the model after it


class DeltaChain:
    """The published versions of one model, from a snapshot on. For the model's thread.

    `version`, `content` and `keys` are those of the latest version; `examples`: how many it was learned from. Memory:
    that of `PublishedRows`.
    """

    def __init__(self, model: LearningModel, snapshot: Artefact, version: int) -> None:
        """Start with a snapshot of the model as it is now."""
        self._model = model
        self._rows = PublishedRows(model.table, model.coordinates.own)
        self._looks_at_all = not untouched_stay(model.spec)
        self._removed: list[Delta] = []
        self.version, self.content, self.keys = version, snapshot.content, snapshot.rows
        numbers, keys = self._rows.touched(0)
        self._rows.put(numbers, PublishedValues(*model.published(keys)))
        self.examples = model.rows
        model.about_to_drop = self._drop

    def change(self, threshold: float = 0.0, *, last: bool = False) -> Change:
        """The keys that moved by more than the threshold since they were published; with `last`, all that moved."""
        since = 0 if last or self._looks_at_all else self.examples + 1
        numbers, keys = self._rows.touched(since)
        before, after = self._rows.published(numbers), PublishedValues(*self._model.published(keys))
        masks = self._model.coordinates.masks_of(keys)
        old, new = self._columns(masks, before), self._columns(masks, after)
        changed = differing(old, new, 0.0 if last else threshold)
        added = int(after.is_published[changed].sum()) - int(before.is_published[changed].sum())
        chosen = self._rows.keys(numbers[changed], keys.slots[changed])
        delta = self._delta(chosen, _rows_of(old, changed), _rows_of(new, changed))
        removed = sum(each.rows for each in self._removed)
        return Change(delta, numbers[changed], after.of(changed), self.keys + added - removed)

    def mark_published(self, change: Change, version: int) -> None:
        """Remember that the change has been published as this version."""
        self._rows.put(change.numbers, change.published)
        self._removed = []
        self.version, self.content, self.keys = version, change.delta.content, change.keys
        self.examples = self._model.rows

    def _delta(self, keys: TableKeys, old: dict[str, Any], new: dict[str, Any]) -> Delta:
        """Evicted keys are removed first, so that a key that has come back is added again."""
        delta = None
        for removed in self._removed:
            delta = removed if delta is None else delta.followed_by(removed)
        content = self.content if delta is None else delta.content
        latest = self._delta_of(keys, content, old, new)
        return latest if delta is None else delta.followed_by(latest)

    def _drop(self, kept: npt.NDArray[np.bool_]) -> None:
        """Remember which published keys the table is about to evict."""
        keys, published = self._rows.drop(kept)
        if not keys.slots.size:
            return
        old = self._columns(self._model.coordinates.masks_of(keys), published)
        nothing = {name: np.zeros_like(column) for name, column in old.items()}
        content = self._removed[-1].content if self._removed else self.content
        self._removed.append(self._delta_of(keys, content, old, nothing))

    def _columns(self, masks: npt.NDArray[np.uint32], values: PublishedValues) -> dict[str, Any]:
        return {
            "weight": self._model.shaped(values.weight),
            "variants": np.where(values.is_published, masks, np.uint32(0)),
            "rate": self._model.shaped(values.rate),
        }

    def _delta_of(
        self, keys: TableKeys, parent_content: str, old: dict[str, Any], new: dict[str, Any]
    ) -> Delta:
        columns: dict[str, Any] = {"key_data": keys.data, "key_offsets": keys.offsets}
        content = Content.parse(parent_content) - Content.of(**columns, **old) + Content.of(**columns, **new)
        return Delta.from_columns(
            **columns,
            **new,
            **self._model.described(),
            parent=self.version,
            parent_content=parent_content,
            content=str(content),
        )


def _rows_of(columns: dict[str, Any], rows: npt.NDArray[np.bool_]) -> dict[str, Any]:
    return {name: column[rows] for name, column in columns.items()}
