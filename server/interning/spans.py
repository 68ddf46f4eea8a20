"""Sorting byte strings that lie in one array, many at a time and without a Python object for each."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from server.interning.kernels import WORD_BYTES, words_at

Array = npt.NDArray[Any]


def sorted_spans(data: Array, spans: Array) -> Array:
    """The rows of distinct `spans` (int64[n, 2]: begin and end in `data`, uint8) in the order of their bytes.

    Sorts by the first seven bytes as one number, then what is tied by the next seven, and so on. O(n log n) for each
    seven bytes that ties are long.
    """
    place = np.zeros(len(spans), np.int64)  # of each row: that of the first one it is tied with
    tied, depth = np.arange(len(spans)), 0
    while len(tied):
        words = np.empty(len(tied), np.uint64)
        words_at(data, spans, tied, depth, words)
        order = np.lexsort((words, place[tied]))
        tied, words = tied[order], words[order]
        before = place[tied]
        begins = np.flatnonzero(_changes(before) | _changes(words))
        sizes = np.diff(np.append(begins, len(tied)))
        # What came before in the same old tie moves a new tie on; its size is told by the places within the old one.
        first_of_old = np.maximum.accumulate(np.where(_changes(before), np.arange(len(tied)), 0))
        place[tied] = before + np.repeat(begins, sizes) - first_of_old
        tied = tied[np.repeat(sizes > 1, sizes)]
        depth += WORD_BYTES
    rows = np.empty(len(spans), np.int64)
    rows[place] = np.arange(len(spans))
    return rows


def _changes(numbers: Array) -> Array:
    """True where a number differs from the one before it, and for the first."""
    found: Array = np.concatenate([[True], numbers[1:] != numbers[:-1]])
    return found
