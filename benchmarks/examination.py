"""Real hotel lists (the RecSys Challenge 2019): clicks as they are, and weighed by how often people look, by MRR.

`ftrie doctor` estimates the examination on the first four fifths of the requests, which the models learn; the last
fifth is ranked, without its positions. MRR of logged clicks favours the order that was shown; so the mean is also taken
with each click weighted by 1 / examination of its position, with an interval by a bootstrap over requests.

    python -m benchmarks.examination
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

import ftrie
from benchmarks.common import click_log, report
from benchmarks.trivago import LEARNED, Row, reciprocal_ranks, requests

RATES = (0.03, 0.1, 0.3)
HEAD = '[model]\nname = "hotels"\n[input]\nlabel = "click"\nrequest = "request"\nitem = "item"\n'
FIELDS = """
[fields]
hotel = { column = "item", side = "item" }
price = { side = "item", kind = "number", bucket = "log" }
city = {}
%s[[crosses]]
fields = ["city", "price"]
[learner]
l1 = 1
alpha = %g
"""
NAMES = ("click", "request", "item", "position", "city", "price")
COLUMNS = ("alpha", "model", "MRR", "MRR of clicks by 1 / examination", "low", "high")


def main() -> None:
    folder = click_log("trivago")
    if folder is None:
        sys.exit("trivago's events are not there: see FTRIE_TEST_DATA")
    lists = [[{name: row[name] for name in NAMES} for row in rows] for rows in requests(folder)]
    first = int(LEARNED * len(lists))
    learned, ranked = _table(lists[:first]), lists[first:]
    found = ftrie.doctor(learned, HEAD + FIELDS % ("", 0.1), progress=False)
    print(found.spec_fragment)
    examination = [(each.swaps or each.theta)[0] for each in found.examination]
    places = [next(row["position"] for row in rows if row["click"]) for rows in ranked]
    weights = np.array([1.0 / examination[min(place, len(examination)) - 1] for place in places])
    models = {
        "clicks as they are": (HEAD, ""),
        "position learned as a field, left out": (HEAD, "position = {}\n"),
        "examination": (HEAD + found.spec_fragment, ""),
    }
    rows = [
        (rate, name, *_judged(learned, head + FIELDS % (field, rate), ranked, weights))
        for rate in RATES
        for name, (head, field) in models.items()
    ]
    report("examination", "Hotels ranked by models of clicks", COLUMNS, rows)


def _table(lists: Sequence[list[Row]]) -> pa.Table:
    return pa.Table.from_pylist([row for rows in lists for row in rows])


def _judged(learned: pa.Table, spec: str, ranked: Sequence[list[Row]], weights: Any) -> tuple[float, ...]:
    unplaced = [[row | {"position": None} for row in rows] for rows in ranked]
    model = ftrie.train(spec, learned, progress=False).model
    mrr = reciprocal_ranks(model.predict(_table(unplaced))["base"].to_numpy(), ranked)
    random, drawn = np.random.default_rng(0), []
    for _ in range(500):
        some = random.integers(0, mrr.size, mrr.size)
        drawn.append(float(np.average(mrr[some], weights=weights[some])))
    low, high = np.quantile(drawn, [0.025, 0.975])
    figures = mrr.mean(), np.average(mrr, weights=weights), low, high
    return tuple(round(float(each), 4) for each in figures)


if __name__ == "__main__":
    main()
