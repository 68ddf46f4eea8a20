"""What users did with each variant's answers: rates, intervals, differences, and the verdict, in figures and in words.

All variances are between the store's buckets of cookies (`model_store.ratios`), since variants are assigned by cookie.
What decides is valid however often one looks: the lift, and the test whether the traffic is divided as planned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from model_store.ratios import BUCKETS, NORMAL, Interval, Ratio, always_valid_half, always_valid_p
from model_store.versions.guard_record import GuardRecord
from model_store.versions.online_metrics import AGREED, CALLER, CTR_UNIT, OWN, OnlineCell, OnlineSums, Slot

LEVEL = 0.05
MISMATCH_LEVEL = 0.001
"""One false warning in a thousand experiments, as is usual (Fabijan et al., KDD 2019)."""
_NONE_TOGETHER = (
    "None of the answers since interleaving was set is interleaved: one variant answers a request that explores or "
    "names its variant, and a pinned cookie."
)
MISMATCH_SHARPEST = 0.05
"""The relative deviation of a share for which the test is sharpest."""
POWER = 0.8
Z_POWER = NORMAL.inv_cdf(POWER)
TINY = 10
"""With fewer clicks, or shown items without one, nothing is compared."""
NEEDED = f"{TINY} clicks, {TINY} shows without one, and requests of all {BUCKETS} groups of cookies"
CALIBRATED = Interval(0.9, 1.1)
"""Where predicted clicks a click must be for predictions of the model's own order to mean anything."""
NAMELESS = "(none)"
"""Shown for requests whose event names no variant."""


@dataclass(frozen=True)
class Rate:
    """A ratio and its 95 % interval for one look, each None if undefined; error: the standard error."""

    value: float | None
    interval: Interval | None
    error: float | None

    @classmethod
    def of(cls, ratio: Ratio | None, interval: Callable[[Ratio], Interval | None] = Ratio.interval) -> Rate:
        """interval: of the kind that suits what the ratio is compared with."""
        return cls(None, None, None) if ratio is None else cls(ratio.value, interval(ratio), ratio.error)

    def words(self, shown: Callable[[float], str]) -> tuple[str, str]:
        """The value and the interval as text, — for what is undefined."""
        value, ends = self.value, self.interval
        return (
            "—" if value is None else shown(value),
            "—" if ends is None else f"{shown(ends.low)} to {shown(ends.high)}",
        )


@dataclass(frozen=True)
class Outcome:
    """The figures of one variant, or of all.

    ctr: clicks an item shown; calibration: predicted positives a positive; conversion_rate: conversions a click; all
    without an interval before requests fill all buckets. versions: the first and last that
    answered, or 0. difference, lift, needed, detectable: against the base; None for the base, for all, and if either
    is not known well enough. needed: requests of the variant and the base together.
    """

    sums: OnlineSums
    buckets: int
    ctr: Rate
    calibration: Rate
    conversion_rate: Rate
    versions: tuple[int, int]
    difference: Difference | None = None
    lift: Lift | None = None
    needed: int | None = None
    detectable: float | None = None


@dataclass(frozen=True)
class Apprenticeship:
    """How a variant's model does beside the caller's order, which was served (docs/decide.md#apprentice-mode).

    agrees: the share of requests whose first item is the model's; overlap: of the items shown, those that the model
    would have shown; ctr: of the caller's order. matched: the ctr of requests where both agree, divided by that of all;
    direct: predicted clicks of the model's order, divided by those of the caller's. missing: why the model is not ready
    to decide; empty if it is.
    """

    requests: int
    agrees: Rate
    overlap: Rate
    ctr: Rate
    matched: Rate
    direct: Rate
    missing: tuple[str, ...]

    @property
    def text(self) -> str:
        """Ready or not, in a sentence."""
        return f"not ready: {'; '.join(self.missing)}" if self.missing else "ready to decide"

    @property
    def rows(self) -> list[list[str]]:
        """Each figure in words, its value and its 95 % interval."""
        shares = {
            "the same first item": self.agrees,
            "items that it would show too": self.overlap,
            "CTR of the caller's order": self.ctr,
        }
        ratios = {
            "CTR where both agree, to that of all": self.matched,
            "clicks that it expects of its order, to the caller's": self.direct,
        }
        return [
            ["requests", f"{self.requests:,}", ""],
            *([name, *rate.words("{:.3%}".format)] for name, rate in shares.items()),
            *([name, *rate.words("{:.3f}".format)] for name, rate in ratios.items()),
        ]


@dataclass(frozen=True)
class Verdict:
    """What the figures say. winner: None as long as no variant has won; is_problem: the figures must not be trusted."""

    text: str
    winner: str | None = None
    is_problem: bool = False


@dataclass(frozen=True)
class Preference:
    """What clicks on one list of several variants say of two of them: docs/experiments.md, "Interleaving".

    share: the variant's part of the credit of both, None before any; interval: contains the true one at all times at
    once, of all variants together; p: the smallest level whose interval excludes 1/2 now; needed: requests until it
    excludes 1/2 with 80 % power, if one has `effect` more credit. The last three are None if they are not known yet.
    """

    variant: str
    base: str
    together: str
    requests: int
    credit: float
    of_base: float
    share: float | None
    interval: Interval | None = None
    p: float | None = None
    needed: int | None = None


@dataclass(frozen=True)
class Outcomes:
    """The figures of one model and time. mismatch_p: whether requests fall as the shares say; None if not tested.

    preferences: of interleaved variants, each against the base, if that is among them, else the first.
    """

    base: str | None
    variants: Mapping[str, Outcome]
    all: Outcome
    mismatch_p: float | None
    verdict: Verdict
    shares: Mapping[str, float] = field(default_factory=dict)
    apprentices: Mapping[str, Apprenticeship] = field(default_factory=dict)
    """By variant, where requests were answered in apprentice mode."""
    preferences: tuple[Preference, ...] = ()

    @cached_property
    def chances(self) -> dict[str, float]:
        """The probability of each variant to be the best; empty if they are not known yet."""
        return chances_best({name: each.ctr for name, each in self.variants.items()})

    @property
    def is_mismatched(self) -> bool:
        """Whether the requests do not match the shares."""
        return self.mismatch_p is not None and self.mismatch_p < MISMATCH_LEVEL


def outcomes(
    cells: Iterable[tuple[Slot, OnlineCell]],
    shares: Mapping[str, float],
    base: str | None,
    effect: float,
    since: int = 0,
    guard: GuardRecord | None = None,
    together: str = "",
) -> Outcomes:
    """Compute the figures. shares: the variants' shares of the traffic since minute `since`, empty for no test.

    guard: what the trainer's guard did last. together: since then, what interleaved answers are counted as; empty
    without interleaving.

    base: None for the first variant of the shares with requests, or else the variant with most requests.
    """
    found: dict[str, OnlineCell] = {}
    tested: dict[str, OnlineCell] = {}
    empty, began = OnlineCell.empty(), math.inf
    orders = {CALLER: dict[str, OnlineCell](), AGREED: dict[str, OnlineCell](), OWN: dict[str, OnlineCell]()}
    for slot, cell in cells:
        of_order = next((suffix for suffix in orders if slot.variant.endswith(suffix)), None)
        if of_order is not None:
            name, order = slot.variant.removesuffix(of_order), orders[of_order]
            order[name], began = order.get(name, empty) + cell, min(began, slot.minute)
            continue
        # Earlier requests were divided by other shares, so they cannot test the present ones.
        for into in (found, tested) if slot.minute >= since else (found,):
            into[slot.variant] = into[slot.variant] + cell if slot.variant in into else cell
    if guard is not None and guard.when_us < began * 60e6:
        guard = None  # what it did before says nothing about these answers
    base = base if base is not None else _base(found, shares)
    rank = {name: number for number, name in enumerate(shares)}
    ordered = sorted(found, key=lambda name: (name != base, rank.get(name, len(rank)), name))
    against = found.get(base) if base is not None else None
    # Bonferroni: each comparison has LEVEL / compared, so that all intervals hold together.
    compared = max(1, len(ordered) - 1)
    variants = {
        name: _outcome(found[name], None if name == base else against, effect, compared) for name in ordered
    }
    p = mismatch_p(tested, shares)
    preferred = tuple(_preferences(found, base, list(shares), effect))
    verdict = _preferred(preferred, effect) if preferred else _verdict(base, variants, p, effect)
    if together and tested and together not in tested:
        verdict = replace(verdict, text=f"{_NONE_TOGETHER} {verdict.text}")
    return Outcomes(
        base=base,
        variants=variants,
        all=_outcome(sum(found.values(), OnlineCell.empty()), None, effect, 1),
        mismatch_p=p,
        verdict=verdict,
        shares=shares,
        apprentices={
            name: _apprenticeship(cell, orders[AGREED].get(name, empty), orders[OWN].get(name, empty), guard)
            for name, cell in orders[CALLER].items()
        },
        preferences=preferred,
    )


def _apprenticeship(
    caller: OnlineCell, agreed: OnlineCell, own: OnlineCell, guard: GuardRecord | None
) -> Apprenticeship:
    calibration = Rate.of(caller.calibration, Ratio.logarithmic)
    matched, direct = (
        Rate.of(_matched(agreed, caller)),
        Rate.of(Ratio.of(own["ctr_nano"], caller["ctr_nano"], BUCKETS)),
    )
    missing = []
    if _comparable(caller) is None or agreed.sums.clicks < TINY or matched.interval is None:
        missing.append(f"needs {NEEDED}, and {TINY} clicks where both agree")
    elif matched.interval.high < 1.0:
        missing.append(
            "where its first item is the caller's too, users click less: it agrees on the wrong requests"
        )
    ends = calibration.interval
    if ends is None or ends.low > CALIBRATED.high or ends.high < CALIBRATED.low:
        known = calibration.value
        shown = "unknown" if known is None else f"{known:.2f}"
        missing.append(
            f"predicted clicks a click are {shown}, which must be near 1 for its predictions to count"
        )
    if direct.interval is None or direct.interval.low <= 1.0:
        missing.append("it does not expect more clicks of its own order than of the caller's")
    if guard is not None:
        missing.append(f"the guard went back from version {guard.origin} to {guard.target}: {guard.reason}")
    return Apprenticeship(
        requests=caller.sums.requests,
        agrees=Rate.of(Ratio.of(agreed["requests"], caller["requests"], BUCKETS)),
        overlap=Rate.of(Ratio.of(own["shown"], caller["shown"] + caller["unseen"], BUCKETS)),
        ctr=Rate.of(caller.click_rate),
        matched=matched,
        direct=direct,
        missing=tuple(missing),
    )


def _matched(part: OnlineCell, whole: OnlineCell) -> Ratio | None:
    """The click rate of part of the requests divided by that of all of them, which it is not independent of."""
    one, other = part.click_rate, whole.click_rate
    if one is None or other is None or one.variance is None or not other.value or not part.sums.clicks:
        return None
    # To first order, the change of ln (R / R0) that each bucket makes.
    changes = (part["clicks"] - one.value * part["shown"]) / part.sums.clicks
    changes = changes - (whole["clicks"] - other.value * whole["shown"]) / whole.sums.clicks
    value = one.value / other.value
    return Ratio(value, value**2 * BUCKETS / (BUCKETS - 1.0) * float(changes @ changes), one.clusters)


def _base(found: Mapping[str, OnlineCell], shares: Mapping[str, float]) -> str | None:
    first = next((name for name in shares if name in found), None)
    return first or max(found, key=lambda name: found[name].sums.requests, default=None)


def _outcome(cell: OnlineCell, base: OnlineCell | None, effect: float, compared: int) -> Outcome:
    own, against = _comparable(cell), _comparable(base) if base is not None else None
    both = cell.sums.requests + (base.sums.requests if base is not None else 0)
    return Outcome(
        sums=cell.sums,
        buckets=int(np.count_nonzero(cell["requests"])),
        ctr=Rate.of(cell.click_rate),
        # On the logarithm, since it is compared with 1 as a ratio: half and twice are equally far.
        calibration=Rate.of(cell.calibration, Ratio.logarithmic),
        conversion_rate=Rate.of(cell.conversion_rate),
        versions=cell.versions,
        difference=difference(own, against),
        lift=lift(own, against, effect, LEVEL / compared),
        needed=requests_needed(own, against, both, effect, LEVEL / compared),
        detectable=detectable(own, against, effect, LEVEL / compared),
    )


def _comparable(cell: OnlineCell) -> Ratio | None:
    """The click rate, if it is known well enough to be compared."""
    clicks, shown = cell.sums.clicks, cell.sums.shown
    rate = cell.click_rate
    return rate if min(clicks, shown - clicks) >= TINY and rate is not None and rate.log_variance else None


@dataclass(frozen=True)
class Difference:
    """A variant's click rate minus the base's, and its 95 % interval, for one look."""

    absolute: float
    interval: Interval


def difference(own: Ratio | None, base: Ratio | None) -> Difference | None:
    """The difference of two rates of different cookies, so variances add; None if either is not known well enough."""
    if own is None or base is None or own.variance is None or base.variance is None:
        return None
    # The fewer clusters, and so degrees of freedom, give the wider interval.
    both = Ratio(own.value - base.value, own.variance + base.variance, min(own.clusters, base.clusters))
    interval = both.interval()
    return Difference(both.value, interval) if interval is not None else None


@dataclass(frozen=True)
class Lift:
    """A variant's click rate relative to the base's, minus 1, however often and whenever one looks.

    interval: contains the true lift at all times at once with 95 % probability, of all variants together; p: the
    smallest level whose interval excludes 0 now.
    """

    relative: float
    interval: Interval
    p: float


def lift(own: Ratio | None, base: Ratio | None, effect: float, level: float = LEVEL) -> Lift | None:
    """The lift; None if either rate is not known well enough. effect: where the interval is tightest; any is valid."""
    found = _log_ratio(own, base)
    if found is None:
        return None
    theta, variance = found
    sharpest = math.log1p(effect)
    half = always_valid_half(variance, level, sharpest)
    # For all comparisons together, as the interval: it is below LEVEL exactly where that excludes 0.
    p = min(1.0, always_valid_p(theta, variance, sharpest) * LEVEL / level)
    return Lift(math.expm1(theta), Interval(math.expm1(theta - half), _expm1(theta + half)), p)


def _log_ratio(own: Ratio | None, base: Ratio | None) -> tuple[float, float] | None:
    """ln (R / R0) and its variance."""
    if own is None or base is None or own.log_variance is None or base.log_variance is None:
        return None
    # By the delta method, for variants of different cookies: Var ln R = Var R / R², and variances add.
    return math.log(own.value / base.value), own.log_variance + base.log_variance


def _expm1(x: float) -> float:
    # exp of more than 709 overflows a double.
    return math.expm1(x) if x < 700.0 else math.inf


def requests_needed(
    own: Ratio | None, base: Ratio | None, both: int, effect: float, level: float = LEVEL
) -> int | None:
    """Requests of both together until the lift's interval excludes 0 with 80 % power, if the true lift is `effect`.

    both: those there are. If new cookies come, as it assumes, the variance falls as requests grow; cookies that only
    come back teach less.
    """
    found = _log_ratio(own, base)
    return None if found is None else _needed(found[1], both, effect, level)


def _needed(variance: float, requests: int, effect: float, level: float) -> int:
    """Requests until a logarithm's interval excludes 0 with 80 % power, if it has this variance with `requests`."""
    low, high = -60.0, 10.0  # ln of the variance that detects it: by bisection, since the bound grows with it
    # After 60 halvings the range of 70 is narrower than a double's precision.
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (
            (middle, high) if _bound(math.exp(middle), effect, level) < math.log1p(effect) else (low, middle)
        )
    return math.ceil(requests * variance / math.exp(low))


def detectable(own: Ratio | None, base: Ratio | None, effect: float, level: float = LEVEL) -> float | None:
    """The lift that the requests there are detect with 80 % power."""
    found = _log_ratio(own, base)
    return None if found is None else _expm1(_bound(found[1], effect, level))


def _bound(variance: float, effect: float, level: float) -> float:
    return always_valid_half(variance, level, math.log1p(effect)) + Z_POWER * math.sqrt(variance)


def chances_best(rates: Mapping[str, Rate | Ratio | None]) -> dict[str, float]:
    """The probability of each variant that its click rate is the highest; {} for fewer than two known rates.

    The rates are taken as independent and normal around what was observed, which is the posterior of a flat prior. Of
    variant i it is ∫ φ(z) Π_j Φ((R_i + s_i z − R_j) / s_j) dz, s the standard errors, by the trapezoidal rule.
    """
    known = {
        name: (rate.value, rate.error)
        for name, rate in rates.items()
        if rate is not None and rate.value is not None and rate.error is not None and rate.error > 0.0
    }
    if len(known) < 2:
        return {}
    # Beyond 8 standard deviations are 1e-15 of the probability. The width of a step cancels in the sum below.
    steps = [8.0 * k / 200.0 for k in range(-200, 201)]
    chances = {}
    for name, (value, error) in known.items():
        others = [each for other, each in known.items() if other != name]
        chances[name] = sum(
            NORMAL.pdf(z)
            * math.prod(NORMAL.cdf((value + error * z - rate) / spread) for rate, spread in others)
            for z in steps
        )
    total = sum(chances.values())
    return {name: chance / total for name, chance in chances.items()}


def mismatch_p(found: Mapping[str, OnlineCell], shares: Mapping[str, float]) -> float | None:
    """The p-value, at all times at once, of requests that fall as the shares say; None if that is not known yet.

    Of each variant but that of the largest share, the relative deviation of its requests from its share of all, with
    the variance between buckets of cookies; the smallest p of k variants counts k times (Bonferroni).
    """
    judged = {name: share for name, share in shares.items() if share > 0.0}
    empty = np.zeros(BUCKETS)
    requests = {name: found[name]["requests"] if name in found else empty for name in judged}
    every = sum(requests.values(), empty)
    # Before requests fill all buckets, the variance between them is not known.
    if len(judged) < 2 or not every.all():
        return None
    # The deviations sum to 0, so the largest share's, which is relatively the least, follows from the others.
    tested = sorted(judged, key=lambda name: judged[name])[:-1]
    least = 1.0
    for name in tested:
        share = judged[name] / sum(judged.values())
        deviations = (requests[name] - share * every) / (share * every.sum())
        variance = BUCKETS / (BUCKETS - 1.0) * float(((deviations - deviations.mean()) ** 2).sum())
        if variance > 0.0:
            least = min(least, always_valid_p(float(deviations.sum()), variance, MISMATCH_SHARPEST))
        elif deviations.any():  # alike in all buckets
            least = 0.0
    return min(1.0, least * len(tested))


def _preferences(
    found: Mapping[str, OnlineCell], base: str | None, order: Sequence[str], effect: float
) -> Iterator[Preference]:
    for together, cell in found.items():
        credit = credit_of(cell)
        teams = sorted(
            credit, key=lambda name: (name != base, order.index(name) if name in order else 0, name)
        )
        for name in teams[1:]:
            yield _preference(name, teams[0], together, cell, credit, effect, LEVEL / (len(teams) - 1))


def credit_of(cell: OnlineCell) -> dict[str, npt.NDArray[np.float64]]:
    """The clicks that count for each interleaved variant, by bucket."""
    whole = sum((lost for _, lost in cell.credit.values()), np.zeros(BUCKETS, np.int64))
    # What counts against a team counts for the others, in equal parts.
    others = max(1, len(cell.credit) - 1)
    return {
        name: (gained + (whole - lost) / others) * CTR_UNIT for name, (gained, lost) in cell.credit.items()
    }


def _preference(
    name: str,
    base: str,
    together: str,
    cell: OnlineCell,
    credit: Mapping[str, npt.NDArray[np.float64]],
    effect: float,
    level: float,
) -> Preference:
    own, against, requests = credit[name], credit[base], cell.sums.requests
    sums = float(own.sum()), float(against.sum())
    share = sums[0] / sum(sums) if sum(sums) else None
    known = Preference(name, base, together, requests, *sums, share)
    # Both have the same requests, so the ratio's residuals are those of one sample: pairs, bucket by bucket.
    if min(sums) < TINY or np.count_nonzero(cell["requests"]) < BUCKETS:
        return known
    residuals = own / sums[0] - against / sums[1]
    variance = BUCKETS / (BUCKETS - 1.0) * float(residuals @ residuals)
    if variance <= 0.0:
        return known
    theta, sharpest = math.log(sums[0] / sums[1]), math.log1p(effect)
    half = always_valid_half(variance, level, sharpest)
    return replace(
        known,
        interval=Interval(_share_of(theta - half), _share_of(theta + half)),
        p=min(1.0, always_valid_p(theta, variance, sharpest) * LEVEL / level),
        needed=_needed(variance, requests, effect, level),
    )


def _share_of(log_ratio: float) -> float:
    """The part of a whole that has this ratio, as a logarithm, to the rest."""
    return 0.5 + 0.5 * math.tanh(0.5 * log_ratio)


def _preferred(preferences: Sequence[Preference], effect: float) -> Verdict:
    decided = [each for each in preferences if each.interval is not None]
    better = [each for each in decided if each.interval is not None and each.interval.low > 0.5]
    if better:
        best = max(better, key=lambda each: each.share or 0.0)
        return Verdict(f"{best.variant} is preferred: {credited(best)} against {best.base}.", best.variant)
    worst = [each for each in decided if each.interval is not None and each.interval.high < 0.5]
    if len(worst) == len(preferences):
        nearest = max(worst, key=lambda each: each.share or 0.0)
        return Verdict(
            f"{nearest.base} is preferred: {nearest.variant} has {credited(nearest)}.", nearest.base
        )
    if len(decided) < len(preferences):
        return Verdict(
            f"No preference yet: each variant needs a credit of {TINY} clicks, and requests of all {BUCKETS} groups "
            "of cookies."
        )
    nearest = max(decided, key=lambda each: abs((each.share or 0.5) - 0.5))
    return Verdict(
        f"No preference yet: {nearest.variant} has {credited(nearest)} against {nearest.base}. To see {effect:.1%} "
        f"more credit takes about {nearest.needed:,} requests; there are {nearest.requests:,}."
    )


def credited(of: Preference) -> str:
    """The share of the credit, with its interval, in words."""
    if of.share is None:
        return "no credit"
    ends = "" if of.interval is None else f" ({of.interval.low:.1%} to {of.interval.high:.1%})"
    return f"{of.share:.1%} of the credit{ends}"


def _verdict(
    base: str | None, variants: Mapping[str, Outcome], mismatch: float | None, effect: float
) -> Verdict:
    others = {name: each for name, each in variants.items() if name != base}
    # Before all else: requests that are lost for one variant alone change its rates.
    if mismatch is not None and mismatch < MISMATCH_LEVEL:
        return Verdict(
            f"Do not decide yet: the traffic is not divided as planned (p {mismatch:.2g}). Something loses or adds "
            "requests of a variant, which alone may change its rates.",
            is_problem=True,
        )
    if base is None or base not in variants or not others:
        return Verdict("Nothing to compare: requests of fewer than two variants were counted in this time.")
    lifts = {name: each.lift for name, each in others.items() if each.lift is not None}
    better = [name for name, each in lifts.items() if each.interval.low > 0.0]
    if better:
        best = max(better, key=lambda name: lifts[name].relative)
        return Verdict(f"{best} wins: {_lifted(lifts[best])} against {base}.", best)
    missing = next((name for name in others if name not in lifts), None)
    if missing is not None:
        lacking = min((variants[base], others[missing]), key=lambda each: (each.buckets, each.sums.clicks))
        clicks, without = lacking.sums.clicks, lacking.sums.shown - lacking.sums.clicks
        return Verdict(
            f"No winner yet: each variant needs {NEEDED}; the least has {clicks:,}, {without:,} and {lacking.buckets}."
        )
    nearest = max(lifts, key=lambda name: lifts[name].relative)
    if all(each.interval.high < 0.0 for each in lifts.values()):
        return Verdict(f"{base} wins: {_lifted(_inverse(lifts[nearest]))} against {nearest}.", base)
    each = others[nearest]
    there = variants[base].sums.requests + each.sums.requests
    needed = each.needed or 0
    return Verdict(
        f"No winner yet: {nearest} {_lifted(lifts[nearest])} against {base}. "
        + (
            f"To see ±{effect:.1%} takes about {needed:,} requests of both; there are {there:,}."
            if needed > there
            else f"A difference of ±{effect:.1%} would have been seen by now in four of five cases."
        )
    )


def _inverse(of: Lift) -> Lift:
    """The lift of the base against the variant."""
    ends = (1.0 / (1.0 + of.interval.high) - 1.0, 1.0 / (1.0 + of.interval.low) - 1.0)
    return Lift(1.0 / (1.0 + of.relative) - 1.0, Interval(*ends), of.p)


def _lifted(of: Lift) -> str:
    return f"{of.relative:+.1%} ({of.interval.low:+.1%} to {of.interval.high:+.1%})"
