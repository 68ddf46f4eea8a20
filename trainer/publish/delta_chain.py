"""One line of versions: a snapshot, and deltas of it, of a model that learns. What is made here is not yet published.

A line knows what was published of every key, so that it finds what has moved since from the keys that were touched, and
holds back what has moved too little: not from the model before, but from what was published, so that drift adds up and
goes out. Where weights change without being touched (`untouched_stay`), or slots do not say when they were touched, it
looks at all keys.
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
from trainer.publish.published_rows import Numbers, PublishedRows


@dataclass(frozen=True)
class Change:
    """A delta that may be published, and what it changes of what a line knows once it is."""

    delta: Delta
    numbers: npt.NDArray[np.int64]  # of the keys it puts in or takes out
    published: Numbers  # as what
    keys: int  # that the model has with it


class Line:
    """What is published of a model, from a snapshot on. Thread safety: that of the model, one thread.

    The line's cost in memory is that of `PublishedRows`. `version`, `content` and `keys` are those of its latest
    version; `examples`: how many were learned by then.
    """

    def __init__(self, model: LearningModel, snapshot: Artefact, version: int) -> None:
        """Begin with a snapshot of the model as it is now."""
        self._model = model
        self._rows = PublishedRows(model.table, model.coordinates.own)
        self._looks_at_all = not untouched_stay(model.spec.learner)
        self._gone: list[Delta] = []
        self.version, self.content, self.keys = version, snapshot.content, snapshot.rows
        numbers, keys = self._rows.touched(0)
        self._rows.put(numbers, Numbers(*model.published(keys)))
        self.examples = model.rows
        model.about_to_drop = self._drop

    def change(self, threshold: float = 0.0, *, last: bool = False) -> Change:
        """What has moved by more than the threshold since it was published; of the last one all that moved at all."""
        since = 0 if last or self._looks_at_all else self.examples + 1
        numbers, keys = self._rows.touched(since)
        before, after = self._rows.published(numbers), Numbers(*self._model.published(keys))
        masks = self._model.coordinates.masks_of(keys)
        went, came = self._values(masks, before), self._values(masks, after)
        out = differing(went, came, 0.0 if last else threshold)
        there = int(after.there[out].sum()) - int(before.there[out].sum())
        chosen = self._rows.keys(numbers[out], keys.slots[out])
        delta = self._delta(chosen, _of(went, out), _of(came, out))
        gone = sum(each.rows for each in self._gone)
        return Change(delta, numbers[out], after.of(out), self.keys + there - gone)

    def went_out(self, change: Change, version: int) -> None:
        """Note that the change has been published as this version."""
        self._rows.put(change.numbers, change.published)
        self._gone = []
        self.version, self.content, self.keys = version, change.delta.content, change.keys
        self.examples = self._model.rows

    def _delta(self, keys: TableKeys, went: dict[str, Any], came: dict[str, Any]) -> Delta:
        """First the keys whose time was over are taken out; one that has come back is put in again."""
        delta = None
        for gone in self._gone:
            delta = gone if delta is None else delta.followed_by(gone)
        content = self.content if delta is None else delta.content
        latest = self._made(keys, content, went, came)
        return latest if delta is None else delta.followed_by(latest)

    def _drop(self, kept: npt.NDArray[np.bool_]) -> None:
        """Note which published keys the table is about to drop."""
        keys, published = self._rows.drop(kept)
        if not keys.slots.size:
            return
        went = self._values(self._model.coordinates.masks_of(keys), published)
        nothing = {name: np.zeros_like(each) for name, each in went.items()}
        content = self._gone[-1].content if self._gone else self.content
        self._gone.append(self._made(keys, content, went, nothing))

    def _values(self, masks: npt.NDArray[np.uint32], numbers: Numbers) -> dict[str, Any]:
        return {
            "weight": self._model.shaped(numbers.weight),
            "variants": np.where(numbers.there, masks, np.uint32(0)),
            "rate": self._model.shaped(numbers.rate),
        }

    def _made(
        self, keys: TableKeys, parent_content: str, went: dict[str, Any], came: dict[str, Any]
    ) -> Delta:
        columns: dict[str, Any] = {"key_data": keys.data, "key_offsets": keys.offsets}
        content = (
            Content.parse(parent_content) - Content.of(**columns, **went) + Content.of(**columns, **came)
        )
        return Delta.from_columns(
            **columns,
            **came,
            **self._model.described(),
            parent=self.version,
            parent_content=parent_content,
            content=str(content),
        )


def _of(values: dict[str, Any], rows: npt.NDArray[np.bool_]) -> dict[str, Any]:
    return {name: each[rows] for name, each in values.items()}
