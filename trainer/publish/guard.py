"""The guard of a model's publications: judges each version against the one that is served now.

What is served, and whether a rollback was a moment ago, is asked of the store each time, so that operators, other runs
and restarts are all seen. Without `[guard]` everything may be served, and nothing is asked.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from model_store.errors import ArtefactError, StoreError, VersionRefused
from model_store.spec.sections import GuardSection
from model_store.versions.manifest import RecentFigures, RecentVariant
from model_store.versions.model_versions import ModelVersions
from trainer.learn.model import LearningModel

AGAIN_S = 60.0
"""What goes on being refused is told of this often."""


class Guard:
    """Judges the versions of one model. For one thread. `refused` and `held` count them."""

    def __init__(self, versions: ModelVersions, on_warning: Callable[[str], None]) -> None:
        self.refused = 0
        self.held = 0
        self._versions = versions
        self._warn = on_warning
        self._in_a_row = 0
        self._told_s = 0.0

    def judge(self, model: LearningModel, keys: int) -> Verdict:
        """Judge what the model would publish now, `keys` keys. Raises StoreUnavailable."""
        bounds, recent = model.spec.guard, model.recent
        if bounds is None or recent is None:
            return Verdict()
        verdict = judge(bounds, recent.figures(keys), self._served())
        return verdict if verdict.reasons else replace(verdict, held=self._cooling(bounds))

    def tell(self, version: int, verdict: Verdict) -> None:
        """Count and tell what became of a version that is published now. Raises StoreUnavailable."""
        if verdict.reasons:
            self._tell_refused(version, verdict)
        elif verdict.held:
            self.held += 1
        elif self._in_a_row:
            self._warn(
                f"version {version} is within its bounds again, after {self._in_a_row:,} that were refused"
            )
            self._in_a_row = 0

    def check(self, version: int, verdict: Verdict) -> None:
        """Raise VersionRefused if the version that ends a run is refused."""
        if verdict.reasons:
            raise VersionRefused(
                f"version {version} is published and stays inactive: {verdict.refused}; to serve it all the same: "
                f"ftrie store activate {self._versions.model} {version} --force"
            )

    def _tell_refused(self, version: int, verdict: Verdict) -> None:
        self.refused += 1
        self._in_a_row += 1
        now_s = time.monotonic()
        if self._in_a_row == 1 or now_s - self._told_s >= AGAIN_S:
            self._told_s = now_s
            name = self._versions.model
            self._warn(
                f"VERSION {version} IS REFUSED ({self._in_a_row:,} in a row): {verdict.refused}. Servers stay with "
                f"the active version. Look at what is being learned (ftrie store inspect {name} {version}); to serve "
                f"it all the same: ftrie store activate {name} {version} --force"
            )
        self._versions.guard.count_refused()

    def _served(self) -> RecentFigures | None:
        """The figures of the active version; None where none is active, or it has none."""
        active = self._versions.known_active()
        if active is None:
            return None
        try:
            text = self._versions.manifest(active).recent
            return RecentFigures.from_json(text) if text else None
        except (ArtefactError, StoreError):
            # Collected, or damaged: what it was like is not known, and absolute bounds still hold.
            return None

    def _cooling(self, bounds: GuardSection) -> str:
        """Why nothing is activated for now; empty if something may be."""
        records = self._versions.guard
        last = records.record()
        left_s = last.when_us / 1e6 + bounds.cooldown_s - records.now_us() / 1e6 if last.when_us else 0.0
        if left_s <= 0.0:
            return ""
        return (
            f"version {last.origin} was rolled back, and for {left_s:.0f} s more nothing is activated "
            f"([guard] cooldown = {bounds.cooldown!r})"
        )


# --- The judgement: figures of a version against bounds, and against those of the version that is served ---
#
# Each bound has to be left by more than chance leaves it: by two standard errors, so that a small window
# refuses only what is plainly bad. Nothing here knows of stores or learners.


BEYOND_CHANCE = 2.0
"""Standard errors. Chance alone goes that far in one direction in 2.3 % of the cases."""


@dataclass(frozen=True)
class Verdict:
    """What became of a judgement. reasons: why the version is refused, in words; none if it may be served.

    held: why nothing is activated at present, though the version itself may be sound; empty if it may be.
    """

    reasons: tuple[str, ...] = ()
    held: str = ""
    figures: RecentFigures | None = None

    @property
    def refused(self) -> str:
        """All reasons in one line; empty if there is none."""
        return "; ".join(self.reasons)

    @property
    def recent(self) -> str:
        """The figures as a manifest keeps them; empty where nothing was judged."""
        return self.figures.to_json() if self.figures is not None else ""

    @property
    def may_be_served(self) -> bool:
        """True if the version may be activated now."""
        return not self.reasons and not self.held


def judge(bounds: GuardSection, candidate: RecentFigures, last: RecentFigures | None) -> Verdict:
    """Judge a version; `last` are the figures of the active one, None where it has none."""
    reasons = [*_keys(bounds, candidate, last)]
    if candidate.examples >= bounds.min_examples:
        comparable = last if last is not None and last.examples >= bounds.min_examples else None
        reasons += _variants(bounds, candidate, comparable)
    return Verdict(tuple(reasons), figures=candidate)


def leaves(
    band: tuple[float, float], predicted: float, variance: float, clicks: float
) -> tuple[str, float] | None:
    """The bound that a calibration, clicks predicted / clicks that came, has left beyond chance: its side, itself.

    Under the bound c the clicks that come are Poisson's with mean predicted / c. variance: that of the predicted
    clicks, their number itself where all weights are 1. None if the band is kept.
    """
    low, high = band
    if predicted / high - clicks > BEYOND_CHANCE * (variance / high) ** 0.5:
        return "above", high
    if clicks - predicted / low > BEYOND_CHANCE * (variance / low) ** 0.5:
        return "below", low
    return None


def shown_calibration(predicted: float, clicks: float) -> str:
    """For a message: 1.37 (412 clicks predicted, 301 came)."""
    ratio = f"{predicted / clicks:.3g}" if clicks else "infinite"
    return f"{ratio} ({predicted:,.5g} clicks predicted, {clicks:,.5g} came)"


def _variants(bounds: GuardSection, candidate: RecentFigures, last: RecentFigures | None) -> Iterator[str]:
    for name, figures in candidate.variants.items():
        if last is not None and name in last.variants and bounds.logloss_rise != "off":
            yield from _logloss(name, bounds.logloss_rise, candidate, last)
        if bounds.calibration != "off":
            yield from _calibration(name, bounds.calibration, figures, candidate.clicks)


def _logloss(name: str, rise: float, candidate: RecentFigures, last: RecentFigures) -> Iterator[str]:
    """Held against the log-loss before at today's click rate: a sound model's goes with the rate's entropy.

    So normalized entropies are compared (He et al., ADKDD 2014); there is none of nothing but clicks, or of no click.
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
    """Of a click rate, in nats; 0 where there is nothing to be uncertain of."""
    if not 0.0 < rate < 1.0:
        return 0.0
    return -rate * math.log(rate) - (1.0 - rate) * math.log1p(-rate)


def _calibration(
    name: str, band: tuple[float, float], figures: RecentVariant, clicks: float
) -> Iterator[str]:
    left = leaves(band, figures.predicted, figures.predicted_variance, clicks)
    if left is not None:
        yield (
            f"calibration of {name}: got {shown_calibration(figures.predicted, clicks)}, {left[0]} the band "
            f"from {band[0]:g} to {band[1]:g}"
        )


def _keys(bounds: GuardSection, candidate: RecentFigures, last: RecentFigures | None) -> Iterator[str]:
    if candidate.keys < bounds.min_keys:
        yield f"keys: got {candidate.keys:,}, at least {bounds.min_keys:,} are expected"
    if last is None or not last.keys or last.examples < bounds.examples:
        return  # a model that has just begun grows by any factor
    change = candidate.keys / last.keys - 1.0
    bound = bounds.keys_rise if change > 0.0 else bounds.keys_fall
    if bound != "off" and abs(change) > bound:
        yield (
            f"keys: got {candidate.keys:,}, {change:+.0%} against the {last.keys:,} of the active version; "
            f"at most {bound if change > 0.0 else -bound:+.0%} is allowed"
        )
