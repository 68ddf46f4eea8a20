"""Calibrator: fits calibration curves on progressive predictions, and evaluates them on the rows after each fit.

Counts are halved at row 4,096 and whenever the number of rows has doubled since, later every 4,194,304 rows. So the
predictions of an untrained model fade: from row 8,192 on, at least two thirds of the counts are of the log's later
half. Rows are counted from the start of the log, so batch boundaries change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from model_store.artefact.calibration import (
    Calibration,
    Curve,
    CurveKind,
    IsotonicCurve,
    PowerCurve,
    VariantCurves,
)
from model_store.features.features import FeaturePlan
from model_store.spec.spec import ModelSpec
from trainer.examples.hashing import Examples
from trainer.learn.predictions_kernels import (
    BUCKETS,
    CLICKS,
    EXAMPLES,
    EXPECTED,
    SMALLEST_PROBABILITY,
    Predictions,
    count_by_score,
)

Array = npt.NDArray[Any]
Float64s = npt.NDArray[np.float64]

FIRST_DECAY = 1 << 12
LONGEST_INTERVAL = 1 << 22
MAX_CURVES = 2048
"""The most curves of all variants together; further values of the slicing field have no curve of their own."""

FEWEST = 100.0
"""The least weight of clicks, and of examples without a click, that a curve needs."""
MAX_BINS = 64
CLICKS_PER_BIN = 25.0
STEEPEST, FLATTEST = 16.0, 1.0 / 16.0
_SMALLEST = 1e-300
_LARGEST_GAMMA = 1e300
_LARGEST_KNOT = 0.999999  # the last number of six digits before 1
_LARGEST_LOG = 300.0
_LEAST_INFORMATION = 1e-12
_STEPS = 60
_CLOSE = 1e-12

_BEFORE, _AFTER, _EXPECTED_BEFORE, _EXPECTED_AFTER, _WEIGHT, _CLICKED = range(6)


@dataclass(frozen=True)
class CalibrationReport:
    """The effect of one variant's curves on the rows after each fit; None where there are no such rows.

    logloss: the mean log-loss; calibration: sum of p / sum of y; each before and after correction. rows: the weight of
    the evaluated examples; values: the number of field values with a curve of their own now.
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

    Memory: 24 KiB for each variant and scope (the whole log, and up to MAX_CURVES / variants values).
    """

    def __init__(self, kind: CurveKind, variants: Sequence[str], by: int | None, by_name: str | None) -> None:
        """`by`: the number of the slicing field in the plan, None for none."""
        self.kind: CurveKind = kind
        self.variants, self._by, self._by_name = tuple(variants), by, by_name
        self.rows = 0
        self._scope_of: dict[int, int] = {}  # digest of a value → its scope; 0 is the whole log
        self._values: list[bytes] = []
        self._past = np.zeros((len(variants), 1, BUCKETS, 3))
        self._window = np.zeros_like(self._past)
        self._evaluated = np.zeros((len(variants), 6))
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
        """Memory of the counts, in bytes."""
        return self._past.nbytes + self._window.nbytes

    def update(self, predictions: Predictions, examples: Examples) -> None:
        """Add a batch of predictions, made before the examples were learned."""
        scopes = self._scopes(examples)
        done, total = 0, int(predictions.labels.size)
        while done < total:
            end = min(total, done + next_decay(self.rows) - self.rows)
            count_by_score(predictions, scopes, done, end, self._window)
            self.rows += end - done
            done = end
            if self.rows == last_decay(self.rows):
                self._decay()

    def calibration(self) -> Calibration | None:
        """Curves fitted to the present counts; None if no variant has enough examples for one."""
        fitted = self._fitted(self._past + self._window)
        if not any(curves.whole or curves.values for curves in fitted.values()):
            return None
        return Calibration(self.kind, self._by_name, fitted)

    def report(self) -> dict[str, CalibrationReport]:
        """The effect of the curves so far, by variant."""
        present = self._fitted(self._past + self._window)
        return {
            name: _report(sums, len(present[name].values))
            for name, sums in zip(self.variants, self._evaluated, strict=True)
        }

    def state(self) -> dict[str, Array]:
        """Everything that later rows depend on, as arrays."""
        return {
            "rows": np.array([self.rows]),
            "past": self._past,
            "window": self._window,
            "judged": self._evaluated,
            "digests": np.array(list(self._scope_of), np.uint64),
            "values": np.frombuffer(b"".join(self._values), np.uint8),
            "lengths": np.array([len(value) for value in self._values], np.int64),
        }

    def restore(self, state: Mapping[str, Array]) -> None:
        """Restore a `state`."""
        self.rows = int(state["rows"][0])
        self._past, self._window = state["past"].copy(), state["window"].copy()
        self._evaluated = state["judged"].copy()
        self._scope_of = {
            int(digest): scope for scope, digest in enumerate(state["digests"].tolist(), start=1)
        }
        ends = np.cumsum(state["lengths"])
        data = state["values"].tobytes()
        self._values = [data[end - size : end] for end, size in zip(ends, state["lengths"], strict=True)]
        self._curves = self._fitted(self._past) if self.rows >= FIRST_DECAY else {}

    def _scopes(self, examples: Examples) -> Array:
        if self._by is None:
            return np.empty(0, np.int64)
        tokens = examples.tokens
        digests = tokens.of_rows(self._by, examples.rows)
        distinct, firsts, inverse = np.unique(digests, return_index=True, return_inverse=True)
        for index in np.argsort(firsts).tolist():
            digest = int(distinct[index])
            if digest and digest not in self._scope_of and len(self._scope_of) < self._room:
                self._scope_of[digest] = len(self._values) + 1
                self._values.append(examples.texts[self._by][int(examples.rows[firsts[index]])].as_py())
        self._widen()
        found = np.array([self._scope_of.get(digest, 0) for digest in distinct.tolist()], np.int64)
        return found[inverse.reshape(-1)]

    @property
    def _room(self) -> int:
        return MAX_CURVES // len(self.variants) - 1

    def _widen(self) -> None:
        """Enlarge the counts, at least twofold, if they lack room for the known values."""
        scopes = self._past.shape[1]
        if len(self._values) < scopes:
            return
        wanted = min(max(2 * scopes, len(self._values) + 1), self._room + 1)
        more = np.zeros((len(self.variants), wanted - scopes, BUCKETS, 3))
        self._past = np.concatenate([self._past, more], axis=1)
        self._window = np.concatenate([self._window, more], axis=1)

    def _decay(self) -> None:
        """Evaluate the curves on the rows since the last decay, halve all counts, and fit again."""
        for variant, name in enumerate(self.variants):
            if name in self._curves:
                self._evaluate(variant, self._curves[name])
        self._past = 0.5 * (self._past + self._window)
        self._window[:] = 0.0
        self._curves = self._fitted(self._past)

    def _evaluate(self, variant: int, curves: VariantCurves) -> None:
        if curves.whole is None:
            return
        window, sums = self._window[variant], self._evaluated[variant]
        rest = window[0].copy()
        for scope, value in enumerate(self._values, start=1):
            if value in curves.values:
                _add(sums, curves.values[value], window[scope])
                rest -= window[scope]
        _add(sums, curves.whole, rest)

    def _fitted(self, counts: Array) -> dict[str, VariantCurves]:
        return {name: self._curves_of(counts[variant]) for variant, name in enumerate(self.variants)}

    def _curves_of(self, counts: Array) -> VariantCurves:
        values: dict[bytes, Curve] = {}
        for scope, value in enumerate(self._values, start=1):
            curve = fit(self.kind, counts[scope])
            if curve is not None:
                values[value] = curve
        return VariantCurves(fit(self.kind, counts[0]), values)


def last_decay(rows: int) -> int:
    """The last row number up to `rows` at which counts are halved; 0 if there is none."""
    if rows < FIRST_DECAY:
        return 0
    return (
        rows // LONGEST_INTERVAL * LONGEST_INTERVAL
        if rows >= LONGEST_INTERVAL
        else 1 << rows.bit_length() - 1
    )


def next_decay(rows: int) -> int:
    """The next row number, beyond `rows`, at which counts are halved."""
    if rows < FIRST_DECAY:
        return FIRST_DECAY
    last = last_decay(rows)
    return last + min(last, LONGEST_INTERVAL)


def _add(sums: Array, curve: Curve, counts: Array) -> None:
    counts = np.maximum(counts, 0.0)  # differences of rounded sums may be below 0
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


# Fitting one curve to the counts of `count_by_score`, float64[buckets, 3]. Published numbers have six significant
# digits: the last bits of logarithms and powers may differ between machines, curves may not.


def fit(kind: CurveKind, counts: Float64s) -> Curve | None:
    """The curve that fits the counts; None where they are too few, or no curve can be determined from them."""
    filled = counts[counts[:, EXAMPLES] > 0]
    clicks, examples = filled[:, CLICKS].sum(), filled[:, EXAMPLES].sum()
    if min(clicks, examples - clicks) < FEWEST:
        return None
    return FITS[kind](filled)


def power(counts: Float64s) -> PowerCurve | None:
    """gamma and kappa by Poisson regression on the aggregated counts (KDD 2013, section 7), by Newton's method.

    clicks ~ Poisson(examples * gamma p^kappa): its likelihood is concave in ln gamma and kappa, and at its maximum the
    corrected predictions sum to the clicks. kappa is clipped to [FLATTEST, STEEPEST], so that the curve rises.
    """
    log_p = np.log(np.maximum(counts[:, EXPECTED] / counts[:, EXAMPLES], _SMALLEST))
    if np.ptp(log_p) == 0.0:
        return _scaled(counts, log_p, 1.0)
    terms = np.stack([np.ones_like(log_p), log_p])
    _, kappa = _climb(terms, counts[:, EXAMPLES], counts[:, CLICKS])
    return _scaled(counts, log_p, float(np.clip(kappa, FLATTEST, STEEPEST)))


def _scaled(counts: Float64s, log_p: Float64s, kappa: float) -> PowerCurve | None:
    """The curve with this kappa whose predictions sum to the clicks; None where no gamma achieves that."""
    kappa = rounded(kappa)
    expected = (counts[:, EXAMPLES] * np.exp(kappa * log_p)).sum()
    clicks = counts[:, CLICKS].sum()
    if not expected > clicks / _LARGEST_GAMMA:
        return None
    gamma = rounded(float(clicks / expected))
    return PowerCurve(gamma, kappa) if gamma > 0.0 else None


def isotonic(counts: Float64s) -> IsotonicCurve | None:
    """The rising least-squares curve through the bins' click rates.

    Each bin gets an additional example with p clicks: without it, a bin without clicks would predict a rate of 0.
    """
    binned = bins(counts)
    p = binned[:, EXPECTED] / binned[:, EXAMPLES]
    examples, clicks = binned[:, EXAMPLES] + 1.0, binned[:, CLICKS] + p
    blocks = pool(clicks / examples, examples)
    knots: list[tuple[float, float]] = []
    last_p, last_ctr = 0.0, 0.0
    for begin, end in blocks:
        weight = examples[begin:end]
        at = min(rounded(float((p[begin:end] * weight).sum() / weight.sum())), _LARGEST_KNOT)
        ctr = rounded(float(clicks[begin:end].sum() / weight.sum()))
        if last_p < at < 1.0 and last_ctr < ctr < 1.0:  # rounding may make two knots equal
            knots.append((at, ctr))
            last_p, last_ctr = at, ctr
    return IsotonicCurve(tuple(knots)) if knots else None


def bins(counts: Float64s) -> Float64s:
    """Buckets merged into bins of about equal sums of p (1 - p), an example's information on its rate: [bins, 3]."""
    clicks, examples = counts[:, CLICKS].sum(), counts[:, EXAMPLES].sum()
    wanted = int(np.clip(min(clicks, examples - clicks) / CLICKS_PER_BIN, 1, MAX_BINS))
    p = counts[:, EXPECTED] / counts[:, EXAMPLES]
    information = counts[:, EXAMPLES] * np.maximum(p * (1.0 - p), _LEAST_INFORMATION)
    middle = np.cumsum(information) - 0.5 * information
    number = np.minimum((wanted * middle / information.sum()).astype(np.int64), wanted - 1)
    firsts = np.flatnonzero(np.diff(number, prepend=-1))
    return np.asarray(np.add.reduceat(counts, firsts, axis=0))


def pool(values: Float64s, weights: Float64s) -> list[tuple[int, int]]:
    """Pool adjacent violators: the runs [begin, end) with strictly ascending weighted means of least squared error.

    O(n): every value is pushed once and merged at most once (Ayer et al., 1955).
    """
    runs: list[tuple[int, float, float]] = []  # begin, mean, weight
    for index, (value, weight) in enumerate(zip(values.tolist(), weights.tolist(), strict=True)):
        begin = index
        while runs and runs[-1][1] >= value:
            begin, mean, before = runs.pop()
            value = (mean * before + value * weight) / (before + weight)
            weight += before
        runs.append((begin, value, weight))
    ends = [begin for begin, _, _ in runs[1:]] + [len(values)]
    return [(begin, end) for (begin, _, _), end in zip(runs, ends, strict=True)]


def rounded(number: float) -> float:
    """The number to six significant digits."""
    return float(f"{number:.6g}")


def _climb(terms: Float64s, examples: Float64s, clicks: Float64s) -> Float64s:
    """ln gamma and kappa of maximum likelihood, starting at the identity (0, 1); failing steps are halved."""
    at = np.array([0.0, 1.0])
    reached = _likelihood(at @ terms, examples, clicks)
    for _ in range(_STEPS):
        expected = examples * np.exp(at @ terms)
        # lstsq gives the shortest solution where predictions are too close together, or some have no weight.
        step = np.linalg.lstsq((terms * expected) @ terms.T, terms @ (clicks - expected))[0]
        while (there := _likelihood((at + step) @ terms, examples, clicks)) <= reached:
            if np.abs(step).max() < _CLOSE:
                return at
            step = 0.5 * step
        at, reached = at + step, there
    return at


def _likelihood(log_tau: Float64s, examples: Float64s, clicks: Float64s) -> float:
    if log_tau.max() > _LARGEST_LOG:
        return -np.inf
    return float((clicks * log_tau - examples * np.exp(log_tau)).sum())


FITS: dict[CurveKind, Callable[[Any], Curve | None]] = {"power": power, "isotonic": isotonic}


def logloss(curve: Curve | None, counts: Float64s) -> tuple[float, float]:
    """The log-loss of counted predictions corrected by a curve (None: uncorrected), and the sum of tau."""
    filled = counts[counts[:, EXAMPLES] > 0]
    p = filled[:, EXPECTED] / filled[:, EXAMPLES]
    tau = np.clip(p if curve is None else curve.apply(p), SMALLEST_PROBABILITY, 1.0 - SMALLEST_PROBABILITY)
    clicks, rest = filled[:, CLICKS], filled[:, EXAMPLES] - filled[:, CLICKS]
    loss = -(clicks * np.log(tau) + rest * np.log1p(-tau)).sum()
    return float(loss), float((filled[:, EXAMPLES] * tau).sum())
