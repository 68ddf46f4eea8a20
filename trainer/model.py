"""A model that learns: its coordinates and its metrics, fed with hashed examples in order; and what it publishes.

Bit-identical for the same examples in the same order. One thread only. Knows nothing of files or stores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.artefact import Artefact
from model_store.cells import addresses
from model_store.spec import ModelSpec
from model_store.spec_sections import MAX_CROSS_FIELDS
from trainer import kernels
from trainer.admission.rules import FeatureRules
from trainer.coordinates import Coordinates
from trainer.hashing.examples import ExampleMaker, Examples, prefix_table
from trainer.hashing.kernels import key_tokens, write_keys
from trainer.table import ValueTable
from trainer.watching.metrics import Watching


class LearningModel:
    """All variants of a spec, learning in one pass."""

    def __init__(self, maker: ExampleMaker, watching: Watching | None = None) -> None:
        self.spec: ModelSpec = maker.spec
        self.maker = maker
        self.coordinates = Coordinates(maker.spec, maker.rules.masks, FeatureRules.of(maker.spec, maker.plan))
        self.metrics = (watching or Watching()).metrics(maker.spec, maker.plan)
        self._prefixes, self._prefix_starts = prefix_table(maker.prefixes)

    @property
    def table(self) -> ValueTable:
        """The value table."""
        return self.coordinates.table

    @property
    def rows(self) -> int:
        """How many examples were learned from."""
        return self.coordinates.examples

    def learn(self, examples: Examples) -> None:
        """Predict, then learn from each example in turn; watch the predictions."""
        rows = examples.hashed
        scores = np.empty((rows.labels.size, self.coordinates.lanes))
        added = self.coordinates.learn(rows, 0, rows.labels.size, scores)
        self._keep_keys(examples, added)
        self.metrics.update(scores, examples)

    def nonzero(self) -> int:
        """How many keys have a weight, in any variant."""
        return int(self.coordinates.weights(self.table.keys()).any(axis=1).sum())

    def artefact(self) -> Artefact:
        """What is published: every key with a weight, as float32, and its learning rate."""
        keys = self.table.keys()
        weight = self.coordinates.weights(keys).astype(np.float32)
        kept = weight.any(axis=1)
        offsets = np.zeros(int(kept.sum()) + 1, np.int64)
        np.cumsum(np.diff(keys.offsets)[kept], out=offsets[1:])
        data = np.empty(int(offsets[-1]), np.uint8)
        kernels.arena_keys(self.table.arena, kept.view(np.uint8), data)
        rate = self.coordinates.rates(keys).astype(np.float32)[kept]
        return Artefact.from_columns(
            key_data=data,
            key_offsets=offsets,
            weight=self._columns(weight[kept]),
            variants=self.coordinates.masks_of(keys)[kept],
            rate=self._columns(rate),
            spec=self.spec,
            metrics={name: m.numbers() for name, m in self.metrics.summary().items()},
        )

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """All that `restore` needs to go on as if nothing had happened."""
        state = {f"coordinates.{name}": array for name, array in self.coordinates.state().items()}
        return state | {f"metrics.{name}": array for name, array in self.metrics.state().items()}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take over what `state` gave, of the same spec."""
        for prefix, part in (("coordinates.", self.coordinates), ("metrics.", self.metrics)):
            part.restore({n.removeprefix(prefix): a for n, a in state.items() if n.startswith(prefix)})

    def _columns(self, numbers: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """One number a key, or one for each variant where they have values of their own."""
        return numbers if self.spec.learner.values == "per_variant" else numbers[:, 0]

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
