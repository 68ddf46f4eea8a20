"""When an estimate is not to be trusted: what is said of it, and which logs are refused."""

from __future__ import annotations

import numpy as np

from model_store.errors import InputError
from trainer.off_policy.estimators import Support
from trainer.off_policy.logged import LoggedRows

FEWEST_ROWS = 100
FEWEST_CLICKS = 10
UNLOGGED = 0.01
CLIPPED = 0.01
STRAYS = 4.0
CLOSE = 1e-6


def doubts(name: str, support: Support, unlogged: float, limit: float) -> tuple[str, ...]:
    """What is to be said of a policy's estimates."""
    found = []
    if support.ess < FEWEST_ROWS:
        found.append(
            f"its effective sample is {support.ess:.0f} rows; under {FEWEST_ROWS} its intervals are too narrow"
        )
    if support.clicks < FEWEST_CLICKS:
        found.append(
            f"its estimate rests on the worth of {support.clicks:.1f} clicks; under {FEWEST_CLICKS} its intervals are "
            "rough"
        )
    if unlogged > UNLOGGED:
        found.append(
            f"it shows items that the log never does {unlogged:.1%} of the time, of which nothing is known; "
            "IPS takes them as never clicked, SNIPS as like the rest"
        )
    expected = 1.0 - unlogged
    if abs(support.mean - expected) > STRAYS * (support.error or 0.0) + CLOSE:
        found.append(
            f"its mean weight is {support.mean:.3f} ± {support.error or 0.0:.3f} and should be {expected:.3g}: "
            "propensities or candidates are not those of the log"
        )
    if support.clipped > CLIPPED:
        found.append(
            f"{support.clipped:.1%} of its weights are above {limit:.0f}: the clipped estimate is biased"
        )
    return tuple(found)


def check_support(rows: LoggedRows, candidates: int) -> None:
    """Raise InputError for a log that says nothing about any policy but its own."""
    if not rows.has_propensity:
        raise InputError(
            "the log does not say with what chance each item was shown (expected propensity in an event's items, or a "
            "column propensity_score, propensity or pscore): only `logged` can be estimated; name the column with "
            "--propensity"
        )
    if not len(rows):
        raise InputError(
            f"no row has a propensity above 0 and up to 1 ({rows.unusable:,} have none): nothing can be estimated"
        )
    if candidates > 1 and bool(np.all(rows.propensity == 1.0)):
        raise InputError(
            "every propensity is 1: what was shown was certain, so the log says nothing of any other choice; log with "
            "exploration (Thompson sampling, or a share of random requests), or estimate `logged` alone"
        )
