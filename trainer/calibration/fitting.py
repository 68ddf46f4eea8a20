"""From counts of predictions to one curve: power by Poisson regression, isotonic by pooling adjacent violators.

Counts are float64[buckets, 3] as `kernels.count` makes them, buckets by ascending score. Published numbers have six
significant digits: logarithms and powers may differ in their last bits from machine to machine, curves may not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.calibration import Curve, CurveKind, IsotonicCurve, PowerCurve
from trainer.calibration.kernels import CLICKS, EXAMPLES, EXPECTED

Array = npt.NDArray[np.float64]

FEWEST = 100.0
"""A curve needs as much weight of clicks, and of examples without a click."""
MAX_BINS = 64
CLICKS_PER_BIN = 25.0
STEEPEST, FLATTEST = 16.0, 1.0 / 16.0
_SMALLEST = 1e-300
_LARGEST_GAMMA = 1e300
_LARGEST_KNOT = 0.999999  # the last number of six digits before 1
_LARGEST_LOG = 300.0
_TOLD_AT_LEAST = 1e-12
_STEPS = 60
_CLOSE = 1e-12


def fit(kind: CurveKind, counts: Array) -> Curve | None:
    """The curve that fits the counts, or None where they are too few, or all lie where no curve can tell them apart."""
    filled = counts[counts[:, EXAMPLES] > 0]
    clicks, examples = filled[:, CLICKS].sum(), filled[:, EXAMPLES].sum()
    if min(clicks, examples - clicks) < FEWEST:
        return None
    return FITS[kind](filled)


def power(counts: Array) -> PowerCurve | None:
    """gamma and kappa by Poisson regression on the aggregated counts (the paper, section 7), by Newton's method.

    clicks ~ Poisson(examples * gamma p^kappa): its likelihood is concave in ln gamma and kappa, and at its top the
    corrected predictions sum to the clicks. kappa is kept within [FLATTEST, STEEPEST], so that the curve rises.
    """
    log_p = np.log(np.maximum(counts[:, EXPECTED] / counts[:, EXAMPLES], _SMALLEST))
    if np.ptp(log_p) == 0.0:
        return _scaled(counts, log_p, 1.0)
    terms = np.stack([np.ones_like(log_p), log_p])
    _, kappa = _climb(terms, counts[:, EXAMPLES], counts[:, CLICKS])
    return _scaled(counts, log_p, float(np.clip(kappa, FLATTEST, STEEPEST)))


def _scaled(counts: Array, log_p: Array, kappa: float) -> PowerCurve | None:
    """The curve of this kappa whose predictions sum to the clicks, or None where no gamma makes them."""
    kappa = rounded(kappa)
    expected = (counts[:, EXAMPLES] * np.exp(kappa * log_p)).sum()
    clicks = counts[:, CLICKS].sum()
    if not expected > clicks / _LARGEST_GAMMA:
        return None
    gamma = rounded(float(clicks / expected))
    return PowerCurve(gamma, kappa) if gamma > 0.0 else None


def isotonic(counts: Array) -> IsotonicCurve | None:
    """The rising curve of least squares through the bins' click rates.

    A bin also holds one made-up example that clicks as often as predicted: without it, a bin of no clicks would
    predict that none can come.
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
        if last_p < at < 1.0 and last_ctr < ctr < 1.0:  # rounding may make two of them one
            knots.append((at, ctr))
            last_p, last_ctr = at, ctr
    return IsotonicCurve(tuple(knots)) if knots else None


def bins(counts: Array) -> Array:
    """Buckets put together in bins of about the same sum of p (1 - p), what an example tells of a rate: [bins, 3]."""
    clicks, examples = counts[:, CLICKS].sum(), counts[:, EXAMPLES].sum()
    wanted = int(np.clip(min(clicks, examples - clicks) / CLICKS_PER_BIN, 1, MAX_BINS))
    p = counts[:, EXPECTED] / counts[:, EXAMPLES]
    told = counts[:, EXAMPLES] * np.maximum(p * (1.0 - p), _TOLD_AT_LEAST)
    middle = np.cumsum(told) - 0.5 * told
    number = np.minimum((wanted * middle / told.sum()).astype(np.int64), wanted - 1)
    firsts = np.flatnonzero(np.diff(number, prepend=-1))
    return np.asarray(np.add.reduceat(counts, firsts, axis=0))


def pool(values: Array, weights: Array) -> list[tuple[int, int]]:
    """Pool adjacent violators: the runs [begin, end) whose weighted means ascend strictly, of least squared error.

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


def _climb(terms: Array, examples: Array, clicks: Array) -> Array:
    """ln gamma and kappa of greatest likelihood, from (0, 1), no correction; steps that do not climb are halved."""
    at = np.array([0.0, 1.0])
    reached = _likelihood(at @ terms, examples, clicks)
    for _ in range(_STEPS):
        expected = examples * np.exp(at @ terms)
        # The shortest of all solutions, where predictions lie too close together, or some weigh nothing.
        step = np.linalg.lstsq((terms * expected) @ terms.T, terms @ (clicks - expected))[0]
        while (there := _likelihood((at + step) @ terms, examples, clicks)) <= reached:
            if np.abs(step).max() < _CLOSE:
                return at
            step = 0.5 * step
        at, reached = at + step, there
    return at


def _likelihood(log_tau: Array, examples: Array, clicks: Array) -> float:
    if log_tau.max() > _LARGEST_LOG:
        return -np.inf
    return float((clicks * log_tau - examples * np.exp(log_tau)).sum())


FITS: dict[CurveKind, Callable[[Any], Curve | None]] = {"power": power, "isotonic": isotonic}


def logloss(curve: Curve | None, counts: Array) -> tuple[float, float]:
    """The sum of the log-loss of counted predictions under a curve (None: as they are), and the sum of tau."""
    filled = counts[counts[:, EXAMPLES] > 0]
    p = filled[:, EXPECTED] / filled[:, EXAMPLES]
    tau = np.clip(p if curve is None else curve.apply(p), 1e-15, 1.0 - 1e-15)
    clicks, rest = filled[:, CLICKS], filled[:, EXAMPLES] - filled[:, CLICKS]
    loss = -(clicks * np.log(tau) + rest * np.log1p(-tau)).sum()
    return float(loss), float((filled[:, EXAMPLES] * tau).sum())
