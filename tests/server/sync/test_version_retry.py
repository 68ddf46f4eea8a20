"""Versions that cannot be taken: one log line a cause, a count by reason, and pauses between the tries."""

from __future__ import annotations

import structlog

from model_store.errors import ArtefactError, NewerFormat, StoreError, VersionNotFound
from server.sync.version_retry import FIRST_PAUSE_S, LONGEST_PAUSE_S, VersionRetry, reason_of
from server.telemetry.meter import Meter


def test_each_cause_has_a_word() -> None:
    for error, reason in (
        (ArtefactError("bad"), "damaged"),
        (NewerFormat("new"), "newer"),
        (VersionNotFound("none"), "gone"),
        (MemoryError(), "memory"),
        (OSError(28, "no space"), "memory"),
        (StoreError("odd"), "failed"),
        (ZeroDivisionError(), "failed"),
    ):
        assert reason_of(error) == reason


def test_a_cause_is_said_once_and_counted_each_time() -> None:
    retry = VersionRetry("shop", Meter())
    with structlog.testing.capture_logs() as logs:
        for error in (ArtefactError("a"), ArtefactError("a"), ArtefactError("b"), ZeroDivisionError("c")):
            retry.refuse(7, error, still_serving=6)
    assert [(line.get("error"), line["reason"]) for line in logs] == [
        ("a", "damaged"),
        ("b", "damaged"),
        (None, "failed"),
    ]
    assert retry.counts == {"damaged": 3, "failed": 1}


def test_a_refused_version_rests_and_another_one_does_not() -> None:
    clock = [100.0]
    retry = VersionRetry("shop", Meter(), now=lambda: clock[0])
    retry.refuse(7, ArtefactError("bad"), still_serving=6)
    assert retry.resting(7)
    assert not retry.resting(8)
    clock[0] += FIRST_PAUSE_S
    assert not retry.resting(7)
    for _ in range(40):
        retry.refuse(7, ArtefactError("bad"), still_serving=6)
    clock[0] += LONGEST_PAUSE_S / 2 - 0.01
    assert retry.resting(7)
    retry.forgive()
    assert not retry.resting(7)
