"""What a model report must say, from the definitions, one row after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Z = 1.959963984540054


@dataclass(frozen=True)
class Row:
    """One scored row: latent orders rows, p is the final click rate."""

    label: int
    weight: float
    latent: float
    p: float

    @property
    def loss(self) -> float:
        return -math.log(max(self.p if self.label else 1.0 - self.p, 1e-15))


def wilson(clicks: float, rows: float) -> tuple[float, float]:
    """By the textbook, in another form than the code's."""
    rate = clicks / rows
    root = Z * math.sqrt(Z * Z + 4.0 * rows * rate * (1.0 - rate))
    below, above = 2.0 * rows * rate + Z * Z - root, 2.0 * rows * rate + Z * Z + root
    return max(below / (2.0 * (rows + Z * Z)), 0.0), min(above / (2.0 * (rows + Z * Z)), 1.0)


def bins(rows: Sequence[Row], buckets: int = 512) -> list[list[Row]]:
    """Buckets of 1/16 of the latent score go into the bin of the share of weight below their middle."""
    clicked = sum(row.label for row in rows)
    count = min(10, max(1, min(clicked, len(rows) - clicked) // 10))
    by_bucket: dict[int, list[Row]] = {}
    for row in rows:
        at = int((min(max(row.latent, -16.0), 16.0) + 16.0) * buckets / 32.0)
        by_bucket.setdefault(min(at, buckets - 1), []).append(row)
    total, before = sum(row.weight for row in rows), 0.0
    found: dict[int, list[Row]] = {}
    for bucket in sorted(by_bucket):
        weight = sum(row.weight for row in by_bucket[bucket])
        found.setdefault(min(int((before + weight / 2) / total * count), count - 1), []).extend(
            by_bucket[bucket]
        )
        before += weight
    return [found[number] for number in sorted(found)]


def bin_figures(rows: Sequence[Row]) -> dict[str, float]:
    weight = sum(row.weight for row in rows)
    rate = sum(row.weight * row.label for row in rows) / weight
    effective = weight**2 / sum(row.weight**2 for row in rows)
    low, high = wilson(rate * effective, effective)
    predicted = sum(row.weight * row.p for row in rows) / weight
    return {
        "rows": len(rows),
        "weight": weight,
        "predicted": predicted,
        "click_rate": rate,
        "low": low,
        "high": high,
    }


def ece(rows: Sequence[Row]) -> tuple[float, float]:
    """The expected calibration error, and what chance would make it."""
    total = sum(row.weight for row in rows)
    gap = noise = 0.0
    for each in bins(rows):
        figures = bin_figures(each)
        gap += figures["weight"] / total * abs(figures["predicted"] - figures["click_rate"])
        p, squares = figures["predicted"], sum(row.weight**2 for row in each)
        noise += math.sqrt(2.0 / math.pi * p * (1.0 - p) * squares) / total
    return gap, noise


def psi(first: Mapping[object, int], later: Mapping[object, int]) -> float:
    """The population stability index of two counts of values, half a row added to each."""
    values = sorted({*first, *later}, key=repr)
    n = sum(first.values()) + len(values) / 2
    m = sum(later.values()) + len(values) / 2
    total = 0.0
    for value in values:
        p, q = (first.get(value, 0) + 0.5) / n, (later.get(value, 0) + 0.5) / m
        total += (p - q) * math.log(p / q)
    return total


def permuted(
    rows: Sequence[Mapping[str, str]],
    name: str,
    requests: Sequence[str] | None,
    draw: Callable[[int], Sequence[int]],
) -> list[dict[str, str]]:
    """The rows with the field's values exchanged: among requests, in the order of their first rows, or among rows.

    draw: a permutation of so many.
    """
    if requests is None:
        return [
            dict(row) | {name: rows[other][name]} for row, other in zip(rows, draw(len(rows)), strict=True)
        ]
    first = {request: rows[number][name] for number, request in reversed(list(enumerate(requests)))}
    ordered = list(dict.fromkeys(requests))
    taken = dict(zip(ordered, (ordered[each] for each in draw(len(ordered))), strict=True))
    return [dict(row) | {name: first[taken[request]]} for row, request in zip(rows, requests, strict=True)]


def rise(
    rows: Sequence[Row], permuted_rows: Sequence[Sequence[Row]], requests: Sequence[str]
) -> tuple[float, float, float]:
    """The mean rise of the log-loss over the permutations, with its interval over requests."""
    total = sum(row.weight for row in rows)
    rises = [
        sum(each[number].loss - row.loss for each in permuted_rows) / len(permuted_rows)
        for number, row in enumerate(rows)
    ]
    mean = sum(row.weight * each for row, each in zip(rows, rises, strict=True)) / total
    residuals: dict[str, float] = {}
    for row, each, request in zip(rows, rises, requests, strict=True):
        residuals[request] = residuals.get(request, 0.0) + row.weight * (each - mean)
    count = len(residuals)
    half = Z * math.sqrt(sum(each**2 for each in residuals.values()) * count / (count - 1)) / total
    return mean, mean - half, mean + half


def scored(
    rows: Sequence[Mapping[str, str]], of: Callable[[Mapping[str, str]], tuple[float, float]]
) -> list[Row]:
    """The rows with their latent score and click rate."""
    return [Row(int(row["click"]), float(row["importance"]), *of(row)) for row in rows]
