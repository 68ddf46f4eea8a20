"""A model that learns: its coordinates and its metrics, fed with hashed examples in order; and what it publishes.

Bit-identical for the same examples in the same order. One thread only. Knows nothing of files or stores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.artefact.artefact import Artefact
from model_store.artefact.key_ranges import SortedKeys
from model_store.artefact.rows import nearest_q213
from model_store.errors import FtrieError, SpecError
from model_store.features.cells import addresses
from model_store.spec.keys import BIAS
from model_store.spec.sections import MAX_CROSS_FIELDS
from model_store.spec.spec import ModelSpec
from trainer.examples.examples_kernels import key_tokens, write_keys
from trainer.examples.hashing import ExampleMaker, Examples, key_prefixes, prefix_table
from trainer.learn import table_kernels as kernels
from trainer.learn.calibration import Calibrator
from trainer.learn.coordinates import Coordinates
from trainer.learn.eviction import eviction_of
from trainer.learn.metrics.metrics import Watching
from trainer.learn.metrics.recent import Recent
from trainer.learn.metrics.warnings import ModelWarnings
from trainer.learn.table import TableKeys, ValueTable

_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Memory:
    """Bytes that a model holds while it learns: the table's slots, the keys' bytes, the filters of admission."""

    table: int
    keys: int
    filters: int

    def as_dict(self, keys: int) -> dict[str, float]:
        """The bytes by name, and those of the table a key."""
        return asdict(self) | {"table_per_key": round(self.table / keys, 2) if keys else 0.0}


class LearningModel:
    """All variants of a spec, learning in one pass.

    `about_to_drop` may be set, to be told of keys whose time is over: see `ValueTable.evict`. `warnings`: what somebody
    should look at.
    """

    def __init__(
        self, maker: ExampleMaker, watching: Watching | None = None, *, keep_seen: bool = False
    ) -> None:
        """`keep_seen`: note of every key when it was touched last, which publishing while learning asks for."""
        self.spec: ModelSpec = maker.spec
        self.maker = maker
        self.coordinates = Coordinates(
            maker.spec, maker.rules.masks, maker.feature_rules, keep_seen=keep_seen
        )
        self._eviction = eviction_of(maker.spec)
        self.evicted = 0
        self.about_to_drop: Callable[[npt.NDArray[np.bool_]], None] = lambda kept: None
        self.metrics = (watching or Watching()).metrics(maker.spec, maker.plan)
        self.calibrator = Calibrator.of(maker.spec)
        self.recent = Recent.of(maker.spec)
        self._prefixes, self._prefix_starts = prefix_table(maker.prefixes)
        self.warnings = ModelWarnings(self)

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
        size = int(rows.labels.size)
        scores = np.empty((size, self.coordinates.lanes))
        begin = 0
        while begin < size:
            before = self.rows
            end = min(size, begin + self._eviction.next_row(before) - before)
            added = self.coordinates.learn(rows, begin, end, scores)
            self._keep_keys(examples, added)
            end = begin + self.rows - before
            self._sweep(examples.times[begin:end])
            begin = end
        self.metrics.update(scores, examples)
        if self.calibrator is not None:
            self.calibrator.update(scores, examples)
        if self.recent is not None:
            self.recent.update(scores, examples)
        self.warnings.after_batch(examples)

    def warm_start(self, artefact: Artefact) -> int:
        """Begin with a published model: see `trainer/learn/model.py`. Returns how many of its keys were taken over."""
        return warm_start(self, artefact)

    def memory(self) -> Memory:
        """What the model holds now."""
        table = self.table
        return Memory(table.table_bytes, table.arena_bytes, self.coordinates.admission.nbytes)

    def nonzero(self) -> int:
        """How many keys have a weight, in any variant."""
        return int(self._weights(self.table.keys()).any(axis=1).sum())

    def artefact(self) -> Artefact:
        """What is published: every key with a weight, as float32, its learning rate, and calibration curves."""
        keys = self.table.keys()
        weight, rate = self.published(keys)
        kept = weight.any(axis=1)
        offsets = np.zeros(int(kept.sum()) + 1, np.int64)
        np.cumsum(np.diff(keys.offsets)[kept], out=offsets[1:])
        data = np.empty(int(offsets[-1]), np.uint8)
        kernels.arena_keys(self.table.arena, kept.view(np.uint8), data)
        return Artefact.from_columns(
            key_data=data,
            key_offsets=offsets,
            weight=self.shaped(weight[kept]),
            variants=self.coordinates.masks_of(keys)[kept],
            rate=self.shaped(rate[kept]),
            **self.described(),
        )

    def published(self, keys: TableKeys) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Weights and rates of keys as they are published: float32[keys, own]; 0 where no variant weighs the key."""
        weight = self._weights(keys)
        rate = np.minimum(self.coordinates.rates(keys), _LARGEST).astype(np.float32)
        absent = ~weight.any(axis=1)
        weight[absent] = rate[absent] = 0.0
        return weight, rate

    def described(self) -> dict[str, Any]:
        """What is published beside the keys: spec, metrics and calibration, by an Artefact's names for them."""
        return {
            "spec": self.spec,
            "metrics": {name: m.numbers() for name, m in self.metrics.summary().items()},
            "calibration": self.calibrator.calibration() if self.calibrator is not None else None,
        }

    def shaped(self, numbers: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """float32[keys, own] as an artefact has it: one number a key, or one for each variant with its own values."""
        return numbers if self.spec.learner.values == "per_variant" else numbers[:, 0]

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """All that `restore` needs to go on as if nothing had happened."""
        state = {f"coordinates.{name}": array for name, array in self.coordinates.state().items()}
        state |= {f"eviction.{name}": array for name, array in self._eviction.state().items()}
        state |= {f"metrics.{name}": array for name, array in self.metrics.state().items()}
        if self.calibrator is not None:
            state |= {f"calibrator.{name}": array for name, array in self.calibrator.state().items()}
        if self.recent is not None:
            state |= {f"recent.{name}": array for name, array in self.recent.state().items()}
        return state | {"evicted": np.array([self.evicted], np.int64)}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take over what `state` gave, of the same spec."""
        self.coordinates.restore(_part(state, "coordinates."))
        self._eviction.restore(_part(state, "eviction."))
        self.metrics.restore(_part(state, "metrics."))
        if self.calibrator is not None:
            self.calibrator.restore(_part(state, "calibrator."))
        if self.recent is not None:
            self.recent.restore(_part(state, "recent."))
        self.evicted = int(state["evicted"][0])
        self.warnings.restart()

    def _weights(self, keys: TableKeys) -> npt.NDArray[np.float32]:
        """Every key's weights as they are published: float32[keys, own]; with q2.13, at the nearest of its steps."""
        weights = self.coordinates.weights(keys)
        if (
            self.coordinates.own > 1
        ):  # a raw key may be spelled like a field's; it is published as of one of them
            masks = self.coordinates.masks_of(keys).reshape(-1, 1)
            weights *= masks >> np.arange(self.coordinates.own, dtype=np.uint32) & np.uint32(1)
        if self.spec.learner.precision == "q2.13":
            return nearest_q213(weights)
        if (np.abs(weights) > _LARGEST).any():
            row, v = np.unravel_index(int(np.abs(weights).argmax()), weights.shape)
            key = keys.data[keys.offsets[row] : keys.offsets[row + 1]].tobytes()
            raise FtrieError(
                f"the learner diverges: key {key!r} has the weight {weights[row, v]:.3g}, and a published one is a "
                f"float32, up to {_LARGEST:.3g}; lower learner.alpha, or bring weights and numbers of the log nearer 1"
            )
        return weights.astype(np.float32)

    def _sweep(self, times: npt.NDArray[np.int64]) -> None:
        """Drop the keys whose time is over, where a sweep is due behind the rows just learned."""
        self._eviction.pass_rows(times)
        before = self._eviction.due(self.rows)
        if before is not None:
            self.evicted += self.table.evict(before, self.about_to_drop)

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


def _part(state: Mapping[str, npt.NDArray[Any]], prefix: str) -> dict[str, npt.NDArray[Any]]:
    return {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}


# --- A run that begins with a published model instead of with none: `ftrie train --init-from` ---
#
# A weight and its learning rate tell the state that they came from (`trainer/learn/learners/registry.py` says
# how). Keys whose field or cross the spec does not have, or which no variant uses, are left behind. Nothing
# here reads files or stores.


NO_FEATURE = -1


def warm_start(model: LearningModel, artefact: Artefact) -> int:
    """Give an untrained model the keys of `artefact`, with the state that they stand for; return how many.

    Raises SpecError for learners whose state a weight does not tell, for a model with a weight for each variant where
    the spec shares them, and where the spec's variants with weights of their own are not in the model.
    """
    features = features_of_keys(artefact, model.maker)
    taken = features >= 0
    taken[taken] = model.maker.rules.masks[features[taken]] != 0
    weight, rate = _columns(model, artefact)
    unused = ~_used(model, features)
    weight[unused] = rate[unused] = 0.0
    taken &= (weight != 0.0).any(axis=1)
    keys = artefact.key_array().filter(taken)
    offsets = np.zeros(len(keys) + 1, np.int64)
    np.cumsum(np.diff(artefact.key_offsets)[taken], out=offsets[1:])
    data = np.frombuffer(b"".join(keys.to_pylist()), np.uint8)
    numbers = (features[taken].astype(np.uint16), weight[taken], rate[taken])
    model.coordinates.warm_start(data, offsets, *numbers)
    return len(keys)


def features_of_keys(artefact: Artefact, maker: ExampleMaker) -> npt.NDArray[np.int64]:
    """The number of the feature that each key belongs to, NO_FEATURE where the spec has none: int64[rows].

    Keys are sorted, so each prefix has a range of rows; where prefixes nest, the longest is written last and stays. A
    rule splits raw keys too, which may begin like anything: what a field or cross says of its own keys comes after.
    """
    rows = SortedKeys(artefact)
    found = np.full(artefact.rows, NO_FEATURE, np.int64)
    for prefix, _, feature in sorted(_prefixes(maker)):
        found[rows.at_least(prefix) : rows.beyond(prefix)] = feature
    found[rows.at_least(BIAS) : rows.at_least(BIAS + b"\0")] = 0
    return found


def _prefixes(maker: ExampleMaker) -> list[tuple[bytes, int, int]]:
    """Each feature's prefix, how much of it is the field's or cross's own, and the feature."""
    prefixes = key_prefixes(maker.plan)
    known = [(prefix, len(prefix), feature) for feature, prefix in enumerate(prefixes) if feature > 0]
    return known + [
        (prefixes[rule.owner] + rule.start, len(prefixes[rule.owner]), rule.feature)
        for rule in maker.feature_rules.value_rules
    ]


def _used(model: LearningModel, features: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Whether a variant with values of its own uses a key, bool[rows, own]; where all share them, whether any does."""
    masks = np.where(features >= 0, model.maker.rules.masks[features], 0).reshape(-1, 1)
    own = model.coordinates.own
    used: npt.NDArray[np.bool_] = masks != 0 if own == 1 else masks >> np.arange(own) & 1 != 0
    return used


def _columns(
    model: LearningModel, artefact: Artefact
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Weights and rates of the artefact for each variant with values of its own: float64[rows, own]."""
    own = model.coordinates.own
    if artefact.weight.ndim == 1 or artefact.weight.shape[1] == 1:
        return _repeated(artefact.weight, own), _repeated(artefact.rate, own)
    if own < len(model.spec.variants):
        raise SpecError(
            "the model to begin with has a weight for each variant, and this spec's variants share them; "
            'set learner.values = "per_variant", or begin with a model of shared values'
        )
    places = [_place(name, tuple(artefact.spec.variants)) for name in model.spec.variants]
    return artefact.weight[:, places].astype(np.float64), artefact.rate[:, places].astype(np.float64)


def _repeated(column: npt.NDArray[np.float32], times: int) -> npt.NDArray[np.float64]:
    return np.repeat(column.astype(np.float64).reshape(-1, 1), times, axis=1)


def _place(name: str, names: tuple[str, ...]) -> int:
    if name not in names:
        raise SpecError(
            f"variants.{name}: the model to begin with has no such variant; it has {', '.join(names)}"
        )
    return names.index(name)
