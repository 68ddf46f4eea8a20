"""Online learning in a Python program: `ftrie.Learner` with rows and batches, beside River with rows.

Both learn FTRL-Proximal of rows with ten fields of up to 1,000 values each. A row is a dict; a batch is an Arrow table.
Everything runs on one core.

    python -m benchmarks.learner
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.common import ROUNDS, Spread, alternate, ratio, report
from ftrie.api.learner import Learner

FIELDS, VALUES = 10, 1_000
ROWS = 2_000
"""Dicts to learn in one round; a round of tables has ten times as many rows, at least one table."""
SIZES = (1, 100, 10_000)
SPEC = {
    "model": {"name": "bench"},
    "input": {"label": "click"},
    "fields": {f"field_{number}": {} for number in range(FIELDS)},
}
ONE, PREDICT = "learn_one", "predict_one"
COLUMNS = ("what", "rows/s", "low", "high", "µs a row", "times River's learn_one")


def table(rows: int) -> pa.Table:
    """Rows whose clicks depend on the first field."""
    random = np.random.default_rng(3)
    values = random.zipf(1.3, (FIELDS, rows)) % VALUES
    clicks = random.random(rows) < 0.05 + 0.3 * (values[0] % 3 == 0)
    fields = {f"field_{number}": [f"value {each}" for each in values[number]] for number in range(FIELDS)}
    return pa.table({"click": clicks.astype(np.int64), **fields})


def contestants() -> dict[str, Callable[[], float]]:
    """What is measured by name: each returns rows a second, and has learned all rows once before."""
    rows = table(max(SIZES))
    dicts = rows.drop_columns(["click"]).to_pylist()[:ROWS]
    labels = rows["click"].to_pylist()[:ROWS]
    learner = Learner(SPEC).learn(rows)
    found: dict[str, Callable[[], float]] = {
        f"ftrie.Learner.{ONE}": lambda: _each(learner.learn_one, dicts, labels),
        f"ftrie.Learner.{PREDICT}": lambda: _each(lambda row, label: learner.predict_one(row), dicts, labels),
    }
    for size in SIZES:
        parts = [rows.slice(first, size) for first in range(0, rows.num_rows, size)][: max(1, ROWS // 10)]
        found[f"ftrie.Learner.learn, {size:,} rows a table"] = partial(_tables, learner, parts)
    if importlib.util.find_spec("river") is not None:
        model = _river()
        found[f"River.{ONE}"] = lambda: _each(model.learn_one, dicts, labels)
        found[f"River.{PREDICT}"] = lambda: _each(
            lambda row, label: model.predict_proba_one(row), dicts, labels
        )
    else:
        print("River is left out, it is not installed: pip install 'ftrie[peers]'")
    return found


def _river() -> Any:
    """One feature a value, as a FeatureHasher would name it; OneHotEncoder would add a zero for every other value."""
    from river import compose, linear_model, optim

    encode = compose.FuncTransformer(lambda row: {f"{name}={value}": 1.0 for name, value in row.items()})
    return encode | linear_model.LogisticRegression(optim.FTRLProximal())


def _each(
    learn: Callable[[dict[str, str], int], object], dicts: list[dict[str, str]], labels: list[int]
) -> float:
    began = time.perf_counter()
    for row, label in zip(dicts, labels, strict=True):
        learn(row, label)
    return len(dicts) / (time.perf_counter() - began)


def _tables(learner: Learner, parts: list[pa.Table]) -> float:
    began = time.perf_counter()
    for part in parts:
        learner.learn(part)
    seconds = time.perf_counter() - began
    return float(sum(part.num_rows for part in parts)) / seconds


def main() -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    runs = contestants()
    for run in runs.values():
        run()
    measures = alternate(runs)
    river = f"River.{ONE}"
    lines = []
    for name, values in measures.items():
        speed = Spread.of(values)
        figures = [round(each) for each in (speed.median, speed.low, speed.high)]
        times = f"{ratio(measures, name, river).median:.2f} ×" if river in measures else "—"
        lines.append([name, *figures, f"{1e6 / speed.median:.1f}", times])
    title = (
        f"Online in one Python process, on one core, {FIELDS} fields; medians of {ROUNDS} alternating rounds"
    )
    report("learner", title, COLUMNS, lines)


if __name__ == "__main__":
    main()
