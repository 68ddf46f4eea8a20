"""A clean click log, as columns and as events, into which the tests plant defects.

The log is what a doctor must be silent about: clicks depend on items, devices and positions, times grow, days are
alike, propensities are those of the policy that showed the items.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from trainer.examples.open_log import Log
from trainer.inspect.examine import examine, opened_source
from trainer.inspect.findings import Diagnosis, Finding
from trainer.inspect.profiles import LogSample

ROWS = 12_000
BEGAN_S = 1_700_006_400
"""A midnight, UTC."""
DAYS = 6
ITEMS = 20
Columns = dict[str, Any]


def clean(rows: int = ROWS, seed: int = 5) -> Columns:
    """The columns of a clean log, numpy arrays and lists, which are not to be written to."""
    return dict(_clean(rows, seed))


@cache
def _clean(rows: int, seed: int) -> Columns:
    random = np.random.default_rng(seed)
    request = np.arange(rows) // 4
    position = np.arange(rows) % 4 + 1
    item = random.integers(0, ITEMS, rows)
    item[position == 2] = (item[position == 1] + 1 + item[position == 2] % 4) % ITEMS
    item[position == 3] = (item[position == 1] + 6 + item[position == 3] % 4) % ITEMS
    item[position == 4] = (item[position == 1] + 11 + item[position == 4] % 4) % ITEMS
    device = random.integers(0, 3, rows // 4)[request]
    rate = 0.08 * (1 + 0.05 * (item % 7)) * (1 + 0.3 * device) * 1.02 ** -(position - 1.0)
    step = DAYS * 86_400 / (rows // 4)
    return {
        "click": (random.random(rows) < rate).astype(np.int64),
        "ts": (BEGAN_S + request * step).astype(np.int64),
        "request_id": [f"r{number}" for number in request],
        "user_id": [f"u{number % 450}" for number in request * 7 % 1201],
        "item_id": [f"sku{number}" for number in item],
        "position": position,
        "price": np.round(random.lognormal(3.0, 0.6, rows), 2),
        "device": np.array(["phone", "tablet", "desktop"])[device],
        "propensity": np.full(rows, 1 / ITEMS),
    }


def table(columns: Mapping[str, Any]) -> pa.Table:
    return pa.table({name: pa.array(values) for name, values in columns.items()})


def parquet(columns: Mapping[str, Any], folder: Path, name: str = "log.parquet") -> Path:
    path = folder / name
    pq.write_table(table(columns), path)
    return path


def csv(
    columns: Mapping[str, Sequence[Any]], folder: Path, name: str = "log.csv", header: bool = True
) -> Path:
    """The log as a CSV file; row n is on line n + 1, None is an empty cell."""
    lines = [",".join(columns)] if header else []
    lines += [
        ",".join("" if cell is None else str(cell) for cell in row)
        for row in zip(*columns.values(), strict=True)
    ]
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def events(columns: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The log as impressions and clicks: a click comes half a minute after its impression."""
    impressions, clicks = [], []
    for first in range(0, len(columns["click"]), 4):
        request, ts = columns["request_id"][first], int(columns["ts"][first])
        shown = [
            {
                "id": columns["item_id"][row],
                "position": int(columns["position"][row]),
                "features": {"price": float(columns["price"][row])},
            }
            for row in range(first, first + 4)
        ]
        impressions.append(
            {
                "request_id": request,
                "ts": ts,
                "cookie": columns["user_id"][first],
                "context": {"device": str(columns["device"][first])},
                "items": shown,
            }
        )
        clicks += [
            {"request_id": request, "ts": ts + 30, "item": columns["item_id"][row]}
            for row in range(first, first + 4)
            if columns["click"][row]
        ]
    return impressions, clicks


def jsonl(objects: Sequence[Any], folder: Path, name: str) -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(each) + "\n" for each in objects))
    return path


def sampled(path: Path, **options: Any) -> LogSample:
    """The first rows of a file; options: of Log."""
    with opened_source(Log([str(path)], **options), None, None) as source:
        return source.sample


def diagnosed(*paths: Path, **options: Any) -> Diagnosis:
    """The diagnosis of files; options: of Log, and spec and label."""
    spec, label = options.pop("spec", None), options.pop("label", None)
    return examine(Log([str(path) for path in paths], **options), spec, label)


def only(found: Diagnosis, check: str) -> Finding:
    """The one finding of a check; and no finding that is more severe than it, apart from others of the check."""
    of_check = found.of_check(check)
    assert len(of_check) == 1, [(each.check, each.columns) for each in found.findings]
    return of_check[0]
