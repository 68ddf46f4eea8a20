"""Ranking without a message, for tests of the ranker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ctr.v1.ranking_pb2 import RankRequest
from model_store.artefact.artefact import Artefact
from model_store.spec.values import Value
from server.model.columns import Catalogue
from server.model.model import Model
from server.ranking.query import Ranking
from server.ranking.ranker import Ranker
from server.ranking.request import Received, read_options
from server.ranking.select.selection import Options


def ranker_of(artefact: Artefact, records: Iterable[tuple[str, Mapping[str, Value]]] = ()) -> Ranker:
    """A ranker built from the snapshot, as if no delta had ever been, over items."""
    model = Model.build(artefact, 1)
    return Ranker(model, Catalogue.build(model.plan, records))


def ranked(ranker: Ranker, *args: Any, **options: Any) -> Ranking:
    """What the ranker makes of a query of these values; see `Ranker.query`."""
    return ranker.rank(ranker.query(*args, **options))


def scores(ranking: Ranking) -> dict[str, float]:
    return dict(zip(ranking.ids, ranking.score, strict=True))


def options_of(**message: Any) -> Options:
    found = read_options(Received.of(RankRequest(**message)).extras, "")
    assert found is not None
    return found
