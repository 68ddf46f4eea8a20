"""Ranking inside a Python program: `ftrie.Ranker` beside Vowpal Wabbit, scikit-learn, River and loops by hand.

All hold the model of `benchmarks.rivals.shared_model`, weight for weight, and take a request as Python values: features
of the user and context as dicts, candidates as a list of ids. Each returns the ten best. One thread; CPU time counts.
treelite compiles ensembles of trees, which a model of keys is not; a loop compiled for this one spec stands for it.

    python -m benchmarks.in_process
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from benchmarks import rank_model as shop
from benchmarks.common import ROUNDS, Spread, alternate, ratio, report
from benchmarks.rank_requests import TOP_K, request
from benchmarks.rivals import asking, shared_model, vowpal_wabbit
from benchmarks.rivals.scorers import SCORERS, Scorer, best
from ctr.v1.ranking_pb2 import RankRequest
from ftrie.api.ranker import Ranker

CANDIDATES = (10, 200, 1000)
REQUESTS, COMPARED = 400, 3
NEEDS = ("vowpalwabbit",)
TOLERANCE = 1e-5
RUN_S = 0.4
FTRIE, VOWPAL_WABBIT, HASHED = "ftrie.Ranker", "Vowpal Wabbit", "scikit-learn, FeatureHasher"
RIVALS = {
    VOWPAL_WABBIT: ("vowpal_wabbit", "vowpalwabbit"),
    "scikit-learn, DictVectorizer": ("scikit_learn", "sklearn"),
    HASHED: ("hashed", "sklearn"),
    "River": ("river", "river"),
    "a loop over dicts": ("by_hand", "math"),
    "dense tables, numpy": ("dense", "numpy"),
    "dense tables, compiled": ("compiled", "numba"),
}
"""Name → the scorer, and the package it needs."""
COLUMNS = ("candidates", "what", "candidates/s", "low", "high", "ftrie is faster by", "ctr differs by")

Asked = tuple[dict[str, str], dict[str, str], list[str]]
Rank = Callable[[dict[str, str], dict[str, str], list[str]], Any]


def ftrie(ranker: Ranker) -> Rank:
    """As a program calls it."""
    return lambda user, context, candidates: ranker.rank(user, context, candidates, top_k=TOP_K)


def rival(scorer: Any) -> Rank:
    """A scorer, and the best of what it scored."""
    if hasattr(scorer, "rank"):
        return lambda user, context, candidates: scorer.rank(user | context, candidates, TOP_K)
    return lambda user, context, candidates: best(candidates, scorer.ctr(user | context, candidates), TOP_K)


def questions(candidates: int) -> list[Asked]:
    """Requests as values."""
    messages = [request(number, candidates, inline=True) for number in range(REQUESTS)]
    return [(asking.texts(m.user), asking.texts(m.context), list(m.item_ids)) for m in messages]


def differences(ranker: Ranker, scorers: dict[str, Scorer], model: Path) -> dict[str, float]:
    """How far each one's click-through rates are off, at most. Raises RuntimeError where that is too far."""
    weights, found = shared_model.weights(model), dict.fromkeys([FTRIE, *scorers], 0.0)
    for message in (request(number, 200, inline=True) for number in range(COMPARED)):
        right = asking.expected(message, weights)
        for name in found:
            got = _rates(ranker if name == FTRIE else scorers[name], message)
            found[name] = max(found[name], *(abs(got[item] - right[item]) for item in right))
    for name, off in found.items():
        if off > TOLERANCE and name != HASHED:
            raise RuntimeError(f"{name} is off by {off:.2g}: it does not hold the same model")
    return found


def _rates(held: Ranker | Scorer, message: RankRequest) -> dict[str, float]:
    candidates = list(message.item_ids)
    if isinstance(held, Ranker):
        answer = held.rank(asking.texts(message.user), asking.texts(message.context), candidates)
        return {item.id: item.ctr for item in answer.items}
    return dict(zip(candidates, held.ctr(asking.fields_of(message), candidates), strict=True))


def runner(rank: Rank, asked: list[Asked]) -> Callable[[], float]:
    """Measures candidates a second of CPU time over as many calls as take about RUN_S."""
    requests = cycle(asked)

    def run(calls: int) -> float:
        mine = list(islice(requests, calls))
        began = time.process_time()
        for user, context, candidates in mine:
            rank(user, context, candidates)
        return calls * len(asked[0][2]) / (time.process_time() - began)

    def lasting(seconds: float, speed: float) -> int:
        return max(4, int(speed / len(asked[0][2]) * seconds))

    calls = lasting(RUN_S, run(lasting(RUN_S / 4, run(4))))
    return lambda: run(calls)


def rows(ranker: Ranker, scorers: dict[str, Scorer], off: dict[str, float]) -> Iterator[list[object]]:
    """The table."""
    for candidates in CANDIDATES:
        asked = questions(candidates)
        ranks = {FTRIE: ftrie(ranker)} | {name: rival(scorer) for name, scorer in scorers.items()}
        measures = alternate({name: runner(rank, asked) for name, rank in ranks.items()})
        for name in ranks:
            speed = Spread.of(measures[name])
            yield [
                candidates,
                name,
                *(round(value) for value in (speed.median, speed.low, speed.high)),
                "—" if name == FTRIE else f"{ratio(measures, FTRIE, name).median:.2f} ×",
                f"{off[name]:.1g}",
            ]


def main() -> None:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    with tempfile.TemporaryDirectory(prefix="ftrie-") as name:
        model = Path(name) / "model.arrow"
        artefact = shared_model.write(model)
        vowpal_wabbit.export(artefact, model.with_suffix(".vw"))
        ranker = Ranker(artefact, shared_model.items())
        scorers = {
            what: SCORERS[scorer](model)
            for what, (scorer, package) in RIVALS.items()
            if importlib.util.find_spec(package) is not None
        }
        for what in RIVALS.keys() - scorers.keys():
            print(f"{what} is left out, {RIVALS[what][1]} is not installed: pip install 'ftrie[peers]'")
        off = differences(ranker, scorers, model)
        table = list(rows(ranker, scorers, off))
    os.sched_setaffinity(0, cores)
    title = (
        f"Candidates/s of CPU time in one Python process on one core, top {TOP_K}; {artefact.rows:,} keys, "
        f"{shop.ITEMS:,} items, 8 + 6 fields, {len(shop.CROSSES)} crosses; medians of {ROUNDS} alternating rounds"
    )
    report("in_process", title, COLUMNS, table)


if __name__ == "__main__":
    main()
