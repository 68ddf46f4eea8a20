"""Versions that are out of bounds: published, marked, inactive; and what operators can do about it. A real store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ftrie.cli import run
from model_store.errors import VersionRefused
from model_store.store import Store
from model_store.versions.manifest import RecentFigures
from model_store.versions.model_versions import ModelVersions
from tests.trainer.learn.test_model_warnings import write_log
from tests.trainer.publish.shop import EVERY, SPEC, GuardedRun, rows

SOUND, WRONG = rows(2_000, seed=1), rows(600, seed=2, wrong=True)


@pytest.fixture
def shop(store: Store) -> ModelVersions:
    return store.model("shop")


@pytest.fixture
def poisoned(shop: ModelVersions) -> GuardedRun:
    """A run whose versions 1 to 10 are sound, and 11 to 13 learned from clicks the wrong way round."""
    run = GuardedRun(shop)
    run.learn(SOUND)
    run.learn(WRONG)
    return run


def test_sound_versions_are_served_and_say_what_they_were_judged_by(shop: ModelVersions) -> None:
    guarded = GuardedRun(shop)
    guarded.learn(SOUND)
    assert shop.active() == 10 and (guarded.refused, guarded.warnings) == ([], [])
    figures = RecentFigures.from_json(shop.manifest(10).recent)
    assert figures.keys == guarded.model.nonzero() and 300 <= figures.examples < 600
    shop.activate(9, force=True)  # of a sound version an order like any other
    guarded.learn(rows(EVERY, seed=4))
    assert shop.active() == 9


def test_a_version_out_of_bounds_is_kept_marked_counted_told_of_and_not_served(
    poisoned: GuardedRun, shop: ModelVersions, store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shop.active() == 10 and poisoned.refused == [11, 12, 13]
    counts = poisoned.publisher.counts
    assert (counts.refused, counts.snapshots + counts.deltas) == (3, 13)
    assert shop.guard.record().refused == 3
    (warning,) = poisoned.warnings  # not repeated each time
    assert warning.startswith("VERSION 11 IS REFUSED (1 in a row): log-loss of base: got ")
    assert warning.endswith("ftrie store activate shop 11 --force")
    assert {info.version: info.kind for info in shop.versions()}[12] == "delta"
    for version in poisoned.refused:
        assert shop.materialise(version).content == shop.manifest(version).content

    def said(*words: str, code: int = 0) -> str:
        capsys.readouterr()
        assert run(["store", words[0], "shop", *words[1:], "--store", store_url]) == code
        return "".join(capsys.readouterr())

    refused = said("activate", "11", code=5)
    assert "version 11 of shop is refused: log-loss of base: got " in refused
    assert "ftrie store activate shop 11 --force" in refused and shop.active() == 10
    listed = {each["version"]: each["refused"] for each in json.loads(said("versions", "--json"))}
    assert listed[10] == ""
    assert listed[11] == shop.manifest(11).refused and listed[11].startswith("log-loss of base: got ")
    inspected = json.loads(said("inspect", "11", "--json"))
    assert inspected["refused"] == listed[11] and inspected["recent"]["variants"].keys() == {"base"}
    assert f"last {inspected['recent']['examples']} examples" in said("inspect", "11")
    # Marking makes no version and keeps the first reason; rollback and gc pass over what is marked.
    assert shop.guard.refuse([11, 9, 99], "another reason") == 1
    assert (shop.manifest(11).refused, shop.manifest(9).refused) == (listed[11], "another reason")
    assert not shop._client.exists(shop.keys.manifest(99))
    with pytest.raises(VersionRefused):
        shop.rollback(12)
    assert shop.rollback() == 8
    shop.gc(1)
    assert shop.active() == 8 and shop.materialise(8)


def test_once_within_its_bounds_again_a_delta_over_versions_never_served_is_served(poisoned, shop):
    poisoned.learn(rows(6_000, seed=3))
    active = shop.active()
    assert active == shop.versions()[-1].version
    assert shop.materialise(active).to_bytes() == poisoned.model.artefact().to_bytes()
    assert any("is within its bounds again, after" in warning for warning in poisoned.warnings)


def test_clicks_that_come_before_what_was_not_clicked_do_not_bar_the_way_for_ever(shop):
    """As a join gives them out when it begins: a click at once, the rest when its window closes."""
    early = [row for row in rows(3_000, seed=9) if row["click"] == b"1"]
    guarded = GuardedRun(shop)
    guarded.learn(early)
    guarded.learn(rows(4_000, seed=10))
    assert shop.active() == shop.versions()[-1].version


def test_without_the_section_nothing_is_judged(shop: ModelVersions) -> None:
    guarded = GuardedRun(shop, SPEC[: SPEC.index("[guard]")])
    guarded.learn(SOUND)
    guarded.learn(WRONG)
    assert shop.active() == 13 and shop.manifest(13).recent == ""


def test_a_restart_judges_against_what_is_served(poisoned: GuardedRun, shop: ModelVersions) -> None:
    again = GuardedRun(shop)
    again.learn(rows(600, seed=5, wrong=True)[:EVERY])
    again.learn(rows(EVERY, seed=6))
    assert shop.active() == 10 and again.refused[-2:] == [14, 15]


def test_force_serves_it_and_the_trainer_goes_on_from_it(poisoned, shop, store_url):
    assert run(["store", "activate", "shop", "13", "--force", "--store", store_url]) == 0
    assert shop.active() == 13 and shop.manifest(13).refused == ""
    poisoned.learn(rows(EVERY, seed=4, wrong=True))
    assert shop.active() == 14 and poisoned.refused == [11, 12]


def test_after_a_rollback_nothing_is_served_until_the_cooldown_is_over(shop: ModelVersions) -> None:
    guarded = GuardedRun(shop)
    guarded.learn(SOUND[:400])
    shop.guard.note_rollback(2, 1, "for the test")
    guarded.learn(SOUND[400:800])
    assert shop.active() == 2 and guarded.publisher.counts.held == 2 and guarded.refused == []
    shop._client.hset(shop.keys.guard, "when_us", shop.guard.now_us() - 601_000_000)
    guarded.learn(SOUND[800:1000])
    assert shop.active() == 5


@pytest.mark.parametrize("flags", [[], ["--publish-every=200"]])
def test_a_training_run_whose_last_version_is_refused_ends_with_an_error(
    tmp_path: Path, store: Store, store_url: str, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "shop.toml"
    spec.write_text(SPEC)
    common = ["train", str(spec), "--activate", "--store", store_url, *flags]
    assert run([*common, write_log(tmp_path / "sound.csv", SOUND)]) == 0
    shop = store.model("shop")
    before = shop.active()
    assert run([*common, write_log(tmp_path / "wrong.csv", rows(2_000, seed=8)[:1_700] + WRONG)]) == 5
    assert shop.active() != shop.versions()[-1].version
    assert shop.manifest(shop.versions()[-1].version).refused
    assert "IS REFUSED" in capsys.readouterr().err and not Path("shop.unpublished.arrow").exists()
    assert flags or shop.active() == before


@pytest.mark.parametrize("flags", [[], ["--publish-every=200"]])
def test_a_training_run_whose_last_version_is_held_in_a_cooldown_ends_with_an_error(
    tmp_path: Path, store: Store, store_url: str, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "shop.toml"
    spec.write_text(SPEC)
    common = ["train", str(spec), "--store", store_url, *flags, write_log(tmp_path / "sound.csv", SOUND)]
    shop = store.model("shop")
    shop.guard.note_rollback(2, 1, "for the test")
    assert run([*common, "--activate"]) == 5
    last, err = shop.versions()[-1].version, capsys.readouterr().err
    assert shop.active() is None
    assert f"version {last} is published and stays inactive: version 2 was rolled back" in err
    assert run([*common, "--publish"]) == 0  # that was not to be activated
    over = shop.guard.now_us() - 601_000_000
    store.client.hset(shop.keys.guard, "when_us", over)
    assert run([*common, "--activate"]) == 0
    assert shop.active() == shop.versions()[-1].version


def test_a_run_goes_on_from_its_checkpoint_with_another_guard(tmp_path: Path) -> None:
    spec, state = tmp_path / "shop.toml", tmp_path / "state"
    log = write_log(tmp_path / "log.csv", SOUND)
    common = ["train", str(spec), log, f"--checkpoint={state}", "--resume"]
    spec.write_text(SPEC)
    assert run(common) == 0
    spec.write_text(SPEC.replace("examples = 300", "examples = 900"))
    assert run(common) == 0
    spec.write_text(SPEC.replace("l1 = 0.0", "l1 = 0.5"))
    assert run(common) == 7
