"""Metrics by their definitions, slow and obvious: what the fast ones must equal."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence


def orders(scores: Sequence[float]) -> Iterator[tuple[int, ...]]:
    """Every order of rows by descending score; equal scores stand in any order."""
    for order in itertools.permutations(range(len(scores))):
        if all(scores[a] >= scores[b] for a, b in itertools.pairwise(order)):
            yield order


def reciprocal_rank(scores: Sequence[float], labels: Sequence[float]) -> float:
    """1 / rank of the first click, the mean over all orders that the scores allow."""
    ranks = [next(rank for rank, row in enumerate(order, 1) if labels[row]) for order in orders(scores)]
    return sum(1 / rank for rank in ranks) / len(ranks)


def hit(scores: Sequence[float], labels: Sequence[float], within: int) -> float:
    """The share of the orders that the scores allow with a click in the first ranks."""
    found = [any(labels[row] for row in order[:within]) for order in orders(scores)]
    return sum(found) / len(found)


def request_auc(scores: Sequence[float], labels: Sequence[float]) -> float:
    """The share of pairs of a click and another row in the right order, ties half."""
    clicked = [score for score, label in zip(scores, labels, strict=True) if label]
    others = [score for score, label in zip(scores, labels, strict=True) if not label]
    won = [1.0 if one > other else 0.5 if one == other else 0.0 for one in clicked for other in others]
    return sum(won) / len(won)


def ndcg(scores: Sequence[float], labels: Sequence[float], k: int) -> float:
    """DCG of the first k over that of the best order, the mean over all orders that the scores allow."""

    def dcg(gains: Sequence[float]) -> float:
        return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains[:k], 1))

    best = dcg(sorted(labels, reverse=True))
    found = [dcg([labels[row] for row in order]) / best for order in orders(scores)]
    return sum(found) / len(found)
