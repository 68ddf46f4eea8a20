"""Pauses between tries."""

from __future__ import annotations

from model_store.backoff import Backoff, Pauses


def test_pauses_double_up_to_the_longest_with_jitter_are_half_to_all_and_a_success_ends_them() -> None:
    pauses = Pauses(0.1, 1.0, jitter=False)
    assert [pauses.after(failures) for failures in (1, 2, 3, 4, 5, 100_000)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    drawn = {Pauses(0.1, 5.0).after(50) for _ in range(20)}
    assert len(drawn) > 1 and all(2.5 <= pause_s <= 5.0 for pause_s in drawn)
    backoff = Backoff(1.0, 8.0)
    assert not backoff.succeeded()
    assert 0.5 <= backoff.failed() <= 1.0 <= backoff.failed() <= 2.0
    assert backoff.succeeded()
    assert 0.5 <= backoff.failed() <= 1.0
