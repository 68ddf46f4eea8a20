"""Off-policy estimation: reads the log, weights its rows for every policy, and estimates.

With weights w = pi(a|x) / p(a|x), rewards r, importance m, a reward model q and its v(x) = sum_a pi(a|x) q(x, a):
    IPS  = sum(m w r) / sum(m)           clipped: with min(w, limit) for w
    SNIPS = sum(m w r) / sum(m w)        (Swaminathan and Joachims, NeurIPS 2015)
    DM   = sum(m v) / sum(m)
    DR   = sum(m (v + w' (r - q))) / sum(m)
           w' = w (Dudik et al., ICML 2011); w if w <= limit, else 0 (Switch-DR, Wang et al., ICML 2017);
           L w / (w^2 + L), L = limit^2 (DRos, Su et al., ICML 2020)
and of a list of K rows, per list (w_k: of row k alone, W_k: the product of the conditional weights of rows 1 to k):
    item-position = sum_k w_k r_k        (Li et al., KDD 2018)
    RIPS = sum_k W_k r_k                 (McInerney et al., KDD 2020)
    cascade-DR = sum_k W_k (r_k - Q_k) + W_(k-1) V_k, Q and V: the reward from row k on (Kiyohara et al., WSDM 2022)
All are ratios of sums over clusters, the rows of a cookie, or of a request without one, so one formula gives their
variance: with the residual e = numerator - estimate * denominator of each of C clusters, C / (C - 1) * sum(e^2) / (sum
of denominators)^2 (the delta method). Optional bootstrap intervals are percentiles (Efron 1979) over clusters drawn
with replacement, the same draws for all policies. DM has no interval: its error is the model's, not that of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from model_store.errors import InputError, NoSupport, SpecError
from model_store.features.objective import Objective
from model_store.model_files import NamedModel
from model_store.spec.spec import ModelSpec
from trainer.examples.side_tables import SideTable
from trainer.learn.metrics.figures import NORMAL_95
from trainer.learn.scorer import scoring_spec
from trainer.off_policy.logged import DECISION_ROW, Decisions, Layout, LoggedRows
from trainer.off_policy.policies import (
    LEARNING,
    LOGGED,
    UNIFORM,
    Candidates,
    ItemChoice,
    LearningScores,
    ListOrder,
    Ordering,
    Policies,
    PolicyName,
    PolicyWeights,
    PublishedScores,
    at_random,
    columns_of_items,
    weigh,
)
from trainer.off_policy.rewards import CrossFitted, reward_spec
from trainer.off_policy.tables import TableColumns

Array = npt.NDArray[Any]

OUTER = (2.5, 97.5)
FEWEST_ROWS, FEWEST_TO_ANSWER = 100, 30
FEWEST_CLICKS, FEWEST_CLICKS_TO_ANSWER = 10, 3
MOST_UNLOGGED, MOST_UNLOGGED_TO_ANSWER = 0.01, 0.1
MOST_CLIPPED = 0.01
_DEVIATIONS = 4.0
_CLOSE, _FAR = 1e-6, 0.1
RATIOS = {
    "ips": ("weighted", "shown"),
    "clipped": ("clipped", "shown"),
    "snips": ("weighted", "weight"),
    "dm": ("dm", "shown"),
    "dr": ("dr", "shown"),
    "switch_dr": ("switch_dr", "shown"),
    "dros": ("dros", "shown"),
    "item_position": ("item_position", "lists"),
    "rips": ("rips", "lists"),
    "cascade_dr": ("cascade_dr", "lists"),
}
"""Of each estimate the numerator and the denominator, as `sums_by_cluster` names them."""
_PER_LIST = "lists"
_NO_INTERVAL = "dm"
_REWARDS = "reward model"
_BESIDE = "beside "
_MOST_CHANCES = 1 << 27

Sums = Mapping[str, Array]
"""By name, float64[clusters] or of one draw each."""
Progress = Callable[[str, int, int | None], None]
"""Receives a step's name, how much of it is done, and the total, None where unknown."""
Read = Callable[[ModelSpec, Sequence[ModelSpec]], tuple[LoggedRows, Layout, list[ModelSpec]]]
"""Reads the log for a spec and the specs of models: see `LogOfRows.read`."""


@dataclass(frozen=True)
class Estimate:
    """A mean reward and its 95 % intervals: normal, and bootstrapped if requested; of clicks clipped to 0 and 1.

    None where the denominator is 0; the intervals also where there are no clicks or fewer than two clusters, and for
    the direct method.
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
    weight; clipped: share of rows with a weight above the limit; clicks: effective number, (sum w r)^2 / sum (w r)^2;
    lists: the effective number of whole lists, None where there are none.
    """

    rows: int
    matched: float
    ess: float
    mean: float
    error: float | None
    largest: float
    clipped: float
    clicks: float
    lists: float | None = None


def sums_by_cluster(
    cluster: Array, reward: Array, importance: Array, policy: PolicyWeights, limit: float
) -> Sums:
    """The sums whose ratios are the estimates, those of a reward model and of lists where the policy has them."""
    weight, lists = policy.weight, policy.lists
    terms = {
        "shown": np.ones_like(reward),
        "reward": reward,
        "weight": weight,
        "weighted": weight * reward,
        "clipped": np.minimum(weight, limit) * reward,
    }
    if policy.fitted is not None and policy.direct is not None:
        rest, square = reward - policy.fitted, limit**2
        terms |= {
            "dm": policy.direct,
            "dr": policy.direct + weight * rest,
            "switch_dr": policy.direct + np.where(weight <= limit, weight, 0.0) * rest,
            "dros": policy.direct + square * weight / (weight**2 + square) * rest,
        }
    if lists is not None:
        terms |= {"lists": lists.first, "item_position": lists.alone * reward, "rips": lists.cascade * reward}
        if lists.fitted is not None and lists.direct is not None:
            terms["cascade_dr"] = lists.cascade * (reward - lists.fitted) + lists.above * lists.direct
    return {name: np.bincount(cluster, importance * each) for name, each in terms.items()}


def ratio(numerator: Array, denominator: Array, *, is_share: bool = True) -> Estimate:
    """The ratio of two sums over clusters, with its normal interval; is_share: it is between 0 and 1."""
    total = float(denominator.sum())
    if total <= 0.0:
        return Estimate(None)
    value = float(numerator.sum()) / total
    if not numerator.any():  # without clicks there is no variance to estimate
        return Estimate(value)
    error = error_of(residuals(numerator, denominator))
    if error is None:
        return Estimate(value)
    return Estimate(value, error, *within(value - NORMAL_95 * error, value + NORMAL_95 * error, is_share))


def within(low: float, high: float, is_share: bool) -> tuple[float, float]:
    """An interval, clipped to 0 and 1 if it is of a share."""
    return (max(0.0, low), min(1.0, high)) if is_share else (low, high)


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


def support_of(policy: PolicyWeights, reward: Array, sums: Sums, limit: float) -> Support:
    """The support of a policy; sums: from `sums_by_cluster`."""
    weight, lists = policy.weight, policy.lists
    mean = ratio(sums["weight"], sums["shown"], is_share=False)
    return Support(
        rows=int(weight.size),
        matched=float((weight > 0.0).mean()),
        ess=_effective(weight),
        mean=mean.value or 0.0,
        error=mean.error,
        largest=float(weight.max()),
        clipped=float((weight > limit).mean()),
        clicks=_effective(weight * np.abs(reward)),
        lists=_effective(lists.whole) if lists is not None else None,
    )


def _effective(weight: Array) -> float:
    """How many equal weights have the same spread (Kish 1965)."""
    squares = float((weight**2).sum())
    return float(weight.sum()) ** 2 / squares if squares else 0.0


def checked(support: Support, unlogged: float, limit: float) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Why the log cannot answer for a policy, and why not to trust its estimates, each with what would help."""
    expected = 1.0 - unlogged
    off, error = abs(support.mean - expected), support.error or 0.0
    is_off = off > _DEVIATIONS * error + _CLOSE
    few_lists = support.lists is not None and support.lists < FEWEST_TO_ANSWER
    checks = (
        (
            support.ess < FEWEST_TO_ANSWER,
            support.ess < FEWEST_ROWS,
            f"its effective sample is {support.ess:.1f} of {support.rows:,} rows; under {FEWEST_ROWS} its intervals "
            f"are too narrow, under {FEWEST_TO_ANSWER} there is no answer: a policy nearer to the logged one "
            "(softmax:T, epsilon:E), a longer log, or more exploration in it would help",
        ),
        (
            support.clicks < FEWEST_CLICKS_TO_ANSWER,
            support.clicks < FEWEST_CLICKS,
            f"its estimate rests on {support.clicks:.1f} effective clicks, or other rewards; under {FEWEST_CLICKS} its "
            f"intervals are rough, under {FEWEST_CLICKS_TO_ANSWER} there is no answer: a longer log, or a policy "
            "nearer to the logged one, would help",
        ),
        (
            unlogged > MOST_UNLOGGED_TO_ANSWER,
            unlogged > MOST_UNLOGGED,
            f"{unlogged:.1%} of the items it shows are never shown in the log, so their rewards are unknown; IPS "
            f"counts them as 0, SNIPS as those of the rest; above {MOST_UNLOGGED_TO_ANSWER:.0%} there is no answer: "
            "to leave them out, or to explore them, would help",
        ),
        (
            is_off and off > _FAR,
            is_off,
            f"its mean weight is {support.mean:.3f} ± {error:.3f} and should be {expected:.3g}: propensities or "
            f"candidates are not those of the log, whose own would help; more than {_FAR} away there is no answer",
        ),
        (
            False,
            few_lists,
            f"RIPS and cascade-DR are refused: the effective number of lists is {support.lists or 0.0:.1f}, and they "
            f"need {FEWEST_TO_ANSWER}: item-position, or a policy nearer to the logged one, would help",
        ),
        (
            False,
            support.clipped > MOST_CLIPPED,
            f"{support.clipped:.1%} of its weights are above {limit:.0f}: the clipped estimate is biased",
        ),
    )
    refused, warned = (tuple(each[2] for each in checks if each[number]) for number in (0, 1))
    return refused, warned


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
    """A policy's estimates, by the names of RATIOS; those of a reward model or of lists only where there are any.

    difference: its SNIPS minus the log's own click rate, with a paired interval. positions: estimates by position;
    empty where the log has no positions, or decisions are lists. warnings: reasons not to trust the estimates. refused:
    why the log cannot answer, and what would help; then there are no estimates.
    """

    name: str
    estimates: dict[str, Estimate]
    difference: Estimate
    support: Support
    unlogged: float
    positions: dict[str, dict[str, Estimate]]
    warnings: tuple[str, ...]
    refused: tuple[str, ...] = ()


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
    is_share = bool(((rows.label == 0.0) | (rows.label == 1.0)).all())
    sums = [sums_by_cluster(rows.cluster, rows.label, rows.weight, each, limit) for each in policies]
    drawn: list[Sums] = [{}] * len(policies)
    if options.bootstrap:
        # All columns of all policies at once, so that the draws are the same.
        every = np.column_stack([column for mine in sums for column in mine.values()])
        totals = iter(resampled(every, options.bootstrap, options.seed, on_progress).T)
        drawn = [dict(zip(mine, totals, strict=False)) for mine in sums]
    found = []
    for policy, mine, draws in zip(policies, sums, drawn, strict=True):
        support = support_of(policy, rows.label, mine, limit)
        refused, warnings = checked(support, policy.unlogged, limit)
        refused = () if policy.name == LOGGED else refused
        value = PolicyValue(policy.name, {}, Estimate(None), support, policy.unlogged, {}, warnings, refused)
        if not refused:
            value = replace(
                value,
                estimates=_estimates(_supported(mine, support), is_share, draws),
                difference=_difference(mine),
                positions=_by_position(rows, policy, limit, is_share) if by_position else {},
            )
        found.append(value)
    return found


def _supported(sums: Sums, support: Support) -> Sums:
    """The sums without those of estimates that the lists cannot answer for."""
    refused = ("rips", "cascade_dr") if (support.lists or FEWEST_TO_ANSWER) < FEWEST_TO_ANSWER else ()
    return {name: each for name, each in sums.items() if name not in refused}


def _estimates(sums: Sums, is_share: bool, drawn: Sums | None = None) -> dict[str, Estimate]:
    """The estimates by name, of those that there are sums of. drawn: the totals of bootstrap draws."""
    found = {}
    for name, (top, below) in RATIOS.items():
        if top not in sums:
            continue
        clip = is_share and below != _PER_LIST
        found[name] = ratio(sums[top], sums[below], is_share=clip)
        if name == _NO_INTERVAL:
            found[name] = Estimate(found[name].value)
        middle = interval(drawn[top], drawn[below]) if drawn else None
        if middle is not None and found[name].error is not None:
            low, high = within(*middle, clip)
            found[name] = replace(found[name], bootstrap_low=low, bootstrap_high=high)
    return found


def _difference(sums: Sums) -> Estimate:
    """SNIPS minus the log's own click rate, paired by cluster."""
    own, logged = (
        (sums[top], sums["weight" if top == "weighted" else "shown"]) for top in ("weighted", "reward")
    )
    first, second = ratio(*own), ratio(*logged)
    if first.value is None or second.value is None:
        return Estimate(None)
    value = first.value - second.value
    error = error_of(residuals(*own) - residuals(*logged))
    return (
        Estimate(value)
        if error is None
        else Estimate(value, error, value - NORMAL_95 * error, value + NORMAL_95 * error)
    )


def _by_position(
    rows: LoggedRows, policy: PolicyWeights, limit: float, is_share: bool
) -> dict[str, dict[str, Estimate]]:
    """IPS, clipped IPS and SNIPS of each position."""
    found = {}
    positions = pc.unique(rows.position).to_pylist() if rows.position is not None else []
    for position in sorted(positions, key=lambda text: (len(text), text)):  # 2 before 10
        here = np.asarray(pc.equal(rows.position, position))
        cluster = np.unique(rows.cluster[here], return_inverse=True)[1].reshape(-1)
        mine = PolicyWeights(policy.name, policy.weight[here])
        sums = sums_by_cluster(cluster, rows.label[here], rows.weight[here], mine, limit)
        found[position.decode("utf-8", "replace")] = _estimates(sums, is_share)
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
    """The options of a run. models: the published models among the policies, by name.

    with_model: fit a reward model too, for DM, DR, Switch-DR, DRos and cascade-DR. objectives: by which models order;
    none: by their click rates; beside: the variant and the model behind each name in them. table: the columns of a
    plain table of rewards, None for a log.
    """

    spec: ModelSpec
    policies: Sequence[PolicyName]
    models: dict[str, NamedModel]
    choices: Sequence[ItemChoice]
    items: SideTable | None
    without: tuple[str, ...]
    decision: str
    options: EstimatorOptions
    with_model: bool = False
    table: TableColumns | None = None
    objectives: Sequence[Objective] = ()
    beside: Mapping[str, tuple[str | None, NamedModel]] = field(default_factory=dict)

    @property
    def specs(self) -> dict[str, ModelSpec]:
        """The specs for hashing the log's rows, of the policies and the reward model that use features."""
        specs = {name: scoring_spec(model.artefact.spec, self.without) for name, model in self.models.items()}
        specs |= {
            _BESIDE + name: scoring_spec(model.artefact.spec) for name, (_, model) in self.beside.items()
        }
        if self.table is not None:  # whose columns have the names of the flags, not those of a model's log
            return {name: spec.model_copy(update={"input": self.spec.input}) for name, spec in specs.items()}
        if any(policy.name == LEARNING for policy in self.policies):
            specs[LEARNING] = self.spec
        if self.with_model:
            specs[_REWARDS] = scoring_spec(self.spec)
        return specs

    def run(self, read: Read, on_progress: Progress = lambda step, done, total: None) -> Estimates:
        """Read the log and estimate. Raises SpecError, InputError, NoSupport: see docs/replay.md."""
        rows, layout, resolved = read(self.spec, list(self.specs.values()))
        weighed, candidates = self._weigh(
            rows, layout, dict(zip(self.specs, resolved, strict=True)), on_progress
        )

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
            notes=_notes(rows, candidates, self.with_model),
        )

    def _weigh(
        self, rows: LoggedRows, layout: Layout, resolved: dict[str, ModelSpec], on_progress: Progress
    ) -> tuple[list[PolicyWeights], Candidates | None]:
        if self.table is None and all(policy.name == LOGGED for policy in self.policies):
            return [PolicyWeights(LOGGED, np.ones(len(rows)))], None
        item = self.spec.input.item
        if item is None:
            raise SpecError("input.item is missing: name the column with the id of a row's item")
        of_items = columns_of_items(*resolved.values())
        candidates = Candidates.of(rows, item, of_items, self.items)
        _check_support(rows, len(candidates))
        decisions = rows.decisions(self.decision)
        fitted = self._reward_model(rows, candidates, resolved, layout.propensity)
        lists = ListOrder.of(rows) if self.decision == DECISION_ROW and rows.requests < len(rows) else None
        keeps = fitted is not None and lists is not None and len(rows) * len(candidates) <= _MOST_CHANCES
        weighed = list[PolicyWeights]()
        for name, policy in self._policies(rows, decisions, candidates, resolved):
            if isinstance(policy, PolicyWeights):
                found = [policy]
            else:
                of = rows, decisions, candidates, policy, fitted.of if fitted is not None else None
                found = weigh(*of, keep=keeps, on_progress=partial(on_progress, name))
            if lists is not None:
                alone = self.table.alone(rows) if self.table is not None else None
                predict = fitted.of_lists if fitted is not None else None
                found = [replace(each, lists=lists.weights(each, alone, predict)) for each in found]
            weighed += [replace(each, chances=None) for each in found]
        return weighed, candidates

    def _policies(
        self, rows: LoggedRows, decisions: Decisions, candidates: Candidates, resolved: dict[str, ModelSpec]
    ) -> Iterator[tuple[str, Policies | PolicyWeights]]:
        """The policies by name; as weights, those whose probabilities of other items are unknown."""
        for name, chances in self.table.chances(rows, candidates) if self.table is not None else ():
            as_weights = PolicyWeights(name, chances / rows.propensity) if chances.ndim == 1 else None
            yield name, as_weights or Policies.given(name, chances)
        for policy in dict.fromkeys(self.policies):
            all_scores: list[PublishedScores | LearningScores]
            if policy.name == LOGGED:
                yield LOGGED, PolicyWeights(LOGGED, np.ones(len(rows)))
                continue
            if policy.name == UNIFORM:
                chance = at_random(len(candidates), decisions.size)
                of_all = np.broadcast_to(chance, (len(chance), len(candidates)))
                yield UNIFORM, Policies.given(UNIFORM, of_all)
                continue
            if policy.name == LEARNING:
                all_scores = [LearningScores(resolved[LEARNING], LEARNING, policy.variant)]
            else:
                named = self.models[policy.name]
                of = named.artefact, resolved[policy.name], named.name, policy.variant
                all_scores = [PublishedScores(*of, each) for each in self._orderings(resolved)]
            for scores in all_scores:
                yield policy.name, Policies.by_scores(scores, self.choices, rows, decisions, candidates)

    def _orderings(self, resolved: dict[str, ModelSpec]) -> list[Ordering | None]:
        """The objectives with what they need; None alone without any."""
        others = {
            name: PublishedScores(
                model.artefact,
                resolved[_BESIDE + name],
                model.name,
                variant or next(iter(model.artefact.spec.variants)),
            )
            for name, (variant, model) in self.beside.items()
        }
        return [Ordering(each, {name: others[name] for name in each.models}) for each in self.objectives] or [
            None
        ]

    def _reward_model(
        self, rows: LoggedRows, candidates: Candidates, resolved: dict[str, ModelSpec], propensity: str | None
    ) -> CrossFitted | None:
        if not self.with_model:
            return None
        if self.table is None:
            return CrossFitted(resolved[_REWARDS], rows, candidates)
        named = {*self.spec.input.named_columns, propensity}
        context = self.table.context_of(rows, named)
        return CrossFitted(reward_spec(rows, self.spec.input.item or "", context), rows, candidates)


def _check_support(rows: LoggedRows, candidates: int) -> None:
    """Raise InputError or NoSupport for a log from which only its own policy can be estimated."""
    if not rows.has_propensity:
        raise InputError(
            "the log has no propensities (expected propensity in an event's items, or a column propensity_score, "
            "propensity or pscore): only `logged` can be estimated; name the column with --propensity"
        )
    if not len(rows):
        raise InputError(
            f"no row has a propensity in (0, 1] and a reward ({rows.unusable:,} have no propensity, {rows.rejected:,} "
            "no valid reward): nothing can be estimated"
        )
    if candidates > 1 and bool(np.all(rows.propensity == 1.0)):
        raise NoSupport(
            "every propensity is 1: the logged policy is deterministic, so no other policy can be estimated; log with "
            "exploration (Thompson sampling, or a share of random requests), or estimate `logged` alone"
        )


def _notes(rows: LoggedRows, candidates: Candidates | None, with_model: bool) -> tuple[str, ...]:
    found = []
    if with_model and candidates is not None and len(rows) * len(candidates) > _MOST_CHANCES:
        found.append(
            f"cascade-DR is left out: it keeps the probabilities of all candidates in all rows, and has room for "
            f"{_MOST_CHANCES:,}; estimate fewer rows"
        )
    if rows.rejected:
        found.append(
            f"{rows.rejected:,} rows were left out: they have no valid label or reward, item or feature"
        )
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
