"""The record of an experiment: what it may say, and how it is kept in Redis."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from threading import Barrier
from typing import Any

import pytest

from model_store.errors import ExperimentChanged, ExperimentError, StoreError
from model_store.store import Store
from model_store.versions.experiments import MAX_PINS, RUNNING, STOPPED, Experiment, Explore
from tests.model_store.kinds import on_every_kind

WHOLE = Experiment(
    shares={"base": 0.9, "plain": 0.1},
    salt="autumn",
    pins={"u1": "plain", "ü:{}\0": "base"},
    shadows=("plain",),
    objective="ctr * bid",
)


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        ({"shares": {"base": 0.9}}, "base sum to 0.9; expected 1"),
        ({"shares": {"base": 0.6, "plain": 0.6}}, "sum to 1.2; expected 1"),
        ({"shares": {"base": 1.5, "plain": -0.5}}, "got 1.5 for 'base'; expected a number from 0 to 1"),
        ({"shares": {"base": float("nan")}}, "got nan for 'base'"),
        ({"shares": {"base": True}}, "got True for 'base'"),
        ({"shares": {"base": "1"}}, "got '1' for 'base'"),
        ({"pins": {"": "base"}}, "empty cookie"),
        ({"pins": {"u" * 4097: "base"}}, "pins: got 4,097 bytes; expected at most 4,096"),
        ({"pins": {"\udcff": "base"}}, "expected Unicode text"),
        ({"pins": {str(n): "base" for n in range(MAX_PINS + 1)}}, "got 10,001; expected at most 10,000"),
        ({"pins": {f"{n:04}" + "u" * 4092: "base" for n in range(1025)}}, "got cookies of 4,198,400 bytes"),
        ({"state": "paused"}, "got 'paused'; expected 'running' or 'stopped'"),
        ({"state": STOPPED}, "got '' while stopped"),
        ({"winner": "base"}, "got 'base' while running"),
        ({"salt": "s" * 257}, "salt: got 257 bytes"),
        ({"objective": "x" * 4097}, "objective: got 4,097 bytes"),
        ({"interleave": ("a",)}, "interleave: got a; expected 2 to 4 variants, each once"),
        ({"interleave": ("a", "b", "a")}, "interleave: got a, b, a; expected"),
        (
            {"interleave": ("a", "b"), "draft": "fair"},
            "draft: got 'fair'; expected 'team' or 'probabilistic'",
        ),
        (
            {"interleave": ("a", "b"), "apprentice": True},
            "interleave: got variants with apprentice mode; expected either of them",
        ),
        (
            {"interleave": ("a", "b"), "explore": Explore("ucb", 1.0)},
            "interleave: got variants with exploration; expected either of them",
        ),
        ({"shadows": ("a", "a")}, "shadows: got a, a; expected each variant once"),
    ],
)
def test_an_experiment_that_contradicts_itself_cannot_be_made(parts: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ExperimentError) as refused:
        Experiment(**parts)
    assert complaint in str(refused.value)


def test_interleaving_is_kept_and_a_record_without_it_is_what_it_was() -> None:
    whole = replace(WHOLE, interleave=("plain", "base"), draft="probabilistic", revision=3)
    assert Experiment.from_json(whole.to_json()) == whole
    stored = {name.encode(): value.encode() for name, value in (whole.to_hash() | {"revision": "3"}).items()}
    assert replace(Experiment.from_hash(stored), updated=None) == whole
    assert stored[b"format"] == b"2", "a server before it keeps the record that it has"
    before = WHOLE.to_hash()
    assert (before["format"], "interleave" in before, "draft" in WHOLE.to_json()) == ("1", False, False)
    assert whole.divided({"base": 1.0}).interleave == whole.stopped("base").interleave == ()
    with pytest.raises(ExperimentError, match="counted as of 'a\\+b', which is a variant"):
        Experiment(interleave=("a", "b")).check_variants(("a", "b", "a+b"))


def test_a_variant_that_the_model_lacks_is_named() -> None:
    for part, experiment in {
        "shares": Experiment(shares={"other": 1.0}),
        "pins": Experiment(pins={"u": "other"}),
        "shadows": Experiment(shadows=("other",)),
        "interleave": Experiment(interleave=("base", "other")),
        "winner": Experiment(state=STOPPED, winner="other"),
    }.items():
        lacks = f"{part}: no variant 'other' in the model; it has: base, plain"
        with pytest.raises(ExperimentError, match=lacks):
            experiment.check_variants(["base", "plain"])


@on_every_kind
def test_it_reads_back_from_a_hash_and_from_json_and_wakes_who_waits_for_events(store: Store) -> None:
    ads, reader = store.model("ads"), store.model("ads")
    assert ads.experiment() is None
    before = ads.last_event()
    written = ads.experiments.write(WHOLE)
    assert ads.wait(before, 10.0) != before
    assert written == replace(WHOLE, revision=1, updated=written.updated)
    first = reader.experiment()
    assert first == written == Experiment.from_json(written.to_json())
    assert reader.experiment() is first
    pins = {f"cookie {n}": "base" for n in range(MAX_PINS)}
    ads.experiments.change(lambda e: replace(e, pins=pins))
    assert reader.experiment().pins == pins  # type: ignore[union-attr]


def test_a_change_made_from_an_older_revision_is_refused(store: Store) -> None:
    ads = store.model("ads")
    mine = theirs = ads.experiments.write(WHOLE)
    ads.experiments.write(theirs.pinned({"u9": "base"}))
    with pytest.raises(ExperimentChanged, match="expected revision 1, found 2"):
        ads.experiments.write(mine.stopped("base"))
    with pytest.raises(ExperimentChanged):
        ads.experiments.change(lambda before: before.stopped("base"), revision=1)
    assert ads.experiment().pins["u9"] == "base"  # type: ignore[union-attr]


def test_what_many_operators_pin_at_once_is_all_there(store: Store) -> None:
    together = Barrier(4)

    def pin(cookie: str) -> None:
        operator, cookies = store.model("ads"), [f"{cookie}{n}" for n in range(5)]
        together.wait()
        while cookies:
            with suppress(ExperimentChanged):
                operator.experiments.change(lambda before: before.pinned({cookies[-1]: "base"}))
                cookies.pop()

    with ThreadPoolExecutor(4) as operators:
        list(operators.map(pin, "abcd"))
    stored = store.model("ads").experiment()
    assert stored is not None and stored.revision == 20
    assert stored.pins == {f"{name}{n}": "base" for name in "abcd" for n in range(5)}


@pytest.mark.parametrize(
    ("field", "content", "complaint"),
    [
        ("shares", "{", "shares: got '{'; expected a JSON object"),
        ("shares", '{"base": 0.5}', "sum to 0.5"),
        ("shadows", '"base"', "expected a JSON array of names"),
        ("state", "", "state: got ''"),
        ("revision", "x", "got 'x', expected a whole number"),
        ("updated", "yesterday", "yesterday"),
        ("format", "3", "got 3, this ftrie reads up to 2: upgrade it"),
        ("salt", b"\xff", "expected UTF-8"),
        ("salt", None, "field 'salt' is missing"),
    ],
)
def test_a_damaged_record_is_refused_with_its_key_and_a_remedy_that_works(
    store: Store, field: str, content: str | bytes | None, complaint: str
) -> None:
    ads = store.model("ads")
    ads.experiments.write(WHOLE)
    if content is None:
        store.client.hdel(ads.keys.experiment, field)
    else:
        store.client.hset(ads.keys.experiment, field, content)
    with pytest.raises(StoreError) as refused:
        ads.experiment()
    assert str(refused.value).startswith("ftrie:{ads}:experiment: ")
    assert complaint in str(refused.value)
    assert "ftrie experiment clear ads" in str(refused.value)
    cleared = ads.experiments.clear()
    assert ads.experiment() == cleared
    assert (cleared.state, cleared.shares, cleared.pins) == (RUNNING, {}, {})


def test_a_record_with_too_many_pins_is_not_read(store: Store) -> None:
    ads = store.model("ads")
    ads.experiments.write(WHOLE)
    store.client.hset(ads.keys.experiment, mapping={f"pin:{n}": "base" for n in range(MAX_PINS + 1)})
    with pytest.raises(StoreError, match="expected at most 10,000"):
        ads.experiment()


def test_something_else_at_the_key_is_an_error_of_the_store_until_it_is_cleared(store: Store) -> None:
    ads = store.model("ads")
    store.client.set(ads.keys.experiment, "x")
    with pytest.raises(StoreError, match="WRONGTYPE"):
        ads.experiment()
    with pytest.raises(StoreError, match="got 'a string', expected a hash"):
        ads.experiments.write(WHOLE)
    cleared = ads.experiments.clear()
    assert (
        ads.experiment()
        == cleared
        == Experiment(revision=1, updated=cleared.updated, assigned=cleared.assigned)
    )
