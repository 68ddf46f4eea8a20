"""Versions that cannot be taken: one log line a cause, a count by reason, and pauses between the tries."""

from __future__ import annotations

import pytest
import structlog

from model_store.errors import ArtefactError, NewerFormat, StoreError, VersionNotFound
from server.sync.pauses import REFUSED_VERSION
from server.sync.version_retry import Refusals, reason_of
from server.telemetry.meter import Meter


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ArtefactError("bad"), "damaged"),
        (NewerFormat("new"), "newer"),
        (VersionNotFound("none"), "gone"),
        (MemoryError(), "memory"),
        (OSError(28, "no space"), "memory"),
        (StoreError("odd"), "failed"),
        (ZeroDivisionError(), "failed"),
    ],
)
def test_each_cause_has_a_word(error: Exception, reason: str) -> None:
    assert reason_of(error) == reason


def test_a_cause_is_said_once_and_counted_each_time() -> None:
    refusals = Refusals("shop", Meter())
    with structlog.testing.capture_logs() as logs:
        for error in (ArtefactError("a"), ArtefactError("a"), ArtefactError("b"), ZeroDivisionError("c")):
            refusals.refuse(7, error, still_serving=6)
    assert [(line.get("error"), line["reason"]) for line in logs] == [
        ("a", "damaged"),
        ("b", "damaged"),
        (None, "failed"),
    ]
    assert refusals.counts == {"damaged": 3, "failed": 1}


def test_a_refused_version_rests_and_another_one_does_not() -> None:
    clock = [100.0]
    refusals = Refusals("shop", Meter(), now=lambda: clock[0])
    refusals.refuse(7, ArtefactError("bad"), still_serving=6)
    assert refusals.resting(7)
    assert not refusals.resting(8)
    clock[0] += REFUSED_VERSION.first_s
    assert not refusals.resting(7)
    for _ in range(40):
        refusals.refuse(7, ArtefactError("bad"), still_serving=6)
    clock[0] += REFUSED_VERSION.longest_s / 2 - 0.01
    assert refusals.resting(7)
    refusals.forgive()
    assert not refusals.resting(7)
