"""After an operator's order the trainer's versions stay inactive, whatever is restarted, until they may go on."""

from __future__ import annotations

import pytest

from ftrie.cli import run
from model_store.errors import Pinned, StaleEpoch
from model_store.store import Store
from model_store.versions.lease import TrainerLease
from tests.model_store.kinds import on_every_kind
from tests.model_store.models import model


def trainer(store: Store, owner: str = "a") -> TrainerLease:
    made = store.trainer_lease("ads", owner)
    made.take()
    return made


def activated(store: Store, epoch: int) -> int:
    ads = store.model("ads")
    version = ads.publish(model(), epoch=epoch)
    ads.activate(version, epoch=epoch)
    return version


@on_every_kind
def test_an_operators_order_holds_against_the_trainer_and_its_successors(store: Store) -> None:
    ads, first = store.model("ads"), trainer(store)
    chosen, _ = activated(store, first.epoch), activated(store, first.epoch)
    ads.rollback()
    later = ads.publish(model(), epoch=first.epoch)
    with pytest.raises(Pinned, match=f"operator has pinned version {chosen}; .*ftrie store resume ads"):
        ads.activate(later, epoch=first.epoch)
    restarted = trainer(store)
    with pytest.raises(Pinned):
        ads.activate(later, epoch=restarted.epoch)
    restarted.release()
    with pytest.raises(Pinned):
        ads.activate(later, epoch=trainer(store, "b").epoch)
    assert ads.active() == ads.pinned() == chosen


def test_resumed_the_trainer_that_runs_goes_on_and_the_next_order_stops_it_again(store: Store) -> None:
    ads, first = store.model("ads"), trainer(store)
    chosen, other = activated(store, first.epoch), activated(store, first.epoch)
    ads.activate(chosen)
    assert ads.resume() == chosen
    assert ads.pinned() is None and ads.resume() is None
    ads.activate(other, epoch=first.epoch)
    later = activated(store, first.epoch)
    assert ads.active() == later
    ads.rollback(chosen)
    with pytest.raises(Pinned):
        ads.activate(later, epoch=first.epoch)


def test_resuming_lets_nobody_on_but_the_trainer(store: Store) -> None:
    ads = store.model("ads")
    run_before = ads.begin()
    first = trainer(store)
    first.release()
    run_after = ads.begin()
    chosen = activated(store, first.epoch)
    ads.activate(chosen)
    ads.resume()
    for epoch in (run_before, run_after):
        with pytest.raises(StaleEpoch):
            ads.activate(chosen, epoch=epoch)
    assert activated(store, first.epoch) == ads.active()
    with pytest.raises(StaleEpoch):
        ads.activate(chosen, epoch=run_after)


def test_without_a_trainer_nothing_is_pinned_and_overruling_a_guard_stops_no_trainer(store: Store) -> None:
    ads = store.model("ads")
    ads.activate(ads.publish_and_activate(model()))
    assert ads.pinned() is None
    ads.publish_and_activate(model())
    first = trainer(store)
    refused = ads.publish(model(), epoch=first.epoch, refused="of a test")
    for _ in range(2):  # the second time it is active already
        ads.activate(refused, force=True)
        assert ads.pinned() is None
        assert ads.manifest(refused).forced
    assert activated(store, first.epoch) == ads.active()


def test_the_commands_say_what_is_pinned_and_let_it_go(
    store: Store, store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first = trainer(store)
    activated(store, first.epoch), activated(store, first.epoch)
    assert run(["store", "rollback", "ads", "--store", store_url]) == 0
    assert "ftrie store resume ads" in capsys.readouterr().err
    assert run(["store", "resume", "ads", "--store", store_url]) == 0
    assert "version 1 was pinned" in capsys.readouterr().out
    assert run(["store", "resume", "ads", "--store", store_url, "--json"]) == 0
    assert capsys.readouterr().out == '{"model": "ads", "pinned": null}\n'
