"""What a trainer tells the store between two steps: one thing that is refused holds up no other, and none grows."""

from __future__ import annotations

import pytest

from model_store.errors import StoreError, StoreUnavailable
from model_store.keys import ModelKeys
from model_store.store import Store
from model_store.streams.event_streams import JSON_BYTES
from trainer.runs.stream import MOST_CATEGORIES, DeadLetterOutbox
from trainer.runs.trainer import StoreTasks


def test_a_task_that_is_refused_holds_up_no_other(store: Store) -> None:
    """As where something else stands at the key of the dead letters."""
    letters = DeadLetterOutbox(store.dead_letters("ads"))
    letters.add("source", "", "bad", b"{}")
    store.client.set(ModelKeys("ads").dead, "no stream")
    done: list[str] = []
    tasks = StoreTasks(0.0, lambda text: None)
    tasks.add(letters.send)
    tasks.add(lambda: done.append("told"))
    with pytest.raises(StoreError):
        tasks.run()
    assert done == ["told"]


def test_a_store_that_is_away_is_asked_once_a_round() -> None:
    asked: list[int] = []

    def ask() -> None:
        asked.append(1)
        raise StoreUnavailable("away")

    tasks = StoreTasks(0.0, lambda text: None)
    tasks.add(ask)
    tasks.add(ask)
    with pytest.raises(StoreUnavailable):
        tasks.run()
    assert asked == [1]


def test_of_a_long_line_a_letter_that_waits_holds_what_the_stream_would_keep(store: Store) -> None:
    letters = DeadLetterOutbox(store.dead_letters("ads"))
    letters.add("source", "", "too long", b"x" * (4 * JSON_BYTES))
    ((*_, kept),) = letters.state()["waiting"]
    assert len(kept) < 2 * JSON_BYTES  # in base64


def test_the_first_letter_of_a_kind_is_said_aloud_and_the_others_are_counted() -> None:
    said: list[str] = []
    letters = DeadLetterOutbox(None, None, said.append)
    for reason in ("ts: got 'a'", "ts: got 'b'", "malformed JSON: x"):
        letters.add("log.jsonl", "", reason, b"{}")
    assert len(said) == 2 and said[0].startswith("log.jsonl: not learned from: ts: got 'a';")
    again = DeadLetterOutbox(None, letters.state(), said.append)
    again.add("log.jsonl", "", "ts: got 'c'", b"{}")
    assert (len(said), again.count) == (2, 4)  # known from the checkpoint
    for number in range(2 * MOST_CATEGORIES):
        again.add("log.jsonl", "", f"reason {number}: x", b"{}")
    assert len(said) == MOST_CATEGORIES
