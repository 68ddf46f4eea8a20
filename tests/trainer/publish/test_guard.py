"""What is refused, and with which words; and what only chance has moved."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from model_store.spec.sections import GuardSection
from model_store.versions.manifest import RecentFigures, RecentVariant
from trainer.publish.guard import crossed_bound, judge

BOUNDS = GuardSection()


def figures(
    logloss: float = 0.3,
    error: float = 0.001,
    predicted: float = 1000.0,
    clicks: float = 1000.0,
    **changed: int,
) -> RecentFigures:
    variant = RecentVariant(logloss, error, predicted, predicted)
    of = RecentFigures(
        examples=10_000, weight=10_000.0, clicks=clicks, keys=5_000, variants={"base": variant}
    )
    return replace(of, **changed)  # type: ignore[arg-type]


def reasons(candidate: RecentFigures, last: RecentFigures | None, bounds: GuardSection = BOUNDS) -> list[str]:
    return list(judge(bounds, candidate, last).reasons)


def test_a_risen_logloss_is_refused_with_what_it_is_what_it_may_be_and_what_it_was() -> None:
    assert reasons(figures(logloss=0.35), figures()) == [
        "log-loss of base: got 0.35000, at most 0.33000 is allowed (0.1 above the active version's 0.30000, brought "
        "from its click rate, 0.1000, to 0.1000)"
    ]


@pytest.mark.parametrize(
    ("candidate", "last", "refusals"),
    [
        # Within the bound or within chance: 0.35 is 0.02 above the bound, and two standard errors are
        # 2 sqrt(0.009² + (1.1 · 0.009)²) = 0.027.
        (figures(logloss=0.329), figures(), 0),
        (figures(logloss=0.35, error=0.009), figures(error=0.009), 0),
        (figures(logloss=0.01), figures(), 0),
        (figures(), figures(), 0),
        # The log-loss rises with the click rate alone: 0.1 and 0.15 have entropies of 0.325 and 0.423.
        (figures(logloss=0.39, clicks=1500.0, predicted=1500.0), figures(), 0),
        (figures(logloss=0.44, clicks=1500.0, predicted=1500.0), figures(), 1),
        (figures(logloss=0.29, clicks=500.0, predicted=500.0), figures(), 1),
        # A window of no click, or of nothing but clicks, sets no bound to others.
        (figures(), figures(logloss=1e-3, clicks=0.0), 0),
        (figures(), figures(logloss=1e-3, clicks=10_000.0), 0),
        # Few clicks refuse only what is plain.
        (figures(predicted=9.0, clicks=5.0), None, 0),
        (figures(predicted=90.0, clicks=50.0), None, 1),
        # Few examples are not judged but for their keys.
        (figures(predicted=1e5, examples=999), figures(), 0),
        (figures(logloss=9.0), figures(examples=999), 0),
        (figures(keys=0, examples=999), None, 1),
        # A model that has just begun may grow by any factor.
        (figures(keys=1_000_000), figures(examples=9_999), 0),
        # A variant that is new is not held against another.
        (figures(logloss=0.9), replace(figures(), variants={"other": RecentVariant(0.1, 0.0, 1e3, 1e3)}), 0),
    ],
)
def test_what_only_chance_or_the_click_rate_has_moved_is_not_refused(candidate, last, refusals):
    assert len(reasons(candidate, last)) == refusals


@pytest.mark.parametrize(("predicted", "side"), [(1500.0, "above"), (600.0, "below")])
def test_a_calibration_outside_its_band_is_refused_without_any_last_version(predicted, side):
    assert reasons(figures(predicted=predicted), None) == [
        f"calibration of base: got {predicted / 1000:.3g} ({predicted:,.0f} clicks predicted, 1,000 observed), "
        f"{side} the band from 0.8 to 1.25"
    ]


def test_a_model_that_promises_clicks_of_which_none_comes_is_refused() -> None:
    (reason,) = reasons(figures(predicted=50.0, clicks=0.0), None)
    assert reason.startswith("calibration of base: got infinite (50 clicks predicted, 0 observed)")


@pytest.mark.parametrize(("keys", "change", "most"), [(2_000, "-60%", "-50%"), (30_000, "+500%", "+400%")])
def test_a_number_of_keys_far_from_the_last_is_refused(keys: int, change: str, most: str) -> None:
    (reason,) = reasons(figures(keys=keys), figures())
    assert reason == (
        f"keys: got {keys:,}, {change} against the 5,000 of the active version; at most {most} is allowed"
    )


def test_every_reason_is_told_and_what_is_off_is_not_looked_at() -> None:
    assert reasons(figures(), None, GuardSection(min_keys=10_000)) == [
        "keys: got 5,000, at least 10,000 are expected"
    ]
    wrong = figures(logloss=1.0, predicted=3000.0, keys=1)
    verdict = judge(BOUNDS, wrong, figures())
    assert [reason.split()[0] for reason in verdict.reasons] == ["keys:", "log-loss", "calibration"]
    assert (verdict.refused, verdict.may_be_served) == ("; ".join(verdict.reasons), False)
    verdict = judge(GuardSection(logloss_rise="off", calibration="off", keys_fall="off"), wrong, figures())
    assert (verdict.refused, verdict.may_be_served) == ("", True)


@pytest.mark.parametrize("bound", [0.8, 1.25])
def test_chance_alone_leaves_a_bound_in_about_one_case_of_forty(bound: float) -> None:
    """Clicks drawn under the bound itself: beyond two standard errors on one side lie 2.3 %."""
    random = np.random.default_rng(11)
    promised = 400.0
    clicks = random.poisson(promised / bound, 20_000)
    left = sum(crossed_bound((0.8, 1.25), promised, promised, float(y)) is not None for y in clicks)
    assert left / clicks.size == pytest.approx(0.5 * math.erfc(math.sqrt(2.0)), abs=0.006)


def test_weights_widen_what_chance_may_do() -> None:
    assert crossed_bound((0.8, 1.25), 125.0, 125.0, 70.0) == ("above", 1.25)
    assert crossed_bound((0.8, 1.25), 125.0, 1250.0, 70.0) is None
