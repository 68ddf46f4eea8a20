"""How often people look at each position of a list, from a log of items at positions and their clicks.

The position-based click model: P(click) = θ(position) · γ(item), θ relative to the first position. Two estimates:

- of all rows: θ and γ that make the clicks most likely, each in turn given the other (the EM of Richardson et al., WWW
  2007, and Chuklin et al., 2015, in its limit for rare clicks, a Poisson likelihood, which many items with few clicks
  each do not bias);
- of swaps: for each pair of positions the click rates of the items that were shown at both (intervention harvesting,
  AllPairs: Agarwal et al., WSDM 2019; items weighted as by Mantel and Haenszel, 1959); only of rows that exploration
  drew, if the log has propensities below 1.

Both need items that were shown at several positions for other reasons than how good they are to that user.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MOST_CELLS = 1 << 20
"""Of an item at a position; if there are more, every second item is dropped, as often as needed."""
FEWEST_CLICKS = 30
"""Of a position whose θ is estimated."""
MOST_POSITIONS = 50
_ROUNDS, _STOPS_AT = 500, 1e-6
_PARTS, _Z = 40, 1.96
"""Into how many parts the items are divided to estimate how far θ may be wrong; 95 % of a normal distribution."""

Interval = tuple[float, float, float]
"""An estimate, and the ends of its interval."""


@dataclass(frozen=True)
class Examined:
    """One position. theta, swaps: by all rows and by swaps, relative to the first, each with its 95 % interval.

    swaps: None where no item was shown at this position and at another.
    """

    position: int
    views: float
    clicks: float
    theta: Interval
    swaps: Interval | None


class ItemPositions:
    """Counts items at positions. Memory: MOST_CELLS of 40 bytes, and a batch."""

    def __init__(self) -> None:
        self._cells = np.zeros((0, 4))
        self._items = np.zeros(0, np.uint64)
        self._parts: list[tuple[npt.NDArray[np.uint64], Floats]] = []
        self._waiting = self._level = 0

    def add(self, items: npt.NDArray[np.uint64], place: Ints, drawn: Any, views: Any, clicks: Any) -> None:
        """Rows: hashes of items; positions; whether exploration drew the row; views and clicks."""
        kept = (items != 0) & (items & np.uint64((1 << self._level) - 1) == 0)
        kept &= (place >= 1) & (place <= MOST_POSITIONS)
        self._parts.append((items[kept], np.stack([place, drawn, views, clicks], 1)[kept].astype(np.float64)))
        self._waiting += int(np.count_nonzero(kept))
        if self._waiting > MOST_CELLS:
            self._merge()

    def _merge(self) -> None:
        items = np.concatenate([self._items, *(part for part, _ in self._parts)])
        cells = np.concatenate([self._cells, *(part for _, part in self._parts)])
        self._parts, self._waiting = [], 0
        while True:
            order = np.lexsort((cells[:, 1], cells[:, 0], items))
            items, cells = items[order], cells[order]
            if not items.size:
                break
            new = np.ones(items.size, np.bool_)
            new[1:] = (items[1:] != items[:-1]) | (cells[1:, :2] != cells[:-1, :2]).any(1)
            first = np.flatnonzero(new)
            items, cells = items[first], np.hstack([cells[first, :2], np.add.reduceat(cells[:, 2:], first)])
            if items.size <= MOST_CELLS:
                break
            self._level += 1
            kept = items & np.uint64((1 << self._level) - 1) == 0
            items, cells = items[kept], cells[kept]
        self._items, self._cells = items, cells

    def examined(self) -> tuple[Examined, ...]:
        """The positions with enough clicks that can be compared with the first of them; empty if there are not two."""
        self._merge()
        place, drawn, views, clicks = self._cells.T
        clicked = np.bincount(place.astype(np.int64), clicks, 1)
        enough = np.flatnonzero(clicked >= FEWEST_CLICKS)
        if enough.size < 2:
            return ()
        column = np.full(clicked.size, -1)
        column[enough] = np.arange(enough.size)
        shape = (enough.size, column[place.astype(np.int64)], self._items)
        everything = _table(*shape, views, clicks)
        comparable = _connected(everything)
        if comparable.size < 2:
            return ()
        theta = _by_all(everything[:, :, comparable])
        of_drawn = _table(*shape, views * drawn, clicks * drawn) if drawn.any() else everything
        both = _connected(of_drawn)
        swaps = (
            dict(zip(both.tolist(), _by_swaps(of_drawn[:, :, both]), strict=True)) if both.size > 1 else {}
        )
        shown = np.bincount(place.astype(np.int64), views)
        return tuple(
            Examined(
                int(enough[at]), float(shown[enough[at]]), float(clicked[enough[at]]), each, swaps.get(at)
            )
            for at, each in zip(comparable.tolist(), theta, strict=True)
        )


def _table(places: int, column: Ints, items: npt.NDArray[np.uint64], views: Floats, clicks: Floats) -> Floats:
    """[2, items, places]: views and clicks of the items with a click that were shown at two places or more."""
    used = (column >= 0) & (views > 0.0)
    _, row = np.unique(items[used], return_inverse=True)
    useful = (np.bincount(row) > 1) & (np.bincount(row, clicks[used]) > 0.0)
    number = np.cumsum(useful) - 1
    kept = useful[row]
    table = np.zeros((2, int(useful.sum()), places))
    for counts, of in zip(table, (views, clicks), strict=True):
        np.add.at(counts, (number[row[kept]], column[used][kept]), of[used][kept])
    return table


def _connected(table: Floats) -> Ints:
    """The places with clicks that items shown at both connect with the first one; none if that has no click."""
    shown, clicked = table[0] > 0.0, table[1].sum(0) > 0.0
    beside = (shown.T.astype(np.float64) @ shown > 0.0) & clicked & clicked[:, None]
    reached = clicked & (np.arange(clicked.size) == 0)
    for _ in range(clicked.size):
        reached |= beside[reached].any(0)
    return np.flatnonzero(reached)


def _fitted(table: Floats, theta: Floats) -> Floats:
    """θ of most likelihood, from a first guess. table: [2, items, places]."""
    views, clicks = table
    of_item, of_place = clicks.sum(1), clicks.sum(0)
    for _ in range(_ROUNDS):
        rate = of_item / np.maximum(views @ theta, 1e-300)
        before, theta = theta, of_place / np.maximum(rate @ views, 1e-300)
        theta /= max(theta[0], 1e-300)
        if np.abs(theta - before).max() < _STOPS_AT:
            break
    return theta


def _of_pairs(table: Floats) -> Floats:
    """[2, pairs, places]: each pair of places as an item, of what the items that were shown at both tell of it."""
    views, clicks = table
    one, other = np.triu_indices(views.shape[1], 1)
    pairs = np.zeros((2, one.size, views.shape[1]))
    for pair, (at, against) in enumerate(zip(one.tolist(), other.tolist(), strict=True)):
        weight = views[:, against] / np.maximum(views[:, at] + views[:, against], 1.0)
        pairs[0, pair, [at, against]] = weight @ views[:, at]
        pairs[1, pair, at] = weight @ clicks[:, at]
        pairs[1, pair, against] = (1.0 - weight) @ clicks[:, against]
    return pairs


def _with_interval(estimate: Callable[[int, Floats], Floats], places: int) -> list[Interval]:
    """θ with its interval by the jackknife. estimate: without the items of a part (-1: of none), from a first guess."""
    theta = estimate(-1, np.ones(places))
    others = [np.log(np.maximum(estimate(part, theta), 1e-300)) for part in range(_PARTS)]
    spread = np.exp(_Z * np.sqrt((_PARTS - 1) * np.var(others, 0)))
    return list(zip(theta.tolist(), (theta / spread).tolist(), (theta * spread).tolist(), strict=True))


def _by_all(table: Floats) -> list[Interval]:
    part = np.arange(table.shape[1]) % _PARTS
    return _with_interval(lambda left, theta: _fitted(table[:, part != left], theta), table.shape[2])


def _by_swaps(table: Floats) -> list[Interval]:
    pairs = np.array([_of_pairs(table[:, part::_PARTS]) for part in range(_PARTS)])
    whole = pairs.sum(0)
    return _with_interval(
        lambda left, theta: _fitted(whole if left < 0 else whole - pairs[left], theta), table.shape[2]
    )


def fragment(examined: Sequence[Examined], column: str) -> str:
    """The lines of a spec's [input] that learn clicks with these examinations; by swaps where there are some."""
    best = {each.position: (each.swaps or each.theta)[0] for each in examined}
    last, values = 1.0, list[float]()
    for position in range(1, max(best) + 1):  # one without an estimate has that of the position before it
        last = best.get(position, last)
        values.append(last)
    return f'position = "{column}"\nexamination = [{", ".join(f"{each:.3g}" for each in values)}]'
