"""Exploration: scores are moved by the model's uncertainty, and each returned item gets its propensity.

How scores move depends on the request's id alone. A propensity is the chance that a request under Thompson sampling
returns a candidate, over all draws that it could make. Without caps it is an integral: over the value that the
candidate may take, of the chance that fewer than `top` others come before it, whose number is Poisson-binomial because
all are drawn independently. With caps it is counted in simulated draws. docs/ranking.md says how exact each is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from model_store.normal_kernels import normal_cdfs
from model_store.versions.experiments import Explore
from server.ranking.select.filters import Groups
from server.ranking.select.select_kernels import chances, chances_by_moments, draw_normals, tails

Array = npt.NDArray[Any]

FARTHEST = 1e100


@dataclass(frozen=True)
class Exploration:
    """How scores are moved: raised by `width` uncertainties, or with `is_drawn` (Thompson sampling) drawn.

    They are drawn from N(score, (width · uncertainty)²), each independently of the others. A draw is a function of the
    request's id and the candidate's: it does not depend on the order of candidates or on which of them the catalogue
    knows. A candidate that is named twice is drawn twice.
    """

    width: float
    is_drawn: bool
    budget: Explore | None = None
    """Of an experiment: what exploration may cost, and the places of new items. None: every request explores."""

    def explored(self, score: Array, uncertainty: Array, ids: Sequence[str], request_id: str) -> Array:
        """float64[candidates]."""
        moved = moves(self.width, uncertainty)
        found: Array = score + (moved * normals(request_id, ids) if self.is_drawn else moved)
        return found


def moves(width: float, uncertainty: Array) -> Array:
    """The distance of one standard deviation, or of the bound, from each score. Finite for every width."""
    with np.errstate(over="ignore"):
        # A draw is at most 8.6 standard deviations (Box and Muller, 53 bits): moved scores stay far below
        # `selection.LARGEST`.
        bounded: Array = np.minimum(uncertainty * width, FARTHEST)
    return bounded


def normals(request_id: str, ids: Sequence[str]) -> Array:
    """A standard normal number for each id, float64: the same for the same request. O(bytes of the ids)."""
    texts = [item_id.encode("utf-8", "surrogatepass") for item_id in ids]
    offsets = np.array([0, *accumulate(map(len, texts))], np.int64)
    draws = np.empty(len(ids))
    data = np.frombuffer(bytearray(b"".join(texts)), np.uint8)
    draw_normals(data, offsets, _repeats(ids), seeds(request_id), draws)
    return draws


def seeds(request_id: str) -> Array:
    """uint64[2]: the seeds of a request's draws."""
    return np.frombuffer(bytearray(_digest(request_id)), "<u8").astype(np.uint64)


def seed(request_id: str) -> int:
    """The first of them as a kernel takes it quickest: with a sign."""
    return int.from_bytes(_digest(request_id)[:8], "little", signed=True)


def _digest(request_id: str) -> bytes:
    return blake2b(request_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def uniforms(request_id: str, ids: Sequence[str]) -> Array:
    """A number in [0, 1] for each id, float64: whether a new item is promoted. Independent of `normals`."""
    found = np.empty(len(ids))
    normal_cdfs(normals(f"{request_id}\0promoted", ids), found)
    return found


def coin(request_id: str) -> float:
    """A number in [0, 1): whether a request explores. Independent of its other draws."""
    digest = blake2b(request_id.encode("utf-8", "surrogatepass"), digest_size=8, person=b"explore").digest()
    return int.from_bytes(digest, "big") / 2.0**64


def promotions(evidence: Array, budget: Explore, top: int) -> Array | None:
    """The chance of each candidate to get one of the `top` places by being new, float64; None where none is new.

    It falls in a straight line to 0 as the evidence reaches `budget.new_below`. All together get `budget.new_share` of
    the places on average, if there are as many new items, else a place each.
    """
    fading = np.maximum(0.0, 1.0 - evidence / budget.new_below) if budget.new_share else np.zeros(1)
    total = float(fading.sum())
    return fading * min(1.0, budget.new_share * top / total) if total > 0.0 else None


def _repeats(ids: Sequence[str]) -> Array:
    """How many times each id occurs earlier in the list, uint64."""
    repeats = np.zeros(len(ids), np.uint64)
    if len(set(ids)) < len(ids):
        seen: Counter[str] = Counter()
        for at, item_id in enumerate(ids):
            repeats[at] = seen[item_id]
            seen[item_id] += 1
    return repeats


Valued = Callable[[Array], Array]
"""From moved scores, float64[draws, candidates], to the values that order candidates, in the same shape."""

WIDEST = 8.0  # standard deviations; the chance of more is 1e-15
MOST_NODES, LEAST_NODES = 257, 129
NODES_OF_ALL = 130_000
CELLS = 96
MAX_ATOMS = 128
MOST_KINKS, HALVINGS = 16, 8
"""How many ends of stretches on which a candidate's value is constant are found, and how often a cell is halved."""
EXACT_UP_TO = 400_000
"""Candidates · top. Above it the number of candidates before one is approximated as nearly normal."""
MOST_POOLED = 20_000

MAX_DRAWS = 1024
MIN_DRAWS = 64
DRAWN_NUMBERS = 400_000


class _Grid(NamedTuple):
    """Nodes z of a standard normal number, the chance below each, and the chance near each."""

    z: Array
    below: Array
    weight: Array


@lru_cache
def _grid(nodes: int) -> _Grid:
    z = np.linspace(-WIDEST, WIDEST, nodes)
    inner = [0.5 * math.erfc(-each / math.sqrt(2.0)) for each in z[1:-1].tolist()]
    below = np.array([0.0, *inner, 1.0])
    return _Grid(z, below, np.diff(0.5 * (below[1:] + below[:-1]), prepend=0.0, append=1.0))


def integrated(
    score: Array,
    deviation: Array,
    valued: Valued,
    chosen: Array,
    top: int,
    exact_up_to: int = EXACT_UP_TO,
    promoted: Array | None = None,
) -> Array:
    """The chance of each of the `chosen` (int64) to be among the first `top` < candidates, float64.

    score, deviation float64[candidates]. promoted: the chance of each, float64, to come before all that are not,
    whatever their scores. O(candidates · (cells · top + nodes · log cells)).
    """
    # A finer grid for few candidates, where one with a clipped or non-monotonic objective has more influence.
    grid = _grid(MOST_NODES if len(score) * MOST_NODES <= NODES_OF_ALL else LEAST_NODES)
    values = np.ascontiguousarray(valued(score + deviation * grid.z[:, None]).T)
    points = _points(values, grid, top)
    above, at_least = np.zeros((2, len(points.value), len(score)))
    z, below = (np.tile(each, (len(score), 1)) for each in (grid.z, grid.below))
    _move_to_kinks(score, deviation, valued, values, z, below)
    tails(values, z, below, points.value, above, at_least)
    # The kernels go through the candidates once, so that the chosen ones must ascend.
    ordered = np.argsort(chosen)
    asked = chosen[ordered]
    mass = _masses(points, above[:, asked], at_least[:, asked])
    places = np.concatenate([points.nodes, points.atoms])
    result = np.empty(len(asked))
    result[ordered] = _levels(above, at_least, places, mass, asked, top, exact_up_to, promoted)
    return result


def in_order(order: Array, chosen: Array, top: int, promoted: Array) -> Array:
    """The same where no score moves: int64[candidates], the best first, but for those that are promoted."""
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    ascending = np.argsort(chosen)
    asked = chosen[ascending]
    before = (rank[None, :] < rank[asked, None]).astype(np.float64)
    result = np.empty(len(asked))
    places, mass = np.arange(len(asked)), np.eye(len(asked))
    result[ascending] = _levels(before, before, places, mass, asked, top, EXACT_UP_TO, promoted)
    return result


def _levels(
    above: Array,
    at_least: Array,
    places: Array,
    mass: Array,
    asked: Array,
    top: int,
    exact_up_to: int,
    promoted: Array | None,
) -> Array:
    """The chances of the candidates `asked`, which ascend, from those of all to lie above each point.

    One that is promoted has only the promoted ones above it that lie above its value, one that is not has all promoted
    ones. All are promoted independently, so that the number before a candidate stays Poisson-binomial.
    """
    levels = [(above, at_least, mass)]
    if promoted is not None:
        below = 1.0 - promoted
        levels = [
            (promoted + below * above, promoted + below * at_least, mass * below[asked]),
            (promoted * above, promoted * at_least, mass * promoted[asked]),
        ]
    out = np.zeros(len(asked))
    for over, equal, share in levels:
        arguments = over, equal, places, np.ascontiguousarray(share), asked, top
        if above.shape[1] * top <= exact_up_to:
            chances(*arguments, np.empty((len(asked), top)), np.empty(top), out)
        else:
            chances_by_moments(*arguments, out)
    return np.minimum(out, 1.0)


def _move_to_kinks(
    score: Array, deviation: Array, valued: Valued, values: Array, z: Array, below: Array
) -> None:
    """Move the outermost nodes of each stretch on which a value is constant to where it begins and ends.

    A straight line from the last node before a clip to the first behind it would take half a cell's chance from the
    value that many candidates share, which is several times what `CELLS` costs. Changes z and below.
    """
    flat = np.zeros((len(z), z.shape[1] + 1), bool)
    flat[:, 1:-1] = values[:, 1:] == values[:, :-1]
    first, last = flat[:, 1:] & ~flat[:, :-1], flat[:, :-1] & ~flat[:, 1:]
    first[:, 0] = last[:, -1] = False
    row, node = np.nonzero(first | last)
    # A node may end one stretch and begin another only if both have the same value: then they are one.
    slot = np.arange(len(row)) - np.searchsorted(row, row)
    kept = slot < MOST_KINKS
    row, node, slot = row[kept], node[kept], slot[kept]
    if not len(row):
        return
    target, inside = values[row, node], z[row, node]
    outside = z[row, node + np.where(first[row, node], -1, 1)]
    tried = np.zeros((slot.max() + 1, len(score)))
    for _ in range(HALVINGS):
        middle = 0.5 * (inside + outside)
        tried[slot, row] = middle
        is_flat = valued(score + deviation * tried)[slot, row] == target
        inside, outside = np.where(is_flat, middle, inside), np.where(is_flat, outside, middle)
    z[row, node] = inside
    below[row, node] = [0.5 * math.erfc(-each / math.sqrt(2.0)) for each in inside.tolist()]


class _Points(NamedTuple):
    """Values in ascending order, and the indices (int64, the greatest first) of each kind.

    borders of cells; nodes, one for each cell, where its chances are taken; atoms. There are a cell above the first
    border and one below the last. An atom is a border as well: the number of candidates before one jumps there.
    """

    value: Array
    borders: Array
    nodes: Array
    atoms: Array


def _points(values: Array, grid: _Grid, top: int) -> _Points:
    ends = _evenly(values, grid, top)
    atoms = _atoms(values, grid, ends[-1], ends[0])
    borders = np.unique(np.concatenate([ends[::2], atoms]))[::-1]
    odd = ends[1::2]
    inside = odd[np.minimum(np.searchsorted(-odd, -borders[:-1], side="right"), len(odd) - 1)]
    middle = 0.5 * borders[:-1] + 0.5 * borders[1:]
    within = np.where((inside > borders[1:]) & (inside < borders[:-1]), inside, middle)
    # The outer cells are beyond their borders, which may be atoms: at the atom itself a candidate has equals.
    nodes = np.concatenate([np.nextafter(borders[:1], np.inf), within, np.nextafter(borders[-1:], -np.inf)])
    everything = np.concatenate([borders, nodes, atoms])
    order = np.argsort(everything, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return _Points(everything[order], *np.split(place, [len(borders), len(borders) + len(nodes)]))


def _evenly(values: Array, grid: _Grid, top: int) -> Array:
    """2 · CELLS + 1 values, descending: more of them where the top-th of all candidates is likely to lie.

    With M(t) candidates above t on average, their number is nearly Poisson, and its square root has a deviation of
    1/2 wherever t lies. So the values are those where the square root of M rises evenly, to well past that of `top`;
    where most candidates are returned, the same is done from the other end.
    """
    if 2 * top > len(values):
        return -_evenly_from_the_best(-values, grid, len(values) - top)[::-1]
    return _evenly_from_the_best(values, grid, top)


def _evenly_from_the_best(values: Array, grid: _Grid, top: int) -> Array:
    step = max(1, math.ceil(values.size / MOST_POOLED))
    pooled, weight = values[:, ::step].ravel(), np.tile(grid.weight[::step], len(values))
    order = np.argsort(-pooled, kind="stable")
    rising = np.cumsum(weight[order]) * (len(values) / weight.sum())
    most = min(math.sqrt(len(values)), math.sqrt(top) + 4.0)
    return np.interp(np.linspace(0.0, most, 2 * CELLS + 1) ** 2, rising, pooled[order])


def _atoms(values: Array, grid: _Grid, least: float, most: float) -> Array:
    """Values between two bounds that some candidate takes with positive chance; the likeliest if there are many."""
    flat = (values[:, 1:] == values[:, :-1]) & (values[:, 1:] >= least) & (values[:, 1:] <= most)
    if not flat.any():
        return np.empty(0)
    found, number = np.unique(values[:, 1:][flat], return_inverse=True)
    mass = np.bincount(number, np.broadcast_to(np.diff(grid.below), flat.shape)[flat])
    return found[np.sort(np.argsort(-mass, kind="stable")[:MAX_ATOMS])]


def _masses(points: _Points, above: Array, at_least: Array) -> Array:
    """The chance that each chosen candidate falls in each cell, then on each atom: float64[cells + atoms, chosen]."""
    borders, atoms = points.value[points.borders], points.value[points.atoms]
    own = at_least[points.atoms] - above[points.atoms]
    nothing = np.zeros((1, above.shape[1]))
    cells = np.diff(np.concatenate([nothing, above[points.borders], nothing + 1.0]), axis=0)
    # Cell c is what lies in (borders[c], borders[c - 1]]: an atom that is a border belongs to the cell below it.
    np.subtract.at(cells, np.searchsorted(-borders, -atoms, side="left") + 1, own)
    mass: Array = np.maximum(np.concatenate([cells, own]), 0.0)
    return mass


def simulated(
    score: Array,
    deviation: Array,
    valued: Valued,
    chosen: Array,
    top: int,
    groups: Groups,
    seed: int,
    promoted: Array | None = None,
    made: Array | None = None,
) -> Array:
    """The share of simulated draws, with the one that was made, in which each of the `chosen` is returned.

    made: bool, which of them the draw that was made returns; by default all.
    """
    # Fewer draws of more candidates, so that the time is about the same.
    draws = min(MAX_DRAWS, max(MIN_DRAWS, DRAWN_NUMBERS // len(score)))
    random = np.random.Generator(np.random.Philox(seed))
    moves = random.standard_normal((draws, len(score)))
    orders = np.argsort(-valued(score + deviation * moves), axis=1, kind="stable")
    if promoted is not None:
        first = np.take_along_axis(random.random((draws, len(score))) < promoted, orders, 1)
        orders = np.take_along_axis(orders, np.argsort(~first, axis=1, kind="stable"), 1)
    hits = groups.count_taken(orders, top)[chosen]
    # The draw that was made counts too: no propensity is 0, since estimates divide by them.
    return np.asarray((hits + (1.0 if made is None else made)) / (draws + 1.0))
