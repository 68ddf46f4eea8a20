"""Training from a table in memory beside training from the same rows as a Parquet file: 1 M rows of 20 columns.

`ftrie.train` learns all of them; the time is that of the whole call, with the conversion of the table. Half of the
columns are text, with few or many values, half are numbers.

    python -m benchmarks.frames
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common import ROUNDS, Spread, alternate, ratio, report
from ftrie.api.run import train

NEEDS = ("pandas", "polars", "duckdb")
ROWS = 1_000_000
TEXTS = (2, 5, 20, 50, 100, 500, 1_000, 5_000, 20_000, 100_000)
"""The number of values of each text column."""
NUMBERS = 9
PARQUET = "Parquet file"
COLUMNS = ("from", "rows/s", "low", "high", "of Parquet's", "low", "high")


def rows() -> pa.Table:
    """Rows whose clicks depend on the first text column: the label, 10 text columns and 9 of numbers."""
    random = np.random.default_rng(5)
    columns: dict[str, Any] = {}
    for number, values in enumerate(TEXTS):
        drawn = random.integers(0, values, ROWS)
        names = pa.array([f"value {each}" for each in range(values)])
        columns[f"text_{number}"] = pa.DictionaryArray.from_arrays(pa.array(drawn), names).dictionary_decode()
        if number == 0:
            clicks = (random.random(ROWS) < 0.05 + 0.1 * drawn).astype(np.int64)
    for number in range(NUMBERS):
        whole = number % 2 == 0
        columns[f"number_{number}"] = random.integers(0, 1_000, ROWS) if whole else random.random(ROWS)
    return pa.table({"click": clicks, **columns})


def spec() -> dict[str, Any]:
    """Text columns are categories, columns of numbers are numbers in logarithmic buckets."""
    numbers = {f"number_{number}": {"kind": "number", "bucket": "log"} for number in range(NUMBERS)}
    texts: dict[str, dict[str, str]] = {f"text_{number}": {} for number in range(len(TEXTS))}
    return {"model": {"name": "frames"}, "input": {"label": "click"}, "fields": texts | numbers}


def speed(make: Callable[[], Any]) -> float:
    """Rows a second of a whole training run."""
    began = time.perf_counter()
    run = train(spec(), make(), progress=False)
    assert run.report.rows == ROWS
    return ROWS / (time.perf_counter() - began)


def main() -> None:
    import duckdb
    import pandas
    import polars

    table = rows()
    frame = table.to_pandas()
    objects = frame.astype({name: object for name in frame.columns if name.startswith("text")})
    categories = frame.astype({name: "category" for name in frame.columns if name.startswith("text")})
    relation = duckdb.from_arrow(table)
    with TemporaryDirectory(prefix="ftrie-frames-") as folder:
        path = Path(folder) / "rows.parquet"
        pq.write_table(table, path)
        sources: dict[str, Callable[[], Any]] = {
            PARQUET: lambda: path,
            "Arrow table": lambda: table,
            f"pandas {pandas.__version__}": lambda: frame,
            "pandas, text as objects": lambda: objects,
            "pandas, text as categories": lambda: categories,
            f"polars {polars.__version__}": partial(polars.from_arrow, table),
            f"DuckDB {duckdb.__version__}": lambda: relation,
        }
        measures = alternate({name: partial(speed, make) for name, make in sources.items()})
    lines = []
    for name, values in measures.items():
        found, beside = Spread.of(values), ratio(measures, name, PARQUET)
        figures = [round(each) for each in (found.median, found.low, found.high)]
        lines.append([name, *figures, *(f"{each:.2f}" for each in (beside.median, beside.low, beside.high))])
    title = f"Training on {ROWS:,} rows × {table.num_columns} columns; medians of {ROUNDS} alternating rounds"
    report("frames", title, COLUMNS, lines)


if __name__ == "__main__":
    main()
