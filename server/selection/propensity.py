"""Propensities: the chance that a request under Thompson sampling returns a candidate, over all draws it could make.

Without caps it is an integral: over the value that the candidate may come to, of the chance that fewer than `top`
others lie before it, whose number is Poisson-binomial because all are drawn independently. With caps it is counted in
simulated draws. docs/ranking.md tells how exact each is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from server.selection.caps import Groups
from server.selection.kernels import chances, chances_by_moments, tails

Array = npt.NDArray[Any]
Valued = Callable[[Array], Array]
"""From moved scores, float64[draws, candidates], to what candidates are ordered by, in the same shape."""

WIDEST = 8.0  # standard deviations; beyond it lies 1e-15
NODES = 129
CELLS = 96
MAX_ATOMS = 128
EXACT_UP_TO = 400_000
"""Candidates · top, from which on the number before a candidate is taken as nearly normal."""
MOST_POOLED = 100_000

MAX_DRAWS = 1024
MIN_DRAWS = 64
DRAWN_NUMBERS = 400_000

_Z = np.linspace(-WIDEST, WIDEST, NODES)
_BELOW = np.array([0.0, *(0.5 * math.erfc(-z / math.sqrt(2.0)) for z in _Z[1:-1].tolist()), 1.0])
_WEIGHT = np.diff(0.5 * (_BELOW[1:] + _BELOW[:-1]), prepend=0.0, append=1.0)


def integrated(score: Array, deviation: Array, valued: Valued, chosen: Array, top: int) -> Array:
    """The chance of each of the `chosen` (int64) to be among the first `top` < candidates, float64.

    score, deviation float64[candidates]. O(candidates · (cells · top + nodes · log cells)).
    """
    values = np.ascontiguousarray(valued(score + deviation * _Z[:, None]).T)
    borders, nodes, atoms = _points(values, top)
    points = np.concatenate([borders, nodes, atoms])
    order = np.argsort(points, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    above, at_least = np.zeros((2, len(points), len(score)))
    tails(values, _Z, _BELOW, points[order], above, at_least)
    ordered = np.argsort(chosen)
    asked = chosen[ordered].astype(np.int64)
    of_borders, of_atoms = np.split(place, [len(borders), len(borders) + len(nodes)])[::2]
    own = at_least[of_atoms][:, asked] - above[of_atoms][:, asked]
    cells = _masses(above[of_borders][:, asked], own, borders, atoms)
    mass = np.maximum(np.concatenate([cells, own]), 0.0)
    out, result = np.zeros(len(asked)), np.empty(len(asked))
    arguments = above, at_least, place[len(borders) :], mass, asked, top
    if len(score) * top <= EXACT_UP_TO:
        chances(*arguments, np.empty((len(asked), top)), np.empty(top), out)
    else:
        chances_by_moments(*arguments, out)
    result[ordered] = np.minimum(out, 1.0)
    return result


def _points(values: Array, top: int) -> tuple[Array, Array, Array]:
    """Borders of cells, descending; a node for each cell, where its chances are taken; and the atoms.

    There are a cell above the first border and one below the last. An atom is a border as well, because the number of
    candidates before one jumps there.
    """
    ends = _evenly(values, top)
    atoms = _atoms(values, ends[-1])
    borders = np.unique(np.concatenate([ends[::2], atoms]))[::-1]
    odd = ends[1::2]
    inside = odd[np.minimum(np.searchsorted(-odd, -borders[:-1], side="right"), len(odd) - 1)]
    middle = 0.5 * borders[:-1] + 0.5 * borders[1:]
    kept = (inside > borders[1:]) & (inside < borders[:-1])
    return borders, np.concatenate([borders[:1], np.where(kept, inside, middle), borders[-1:]]), atoms


def _evenly(values: Array, top: int) -> Array:
    """2 · CELLS + 1 values, descending: more of them where the top-th of all candidates is likely to lie.

    With M(t) candidates above t on average, their number is nearly Poisson, and its square root has a deviation of
    1/2 wherever t lies. So the values are those where the square root of M rises evenly, to well past that of `top`.
    """
    step = max(1, math.ceil(values.size / MOST_POOLED))
    pooled, weight = values[:, ::step].ravel(), np.tile(_WEIGHT[::step], len(values))
    order = np.argsort(-pooled, kind="stable")
    rising = np.cumsum(weight[order]) * (len(values) / weight.sum())
    most = min(math.sqrt(len(values)), math.sqrt(top) + 4.0)
    return np.interp(np.linspace(0.0, most, 2 * CELLS + 1) ** 2, rising, pooled[order])


def _atoms(values: Array, least: float) -> Array:
    """Values from `least` on that some candidate takes with a chance of its own; the likeliest if there are many."""
    flat = (values[:, 1:] == values[:, :-1]) & (values[:, 1:] >= least)
    if not flat.any():
        return np.empty(0)
    found, number = np.unique(values[:, 1:][flat], return_inverse=True)
    mass = np.bincount(number, np.broadcast_to(np.diff(_BELOW), flat.shape)[flat])
    return found[np.sort(np.argsort(-mass, kind="stable")[:MAX_ATOMS])]


def _masses(above: Array, own: Array, borders: Array, atoms: Array) -> Array:
    """The chance of each chosen candidate to come to each cell, its atoms apart: float64[cells, chosen]."""
    nothing = np.zeros((1, above.shape[1]))
    cells = np.diff(np.concatenate([nothing, above, nothing + 1.0]), axis=0)
    # Cell c is what lies in (borders[c], borders[c - 1]]: an atom that is a border belongs to the cell below it.
    np.subtract.at(cells, np.searchsorted(-borders, -atoms, side="left") + 1, own)
    return cells


def simulated(
    score: Array, deviation: Array, valued: Valued, chosen: Array, top: int, groups: Groups, seed: int
) -> Array:
    """The part of simulated draws, and of the one that was made, in which each of the `chosen` is returned."""
    draws = min(MAX_DRAWS, max(MIN_DRAWS, DRAWN_NUMBERS // len(score)))
    moves = np.random.Generator(np.random.Philox(seed)).standard_normal((draws, len(score)))
    orders = np.argsort(-valued(score + deviation * moves), axis=1, kind="stable")
    hits = groups.count_taken(orders, top)[chosen]
    return (hits + 1.0) / (draws + 1.0)
