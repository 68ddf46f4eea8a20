"""Whole requests: rows shown together are predicted by the same weights, before any of them is learned.

In: examples with requests, in batches that end anywhere. Out: parts that hold whole requests, and rows repeated so that
the learning loops predict all of a request first. What is learned stays the same to the last bit, since a row of weight
0 is predicted and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from trainer.examples.examples_kernels import HashedRows
from trainer.examples.hashing import Examples
from trainer.examples.requests import MOST_ROWS, request_starts

Places = npt.NDArray[np.int64]


def whole_requests(stream: Iterable[Examples]) -> Iterator[tuple[Examples, ...]]:
    """The same rows in the same order: one part with whole requests, or all parts of one request.

    A request of more than MOST_ROWS rows, whose order nobody judges, may come as several: memory is bounded.
    """
    held: list[Examples] = []
    for examples in stream:
        ids = examples.requests
        if not ids.size:
            yield (examples,)
            continue
        starts = np.flatnonzero(ids[1:] != ids[:-1]) + 1
        if held and not _continues(held, examples):
            yield tuple(held)
            held = []
        if held and starts.size:
            yield (*held, examples.part(0, int(starts[0])))
            held, examples, starts = [], examples.part(int(starts[0])), starts[1:] - starts[0]
        if not held and starts.size:
            yield (examples.part(0, int(starts[-1])),)
            examples = examples.part(int(starts[-1]))
        held.append(examples)
    if held:
        yield tuple(held)


def _continues(held: list[Examples], examples: Examples) -> bool:
    """Whether the examples begin with more rows of the request that is held."""
    last = held[-1]
    same = last.requests[-1] == examples.requests[0] and last.stop.number == examples.stop.number
    return bool(same) and sum(each.requests.size for each in held) <= MOST_ROWS


def twice(examples: Examples) -> tuple[Examples, Places, Places]:
    """Each request's rows with weight 0, then as they are; the places of the first and of the second ones."""
    rows, size = examples.hashed, int(examples.requests.size)
    starts = np.flatnonzero(request_starts(examples.requests))
    sizes = np.diff(starts, append=size)
    ahead = np.arange(size) + np.repeat(starts, sizes)
    own = ahead + np.repeat(sizes, sizes)
    of_row = np.empty(2 * size, np.int64)
    of_row[ahead] = of_row[own] = np.arange(size)
    weights = np.zeros(2 * size)
    weights[own] = rows.weights if rows.weights.size else 1.0
    keys = np.diff(rows.starts)[of_row]
    begins = np.concatenate([[0], np.cumsum(keys)])
    keys_at = np.arange(begins[-1]) + np.repeat(rows.starts[of_row] - begins[:-1], keys)
    hashed = HashedRows(
        begins,
        rows.hashes[keys_at],
        rows.features[keys_at],
        rows.x[keys_at] if rows.x.size else rows.x,
        rows.labels[of_row],
        weights,
    )
    times = examples.times[of_row] if examples.times.size else examples.times
    repeated = replace(examples, rows=examples.rows[of_row], hashed=hashed, times=times)
    return repeated, ahead, own
