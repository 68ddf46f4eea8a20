"""From a ranking to the bytes of a `RankResponse`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ctr.v1.ranking_pb2 import ModelPrediction, RankedItem, RankResponse
from server.errors import Degradation
from server.model.columns import ItemIds
from server.ranking.query import Query, Ranking
from server.ranking.request_kernels import write_items, write_team_items
from server.ranking.teams import Teams

Array = npt.NDArray[Any]
_BESIDE_THE_ID, _OF_TEAM = 36, 20
"""Bytes that a RankedItem has besides its id, at most, and those that it has more with a team, besides its name."""


def rank_response(query: Query, ranking: Ranking, head: bytes, degraded: Sequence[Degradation]) -> bytes:
    """The answer. `head`: its fields that name model, version and variant, as bytes; interleaved ones come last.

    Serialized fields that follow each other are one message (protobuf, "Encoding").
    """
    start = RankResponse(request_id=query.request_id, cookie=query.cookie).SerializeToString()
    if query.teams is not None:
        head += query.teams.answer  # of a field that is there twice the last one counts
    # Most answers have nothing to add, and save a message.
    if not (degraded or ranking.notes or query.unknown_items or query.unknown_fields):
        return start + head + _items(query, ranking)
    end = RankResponse(
        degraded=[each.message() for each in (*degraded, *ranking.notes)],
        unknown_items=query.unknown_items,
        unknown_fields=query.unknown_fields,
    )
    return start + head + _items(query, ranking) + end.SerializeToString()


def _items(query: Query, ranking: Ranking) -> bytes:
    ids = ranking.candidates.ids
    if isinstance(ids, ItemIds) and not ranking.has_more:
        return ranked_items(ids, ranking.order, ranking.ctrs, ranking.scores)
    if isinstance(ids, ItemIds) and query.teams is not None and query.options is None:
        return team_items(ids, ranking, query.teams)
    return RankResponse(items=item_messages(query, ranking)).SerializeToString()


def team_items(ids: ItemIds, ranking: Ranking, teams: Teams) -> bytes:
    """`ranked_items` of several variants in the plain order."""
    count = len(ranking.order)
    out = np.empty(len(ids.text) + (_BESIDE_THE_ID + _OF_TEAM + len(teams.fields)) * count, np.uint8)
    used = write_team_items(
        ids.text, ids.spans, ranking.order, ranking.ctrs, ranking.scores,
        ranking.propensities, ranking.credits, ranking.teams, teams.fields, teams.field_start, out,
    )  # fmt: skip
    return out[:used].tobytes()


def ranked_items(ids: ItemIds, order: Array, ctr: Array, score: Array) -> bytes:
    """The field `items` of a `RankResponse`: the ids at `order` int64[k], each once, with ctr and score f64[k]."""
    out = np.empty(len(ids.text) + _BESIDE_THE_ID * len(order), np.uint8)
    used = write_items(ids.text, ids.spans, order, ctr, score, out)
    return out[:used].tobytes()


def item_messages(query: Query, ranking: Ranking) -> list[RankedItem]:
    """The items as messages, best first. An objective without a finite value is left out."""
    found = []
    for item_id, ctr, score in zip(ranking.ids, ranking.ctr, ranking.score, strict=True):
        item = RankedItem()  # setting attributes is a fifth faster than keywords
        item.id = item_id
        item.ctr = ctr
        item.score = score
        found.append(item)
    if ranking.objectives is not None:
        for item, number in zip(found, ranking.objectives.tolist(), strict=True):
            if math.isfinite(number):
                item.objective = number
    if ranking.uncertainties is not None:
        for item, number in zip(found, ranking.uncertainties.tolist(), strict=True):
            item.uncertainty = number
    if ranking.propensities is not None:
        for item, number in zip(found, ranking.propensities.tolist(), strict=True):
            item.propensity = number
    for name, other in ranking.others.items():
        for item, ctr, score in zip(found, other.ctr.tolist(), other.score.tolist(), strict=True):
            item.models.append(
                ModelPrediction(
                    model=name, version=other.version, variant=other.variant, ctr=ctr, score=score
                )
            )
    if query.teams is not None and ranking.teams is not None and ranking.credits is not None:
        placed = zip(found, ranking.teams.tolist(), ranking.credits.tolist(), strict=True)
        for item, team, credit in placed:
            item.team, item.credit = query.teams.names[team], credit
    return found
