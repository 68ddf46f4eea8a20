"""Candidate sets: read once a second, known for longer than the store answers, never more than there is room for."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from model_store.errors import StoreError, StoreUnavailable
from model_store.store import Store
from server.ranking.candidates import FRESH_S, MAX_IDS, CandidateSets
from server.ranking.store_reads import StoredReads
from tests.stalling import stalled

PATIENT: Any = SimpleNamespace(time_remaining=lambda: None)


class Clock:
    """A clock that tests move."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sets(store: Store, store_url: str, clock: Clock) -> Iterator[CandidateSets]:
    store.records.put_candidates("home", ["b", "a"])
    reads = StoredReads(store_url, budget_s=1.0)
    reads.connect()
    yield CandidateSets(reads, clock)
    reads.close()


def test_a_set_is_kept_for_a_moment_and_then_read_again(
    store: Store, sets: CandidateSets, clock: Clock
) -> None:
    assert sets.members("home", PATIENT) == (["b", "a"], [])
    assert sets.members("none", PATIENT) == (None, [])
    store.records.put_candidates("home", ["c"])
    store.records.put_candidates("none", ["d"])
    assert sets.members("home", PATIENT) == (["b", "a"], [])
    assert sets.members("none", PATIENT) == (None, [])
    clock.now += FRESH_S
    assert sets.members("home", PATIENT) == (["c"], [])
    assert sets.members("none", PATIENT) == (["d"], [])


def test_the_last_known_set_serves_while_the_store_is_away_and_the_answer_says_so(
    store: Store, sets: CandidateSets, clock: Clock
) -> None:
    sets.members("home", PATIENT)
    clock.now += 60.0
    with stalled(store):
        ids, problems = sets.members("home", PATIENT)
        with pytest.raises(StoreUnavailable):
            sets.members("another", PATIENT)
    assert ids == ["b", "a"]
    assert str(problems[0]).startswith("candidate_set: stale, read 60 s ago: ")


def test_what_is_no_set_is_an_error_also_where_there_was_one(
    store: Store, sets: CandidateSets, clock: Clock
) -> None:
    sets.members("home", PATIENT)
    store.client.set("ftrie:candidates:home", "text")
    clock.now += FRESH_S
    with pytest.raises(StoreError, match="expected a LIST, SET or ZSET"):
        sets.members("home", PATIENT)


def test_no_more_ids_are_kept_than_there_is_room_for(store: Store, sets: CandidateSets) -> None:
    store.records.put_candidates("big", [str(n) for n in range(9_999)])
    for n in range(2 * MAX_IDS // 10_000):
        store.client.copy("ftrie:candidates:big", f"ftrie:candidates:{n}")
        sets.members(str(n), PATIENT)
        assert sum(kept.size for kept in sets._kept.values()) == sets._ids <= MAX_IDS
