"""When a trainer publishes after a crash, and when it begins anew."""

from __future__ import annotations

import pytest

from model_store.spec.spec import parse_spec
from model_store.store import Store
from model_store.versions.model_versions import ModelVersions
from tests.trainer.click_logs import learn, model_of
from tests.trainer.publish.shop import rows
from trainer.checkpoint.schedule import Every
from trainer.learn.model import LearningModel
from trainer.publish.publisher import Publisher, PublishOptions
from trainer.runs.publish_pacing import PublishPacer
from trainer.runs.stream import Counts

SPEC = '[model]\nname = "shop"\n[input]\nlabel = "click"\n[fields]\nbrand = { side = "item" }\n'
COLUMNS = ("click", "brand", "user")


def pacer_of(versions: ModelVersions, earlier_rows: int) -> PublishPacer:
    options = PublishOptions(every=Every(1, None), activate=True)
    return PublishPacer(Publisher(versions, options), earlier_rows)


def learner() -> LearningModel:
    return model_of(parse_spec(SPEC), COLUMNS, keep_seen=True)


def test_a_model_that_goes_on_stays_in_until_it_has_learned_again_what_is_out(store: Store) -> None:
    versions, model = store.model("shop"), learner()
    learn(model, rows(50, seed=1))
    pacer = pacer_of(versions, earlier_rows=100)
    pacer.begin(model)
    learn(model, rows(50, seed=2))
    pacer.after_step(model, Counts(through_us=1), behind=False)
    assert pacer.finish(model, Counts(through_us=1)) is not None  # 100 rows: what is out, and not less
    assert len(versions.versions()) == 1


def test_a_model_that_begins_anew_goes_out_however_much_an_earlier_one_had_learned(store: Store) -> None:
    """As where somebody has deleted the checkpoints of a folder, but not the name that its lease is held under."""
    versions, model = store.model("shop"), learner()
    pacer = pacer_of(versions, earlier_rows=1_000)
    pacer.begin(model)
    learn(model, rows(50, seed=1))
    pacer.after_step(model, Counts(through_us=1), behind=False)
    assert pacer.version is not None


def test_labelled_rows_which_have_no_order_time_go_out_while_they_are_learned(store: Store) -> None:
    versions, model = store.model("shop"), learner()
    pacer = pacer_of(versions, earlier_rows=0)
    pacer.begin(model)
    learn(model, rows(50, seed=1))
    pacer.after_step(model, Counts(), behind=False)
    assert pacer.version is not None


@pytest.mark.parametrize(("rejected", "goes_out"), [(10, True), (11, False)])
def test_rejected_rows_are_counted_among_rows_of_which_each_may_be_two_examples(
    store: Store, rejected: int, goes_out: bool
) -> None:
    versions, model = store.model("shop"), learner()
    pacer = pacer_of(versions, earlier_rows=0)
    pacer.begin(model)
    learn(model, rows(50, seed=1))
    pacer.after_step(model, Counts(rows=100, examples=180, bad_rows=rejected), behind=False)
    assert (pacer.version is not None) is goes_out


def test_what_is_older_than_the_newest_version_stays_in(store: Store) -> None:
    versions, model = store.model("shop"), learner()
    learn(model, rows(50, seed=1))
    pacer = pacer_of(versions, earlier_rows=0)
    pacer.begin(model, through_us=1_000)
    learn(model, rows(50, seed=2))
    pacer.after_step(model, Counts(through_us=1_000), behind=False)
    assert pacer.version is None
    learn(model, rows(50, seed=3))
    pacer.after_step(model, Counts(through_us=1_001), behind=False)
    assert pacer.version is not None


def test_a_store_that_lost_its_data_gets_all_again_at_once_and_whole(store: Store) -> None:
    versions, model = store.model("shop"), learner()
    pacer = pacer_of(versions, earlier_rows=0)
    pacer.begin(model)
    learn(model, rows(50, seed=1))
    pacer.after_step(model, Counts(through_us=1), behind=False)
    learn(model, rows(50, seed=2))
    pacer.after_step(model, Counts(through_us=2), behind=False)
    store.client.flushall()
    pacer.store_lost_its_data()
    assert pacer.finish(model, Counts(through_us=2)) is not None  # though nothing was learned since
    (only,) = versions.versions()
    assert (only.kind, only.parent) == ("snapshot", None)
    assert versions.active() == only.version
    assert versions.materialise(only.version).content == model.artefact().content
