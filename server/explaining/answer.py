"""From a ranking to an `ExplainResponse`: each returned item with its keys. The request was ranked as any other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from ctr.v1.ranking_pb2 import Contributions, ExplainedItem, ExplainRequest, ExplainResponse, KeyContribution
from server import wire
from server.errors import InvalidRequest, unreadable
from server.explaining.contributions import Contribution, Group, explained
from server.explaining.tokens import item_tokens, request_tokens
from server.receiving.plain_features import PlainFeatures
from server.receiving.request import Received
from server.serving import Serving

if TYPE_CHECKING:
    from server.question import Question
    from server.ranker import Ranking

MAX_CANDIDATES = 100


def request_within(message: bytes) -> Received | InvalidRequest:
    """The ranking request inside an ExplainRequest, or what is wrong with the bytes."""
    try:
        return Received(ExplainRequest.FromString(message).request.SerializeToString())
    except DecodeError:
        return unreadable(ExplainRequest)


def check_explainable(candidates: int) -> None:
    """Raise InvalidRequest for more candidates than are explained."""
    if candidates > MAX_CANDIDATES:
        raise InvalidRequest(
            f"request: {candidates} candidates; the limit for an explanation is {MAX_CANDIDATES}"
        )


def explanation(
    request_id: str, serving: Serving, question: Question, ranking: Ranking, degraded: Sequence[str]
) -> bytes:
    """The answer as bytes. O(items · keys · length)."""
    return ExplainResponse(
        request_id=request_id,
        model=serving.name,
        version=serving.version,
        variant=serving.variant_names[question.variant],
        items=_items(serving, question, ranking),
        degraded=[*degraded, *ranking.notes],
        unknown_items=ranking.unknown_items,
        unknown_fields=ranking.unknown_fields,
    ).SerializeToString()


def _items(serving: Serving, question: Question, ranking: Ranking) -> list[ExplainedItem]:
    if isinstance(question.fields, PlainFeatures):
        raise TypeError("an explanation needs the request's fields as Python values")
    model, named = serving.model, len(question.item_ids)
    spelled = serving.catalogue.under(question.spelled)
    of_request = request_tokens(model, question.fields)
    found = []
    for place, item in zip(ranking.order.tolist(), wire.items(ranking), strict=True):
        features = spelled[place - named][1] if place >= named else None
        tokens = of_request | item_tokens(model, serving.catalogue, item.id, features)
        groups = explained(model, tokens, question.variant, item.score)
        found.append(ExplainedItem(item=item, groups=map(_group, groups)))
    return found


def _group(group: Group) -> Contributions:
    return Contributions(name=group.name, sum=group.sum, keys=map(_key, group.keys))


def _key(key: Contribution) -> KeyContribution:
    return KeyContribution(key=key.key, weight=key.weight, x=key.x, contribution=key.value, rate=key.rate)
