"""A small log with fields of every kind, and its spec, for the tests of the library."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

import ftrie

ALL_KINDS = ftrie.Spec(
    """
    [model]
    name = "kinds"
    [input]
    label = "click"
    request = "request"
    timestamp = "ts"
    [fields]
    age = { side = "user" }
    ad = { side = "item" }
    price = { side = "item", kind = "number", bucket = "log" }
    tags = { side = "item", kind = "set" }
    quality = { side = "item", kind = "number", scale = "standard" }
    [[crosses]]
    fields = ["age", "ad"]
    [variants]
    base = { share = 0.5 }
    plain = { share = 0.5, without = ["age*ad"], alpha = 0.05 }
    [learner]
    values = "per_variant"
    alpha = 0.2
    l1 = 0.05
    [calibration]
    kind = "isotonic"
    by = "age"
    """
)


def all_kinds_rows(rows: int, seed: int = 7) -> pa.Table:
    """Rows of four a request; users click on ads of their own number."""
    random = np.random.default_rng(seed)
    age, ad = random.integers(0, 4, rows), random.integers(0, 6, rows)
    price, quality = random.lognormal(2, 1, rows), random.normal(0, 1, rows)
    click = random.random(rows) < 0.1 + 0.3 * (age == ad) + 0.05 * (quality > 1)
    return pa.table(
        {
            "click": click.astype(int),
            "request": np.arange(rows) // 4,
            "ts": 1_700_000_000 + np.arange(rows),
            "age": pa.array(age).cast(pa.string()),
            "ad": pa.array([f"ad {each}" if each else None for each in ad]),
            "price": price,
            "tags": pa.array([["new", "sale", "x*y=z"][:each] for each in random.integers(0, 4, rows)]),
            "quality": quality,
        }
    )


def bare(label: str = "y", fields: dict[str, Any] | None = None, **roles: str) -> ftrie.Spec:
    """A spec with nothing but its label, the columns of other roles and the fields."""
    given: dict[str, Any] = {"model": {"name": "t"}, "input": {"label": label, **roles}}
    return ftrie.Spec(given | ({"fields": fields} if fields else {}))
