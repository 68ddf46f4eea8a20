"""How many requests tell two variants apart: interleaved in one list, and divided by shares, on the simulated market.

python -m benchmarks.interleaving

The market of `ftrie live` without bots and drift. One pass over LEARNED random impressions learns `base` and variants
that are worse by a known part of the clicks. The in-process ranker orders SETS sets of CANDIDATES items for every kind
of visitor; each request is a random one of these, by a random one of USERS cookies, who sees the SHOWN best items of
its variant's order, or of a draft of both orders by the server's kernel, and clicks by the market's true rates. Cookies
are assigned and divided into buckets as servers and trainers do it; clicks are credited by the trainer's code, and the
report's code says at each look, a tenth more requests each time, whether a variant has won.

"always valid": the requests at the first look with a verdict; median and quartiles over the repetitions. "one look":
at how many requests a quarter, a half and three quarters of the repetitions have a 95 % interval for one look that
excludes a draw. Everything is a function of the seeds.

A against A: the order that a name stands for is drawn for each request, so that the lists differ but no name is better.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

import ftrie
from benchmarks.common import report
from ftrie.demo.market import AGES, DEVICES, GENDERS, SPEC, Market, item_records, looked_at, shown_items
from ftrie.demo.settings import Sizes, Tastes
from ftrie.outcomes import Outcomes, credit_of, outcomes
from model_store.ratios import BUCKETS, Interval, Ratio
from model_store.spec.spec import Variant, load_spec
from model_store.versions.experiments import PROBABILISTIC, TEAM, Experiment
from model_store.versions.online_metrics import CTR_UNIT, SUMS, OnlineCell, Slot
from server.model.columns import Catalogue
from server.model.model import Model
from server.ranking.experiments import Assignment
from server.ranking.ranker import Ranker
from server.ranking.select.draft_kernels import draft, ints_for, reals_for
from trainer.events.columns import buckets
from trainer.publish.online_metrics import Credits

Array = np.ndarray[Any, Any]

LEARNED, USERS, SETS, CANDIDATES, SHOWN = 50_000, 100_000, 40, 50, 5
SEED, REPETITIONS, FALSE_REPETITIONS = 7, 20, 400
FIRST_LOOK, GROWTH, FALSE_MOST = 100, 1.1, 5_000
EFFECT = 0.05
"""That of `ftrie experiment report` without --effect."""
SPLIT = "split"
WAYS = {SPLIT: "split by cookie", TEAM: "team draft", PROBABILISTIC: "probabilistic"}
MOST = {SPLIT: 4_000_000, TEAM: 400_000, PROBABILISTIC: 100_000}
"""Where a repetition ends undecided: seconds of drafts, which take 3 and 27 µs."""
VARIANTS = {
    "base": Variant(share=1.0),
    "alpha 0.03": Variant(share=0.0, alpha=0.03),
    "alpha 0.08": Variant(share=0.0, alpha=0.08),
    "without sku": Variant(share=0.0, without=("sku",)),
}
PART = "without sku for 50+ on mobile"
"""As a rule that changes some requests does: an eighth of them, in which it is another variant."""
COMPARED = ("without sku", PART, "alpha 0.08", "alpha 0.03")
A_AGAINST_A = "alpha 0.08"


class World:
    """The market, and what each variant orders for each kind of visit: a set of candidates, an age, gender and device.

    rate: P(click | look) of each candidate, f64[kinds, CANDIDATES]; order: by variant, int64[kinds, CANDIDATES].
    """

    def __init__(self) -> None:
        sizes = Sizes(users=USERS, items_per_category=30, bots=0.0, appeal=0.5)
        self.market = market = Market(SEED, Tastes(drift=0.0), sizes)
        random = np.random.default_rng(SEED)
        ranker, skus = self._ranker(random), np.array(market.skus)
        shape = (SETS, len(AGES), len(GENDERS), len(DEVICES))
        candidates = [random.choice(market.items, CANDIDATES, replace=False) for _ in range(SETS)]
        someone = {(market.age[user], market.gender[user]): user for user in range(1_000)}
        self.rate = np.empty((np.prod(shape), CANDIDATES))
        self.order = {name: np.empty(self.rate.shape, np.int64) for name in VARIANTS}
        for kind, (number, age, gender, device) in enumerate(np.ndindex(shape)):
            items = candidates[number]
            self.rate[kind] = market.attraction(0.0, someone[age, gender], items, device)
            fields = {"age": AGES[age], "gender": GENDERS[gender], "device": DEVICES[device]}
            for variant, name in enumerate(VARIANTS):
                query = ranker.query(fields, skus[items].tolist(), variant=variant)
                self.order[name][kind] = ranker.rank(query).order
        of_part = np.zeros(shape, np.bool_)
        of_part[:, AGES.index("50+"), :, DEVICES.index("mobile")] = True
        chosen = of_part.reshape(-1, 1)
        self.order[PART] = np.where(chosen, self.order["without sku"], self.order["base"])
        hashed = buckets(pa.array([each.encode() for each in market.cookies]), np.zeros(USERS, np.uint64))
        self.bucket = hashed.to_numpy().astype(np.int64)

    def _ranker(self, random: np.random.Generator) -> Ranker:
        market, spec = self.market, load_spec(SPEC)
        user, item, device = (
            random.integers(size, size=LEARNED) for size in (market.users, market.items, len(DEVICES))
        )
        clicked = random.random(LEARNED) < market.attraction(0.0, user, item, device)
        given = spec.input.model_copy(update={"timestamp": None, "request": None})
        learner = spec.learner.model_copy(update={"values": "per_variant"})
        own = spec.model_copy(update={"input": given, "learner": learner, "variants": VARIANTS})
        table = pa.table(shown_items(market, user, item, device, clicked))
        learned = ftrie.train(ftrie.Spec.of(own), table, progress=False).model
        model = Model.build(learned.artefact, 1)
        return Ranker(model, Catalogue.build(model.plan, item_records(market)))

    @cached_property
    def clicks(self) -> Mapping[str, float]:
        """Expected clicks a request, by variant."""
        look = looked_at(SHOWN)
        return {
            name: float((np.take_along_axis(self.rate, order[:, :SHOWN], 1) @ look).mean())
            for name, order in self.order.items()
        }


@dataclass(frozen=True)
class Run:
    """One experiment: `base` against another variant, in one of WAYS. fair: A against A."""

    world: World
    other: str
    way: str
    seed: int
    fair: bool = False

    def looks(self, most: float) -> Iterator[tuple[int, str | None, str | None]]:
        """The requests so far, and the winner: of the verdict, and by the interval for one look."""
        random = np.random.default_rng([SEED, self.seed])
        names = "base", self.other
        cells, requests, look = dict[str, OnlineCell](), 0, float(FIRST_LOOK)
        make = self._divided if self.way == SPLIT else self._drafted
        while requests < most:
            for name, cell in make(random, round(look) - requests):
                cells[name] = cells[name] + cell if name in cells else cell
            requests, look = round(look), look * GROWTH
            found = outcomes([(Slot(0, 1, name), cell) for name, cell in cells.items()], {}, names[0], EFFECT)
            yield requests, found.verdict.winner, self._once(found, cells)

    def _visits(self, random: np.random.Generator, count: int) -> tuple[Array, Array, Array]:
        """The cookie and the kind of each visit, and which of them the names are exchanged for."""
        market = self.world.market
        user = random.integers(USERS, size=count)
        of_set, device = random.integers(SETS, size=count), random.integers(len(DEVICES), size=count)
        kind = (of_set * len(AGES) + market.age[user]) * len(GENDERS) + market.gender[user]
        swapped = (random.random(count) < 0.5) & self.fair
        return user, kind * len(DEVICES) + device, swapped

    @cached_property
    def _assigned(self) -> Array:
        """The variant of each cookie, 0 or 1."""
        record = Experiment(shares={"base": 0.5, self.other: 0.5}, salt=f"run {self.seed}")
        assignment = Assignment("market", ("base", self.other), (0.5, 0.5), record)
        return np.array([assignment.choose(cookie) for cookie in self.world.market.cookies])

    def _clicked(self, random: np.random.Generator, kind: Array, shown: Array) -> Array:
        chance = looked_at(SHOWN) * np.take_along_axis(self.world.rate[kind], shown, 1)
        return random.random(shown.shape) < chance

    def _cell(self, bucket: Array, clicks: Array, credit: Mapping[str, Array] | None = None) -> OnlineCell:
        sums = np.zeros((BUCKETS, len(SUMS)), np.int64)
        sums[:, SUMS.index("requests")] = np.bincount(bucket, minlength=BUCKETS)
        sums[:, SUMS.index("shown")] = SHOWN * sums[:, SUMS.index("requests")]
        sums[:, SUMS.index("clicks")] = np.bincount(bucket, clicks, BUCKETS)
        return OnlineCell(sums, credit=credit or {})

    def _divided(self, random: np.random.Generator, count: int) -> Iterator[tuple[str, OnlineCell]]:
        """Each cookie sees the list of its variant."""
        user, kind, swapped = self._visits(random, count)
        variant = self._assigned[user]
        orders = np.stack([self.world.order[name][:, :SHOWN] for name in ("base", self.other)])
        clicks = self._clicked(random, kind, orders[variant ^ swapped, kind]).sum(axis=1)
        for number, name in enumerate(("base", self.other)):
            mine = variant == number
            yield name, self._cell(self.world.bucket[user[mine]], clicks[mine])

    def _drafted(self, random: np.random.Generator, count: int) -> Iterator[tuple[str, OnlineCell]]:
        """Everybody sees one list, drafted from both orders."""
        user, kind, swapped = self._visits(random, count)
        names, by_turns, no_caps = ("base", self.other), self.way == TEAM, np.empty(0, np.int64)
        both = np.stack([self.world.order[name] for name in names], axis=1)
        ordered = np.ascontiguousarray(both[:, :, :SHOWN] if by_turns else both)
        lists = ordered, np.ascontiguousarray(ordered[:, ::-1])
        ints, reals = np.empty(ints_for(2, CANDIDATES, SHOWN), np.int64), np.empty(reals_for(2, SHOWN))
        state, propensity = np.empty(1, np.uint64), np.empty(SHOWN)
        shown, team = np.empty((2, count, SHOWN), np.int64)
        credit = np.empty((count, SHOWN))
        seeds = random.integers(1 << 62, size=count).tolist()
        for at, (number, swap, seed) in enumerate(zip(kind.tolist(), swapped.tolist(), seeds, strict=True)):
            draft(
                lists[swap][number], CANDIDATES, SHOWN, by_turns, seed, *[no_caps] * 4, ints, reals, state,
                shown[at], team[at], credit[at], propensity,
            )  # fmt: skip
        clicked = self._clicked(random, kind, shown)
        request, place = np.nonzero(clicked & (credit != 0.0))
        nano = np.rint(credit[request, place] / CTR_UNIT).astype(np.int64)
        bucket = self.world.bucket[user]
        found = Credits(request, team[request, place], names, nano).by_cell(np.zeros(count, np.int64), bucket)
        yield "+".join(names), self._cell(bucket, clicked.sum(axis=1), found.get(0))

    def _once(self, found: Outcomes, cells: Mapping[str, OnlineCell]) -> str | None:
        """The winner by a 95 % interval for one look."""
        interval: Interval | None
        if self.way == SPLIT:
            difference = found.variants[self.other].difference
            interval, draw = (difference.interval if difference else None), 0.0
        else:
            gained = credit_of(next(iter(cells.values())))
            if len(gained) < 2:
                return None
            share = Ratio.of(gained[self.other], gained[self.other] + gained["base"], BUCKETS)
            interval, draw = (share.interval() if share else None), 0.5
        if interval is None or interval.low <= draw <= interval.high:
            return None
        return self.other if interval.low > draw else "base"


def told(world: World, other: str, way: str) -> tuple[list[float], list[float], str]:
    """Requests until two variants are told apart: quartiles of the verdict's and of one look, and wrong verdicts."""
    better = max(("base", other), key=world.clicks.__getitem__)
    ended, named = list[float](), list[str]()
    tells: dict[int, int] = {}
    for seed in range(REPETITIONS):
        for requests, winner, by_one_look in Run(world, other, way, seed).looks(MOST[way]):
            tells[requests] = tells.get(requests, 0) + (by_one_look == better)
            if winner is not None:
                ended.append(requests)
                named.append(winner)
                break
    # What the verdict has told, one look tells, with its narrower interval, so a run need not go on for it.
    share = {size: (count + sum(end < size for end in ended)) / REPETITIONS for size, count in tells.items()}
    quarters = 0.25, 0.5, 0.75
    once = [min([math.inf, *(size for size in share if share[size] >= part)]) for part in quarters]
    ended = sorted(ended) + [math.inf] * (REPETITIONS - len(ended))
    verdict = [ended[math.ceil(part * REPETITIONS) - 1] for part in quarters]
    return verdict, once, f"{sum(name != better for name in named)} of {REPETITIONS}"


def false_alarms(world: World, way: str) -> str:
    """How often A against A has a verdict at any look, and an interval for one look that excludes a draw at the end."""
    verdicts, once = 0, 0
    for seed in range(FALSE_REPETITIONS):
        looks = list(Run(world, A_AGAINST_A, way, seed, fair=True).looks(FALSE_MOST))
        verdicts += any(winner is not None for _, winner, _ in looks)
        once += looks[-1][2] is not None
    return f"{verdicts / FALSE_REPETITIONS:.1%}; one look {once / FALSE_REPETITIONS:.1%}"


def row(
    other: str, difference: str, way: str, found: tuple[list[float], list[float], str], split: float
) -> list[Any]:
    """A row of the table."""
    verdict, once, wrong = found

    def words(quartiles: list[float]) -> list[str]:
        low, middle, high = (f"{each:,.0f}" if each < math.inf else f"> {MOST[way]:,}" for each in quartiles)
        return [middle, f"{low} to {high}"]

    fewer = f"{split / verdict[1]:.1f} ×" if verdict[1] < math.inf else "—"
    return [other, difference, WAYS[way], *words(verdict), fewer, *words(once), wrong]


def main() -> None:
    """Run all repetitions and report."""
    world, rows = World(), list[list[Any]]()
    for other in COMPARED:
        difference, split = f"{world.clicks[other] / world.clicks['base'] - 1.0:+.1%}", 0.0
        for way in WAYS:
            found = told(world, other, way)
            split = split or found[0][1]
            rows.append(row(other, difference, way, found, split))
    for way in WAYS:
        rows.append(["A against A", "0 %", WAYS[way], *["—"] * 5, false_alarms(world, way)])
    columns = [
        "variant",
        "clicks",
        "way",
        "requests to a verdict",
        "quartiles",
        "fewer",
        "one look",
        "its quartiles",
    ]
    report(
        "interleaving",
        f"Requests until a variant is told from `base`, {SHOWN} of {CANDIDATES} items shown, "
        f"{world.clicks['base']:.2f} clicks a request; {REPETITIONS} repetitions, {FALSE_REPETITIONS} of "
        f"{FALSE_MOST:,} requests for A against A",
        [*columns, "wrong"],
        rows,
    )


if __name__ == "__main__":
    main()
