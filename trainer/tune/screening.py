"""Which pairs of fields are worth trying as crosses, where there are too many to learn each.

A model without crosses predicts each tenth of the rows by those before it. What it leaves over is added up by the
pair's values on the first half of the rows, as one Newton step from 0 with a prior; the gain of that step on the second
half, to the second order, ranks the pairs. So a pair costs two sums over the rows instead of a variant that learns;
after FAST (Lou, Caruana, Gehrke & Hooker, "Accurate Intelligible Models with Pairwise Interactions", KDD 2013,
section 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from model_store.spec.spec import ModelSpec
from trainer.examples.hashing import ExampleMaker, Examples
from trainer.learn.model import LearningModel
from trainer.tune.candidates import Candidate, with_parameters
from trainer.tune.crosses import Feature
from trainer.tune.first_rows import FirstRows
from trainer.tune.passes import cut

_BITS = np.uint64(64 - 18)
"""Pairs of values are counted in 2^18 buckets: two that share one add noise, which costs a place in the ranking."""
_ODD = np.uint64(0x9E3779B97F4A7C15)
_PRIOR = 4.0
"""The precision of a weight before it is seen: 4 clicks at a rate of a half make it half its size."""

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Digests = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class _Tokens:
    """A field's tokens: the row of each, ascending, and its digest. dense: token i is of row i."""

    rows: Ints
    digests: Digests
    dense: bool


def screened(
    log: FirstRows,
    spec: ModelSpec,
    parameters: Candidate,
    pairs: Sequence[Feature],
    most: int,
    end: int,
    ahead: int,
) -> list[Feature]:
    """The `most` best of the pairs by the first `end` rows, in their order. ahead: see `Repeated.learn`."""
    if len(pairs) <= most:
        return [*pairs]
    maker = ExampleMaker(with_parameters(spec, parameters))
    model, found = LearningModel(maker), list[Floats]()
    examples, learned, held = list[Examples](), 0, 0
    with log.examples(maker.spec) as (*_, stream):
        for each in cut(stream, ahead):
            if learned == end:
                break
            part = each if learned + each.rows.size <= end else each.part(0, end - learned)
            examples.append(part)
            found.append(model.coordinates.predict(part.hashed).probabilities[:, 0].copy())
            learned += part.rows.size
            if learned % ahead == 0:
                for one in examples[held:]:
                    model.learn_judged(one)
                held = len(examples)
    ctr = np.concatenate(found)
    left = np.concatenate([each.hashed.labels for each in examples]) - ctr
    curve = ctr * (1.0 - ctr)
    left[:ahead] = curve[:ahead] = 0.0  # predicted by a model of nothing
    index = {each.name: each.index for each in maker.plan.fields}
    tokens = {name: _tokens(examples, index[name]) for name in {name for pair in pairs for name in pair}}
    gains = [_gain(tokens[one], tokens[other], left, curve) for one, other in pairs]
    kept = sorted(range(len(pairs)), key=lambda at: (-gains[at], at))[:most]
    return [pairs[at] for at in sorted(kept)]


def _tokens(examples: Sequence[Examples], field: int) -> _Tokens:
    rows, digests, first = list[Ints](), list[Digests](), 0
    dense = all(each.tokens.list_of[field] < 0 for each in examples)
    for each in examples:
        own, layout = each.rows.astype(np.int64), each.tokens
        place = int(layout.list_of[field])
        if place < 0:
            counts = np.ones(own.size, np.int64)
            digests.append(layout.of_rows(field, own))
        else:
            starts = layout.starts[place].astype(np.int64)
            counts = starts[own + 1] - starts[own]
            at = np.repeat(starts[own] - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))
            digests.append(layout.digests[layout.base[field] + at])
        rows.append(first + np.repeat(np.arange(own.size), counts))
        first += own.size
    return _Tokens(np.concatenate(rows), np.concatenate(digests), dense)


def _gain(one: _Tokens, other: _Tokens, left: Floats, curve: Floats) -> float:
    rows, first, second = _joined(one, other)
    first = first * _ODD
    keys = ((first ^ (first >> np.uint64(29)) ^ second) * _ODD >> _BITS).astype(np.int64)
    half = np.searchsorted(rows, left.size // 2)
    size = 1 << 18
    sums = np.bincount(keys[:half], left[rows[:half]], size)
    weights = sums / (np.bincount(keys[:half], curve[rows[:half]], size) + _PRIOR)
    step = np.bincount(rows[half:], weights[keys[half:]], left.size)
    return float(left @ step - 0.5 * (curve @ (step * step)))


def _joined(one: _Tokens, other: _Tokens) -> tuple[Ints, Digests, Digests]:
    """Every pair of tokens of a row: the rows, ascending, and the digests of both."""
    if other.dense:
        return one.rows, one.digests, other.digests[one.rows]
    if one.dense:
        return other.rows, one.digests[other.rows], other.digests
    size = int(max(one.rows.max(initial=-1), other.rows.max(initial=-1))) + 1
    counts = np.bincount(other.rows, minlength=size)
    starts, of_each = np.cumsum(counts) - counts, counts[one.rows]
    at = np.repeat(starts[one.rows] - (np.cumsum(of_each) - of_each), of_each) + np.arange(int(of_each.sum()))
    mine = np.repeat(np.arange(one.rows.size), of_each)
    return one.rows[mine], one.digests[mine], other.digests[at]
