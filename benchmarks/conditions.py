"""What the filters of one request cost: reading them from its message, and testing every candidate. No peers.

From 1 filter of 3 texts over 200 candidates to the most that a request may have: 32 of 10,000 texts over 10,000.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median
from time import perf_counter

import numpy as np

from benchmarks.common import ROUNDS, report
from ctr.v1.ranking_pb2 import RankRequest
from model_store.features.features import FeaturePlan
from model_store.spec.spec import parse_spec
from server.model.columns import Catalogue
from server.ranking.request import Received, read_options
from server.ranking.select.filters import CandidateColumns
from server.ranking.select.selection import Scored

SPEC = '[model]\nname = "m"\n[input]\nlabel = "click"\n[fields]\nsku = { side = "item" }\n'
CASES = ((1, 3, 200), (1, 3, 10_000), (4, 100, 10_000), (32, 10_000, 10_000))
COLUMNS = ("filters", "texts each", "candidates", "read ms", "test ms")
ITEMS = 20_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    parsed = parse_spec(SPEC)
    plan = FeaturePlan.of(parsed.resolve(["click", "sku"]))
    catalogue = Catalogue.build(plan, ((f"i{row}", {"sku": f"sku-{row:08d}"}) for row in range(ITEMS)))
    rows = []
    for filters, texts, candidates in CASES:
        asked = RankRequest()
        for number in range(filters):
            first = number * 100
            values = [f"sku-{n:08d}" for n in range(first, first + texts)]
            asked.filters.add(field="sku").any_of.values.extend(values)
        message = asked.SerializeToString()
        ids = [f"i{n}" for n in range(candidates)]
        at, scores = np.arange(candidates, dtype=np.int32), np.zeros(candidates)
        options = read_options(Received.of(RankRequest.FromString(message)).extras, "")
        assert options is not None
        read = milliseconds(
            rounds,
            lambda message=message: read_options(Received.of(RankRequest.FromString(message)).extras, ""),
        )
        test = milliseconds(
            rounds,
            lambda o=options, i=ids, a=at, s=scores: o.select(
                Scored(s, None, None), CandidateColumns(catalogue, i, a, ()), i, 10, "r"
            ),
        )
        rows.append((filters, texts, candidates, read, test))
    report("conditions", "Filters of one request", COLUMNS, rows)


def milliseconds(rounds: int, run: Callable[[], object]) -> float:
    """The median round's milliseconds of one run; of short ones the mean of many."""

    def once() -> float:
        began, runs = perf_counter(), 0
        while runs == 0 or perf_counter() - began < 0.05:
            run()
            runs += 1
        return 1000 * (perf_counter() - began) / runs

    return round(median(once() for _ in range(rounds)), 3)


if __name__ == "__main__":
    main()
