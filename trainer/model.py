"""A model that learns: the value table, its learner and its metrics, fed with hashed examples in order.

Bit-identical for the same examples in the same order. One thread only. Knows nothing of files or stores.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.artefact import Artefact
from model_store.cells import addresses
from model_store.errors import SpecError
from model_store.spec import ModelSpec
from model_store.learner_section import LearnerSection
from model_store.spec_sections import MAX_CROSS_FIELDS
from trainer import kernels
from trainer.hashing.examples import ExampleMaker, Examples, prefix_table
from trainer.hashing.kernels import key_tokens, write_keys
from trainer.kernels import HashedRows
from trainer.learners.ftrl import Ftrl, Work, learn_many, learn_one
from trainer.learners.lanes import LANES
from trainer.table import ValueTable
from trainer.watching.metrics import ProgressiveMetrics


class LearningModel:
    """All variants of a spec, learning in one pass (single value structure)."""

    def __init__(self, maker: ExampleMaker) -> None:
        self.spec: ModelSpec = maker.spec
        self.maker = maker
        self.learner = Ftrl.of(check_learner(self.spec.learner))
        self.table = ValueTable()
        self.metrics = ProgressiveMetrics(maker.plan.variants)
        self.rows = 0
        self._prefixes, self._prefix_starts = prefix_table(maker.prefixes)
        self._class_of, self._uses = _classes(maker.rules.masks, len(maker.plan.variants))
        self._users = self._uses.sum(axis=1)

    def learn(self, examples: Examples) -> None:
        """Predict, then learn from each example in turn; watch the predictions."""
        rows = examples.hashed
        scores = np.empty((rows.labels.size, self._uses.shape[1]))
        added = np.empty(rows.hashes.size, np.int64)
        longest = int(np.diff(rows.starts).max(initial=0))
        work = Work.room(longest, self._uses.shape[1], self._uses.shape[0])
        row = count = 0
        while row < rows.labels.size:
            row, total = self._learn_rows(rows, row, scores, added, count, work)
            self.table.used += total - count
            count = total
            if row < rows.labels.size:
                self.table.grow()
        self._keep_keys(examples, added[:count])
        self.metrics.update(scores, rows.labels, rows.weights)
        self.rows += int(rows.labels.size)

    def weights(self) -> npt.NDArray[np.float64]:
        """The weight of every slot of the table."""
        return self.learner.weights(self.table.slots)

    def artefact(self) -> Artefact:
        """What is published: every key with a weight, as float32, and its learning rate."""
        keys = self.table.keys()
        weight = self.weights()[keys.slots].astype(np.float32)
        kept = weight != 0.0
        offsets = np.zeros(int(kept.sum()) + 1, np.int64)
        np.cumsum(np.diff(keys.offsets)[kept], out=offsets[1:])
        data = np.empty(int(offsets[-1]), np.uint8)
        kernels.arena_keys(self.table.arena, kept.view(np.uint8), data)
        slots = keys.slots[kept]
        return Artefact.from_columns(
            key_data=data,
            key_offsets=offsets,
            weight=weight[kept],
            variants=self.table.slots["variants"][slots],
            rate=self.learner.rates(self.table.slots)[slots].astype(np.float32),
            spec=self.spec,
            metrics={name: _defined(m.as_dict()) for name, m in self.metrics.summary().items()},
        )

    def _learn_rows(
        self, rows: HashedRows, row: int, scores: Any, added: Any, count: int, work: Work
    ) -> tuple[int, int]:
        state = (
            self.table.slots,
            self.table.room,
            row,
            rows,
            self.maker.rules.masks,
            self.learner.parameters,
        )
        if len(self.maker.plan.variants) == 1:
            reached: tuple[int, int] = learn_one(*state, scores, added, count, work)
        else:
            reached = learn_many(*state, scores, added, count, work, self._class_of, self._uses, self._users)
        return reached

    def _keep_keys(self, examples: Examples, added: npt.NDArray[np.int64]) -> None:
        """Write the bytes of the keys that a batch admitted to the arena."""
        if not added.size:
            return
        found = np.empty((added.size, MAX_CROSS_FIELDS), np.int64)
        picked = np.empty(MAX_CROSS_FIELDS, np.int64)
        key_tokens(added, examples.rows, examples.hashed, examples.tokens, found, picked)
        places = (*addresses(examples.texts), self._prefixes, self._prefix_starts)
        what = (added, found, examples.hashed.features, examples.tokens)
        while (end := write_keys(*what, *places, self.table.arena, self.table.arena_bytes)) < 0:
            self.table.widen_arena()
        self.table.arena_bytes = end


def check_learner(section: LearnerSection) -> LearnerSection:
    """Return the section if this trainer can learn by it; SpecError names what it cannot do."""
    supported: dict[str, object] = {
        "algorithm": "ftrl",
        "values": "single",
        "rate": "gradients",
        "precision": "f64",
    }
    for name, value in supported.items():
        if getattr(section, name) != value:
            raise SpecError(
                f"learner.{name}: {getattr(section, name)!r} is not built yet; this version has {value!r}"
            )
    if section.inclusion.kind != "none":
        raise SpecError(
            f'learner.inclusion: {section.inclusion.kind!r} is not built yet; this version has "none"'
        )
    if section.subsample is not None:
        raise SpecError("learner.subsample is not built yet; leave it out")
    return section


def _classes(
    masks: npt.NDArray[np.uint32], variants: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Features that the same variants use form a class: class of each feature, and uses float64[classes, lanes]."""
    distinct, class_of = np.unique(masks, return_inverse=True)
    lanes = 1 if variants == 1 else -(-variants // LANES) * LANES
    uses = np.zeros((distinct.size, lanes))
    for row, mask in zip(uses, distinct, strict=True):
        row[:variants] = [(int(mask) >> bit) & 1 for bit in range(variants)]
    return class_of.reshape(-1).astype(np.int64), uses


def _defined(metrics: dict[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if value is not None}
