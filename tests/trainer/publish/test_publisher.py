"""What of a run goes to a real store, as what, and what becomes of it when the store does not take it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from model_store.errors import StaleEpoch, StoreUnavailable
from model_store.spec.spec import parse_spec
from model_store.store import Store
from model_store.versions.model_versions import ModelVersions
from tests.model_store.models import model as small_model
from tests.worlds import SPEC, learn, model_of, shop_rows
from trainer.learn.model import LearningModel
from trainer.publish.publisher import PublishCounts, Publisher, PublishOptions
from trainer.settings import Every

BEFORE = 1000  # rows learned before it may publish, so that a hundred more touch a small part of the keys
EVERY_100 = Every(100, None)


@cache
def rows() -> list[dict[str, bytes]]:
    return [row | {"hashes": b"visit%d" % number} for number, row in enumerate(shop_rows(2500, seed=1))]


@pytest.fixture
def shop(store: Store) -> ModelVersions:
    return store.model("shop")


@pytest.fixture
def run(shop: ModelVersions) -> Callable[..., tuple[Publisher, list[str]]]:
    """Learn so many rows in batches of 50, publishing on the way, but not at the end."""

    def learned(model: LearningModel, count: int, publisher: Publisher) -> None:
        while model.rows < BEFORE + count:
            learn(model, rows()[model.rows : min(model.rows + 50, BEFORE + count)])
            publisher.after_batch(model)

    def begun(count: int, **how: Any) -> tuple[Publisher, list[str]]:
        warnings: list[str] = []
        publisher = Publisher(shop, PublishOptions(**{"every": EVERY_100, "keep": 0, **how}), warnings.append)
        model = learn(begun_model(), rows()[:BEFORE])
        publisher.begin(model)
        learned(model, count, publisher)
        publisher.model, publisher.go_on = model, lambda to: learned(model, to, publisher)  # type: ignore[attr-defined]
        return publisher, warnings

    return begun


def begun_model() -> LearningModel:
    """A model of one variant that drops no key."""
    text = SPEC[: SPEC.index("[variants]")] + "[learner]\nl1 = 0.0\n"
    return model_of(parse_spec(text), tuple(rows()[0]))


def kinds(versions: ModelVersions) -> str:
    return "".join(info.kind[0] for info in versions.versions())


def test_a_snapshot_begins_and_comes_back_after_so_many_deltas(run, shop):
    publisher, warnings = run(50, snapshot_every=3)
    assert shop.versions() == []
    publisher.go_on(950)
    assert publisher.finish(publisher.model) == 10 and kinds(shop) == "sdddsdddsd"
    assert shop.materialise(10).to_bytes() == publisher.model.artefact().to_bytes()
    assert [info.parent for info in shop.versions()] == [None, *range(1, 10)]
    assert publisher.counts == PublishCounts(snapshots=3, deltas=7)
    assert publisher.finish(publisher.model) == 10  # the last version is published once
    assert warnings == []


def test_with_no_deltas_between_every_version_is_whole_and_a_short_run_publishes_once(run, shop):
    publisher, _ = run(50, snapshot_every=0)
    assert publisher.finish(publisher.model) == 1
    publisher.go_on(350)
    assert kinds(shop) == "ssss"


def test_what_was_held_back_goes_out_at_the_end_and_with_snapshots(run, shop):
    publisher, _ = run(1000, threshold=0.2)
    assert shop.materialise(10).content != publisher.model.artefact().content
    publisher.go_on(1200)
    assert kinds(shop).endswith("ds")  # the twelfth: ten deltas after the first
    assert shop.materialise(12).to_bytes() == publisher.model.artefact().to_bytes()
    publisher.go_on(1500)
    assert shop.materialise(15).content != publisher.model.artefact().content
    assert publisher.finish(publisher.model) == 16 and kinds(shop)[-1] == "d"
    assert shop.materialise(16).to_bytes() == publisher.model.artefact().to_bytes()


def test_every_version_is_activated_if_asked_and_old_ones_go_with_each_snapshot_but_for_what_is_needed(
    run: Callable[..., Any], shop: ModelVersions
) -> None:
    publisher, _ = run(1400, snapshot_every=3, keep=2, activate=True)
    assert shop.active() == 14
    listed = [info.version for info in shop.versions()]
    # 13, a snapshot, found 12 the newest before it, a delta of 9, 10 and 11.
    assert listed == list(range(9, 15))
    for version in listed:
        shop.materialise(version)
    publisher.go_on(1450)
    assert publisher.finish(publisher.model) == shop.active() == 15


def test_a_parent_that_is_lost_or_another_model_costs_a_snapshot(run, shop, store):
    publisher, warnings = run(300)
    store.client.flushall()
    publisher.go_on(400)
    assert kinds(shop) == "s" and shop.versions()[0].parent is None
    assert "version 3 can no longer be a parent" in warnings[0]
    assert "publishing a snapshot instead" in warnings[0]
    publisher.go_on(500)
    assert kinds(shop) == "sd"
    assert shop.materialise(shop.versions()[-1].version).to_bytes() == publisher.model.artefact().to_bytes()
    store.client.flushall()  # a store that was emptied gives version numbers out again
    for _ in range(5):
        shop.publish(small_model())
    publisher.go_on(600)
    assert kinds(shop) == "ssssss" and "whose content is" in warnings[1]


def test_a_store_that_is_away_costs_versions_and_what_they_held_goes_out_with_the_next(
    run: Callable[..., Any], shop: ModelVersions, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher, warnings = run(300)
    with monkeypatch.context() as away:
        away.setattr(shop._store, "answers", _refuse)
        publisher.go_on(500)
    assert len(warnings) == publisher.counts.failed == 2
    assert "no version could be published at 1,500 rows: the store is away; learning continues" in warnings[1]
    publisher.go_on(600)
    assert kinds(shop) == "sddd"
    assert shop.materialise(shop.versions()[-1].version).to_bytes() == publisher.model.artefact().to_bytes()


def _refuse(key: str = "") -> None:
    raise StoreUnavailable("the store is away")


def test_an_operator_who_rolls_back_is_not_overruled(run: Callable[..., Any], shop: ModelVersions) -> None:
    publisher, warnings = run(300, activate=True)
    shop.rollback(1)
    publisher.go_on(600)
    assert shop.active() == 1 and len(warnings) == 1
    assert "this run's versions stay inactive from now on" in warnings[0]
    assert len(shop.versions()) == 6
    assert publisher.finish(publisher.model) == 6
    with pytest.raises(StaleEpoch):
        publisher.check_activated()
    assert shop.active() == 1


def test_a_delta_of_more_than_half_of_the_keys_is_a_snapshot(shop: ModelVersions) -> None:
    publisher = Publisher(shop, PublishOptions(Every(10, None), keep=0))
    model = begun_model()
    publisher.begin(model)
    for begin in (0, 10, 20):
        learn(model, rows()[begin : begin + 10])
        publisher.after_batch(model)
    assert kinds(shop) == "sss"
