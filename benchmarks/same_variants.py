"""Experiments whose variants do not differ: how often the lift and the test of the shares alarm.

By buckets of cookies, as ftrie tests them, and by requests, as if those were independent.

python -m benchmarks.same_variants

Visitors come back, differ (click rates Beta(3, 17), visits Pareto of index 1.5) and some are bots, which never click
and visit a hundred times as often. Each run is looked at 300 times, as a page that is watched is; the power is that of
a variant whose click rate is 20 % higher.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ftrie.outcomes import LEVEL, MISMATCH_LEVEL, lift, mismatch_p
from model_store.ratios import BUCKETS, Ratio
from model_store.versions.online_metrics import SUMS, OnlineCell

RUNS, LOOKS = 200, 300
SHARES = {"base": 0.8, "plain": 0.2}
EFFECT = 0.05
REQUESTS, SHOWN, CLICKS = (SUMS.index(name) for name in ("requests", "shown", "clicks"))


@dataclass(frozen=True)
class Visitors:
    """So many cookies, of which a share are bots, and how often the better variant's items are clicked."""

    cookies: int
    bots: float = 0.0
    lift: float = 0.0

    def looks(
        self, requests: int, looks: int, random: np.random.Generator
    ) -> Iterator[dict[str, OnlineCell]]:
        """What has been counted by each look: one item a request."""
        rates = random.beta(3.0, 17.0, self.cookies)
        visits = random.pareto(1.5, self.cookies) + 1.0
        bots = random.random(self.cookies) < self.bots
        rates[bots], visits[bots] = 0.0, 100.0
        own = random.random(self.cookies) >= SHARES["base"]
        bucket = random.integers(0, BUCKETS, self.cookies)
        cookie = np.searchsorted(np.cumsum(visits) / visits.sum(), random.random(requests))
        clicked = random.random(requests) < rates[cookie] * np.where(own[cookie], 1.0 + self.lift, 1.0)
        place = own[cookie] * BUCKETS + bucket[cookie]
        sums = np.zeros((2 * BUCKETS, len(SUMS)), np.int64)
        for seen, clicks in zip(np.array_split(place, looks), np.array_split(clicked, looks), strict=True):
            count = np.bincount(seen, minlength=2 * BUCKETS)
            sums[:, REQUESTS] += count
            sums[:, SHOWN] += count
            sums[:, CLICKS] += np.bincount(seen, clicks, 2 * BUCKETS).astype(np.int64)
            base, plain = sums.reshape(2, BUCKETS, len(SUMS)).copy()
            yield {"base": OnlineCell(base), "plain": OnlineCell(plain)}


@dataclass
class Alarms:
    """In how many runs something was said at any look: by cookies, and as if requests were independent."""

    lift: int = 0
    shares: int = 0
    lift_by_request: int = 0
    shares_by_request: int = 0


def simulated(
    visitors: Visitors, requests: int, runs: int = RUNS, looks: int = LOOKS, seed: int = 1
) -> Alarms:
    """Run experiments, each looked at again and again."""
    found = Alarms()
    for run in range(runs):
        said = Alarms()
        for cells in visitors.looks(requests, looks, np.random.default_rng((seed, run))):
            rates = [cell.click_rate for cell in cells.values()]
            own = lift(rates[1], rates[0], EFFECT)
            shares = mismatch_p(cells, SHARES)
            said.lift |= own is not None and own.p < LEVEL
            said.shares |= shares is not None and shares < MISMATCH_LEVEL
            counts = [cell.sums for cell in cells.values()]
            if min(each.clicks for each in counts) < 10:
                continue
            naive = [Ratio(n.clicks / n.shown, n.clicks / n.shown**2, n.shown) for n in counts]
            by_request = lift(naive[1], naive[0], EFFECT)
            said.lift_by_request |= by_request is not None and by_request.p < LEVEL
            said.shares_by_request |= _chi_square(counts[1].requests, sum(n.requests for n in counts))
        for name, value in vars(said).items():
            setattr(found, name, getattr(found, name) + bool(value))
    return found


def _chi_square(own: int, every: int) -> bool:
    """Pearson's test of two counts against the shares."""
    expected = SHARES["plain"] * every
    statistic = (own - expected) ** 2 / (expected * SHARES["base"])
    return math.erfc(math.sqrt(statistic / 2.0)) < MISMATCH_LEVEL


def main() -> None:
    print(f"share of {RUNS} runs with an alarm at any of {LOOKS} looks, by cookies (and by requests)")
    for cookies in (2_000, 200_000):
        for bots in (0.0, 0.02):
            for requests in (16_000, 60_000, 200_000):
                same = simulated(Visitors(cookies, bots), requests)
                other = simulated(Visitors(cookies, bots, lift=0.2), requests)
                print(
                    f"{cookies:>7,} cookies, {bots:.0%} bots, {requests:>7,} requests: lift {same.lift / RUNS:.1%} "
                    f"({same.lift_by_request / RUNS:.1%}), shares {same.shares / RUNS:.1%} "
                    f"({same.shares_by_request / RUNS:.1%}); +20 % seen {other.lift / RUNS:.1%} "
                    f"({other.lift_by_request / RUNS:.1%})",
                    flush=True,
                )


if __name__ == "__main__":
    main()
