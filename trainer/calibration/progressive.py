"""Calibrator: curves fitted on predictions made before learning, and judged on rows that came after the fit.

Counts are halved at row 4,096 and whenever the number of rows has doubled since, later every 4,194,304 rows: what an
untrained model predicted fades, and from row 8,192 on two thirds of the counts or more are of the log's later half.
Rows are counted from the log's first one, so that batches change nothing. Nothing here predicts or learns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from model_store.calibration import Calibration, Curve, CurveKind, VariantCurves
from model_store.features import FeaturePlan
from model_store.spec import ModelSpec
from trainer.calibration import kernels
from trainer.calibration.fitting import fit, logloss
from trainer.calibration.kernels import BUCKETS, CLICKS, EXAMPLES
from trainer.hashing.examples import Examples

Array = npt.NDArray[Any]

FIRST_FOLD = 1 << 12
LONGEST_FOLD = 1 << 22
MAX_CURVES = 2048
"""Of all variants together: values of the slicing field beyond what this leaves room for have no curve of their own."""
_BEFORE, _AFTER, _EXPECTED_BEFORE, _EXPECTED_AFTER, _WEIGHT, _CLICKED = range(6)


@dataclass(frozen=True)
class CalibrationReport:
    """What curves did for one variant, on the rows that came after each was fitted; None where there were none.

    logloss is the mean, calibration sum of p / sum of y, each of the predictions as they were and as corrected;
    rows is the weight of the examples judged, values the number of field values with a curve of their own now.
    """

    rows: float
    values: int
    logloss: float | None
    logloss_corrected: float | None
    calibration: float | None
    calibration_corrected: float | None

    def as_dict(self) -> dict[str, float | None]:
        """The report by name."""
        return asdict(self)


class Calibrator:
    """Counts every variant's progressive predictions, for the whole log and for each value of the slicing field.

    Memory: 24 KiB for each variant and scope (the whole, and up to MAX_CURVES / variants values).
    """

    def __init__(self, kind: CurveKind, variants: Sequence[str], by: int | None, by_name: str | None) -> None:
        """`by`: the number of the slicing field in the plan, None for none."""
        self.kind: CurveKind = kind
        self.variants, self._by, self._by_name = tuple(variants), by, by_name
        self.rows = 0
        self._place_of: dict[int, int] = {}  # digest of a value → its scope; 0 is the whole log
        self._values: list[bytes] = []
        self._past = np.zeros((len(variants), 1, BUCKETS, 3))
        self._window = np.zeros_like(self._past)
        self._judged = np.zeros((len(variants), 6))
        self._curves: dict[str, VariantCurves] = {}

    @classmethod
    def of(cls, spec: ModelSpec) -> Self | None:
        """The calibrator that a resolved spec asks for, or None."""
        section = spec.calibration
        if section.kind == "none":
            return None
        field = FeaturePlan.of(spec).field(section.by) if section.by is not None else None
        return cls(section.kind, tuple(spec.variants), field.index if field else None, section.by)

    @property
    def nbytes(self) -> int:
        """Memory held by the counts, in bytes."""
        return self._past.nbytes + self._window.nbytes

    def update(self, scores: Array, examples: Examples) -> None:
        """Add a batch: scores float64[rows, >= variants], made before the examples were learned from."""
        rows = examples.hashed
        places = self._places(examples)
        done, total = 0, int(rows.labels.size)
        while done < total:
            end = min(total, done + next_fold(self.rows) - self.rows)
            kernels.count(scores, rows.labels, rows.weights, places, done, end, self._window)
            self.rows += end - done
            done = end
            if self.rows == fold_at_or_before(self.rows):
                self._fold()

    def calibration(self) -> Calibration | None:
        """The curves of all that is remembered now; None if no variant has examples enough for one."""
        fitted = self._fitted(self._past + self._window)
        if not any(curves.whole or curves.values for curves in fitted.values()):
            return None
        return Calibration(self.kind, self._by_name, fitted)

    def report(self) -> dict[str, CalibrationReport]:
        """What the curves did so far, by variant."""
        present = self._fitted(self._past + self._window)
        return {
            name: _report(sums, len(present[name].values))
            for name, sums in zip(self.variants, self._judged, strict=True)
        }

    def state(self) -> dict[str, Array]:
        """Everything that later rows depend on, as arrays."""
        return {
            "rows": np.array([self.rows]),
            "past": self._past,
            "window": self._window,
            "judged": self._judged,
            "digests": np.array(list(self._place_of), np.uint64),
            "values": np.frombuffer(b"".join(self._values), np.uint8),
            "lengths": np.array([len(value) for value in self._values], np.int64),
        }

    def restore(self, state: Mapping[str, Array]) -> None:
        """Go on from what `state` gave."""
        self.rows = int(state["rows"][0])
        self._past, self._window = state["past"].copy(), state["window"].copy()
        self._judged = state["judged"].copy()
        self._place_of = {
            int(digest): place for place, digest in enumerate(state["digests"].tolist(), start=1)
        }
        ends = np.cumsum(state["lengths"])
        data = state["values"].tobytes()
        self._values = [data[end - size : end] for end, size in zip(ends, state["lengths"], strict=True)]
        self._curves = self._fitted(self._past) if self.rows >= FIRST_FOLD else {}

    # -- values of the slicing field

    def _places(self, examples: Examples) -> Array:
        if self._by is None:
            return np.empty(0, np.int64)
        tokens = examples.tokens
        digests = tokens.digests[tokens.base[self._by] + examples.rows]
        distinct, firsts, inverse = np.unique(digests, return_index=True, return_inverse=True)
        for index in np.argsort(firsts).tolist():
            digest = int(distinct[index])
            if digest and digest not in self._place_of and len(self._place_of) < self._room:
                self._place_of[digest] = len(self._values) + 1
                self._values.append(examples.texts[self._by][int(examples.rows[firsts[index]])].as_py())
        self._widen()
        found = np.array([self._place_of.get(digest, 0) for digest in distinct.tolist()], np.int64)
        return found[inverse.reshape(-1)]

    @property
    def _room(self) -> int:
        return MAX_CURVES // len(self.variants) - 1

    def _widen(self) -> None:
        """Make room for every value known, doubling."""
        scopes = self._past.shape[1]
        if len(self._values) < scopes:
            return
        wanted = min(max(2 * scopes, len(self._values) + 1), self._room + 1)
        more = np.zeros((len(self.variants), wanted - scopes, BUCKETS, 3))
        self._past = np.concatenate([self._past, more], axis=1)
        self._window = np.concatenate([self._window, more], axis=1)

    # -- fitting

    def _fold(self) -> None:
        """Judge the curves in force by the rows since the last fold, then take those rows in and fit anew."""
        for variant, name in enumerate(self.variants):
            if name in self._curves:
                self._judge(variant, self._curves[name])
        self._past = 0.5 * (self._past + self._window)
        self._window[:] = 0.0
        self._curves = self._fitted(self._past)

    def _judge(self, variant: int, curves: VariantCurves) -> None:
        if curves.whole is None:
            return
        window, sums = self._window[variant], self._judged[variant]
        rest = window[0].copy()
        for place, value in enumerate(self._values, start=1):
            if value in curves.values:
                _add(sums, curves.values[value], window[place])
                rest -= window[place]
        _add(sums, curves.whole, rest)

    def _fitted(self, counts: Array) -> dict[str, VariantCurves]:
        return {name: self._curves_of(counts[variant]) for variant, name in enumerate(self.variants)}

    def _curves_of(self, counts: Array) -> VariantCurves:
        values: dict[bytes, Curve] = {}
        for place, value in enumerate(self._values, start=1):
            curve = fit(self.kind, counts[place])
            if curve is not None:
                values[value] = curve
        return VariantCurves(fit(self.kind, counts[0]), values)


def fold_at_or_before(rows: int) -> int:
    """The last row number up to `rows` at which counts are halved; 0 if none is."""
    if rows < FIRST_FOLD:
        return 0
    return rows // LONGEST_FOLD * LONGEST_FOLD if rows >= LONGEST_FOLD else 1 << rows.bit_length() - 1


def next_fold(rows: int) -> int:
    """The next row number, beyond `rows`, at which counts are halved."""
    if rows < FIRST_FOLD:
        return FIRST_FOLD
    last = fold_at_or_before(rows)
    return last + min(last, LONGEST_FOLD)


def _add(sums: Array, curve: Curve, counts: Array) -> None:
    counts = np.maximum(counts, 0.0)  # what differences of rounded sums leave below 0
    sums[_BEFORE], sums[_EXPECTED_BEFORE] = np.add(sums[[_BEFORE, _EXPECTED_BEFORE]], logloss(None, counts))
    sums[_AFTER], sums[_EXPECTED_AFTER] = np.add(sums[[_AFTER, _EXPECTED_AFTER]], logloss(curve, counts))
    sums[_WEIGHT] += counts[:, EXAMPLES].sum()
    sums[_CLICKED] += counts[:, CLICKS].sum()


def _report(sums: Array, values: int) -> CalibrationReport:
    weight, clicks = float(sums[_WEIGHT]), float(sums[_CLICKED])

    def per(total: float, of: float) -> float | None:
        return float(total) / of if of else None

    return CalibrationReport(
        rows=weight,
        values=values,
        logloss=per(sums[_BEFORE], weight),
        logloss_corrected=per(sums[_AFTER], weight),
        calibration=per(sums[_EXPECTED_BEFORE], clicks),
        calibration_corrected=per(sums[_EXPECTED_AFTER], clicks),
    )
