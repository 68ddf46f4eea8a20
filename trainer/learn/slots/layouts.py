"""The layouts of a slot, one for each of `values`, `precision` and `rate`. docs/table.md draws them.

Each is a NamedTuple of arrays, so that numba compiles a learner once for each layout in use; `state.py` and `search.py`
implement the operations. seen: the number of the example (from 1) that touched the key last; seed: of the random bits
in unbiased rounding.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

_KEY = ("key", np.uint64)
_SEEN = ("seen", np.uint64)
_COUNTS = [("clicked", np.uint32), ("unclicked", np.uint32)]


class Full(NamedTuple):
    """One float64 value and the sum of squared gradients: 32 bytes."""

    slots: Any


class FullCounts(NamedTuple):
    """One float64 value and the counts of examples with a click and without: 32 bytes."""

    slots: Any


class Compact(NamedTuple):
    """A q2.13 value and 48 bits of a float64 sum of squared gradients in one word: 16 bytes, 24 with `seen`."""

    slots: Any
    seed: Any


class CompactCounts(NamedTuple):
    """A q2.13 value and two 24-bit counts in one word: 16 bytes, 24 with `seen`."""

    slots: Any
    seed: Any


class Own(NamedTuple):
    """Each variant has a float64 value and a sum of squared gradients: z and n are float64[slots, variants]."""

    slots: Any
    z: Any
    n: Any


class OwnCounts(NamedTuple):
    """Each variant has a float64 value, z float64[slots, variants]; they share the counts."""

    slots: Any
    z: Any


class OwnCompact(NamedTuple):
    """Each variant has a word of a q2.13 value and 48 bits of a sum: words uint64[slots, variants]."""

    slots: Any
    words: Any
    seed: Any


class OwnCompactCounts(NamedTuple):
    """Each variant has a q2.13 value, q int16[slots, variants]; they share the counts."""

    slots: Any
    q: Any
    seed: Any


COMPACT = (Compact, CompactCounts)
OWN = (Own, OwnCounts, OwnCompact, OwnCompactCounts)

_FIELDS: dict[type, list[tuple[str, Any]]] = {
    Full: [_KEY, ("z", np.float64), ("n", np.float64), _SEEN],
    FullCounts: [_KEY, ("z", np.float64), *_COUNTS, _SEEN],
    Compact: [_KEY, ("state", np.uint64)],
    CompactCounts: [_KEY, ("state", np.uint64)],
    Own: [_KEY, _SEEN],
    OwnCounts: [_KEY, *_COUNTS, _SEEN],
    OwnCompact: [_KEY, _SEEN],
    OwnCompactCounts: [_KEY, *_COUNTS, _SEEN],
}


def slot_type(layout: type, seen: bool) -> np.dtype[Any]:
    """The dtype of a layout's slots; compact ones have `seen` only if requested."""
    fields = _FIELDS[layout]
    return np.dtype([*fields, _SEEN] if seen and layout in COMPACT else fields, align=True)


def layout_of(values: str, precision: str, rate: str) -> type:
    """The layout for the spec's `values`, `precision` and `rate`."""
    counts = rate == "counts"
    if values == "per_variant":
        if precision == "q2.13":
            return OwnCompactCounts if counts else OwnCompact
        return OwnCounts if counts else Own
    if precision == "q2.13":
        return CompactCounts if counts else Compact
    return FullCounts if counts else Full
