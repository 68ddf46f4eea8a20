"""What exploration earns where new items appear: AdPredictor's posterior beside FTRL's bound.

python -m benchmarks.exploration [--picture FILE | --budgets]

A closed loop in one process. The market is that of `ftrie live`, without bots and with constant tastes, but its items
leave and new ones come, whose appeal is unknown. A server's ranker orders all items for each visitor, who sees the best
few; what was shown and clicked is learned, and every EVERY visits the model is published and a new ranker built from
it. The first EVERY visits see random items. Clicks expected from the true rates are counted, not drawn ones.

Both learners have the same number of values of alpha, beta 1, and the same number of widths for each way to explore. A
row of the table has the alpha with the most expected clicks on the markets TUNED_ON; its last rows are draws of width 1
with every other alpha. The table is from the markets SEEDS. Everything is a function of the seeds.

--budgets: the better policies again, with a budget and with a minimum of places for new items, and what they cover.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from benchmarks.common import report
from ftrie.demo.market import (
    AGES,
    CATEGORIES,
    GENDERS,
    SPEC,
    AnsweredVisit,
    Market,
    Visit,
    item_records,
    shown_items,
    visit,
)
from ftrie.demo.settings import Habits, Sizes, Tastes
from ftrie.draw.charts import Row, curve, point
from ftrie.draw.pages import stacked_svg
from model_store.files import write_whole
from model_store.spec.spec import ModelSpec, Variant, load_spec
from model_store.versions.experiments import Explore
from server.model.columns import Catalogue
from server.model.model import Model
from server.ranking.ranker import Ranker
from server.ranking.select.exploration import Exploration
from server.ranking.select.selection import Options, Scored, Spent, Valued
from trainer.examples.hashing import ExampleMaker
from trainer.formats.batch import Position, RowBatch
from trainer.learn.model import LearningModel
from trainer.tune.candidates import Candidate, with_parameters

Array = np.ndarray[Any, Any]

VISITS, EVERY = 8_000, 100
ALIVE, SHOWN = 40, 4
NEW_ITEM_EVERY = 50
"""Visits from one new item to the next; the oldest item of its category leaves."""
APPEAL = 0.8
"""Standard deviation, in logits, of the part that only an item's own clicks reveal."""
TUNED_ON, TUNED_VISITS = (101, 102, 103), 4_000
SEEDS = (1, 2, 3, 4, 5, 6)
BUDGET_SEEDS, BUDGET_VISITS = range(1, 21), 5_000
COVERED, COVERED_WITHIN = 20, 1_000
"""How often a new item must have been shown to be covered, of those that were there for so many visits."""
POINTS = 40

LEARNERS: dict[str, Candidate] = {
    "ftrl": {"algorithm": "ftrl", "rate": "gradients", "beta": 1.0, "l1": 0.0},
    "adpredictor": {"algorithm": "adpredictor", "beta": 1.0, "prior_ctr": 0.1},
}
ALPHAS = {"ftrl": (0.1, 0.2, 0.4, 0.8, 1.6), "adpredictor": (0.05, 0.1, 0.2, 0.4, 0.8)}
WIDTHS = {"ftrl": (0.3, 1.0, 3.0), "adpredictor": (0.25, 0.5, 1.0)}
UNIFORM, GREEDY, UCB, THOMPSON = "uniform", "greedy", "ucb", "thompson"


class _Drawn(Exploration):
    """Thompson sampling without propensities, which take most of a request's time and are not needed here."""

    def explored(self, score: Array, uncertainty: Array, ids: Sequence[str], request_id: str) -> Array:
        """Same as where scores are drawn."""
        return Exploration(self.width, True).explored(score, uncertainty, ids, request_id)


@dataclass(frozen=True)
class _Budgeted(Options):
    """A request's options with the chances of exploring only where a budget needs them, and computed once.

    They depend on the scores, and not on the request's id. Between two versions visitors have 16 different scores:
    the model knows their age, gender and device.
    """

    known: dict[tuple[bytes, ...], Array] = field(default_factory=dict, compare=False)

    def _chances(self, some: Scored, valued: Valued, asked: Array, *others: Any, **named: Any) -> Array:
        assert self.exploration is not None and self.exploration.budget is not None
        if self.exploration.budget.cost == 1.0:
            return np.full(len(asked), np.nan)
        # A cost asks for those of all candidates.
        parts = some.score, some.uncertainty, some.evidence
        key = tuple(b"" if each is None else each.tobytes() for each in parts)
        if key not in self.known:
            self.known[key] = super()._chances(some, valued, asked, *others, **named)
        return self.known[key]


@dataclass(frozen=True)
class Policy:
    """How visits are ranked. learner: "" where nothing is learned; width: of UCB and THOMPSON."""

    learner: str
    kind: str
    width: float = 0.0
    alpha: float = 0.0
    budget: Explore | None = None

    @property
    def title(self) -> str:
        """The policy without its alpha."""
        width = f" {self.width:g}" if self.width else ""
        parts = [f"{self.learner} {self.kind}{width}".strip()]
        if (of := self.budget) is not None:
            parts += [f"share {of.share:g}"] * (of.share < 1.0) + [f"cost {of.cost:g}"] * (of.cost < 1.0)
            parts += [f"new items {of.new_share:g}:{of.new_below:g}"] * (of.new_share > 0.0)
        return ", ".join(parts)

    @property
    def spec(self) -> ModelSpec:
        """The market's, with this learner and without its variants: all visits are of one policy."""
        alone = load_spec(SPEC).model_copy(update={"variants": {"base": Variant(share=1.0)}})
        return with_parameters(alone, {**LEARNERS[self.learner], "alpha": self.alpha})

    @property
    def options(self) -> Options | None:
        """What a request sets."""
        if self.budget is not None:
            return _Budgeted(None, (), (), Exploration(self.width, self.kind == THOMPSON, self.budget))
        kinds = {UCB: Exploration, THOMPSON: _Drawn}
        return Options(None, (), (), kinds[self.kind](self.width, False)) if self.kind in kinds else None


@cache
def market_of(seed: int) -> Market:
    """A market with enough items for all visits."""
    born = math.ceil(VISITS / NEW_ITEM_EVERY / len(CATEGORIES))
    sizes = Sizes(items_per_category=ALIVE // len(CATEGORIES) + born, bots=0.0, appeal=APPEAL)
    return Market(seed, Tastes(drift=0.0), sizes)


@lru_cache(1)
def visits_of(market: Market, visits: int) -> list[Visit]:
    """The visits, each with all the items that there are at its time. Kept for the next policy on the same market."""
    habits, found = Habits(candidates=ALIVE), []
    each, alive = market.sizes.items_per_category, ALIVE // len(CATEGORIES)
    category = np.arange(len(CATEGORIES))
    for number in range(visits):
        oldest = (number // NEW_ITEM_EVERY + len(CATEGORIES) - 1 - category) // len(CATEGORIES)
        items = (category * each + oldest)[:, None] + np.arange(alive)
        found.append(replace(visit(market, habits, number), candidates=items.ravel()))
    return found


class Loop:
    """A model that learns what is shown, and ranks with the version it published last."""

    def __init__(self, policy: Policy, market: Market) -> None:
        self._market, self._options = market, policy.options
        none = np.zeros(0, np.int64)
        columns = {**_requests(none), **shown_items(market, none, none, none, none.astype(np.bool_))}
        self._maker = ExampleMaker(policy.spec.resolve(list(columns)))
        self._model = LearningModel(self._maker)
        self._catalogue = Catalogue.build(self._maker.plan, item_records(market))
        self._version = 0
        self._ranker: Ranker | None = None
        self.spent: list[Spent] = []

    def order(self, visit: Visit) -> Array | None:
        """The candidates to show, best first; None before the first version."""
        if self._ranker is None:
            return None
        market = self._market
        fields = {"age": AGES[market.age[visit.user]], "gender": GENDERS[market.gender[visit.user]]}
        skus = [market.skus[item] for item in visit.candidates.tolist()]
        query = self._ranker.query(
            {**fields, **visit.context},
            skus,
            top_k=SHOWN,
            options=self._options,
            request_id=f"r{visit.number}",
        )
        ranking = self._ranker.rank(query)
        if ranking.spent is not None:
            self.spent.append(ranking.spent)
        return ranking.order

    def learn(self, seen: Sequence[AnsweredVisit]) -> None:
        """Learn what was shown and clicked, and publish."""
        user, device, number = (
            np.repeat([getattr(each.visit, name) for each in seen], SHOWN)
            for name in ("user", "device", "number")
        )
        item = np.concatenate([each.visit.candidates[each.order] for each in seen])
        clicked = np.concatenate([each.clicked for each in seen])
        columns = {**_requests(number), **shown_items(self._market, user, item, device, clicked)}
        lines = np.arange(item.size, dtype=np.int64)
        batch = RowBatch(columns, lines, "visits", (), item.size, Position("visits"))
        self._model.learn(self._maker.make(batch))
        self._version += 1
        self._ranker = Ranker(Model.build(self._model.artefact(), self._version), self._catalogue)


def _requests(number: Array) -> dict[str, pa.Array]:
    return {"request_id": pa.array(number.astype(str)), "ts": pa.array(number)}


class Run(NamedTuple):
    """Expected clicks of a policy's answers and of the best ones, between two versions: float64[versions, 2].

    covered: the share of new items that were shown COVERED times; spent: what its budget decided for each visit.
    """

    clicks: Array
    covered: float
    spent: Sequence[Spent]


def earned(policy: Policy, seed: int, visits: int) -> Array:
    """The clicks of a run."""
    return run(policy, seed, visits).clicks


def run(policy: Policy, seed: int, visits: int) -> Run:
    """All visits of a market, ranked by a policy."""
    market = market_of(seed)
    loop = Loop(policy, market) if policy.learner else None
    draw = np.random.default_rng([seed, 2])
    coming, clicks = iter(visits_of(market, visits)), np.zeros((visits // EVERY, 2))
    there, shown = np.zeros((2, market.items), np.int64)
    for version in range(len(clicks)):
        seen = []
        for each in itertools.islice(coming, EVERY):
            order = loop.order(each) if loop else None
            if order is None:
                order = draw.choice(ALIVE, SHOWN, replace=False)
            seen.append(AnsweredVisit(market, each, order, np.empty(0)))
            clicks[version] += seen[-1].expected, seen[-1].best
            there[each.candidates] += 1
            shown[each.candidates[order]] += 1
        if loop:
            loop.learn(seen)
    first = visits_of(market, visits)[0].candidates
    there[first] = 0
    return Run(clicks, float((shown[there >= COVERED_WITHIN] >= COVERED).mean()), loop.spent if loop else ())


def policies() -> list[Policy]:
    """All but uniform, without their alpha."""
    return [
        each
        for learner, widths in WIDTHS.items()
        for each in (
            Policy(learner, GREEDY),
            *(Policy(learner, kind, width) for kind in (THOMPSON, UCB) for width in widths),
        )
    ]


def draws_of_any_alpha() -> list[Policy]:
    """Draws of width 1 with each alpha: how much depends on it."""
    return [Policy(learner, THOMPSON, 1.0, alpha) for learner, alphas in ALPHAS.items() for alpha in alphas]


def tuned(pool: Executor) -> list[Policy]:
    """Each policy with the alpha that earned the most."""
    tried = [replace(each, alpha=alpha) for each in policies() for alpha in ALPHAS[each.learner]]
    clicks = [float(each[..., 0].sum()) for each in all_earned(pool, tried, TUNED_ON, TUNED_VISITS)]
    best = {
        replace(each, alpha=0.0): each
        for _, each in sorted(zip(clicks, tried, strict=True), key=itemgetter(0))
    }
    return [best[each] for each in policies()]


def all_earned(pool: Executor, some: Sequence[Policy], seeds: Sequence[int], visits: int) -> Iterator[Array]:
    """Of each policy, what `earned` returns for each seed: float64[seeds, versions, 2]."""
    jobs = list(itertools.product(some, seeds))
    found = pool.map(earned, *zip(*jobs, strict=True), itertools.repeat(visits))
    for _ in some:
        yield np.array(list(itertools.islice(found, len(seeds))))


def row(policy: Policy, clicks: Array) -> list[Any]:
    """A row of the table."""
    seeds = clicks.shape[0]
    mine, best = clicks.sum(axis=1).T
    later = clicks[:, clicks.shape[1] // 2 :].sum(axis=1).T
    regret = best - mine
    return [
        policy.title,
        f"{policy.alpha:g}" if policy.alpha else "—",
        round(float(mine.mean()) / (VISITS * SHOWN), 4),
        round(float((mine / best).mean()), 4),
        round(float((later[0] / later[1]).mean()), 4),
        round(float(regret.mean())),
        round(float(regret.std(ddof=1) / math.sqrt(seeds))),
    ]


def budgeted() -> list[Policy]:
    """Each learner's ways to explore, with the alpha that the table without budgets has, and with budgets."""
    found = []
    for learner, greedy, ucb, thompson in (
        ("ftrl", 0.8, (0.3, 0.8), (1.0, 0.4)),
        ("adpredictor", 0.8, (1.0, 0.2), (1.0, 0.4)),
    ):
        kinds = (
            Policy(learner, GREEDY, 0.0, greedy),
            Policy(learner, UCB, *ucb),
            Policy(learner, THOMPSON, *thompson),
        )
        drawn, of = kinds[2], partial(Explore, "thompson", thompson[0])
        found += [
            *kinds,
            replace(kinds[0], budget=Explore("ucb", 0.0, new_share=0.25, new_below=5.0)),
            *(
                replace(drawn, budget=budget)
                for budget in (
                    of(share=0.25),
                    of(cost=0.02),
                    of(cost=0.02, new_share=0.25, new_below=5.0),
                )
            ),
        ]
    return found


def runs_of(seed: int) -> list[Run]:
    """All policies with and without a budget on one market."""
    return [run(policy, seed, BUDGET_VISITS) for policy in budgeted()]


def report_budgets(pool: Executor) -> None:
    """The table of policies with and without a budget."""
    rows, seeds = [], len(BUDGET_SEEDS)
    of_greedy = np.empty(0)
    for policy, *own in zip(budgeted(), *pool.map(runs_of, BUDGET_SEEDS), strict=True):
        mine, best = np.array([each.clicks.sum(axis=0) for each in own]).T
        if policy.kind == GREEDY and policy.budget is None:
            of_greedy = mine
        # On the same markets, and so with the error of the differences.
        more = 100.0 * (mine / of_greedy - 1.0)
        spent = [each for one in own for each in one.spent]
        cost = 1.0 - sum(e.served for e in spent) / sum(e.greedy for e in spent) if spent else math.nan
        asked = policy.budget.cost if policy.budget and policy.budget.cost < 1.0 else None
        rows.append(
            [
                policy.title,
                f"{policy.alpha:g}",
                f"{100.0 * (mine / best).mean():.1f}",
                f"{(best - mine).mean():.0f} ± {(best - mine).std(ddof=1) / math.sqrt(seeds):.0f}",
                f"{more.mean():+.1f} ± {more.std(ddof=1) / math.sqrt(seeds):.1f}" if more.any() else "—",
                f"{100.0 * np.mean([each.covered for each in own]):.1f}",
                f"{100.0 * sum(e.explored for e in spent) / len(spent):.1f}" if spent else "—",
                f"{100.0 * asked:g}" if asked is not None else "—",
                f"{100.0 * cost:.2f}" if spent else "—",
            ]
        )
    columns = (
        "policy",
        "alpha",
        "of the best possible, %",
        "clicks lost",
        "against greedy, %",
        "new items covered, %",
        "explores, %",
        "may cost, %",
        "costs, %",
    )
    report(
        "exploration_budgets",
        f"Expected clicks of {BUDGET_VISITS:,} visits, {ALIVE} items of which {SHOWN} are shown, "
        f"{seeds} markets; an item is covered once it was shown {COVERED} times; ± a standard error",
        columns,
        rows,
    )


def picture(found: Mapping[str, Array]) -> str:
    """Click rates over time and the clicks lost so far, with bands of two standard errors over the markets; as SVG."""
    best = next(iter(found.values()))[..., 1]
    versions, seeds = best.shape[1], best.shape[0]
    width = versions // POINTS
    at = (np.arange(versions // width) + 0.5) * width * EVERY
    shown = width * EVERY * SHOWN

    def chunks(clicks: Array) -> Array:
        summed: Array = clicks[:, : width * len(at)].reshape(seeds, len(at), width).sum(axis=2)
        return summed

    def series(name: str, top: Array, lost: Array) -> list[Row]:
        """`lost` below `top`; the markets' own differences are no part of the band."""
        middle, error = lost.mean(axis=0), 2.0 * lost.std(axis=0, ddof=1) / math.sqrt(seeds)
        ends = zip(at, top - middle, top - middle - error, top - middle + error, strict=True)
        return [point(name, *map(float, each)) for each in ends]

    of_best = chunks(best) / shown
    top = zip(at, of_best.mean(axis=0), strict=True)
    rates = [point("best possible", float(x), float(y)) for x, y in top]
    regrets: list[Row] = []
    for title, clicks in found.items():
        lost = chunks(clicks[..., 1] - clicks[..., 0])
        rates += series(title, of_best.mean(axis=0), lost / shown)
        regrets += series(title, np.zeros(len(at)), -np.cumsum(lost, axis=1))
    colours = {"best possible": 2} | dict(zip(found, (0, 4, 1, 3), strict=True))
    charts = [
        curve("Clicks per shown item", rates, colours, across="visits", zero=True),
        curve("Clicks lost so far against the best possible", regrets, colours, across="visits"),
    ]
    return stacked_svg(charts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture", type=Path, help="write the curves of the best policies as SVG")
    parser.add_argument("--budgets", action="store_true", help="the table with budgets instead")
    arguments = parser.parse_args()
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        if arguments.budgets:
            return report_budgets(pool)
        chosen = [Policy("", UNIFORM), *tuned(pool)]
        some = list(dict.fromkeys([*chosen, *draws_of_any_alpha()]))
        found = dict(zip(some, all_earned(pool, some, SEEDS, VISITS), strict=True))
    rows = [row(policy, clicks) for policy, clicks in found.items()]
    columns = (
        "policy",
        "alpha",
        "CTR",
        "of the best possible",
        "in the later half",
        "clicks lost",
        "standard error",
    )
    title = f"Expected clicks of {VISITS:,} visits, {ALIVE} items of which {SHOWN} are shown, {len(SEEDS)} markets"
    report("exploration", title, columns, rows)
    if arguments.picture:
        write_whole(arguments.picture, picture(_drawn({policy: found[policy] for policy in chosen})).encode())


def _drawn(found: Mapping[Policy, Array]) -> dict[str, Array]:
    """AdPredictor's draw of width 1, the best of FTRL's bounds, and both without exploration."""

    def best(learner: str, *kinds: str) -> Policy:
        some = [each for each in found if each.learner == learner and each.kind in kinds]
        return max(some, key=lambda each: float(found[each][..., 0].sum()))

    draw = next(
        each for each in found if (each.learner, each.kind, each.width) == ("adpredictor", THOMPSON, 1.0)
    )
    some = draw, best("adpredictor", GREEDY), best("ftrl", UCB, THOMPSON), best("ftrl", GREEDY)
    return {each.title: found[each] for each in some}


if __name__ == "__main__":
    main()
