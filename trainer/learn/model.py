"""LearningModel: learns hashed examples in order, computes training metrics, and makes the artefact to publish.

Bit-identical for the same examples in the same order. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.artefact.artefact import Artefact
from model_store.artefact.rows import nearest_q213
from model_store.errors import FtrieError, SpecError
from model_store.spec.sections import MAX_CROSS_FIELDS
from model_store.spec.spec import ModelSpec
from trainer.examples.examples_kernels import key_tokens, write_keys
from trainer.examples.hashing import ExampleMaker, Examples, prefix_table
from trainer.formats.cells import text_places
from trainer.learn.calibration import Calibrator
from trainer.learn.coordinates import Coordinates
from trainer.learn.eviction import eviction_of
from trainer.learn.loops_kernels import Predicted
from trainer.learn.metrics.metrics import MetricsOptions, ProgressiveMetrics
from trainer.learn.metrics.recent import Recent
from trainer.learn.metrics.regret import RegretRecorder
from trainer.learn.metrics.warnings import ModelWarnings
from trainer.learn.predictions_kernels import NOT_ASKED, Predictions
from trainer.learn.table import TableKeys, ValueTable, part_of
from trainer.learn.table_kernels import arena_keys
from trainer.learn.warm_start import warm_start
from trainer.learn.whole_requests import twice

_MANY_KEYS = 1_000
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class ModelMemory:
    """Bytes that a learning model holds: the table's slots, the keys' bytes, the admission filters.

    keys: with hash_bits, the set of the keys' hashes too.
    """

    table: int
    keys: int
    filters: int

    def as_dict(self, keys: int) -> dict[str, float]:
        """The bytes by name, and the table's bytes per key."""
        return asdict(self) | {"table_per_key": round(self.table / keys, 2) if keys else 0.0}


class LearningModel:
    """All variants of a spec, learning example by example.

    `about_to_drop` is called before keys are evicted, and may be replaced: see `ValueTable.evict`.
    """

    def __init__(
        self, maker: ExampleMaker, metrics: MetricsOptions | None = None, *, keep_seen: bool = False
    ) -> None:
        """`keep_seen`: store the last example that touched each key; publishing while learning needs it."""
        self.spec: ModelSpec = maker.spec
        self.maker = maker
        if auto := self.spec.learner.auto:
            raise SpecError(
                f'learner.{auto[0]} = "auto" is chosen on the first rows of a log, by `ftrie train` and '
                "`ftrie train-distributed`; here give a number, as `ftrie init` or `ftrie tune` choose one, or start "
                "from a model that has chosen (--init-from)"
            )
        self.coordinates = Coordinates(
            maker.spec, maker.rules.masks, maker.feature_rules, keep_seen=keep_seen
        )
        self._eviction = eviction_of(maker.spec)
        self.evicted = 0
        self.about_to_drop: Callable[[npt.NDArray[np.bool_]], None] = lambda kept: None
        self.metrics = (metrics or MetricsOptions()).metrics(maker.spec, maker.plan)
        with_regret = metrics is not None and metrics.regret
        self.regret = RegretRecorder(maker.spec, maker.rules.masks) if with_regret else None
        self.calibrator = Calibrator.of(maker.spec)
        self.recent = Recent.of(maker.spec)
        self._prefixes, self._prefix_starts = prefix_table(maker.prefixes)
        self.warnings = ModelWarnings(maker, self.coordinates, self.metrics)

    @property
    def table(self) -> ValueTable:
        """The value table."""
        return self.coordinates.table

    @property
    def rows(self) -> int:
        """The number of examples learned, in all passes: rows, but those of weight 0."""
        return self.coordinates.examples

    def learn(self, examples: Examples, again: ProgressiveMetrics | None = None) -> None:
        """Predict and then learn each example in turn; update the metrics with the predictions.

        again: takes the predictions in a later pass. Predictions of examples that were learned before validate nothing,
        so metrics, calibrator, `recent` and warnings stay as they are. An occurrence counts once, so `inclusion` admits
        no more keys.
        """
        if again is not None:
            self.coordinates.admission.close()
        predicted = self._learn(examples)
        self._update(examples, predicted.scores, predicted.probabilities, again=again)

    def learn_requests(self, parts: Sequence[Examples]) -> None:
        """`learn` for whole requests, or for the parts of one, as `whole_requests` makes them.

        The same weights and figures by row; predictions also have the scores from before each request (`before`).
        """
        if len(parts) == 1:
            repeated, ahead, own = twice(parts[0])
            found = self._learn(repeated)
            self._update(parts[0], found.scores[own], found.probabilities[own], found.scores[ahead])
            return
        before = [self.coordinates.predict(each.hashed).scores for each in parts]
        for part, scores in zip(parts, before, strict=True):
            found = self._learn(part)
            self._update(part, found.scores, found.probabilities, scores)

    def judge(self, examples: Examples) -> None:
        """Predict each example and learn none; update the metrics, as those of a model that learns no more."""
        found = self.coordinates.predict(examples.hashed)
        self._update(examples, found.scores, found.probabilities, found.scores)

    def learn_judged(self, examples: Examples) -> None:
        """Learn examples that `judge` has predicted; figures stay as they are."""
        self._learn(examples)

    def _learn(self, examples: Examples) -> Predicted:
        rows = examples.hashed
        size = int(rows.labels.size)
        predicted = self.coordinates.predicted(size)
        begin = 0
        while begin < size:
            before = self.rows
            most = min(size, begin + self._eviction.next_row(before) - before)
            added, end = self.coordinates.learn(rows, begin, most, predicted)
            self.keep_keys(examples, added)
            if self.rows > before:
                times = examples.times[begin:end]
                if times.size and rows.weights.size:
                    times = times[rows.weights[begin:end] != 0.0]
                self._sweep(times)
            begin = end
        return predicted

    def _update(
        self,
        examples: Examples,
        scores: npt.NDArray[np.float64],
        probabilities: npt.NDArray[np.float64],
        before: npt.NDArray[np.float64] = NOT_ASKED,
        again: ProgressiveMetrics | None = None,
    ) -> None:
        rows = examples.hashed
        outcome = rows, examples.requests, len(self.spec.variants)
        predictions = Predictions.of(scores, probabilities, *outcome, before)
        if again is not None:
            again.update(predictions, examples)
            return
        self.metrics.update(predictions, examples)
        if self.regret is not None:
            self.regret.update(predictions, rows)
        if self.calibrator is not None:
            self.calibrator.update(predictions, examples)
        if self.recent is not None:
            self.recent.update(predictions)
        self.warnings.after_batch(examples)

    def keep_keys(self, examples: Examples, added: npt.NDArray[np.int64]) -> None:
        """Write the bytes of newly admitted keys to the arena. added: their positions in the examples.

        Of many keys another thread does, which reads the examples' texts until `table.settle` returns.
        """

        def write(arena: npt.NDArray[np.uint8], end: int) -> int:
            found = np.empty((added.size, MAX_CROSS_FIELDS), np.int64)
            picked = np.empty(MAX_CROSS_FIELDS, np.int64)
            key_tokens(added, examples.rows, examples.hashed, examples.tokens, found, picked)
            keys = (added, found, examples.hashed.features, examples.tokens)
            sources = (text_places(examples.texts), self._prefixes, self._prefix_starts)
            return int(write_keys(*keys, *sources, arena, end))

        if added.size:
            self.table.append(write, later=added.size >= _MANY_KEYS)

    def warm_start(self, artefact: Artefact) -> int:
        """Take over the weights of a published model; return how many keys. See `warm_start.py`."""
        return warm_start(self.coordinates, self.maker, artefact)

    def memory(self) -> ModelMemory:
        """The model's memory now."""
        table = self.table
        keys = table.arena_bytes + (table.buckets.nbytes if table.buckets is not None else 0)
        return ModelMemory(table.table_bytes, keys, self.coordinates.admission.nbytes)

    def nonzero(self) -> int:
        """The number of keys with a non-zero weight in any variant."""
        return int(self._weights(self.table.keys()).any(axis=1).sum())

    def artefact(self) -> Artefact:
        """The artefact to publish: every key with a non-zero weight, its learning rate, and calibration curves."""
        keys = self.table.keys()
        weight, rate = self.published(keys)
        kept = weight.any(axis=1)
        offsets = np.zeros(int(kept.sum()) + 1, np.int64)
        np.cumsum(np.diff(keys.offsets)[kept], out=offsets[1:])
        data = np.empty(int(offsets[-1]), np.uint8)
        arena_keys(self.table.arena, kept.view(np.uint8), data)
        given, fixed, used_by = self.coordinates.margin.rows(self.maker.plan, self.coordinates.own)
        more = np.cumsum([len(key) for key in given], dtype=np.int64)
        return Artefact.from_columns(
            key_data=np.concatenate([data, np.frombuffer(b"".join(given), np.uint8)]),
            key_offsets=np.concatenate([offsets, offsets[-1] + more]),
            weight=self.shaped(np.concatenate([weight[kept], fixed])),
            variants=np.concatenate([self.coordinates.masks_of(keys)[kept], used_by]),
            rate=self.shaped(np.concatenate([rate[kept], np.zeros_like(fixed)])),
            **self.described(),
        )

    def published(self, keys: TableKeys) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Published weights and rates of keys: float32[keys, own]; 0 where the key is not published.

        That is where it has no weight in any variant, or its posterior is within prune_kl of its prior in all.
        """
        weight = self._weights(keys)
        rate = np.minimum(self.coordinates.rates(keys), _LARGEST).astype(np.float32)
        absent = ~weight.any(axis=1)
        if self.spec.learner.prune_kl > 0.0:
            absent |= (self.coordinates.divergence(keys) < self.spec.learner.prune_kl).all(axis=1)
        weight[absent] = rate[absent] = 0.0
        return weight, rate

    def described(self) -> dict[str, Any]:
        """What is published beside the keys, as keyword arguments of an Artefact: spec, metrics, calibration."""
        return {
            "spec": self.spec,
            "metrics": {name: m.numbers() for name, m in self.metrics.summary().items()},
            "calibration": self.calibrator.calibration() if self.calibrator is not None else None,
        }

    def shaped(self, numbers: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """float32[keys, own] in an artefact's shape: one number per key, or one per key and variant."""
        return numbers if self.spec.learner.values == "per_variant" else numbers[:, 0]

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Everything that later rows depend on, as arrays, for a checkpoint."""
        parts = self._parts().items()
        state = {f"{name}.{each}": array for name, part in parts for each, array in part.state().items()}
        return state | {"evicted": np.array([self.evicted], np.int64)}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore a `state` of the same spec."""
        for name, part in self._parts().items():
            part.restore(part_of(state, f"{name}."))
        self.evicted = int(state["evicted"][0])
        self.warnings.restart()

    def _parts(self) -> dict[str, Any]:
        """What has a state of its own, by the name in a checkpoint."""
        parts = {
            "coordinates": self.coordinates,
            "eviction": self._eviction,
            "metrics": self.metrics,
            "calibrator": self.calibrator,
            "recent": self.recent,
        }
        return {name: part for name, part in parts.items() if part is not None}

    def _weights(self, keys: TableKeys) -> npt.NDArray[np.float32]:
        """Every key's weights as published: float32[keys, own]; with q2.13, rounded to the nearest step."""
        weights = self.coordinates.weights(keys)
        if self.coordinates.own > 1:
            # A raw key may have the bytes of a field's key; it is published as a key of one of them.
            masks = self.coordinates.masks_of(keys).reshape(-1, 1)
            weights *= masks >> np.arange(self.coordinates.own, dtype=np.uint32) & np.uint32(1)
        if self.spec.learner.precision == "q2.13":
            return nearest_q213(weights)
        if (np.abs(weights) > _LARGEST).any():
            row, v = np.unravel_index(int(np.abs(weights).argmax()), weights.shape)
            key = keys.data[keys.offsets[row] : keys.offsets[row + 1]].tobytes()
            raise FtrieError(
                f"the learner diverges: key {key!r} has the weight {weights[row, v]:.3g}, beyond the largest float32, "
                f"{_LARGEST:.3g}; lower learner.alpha, or scale the log's weights and numbers to about 1"
            )
        return weights.astype(np.float32)

    def _sweep(self, times: npt.NDArray[np.int64]) -> None:
        """Evict expired keys if a sweep is due after the rows just learned."""
        self._eviction.add_times(times)
        before = self._eviction.due(self.rows)
        if before is not None:
            self.evicted += self.table.evict(before, self.about_to_drop)
