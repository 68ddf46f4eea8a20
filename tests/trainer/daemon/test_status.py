"""What a trainer says of how far behind it is, on its line of status."""

from __future__ import annotations

from typing import Any

import pytest

from tests.trainer.daemon.running import Trainer, trivago
from trainer.daemon.status import Status
from trainer.events.events import Lag

EMPTY: dict[str, Any] = {
    "model": "ads", "events": 0, "examples": 0, "rate": 0.0, "keys": 0, "logloss": None, "version": None,
    "published": {}, "failed_checkpoints": 0, "dead_letters": 0, "lost": {}, "counts": {}, "join": {},
}  # fmt: skip


@pytest.mark.parametrize(
    ("lags", "said"),
    [
        ([Lag()], "lag unknown"),
        ([Lag(0, 0, 0.0)], "lag 0 events, 0.0 s"),
        ([Lag(3, 10, 1.5), Lag(4, 10, 0.5)], "lag 7 events, 1.5 s"),
        ([Lag(bytes=2_500_000)], "lag 2.5 MB"),
        ([Lag(3, 10, 1.5), Lag(bytes=2_500_000)], "lag 3 events, 2.5 MB, 1.5 s"),
    ],
)
def test_a_file_whose_events_nobody_has_counted_is_behind_by_bytes(lags: list[Lag], said: str) -> None:
    named = {str(number): lag for number, lag in enumerate(lags)}
    assert said in Status(**EMPTY, lags=named).line().split(" · ")


def test_files_read_to_their_end_are_not_behind(store_url: str, tmp_path: Any) -> None:
    impressions, clicks = trivago(tmp_path, 300)
    flags = ("--from", impressions, "--from", clicks, "--once", "--no-publish")
    lags = Trainer(tmp_path, store_url, *flags).last()["lags"]
    assert [lag["bytes"] for lag in lags.values()] == [0, 0]
