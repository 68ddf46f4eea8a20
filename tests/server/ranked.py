"""Ranking without a message, for tests of the ranker."""

from __future__ import annotations

from typing import Any

from ctr.v1.ranking_pb2 import RankRequest
from server.ranking.query import Ranking
from server.ranking.ranker import Ranker
from server.ranking.request import read_options
from server.ranking.select.selection import Options


def ranked(ranker: Ranker, *args: Any, **options: Any) -> Ranking:
    """What the ranker makes of a query of these values; see `Ranker.query`."""
    return ranker.rank(ranker.query(*args, **options))


def options_of(**message: Any) -> Options:
    """The options of a request."""
    found = read_options(RankRequest(**message), "")
    assert found is not None
    return found
