"""When a trainer publishes after a crash, and when it begins again."""

from __future__ import annotations

import pytest

from model_store.spec.spec import parse_spec
from model_store.store import Store
from tests.trainer.publish.shop import rows
from tests.worlds import learn, model_of
from trainer.events.join import EventCounts
from trainer.publish.publisher import Publisher, PublishOptions, PublishPacer
from trainer.settings import Every

SPEC = '[model]\nname = "shop"\n[input]\nlabel = "click"\n[fields]\nbrand = { side = "item" }\n'


class Paced:
    """A model that learns, and the pacer that publishes it."""

    def __init__(self, store: Store) -> None:
        self.versions = store.model("shop")
        self.model = model_of(parse_spec(SPEC), ("click", "brand", "user"), keep_seen=True)
        self._seed = 0

    def begin(self, earlier_rows: int = 0, through_us: int = 0) -> None:
        options = PublishOptions(every=Every(1, None), activate=True)
        self.pacer = PublishPacer(Publisher(self.versions, options), earlier_rows)
        self.pacer.begin(self.model, through_us=through_us)

    def learn(self) -> None:
        self._seed += 1
        learn(self.model, rows(50, seed=self._seed))

    def step(self, counts: EventCounts) -> int | None:
        """Learn, and publish if it is time; the version."""
        self.learn()
        self.pacer.after_step(self.model, counts, behind=False)
        return self.pacer.version


@pytest.fixture
def paced(store: Store) -> Paced:
    return Paced(store)


def test_a_model_that_goes_on_stays_in_until_it_has_learned_again_what_is_out(paced: Paced) -> None:
    paced.learn()
    paced.begin(earlier_rows=100)
    paced.step(EventCounts(through_us=1))
    # 100 rows: what is out, and not less.
    assert paced.pacer.finish(paced.model, EventCounts(through_us=1)) is not None
    assert len(paced.versions.versions()) == 1


def test_a_model_that_begins_anew_goes_out_however_much_an_earlier_one_had_learned(paced: Paced) -> None:
    """As where somebody has deleted the checkpoints of a folder, but not the name that its lease is held under."""
    paced.begin(earlier_rows=1_000)
    assert paced.step(EventCounts(through_us=1)) is not None


def test_labelled_rows_which_have_no_order_time_go_out_while_they_are_learned(paced: Paced) -> None:
    paced.begin()
    assert paced.step(EventCounts()) is not None


@pytest.mark.parametrize(("rejected", "goes_out"), [(10, True), (11, False)])
def test_rejected_rows_are_counted_among_rows_of_which_each_may_be_two_examples(paced, rejected, goes_out):
    paced.begin()
    assert (paced.step(EventCounts(rows=100, examples=180, bad_rows=rejected)) is not None) is goes_out


@pytest.mark.parametrize("later_us", [0, 1])
def test_what_is_older_than_the_newest_version_stays_in(paced: Paced, later_us: int) -> None:
    """Of the same events there may be more rows: their windows have ended since."""
    paced.learn()
    paced.begin(through_us=1_000)
    assert paced.step(EventCounts(through_us=999)) is None
    assert paced.step(EventCounts(through_us=1_000 + later_us)) is not None


def test_a_store_that_lost_its_data_gets_all_again_at_once_and_whole(paced: Paced, store: Store) -> None:
    paced.begin()
    for step in (1, 2):
        paced.step(EventCounts(through_us=step))
    store.client.flushall()
    paced.pacer.store_lost_its_data()
    # Though nothing was learned since.
    assert paced.pacer.finish(paced.model, EventCounts(through_us=2)) is not None
    (only,) = paced.versions.versions()
    assert (only.kind, only.parent) == ("snapshot", None)
    assert paced.versions.active() == only.version
    assert paced.versions.materialise(only.version).content == paced.model.artefact().content
