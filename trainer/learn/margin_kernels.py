"""Kernel that takes the keys with a given weight out of hashed rows."""

from __future__ import annotations

from typing import Any

from model_store.jit import bare_kernel
from trainer.examples.examples_kernels import x_of


@bare_kernel
def split_rows(
    rows: Any,
    begin: Any,
    end: Any,
    weights: Any,
    masks: Any,
    variants: Any,
    out: Any,
    places: Any,
    margins: Any,
) -> None:
    """Write rows begin to end without the features whose weight is given; sum weight * x of those by variant.

    weights: float64[features], 0 where the weight is learned; masks: uint32[features], who uses a feature; out:
    `HashedRows` with room for as many features, rows from `end` on have none; places: int64 out, where each feature of
    `out` is in `rows`; margins: float64[rows, >= variants] out.
    """
    at = 0
    for row in range(begin, end):
        out.starts[row] = at
        for v in range(margins.shape[1]):
            margins[row, v] = 0.0
        for position in range(rows.starts[row], rows.starts[row + 1]):
            feature = rows.features[position]
            if weights[feature] != 0.0:
                for v in range(variants):
                    if masks[feature] >> v & 1:
                        margins[row, v] += weights[feature] * x_of(rows, position)
                continue
            out.hashes[at], out.features[at] = rows.hashes[position], feature
            if out.x.size:
                out.x[at] = x_of(rows, position)
            places[at] = position
            at += 1
    for row in range(end, out.starts.size):
        out.starts[row] = at
