"""Pauses between attempts: they grow, differ, and are bounded."""

from __future__ import annotations

from model_store.backoff import Backoff


def test_pauses_grow_to_the_longest_and_differ() -> None:
    assert 0.05 <= Backoff(0.1, 5.0).failed() <= 0.1
    assert len({Backoff(0.1, 5.0, failures=50).failed() for _ in range(10)}) > 1
    assert all(2.5 <= Backoff(0.1, 5.0, failures=n).failed() <= 5.0 for n in (6, 49, 100_000))


def test_success_starts_over() -> None:
    backoff = Backoff(0.1, 5.0, failures=7)
    assert backoff.succeeded()
    assert not backoff.succeeded()
    assert backoff.failed() <= 0.1
