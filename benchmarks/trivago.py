"""Real hotel lists (the RecSys Challenge 2019): position learned as a field and left out when ranking, by MRR.

Impressions and clicks are joined into a row for each hotel shown; the last fifth of the requests is ranked by models of
the first four fifths. Both models are variants of one pass with values of their own; one of them learns the position.
A logged click says as much of the place as of the hotel, and so does MRR on such clicks; so the mean is also taken with
each click weighted by 1 / click rate of its position (Joachims, Swaminathan & Schnabel, WSDM 2017).
"""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import math
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.common import click_log, report

FOLDER = "trivago"
LEARNED = 0.8
STEPS = (0.02, 0.05, 0.1, 0.3)
MODELS = {"learned": "position learned, left out", "without": "no position"}
HEAD = """
[model]
name = "hotels"
[input]
label = "click"
request = "request"
[fields]
price = { side = "item", kind = "number", bucket = "log" }
position = {}
"""
HISTORY = """
last_clicked = { side = "item" }
clicked_before = { side = "item" }
seen_before = { side = "item" }
price_rank = { side = "item" }
price_ratio = { side = "item" }
city = {}
[[crosses]]
fields = ["city", "price_ratio"]
[[crosses]]
fields = ["city", "price_rank"]
[[crosses]]
fields = ["city", "price"]
"""
TAIL = """
[variants]
learned = { share = 0.5 }
without = { share = 0.5, without = ["position"] }
[learner]
l1 = 0.0
values = "per_variant"
"""
SPECS = {"price": HEAD + TAIL, "price, history": HEAD + HISTORY + TAIL}
Row = dict[str, Any]
Numbers = npt.NDArray[np.float64]


def requests(folder: Path) -> Iterator[list[Row]]:
    """The rows of each request in order of time. What a user did before is known from earlier requests alone."""
    clicks = {click["request_id"]: click["item"] for click in _events(folder / "clicks.jsonl.gz")}
    seen: defaultdict[str, set[str]] = defaultdict(set)
    clicked: defaultdict[str, list[str]] = defaultdict(list)
    for shown in _events(folder / "impressions.jsonl.gz"):
        before, known = clicked[shown["cookie"]], seen[shown["cookie"]]
        prices = sorted(item["features"]["price"] for item in shown["items"])
        chosen = clicks[shown["request_id"]]
        yield [
            {
                "click": int(item["id"] == chosen),
                "request": shown["request_id"],
                "item": item["id"],
                "position": item["position"],
                "city": shown["context"]["city"],
                "price": (price := item["features"]["price"]),
                "price_rank": prices.index(price),
                "price_ratio": round(price * len(prices) / sum(prices), 1),
                "last_clicked": item["id"] == before[-1] if before else "first",
                "clicked_before": min(before.count(item["id"]), 3) if before else "first",
                "seen_before": item["id"] in known if known else "first",
            }
            for item in shown["items"]
        ]
        known.update(item["id"] for item in shown["items"])
        before.append(chosen)


def _events(path: Path) -> Iterator[Row]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def write_log(path: Path, lists: Sequence[list[Row]]) -> None:
    """Write requests as CSV, a row for each hotel."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(lists[0][0]))
        writer.writeheader()
        writer.writerows(row for rows in lists for row in rows)


def rank(folder: Path, text: str, alpha: float) -> dict[str, Numbers]:
    """Learn a spec at a step size; the scores of every row to be ranked, position left out, by variant."""
    spec, model, scores = folder / "spec.toml", folder / "model.arrow", folder / "scores.csv"
    spec.write_text(f"{text}alpha = {alpha}\n", encoding="utf-8")
    _ftrie("train", str(spec), str(folder / "learned.csv"), "--save", str(model))
    found = {}
    for variant in MODELS:
        flags = ("--without", "position", "--variant", variant, "--predictions", str(scores))
        _ftrie("evaluate", str(model), str(folder / "ranked.csv"), *flags)
        with scores.open(encoding="utf-8", newline="") as file:
            found[variant] = np.array([float(row["score"]) for row in csv.DictReader(file)])
    return found


def _ftrie(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "ftrie", *arguments, "--json"], check=True, capture_output=True)


def reciprocal_ranks(scores: Numbers, lists: Sequence[list[Row]]) -> Numbers:
    """1 / rank of each request's click; among equal scores the mean over the orders."""
    found, begin = [], 0
    for rows in lists:
        own = scores[begin : begin + len(rows)]
        mine = own[next(i for i, row in enumerate(rows) if row["click"])]
        above, ties = int((own > mine).sum()), int((own == mine).sum())
        found.append(float(np.mean(1.0 / np.arange(above + 1, above + ties + 1))))
        begin += len(rows)
    return np.array(found)


def weights_of_clicks(learned: Sequence[list[Row]], ranked: Sequence[list[Row]]) -> Numbers:
    """1 / click rate, among the learned rows, of the position that each ranked request's click had."""
    shown: defaultdict[int, int] = defaultdict(int)
    clicked: defaultdict[int, int] = defaultdict(int)
    for row in (row for rows in learned for row in rows):
        shown[row["position"]] += 1
        clicked[row["position"]] += row["click"]
    places = [next(row["position"] for row in rows if row["click"]) for rows in ranked]
    return np.array([shown[place] / max(clicked[place], 1) for place in places])


def main() -> None:
    folder = click_log(FOLDER)
    if folder is None:
        print(f"trivago: left out, there is no {FOLDER} in the folder FTRIE_TEST_DATA")
        return
    lists = list(requests(folder))
    cut = math.floor(len(lists) * LEARNED)
    learned, ranked = lists[:cut], lists[cut:]
    weights = weights_of_clicks(learned, ranked)
    shown = np.array([-float(row["position"]) for rows in ranked for row in rows])
    table = [_row("shown order", "—", "—", reciprocal_ranks(shown, ranked), None, weights)]
    with tempfile.TemporaryDirectory() as name:
        write_log(Path(name) / "learned.csv", learned)
        write_log(Path(name) / "ranked.csv", ranked)
        for (features, text), alpha in itertools.product(SPECS.items(), STEPS):
            found = {v: reciprocal_ranks(s, ranked) for v, s in rank(Path(name), text, alpha).items()}
            for variant, title in MODELS.items():
                base = found["without"] if variant != "without" else None
                table.append(_row(title, features, f"{alpha:g}", found[variant], base, weights))
    columns = ["order", "features", "alpha", "MRR", "lift", "weighted MRR", "weighted lift"]
    report("trivago", f"Hotel lists, the last {len(ranked):,} of {len(lists):,} requests", columns, table)


def _row(
    title: str, features: str, alpha: str, found: Numbers, base: Numbers | None, weights: Numbers
) -> list[object]:
    even = np.ones(found.size)
    cells: list[object] = [title, features, alpha]
    for weight in (even, weights):
        cells.append(f"{np.average(found, weights=weight):.4f}")
        cells.append("—" if base is None else _lift(found - base, weight))
    return cells


def _lift(differences: Numbers, weights: Numbers) -> str:
    """The weighted mean of paired differences with its 95 % interval."""
    mean = float(np.average(differences, weights=weights))
    spread = math.sqrt(float(np.sum((weights * (differences - mean)) ** 2))) / float(weights.sum())
    return f"{mean:+.4f} ± {1.96 * spread:.4f}"


if __name__ == "__main__":
    main()
