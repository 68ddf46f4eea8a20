"""What a trainer tells the store between two steps: one thing that is refused holds up no other, and none grows."""

from __future__ import annotations

import pytest

from model_store.dead_letters import JSON_BYTES
from model_store.errors import StoreError, StoreUnavailable
from model_store.redis_keys import ModelKeys
from model_store.store import Store
from trainer.daemon.chores import Chores
from trainer.daemon.letters import Letters


def test_a_chore_that_is_refused_holds_up_no_other(store: Store) -> None:
    """As where something else stands at the key of the dead letters."""
    letters = Letters(store.dead_letters("ads"))
    letters.add("source", "", "bad", b"{}")
    store.client.set(ModelKeys("ads").dead, "no stream")
    done: list[str] = []
    chores = Chores(0.0, lambda text: None)
    chores.add(letters.send)
    chores.add(lambda: done.append("told"))
    with pytest.raises(StoreError):
        chores.run()
    assert done == ["told"]


def test_a_store_that_is_away_is_asked_once_a_round() -> None:
    asked: list[int] = []

    def ask() -> None:
        asked.append(1)
        raise StoreUnavailable("away")

    chores = Chores(0.0, lambda text: None)
    chores.add(ask)
    chores.add(ask)
    with pytest.raises(StoreUnavailable):
        chores.run()
    assert asked == [1]


def test_of_a_long_line_a_letter_that_waits_holds_what_the_stream_would_keep(store: Store) -> None:
    letters = Letters(store.dead_letters("ads"))
    letters.add("source", "", "too long", b"x" * (4 * JSON_BYTES))
    ((*_, kept),) = letters.state()["waiting"]
    assert len(kept) < 2 * JSON_BYTES  # in base64
