"""From plain Python values to a `RankRequest`: what a caller asks, as the wire has it. Nothing here calls a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypedDict, Unpack

from ctr.v1.ranking_pb2 import Features, RankRequest
from model_store.errors import FieldValueError

RAW_KEYS = "raw_keys"  # a list under this name is whole keys, for the model's raw field

Scalar: TypeAlias = str | int | float | bool
FeatureValues: TypeAlias = Mapping[str, Scalar | Sequence[str] | Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Only items whose value of the field, or a member of its set, is one of these."""

    field: str
    values: Sequence[str]


@dataclass(frozen=True, slots=True)
class NoneOf:
    """No items whose value of the field, or a member of its set, is one of these."""

    field: str
    values: Sequence[str]


@dataclass(frozen=True, slots=True)
class Between:
    """Only items whose number in the field lies between two bounds, both allowed; None is no bound."""

    field: str
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True, slots=True)
class UpperConfidenceBound:
    """Order by score + width · uncertainty."""

    width: float


@dataclass(frozen=True, slots=True)
class Thompson:
    """Order by a draw from N(score, (width · uncertainty)²), which the request_id decides."""

    width: float


Filter: TypeAlias = AnyOf | NoneOf | Between
Exploration: TypeAlias = UpperConfidenceBound | Thompson


class Question(TypedDict, total=False):
    """What may be asked of a ranking; every part may be left out, but there must be candidates.

    candidates: ids of items in the store; items: items spelled out, id to features; candidate_set: a set's name in the
    store. user, context: features, of which a list is a set, a mapping to numbers a weighted set, and a list under
    `raw_keys` whole keys of a model made elsewhere. objective, filters, caps (field to how many), exploration:
    docs/ranking.md. variant: forces one, for tests; no_log: for load tests. Neither leaves an impression
    (docs/impressions.md).
    """

    cookie: str
    candidates: Sequence[str]
    items: Mapping[str, FeatureValues] | None
    candidate_set: str
    user: FeatureValues | None
    context: FeatureValues | None
    top_k: int | None
    variant: str | None
    request_id: str
    objective: str
    filters: Sequence[Filter]
    caps: Mapping[str, int]
    exploration: Exploration | None
    no_log: bool


def request_of(model: str, **asked: Unpack[Question]) -> RankRequest:
    """The message. Raises FieldValueError for text that is not Unicode."""
    try:
        request = RankRequest(
            model=model,
            request_id=asked.get("request_id", ""),
            cookie=asked.get("cookie", ""),
            item_ids=asked.get("candidates", ()),
            candidate_set=asked.get("candidate_set", ""),
            top_k=asked.get("top_k"),
            variant=asked.get("variant"),
            objective=asked.get("objective", ""),
            no_log=asked.get("no_log", False),
        )
        _add_features(request.user, asked.get("user"))
        _add_features(request.context, asked.get("context"))
        for item_id, features in (asked.get("items") or {}).items():
            _add_features(request.items.add(id=item_id).features, features)
        for one in asked.get("filters", ()):
            _add_filter(request, one)
        for field, at_most in asked.get("caps", {}).items():
            request.caps.add(field=field, at_most=at_most)
        _add_exploration(request, asked.get("exploration"))
    except UnicodeEncodeError as error:
        raise FieldValueError(f"got {error.object!r}, which is not Unicode text; expected UTF-8") from None
    return request


def _add_features(features: Features, values: FeatureValues | None) -> None:
    """Write `values` into the map that each belongs to."""
    for name, value in (values or {}).items():
        if isinstance(value, str):
            features.values[name] = value
        elif isinstance(value, bool):
            features.values[name] = "true" if value else "false"
        elif isinstance(value, int):
            features.values[name] = str(value)
        elif isinstance(value, float):
            features.numbers[name] = value
        elif isinstance(value, Mapping):
            features.weighted_sets[name].members.update(value)
        elif name == RAW_KEYS:
            features.raw_keys.extend(value)
        else:
            features.sets[name].values.extend(value)


def _add_exploration(request: RankRequest, exploration: Exploration | None) -> None:
    if isinstance(exploration, UpperConfidenceBound):
        request.exploration.ucb.width = exploration.width
    elif exploration is not None:
        request.exploration.thompson.width = exploration.width


def _add_filter(request: RankRequest, one: Filter) -> None:
    message = request.filters.add(field=one.field)
    if isinstance(one, AnyOf):
        message.any_of.values.extend(one.values)
    elif isinstance(one, NoneOf):
        message.none_of.values.extend(one.values)
    else:
        message.range.SetInParent()
        if one.least is not None:
            message.range.min = one.least
        if one.most is not None:
            message.range.max = one.most
