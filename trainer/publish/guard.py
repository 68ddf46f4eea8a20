"""The guard of a model's publications: judges each version against bounds and against the version now served.

The served version, and when the last rollback was, are read from the store each time, so that operators, other runs and
restarts are taken into account. Without `[guard]` every version may be served, and nothing is read. A version is
refused only if it crosses a bound by more than two standard errors, so that a small window refuses only what is
plainly bad.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from model_store.errors import ArtefactError, StoreError, VersionRefused
from model_store.spec.sections import GuardSection
from model_store.spec.spec import ModelSpec
from model_store.versions.manifest import RecentFigures, RecentVariant
from model_store.versions.model_versions import ModelVersions

WARN_AGAIN_S = 60.0
"""While versions are refused in a row, a warning is repeated this often."""
BEYOND_CHANCE = 2.0
"""Standard errors. Chance alone exceeds that in one direction in 2.3 % of the cases."""


@dataclass(frozen=True)
class Verdict:
    """The result of judging a version. reasons: why it is refused; empty if it may be served.

    held: why no version is activated now, whether or not this one is sound; empty if it may be activated.
    """

    reasons: tuple[str, ...] = ()
    held: str = ""
    figures: RecentFigures | None = None

    @property
    def refused(self) -> str:
        """All reasons in one line."""
        return "; ".join(self.reasons)

    @property
    def recent(self) -> str:
        """The figures as the manifest stores them; empty if nothing was judged."""
        return self.figures.to_json() if self.figures is not None else ""

    @property
    def may_be_served(self) -> bool:
        """True if the version may be activated now."""
        return not self.reasons and not self.held


class RecentPredictions(Protocol):
    """Sums of predictions that were made before their rows were learned, or without learning them."""

    def figures(self, keys: int, /) -> RecentFigures:
        """The figures of a model of `keys` keys."""


class Judgeable(Protocol):
    """A model that the guard judges by its recent predictions; None: there are none to judge."""

    @property
    def spec(self) -> ModelSpec:
        """The model's spec."""

    @property
    def recent(self) -> RecentPredictions | None:
        """Its recent predictions."""


class Guard:
    """The guard of one model; `refused` and `held` count versions. For one thread."""

    def __init__(self, versions: ModelVersions, on_warning: Callable[[str], None]) -> None:
        self.refused = 0
        self.held = 0
        self._versions = versions
        self._warn = on_warning
        self._in_a_row = 0
        self._warned_s = 0.0

    def judge(self, model: Judgeable, keys: int) -> Verdict:
        """Judge the version that the model would publish now, of `keys` keys. Raises StoreUnavailable."""
        bounds, recent = model.spec.guard, model.recent
        if bounds is None or recent is None:
            return Verdict()
        verdict = judge(bounds, recent.figures(keys), self._served())
        return verdict if verdict.reasons else replace(verdict, held=self._cooldown(bounds))

    def report(self, version: int, verdict: Verdict) -> None:
        """Count a version that has been published, and warn if it is refused. Raises StoreUnavailable."""
        if verdict.reasons:
            self._report_refused(version, verdict)
        elif verdict.held:
            self.held += 1
        elif self._in_a_row:
            self._warn(
                f"version {version} is within its bounds again, after {self._in_a_row:,} refused versions"
            )
            self._in_a_row = 0

    def check(self, version: int, verdict: Verdict) -> None:
        """Raise VersionRefused if the last version of a run is refused, or held."""
        if verdict.reasons:
            raise VersionRefused(
                f"version {version} is published and stays inactive: {verdict.refused}; to serve it nevertheless: "
                f"ftrie store activate {self._versions.model} {version} --force"
            )
        if verdict.held:
            raise VersionRefused(
                f"version {version} is published and stays inactive: {verdict.held}; to serve it "
                f"nevertheless: ftrie store activate {self._versions.model} {version}"
            )

    def _report_refused(self, version: int, verdict: Verdict) -> None:
        self.refused += 1
        self._in_a_row += 1
        now_s = self._versions.clock.monotonic()
        if self._in_a_row == 1 or now_s - self._warned_s >= WARN_AGAIN_S:
            self._warned_s = now_s
            name = self._versions.model
            self._warn(
                f"VERSION {version} IS REFUSED ({self._in_a_row:,} in a row): {verdict.refused}. Servers keep "
                f"the active version. Check what is being learned (ftrie store inspect {name} {version}); to serve it "
                f"nevertheless: ftrie store activate {name} {version} --force"
            )
        self._versions.guard.count_refused()

    def _served(self) -> RecentFigures | None:
        """The figures of the active version; None if no version is active, or it has none."""
        active = self._versions.known_active()
        if active is None:
            return None
        try:
            text = self._versions.manifest(active).recent
            return RecentFigures.from_json(text) if text else None
        except (ArtefactError, StoreError):
            # Deleted or damaged: only the absolute bounds apply.
            return None

    def _cooldown(self, bounds: GuardSection) -> str:
        """Why nothing is activated during the cooldown after a rollback; empty otherwise."""
        last, now_us = self._versions.guard.dated()
        left_s = (last.when_us - now_us) / 1e6 + bounds.cooldown_s if last.when_us else 0.0
        if left_s <= 0.0:
            return ""
        return (
            f"version {last.origin} was rolled back; no version is activated for another {left_s:.0f} s "
            f"([guard] cooldown = {bounds.cooldown!r})"
        )


def judge(bounds: GuardSection, candidate: RecentFigures, last: RecentFigures | None) -> Verdict:
    """Judge a version. last: the figures of the active version, None if it has none."""
    reasons = [*_keys(bounds, candidate, last)]
    if candidate.examples >= bounds.min_examples:
        comparable = last if last is not None and last.examples >= bounds.min_examples else None
        reasons += _variants(bounds, candidate, comparable)
    return Verdict(tuple(reasons), figures=candidate)


def crossed_bound(
    band: tuple[float, float], predicted: float, variance: float, clicks: float
) -> tuple[str, float] | None:
    """The side and value of the bound that a calibration, predicted / observed clicks, crosses beyond chance, or None.

    At a calibration of c the observed clicks are Poisson-distributed with mean predicted / c. variance: that of the
    predicted clicks; their number itself if all weights are 1.
    """
    low, high = band
    if predicted / high - clicks > BEYOND_CHANCE * (variance / high) ** 0.5:
        return "above", high
    if clicks - predicted / low > BEYOND_CHANCE * (variance / low) ** 0.5:
        return "below", low
    return None


def shown_calibration(predicted: float, clicks: float) -> str:
    """For a message: 1.37 (412 clicks predicted, 301 observed)."""
    ratio = f"{predicted / clicks:.3g}" if clicks else "infinite"
    return f"{ratio} ({predicted:,.5g} clicks predicted, {clicks:,.5g} observed)"


def _variants(bounds: GuardSection, candidate: RecentFigures, last: RecentFigures | None) -> Iterator[str]:
    for name, figures in candidate.variants.items():
        if last is not None and name in last.variants and bounds.logloss_rise != "off":
            yield from _logloss(name, bounds.logloss_rise, candidate, last)
        if bounds.calibration != "off":
            yield from _calibration(name, bounds.calibration, figures, candidate.clicks)


def _logloss(name: str, rise: float, candidate: RecentFigures, last: RecentFigures) -> Iterator[str]:
    """Compare with the served version's log-loss, scaled to the present click rate.

    A sound model's log-loss varies with the entropy of the click rate, so this compares normalized entropies (He et
    al., ADKDD 2014). Without clicks, or with nothing but clicks, there is none.
    """
    own, before = candidate.variants[name], last.variants[name]
    uncertain, uncertain_before = _entropy(candidate.click_rate), _entropy(last.click_rate)
    if not uncertain or not uncertain_before:
        return
    factor = (1.0 + rise) * uncertain / uncertain_before
    bound, error = factor * before.logloss, math.hypot(own.logloss_error, factor * before.logloss_error)
    if own.logloss - bound > BEYOND_CHANCE * error:
        yield (
            f"log-loss of {name}: got {own.logloss:.5f}, at most {bound:.5f} is allowed ({rise:.3g} above the active "
            f"version's {before.logloss:.5f}, brought from its click rate, {last.click_rate:.4f}, to "
            f"{candidate.click_rate:.4f})"
        )


def _entropy(rate: float) -> float:
    """Entropy of a click rate, in nats; 0 at rates of 0 and 1."""
    if not 0.0 < rate < 1.0:
        return 0.0
    return -rate * math.log(rate) - (1.0 - rate) * math.log1p(-rate)


def _calibration(
    name: str, band: tuple[float, float], figures: RecentVariant, clicks: float
) -> Iterator[str]:
    crossed = crossed_bound(band, figures.predicted, figures.predicted_variance, clicks)
    if crossed is not None:
        yield (
            f"calibration of {name}: got {shown_calibration(figures.predicted, clicks)}, {crossed[0]} the band "
            f"from {band[0]:g} to {band[1]:g}"
        )


def _keys(bounds: GuardSection, candidate: RecentFigures, last: RecentFigures | None) -> Iterator[str]:
    if candidate.keys < bounds.min_keys:
        yield f"keys: got {candidate.keys:,}, at least {bounds.min_keys:,} are expected"
    if last is None or not last.keys or last.examples < bounds.examples:
        return  # a new model may grow by any factor
    change = candidate.keys / last.keys - 1.0
    bound = bounds.keys_rise if change > 0.0 else bounds.keys_fall
    if bound != "off" and abs(change) > bound:
        yield (
            f"keys: got {candidate.keys:,}, {change:+.0%} against the {last.keys:,} of the active version; "
            f"at most {bound if change > 0.0 else -bound:+.0%} is allowed"
        )
