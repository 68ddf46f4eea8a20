"""Rankings and explanations as frozen dataclasses, and requests from plain Python values.

Fields that `ctr.v1` also has mean the same: docs/protocol.md describes them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from numbers import Real
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict, Unpack
from uuid import UUID

from ctr.v1.ranking_pb2 import Contributions as ContributionsMessage
from ctr.v1.ranking_pb2 import Degradation as DegradationMessage
from ctr.v1.ranking_pb2 import DegradationReason, ExplainResponse, Features, RankRequest, RankResponse
from ctr.v1.ranking_pb2 import RankedItem as ItemMessage
from model_store.errors import FieldValueError, listed

RAW_KEYS = "raw_keys"  # a list under this name is whole keys of the model's raw field

Scalar: TypeAlias = str | int | float | bool | date | Decimal | UUID
FeatureValues: TypeAlias = Mapping[str, Scalar | Sequence[str] | Mapping[str, float] | None]


@dataclass(frozen=True, slots=True)
class ModelPrediction:
    """What another model, which the objective names, predicts of an item, and which version and variant of it."""

    version: int
    variant: str
    ctr: float
    score: float


@dataclass(frozen=True, slots=True)
class RankedItem:
    """One candidate: its predicted click-through rate, and the score (logit) behind it.

    objective, uncertainty and propensity are None unless the request needs them; so is an objective without a value. An
    explanation of an adpredictor always has uncertainties. models: by name, what the other models that the objective
    names predict; None if it names none, or none of them answers. team and credit: where the experiment interleaves
    variants, which one placed the item, and how much a click on it counts for that; else None.
    """

    id: str
    ctr: float
    score: float
    objective: float | None = None
    uncertainty: float | None = None
    propensity: float | None = None
    models: Mapping[str, ModelPrediction] | None = None
    team: str | None = None
    credit: float | None = None

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
            {
                each.model: ModelPrediction(each.version, each.variant, each.ctr, each.score)
                for each in item.models
            }
            or None,
            item.team or None,
            item.credit if item.HasField("credit") else None,
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
        # A newer server may have reasons without a name here: then it is the number.
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
        return cls(**_head(response), cookie=response.cookie, items=tuple(map(RankedItem.of, response.items)))


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
    known_fields: tuple[str, ...] = ()

    @classmethod
    def of(cls, response: ExplainResponse) -> Explanation:
        """From the wire."""
        items = (
            ExplainedItem(RankedItem.of(each.item), tuple(map(Contributions.of, each.groups)))
            for each in response.items
        )
        return cls(**_head(response), items=tuple(items), known_fields=tuple(response.known_fields))


def _head(response: RankResponse | ExplainResponse) -> dict[str, Any]:
    """What a ranking and an explanation both have."""
    return {
        "request_id": response.request_id,
        "model": response.model,
        "version": response.version,
        "variant": response.variant,
        "degraded": tuple(map(Degradation.of, response.degraded)),
        "unknown_items": tuple(response.unknown_items),
        "unknown_fields": tuple(response.unknown_fields),
    }


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
FilterTest: TypeAlias = str | Sequence[str] | tuple[float | None, float | None]
Exploration: TypeAlias = UpperConfidenceBound | Thompson


class RankOptions(TypedDict, total=False):
    """The keywords of a ranking besides its user, context and candidates; all are optional.

    cookie: the user's id. candidate_set: a set in the store, instead of candidates. objective, caps (at most N by
    field), exploration: docs/ranking.md. filters: a list of AnyOf, NoneOf and Between, or tests by field, where a text
    or several texts are AnyOf and two numbers (None is no bound) are Between. variant: forces one, for tests. no_log:
    for load tests; with it, or a forced variant, a server logs no impression (docs/events.md). deferred: the list is
    perhaps never shown, so it is learned from only once `activated` is reported.
    """

    cookie: str
    candidate_set: str
    top_k: int | None
    variant: str | None
    request_id: str
    objective: str
    filters: Sequence[Filter] | Mapping[str, FilterTest]
    caps: Mapping[str, int]
    exploration: Exploration | None
    no_log: bool
    deferred: bool


class Options(RankOptions, total=False):
    """The keywords of a ranking; all are optional, but there must be candidates.

    candidates: ids of items in the store; items: features by id, for items with features of their own. user: features,
    or the user's id, whose stored features are used; with both, give the id as `cookie`. context: features. None is no
    value, a list is a set, a mapping to numbers a weighted set, and a list under `raw_keys` whole keys of a model that
    was trained elsewhere.
    """

    candidates: Sequence[str] | None
    items: Mapping[str, FeatureValues] | None
    user: FeatureValues | str | None
    context: FeatureValues | None


class Asked(NamedTuple):
    """A ranking request in the wire's terms, from the keywords of a ranking. candidates: as they were given.

    Features are texts, numbers, lists for sets and dicts for weighted sets; raw keys are beside them.
    """

    model: str
    request_id: str
    cookie: str
    user: tuple[dict[str, Any], list[str]]
    context: tuple[dict[str, Any], list[str]]
    candidates: Iterable[str]
    items: list[tuple[str, tuple[dict[str, Any], list[str]]]]
    candidate_set: str
    top_k: int | None
    variant: str | None
    no_log: bool
    deferred: bool
    objective: str
    filters: list[Filter]
    caps: list[tuple[str, int]]
    exploration: tuple[Literal["ucb", "thompson"], float] | None

    @classmethod
    def of(cls, model: str, **options: Unpack[Options]) -> Asked:
        """Check the keywords.

        Raises FieldValueError for text that is not Unicode, TypeError for an unknown keyword or a value of another
        type, ValueError for a number that is no int32.
        """
        if not options.keys() <= Options.__optional_keys__:
            raise TypeError(_unknown(options))
        candidates = options.get("candidates")
        if isinstance(candidates, str):
            raise TypeError(f"candidates: got the text {candidates!r}, expected a list of ids")
        cookie, user = options.get("cookie", ""), options.get("user")
        if isinstance(user, str):
            if cookie not in ("", user):
                raise TypeError(f"got user={user!r} and cookie={cookie!r}; give one id of the user")
            cookie, user = user, None
        elif not isinstance(user, Mapping | None):
            raise TypeError(f"user: got {user!r}, expected features by name, or the user's id as a text")
        top_k, variant, exploration = options.get("top_k"), options.get("variant"), options.get("exploration")
        policy: Literal["ucb", "thompson"] = (
            "ucb" if isinstance(exploration, UpperConfidenceBound) else "thompson"
        )
        items = (options.get("items") or {}).items()
        caps = options.get("caps", {}).items()
        return cls(
            model=text_of(model, "model"),
            request_id=text_of(options.get("request_id", ""), "request_id"),
            cookie=text_of(cookie, "cookie"),
            user=_features("user", user),
            context=_features("context", options.get("context")),
            candidates=() if candidates is None else candidates,
            items=[(text_of(item, "items"), _features(f"items[{item!r}]", each)) for item, each in items],
            candidate_set=text_of(options.get("candidate_set", ""), "candidate_set"),
            top_k=None if top_k is None else _int32(top_k),
            variant=None if variant is None else text_of(variant, "variant"),
            no_log=bool(operator.index(options.get("no_log", False))),
            deferred=bool(operator.index(options.get("deferred", False))),
            objective=text_of(options.get("objective", ""), "objective"),
            filters=_filters(options.get("filters", ())),
            caps=[(text_of(name, "caps"), _int32(most)) for name, most in caps],
            exploration=None if exploration is None else (policy, _double(exploration.width)),
        )

    def ids(self) -> list[str]:
        """The candidates. Raises FieldValueError and TypeError, as `of`."""
        return [text_of(each, "candidates", at) for at, each in enumerate(self.candidates)]

    def message(self) -> RankRequest:
        """As it goes over the wire. Raises FieldValueError and TypeError for candidates, as `of`."""
        request = RankRequest(
            model=self.model,
            request_id=self.request_id,
            cookie=self.cookie,
            candidate_set=self.candidate_set,
            top_k=self.top_k,
            variant=self.variant,
            objective=self.objective,
            no_log=self.no_log,
            deferred=self.deferred,
        )
        try:
            # All at once, in C; only a failure looks for the id at fault.
            request.item_ids.extend(self.candidates)
        except (TypeError, UnicodeEncodeError):
            self.ids()  # raises for the one at fault
            raise
        _add_features(request.user, *self.user)
        _add_features(request.context, *self.context)
        for item_id, features in self.items:
            _add_features(request.items.add(id=item_id).features, *features)
        for one in self.filters:
            message = request.filters.add(field=one.field)
            if isinstance(one, Between):
                # Without it a range without bounds would be no filter at all, since nothing in it is assigned.
                message.range.SetInParent()
                if one.least is not None:
                    message.range.min = one.least
                if one.most is not None:
                    message.range.max = one.most
            else:
                (message.any_of if isinstance(one, AnyOf) else message.none_of).values.extend(one.values)
        for field, at_most in self.caps:
            request.caps.add(field=field, at_most=at_most)
        if self.exploration is not None:
            policy, width = self.exploration
            (request.exploration.ucb if policy == "ucb" else request.exploration.thompson).width = width
        return request


def request_of(model: str, **options: Unpack[Options]) -> RankRequest:
    """The message of a ranking with these keywords. Raises as `Asked.of`."""
    return Asked.of(model, **options).message()


def _unknown(options: Mapping[str, object]) -> str:
    """The message for keywords that no ranking has."""
    known = list(Options.__annotations__)
    name = next(each for each in options if each not in known)
    return f"unexpected keyword {name!r}; a ranking takes {listed(known, name)}"


def text_of(value: object, path: str, key: object = None) -> str:
    """A text as the wire has it. path, key: its place in the request.

    Raises TypeError for anything else, FieldValueError for a lone surrogate.
    """
    if type(value) is not str:
        if not isinstance(value, str):
            where = path if key is None else f"{path}[{key!r}]"
            raise TypeError(f"{where}: got {value!r}, expected a text")
        value = str.__str__(value)  # of numpy, or an Enum
    # isascii looks at a flag of the string; only other texts are encoded, to find a lone surrogate.
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise FieldValueError(f"got {value!r}, which is not Unicode text; expected UTF-8") from None
    return value


def _double(value: Any) -> float:
    """A number as the wire has it. Raises TypeError."""
    # ldexp takes whatever has __float__ or __index__, and refuses a text, which float() would parse.
    return value if type(value) is float else math.ldexp(value, 0)


def _int32(value: Any) -> int:
    """A whole number as the wire has it. Raises TypeError, ValueError."""
    # bool has __index__: True would be 1.
    if isinstance(value, bool):
        raise TypeError(f"got {value}, expected a whole number")
    number = operator.index(value)
    if not -(2**31) <= number < 2**31:
        raise ValueError(f"Value out of range: {number}")
    return number


def _features(side: str, given: FeatureValues | None) -> tuple[dict[str, Any], list[str]]:
    """The values of the user, the context or an item by name without those that are absent, and the raw keys."""
    values: dict[str, Any] = {}
    raw_keys: list[str] = []
    for name, value in (given or {}).items():
        text_of(name, side)
        # The order matters: a bool is an int, and a datetime is a date.
        if isinstance(value, str):
            values[name] = text_of(value, side, name)
        elif isinstance(value, bool):
            values[name] = "true" if value else "false"
        elif isinstance(value, int):
            # Its digits, as a log has them: as a double an id above 2**53 would lose some.
            values[name] = str(value)
        elif isinstance(value, float):
            values[name] = float(value)
        elif value is None or type(value).__name__ in ("NAType", "NaTType"):
            # Of pandas: by name, so that it need not be imported.
            continue
        elif isinstance(value, datetime):  # as a column of a table writes it
            values[name] = f"{value:%Y-%m-%d %H:%M:%S.%f%z}".replace("+0000", "Z")
        elif isinstance(value, date | Decimal | UUID):
            values[name] = str(value)
        elif hasattr(value, "tolist"):  # a scalar or an array of numpy
            of_python, more_keys = _features(side, {name: value.tolist()})
            values |= of_python
            raw_keys += more_keys
        elif isinstance(value, Mapping):
            members = [(text_of(member, side, name), _double(weight)) for member, weight in value.items()]
            # By name: a sum rounds by its order, and a map of the wire, which has none, is sorted by the server too.
            values[name] = dict(sorted(members))
        elif name == RAW_KEYS:
            raw_keys += [text_of(key, side, name) for key in value]
        elif isinstance(value, Iterable):
            values[name] = [text_of(member, side, name) for member in value]
        else:
            kind = type(value).__name__
            raise FieldValueError(
                f"{name}: got a {kind}, expected text, a number, a boolean, a time, or several texts"
            )
    return values, raw_keys


def _add_features(features: Features, values: Mapping[str, Any], raw_keys: Sequence[str]) -> None:
    for name, value in values.items():
        message = features.values[name]
        if isinstance(value, str):
            message.text = value
        elif isinstance(value, float):
            message.number = value
        elif isinstance(value, dict):
            # An empty set is a value: without this the oneof would stay unset.
            message.weighted_set.SetInParent()
            message.weighted_set.members.update(value)
        else:
            message.set.SetInParent()
            message.set.values.extend(value)
    if raw_keys:  # else extending would make an absent message an empty one
        features.raw_keys.extend(raw_keys)


def _filters(given: Sequence[Filter] | Mapping[str, FilterTest]) -> list[Filter]:
    if isinstance(given, Mapping):
        given = [_filter(field, test) for field, test in given.items()]
    made: list[Filter] = []
    for one in given:
        field = text_of(one.field, "filters")
        if isinstance(one, Between):
            least, most = (None if each is None else _double(each) for each in (one.least, one.most))
            made.append(Between(field, least, most))
        else:
            made.append(type(one)(field, [text_of(value, "filters") for value in one.values]))
    return made


def _filter(field: str, test: FilterTest) -> Filter:
    if isinstance(test, str):
        return AnyOf(field, [test])
    values: list[Any] = list(test) if isinstance(test, Iterable) else [test]
    if all(isinstance(value, str) for value in values):
        return AnyOf(field, values)
    if len(values) == 2 and all(value is None or isinstance(value, Real) for value in values):
        return Between(field, *values)
    raise TypeError(
        f"filters: got {test!r} for {field!r}, expected a text, several texts, or the pair (least, most) of numbers"
    )
