"""What closed requests add up to, against loops straight from the definitions; checkpoints, and a real store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from model_store.ratios import BUCKETS
from model_store.store import Store
from model_store.versions.online_metrics import CTR_UNIT, SUMS, OnlineCell, OnlineSums
from trainer.events.columns import BUCKET, CTR, POSITION, VARIANT, VERSION
from trainer.events.join import Closed, Joined
from trainer.events.waiting_rows import Segments
from trainer.publish.online_metrics import MOST_VERSIONS, OnlineAccumulator
from trainer.publish.rollback import Evidence

MINUTE_US = 60_000_000
NOW_US = 1_700_000_000_000_000
Request = dict[str, Any]
Added = Callable[..., OnlineAccumulator]


def drawn(number: int, seed: int, minutes: int = 5) -> list[Request]:
    """Requests of several minutes, versions and variants; some without a version, a variant or a ctr."""
    random = np.random.default_rng(seed)
    requests = []
    for _ in range(number):
        shown = int(random.integers(1, 8))
        ctr = random.random(shown).tolist()
        if random.random() < 0.1:
            ctr[int(random.integers(shown))] = None
        requests.append(
            {
                "version": int(random.integers(1, 4)) if random.random() < 0.9 else None,
                "bucket": int(random.integers(BUCKETS)),
                "variant": str(random.choice(["base", "a:b", "ü"])) if random.random() < 0.9 else None,
                "ctr": ctr,
                "clicks": int(random.integers(0, shown + 1)),
                "conversions": int(random.integers(0, 2)),
                "time_us": NOW_US + int(random.integers(0, minutes * MINUTE_US)),
                "seen": [True] * shown,
            }
        )
    return requests


def closing(requests: list[Request], segments: Segments, positive: str = "click") -> Joined:
    """The requests as the join gives them out: their rows in segments, two for every other one."""
    closed: dict[str, list[int]] = defaultdict(list)
    for begin in range(0, len(requests), 7):
        some = requests[begin : begin + 7]
        rows = [(r["version"], r["variant"], r["bucket"], ctr) for r in some for ctr in r["ctr"]]
        version, variant, bucket, ctr = (list(column) for column in zip(*rows, strict=True))
        number = segments.add(
            {
                "brand": pa.array([b"x"] * len(rows)),
                VERSION: pa.array(version, pa.int64()) if any(version) else pa.nulls(len(rows)),
                VARIANT: pa.array([v and v.encode() for v in variant], pa.binary()),
                BUCKET: pa.array(bucket, pa.uint8()),
                POSITION: pa.array(
                    [place for r in some for place in range(1, len(r["ctr"]) + 1)], pa.int64()
                ),
                CTR: pa.array(ctr, pa.float64()),
            }
        )
        row = 0
        for each in some:
            closed["segment"].append(number)
            closed["row"].append(row)
            closed["rows"].append(len(each["ctr"]))
            row += len(each["ctr"])
    for name in ("clicks", "conversions", "time_us"):
        closed[name] = [each[name] for each in requests]
    closed["positives"] = closed["clicks" if positive == "click" else "conversions"]
    wide = {"row": np.int64, "time_us": np.int64}
    closed["clicked"] = [each.get("clicked", 0) for each in requests]
    wide["clicked"] = np.uint64
    arrays = {name: np.array(values, wide.get(name, np.int32)) for name, values in closed.items()}
    seen = [each for request in requests for each in request["seen"]]
    exposed = np.array([] if all(seen) else seen, np.bool_)
    none, closed = np.empty(0, np.int64), Closed(**arrays, exposed=exposed)
    return Joined(none.astype(np.int32), none, none.astype(np.uint8), none.astype(np.bool_), closed)


Cells = dict[tuple[int, str], OnlineCell]


def by_definition(requests: list[Request], positive: str = "click") -> Cells:
    """One request after another."""
    cells: Cells = {}
    for each in requests:
        shown = [ctr for ctr, seen in zip(each["ctr"], each["seen"], strict=True) if seen]
        cell, told = OnlineCell.empty(), None not in shown
        ctr = sum(round(1e9 * ctr) for ctr in shown) if told else 0
        positives = each["clicks"] if positive == "click" else each["conversions"]
        cell.buckets[each["bucket"]] = (
            bool(shown), len(shown), each["clicks"], each["conversions"], ctr, not told, positives,
            len(each["ctr"]) - len(shown),
        )  # fmt: skip
        seen = (each["version"] or 0,) * 2
        place = each["time_us"] // MINUTE_US, each["variant"] or ""
        cells[place] = cells.get(place, OnlineCell.empty()) + OnlineCell(cell.buckets, seen)
    return cells


def same(one: Cells, other: Cells) -> bool:
    return one.keys() == other.keys() and all(
        np.array_equal(one[each].buckets, other[each].buckets) and one[each].versions == other[each].versions
        for each in one
    )


@pytest.fixture
def added(tmp_path: Path) -> Added:
    """Adds requests as the join gives them out, in so many pieces."""
    folders = (tmp_path / str(number) for number in count())

    def add(
        online: OnlineAccumulator, requests: list[Request], pieces: int = 1, positive: str = "click"
    ) -> OnlineAccumulator:
        for number in range(pieces):
            some = requests[len(requests) * number // pieces : len(requests) * (number + 1) // pieces]
            if some:
                segments = Segments(next(folders), 1 << 30)
                online.add(closing(some, segments, positive), segments)
        return online

    return add


def written(online: OnlineAccumulator, store: Store) -> Cells:
    metrics = store.model("ads").online
    online.flush(metrics)
    begin = NOW_US // MINUTE_US - 1
    return {(slot.minute, slot.variant): cell for slot, cell in metrics.read(begin, begin + 500, begin)}


@pytest.mark.parametrize("positive", ["click", "conversion"])
def test_cells_hold_the_sums_of_their_requests(added: Added, store: Store, positive: str) -> None:
    requests = drawn(500, seed=1)
    found = written(added(OnlineAccumulator(), requests, positive=positive), store)
    assert same(found, by_definition(requests, positive))


def test_what_nobody_saw_is_no_exposure_and_the_record_and_the_state_have_it_only_where_there_is_some(
    added: Added, store: Store
) -> None:
    plain = drawn(80, seed=4)
    before = added(OnlineAccumulator(["base"]), plain)
    assert before.state()["buckets"].shape[-1] == len(SUMS) - 1 and same(
        written(before, store), by_definition(plain)
    )
    keys = store.client.keys("*")
    assert not any(b"unseen" in value for key in keys for value in store.client.hgetall(key).values())
    again = OnlineAccumulator(["base"])
    again.restore(before.state())
    random = np.random.default_rng(5)
    requests = [
        each | {"seen": (random.random(len(each["ctr"])) < 0.4).tolist()} for each in drawn(80, seed=6)
    ]
    online = added(again, requests)
    assert same(written(online, store), by_definition([*plain, *requests]))
    restored = OnlineAccumulator(["base"])
    restored.restore(online.state())
    assert restored.totals() == online.totals() and online.totals()["base"].unseen > 0


def test_a_ctr_of_those_who_look_is_compared_with_clicks_at_its_position(added: Added) -> None:
    requests = drawn(40, seed=7)
    looked = [1.0, 0.5, 0.25]
    there = [
        each | {"ctr": [ctr and ctr * looked[min(k, 2)] for k, ctr in enumerate(each["ctr"])]}
        for each in requests
    ]
    found = added(OnlineAccumulator((), looked), requests).evidence()
    expected = added(OnlineAccumulator(), there).evidence()
    assert (
        found.keys() == expected.keys()
        and found[1].expected < added(OnlineAccumulator(), requests).evidence()[1].expected
    )
    assert all(found[v].expected == pytest.approx(expected[v].expected, abs=1e-6) for v in found)


def test_only_what_changed_is_written_and_it_expires(added: Added, store: Store) -> None:
    online = added(OnlineAccumulator(), drawn(50, seed=5, minutes=1))
    metrics = store.model("ads").online
    assert online.flush(metrics) > 0 and online.flush(metrics) == 0
    key = store.model("ads").keys.outcomes(NOW_US // MINUTE_US)
    assert 2 * 86_400 < store.client.ttl(key) <= 3 * 86_400


@pytest.mark.parametrize("positive", ["click", "conversion"])
def test_evidence_is_of_requests_whose_positives_were_all_predicted(added: Added, positive: str) -> None:
    requests = drawn(300, seed=7)
    found = added(OnlineAccumulator(), requests, positive=positive).evidence()
    for version in (0, 1, 2, 3):
        mine = [r for r in requests if (r["version"] or 0) == version and None not in r["ctr"]]
        assert found[version].clicks == sum(r[f"{positive}s"] for r in mine)
        assert found[version].expected == pytest.approx(sum(sum(r["ctr"]) for r in mine), abs=1e-6)


def test_evidence_before_an_order_is_forgotten_also_what_closes_later_or_after_a_restart(
    added: Added,
) -> None:
    requests = drawn(300, seed=20)
    online = added(OnlineAccumulator(), requests[:100])
    of_before = online.state()
    order_us = NOW_US + 2 * MINUTE_US
    assert online.evidence(order_us) == {}
    of_after = added(
        OnlineAccumulator(), [r for r in requests if r["time_us"] // MINUTE_US > order_us // MINUTE_US]
    )
    added(online, requests)
    assert online.evidence(order_us) == of_after.evidence() != {}
    for state in (of_before, online.state()):
        again = OnlineAccumulator()
        again.restore(state)
        if state is of_before:
            assert again.evidence(order_us) == {}
            added(again, requests)
        assert again.evidence(order_us) == of_after.evidence()


def test_versions_beyond_the_most_lose_the_oldest(added: Added) -> None:
    (request,) = drawn(1, seed=9)
    online = added(OnlineAccumulator(), [request | {"version": 5, "ctr": [0.5]}])
    online._versions.update({version: np.zeros(2, np.int64) for version in range(6, 6 + MOST_VERSIONS)})
    added(online, [request | {"version": 6 + MOST_VERSIONS, "ctr": [0.5]}])
    evidence = online.evidence()
    assert (min(evidence), len(evidence)) == (7, MOST_VERSIONS)
    assert evidence[6 + MOST_VERSIONS] == Evidence(0.5e9 * CTR_UNIT, request["clicks"])


def test_a_ctr_that_is_no_probability_counts_as_none_and_requests_that_showed_nothing_not_at_all(
    added: Added, tmp_path: Path
) -> None:
    (request,) = drawn(1, seed=10)
    bad = [request | {"ctr": [0.2, float(text)]} for text in ("nan", "inf", "7")]
    (sums,) = added(OnlineAccumulator(), bad).totals().values()
    assert (sums.requests, sums.without_ctr, sums.ctr_nano) == (3, 3, 0)
    segments, online = Segments(tmp_path / "empty", 1 << 30), OnlineAccumulator()
    joined = closing(drawn(3, seed=11), segments)
    joined.closed.rows[1] = 0
    online.add(joined, segments)
    assert sum(sums.requests for sums in online.totals().values()) == 2


def by_variant(requests: list[Request], known: tuple[str, ...]) -> dict[str, tuple[int, int, int, int]]:
    """Requests, items shown, clicks and conversions by variant, one request after another."""
    found = dict.fromkeys(known, (0, 0, 0, 0))
    for each in requests:
        name = each["variant"] if each["variant"] in known else ""
        more = (1, len(each["ctr"]), each["clicks"], each["conversions"])
        found[name] = tuple(a + b for a, b in zip(found.get(name, (0, 0, 0, 0)), more, strict=True))  # type: ignore[assignment]
    return found


def counted(sums: dict[str, OnlineSums] | dict[str, OnlineCell]) -> dict[str, tuple[int, int, int, int]]:
    plain = {name: each.sums if isinstance(each, OnlineCell) else each for name, each in sums.items()}
    return {name: (n.requests, n.shown, n.clicks, n.conversions) for name, n in plain.items()}


def test_of_a_checkpoint_without_buckets_only_the_evidence_is_kept(added: Added) -> None:
    online = added(OnlineAccumulator(("base",)), drawn(100, seed=19))
    state = online.state()
    state["sums"] = state.pop("buckets")[:, 0]
    again = OnlineAccumulator(("base",))
    again.restore(state | {"head": state["head"][:2]})
    assert again.evidence() == online.evidence() != {}
    assert counted(again.totals()) == counted(again.recent()) == by_variant([], ("base",))


def test_totals_stay_with_the_partition_that_closed_the_requests(added: Added) -> None:
    requests, known = drawn(100, seed=18), ("base", "a:b", "ü")
    first = added(OnlineAccumulator(known), requests[:60])
    second = added(OnlineAccumulator(known), requests[60:])
    first.absorb(second.take())
    assert counted(first.totals()) == by_variant(requests[:60], known)
    assert counted(second.totals()) == by_variant(requests[60:], known)
    assert counted(first.recent()) == by_variant(requests, known)
    assert counted(second.recent()) == by_variant([], known)
