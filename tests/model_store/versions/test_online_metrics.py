"""Cells of online metrics as other writers may write them, and both ways to read many minutes."""

from __future__ import annotations

import json

from model_store.store import Store
from model_store.versions.online_metrics import SUMS, OnlineSums

NUMBERS = tuple(range(len(SUMS)))
WHOLE, OTHERS = ("-1", "9" * 30), ("1.5", "true", '"1"', "01")
WRITTEN = dict(zip(SUMS, NUMBERS, strict=True))


def test_a_cell_reads_the_same_however_its_json_is_written(store: Store) -> None:
    ads = store.model("ads")
    for value in (
        json.dumps(WRITTEN, separators=(",", ":")),  # as it is written
        json.dumps(WRITTEN),
        json.dumps(WRITTEN, sort_keys=True),
        json.dumps(WRITTEN | {"of a later ftrie": 7}, separators=(",", ":")),
    ):
        store.client.hset(ads.keys.online(5), "7:a:b", value)
        assert list(ads.online.read_numbers([4, 5, 6])) == [((5, 7, "a:b"), NUMBERS)]
        assert list(ads.online.read([5])) == [((5, 7, "a:b"), OnlineSums(*NUMBERS))]


def test_a_cell_without_positives_has_those_of_its_clicks(store: Store) -> None:
    ads = store.model("ads")
    earlier = {name: number for name, number in WRITTEN.items() if not name.startswith("positives")}
    store.client.hset(ads.keys.online(5), "7:base", json.dumps(earlier, separators=(",", ":")))
    ((_, sums),) = ads.online.read([5])
    assert (sums.positives, sums.positives_squared) == (sums.clicks, sums.clicks_squared)


def test_any_whole_number_is_read_and_anything_else_left_out_and_reported(store: Store) -> None:
    for number, is_whole in [*((n, True) for n in WHOLE), *((n, False) for n in OTHERS)]:
        told: list[str] = []
        ads = store.model("ads", told.append)
        written = json.dumps(WRITTEN, separators=(",", ":")).replace('"clicks":2,', f'"clicks":{number},')
        store.client.hset(ads.keys.online(5), "7:base", written)
        if is_whole:
            assert [sums.clicks for _, sums in ads.online.read([5])] == [int(number)]
            continue
        ads.online.write({(5, 8, "base"): OnlineSums(clicks=3)})
        assert [cell for cell, _ in ads.online.read_numbers([5])] == [(5, 8, "base")]
        assert len(told) == 1 and "left out" in told[0]
