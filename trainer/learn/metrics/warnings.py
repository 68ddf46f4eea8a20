"""Warnings about a learning model and its log: predictions that diverge, equal variants, collisions, labels.

The model is checked whenever a chunk of rows is large enough: 1,000 rows, 100 with a click and 100 without. A shorter
log is checked as a whole at its end. docs/metrics.md#warnings has the bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.errors import counted
from model_store.features.features import CrossPlan, FieldPlan
from trainer.examples.hashing import ExampleMaker, Examples
from trainer.learn.coordinates import Coordinates
from trainer.learn.metrics.figures import entropy
from trainer.learn.metrics.metrics import ProgressiveMetrics, Sums
from trainer.learn.metrics.records import VariantMetrics
from trainer.learn.table import TableKeys

CHUNK_ROWS, CHUNK_CLICKS = 1_000, 100
WORSE = 1.5
"""A warning is due above this normalized entropy; predicting the click rate for every row has 1."""
SHORT_ROWS, SHORT_LOGLOSS = 100, 1.0
"""For a log shorter than a chunk a warning is due above this log-loss; an untrained model has ln 2 = 0.69."""
_MOVES = 2.0  # a field is named if its mean effect on the score is at least this

_FEWEST_OF_EACH = 100
_RARELY = 20
"""How many times less often than by chance the labels change. Where clicks come in bursts it may be some times."""
_TOO_GOOD, _FEWEST_JUDGED = 0.999, 50
_HARDLY_BETTER = 0.99
_FEWEST_OF_ONE = 20

DIVERGING, SAME_VARIANTS, COLLISIONS = "diverging", "same variants", "collisions"


@dataclass(frozen=True)
class _WorstVariant:
    """The variant with the largest normalized entropy over some rows."""

    variant: int
    rows: int
    logloss: float
    normalized_entropy: float


class ModelWarnings:
    """The warnings of one model. Not thread-safe. `texts`: the present ones by kind, the constants above.

    `normalized_entropy`: the largest of all variants in the last chunk, None before the first one.
    """

    def __init__(self, maker: ExampleMaker, coordinates: Coordinates, metrics: ProgressiveMetrics) -> None:
        self.texts: dict[str, str] = {}
        self.normalized_entropy: float | None = None
        self._maker, self._coordinates, self._metrics = maker, coordinates, metrics
        self._before = metrics.sums()
        self._latest: Examples | None = None
        self._same: dict[tuple[int, int], str] = {}

    def restart(self) -> None:
        """Begin a chunk here: the model was restored."""
        self._before = self._metrics.sums()

    def after_batch(self, examples: Examples) -> None:
        """Check the model if a chunk is complete. `examples`: those just learned."""
        self._latest = examples
        if self._metrics.rows - self._before.rows < CHUNK_ROWS:
            return
        now = self._metrics.sums()
        chunk = now - self._before
        if min(chunk.clicked, chunk.rows - chunk.clicked) < CHUNK_CLICKS:
            return
        self._before = now
        worst = _worst(chunk)
        self.normalized_entropy = worst.normalized_entropy
        self._put(DIVERGING, self._diverging(worst) if worst.normalized_entropy > WORSE else "")
        self._check_variants()
        self._check_collisions()

    def finish(self) -> tuple[str, ...]:
        """All warnings, at the end of the log."""
        total = self._metrics.sums()
        self._check_collisions()
        if total.rows >= SHORT_ROWS:
            self._same = {}  # the reason may have changed
            self._check_variants()
            if self.normalized_entropy is None and 0 < total.clicked < total.rows:
                worst = _worst(total)
                self._put(DIVERGING, self._diverging(worst) if worst.logloss > SHORT_LOGLOSS else "")
        return tuple(self.texts.values())

    def _check_collisions(self) -> None:
        self._put(COLLISIONS, self._coordinates.table.collisions().warning)

    def _put(self, kind: str, text: str) -> None:
        if text:
            self.texts[kind] = text
        else:
            self.texts.pop(kind, None)

    def _diverging(self, worst: _WorstVariant) -> str:
        spec, name = self._maker.spec, self._metrics.variants[worst.variant]
        alpha = spec.variants[name].own_parameters.get("alpha", spec.learner.alpha)
        return (
            f"variant {name!r} predicts worse than the click rate alone would: normalized entropy "
            f"{worst.normalized_entropy:.2f}, log-loss {worst.logloss:.3f} in the last {worst.rows:,} rows. "
            + (self._blamed(alpha) or f"Try another learner.alpha (now {alpha:g}), a smaller one first")
        )

    def _blamed(self, alpha: float) -> str:
        """The field or cross whose numbers change the score most, and the remedy; empty if none changes it much."""
        if self._latest is None or not self._latest.hashed.x.size:
            return ""
        moves, largest = self._moves(self._latest)
        owner = int(moves.argmax())
        if moves[owner] < _MOVES:
            return ""
        what, remedy = self._remedy(owner)
        return (
            f"{what} moves the score most: by {moves[owner]:.3g} in the mean, with numbers up to {largest[owner]:.4g}. "
            f"{remedy}, or lower learner.alpha (now {alpha:g})"
        )

    def _check_variants(self) -> None:
        pairs = self._metrics.equal_variants()
        self._same = {pair: self._same.get(pair) or self._why_same(*pair) for pair in pairs}
        names = self._metrics.variants
        each = [f"{names[one]!r} and {names[other]!r}: {why}" for (one, other), why in self._same.items()]
        same = "variants with the same prediction for every row, of which an experiment can tell nothing: "
        self._put(SAME_VARIANTS, same + "; ".join(each) if each else "")

    def _why_same(self, one: int, other: int) -> str:
        """How two variants differ in the spec, and why that has no effect."""
        maker = self._maker
        masks = np.asarray(maker.rules.masks)
        apart = (masks >> np.uint32(one) ^ masks >> np.uint32(other)) & np.uint32(1) != 0
        owners = np.unique(maker.feature_rules.owner[apart]).tolist()
        specs = list(maker.spec.variants.values())
        parameters = specs[one].own_parameters != specs[other].own_parameters
        if not owners:
            return "they have the same fields and crosses" + (
                "" if parameters else " and the same parameters"
            )
        names = ", ".join(repr(self._owner(owner).name) for owner in owners)
        if not apart[self._coordinates.table.keys().features].any():
            return f"they differ in {names} alone, of which no row has a value"
        return f"they differ in {names} alone, whose weights have all been 0"

    def _owner(self, owner: int) -> FieldPlan | CrossPlan:
        """The field or cross with this number in `FeatureRules.owner`."""
        fields = self._maker.plan.fields
        return (
            fields[owner - 1] if owner <= len(fields) else self._maker.plan.crosses[owner - 1 - len(fields)]
        )

    def _moves(self, examples: Examples) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Each owner's mean |x * weight| over the last rows, and its largest |x|; 0 for owners without numbers."""
        hashed = examples.hashed
        rows = min(CHUNK_ROWS, hashed.labels.size)
        begin, end = int(hashed.starts[hashed.labels.size - rows]), int(hashed.starts[hashed.labels.size])
        slots = self._coordinates.table.find(hashed.hashes[begin:end], hashed.features[begin:end])
        known = np.flatnonzero(slots >= 0)
        x, features = np.abs(hashed.x[begin:end][known]), hashed.features[begin:end][known]
        keys = TableKeys(np.empty(0, np.uint8), np.zeros(1, np.int64), slots[known], features)
        weights = np.abs(self._coordinates.weights(keys)).max(axis=1, initial=0.0)
        owners = self._maker.feature_rules.owner[features]
        size = len(self._maker.prefixes)
        largest = np.zeros(size)
        np.maximum.at(largest, owners[x != 1.0], x[x != 1.0])
        return np.where(largest > 0.0, np.bincount(owners, x * weights, size) / max(rows, 1), 0.0), largest

    def _remedy(self, owner: int) -> tuple[str, str]:
        """A description of a field or cross, and how to scale its numbers to about 1."""
        it = self._owner(owner)
        crossed = isinstance(it, CrossPlan)
        fields = it.fields if isinstance(it, CrossPlan) else (it,)
        plain = [each.name for each in fields if each.spec.is_number]
        if not plain:
            return (
                f"{'cross' if crossed else 'field'} {it.name!r}",
                "Divide its numbers so that they are about 1",
            )
        named = f"field {plain[0]!r}" if not crossed else f"cross {it.name!r}, by its field {plain[0]!r},"
        return (
            f'{named} (kind = "number" without a bucket)',
            f'Set bucket = "log" for fields.{plain[0]}, divide its column so that its numbers are about 1',
        )


def _worst(sums: Sums) -> _WorstVariant:
    logloss = sums.loss / sums.weight
    variant = int(logloss.argmax())
    rate = entropy(sums.clicks / sums.weight)
    worst = float(logloss[variant])
    return _WorstVariant(variant, int(sums.rows), worst, worst / rate if rate else 0.0)


class LabelOrder:
    """Whether a log is sorted by its label: then a learner follows the order, and its figures ignore the fields.

    Counts how often the label changes from one row to the next (Wald and Wolfowitz 1940, the runs test).
    """

    def __init__(self) -> None:
        self.rows = self.clicks = self.changes = 0
        self._last = np.zeros(0, np.bool_)

    def add(self, labels: npt.NDArray[Any]) -> None:
        """Add the next rows' labels: above 0 for a click."""
        clicked = np.concatenate([self._last, labels > 0])
        self.rows += labels.size
        self.clicks += int(np.count_nonzero(labels > 0))
        self.changes += int(np.count_nonzero(clicked[1:] != clicked[:-1]))
        self._last = clicked[-1:]

    @property
    def expected(self) -> float:
        """How often the label would change if the rows came in any order."""
        return 2.0 * self.clicks * (self.rows - self.clicks) / max(self.rows, 1)

    @property
    def is_sorted(self) -> bool:
        """True if rows with a click come together, and those without, as they would not by chance."""
        few = min(self.clicks, self.rows - self.clicks) < _FEWEST_OF_EACH
        return not few and _RARELY * self.changes < self.expected

    def warnings(self) -> tuple[str, ...]:
        """A warning if it is sorted."""
        if not self.is_sorted:
            return ()
        return (
            f"the log seems sorted by its label: it changes {counted(self.changes, 'time')} from row to row, "
            f"and would {self.expected:,.0f} times in another order; a learner follows the order, so its figures say "
            "nothing of the fields",
        )


def is_one_class(rows: float, clicked: float) -> bool:
    """True if every row has a click, or none has: a model learns nothing of what makes one. A few may by chance."""
    return rows >= _FEWEST_OF_ONE and clicked in (0, rows)


def one_class_warnings(rows: int, clicked: int, label: str) -> tuple[str, ...]:
    """A warning where all rows are of one class; label: the column."""
    if not is_one_class(rows, clicked):
        return ()
    each = "every row is a click" if clicked else "no row is a click"
    return (
        f"{each} by column {label!r}, of {rows:,}: nothing can be learned of what makes one; check that it is the "
        "label, and that views without a click are in the log",
    )


def leak_warnings(variants: Mapping[str, VariantMetrics], clicked: float, others: float) -> tuple[str, ...]:
    """A warning where an AUC is better than a click can be foreseen; clicked, others: rows with and without one."""
    name = next((name for name, each in variants.items() if (each.auc or 0.0) > _TOO_GOOD), None)
    if name is None or min(clicked, others) < _FEWEST_JUDGED:
        return ()
    return (
        f"{name} has an AUC of {variants[name].auc:.5f}: a field probably tells the label, and is not known before the "
        "click; `ftrie doctor --spec SPEC LOG` looks for it",
    )


def gain_warnings(variants: Mapping[str, VariantMetrics], clicked: float, others: float) -> tuple[str, ...]:
    """A warning where a model is hardly better than one rate for all rows, that of these rows; see `leak_warnings`."""
    if min(clicked, others) < _FEWEST_JUDGED:
        return ()
    found = []
    for name, each in variants.items():
        entropy = each.normalized_entropy
        if entropy is not None and entropy > _HARDLY_BETTER:
            change = f"{100 * abs(1.0 - entropy):.2g} %"
            found.append(
                f"that of {name} is {f'only {change} lower' if entropy < 1.0 else f'{change} higher'}"
            )
    if not found:
        return ()
    return (f"against the log-loss of the click rate alone, predicted for every row, {'; '.join(found)}",)
