"""Outcomes as other writers may write them, what cannot be read, and hours that are added up from minutes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from model_store.ratios import BUCKETS
from model_store.store import Store
from model_store.versions.online_metrics import BY_MINUTE, HOUR, SUMS, OnlineCell, Slot
from tests.worlds import online_cell

NOW = 28_000_030
WRITTEN = {"versions": [3, 7]} | {name: [n + b for b in range(BUCKETS)] for n, name in enumerate(SUMS)}
NUMBERS = np.arange(BUCKETS)[:, None] + np.arange(len(SUMS))


def test_a_cell_reads_the_same_however_its_json_is_written(store: Store) -> None:
    ads = store.model("ads")
    for value in (
        json.dumps(WRITTEN, separators=(",", ":")),  # as it is written
        json.dumps(WRITTEN, sort_keys=True, indent=1),
        json.dumps(WRITTEN | {"of a later ftrie": 7}),
    ):
        store.client.hset(ads.keys.outcomes(NOW - 5), "a:b", value)
        ((slot, cell),) = ads.online.read(NOW - 6, NOW, NOW)
        assert (slot, cell.versions) == (Slot(NOW - 5, 1, "a:b"), (3, 7))
        assert np.array_equal(cell.buckets, NUMBERS)
    assert cell.sums.clicks == NUMBERS[:, 2].sum()


@pytest.mark.parametrize("wrong", ["1.5", "true", '"1"', "01", "9" * 30, "[1]", None])
def test_what_is_no_cell_is_left_out_and_reported(store: Store, wrong: str | None) -> None:
    told: list[str] = []
    ads = store.model("ads", told.append)
    text = json.dumps(WRITTEN).replace("[2, 3,", f"[{wrong}, 3," if wrong else "[3,")
    store.client.hset(ads.keys.outcomes(NOW - 5), "base", text)
    ads.online.write({(NOW - 5, "plain"): online_cell(clicks=3)})
    assert [slot.variant for slot, _ in ads.online.read(NOW - 6, NOW, NOW)] == ["plain"]
    assert len(told) == 1 and "left out" in told[0]


def test_hours_are_the_sums_of_their_minutes_however_often_they_are_added_up(store: Store) -> None:
    online = store.model("ads").online
    first = (NOW - BY_MINUTE) // HOUR - 2
    cells = {
        (first * HOUR + minute, name): online_cell((minute + 1, minute + 1), minute, requests=9, clicks=4)
        for minute in range(130)
        for name in ("base", "plain")
    }
    online.write(cells)
    for _ in range(2):
        online.add_up(range(first, first + 2))
    by_hour = dict(online.read(first * HOUR - 5, NOW + 1, NOW))
    assert list(by_hour)[:4] == [
        Slot((first + n) * HOUR, HOUR, name) for n in range(2) for name in ("base", "plain")
    ]
    for name in ("base", "plain"):
        hour = sum((cells[first * HOUR + n, name] for n in range(60, 120)), OnlineCell.empty())
        found = by_hour[Slot((first + 1) * HOUR, HOUR, name)]
        assert np.array_equal(found.buckets, hour.buckets) and found.versions == hour.versions == (61, 120)
    whole = sum(cells.values(), OnlineCell.empty())
    assert np.array_equal(sum(by_hour.values(), OnlineCell.empty()).buckets, whole.buckets)
    # An hour that is only in part in the time is not read.
    partly = [slot for slot, _ in online.read(first * HOUR + 1, (first + 2) * HOUR - 1, NOW)]
    assert partly == []
