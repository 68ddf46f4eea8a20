"""What somebody should look at in a model that learns: predictions that diverge, and variants that are equal.

A model is looked at whenever a chunk of rows is large enough to tell: 1,000 rows, 100 of them clicked and 100 not. A
shorter log is looked at as a whole at its end. docs/training_metrics.md#warnings has the bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from model_store.features.features import CrossPlan, FieldPlan
from trainer.examples.hashing import Examples
from trainer.learn.metrics.figures import entropy
from trainer.learn.metrics.metrics import Sums
from trainer.learn.table import TableKeys
from trainer.learn.table_kernels import find_keys

if TYPE_CHECKING:
    from trainer.learn.model import LearningModel

CHUNK_ROWS, CHUNK_CLICKS = 1_000, 100
WORSE = 1.5
"""A normalized entropy above this is warned of; 1 is that of predicting the click rate for every row."""
SHORT_ROWS, SHORT_LOGLOSS = 100, 1.0
"""A log shorter than a chunk is warned of from this log-loss on: ln 2 = 0.69 is that of a model that knows nothing."""
_MOVES = 2.0  # a field is named if it moves the score by as much, in the mean over rows

DIVERGING, SAME_VARIANTS = "diverging", "same variants"


@dataclass(frozen=True)
class _Worst:
    """The variant with the greatest normalized entropy among some rows."""

    variant: int
    rows: int
    logloss: float
    normalized_entropy: float


class ModelWarnings:
    """Looks at one model. For one thread. `texts`: what is to be said now, by kind, DIVERGING or SAME_VARIANTS.

    `normalized_entropy` is the greatest of all variants in the last chunk, None before the first one.
    """

    def __init__(self, model: LearningModel) -> None:
        self.texts: dict[str, str] = {}
        self.normalized_entropy: float | None = None
        self._model = model
        self._before = model.metrics.sums()
        self._latest: Examples | None = None
        self._same: dict[tuple[int, int], str] = {}

    def restart(self) -> None:
        """Look at the rows from here on: the model was restored."""
        self._before = self._model.metrics.sums()

    def after_batch(self, examples: Examples) -> None:
        """Look at the model if a chunk is complete. `examples`: those just learned."""
        self._latest = examples
        if self._model.metrics.rows - self._before.rows < CHUNK_ROWS:
            return
        now = self._model.metrics.sums()
        chunk = now - self._before
        if min(chunk.clicked, chunk.rows - chunk.clicked) < CHUNK_CLICKS:
            return
        self._before = now
        worst = _worst(chunk)
        self.normalized_entropy = worst.normalized_entropy
        self._put(DIVERGING, self._diverging(worst) if worst.normalized_entropy > WORSE else "")
        self._look_at_variants()

    def finish(self) -> tuple[str, ...]:
        """All warnings, at the end of the log."""
        total = self._model.metrics.sums()
        if total.rows >= SHORT_ROWS:
            self._same = {}  # the reason may be another by now
            self._look_at_variants()
            if self.normalized_entropy is None and 0 < total.clicked < total.rows:
                worst = _worst(total)
                self._put(DIVERGING, self._diverging(worst) if worst.logloss > SHORT_LOGLOSS else "")
        return tuple(self.texts.values())

    def _put(self, kind: str, text: str) -> None:
        if text:
            self.texts[kind] = text
        else:
            self.texts.pop(kind, None)

    # -- diverging

    def _diverging(self, worst: _Worst) -> str:
        model = self._model
        name = model.metrics.variants[worst.variant]
        alpha = model.spec.variants[name].own_parameters.get("alpha", model.spec.learner.alpha)
        return (
            f"variant {name!r} predicts worse than the click rate alone would: normalized entropy "
            f"{worst.normalized_entropy:.2f}, log-loss {worst.logloss:.3f} in the last {worst.rows:,} rows. "
            + (self._blamed(alpha) or f"Try another learner.alpha (now {alpha:g}), a smaller one first")
        )

    def _blamed(self, alpha: float) -> str:
        """The field or cross with numbers that moves the score most, and the remedy; empty if none moves it much."""
        if self._latest is None or not self._latest.hashed.x.size:
            return ""
        moves, largest = _moves(self._model, self._latest)
        owner = int(moves.argmax())
        if moves[owner] < _MOVES:
            return ""
        what, remedy = _remedy(self._model, owner)
        return (
            f"{what} moves the score most: by {moves[owner]:.3g} in the mean, with numbers up to {largest[owner]:.4g}. "
            f"{remedy}, or lower learner.alpha (now {alpha:g})"
        )

    # -- variants that are one

    def _look_at_variants(self) -> None:
        pairs = self._model.metrics.equal_variants()
        self._same = {pair: self._same.get(pair) or self._why_same(*pair) for pair in pairs}
        names = self._model.metrics.variants
        each = [f"{names[one]!r} and {names[other]!r}: {why}" for (one, other), why in self._same.items()]
        same = "variants with the same prediction for every row, of which an experiment can tell nothing: "
        self._put(SAME_VARIANTS, same + "; ".join(each) if each else "")

    def _why_same(self, one: int, other: int) -> str:
        """What tells two variants apart in the spec, and why it makes no difference."""
        model = self._model
        masks = np.asarray(model.maker.rules.masks)
        apart = (masks >> np.uint32(one) ^ masks >> np.uint32(other)) & np.uint32(1) != 0
        owners = np.unique(model.maker.feature_rules.owner[apart]).tolist()
        specs = list(model.spec.variants.values())
        parameters = specs[one].own_parameters != specs[other].own_parameters
        if not owners:
            return "they have the same fields and crosses" + (
                "" if parameters else " and the same parameters"
            )
        names = ", ".join(repr(_owner(model, owner).name) for owner in owners)
        if not apart[model.table.keys().features].any():
            return f"they differ in {names} alone, of which no row has a value"
        return f"they differ in {names} alone, whose weights have all been 0"


def _worst(sums: Sums) -> _Worst:
    logloss = sums.loss / sums.weight
    variant = int(logloss.argmax())
    rate = entropy(sums.clicks / sums.weight)
    worst = float(logloss[variant])
    return _Worst(variant, int(sums.rows), worst, worst / rate if rate else 0.0)


def _owner(model: LearningModel, owner: int) -> FieldPlan | CrossPlan:
    """The field or cross of a number as `FeatureRules.owner` gives it; 0 is the bias."""
    fields = model.maker.plan.fields
    return fields[owner - 1] if owner <= len(fields) else model.maker.plan.crosses[owner - 1 - len(fields)]


def _moves(model: LearningModel, examples: Examples) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Of each owner with numbers, the mean of |x * weight| over the last rows, and its largest |x|; 0 of the others."""
    hashed = examples.hashed
    rows = min(CHUNK_ROWS, hashed.labels.size)
    begin, end = int(hashed.starts[hashed.labels.size - rows]), int(hashed.starts[hashed.labels.size])
    slots = np.empty(end - begin, np.int64)
    find_keys(model.table.layout, hashed.hashes[begin:end], slots)
    known = np.flatnonzero(slots >= 0)
    x, features = np.abs(hashed.x[begin:end][known]), hashed.features[begin:end][known]
    keys = TableKeys(np.empty(0, np.uint8), np.zeros(1, np.int64), slots[known], features)
    weights = np.abs(model.coordinates.weights(keys)).max(axis=1, initial=0.0)
    owners = model.maker.feature_rules.owner[features]
    size = len(model.maker.prefixes)
    largest = np.zeros(size)
    np.maximum.at(largest, owners[x != 1.0], x[x != 1.0])
    return np.where(largest > 0.0, np.bincount(owners, x * weights, size) / max(rows, 1), 0.0), largest


def _remedy(model: LearningModel, owner: int) -> tuple[str, str]:
    """What a field or cross is, and what brings its numbers near 1."""
    it = _owner(model, owner)
    crossed = isinstance(it, CrossPlan)
    fields = it.fields if isinstance(it, CrossPlan) else (it,)
    plain = [each.name for each in fields if each.kind == "number" and each.spec.bucket is None]
    if not plain:
        return f"{'cross' if crossed else 'field'} {it.name!r}", "Divide its numbers so that they are about 1"
    named = f"field {plain[0]!r}" if not crossed else f"cross {it.name!r}, by its field {plain[0]!r},"
    return (
        f'{named} (kind = "number" without a bucket)',
        f'Set bucket = "log" for fields.{plain[0]}, divide its column so that its numbers are about 1',
    )
