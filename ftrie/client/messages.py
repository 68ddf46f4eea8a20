"""Rankings and explanations as frozen dataclasses, and requests from plain Python values.

Fields that `ctr.v1` also has mean the same: docs/protocol.md describes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypedDict, Unpack

from ctr.v1.ranking_pb2 import Contributions as ContributionsMessage
from ctr.v1.ranking_pb2 import Degradation as DegradationMessage
from ctr.v1.ranking_pb2 import DegradationReason, ExplainResponse, Features, RankRequest, RankResponse
from ctr.v1.ranking_pb2 import RankedItem as ItemMessage
from model_store.errors import FieldValueError

RAW_KEYS = "raw_keys"  # a list under this name is whole keys of the model's raw field

Scalar: TypeAlias = str | int | float | bool
FeatureValues: TypeAlias = Mapping[str, Scalar | Sequence[str] | Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class RankedItem:
    """One candidate: its predicted click-through rate, and the score (logit) behind it.

    objective, uncertainty and propensity are None unless the request needs them; so is an objective without a value. An
    explanation of an adpredictor always has uncertainties.
    """

    id: str
    ctr: float
    score: float
    objective: float | None = None
    uncertainty: float | None = None
    propensity: float | None = None

    @classmethod
    def of(cls, item: ItemMessage) -> RankedItem:
        """From the wire."""
        return cls(
            item.id,
            item.ctr,
            item.score,
            item.objective if item.HasField("objective") else None,
            item.uncertainty if item.HasField("uncertainty") else None,
            item.propensity if item.HasField("propensity") else None,
        )


@dataclass(frozen=True, slots=True)
class Degradation:
    """One thing that an answer lacks. reason: such as "STALE"; str() is "part: detail"."""

    reason: str
    part: str
    detail: str

    def __str__(self) -> str:
        return f"{self.part}: {self.detail}"

    @classmethod
    def of(cls, message: DegradationMessage) -> Degradation:
        """From the wire."""
        known = message.reason in DegradationReason.values()
        name = DegradationReason.Name(message.reason) if known else str(message.reason)
        return cls(name.removeprefix("DEGRADATION_REASON_"), message.part, message.detail)


@dataclass(frozen=True, slots=True)
class Ranking:
    """A `ctr.v1.RankResponse`."""

    request_id: str
    cookie: str
    model: str
    version: int
    variant: str
    items: tuple[RankedItem, ...]
    degraded: tuple[Degradation, ...]
    unknown_items: tuple[str, ...]
    unknown_fields: tuple[str, ...]

    @classmethod
    def of(cls, response: RankResponse) -> Ranking:
        """From the wire."""
        return cls(
            request_id=response.request_id,
            cookie=response.cookie,
            model=response.model,
            version=response.version,
            variant=response.variant,
            items=tuple(map(RankedItem.of, response.items)),
            degraded=tuple(map(Degradation.of, response.degraded)),
            unknown_items=tuple(response.unknown_items),
            unknown_fields=tuple(response.unknown_fields),
        )


@dataclass(frozen=True, slots=True)
class KeyContribution:
    """What one key of the model added to a score: weight · x. An adpredictor's learning_rate is a variance."""

    key: bytes
    weight: float
    x: float
    contribution: float
    learning_rate: float


@dataclass(frozen=True, slots=True)
class Contributions:
    """The keys of one field or cross; or the bias, or the rounding error."""

    name: str
    sum: float
    keys: tuple[KeyContribution, ...]

    @classmethod
    def of(cls, group: ContributionsMessage) -> Contributions:
        """From the wire."""
        keys = (KeyContribution(k.key, k.weight, k.x, k.contribution, k.learning_rate) for k in group.keys)
        return cls(group.name, group.sum, tuple(keys))


@dataclass(frozen=True, slots=True)
class ExplainedItem:
    """One candidate and its groups. All contributions, added one after the other, are exactly its score."""

    item: RankedItem
    groups: tuple[Contributions, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """A `ctr.v1.ExplainResponse`."""

    request_id: str
    model: str
    version: int
    variant: str
    items: tuple[ExplainedItem, ...]
    degraded: tuple[Degradation, ...]
    unknown_items: tuple[str, ...]
    unknown_fields: tuple[str, ...]

    @classmethod
    def of(cls, response: ExplainResponse) -> Explanation:
        """From the wire."""
        return cls(
            request_id=response.request_id,
            model=response.model,
            version=response.version,
            variant=response.variant,
            items=tuple(
                ExplainedItem(RankedItem.of(each.item), tuple(map(Contributions.of, each.groups)))
                for each in response.items
            ),
            degraded=tuple(map(Degradation.of, response.degraded)),
            unknown_items=tuple(response.unknown_items),
            unknown_fields=tuple(response.unknown_fields),
        )


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
    """Only items whose number in the field is between two bounds, inclusive; None is no bound."""

    field: str
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True, slots=True)
class UpperConfidenceBound:
    """Order by score + width · uncertainty."""

    width: float


@dataclass(frozen=True, slots=True)
class Thompson:
    """Order by a draw from N(score, (width · uncertainty)²), seeded by the request_id."""

    width: float


Filter: TypeAlias = AnyOf | NoneOf | Between
Exploration: TypeAlias = UpperConfidenceBound | Thompson


class Question(TypedDict, total=False):
    """The keywords of a ranking; all are optional, but there must be candidates.

    candidates: ids of items in the store; items: features by id, for items with features of their own; candidate_set:
    a set in the store. user, context: features; a list is a set, a mapping to numbers a weighted set, and a list under
    `raw_keys` whole keys of a model that was trained elsewhere. objective, filters, caps (at most N by field),
    exploration: docs/ranking.md. variant: forces one, for tests; no_log: for load tests. With either, no impression is
    logged (docs/impressions.md).
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
    for name, value in (values or {}).items():
        if isinstance(value, str):
            features.values[name].text = value
        elif isinstance(value, bool):
            features.values[name].text = "true" if value else "false"
        elif isinstance(value, int):
            features.values[name].text = str(value)
        elif isinstance(value, float):
            features.values[name].number = value
        elif isinstance(value, Mapping):
            members = features.values[name].weighted_set
            members.SetInParent()
            members.members.update(value)
        elif name == RAW_KEYS:
            features.raw_keys.extend(value)
        else:
            listed = features.values[name].set
            listed.SetInParent()
            listed.values.extend(value)


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
