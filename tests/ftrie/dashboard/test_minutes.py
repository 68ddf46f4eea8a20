"""The minutes in memory are those of the store, whatever was read when."""

from __future__ import annotations

import random
import time

import pytest

from ftrie.dashboard import minutes as module
from ftrie.dashboard.minutes import Minutes
from model_store.store import Store
from model_store.versions.online_metrics import Cell, OnlineSums

NOW = 0


@pytest.fixture(autouse=True)
def _this_minute() -> None:
    """The time of each test: the whole file may be imported long before."""
    global NOW
    NOW = int(time.time()) // 60


def sums(draw: random.Random) -> OnlineSums:
    """Plausible sums of a minute."""
    requests = draw.randrange(1, 50)
    clicks = draw.randrange(0, requests)
    return OnlineSums(requests, 6 * requests, clicks, 0, clicks * 10**9, 36 * requests, clicks, 6 * clicks)


@pytest.fixture
def written(store: Store) -> dict[Cell, OnlineSums]:
    """Three days of some minutes, of two variants and several versions, in the store."""
    draw = random.Random(4)
    cells = {
        (NOW - draw.randrange(0, 3 * 1_440), draw.randrange(1, 4), variant): sums(draw)
        for _ in range(300)
        for variant in ("base", "plain")
    }
    store.model("shop").online.write(cells)
    return cells


def added(cells: dict[Cell, OnlineSums], begin: int, stop: int) -> dict[str, OnlineSums]:
    """The sums by variant of the minutes from begin to before stop."""
    found: dict[str, OnlineSums] = {}
    for (minute, _, variant), each in cells.items():
        if begin <= minute < stop:
            found[variant] = found.get(variant, OnlineSums()) + each
    return found


def totals(minutes: Minutes, begin: int, stop: int) -> dict[str, OnlineSums]:
    """The same of the minutes in memory."""
    return {variant: each for (_, _, variant), each in minutes.total(begin, stop)}


def test_the_last_day_is_there_at_once_the_rest_soon_and_groups_add_up_to_the_total(
    store: Store, written: dict[Cell, OnlineSums]
) -> None:
    minutes, online = Minutes(), store.model("shop").online
    minutes.follow(online)
    assert totals(minutes, NOW - 1_400, NOW + 1) == added(written, NOW - 1_400, NOW + 1)
    assert not minutes.is_complete
    while not minutes.is_complete:
        minutes.follow(online)
    for begin, stop in ((NOW - 5_000, NOW + 1), (NOW - 2_000, NOW - 1_000), (NOW - 10, NOW)):
        assert totals(minutes, begin, stop) == added(written, begin, stop)
    first = minutes.first(NOW - 5_000, NOW + 1)
    assert first == min(minute for minute, _, _ in written)

    begin, stop, size = NOW - 4_320, NOW + 1, 450
    groups = list(minutes.groups(begin, stop, size))
    assert [group[:2] for group in groups] == sorted(group[:2] for group in groups)
    whole: dict[str, OnlineSums] = {}
    for minute, variant, each in groups:
        assert each == added(written, minute, minute + size)[variant]
        whole[variant] = whole.get(variant, OnlineSums()) + each
    assert whole == added(written, begin, stop + size)


def test_what_the_trainer_changes_later_is_read_again(
    store: Store, written: dict[Cell, OnlineSums], monkeypatch: pytest.MonkeyPatch
) -> None:
    minutes, online = Minutes(), store.model("shop").online
    minutes.follow(online)
    changed = {
        (NOW, 9, "base"): OnlineSums(requests=1_000, shown=1_000),
        (NOW - 60, 9, "new"): OnlineSums(requests=7),
    }
    online.write(changed)
    minutes.follow(online)
    assert totals(minutes, NOW, NOW + 1) == added({**written, **changed}, NOW, NOW + 1)
    assert "new" not in totals(minutes, NOW - 60, NOW - 59)
    monkeypatch.setattr(module, "ALL_EVERY_S", 0.0)
    minutes.follow(online)
    assert totals(minutes, NOW - 60, NOW - 59) == added({**written, **changed}, NOW - 60, NOW - 59)
