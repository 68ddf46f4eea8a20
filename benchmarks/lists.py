"""Real hotel lists (the RecSys Challenge 2019), as impressions and clicks: MRR and hit@1 of the last fifth of a day.

`ftrie train` joins the events, compares the prices within a list and keeps what each user has seen and clicked before.
Vowpal Wabbit gets the same features and crosses, made here. Both learn one pass with each of four step sizes; the one
with the best MRR on the fourth fifth learns the first four and ranks the last one, without learning from it. Both are
set beside the order shown, with the position as a feature and without. Intervals are of the paired differences to the
order shown, request by request.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.common import click_log, report

NEEDS = ("vowpalwabbit",)
FOLDER = "trivago"
STEPS = {"ftrie": (0.02, 0.05, 0.1, 0.2), "Vowpal Wabbit": (0.05, 0.1, 0.3, 0.5)}
CROSSES = (
    *(("clicks", "clicked"), ("clicks", "seen"), ("city", "price"), ("city", "price_rank")),
    *(("last_clicked", "hotel"), ("position", "clicks"), ("position", "seen"), ("position", "clicked")),
)
SPEC = """
[model]
name = "hotels"
[input]
label = "click"
request = "request_id"
cookie = "cookie"
item = "item"
timestamp = "ts"
[fields]
hotel = { side = "item", column = "item" }
city = {}
position = { side = "item" }
price = { side = "item", kind = "number", bucket = "log" }
price_rank = { side = "item", kind = "number", list = "rank", of = "price", bucket = [2, 3, 4, 6, 9, 13, 18] }
price_gap = { side = "item", kind = "number", list = "gap", of = "price", bucket = "log" }
clicked = { side = "item", kind = "number", history = "clicked", measure = "count", bucket = [1, 2, 3] }
clicked_age = { side = "item", kind = "number", history = "clicked", measure = "age", bucket = "log" }
seen = { side = "item", kind = "number", history = "seen", measure = "count", bucket = [1, 2, 3, 5] }
clicks = { side = "user", kind = "number", history = "clicked", measure = "count", bucket = [1, 2, 4] }
last_clicked = { side = "user", kind = "set", history = "clicked", measure = "last", last = 3 }
[variants]
with = {}
without = { without = ["position"] }
[learner]
l1 = 0.0
values = "per_variant"
"""
POSITIONS = {"with": "position as a feature", "without": "no position"}
_VW = "import sys, vowpalwabbit; vowpalwabbit.Workspace(sys.argv[1]).finish()"

Row = dict[str, Any]
Numbers = npt.NDArray[np.float64]
Lists = Sequence[list[Row]]


# -- ftrie


def ours(step: float, learned: Lists, ranked: Lists, folder: Path) -> dict[str, Numbers]:
    """The scores of every ranked row by variant, from the events as they are."""
    crosses = "".join(f"[[crosses]]\nfields = {json.dumps(cross)}\n" for cross in CROSSES)
    spec, model, scores = folder / "spec.toml", folder / "model.arrow", folder / "scores.csv"
    spec.write_text(f"{SPEC}alpha = {step}\n{crosses}", encoding="utf-8")
    events = [str(click_log(f"{FOLDER}/{name}.jsonl.gz")) for name in ("impressions", "clicks")]
    cut, end = (str(rows[0]["ts"]) for rows in (ranked[0], ranked[-1]))
    _ftrie("train", str(spec), *events, "--until", cut, "--save", str(model))
    found = {}
    for variant in POSITIONS:
        flags = (
            "--since",
            cut,
            "--until",
            str(int(end) + 1),
            "--variant",
            variant,
            "--predictions",
            str(scores),
        )
        _ftrie("evaluate", str(model), *events, *flags)
        with scores.open(encoding="utf-8", newline="") as file:
            found[variant] = np.array([float(row["score"]) for row in csv.DictReader(file)])
    return found


def _ftrie(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "ftrie", *arguments, "--json"], check=True, capture_output=True)


# -- Vowpal Wabbit


def theirs(step: float, learned: Lists, ranked: Lists, folder: Path) -> dict[str, Numbers]:
    """The scores of every ranked row, with features made in `requests`."""
    found = {}
    for variant in POSITIONS:
        for name, lists in (("learned.vw", learned), ("ranked.vw", ranked)):
            with (folder / name).open("w", encoding="utf-8") as file:
                for row in (row for rows in lists for row in rows):
                    file.write(f"{1 if row['click'] else -1} | {' '.join(_features(row, variant))}\n")
        model, scores = folder / "vw.model", folder / "vw.scores"
        _vw(f"-d {folder / 'learned.vw'} -b 24 -l {step} -f {model}")
        _vw(f"-d {folder / 'ranked.vw'} -t -i {model} -p {scores}")
        found[variant] = np.loadtxt(scores)
    return found


def _vw(command: str) -> None:
    command = f"--loss_function logistic --quiet {command}"
    subprocess.run([sys.executable, "-c", _VW, command], check=True, capture_output=True)


def _features(row: Row, variant: str) -> Iterator[str]:
    tokens = {name: row[name] if isinstance(row[name], list) else [row[name]] for name in row["names"]}
    if variant == "without":
        del tokens["position"]
    for name, values in tokens.items():
        yield from (f"{name}={value}" for value in values)
    for one, two in CROSSES:
        for a in tokens.get(one, ()):
            yield from (f"{one}*{two}={a}*{b}" for b in tokens.get(two, ()))


def requests(folder: Path) -> Iterator[list[Row]]:
    """The rows of each request in order of time. What a user did before is known from earlier requests alone."""
    clicks = {click["request_id"]: click for click in _events(folder / "clicks.jsonl.gz")}
    seen: defaultdict[str, Counter[str]] = defaultdict(Counter)
    clicked: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    for shown in sorted(_events(folder / "impressions.jsonl.gz"), key=lambda event: event["ts"]):
        user, now = shown["cookie"], shown["ts"]
        before = [each for each in clicked[user] if each[0] < now]
        prices = sorted(item["features"]["price"] for item in shown["items"])
        rows = []
        for item in shown["items"]:
            mine = [time for time, hotel in before if hotel == item["id"]]
            price = item["features"]["price"]
            row = {
                "hotel": item["id"],
                "city": shown["context"]["city"].replace(" ", "_").replace(":", "_").replace("|", "_"),
                "position": item["position"],
                "price": _log(price),
                "price_rank": np.searchsorted([2, 3, 4, 6, 9, 13, 18], prices.index(price) + 1, side="right"),
                "price_gap": _log(price - prices[0]),
                "clicked": min(len(mine), 3),
                "clicked_age": [_log(now - mine[-1])] if mine else [],
                "seen": np.searchsorted([1, 2, 3, 5], seen[user][item["id"]], side="right"),
                "clicks": np.searchsorted([1, 2, 4], len(before), side="right"),
                "last_clicked": list(dict.fromkeys(hotel for _, hotel in before[:-4:-1])),
            }
            click = item["id"] == clicks[shown["request_id"]]["item"]
            rows.append(
                {**row, "names": list(row), "click": click, "ts": now, "request": shown["request_id"]}
            )
        yield rows
        seen[user].update(item["id"] for item in shown["items"])
        clicked[user].append((clicks[shown["request_id"]]["ts"], clicks[shown["request_id"]]["item"]))


def _log(value: float) -> int:
    return int(4 * math.log2(1 + value))


def _events(path: Path) -> Iterator[Row]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


# -- judging


def reciprocal_ranks(scores: Numbers, lists: Lists) -> Numbers:
    """1 / rank of each request's click; among equal scores the mean over the orders."""
    return np.array(
        [
            float(np.mean(1.0 / np.arange(above + 1, above + ties + 1)))
            for above, ties in _ranks(scores, lists)
        ]
    )


def first_hits(scores: Numbers, lists: Lists) -> Numbers:
    """1 where a request's click is ranked first, a share of it among equal scores."""
    return np.array([0.0 if above else 1.0 / ties for above, ties in _ranks(scores, lists)])


def _ranks(scores: Numbers, lists: Lists) -> Iterator[tuple[int, int]]:
    begin = 0
    for rows in lists:
        own = scores[begin : begin + len(rows)]
        mine = own[next(i for i, row in enumerate(rows) if row["click"])]
        yield int((own > mine).sum()), int((own == mine).sum())
        begin += len(rows)


def main() -> None:
    folder = click_log(FOLDER)
    if folder is None:
        print(f"lists: left out, there is no {FOLDER} in the folder FTRIE_TEST_DATA")
        return
    lists = list(requests(folder))
    third, fourth = (_cut(lists, share) for share in (0.6, 0.8))
    ranked = lists[fourth:]
    order = np.array([-float(row["position"]) for rows in ranked for row in rows])
    shown = reciprocal_ranks(order, ranked)
    table: list[list[object]] = [["order shown", "—", "—", *_figures(order, ranked, None)]]
    learn: dict[str, Callable[[float, Lists, Lists, Path], dict[str, Numbers]]]
    learn = {"ftrie": ours, "Vowpal Wabbit": theirs}
    with tempfile.TemporaryDirectory() as name:
        for trainer, steps in STEPS.items():
            tried = [learn[trainer](step, lists[:third], lists[third:fourth], Path(name)) for step in steps]
            for variant, title in POSITIONS.items():
                mrr = [reciprocal_ranks(each[variant], lists[third:fourth]).mean() for each in tried]
                step = steps[int(np.argmax(mrr))]
                scores = learn[trainer](step, lists[:fourth], ranked, Path(name))[variant]
                table.append([trainer, title, f"{step:g}", *_figures(scores, ranked, shown)])
    columns = ["order", "features", "step size", "MRR", "MRR minus the order shown's", "hit@1"]
    report("lists", f"Hotel lists, the last {len(ranked):,} of {len(lists):,} requests", columns, table)


def _cut(lists: Lists, share: float) -> int:
    """The first request after this share of them that begins a new second: times part them for both trainers."""
    cut = math.floor(len(lists) * share)
    return next(at for at in range(cut, len(lists)) if lists[at][0]["ts"] != lists[at - 1][0]["ts"])


def _figures(scores: Numbers, lists: Lists, shown: Numbers | None) -> list[object]:
    ranks = reciprocal_ranks(scores, lists)
    lift = "—"
    if shown is not None:
        spread = 1.96 * float((ranks - shown).std(ddof=1)) / len(lists) ** 0.5
        lift = f"{(ranks - shown).mean():+.4f} ± {spread:.4f}"
    return [f"{ranks.mean():.4f}", lift, f"{first_hits(scores, lists).mean():.4f}"]


if __name__ == "__main__":
    main()
