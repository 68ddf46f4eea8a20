"""Between `ctr.v1` messages and Python values, with every limit on a request. Nothing here computes a score.

The paths in error messages are protobuf field paths: `item_ids[3]`, `context.values["age"]`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ctr.v1.ranking_pb2 import Features, Item, RankedItem, RankRequest, RankResponse
from model_store.errors import FieldValueError
from model_store.features.values import Value
from server.errors import Degradation, InvalidRequest
from server.model.item_ids import ItemIds
from server.ranking.limits import check_fields, check_members
from server.ranking.request_kernels import write_items
from server.ranking.served import ServedVersion

if TYPE_CHECKING:
    from server.ranking.ranker import Ranking

MAX_CANDIDATES = 10_000
MAX_ID_BYTES = 4096
RAW_KEYS = "raw_keys"
_AROUND_AN_ID = 36  # bytes that a RankedItem has besides its id, at most

Array = npt.NDArray[Any]
Fields = dict[str, Value]
Spelled = tuple[str, Fields]


def top_k(request: RankRequest) -> int | None:
    """How many items are wanted; None for all."""
    if not request.HasField("top_k"):
        return None
    if request.top_k < 1:
        raise InvalidRequest(
            f"top_k: got {request.top_k}, expected at least 1; leave it out to get every item"
        )
    return request.top_k


def spelled_out(request: RankRequest, item_ids: Sequence[str], served: ServedVersion) -> list[Spelled] | None:
    """The spelled-out candidates beside those named; None if a candidate set is asked for instead.

    An empty id among the named is found later, by `check_unknown`.
    """
    spelled = (
        [_item(item, index, served) for index, item in enumerate(request.items)] if request.items else []
    )
    count = len(item_ids) + len(spelled)
    if request.candidate_set:
        if count:
            raise InvalidRequest(
                "candidate_set: give either a candidate set, or item_ids and items, not both"
            )
        return None
    if not count:
        raise InvalidRequest("item_ids: no candidates; give item_ids, items, or the name of a candidate_set")
    if count > MAX_CANDIDATES:
        raise InvalidRequest(f"item_ids, items: {count} candidates; the limit is {MAX_CANDIDATES}")
    return spelled


def check_unknown(request: RankRequest, item_ids: Sequence[str], unknown_items: Sequence[str]) -> None:
    """Refuse an empty or too long item id in a request. Only requests with unknown items need look."""
    if request.candidate_set:
        return
    if "" in unknown_items and "" in item_ids:
        at = item_ids.index("")
        raise InvalidRequest(f"item_ids[{at}]: empty; an item id has at least one character")
    if max(map(len, unknown_items)) * 4 > MAX_ID_BYTES:
        for at, item in enumerate(item_ids):
            check_id(f"item_ids[{at}]", item)


def fields(request: RankRequest, served: ServedVersion) -> Fields:
    """The features in the request by field name: the context's over the user's."""
    user, context = request.user, request.context
    merged: Fields = dict(user.values)
    if user.sets or user.numbers or user.weighted_sets:
        _add_sets_and_numbers("user", user, merged)
    merged.update(context.values)
    if context.sets or context.numbers or context.weighted_sets:
        _add_sets_and_numbers("context", context, merged)
    if user.raw_keys or context.raw_keys:
        check_members("user.raw_keys, context.raw_keys", [*user.raw_keys, *context.raw_keys])
        raw: dict[str, list[str]] = {}
        for name, keys in (
            (served.user_raw_field, user.raw_keys),
            (served.context_raw_field, context.raw_keys),
        ):
            if keys:
                raw.setdefault(name or RAW_KEYS, []).extend(keys)
        merged.update(raw)
    check_fields("user, context", merged)
    return merged


def check_id(path: str, value: str) -> str:
    """`value`, or InvalidRequest where it is over 4 KiB."""
    if len(value) * 4 > MAX_ID_BYTES and len(value.encode("utf-8", "surrogatepass")) > MAX_ID_BYTES:
        raise InvalidRequest(f"{path}: longer than {MAX_ID_BYTES} bytes")
    return value


def unknown_item_fields(spelled: Sequence[Spelled], served: ServedVersion) -> list[str]:
    """Names in the features of items spelled out that are no item field of the model, each once."""
    known = served.item_fields
    odd = [features for _, features in spelled if not features.keys() <= known]
    return list(dict.fromkeys(name for features in odd for name in features if name not in known))


def answer(
    request: RankRequest, request_id: str, head: bytes, ranking: Ranking, degraded: Sequence[Degradation]
) -> bytes:
    """The answer as the bytes of a `RankResponse`: fields one after the other are one message (protobuf, "Encoding").

    `head` names model, version and variant.
    """
    start = RankResponse(request_id=request_id, cookie=request.cookie).SerializeToString()
    if not (degraded or ranking.notes or ranking.unknown_items or ranking.unknown_fields):
        return start + head + _items(ranking)
    end = RankResponse(
        degraded=[each.message() for each in (*degraded, *ranking.notes)],
        unknown_items=ranking.unknown_items,
        unknown_fields=ranking.unknown_fields,
    )
    return start + head + _items(ranking) + end.SerializeToString()


def _items(ranking: Ranking) -> bytes:
    if isinstance(ranking.candidates, ItemIds) and not ranking.has_more:
        return ranked_items(ranking.candidates, ranking.order, ranking.ctrs, ranking.scores)
    return RankResponse(items=items(ranking)).SerializeToString()


def items(ranking: Ranking) -> list[RankedItem]:
    """The items as messages, best first."""
    found = []
    for item_id, ctr, score in zip(ranking.ids, ranking.ctr, ranking.score, strict=True):
        item = RankedItem()  # setting attributes is a fifth faster than keywords
        item.id = item_id
        item.ctr = ctr
        item.score = score
        found.append(item)
    if ranking.has_more:
        _add_more(ranking, found)
    return found


def _add_more(ranking: Ranking, found: Sequence[RankedItem]) -> None:
    """What is said of items with an objective or exploration; an objective without a finite value is left out."""
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


def wrong_value(request: RankRequest, served: ServedVersion) -> InvalidRequest | None:
    """The first value in the request that does not fit its field, or None if every value does."""
    for path, name, value in _values(request, served):
        field = served.model.plan.field(name or "")
        if field is not None and field.side == "item" and not path.startswith("items["):
            return InvalidRequest(f"{path}: belongs to the item; give it with an item spelled out, in items")
        try:
            if field is not None:
                field.tokens(value)
        except FieldValueError as error:
            return InvalidRequest(f"{path}: {error}")
    return None


def _values(request: RankRequest, served: ServedVersion) -> Iterator[tuple[str, str | None, Value]]:
    yield from _feature_values("user", request.user, served.user_raw_field)
    yield from _feature_values("context", request.context, served.context_raw_field)
    for index, item in enumerate(request.items):
        yield from _feature_values(f"items[{index}].features", item.features, served.item_raw_field)


def _feature_values(
    path: str, features: Features, raw_field: str | None
) -> Iterator[tuple[str, str | None, Value]]:
    for name, text in features.values.items():
        yield f'{path}.values["{name}"]', name, text
    for name, members in features.sets.items():
        yield f'{path}.sets["{name}"]', name, list(members.values)
    for name, number in features.numbers.items():
        yield f'{path}.numbers["{name}"]', name, number
    for name, weighted in features.weighted_sets.items():
        yield f'{path}.weighted_sets["{name}"]', name, dict(weighted.members)
    for index, key in enumerate(features.raw_keys):
        yield f"{path}.raw_keys[{index}]", raw_field, [key]


def _item(item: Item, index: int, served: ServedVersion) -> Spelled:
    if not item.id:
        raise InvalidRequest(f"items[{index}].id: empty; an item id has at least one character")
    check_id(f"items[{index}].id", item.id)
    features = item.features
    spelled: Fields = dict(features.values)
    path = f"items[{index}].features"
    if features.sets or features.numbers or features.weighted_sets:
        _add_sets_and_numbers(path, features, spelled)
    if features.raw_keys:
        check_members(f"{path}.raw_keys", features.raw_keys)
        spelled[served.item_raw_field or RAW_KEYS] = list(features.raw_keys)
    check_fields(path, spelled)
    return item.id, spelled


def _add_sets_and_numbers(path: str, features: Features, merged: Fields) -> None:
    for name, values in features.sets.items():
        check_members(f'{path}.sets["{name}"]', values.values)
        merged[name] = list(values.values)
    merged.update(features.numbers)
    for name, weighted in features.weighted_sets.items():
        check_members(f'{path}.weighted_sets["{name}"]', weighted.members)
        merged[name] = dict(weighted.members)


def ranked_items(ids: ItemIds, order: Array, ctr: Array, score: Array) -> bytes:
    """The field `items` of a `RankResponse`: the ids at `order` int64[k], each once, with ctr and score f64[k]."""
    out = np.empty(len(ids.text) + _AROUND_AN_ID * len(order), np.uint8)
    used = write_items(ids.text, ids.spans, order, ctr, score, out)
    return out[:used].tobytes()
