"""The sample of distinct values against a dictionary: exact while it is small, near enough beyond."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from trainer.inspect.columns import ABSENT, DistinctSample, Repeats, mixed


def added(sample: DistinctSample, keys: np.ndarray, marks: np.ndarray, batch: int = 1000) -> DistinctSample:
    for first in range(0, keys.size, batch):
        distinct, index, counts = np.unique(
            keys[first : first + batch], return_index=True, return_counts=True
        )
        sample.add(distinct, counts[:, None].astype(float), marks[first : first + batch][index])
    return sample


def test_few_values_are_counted_exactly() -> None:
    values = np.random.default_rng(1).zipf(1.4, 20_000) % 900
    keys, marks = mixed(values.astype(np.int64)), np.arange(values.size)
    sample = added(DistinctSample(1024, 1), keys, marks)
    counts = Counter(keys.tolist())
    assert sample.is_exact and sample.distinct == len(counts)
    assert dict(zip(sample.keys.tolist(), sample.sums[:, 0].tolist(), strict=True)) == counts
    first = {key: mark for mark, key in reversed(list(enumerate(keys.tolist())))}
    assert dict(zip(sample.keys.tolist(), sample.first.tolist(), strict=True)) == first


@pytest.mark.parametrize("seed", range(6))
def test_many_values_are_estimated_and_each_kept_one_is_exact(seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 60_000, 150_000)
    keys = mixed(values)
    sample = added(DistinctSample(4096, 1), keys, np.arange(values.size), batch=10_000)
    counts = Counter(keys.tolist())
    assert 1024 < sample.keys.size <= 4096
    assert all(
        counts[key] == count for key, count in zip(sample.keys.tolist(), sample.sums[:, 0], strict=True)
    )
    assert sample.distinct == pytest.approx(len(counts), rel=4 * 1.2 / np.sqrt(4096))
    assert sample.sums.sum() * sample.scale == pytest.approx(values.size, rel=0.1)


def test_no_value_is_always_kept() -> None:
    keys = np.append(mixed(np.arange(50_000)), [ABSENT])
    sample = added(DistinctSample(256, 1), keys, np.arange(keys.size))
    assert sample.sums[sample.keys == ABSENT].tolist() == [[1.0]]
    assert keys[np.flatnonzero((keys & np.uint64(1)) == 1)[0]] not in sample.keys


def test_repeats_are_counted_within_a_batch_and_across() -> None:
    repeats = Repeats(capacity=1 << 12)
    keys = mixed(np.array([5, 6, 5, 7, 8, 5, 9, 8]))
    for first in (0, 4):
        repeats.add(keys[first : first + 4], np.arange(first, first + 4))
    assert repeats.repeated == 3 and repeats.examples == [(2, 0), (5, 0), (7, 4)]


def test_the_repeats_of_a_long_stream_are_estimated() -> None:
    repeats = Repeats(capacity=1 << 12)
    values = np.concatenate([np.arange(100_000), np.arange(0, 100_000, 10)])
    for part in np.array_split(np.random.default_rng(2).permutation(values), 20):
        repeats.add(mixed(part), np.arange(part.size))
    assert repeats.repeated == pytest.approx(10_000, rel=0.2)
