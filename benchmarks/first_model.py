"""The first model that each gives: `ftrie init`, `ftrie train` and nothing else, beside its peers as they come.

    python -m benchmarks.first_model

Logs: those of FTRIE_TEST_DATA, and those that scikit-learn, River and Open Bandit Pipeline ship. The first four fifths
of a log, in its order, are learned, the last fifth is predicted. Every contestant reads the same two CSV files in a
process of its own, whose time and largest memory are measured once. What is not installed is left out:
`pip install -e '.[bench,peers,sklearn]'`.
"""

from __future__ import annotations

import csv
import gzip
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

from benchmarks.common import click_log, report
from benchmarks.rivals.first_models import CONTESTANTS, LABEL, NEEDED

LEARNED = 0.8
LOGS = {"avazu": ("avazu/clicks_2014-10-21_28.csv.gz", "click")}
LOGS |= {f"open bandit {name}": (f"open_bandit/{name}_men/men.csv.gz", "click") for name in ("bts", "random")}
NOT_FEATURES = ("id", "", "propensity_score")
"""Columns that a person would not give to a learner: a different value in every row, or how an item was chosen."""
COLUMNS = ("log", "rows", "contestant", "log-loss", "AUC", "against ftrie", "seconds", "MB")
OURS = "ftrie init, train"


def logs() -> Iterator[tuple[str, pa.Table]]:
    """Name and rows of each log; its label is the column LABEL, 0 or 1."""
    for name, (path, label) in LOGS.items():
        if (file := click_log(path)) is not None:
            yield name, _labelled(_read(file), label)
    if (folder := click_log("trivago")) is not None:
        yield "trivago", _flat(folder)
    if importlib.util.find_spec("sklearn"):
        from sklearn.datasets import load_breast_cancer, load_digits

        for name, bunch, positive in (
            ("breast cancer", load_breast_cancer(), 1),
            ("digits", load_digits(), 8),
        ):
            names = [str(each).replace(" ", "_") for each in bunch.feature_names]
            columns = dict(zip(names, bunch.data.T, strict=True))
            yield name, pa.table({LABEL: (bunch.target == positive).astype(int), **columns})
    if importlib.util.find_spec("river"):
        from river import datasets

        for dataset in (datasets.Bananas(), datasets.Phishing(), datasets.Shuttle()):
            named = (({f"x{name}": x for name, x in features.items()}, label) for features, label in dataset)
            rows = [{LABEL: int(label), **features} for features, label in named]
            yield f"river {type(dataset).__name__}", pa.Table.from_pylist(rows)
    if found := importlib.util.find_spec("obp"):
        for policy in ("bts", "random"):
            file = (
                Path(next(iter(found.submodule_search_locations or []))) / f"dataset/obd/{policy}/all/all.csv"
            )
            yield f"obp {policy} all", _labelled(_read(file), "click")


def _read(path: Path) -> pa.Table:
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        return pyarrow.csv.read_csv(file)


def _labelled(table: pa.Table, label: str) -> pa.Table:
    table = table.drop_columns([name for name in NOT_FEATURES if name in table.column_names])
    return table.rename_columns([LABEL if name == label else name for name in table.column_names])


def _flat(folder: Path) -> pa.Table:
    """A row for each hotel shown, in the order of time."""
    clicks = {each["request_id"]: each["item"] for each in _events(folder / "clicks.jsonl.gz")}
    rows = []
    for shown in _events(folder / "impressions.jsonl.gz"):
        context = {name: value for name, value in shown["context"].items() if name != "filter"}
        for item in shown["items"]:
            click = int(clicks.get(shown["request_id"]) == item["id"])
            place = {"position": item["position"], "item": item["id"], **item["features"]}
            rows.append({LABEL: click, "cookie": shown["cookie"], **context, **place})
    return pa.Table.from_pylist(rows)


def _events(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def run(contestant: str, folder: Path) -> tuple[float, float, float, float]:
    """Log-loss, AUC, seconds and megabytes of a contestant on the files of a folder."""
    out, began = folder / "predicted.npy", time.perf_counter()
    command = [sys.executable, "-m", "benchmarks.rivals.first_models", contestant, str(folder), str(out)]
    out.unlink(missing_ok=True)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{contestant} failed: {done.stderr[-500:]}")
    seconds, kilobytes = time.perf_counter() - began, int(done.stdout.splitlines()[-1])
    with (folder / "test.csv").open(newline="") as file:
        labels = np.array([row[LABEL] == "1" for row in csv.DictReader(file)])
    ctr = np.clip(np.load(out), 1e-7, 1.0 - 1e-7)
    loss = float(-np.where(labels, np.log(ctr), np.log1p(-ctr)).mean())
    return loss, _auc(labels, ctr), seconds, kilobytes / 1024


def _auc(labels: Any, scores: Any) -> float:
    """The share of pairs of a click and another row that are in order; ties count half."""
    values, places = np.unique(scores, return_inverse=True)
    clicked = np.bincount(places, labels, values.size)
    others = np.bincount(places, ~labels, values.size)
    below = np.cumsum(others) - others
    return float((clicked * (below + 0.5 * others)).sum() / (clicked.sum() * others.sum()))


def main() -> None:
    table = list[list[object]]()
    contestants = [name for name in CONTESTANTS if all(map(importlib.util.find_spec, NEEDED.get(name, ())))]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for log, rows in logs():
            end = int(rows.num_rows * LEARNED)
            for part, own in (("train", rows[:end]), ("test", rows[end:])):
                pyarrow.csv.write_csv(own, folder / f"{part}.csv")
            ours = 0.0
            for contestant in contestants:
                loss, auc, seconds, memory = run(contestant, folder)
                ours = loss if contestant == OURS else ours
                against = f"{100.0 * (loss / ours - 1.0):+.1f} %"
                found = [f"{loss:.5f}", f"{auc:.4f}", against, f"{seconds:.1f}", f"{memory:,.0f}"]
                table.append([log, f"{rows.num_rows:,}", contestant, *found])
                print(*table[-1], flush=True)
    title = "First models as they come: four fifths of a log learned, the last fifth predicted"
    report("first_model", title, COLUMNS, table)


if __name__ == "__main__":
    main()
