"""Off-policy estimation: reads the log, weights its rows for every policy, and estimates by IPS, clipped IPS and SNIPS.

With weights w = pi(a|x) / p(a|x), rewards r, importance m, over all rows:
    IPS  = sum(m w r) / sum(m)           clipped: with min(w, limit) for w
    SNIPS = sum(m w r) / sum(m w)        (Swaminathan and Joachims, NeurIPS 2015)
All are ratios of sums over clusters, the rows of a cookie, or of a request without one, so one formula gives their
variance: with the residual e = numerator - estimate * denominator of each of C clusters, C / (C - 1) * sum(e^2) / (sum
of denominators)^2 (the delta method). Optional bootstrap intervals are percentiles (Efron 1979) over clusters drawn
with replacement, the same draws for all policies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from model_store.errors import InputError, SpecError
from model_store.model_files import NamedModel
from model_store.spec.spec import ModelSpec
from trainer.examples.side_tables import SideTable
from trainer.learn.metrics.figures import NORMAL_95
from trainer.learn.scorer import scoring_spec
from trainer.off_policy.logged import DECISION_ROW, Layout, LoggedRows
from trainer.off_policy.policies import (
    LEARNING,
    LOGGED,
    UNIFORM,
    Candidates,
    ItemChoice,
    LearningScores,
    PolicyName,
    PolicyWeights,
    PublishedScores,
    columns_of_items,
    uniform,
    weigh,
)

Array = npt.NDArray[Any]

SHOWN, REWARD, WEIGHT, WEIGHTED, CLIPPED = range(5)
"""Columns of the sums of a cluster."""
OUTER = (2.5, 97.5)
FEWEST_ROWS = 100
FEWEST_CLICKS = 10
MOST_UNLOGGED = 0.01
MOST_CLIPPED = 0.01
_DEVIATIONS = 4.0
_CLOSE = 1e-6
RATIOS = {"ips": (WEIGHTED, SHOWN), "clipped": (CLIPPED, SHOWN), "snips": (WEIGHTED, WEIGHT)}

Progress = Callable[[str, int, int | None], None]
"""Receives a step's name, how much of it is done, and the total, None where unknown."""
Read = Callable[[ModelSpec, Sequence[ModelSpec]], tuple[LoggedRows, Layout, list[ModelSpec]]]
"""Reads the log for a spec and the specs of models: see `LogOfRows.read`."""


@dataclass(frozen=True)
class Estimate:
    """A click rate and its 95 % intervals, clipped to 0 and 1: normal, and bootstrapped if requested.

    None where the denominator is 0; the intervals also where there are no clicks or fewer than two clusters.
    """

    value: float | None
    error: float | None = None
    low: float | None = None
    high: float | None = None
    bootstrap_low: float | None = None
    bootstrap_high: float | None = None


@dataclass(frozen=True)
class Support:
    """How much of the log is evidence about a policy.

    matched: share of rows with a weight above 0; ess: effective sample size (sum w)^2 / sum w^2, in rows; mean: mean
    weight, expected to be 1 if propensities and candidates are right, and error its standard error; largest: largest
    weight; clipped: share of rows with a weight above the limit; clicks: effective number, (sum w r)^2 / sum (w r)^2.
    """

    rows: int
    matched: float
    ess: float
    mean: float
    error: float | None
    largest: float
    clipped: float
    clicks: float


def sums_by_cluster(cluster: Array, weight: Array, reward: Array, importance: Array, limit: float) -> Array:
    """float64[clusters, 5]: the sums whose ratios are the estimates. The arguments are over rows."""
    columns = (
        importance,
        importance * reward,
        importance * weight,
        importance * weight * reward,
        importance * np.minimum(weight, limit) * reward,
    )
    return np.column_stack([np.bincount(cluster, each) for each in columns])


def ratio(numerator: Array, denominator: Array) -> Estimate:
    """The ratio of two sums over clusters, with its normal interval."""
    total = float(denominator.sum())
    if total <= 0.0:
        return Estimate(None)
    value = float(numerator.sum()) / total
    if value == 0.0:  # without clicks there is no variance to estimate
        return Estimate(value)
    error = error_of(residuals(numerator, denominator))
    if error is None:
        return Estimate(value)
    return Estimate(value, error, max(0.0, value - NORMAL_95 * error), min(1.0, value + NORMAL_95 * error))


def residuals(numerator: Array, denominator: Array) -> Array:
    """Each cluster's effect on the ratio, to first order: float64[clusters]."""
    total = float(denominator.sum())
    return np.asarray((numerator - numerator.sum() / total * denominator) / total)


def error_of(effects: Array) -> float | None:
    """The standard error of a sum of independent effects; None for fewer than two."""
    clusters = effects.size
    if clusters < 2:
        return None
    return float(np.sqrt(clusters / (clusters - 1) * (effects**2).sum()))


def support_of(weight: Array, reward: Array, importance: Array, sums: Array, limit: float) -> Support:
    """The support of a policy; sums: from `sums_by_cluster`."""
    mean = ratio(sums[:, WEIGHT], sums[:, SHOWN])
    return Support(
        rows=int(weight.size),
        matched=float((weight > 0.0).mean()),
        ess=_effective(weight),
        mean=mean.value or 0.0,
        error=mean.error,
        largest=float(weight.max()),
        clipped=float((weight > limit).mean()),
        clicks=_effective(weight * reward),
    )


def _effective(weight: Array) -> float:
    """How many equal weights have the same spread (Kish 1965)."""
    squares = float((weight**2).sum())
    return float(weight.sum()) ** 2 / squares if squares else 0.0


def support_warnings(support: Support, unlogged: float, limit: float) -> tuple[str, ...]:
    """Reasons not to trust a policy's estimates."""
    found = []
    if support.ess < FEWEST_ROWS:
        found.append(
            f"its effective sample is {support.ess:.0f} rows; under {FEWEST_ROWS} its intervals are too narrow"
        )
    if support.clicks < FEWEST_CLICKS:
        found.append(
            f"its estimate rests on {support.clicks:.1f} effective clicks; under {FEWEST_CLICKS} its intervals are "
            "rough"
        )
    if unlogged > MOST_UNLOGGED:
        found.append(
            f"{unlogged:.1%} of the items it shows are never shown in the log, so their clicks are unknown; "
            "IPS counts them as never clicked, SNIPS as clicked like the rest"
        )
    expected = 1.0 - unlogged
    if abs(support.mean - expected) > _DEVIATIONS * (support.error or 0.0) + _CLOSE:
        found.append(
            f"its mean weight is {support.mean:.3f} ± {support.error or 0.0:.3f} and should be {expected:.3g}: "
            "propensities or candidates are not those of the log"
        )
    if support.clipped > MOST_CLIPPED:
        found.append(
            f"{support.clipped:.1%} of its weights are above {limit:.0f}: the clipped estimate is biased"
        )
    return tuple(found)


def resampled(
    sums: Array, draws: int, seed: int, on_progress: Callable[[int], None] = lambda done: None
) -> Array:
    """Column totals over each bootstrap draw of clusters: float64[draws, columns]; sums: float64[clusters, columns]."""
    random = np.random.Generator(np.random.Philox(seed))
    clusters = len(sums)
    totals = np.empty((draws, sums.shape[1]))
    for draw in range(draws):
        times = np.bincount(random.integers(0, clusters, clusters), minlength=clusters)
        totals[draw] = times @ sums
        on_progress(draw + 1)
    return totals


def interval(numerators: Array, denominators: Array) -> tuple[float, float] | None:
    """The middle 95 % of the ratios, without draws whose denominator is 0; None if there are no others."""
    defined = denominators > 0.0
    if not defined.any():
        return None
    low, high = np.percentile(numerators[defined] / denominators[defined], OUTER)
    return float(low), float(high)


@dataclass(frozen=True)
class PolicyValue:
    """A policy's estimates.

    difference: its SNIPS minus the log's own click rate, with a paired interval. positions: estimates by position;
    empty where the log has no positions, or decisions are lists. warnings: reasons not to trust the estimates.
    """

    name: str
    estimates: dict[str, Estimate]
    difference: Estimate
    support: Support
    unlogged: float
    positions: dict[str, dict[str, Estimate]]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class EstimatorOptions:
    """limit: the clip limit of weights, None for the square root of the rows; bootstrap: draws, 0 for none."""

    limit: float | None = None
    bootstrap: int = 1000
    seed: int = 1


def estimate(
    rows: LoggedRows,
    policies: Sequence[PolicyWeights],
    options: EstimatorOptions,
    *,
    by_position: bool,
    on_progress: Callable[[int], None] = lambda draws: None,
) -> list[PolicyValue]:
    """The estimates of all policies, from the same rows and the same draws."""
    limit = options.limit or float(np.sqrt(len(rows)))
    sums = [sums_by_cluster(rows.cluster, each.weight, rows.label, rows.weight, limit) for each in policies]
    drawn: Sequence[Array | None] = [None] * len(policies)
    if options.bootstrap:
        totals = resampled(np.hstack(sums), options.bootstrap, options.seed, on_progress)
        drawn = np.split(totals, len(policies), axis=1)
    found = []
    for policy, mine, draws in zip(policies, sums, drawn, strict=True):
        support = support_of(policy.weight, rows.label, rows.weight, mine, limit)
        found.append(
            PolicyValue(
                name=policy.name,
                estimates=_estimates(mine, draws),
                difference=_difference(mine),
                support=support,
                unlogged=policy.unlogged,
                positions=_by_position(rows, policy, limit) if by_position else {},
                warnings=support_warnings(support, policy.unlogged, limit),
            )
        )
    return found


def _estimates(sums: Array, drawn: Array | None = None) -> dict[str, Estimate]:
    """The estimates by name. drawn: the totals of bootstrap draws."""
    found = {}
    for name, (top, below) in RATIOS.items():
        found[name] = ratio(sums[:, top], sums[:, below])
        middle = interval(drawn[:, top], drawn[:, below]) if drawn is not None else None
        if middle is not None and found[name].error is not None:
            low, high = max(0.0, middle[0]), min(1.0, middle[1])
            found[name] = replace(found[name], bootstrap_low=low, bootstrap_high=high)
    return found


def _difference(sums: Array) -> Estimate:
    """SNIPS minus the log's own click rate, paired by cluster."""
    top, below = RATIOS["snips"]
    policy, logged = ratio(sums[:, top], sums[:, below]), ratio(sums[:, REWARD], sums[:, SHOWN])
    if policy.value is None or logged.value is None:
        return Estimate(None)
    value = policy.value - logged.value
    effects = residuals(sums[:, top], sums[:, below]) - residuals(sums[:, REWARD], sums[:, SHOWN])
    error = error_of(effects)
    return (
        Estimate(value)
        if error is None
        else Estimate(value, error, value - NORMAL_95 * error, value + NORMAL_95 * error)
    )


def _by_position(rows: LoggedRows, policy: PolicyWeights, limit: float) -> dict[str, dict[str, Estimate]]:
    found = {}
    positions = pc.unique(rows.position).to_pylist() if rows.position is not None else []
    for position in sorted(positions, key=lambda text: (len(text), text)):  # 2 before 10
        here = np.asarray(pc.equal(rows.position, position))
        cluster = np.unique(rows.cluster[here], return_inverse=True)[1].reshape(-1)
        sums = sums_by_cluster(cluster, policy.weight[here], rows.label[here], rows.weight[here], limit)
        found[position.decode("utf-8", "replace")] = _estimates(sums)
    return found


@dataclass(frozen=True)
class Estimates:
    """The estimates of all policies, and the rows they are based on.

    decision: row or list; size: mean number of items that a decision shows; unusable: rows left out because they have
    no propensity; rejected: bad rows; limit: the clip limit of weights; notes: remarks on all estimates.
    """

    decision: str
    rows: int
    requests: int
    candidates: int
    size: float
    unusable: int
    rejected: int
    propensity: str | None
    limit: float
    policies: tuple[PolicyValue, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class EstimationRun:
    """The options of a run. models: the published models among the policies, by name."""

    spec: ModelSpec
    policies: Sequence[PolicyName]
    models: dict[str, NamedModel]
    choices: Sequence[ItemChoice]
    items: SideTable | None
    without: tuple[str, ...]
    decision: str
    options: EstimatorOptions

    @property
    def specs(self) -> dict[str, ModelSpec]:
        """The specs for hashing the log's rows, of the policies that use features."""
        specs = {name: scoring_spec(model.artefact.spec, self.without) for name, model in self.models.items()}
        if any(policy.name == LEARNING for policy in self.policies):
            specs[LEARNING] = self.spec
        return specs

    def run(self, read: Read, on_progress: Progress = lambda step, done, total: None) -> Estimates:
        """Read the log and estimate. Raises SpecError, InputError: see docs/replay.md."""
        rows, layout, resolved = read(self.spec, list(self.specs.values()))
        weighed, candidates = self._weigh(rows, dict(zip(self.specs, resolved, strict=True)), on_progress)

        by_position = self.decision == DECISION_ROW
        found = estimate(
            *(rows, weighed, self.options),
            by_position=by_position,
            on_progress=lambda done: on_progress("bootstrap", done, self.options.bootstrap),
        )
        return Estimates(
            decision=self.decision,
            rows=len(rows),
            requests=rows.requests,
            candidates=len(candidates) if candidates is not None else 0,
            size=float(rows.decisions(self.decision).size.mean()),
            unusable=rows.unusable,
            rejected=rows.rejected,
            propensity=layout.propensity,
            limit=self.options.limit or float(np.sqrt(len(rows))),
            policies=tuple(found),
            notes=_notes(rows, candidates),
        )

    def _weigh(
        self, rows: LoggedRows, resolved: dict[str, ModelSpec], on_progress: Progress
    ) -> tuple[list[PolicyWeights], Candidates | None]:
        as_logged = PolicyWeights(LOGGED, np.ones(len(rows)))
        if all(policy.name == LOGGED for policy in self.policies):
            return [as_logged], None
        item = self.spec.input.item
        if item is None:
            raise SpecError("input.item is missing: name the column with the id of a row's item")
        of_items = columns_of_items(*resolved.values())
        candidates = Candidates.of(rows, item, of_items, self.items)
        _check_support(rows, len(candidates))
        decisions, weighed = rows.decisions(self.decision), list[PolicyWeights]()
        for policy in dict.fromkeys(self.policies):
            if policy.name == LOGGED:
                weighed.append(as_logged)
            elif policy.name == UNIFORM:
                weighed.append(uniform(rows, decisions, candidates))
            else:
                scores: PublishedScores | LearningScores
                if policy.name == LEARNING:
                    scores = LearningScores(resolved[LEARNING], LEARNING, policy.variant)
                else:
                    named = self.models[policy.name]
                    of_model = resolved[policy.name], named.name, policy.variant
                    scores = PublishedScores(named.artefact, *of_model)
                progress = partial(on_progress, policy.name)
                weighed += weigh(rows, decisions, candidates, scores, self.choices, progress)
        return weighed, candidates


def _check_support(rows: LoggedRows, candidates: int) -> None:
    """Raise InputError for a log from which only its own policy can be estimated."""
    if not rows.has_propensity:
        raise InputError(
            "the log has no propensities (expected propensity in an event's items, or a column propensity_score, "
            "propensity or pscore): only `logged` can be estimated; name the column with --propensity"
        )
    if not len(rows):
        raise InputError(
            f"no row has a propensity in (0, 1] ({rows.unusable:,} have none): nothing can be estimated"
        )
    if candidates > 1 and bool(np.all(rows.propensity == 1.0)):
        raise InputError(
            "every propensity is 1: the logged policy is deterministic, so no other policy can be estimated; log with "
            "exploration (Thompson sampling, or a share of random requests), or estimate `logged` alone"
        )


def _notes(rows: LoggedRows, candidates: Candidates | None) -> tuple[str, ...]:
    found = []
    if rows.unusable:
        found.append(
            f"{rows.unusable:,} rows were left out: they, or other rows of their list, have no propensity in (0, 1]"
        )
    if candidates is not None:
        if candidates.varying:
            found.append(
                f"{', '.join(candidates.varying)}: differs between rows of an item; a candidate has the value of its "
                "first row"
            )
        others = int((candidates.index < 0).sum())
        if others:
            found.append(
                f"{others:,} rows show items that are not candidates; every policy but `logged` has weight 0 there"
            )
    return tuple(found)
