"""Deltas under load: every answer is one version's to the bit, and what is let go is said once and at once."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

from model_store.versions.experiments import Experiment
from server.model.live_model import LiveModel
from server.ranking.experiments import Assignment
from server.ranking.ranker import Ranker
from server.ranking.served import ServedVersion
from tests.server import shop
from tests.server.model.models import loaded, shop_loaded
from tests.server.ranked import ranked, ranker_of

VERSIONS = 8
FIELDS: dict[str, Any] = {"age": "20", "likes": ["red", "blue"], "device": "u1", "distance": 2.5}
RECORDS: Any = list(shop.ITEMS.items())
IDS = list(shop.ITEMS) * 4
TEAMS = Assignment("shop", shop.VARIANTS, (0.5, 0.5), Experiment(interleave=shop.VARIANTS)).teams


class Swapped:
    """What a worker has: one reference, and the uids that nothing reads any more."""

    def __init__(self, model: LiveModel) -> None:
        self._model = model
        self.released: list[str] = []
        self.serve()

    def serve(self) -> None:
        self.served = ServedVersion.bind(self._model.parts)
        uid = self._model.parts.values.uid
        self.served.on_released(lambda: self.released.append(uid))

    def collect(self) -> None:
        """In the model's own thread, tell it what was released."""
        while self.released:
            self._model.released(self.released.pop())


def asked(ranker: Ranker) -> tuple[tuple[str, ...], tuple[float, ...]]:
    ranking = ranked(ranker, FIELDS, IDS, RECORDS[:2])
    return tuple(ranking.ids), tuple(ranking.score)


def interleaved(ranker: Ranker) -> tuple[Any, ...]:
    """Which variant placed each item of a list of both, its score, its credit and its propensity."""
    query = ranker.query(FIELDS, IDS, RECORDS[:2], top_k=8, request_id="r")
    ranking = ranker.rank(query._replace(teams=TEAMS))
    assert ranking.teams is not None and ranking.credits is not None and ranking.propensities is not None
    parts = ranking.teams, ranking.scores, ranking.credits, ranking.propensities
    return tuple(ranking.ids), *(tuple(part.tolist()) for part in parts)


@pytest.mark.parametrize("asked", [asked, interleaved])
def test_every_answer_under_deltas_is_exactly_one_versions(
    asked: Callable[[Ranker], tuple[Any, ...]],
) -> None:
    expected = {v: asked(ranker_of(shop.artefact(v), RECORDS)) for v in range(1, VERSIONS + 1)}
    assert len(set(expected.values())) == VERSIONS
    model = shop_loaded()
    worker, stop, wrong = Swapped(model), threading.Event(), []
    seen = [threading.Event() for _ in range(VERSIONS + 1)]

    def ask() -> None:
        while not stop.is_set():
            served = worker.served
            if asked(served.ranker) != expected[served.version]:
                wrong.append(served.version)
            seen[served.version].set()

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for version in range(2, VERSIONS + 1):
        assert seen[version - 1].wait(60)
        delta = shop.artefact(version).changes_since(shop.artefact(version - 1), version=version - 1)
        worker.collect()
        model.apply(version, "", delta)
        worker.serve()
    assert seen[VERSIONS].wait(60)
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_parts_are_released_when_the_last_request_that_reads_them_ends() -> None:
    worker = Swapped(shop_loaded())
    reading = worker.served.ranker
    del worker.served
    assert worker.released == []
    assert asked(reading)
    del reading
    assert len(worker.released) == 1


def test_a_worker_keeps_no_more_objects_for_more_items() -> None:
    def objects(items: int) -> int:
        parts = loaded(shop.artefact(1), [(f"i{n}", {"brand": f"b{n}"}) for n in range(items)]).parts
        gc.collect()
        before = len(gc.get_objects())
        served = ServedVersion.bind(parts)
        assert len(served.catalogue) == items
        gc.collect()
        return len(gc.get_objects()) - before

    objects(10)
    assert objects(5000) <= objects(50) + 500  # other threads of this process have objects too
