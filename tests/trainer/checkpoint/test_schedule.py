"""When a checkpoint is due."""

from __future__ import annotations

import pytest

from model_store.errors import UsageError
from trainer.checkpoint.schedule import Every, Schedule


@pytest.mark.parametrize(
    ("text", "every"),
    [
        ("100000", Every(100_000, None)),
        ("500ms", Every(None, 0.5)),
        ("30s", Every(None, 30)),
        ("5m", Every(None, 300)),
        ("2h", Every(None, 7200)),
    ],
)
def test_rows_and_times_are_told_apart(text: str, every: Every) -> None:
    assert Every.parse(text) == every


@pytest.mark.parametrize("text", ["", "0", "0m", "m", "5 m", "-5", "1.5h", "1d", "٣"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected a number of rows such as 100000, or a time"):
        Every.parse(text)


def test_rows_are_counted_from_the_last_checkpoint() -> None:
    schedule = Schedule(Every.parse("100"), 1000)
    assert [schedule.is_due(rows) for rows in (1000, 1099, 1100, 1250)] == [False, False, True, True]
    schedule.restart(1250)
    assert [schedule.is_due(rows) for rows in (1349, 1350)] == [False, True]


def test_time_is_counted_from_the_last_checkpoint() -> None:
    schedule = Schedule(Every.parse("1h"), 0)
    assert not schedule.is_due(10**12)
    assert Schedule(Every(None, 0), 0).is_due(0)
