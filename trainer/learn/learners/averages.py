"""Averaged variants: the average of another variant's weights over the examples so far.

Polyak and Juditsky, "Acceleration of Stochastic Approximation by Averaging" (SIAM J. Control Optim. 1992).

With w_s the weight of the variant that is averaged, after example s, and 0 before the key is in the table, the weight
after t examples is

    uniform       (w_1 + ... + w_t) / t
    half-life H   (1 - d) (w_t + d w_(t-1) + d^2 w_(t-2) + ...), d = 2^(-1/H): an example counts half as much as one H
                  examples later

A coordinate stores c, which says how far the average is behind w: average = w - gap. While w does not change,

    uniform       t gap_t stays the same: it is c
    half-life H   gap_t = d gap_(t-1): c is the gap at the last touch, and `seen` tells when that was

so an average is exact and only touched with its key. That needs a variant whose untouched weights stay: of FTRL, or OGD
without penalties. The average's a is c, its n is not used; it predicts, but does not learn.

Oracle: `tests/trainer/oracles/dense.py`, which averages all weights at every example.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from model_store.jit import bare_inline, implements, stub
from trainer.learn.learners.fobos import powers
from trainer.learn.slots.state import put, seen_at, value_of


class NoAverages(NamedTuple):
    """No variant is an average."""


class Averages(NamedTuple):
    """of: int64[variants], the variant that each averages, -1 if it learns; keep: float64[variants], d, 0: uniform."""

    of: Any
    keep: Any


@bare_inline
def gap(averages: Any, v: Any, c: Any, seen: Any, t: Any) -> Any:
    """How far average v is behind before example t."""
    if c == 0.0:
        return c
    if averages.keep[v] == 0.0:
        return c / (t - 1)
    return c * powers(averages.keep[v], t - 1 - seen)[0]


@stub
def has_averages(averages: Any) -> Any:
    """True if a variant is an average."""


@stub
def add_averages(
    averages: Any, table: Any, slot: Any, uses: Any, c: Any, w: Any, first: Any, x: Any, scores: Any, t: Any
) -> Any:
    """Add a key of class c to the scores of averages; w[first + v]: variant v's own weight before example t."""


@stub
def update_averages(
    averages: Any, table: Any, slot: Any, uses: Any, c: Any, w: Any, new: Any, first: Any, t: Any
) -> Any:
    """Follow the weights of a key of class c, w before and new after example t; to be called before `seen` is set."""


@stub
def put_averages(averages: Any, table: Any, slot: Any, t: Any, out: Any, index: Any) -> Any:
    """Replace the weights in out[index], one per variant, of averages, with those before example t."""


@stub
def copy_to_averages(averages: Any, out: Any, index: Any) -> Any:
    """Give averages in out[index] what the variants have that they average."""


@implements(has_averages, NoAverages)
def _no(averages: Any) -> Any:
    return False


@implements(add_averages, NoAverages)
def _add_nothing(
    averages: Any, table: Any, slot: Any, uses: Any, c: Any, w: Any, first: Any, x: Any, scores: Any, t: Any
) -> Any:
    pass


@implements(update_averages, NoAverages)
def _update_nothing(
    averages: Any, table: Any, slot: Any, uses: Any, c: Any, w: Any, new: Any, first: Any, t: Any
) -> Any:
    pass


@implements(put_averages, NoAverages)
def _put_nothing(averages: Any, table: Any, slot: Any, t: Any, out: Any, index: Any) -> Any:
    pass


@implements(copy_to_averages, NoAverages)
def _copy_nothing(averages: Any, out: Any, index: Any) -> Any:
    pass


@implements(has_averages, Averages)
def _yes(averages: Any) -> Any:
    return True


@implements(add_averages, Averages)
def _add(
    averages: Any, table: Any, slot: Any, uses: Any, c: Any, w: Any, first: Any, x: Any, scores: Any, t: Any
) -> Any:
    for v in range(averages.of.size):
        of = averages.of[v]
        if of >= 0 and uses[c, of] != 0.0:
            behind = gap(averages, v, value_of(table, slot, v), seen_at(table, slot), t)
            scores[v] += (w[first + of] - behind) * x


@implements(update_averages, Averages)
def _update(
    averages: Any, table: Any, slot: Any, uses: Any, c: Any, w: Any, new: Any, first: Any, t: Any
) -> Any:
    for v in range(averages.of.size):
        of = averages.of[v]
        if of >= 0 and uses[c, of] != 0.0:
            moved, held = new[first + of] - w[first + of], value_of(table, slot, v)
            if averages.keep[v] == 0.0:
                held += (t - 1) * moved
            else:
                held = averages.keep[v] * (gap(averages, v, held, seen_at(table, slot), t) + moved)
            put(table, slot, v, held, 0.0, t)


@implements(put_averages, Averages)
def _put(averages: Any, table: Any, slot: Any, t: Any, out: Any, index: Any) -> Any:
    for v in range(averages.of.size):
        of = averages.of[v]
        if of >= 0:
            behind = gap(averages, v, value_of(table, slot, v), seen_at(table, slot), t)
            out[index, v] = out[index, of] - behind


@implements(copy_to_averages, Averages)
def _copy(averages: Any, out: Any, index: Any) -> Any:
    for v in range(averages.of.size):
        if averages.of[v] >= 0:
            out[index, v] = out[index, averages.of[v]]
