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
from server.ranking.request_kernels import write_items

Array = npt.NDArray[Any]
_BESIDE_THE_ID = 36
"""Bytes that a RankedItem has besides its id, at most."""


def rank_response(query: Query, ranking: Ranking, head: bytes, degraded: Sequence[Degradation]) -> bytes:
    """The answer. `head`: its fields that name model, version and variant, as bytes.

    Serialized fields that follow each other are one message (protobuf, "Encoding").
    """
    start = RankResponse(request_id=query.request_id, cookie=query.cookie).SerializeToString()
    # Most answers have nothing to add, and save a message.
    if not (degraded or ranking.notes or query.unknown_items or query.unknown_fields):
        return start + head + _items(ranking)
    end = RankResponse(
        degraded=[each.message() for each in (*degraded, *ranking.notes)],
        unknown_items=query.unknown_items,
        unknown_fields=query.unknown_fields,
    )
    return start + head + _items(ranking) + end.SerializeToString()


def _items(ranking: Ranking) -> bytes:
    ids = ranking.candidates.ids
    if isinstance(ids, ItemIds) and not ranking.has_more:
        return ranked_items(ids, ranking.order, ranking.ctrs, ranking.scores)
    return RankResponse(items=item_messages(ranking)).SerializeToString()


def ranked_items(ids: ItemIds, order: Array, ctr: Array, score: Array) -> bytes:
    """The field `items` of a `RankResponse`: the ids at `order` int64[k], each once, with ctr and score f64[k]."""
    out = np.empty(len(ids.text) + _BESIDE_THE_ID * len(order), np.uint8)
    used = write_items(ids.text, ids.spans, order, ctr, score, out)
    return out[:used].tobytes()


def item_messages(ranking: Ranking) -> list[RankedItem]:
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
    return found
