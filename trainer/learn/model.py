"""LearningModel: learns hashed examples in order, computes training metrics, and makes the artefact to publish.

Bit-identical for the same examples in the same order. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.artefact.artefact import Artefact
from model_store.artefact.inspection import SortedKeys
from model_store.artefact.rows import nearest_q213
from model_store.errors import FtrieError, SpecError, listed
from model_store.spec.keys import BIAS
from model_store.spec.sections import MAX_CROSS_FIELDS
from model_store.spec.spec import ModelSpec
from trainer.examples.examples_kernels import HashedRows, key_tokens, write_keys
from trainer.examples.hashing import ExampleMaker, Examples, prefix_table
from trainer.examples.requests import MOST_ROWS, request_starts
from trainer.examples.rules import key_prefixes
from trainer.formats.cells import text_places
from trainer.learn.calibration import Calibrator
from trainer.learn.coordinates import Coordinates, Numbers
from trainer.learn.eviction import eviction_of
from trainer.learn.loops_kernels import Predicted
from trainer.learn.metrics.metrics import MetricsOptions, ProgressiveMetrics
from trainer.learn.metrics.recent import Recent
from trainer.learn.metrics.regret import RegretRecorder
from trainer.learn.metrics.warnings import ModelWarnings
from trainer.learn.predictions_kernels import NOT_ASKED, Predictions
from trainer.learn.table import TableKeys, ValueTable, part_of
from trainer.learn.table_kernels import arena_keys

NO_FEATURE = -1
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
        self._has_fake_negatives = False
        self.evicted = 0
        self.about_to_drop: Callable[[npt.NDArray[np.bool_]], None] = lambda kept: None
        self.metrics = (metrics or MetricsOptions()).metrics(maker.spec, maker.plan)
        with_regret = metrics is not None and metrics.regret
        self.regret = RegretRecorder(maker.spec, maker.rules.masks) if with_regret else None
        self.calibrator = Calibrator.of(maker.spec)
        self.recent = Recent.of(maker.spec)
        self._prefixes, self._prefix_starts = prefix_table(maker.prefixes)
        self.warnings = ModelWarnings(maker, self.coordinates, self.metrics)

    def correct_fake_negatives(self) -> None:
        """Learn, and judge, from now on as of examples that come as negatives first: `[join] late = "weigh"`."""
        self.coordinates.correct_fake_negatives()
        self._has_fake_negatives = True

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
        if self._has_fake_negatives:
            # The figures of all variants are over one set of weights: those of the first, which is learned by them.
            p = probabilities[:, 0]
            weights = (1.0 + p) * np.where(rows.labels > 0.5, 1.0, 1.0 - p)
            rows = rows._replace(weights=weights * rows.weights if rows.weights.size else weights)
            examples = replace(examples, hashed=rows)
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
        """Take over the keys of a published model, with the state that corresponds to their weights and rates.

        Returns how many. Keys whose field or cross is not in the spec, or which no variant uses, are dropped. Raises
        SpecError for a learner whose state does not follow from a weight, for a model with weights per variant where
        the spec shares them, and for a variant with values of its own that is not in the model.
        """
        links = artefact.spec.learner.link, self.maker.spec.learner.link
        if links[0] != links[1]:
            raise SpecError(
                f"the initial model's weights are for the {links[0]} link, and this spec's learner has the {links[1]} "
                "link: adpredictor starts from adpredictor, and the other algorithms from each other"
            )
        features = features_of_keys(artefact, self.maker)
        taken = features >= 0
        taken[taken] = self.coordinates.margin.learned(self.maker.rules.masks)[features[taken]] != 0
        learning = tuple(variant.average or name for name, variant in self.maker.spec.variants.items())
        weight, rate = _columns_of(self.coordinates.own, learning, artefact)
        unused = ~_used(self.coordinates.own, self.maker, features)
        weight[unused] = rate[unused] = 0.0
        taken &= (weight != 0.0).any(axis=1)
        keys = artefact.key_array().filter(taken)
        offsets = np.zeros(len(keys) + 1, np.int64)
        np.cumsum(np.diff(artefact.key_offsets)[taken], out=offsets[1:])
        data = np.frombuffer(b"".join(keys.to_pylist()), np.uint8)
        self.coordinates.warm_start(
            data, offsets, features[taken].astype(np.uint16), weight[taken], rate[taken]
        )
        return len(keys)

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


# Whole requests: rows shown together are predicted by the same weights, before any of them is learned.


def whole_requests(stream: Iterable[Examples]) -> Iterator[tuple[Examples, ...]]:
    """The same rows in the same order: one part with whole requests, or all parts of one request.

    A request of more than MOST_ROWS rows, whose order nobody judges, may come as several: memory is bounded.
    """
    held: list[Examples] = []
    for examples in stream:
        ids = examples.requests
        if not ids.size:
            yield (examples,)
            continue
        starts = np.flatnonzero(ids[1:] != ids[:-1]) + 1
        if held and not _continues(held, examples):
            yield tuple(held)
            held = []
        if held and starts.size:
            yield (*held, examples.part(0, int(starts[0])))
            held, examples, starts = [], examples.part(int(starts[0])), starts[1:] - starts[0]
        if not held and starts.size:
            yield (examples.part(0, int(starts[-1])),)
            examples = examples.part(int(starts[-1]))
        held.append(examples)
    if held:
        yield tuple(held)


def _continues(held: list[Examples], examples: Examples) -> bool:
    """Whether the examples begin with more rows of the request that is held."""
    last = held[-1]
    same = last.requests[-1] == examples.requests[0] and last.stop.number == examples.stop.number
    return bool(same) and sum(each.requests.size for each in held) <= MOST_ROWS


def twice(examples: Examples) -> tuple[Examples, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Each request's rows with weight 0, then as they are; the places of the first and of the second ones."""
    rows, size = examples.hashed, int(examples.requests.size)
    starts = np.flatnonzero(request_starts(examples.requests))
    sizes = np.diff(starts, append=size)
    ahead = np.arange(size) + np.repeat(starts, sizes)
    own = ahead + np.repeat(sizes, sizes)
    of_row = np.empty(2 * size, np.int64)
    of_row[ahead] = of_row[own] = np.arange(size)
    weights = np.zeros(2 * size)
    weights[own] = rows.weights if rows.weights.size else 1.0
    keys = np.diff(rows.starts)[of_row]
    begins = np.concatenate([[0], np.cumsum(keys)])
    keys_at = np.arange(begins[-1]) + np.repeat(rows.starts[of_row] - begins[:-1], keys)
    hashed = HashedRows(
        begins,
        rows.hashes[keys_at],
        rows.features[keys_at],
        rows.x[keys_at] if rows.x.size else rows.x,
        rows.labels[of_row],
        weights,
    )
    times = examples.times[of_row] if examples.times.size else examples.times
    repeated = replace(examples, rows=examples.rows[of_row], hashed=hashed, times=times)
    return repeated, ahead, own


# The keys of a published model, from which a run may start instead of an empty one: `ftrie train --init-from`.


def features_of_keys(artefact: Artefact, maker: ExampleMaker) -> npt.NDArray[np.int64]:
    """The number of the feature that each key belongs to, NO_FEATURE where the spec has none: int64[rows].

    Keys are sorted, so each prefix is a range of rows; where prefixes nest, the longest is written last and wins. A
    rule may split raw keys, which can have any prefix; so the keys of fields and crosses are assigned after them.
    """
    rows, prefixes = SortedKeys(artefact), key_prefixes(maker.plan)
    known = [(prefix, len(prefix), feature) for feature, prefix in enumerate(prefixes) if feature > 0]
    for rule in maker.feature_rules.value_rules:
        known.append((prefixes[rule.owner] + rule.start, len(prefixes[rule.owner]), rule.feature))
    found = np.full(artefact.rows, NO_FEATURE, np.int64)
    for prefix, _, feature in sorted(known):
        found[rows.at_least(prefix) : rows.beyond(prefix)] = feature
    found[rows.at_least(BIAS) : rows.at_least(BIAS + b"\0")] = 0
    return found


def _used(own: int, maker: ExampleMaker, features: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Whether a variant with values of its own uses a key, bool[rows, own]; with shared values, whether any does."""
    masks = np.where(features >= 0, maker.rules.masks[features], 0).reshape(-1, 1)
    used: npt.NDArray[np.bool_] = masks != 0 if own == 1 else masks >> np.arange(own) & 1 != 0
    return used


def _columns_of(own: int, variants: tuple[str, ...], artefact: Artefact) -> tuple[Numbers, Numbers]:
    """Weights and rates of the artefact for each variant with values of its own: float64[rows, own]."""
    weight, rate = artefact.weight.astype(np.float64), artefact.rate.astype(np.float64)
    if weight.ndim == 1 or weight.shape[1] == 1:
        return np.repeat(weight.reshape(-1, 1), own, axis=1), np.repeat(rate.reshape(-1, 1), own, axis=1)
    if own < len(variants):
        raise SpecError(
            "the initial model has a weight for each variant, and this spec's variants share them; "
            'set learner.values = "per_variant", or start from a model with shared values'
        )
    names = list(artefact.spec.variants)
    for name in variants:
        if name not in names:
            raise SpecError(
                f"variants.{name}: the initial model has no such variant; it has {listed(names, name)}"
            )
    columns = [names.index(name) for name in variants]
    return weight[:, columns], rate[:, columns]
