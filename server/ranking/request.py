"""A ranking request: what a `ctr.v1.RankRequest` or a caller in this process says, checked against every limit.

The paths in errors are protobuf field paths: `item_ids[3]`, `context.values["age"]`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from ctr.v1.ranking_pb2 import Cap as CapMessage
from ctr.v1.ranking_pb2 import ExplainRequest, Features, FeatureValue, Filter, RankRequest
from model_store.errors import FieldValueError, ObjectiveError, listed
from model_store.features.features import FeaturePlan
from model_store.features.objective import Objective
from model_store.spec.values import Value
from model_store.versions.experiments import THOMPSON, Explore
from server.errors import InvalidObjective, InvalidRequest, check_deadline, unreadable
from server.model.columns import InlineItem, ItemIds
from server.ranking.limits import (
    MAX_CANDIDATES,
    MAX_CAPS,
    MAX_FILTER_VALUES,
    MAX_FILTERS,
    MAX_ID_BYTES,
    check_fields,
    check_id,
    check_members,
)
from server.ranking.request_kernels import FIELDS, FOUND, IRREGULAR, REST, split
from server.ranking.select.exploration import Exploration
from server.ranking.select.filters import AnyOf, Cap, Condition, InRange, NoneOf
from server.ranking.select.selection import Options

Array = npt.NDArray[Any]
RAW_KEYS = "raw_keys"
_FIRST_BYTES = 1 << 14
_MAX_KEPT_BYTES = 1 << 20  # every thread would keep 80 MiB of scratch for a message of 16 MiB
_NOT_PLAIN = sum(
    1 << RankRequest.DESCRIPTOR.fields_by_name[name].number
    for name in ("items", "candidate_set", "variant", "objective", "filters", "caps", "exploration")
)
_local = threading.local()


class GivenFeatures(NamedTuple):
    """The features of a user, a context or an item, as they were given; a value of None is a message without one."""

    values: Mapping[str, Value | None] = {}
    raw_keys: Sequence[str] = ()


class GivenFilter(NamedTuple):
    """A filter as it was given; test is None for a message without one. least and most: of a range."""

    field: str
    test: Literal["any_of", "none_of", "range"] | None
    values: Sequence[str] = ()
    least: float = -math.inf
    most: float = math.inf


class Extras(NamedTuple):
    """The parts that most requests lack. filters are made when they are read, once: there may be too many of them.

    exploration: the policy, None for a message without one, and the width.
    """

    items: Sequence[tuple[str, GivenFeatures]] = ()
    candidate_set: str = ""
    variant: str | None = None
    objective: str = ""
    filters: Iterable[GivenFilter] = ()
    filter_count: int = 0
    caps: Sequence[Cap | CapMessage] = ()
    exploration: tuple[Literal["ucb", "thompson"] | None, float] | None = None


class Request:
    """One ranking request, of a caller in this process; `Received` is one that came as a message. For one thread.

    item_ids: the named candidates. extras: None if the request has none of them. size: bytes of the message, else 0.
    """

    __slots__ = (
        "_sides", "cookie", "deferred", "extras", "item_ids", "model", "no_log", "request_id", "size", "top_k",
    )  # fmt: skip

    def __init__(
        self,
        item_ids: Sequence[str],
        user: GivenFeatures,
        context: GivenFeatures,
        cookie: str = "",
        request_id: str = "",
        top_k: int | None = None,
        no_log: bool = False,
        deferred: bool = False,
        extras: Extras | None = None,
    ) -> None:
        self.item_ids, self.cookie, self.request_id, self.top_k = item_ids, cookie, request_id, top_k
        self.no_log, self.deferred, self.extras = no_log, deferred, extras
        self.model, self.size = "", 0
        self._sides: tuple[GivenFeatures, GivenFeatures] | None = (user, context)

    def sides(self) -> tuple[GivenFeatures, GivenFeatures]:
        """The features of the user and of the context. Raises InvalidRequest for a message that cannot be read."""
        assert self._sides is not None
        return self._sides

    def values(self) -> dict[str, Value | None]:
        """The features by name, the context's over the user's, without raw keys. Raises as `sides`."""
        user, context = self.sides()
        return {**user.values, **context.values}


class Received(Request):
    """One request as it arrived. found: where `split` located user and context; None if protobuf has parsed it all."""

    __slots__ = ("_bytes", "found", "text")

    def __init__(self, message: bytes) -> None:
        """O(bytes). Raises DecodeError."""
        self._bytes, self._sides = message, None
        self.text = np.frombuffer(message, np.uint8)
        spans, rest, found = _scratch(len(message))
        count = split(self.text, spans, rest, found)
        if count == IRREGULAR:
            # What the kernel does not take may be valid or not: the protobuf library decides.
            self._parse(RankRequest.FromString(message), len(message))
        else:
            # The library reads the few other fields: hundreds of ids are left in the bytes.
            brief = RankRequest.FromString(rest[: found[REST]].tobytes())
            # Copies, since calls that are taken together are all read before the first of them is answered.
            self.found: Array | None = found.copy()
            self._take(brief, len(message), not int(found[FIELDS]) & _NOT_PLAIN)
            self.item_ids = ItemIds(message, self.text, spans[:count].copy())

    @classmethod
    def of(cls, request: RankRequest) -> Received:
        """A request that the protobuf library has parsed."""
        made = cls.__new__(cls)
        made._bytes, made.text = b"", np.empty(0, np.uint8)
        made._parse(request, request.ByteSize())
        return made

    def _parse(self, request: RankRequest, size: int) -> None:
        self._take(request, size, is_plain=False)
        self.item_ids, self.found = request.item_ids[:], None
        self._sides = _given(request.user), _given(request.context)

    def _take(self, brief: RankRequest, size: int, is_plain: bool) -> None:
        """Take what `brief` has, which may lack item ids, user and context."""
        self.model, self.cookie, self.request_id = brief.model, brief.cookie, brief.request_id
        self.top_k = brief.top_k if brief.HasField("top_k") else None
        self.no_log, self.deferred, self.size = brief.no_log, brief.deferred, size
        self.extras = None if is_plain else _extras(brief)

    def sides(self) -> tuple[GivenFeatures, GivenFeatures]:
        """See `Request`."""
        if self._sides is None:
            assert self.found is not None
            _, user, user_end, context, context_end, _ = self.found.tolist()
            try:
                self._sides = (
                    _given(Features.FromString(self._bytes[user:user_end])),
                    _given(Features.FromString(self._bytes[context:context_end])),
                )
            except DecodeError as error:
                raise unreadable(RankRequest, error) from None
        return self._sides


def _given(features: Features) -> GivenFeatures:
    # Nearly every value is a text: reading it is cheaper than asking which kind it is.
    values = {name: value.text or _not_text(value) for name, value in features.values.items()}
    return GivenFeatures(values, features.raw_keys)


def _not_text(value: FeatureValue) -> Value | None:
    """A value that is no text, or an empty one."""
    kind = value.WhichOneof("kind")
    if kind == "number":
        return value.number
    if kind == "set":
        return list(value.set.values)
    if kind == "weighted_set":  # a map has no order, and sums round by theirs
        return dict(sorted(value.weighted_set.members.items()))
    return None if kind is None else ""


def _extras(brief: RankRequest) -> Extras:
    exploration, policy = brief.exploration, brief.exploration.WhichOneof("policy")
    width = exploration.ucb.width if policy == "ucb" else exploration.thompson.width
    return Extras(
        [(item.id, _given(item.features)) for item in brief.items],
        brief.candidate_set,
        brief.variant if brief.HasField("variant") else None,
        brief.objective,
        map(_filter, brief.filters),
        len(brief.filters),
        brief.caps,
        (policy, width) if brief.HasField("exploration") else None,
    )


def _filter(one: Filter) -> GivenFilter:
    test = one.WhichOneof("test")
    if test != "range":
        return GivenFilter(one.field, test, one.none_of.values if test == "none_of" else one.any_of.values)
    least = one.range.min if one.range.HasField("min") else -math.inf
    most = one.range.max if one.range.HasField("max") else math.inf
    return GivenFilter(one.field, test, (), least, most)


def received(message: bytes, explain: bool = False) -> Received | InvalidRequest:
    """A Rank request, or the one inside an Explain request; or the error, for the caller to count and raise."""
    try:
        return Received.of(ExplainRequest.FromString(message).request) if explain else Received(message)
    except DecodeError as error:
        return unreadable(ExplainRequest if explain else RankRequest, error)


def _scratch(size: int) -> tuple[Array, Array, Array]:
    """This thread's scratch arrays for a message of `size` bytes. Those for an uncommonly long one are not kept."""
    have: tuple[Array, Array, Array] | None = getattr(_local, "scratch", None)
    if have is None or len(have[1]) < size:
        # An id takes two bytes of the message at least, its tag and its length.
        room = max(size, _FIRST_BYTES)
        have = np.empty((room // 2 + 1, 2), np.int32), np.empty(room, np.uint8), np.empty(FOUND, np.int64)
        if room <= _MAX_KEPT_BYTES:
            _local.scratch = have
    return have


class RequestSchema(NamedTuple):
    """How a plan reads requests.

    user_raw, context_raw, item_raw: the fields that take `raw_keys` of the user, the context and an inline item. Keys
    of the user go to the context's raw field if the plan has none for the user, and the other way round.
    """

    plan: FeaturePlan
    user_raw: str | None
    context_raw: str | None
    item_raw: str | None
    item_names: frozenset[str]

    @classmethod
    def of(cls, plan: FeaturePlan) -> RequestSchema:
        """The plan's. O(fields)."""
        # Reversed, so that of several raw fields of one side the first one counts.
        raw = {f.side: f.name for f in reversed(plan.fields) if f.kind.whole_keys}
        user, context = raw.get("user", raw.get("context")), raw.get("context", raw.get("user"))
        return cls(plan, user, context, raw.get("item"), frozenset(f.name for f in plan.item_fields))


# -- features


def read_features(request: Request, schema: RequestSchema) -> dict[str, Value]:
    """The request's features by field name; the context's replace the user's. Raises InvalidRequest."""
    user, context = request.sides()
    merged = {**_checked("user", user.values), **_checked("context", context.values)}
    if user.raw_keys or context.raw_keys:
        check_members(("user.raw_keys", "context.raw_keys"), [*user.raw_keys, *context.raw_keys])
        raw: dict[str, list[str]] = {}
        for name, keys in (
            (schema.user_raw, user.raw_keys),
            (schema.context_raw, context.raw_keys),
        ):
            if keys:
                raw.setdefault(name or RAW_KEYS, []).extend(keys)
        for name in raw.keys() & merged.keys():
            raise InvalidRequest(
                ("user.raw_keys", "context.raw_keys"), f"values contain the raw field {name!r} as well"
            )
        merged |= raw
    check_fields(("user", "context"), merged)
    return merged


def _checked(path: str, values: Mapping[str, Value | None]) -> Mapping[str, Value]:
    """The values. Raises InvalidRequest for none where one should be, or a set with too many members."""
    for name, value in values.items():
        if type(value) is str:  # nearly every one
            continue
        if value is None:
            raise InvalidRequest(
                f'{path}.values["{name}"]', "no value; give text, number, set or weighted_set"
            )
        if isinstance(value, list | dict):
            check_members(f'{path}.values["{name}"]', value)
    return values


def misfit(request: Request, schema: RequestSchema) -> InvalidRequest | None:
    """The first value in the request that does not fit its field, or None if every value does."""
    for path, name, value in _values(request, schema):
        field = schema.plan.field(name or "")
        if field is not None and field.side == "item" and not path.startswith("items["):
            return InvalidRequest(path, "belongs to the item; give it with an item spelled out, in items")
        try:
            if field is not None:
                field.tokens(value)
        except FieldValueError as error:
            return InvalidRequest(path, str(error))
    return None


def _values(request: Request, schema: RequestSchema) -> Iterator[tuple[str, str | None, Value]]:
    """Each value: its path, its field's name, and the value."""
    user, context = request.sides()
    sides = [("user", user, schema.user_raw), ("context", context, schema.context_raw)]
    for index, (_, features) in enumerate(request.extras.items if request.extras is not None else ()):
        sides.append((f"items[{index}].features", features, schema.item_raw))
    for path, features, raw_field in sides:
        for name, value in _checked(path, features.values).items():
            yield f'{path}.values["{name}"]', name, value
        for index, key in enumerate(features.raw_keys):
            yield f"{path}.raw_keys[{index}]", raw_field, [key]


# -- candidates


def check_top_k(top_k: int | None) -> int | None:
    """How many items are wanted; None for all. Raises InvalidRequest."""
    if top_k is not None and top_k < 1:
        raise InvalidRequest("top_k", f"got {top_k}, expected at least 1; leave it out to get every item")
    return top_k


def read_inline(request: Request, schema: RequestSchema) -> list[InlineItem] | None:
    """The inline items beside those named; None if the request names a candidate set instead.

    Raises InvalidRequest. Named ids are checked by `check_unknown`, once it is known which ones the catalogue lacks.
    """
    extras, inline = request.extras, list[InlineItem]()
    if extras is not None and extras.items:
        inline = [_inline_item(index, *item, schema) for index, item in enumerate(extras.items)]
    count = len(request.item_ids) + len(inline)
    if extras is not None and extras.candidate_set:
        if count:
            raise InvalidRequest(
                "candidate_set", "give either a candidate set, or item_ids and items, not both"
            )
        return None
    if not count:
        raise InvalidRequest(
            "item_ids", "no candidates; give item_ids, items, or the name of a candidate_set"
        )
    if count > MAX_CANDIDATES:
        raise InvalidRequest(("item_ids", "items"), f"{count} candidates; the limit is {MAX_CANDIDATES}")
    return inline


def _inline_item(index: int, item_id: str, features: GivenFeatures, schema: RequestSchema) -> InlineItem:
    if not item_id:
        raise InvalidRequest(f"items[{index}].id", "empty; an item id has at least one character")
    check_id(f"items[{index}].id", item_id)
    path = f"items[{index}].features"
    values = _checked(path, features.values)
    if features.raw_keys:
        check_members(f"{path}.raw_keys", features.raw_keys)
        if (name := schema.item_raw or RAW_KEYS) in values:
            raise InvalidRequest(f"{path}.raw_keys", f"values contain the raw field {name!r} as well")
        values = {**values, name: list(features.raw_keys)}
    check_fields(path, values)
    return item_id, values


def check_unknown(item_ids: Sequence[str], unknown: Sequence[str]) -> None:
    """Raise InvalidRequest for an empty or too long id among those named. No catalogue has such an id."""
    if "" in unknown and "" in item_ids:
        at = item_ids.index("")
        raise InvalidRequest(f"item_ids[{at}]", "empty; an item id has at least one character")
    if max(map(len, unknown)) * 4 > MAX_ID_BYTES:
        for at, item in enumerate(item_ids):
            check_id(f"item_ids[{at}]", item)


def unknown_item_fields(inline: Sequence[InlineItem], schema: RequestSchema) -> list[str]:
    """Names among the features of inline items that are not item fields of the model, each once."""
    known = schema.item_names
    odd = [features for _, features in inline if not features.keys() <= known]
    return list(dict.fromkeys(name for features in odd for name in features if name not in known))


# -- variant and options


def variant_named(name: str | None, variant_of: Mapping[str, int]) -> int | None:
    """The variant of this name, None for no name. Raises InvalidRequest for one that the model lacks."""
    if name is None:
        return None
    number = variant_of.get(name)
    if number is None:
        raise InvalidRequest("variant", f"no variant {name!r}; the model has: {listed(variant_of, name)}")
    return number


def read_options(
    extras: Extras | None,
    default_objective: str,
    until_s: float = math.inf,
    explore: Explore | None = None,
    apprentice: bool = False,
) -> Options | None:
    """The options of a request to a model with this objective ("" for none); None for the plain order.

    explore, apprentice: of the model's experiment; the request's own exploration replaces that one. Raises
    InvalidRequest, and DeadlinePassed after `until_s` (monotonic).
    """
    extras = extras or _NO_EXTRAS
    objective = extras.objective or default_objective
    exploration = None
    if extras.exploration is not None:
        exploration = _exploration(*extras.exploration)
    elif explore is not None and not apprentice:
        exploration = Exploration(explore.width, explore.policy == THOMPSON, explore)
    # A forced variant is for looking at: it shows the model's order. A candidate set has no order of its own.
    apprentice = apprentice and extras.variant is None and not extras.candidate_set
    if not (objective or extras.filter_count or extras.caps or exploration is not None or apprentice):
        return None
    try:
        compiled = Objective.of(objective) if objective else None
    except ObjectiveError as error:
        raise InvalidObjective(str(error)) from None
    return Options(
        compiled,
        _conditions(extras, until_s),
        _caps(extras.caps),
        None if apprentice else exploration,
        apprentice,
    )


_NO_EXTRAS = Extras()


def _conditions(extras: Extras, until_s: float) -> tuple[Condition, ...]:
    if extras.filter_count > MAX_FILTERS:
        raise InvalidRequest("filters", f"got {extras.filter_count}; the limit is {MAX_FILTERS}")
    conditions = []
    for at, one in enumerate(extras.filters):
        check_deadline(until_s)
        conditions.append(_condition(f"filters[{at}]", one))
    return tuple(conditions)


def _condition(path: str, one: GivenFilter) -> Condition:
    field = _named(f"{path}.field", one.field)
    if one.test is None:
        raise InvalidRequest(path, "no test; give any_of, none_of or range")
    if one.test == "range":
        if not one.least <= one.most:  # false where one of them is NaN
            raise InvalidRequest(
                f"{path}.range", f"got {one.least} to {one.most}, expected a min that is not above the max"
            )
        return InRange(field, one.least, one.most)
    if not 1 <= len(one.values) <= MAX_FILTER_VALUES:
        raise InvalidRequest(
            f"{path}.{one.test}", f"got {len(one.values)} values, expected 1 to {MAX_FILTER_VALUES}"
        )
    return AnyOf(field, tuple(one.values)) if one.test == "any_of" else NoneOf(field, tuple(one.values))


def _caps(caps: Sequence[Cap | CapMessage]) -> tuple[Cap, ...]:
    if len(caps) > MAX_CAPS:
        raise InvalidRequest("caps", f"got {len(caps)}; the limit is {MAX_CAPS}")
    for at, cap in enumerate(caps):
        if cap.at_most < 1:
            raise InvalidRequest(f"caps[{at}].at_most", f"got {cap.at_most}, expected at least 1")
    return tuple(Cap(_named(f"caps[{at}].field", cap.field), cap.at_most) for at, cap in enumerate(caps))


def _exploration(policy: Literal["ucb", "thompson"] | None, width: float) -> Exploration:
    if policy is None:
        raise InvalidRequest("exploration", "no policy; give ucb or thompson")
    if not 0.0 <= width < math.inf:
        raise InvalidRequest(
            f"exploration.{policy}.width", f"got {width}, expected a finite number, 0 or more"
        )
    return Exploration(width, is_drawn=policy == "thompson")


def _named(path: str, field: str) -> str:
    if not field:
        raise InvalidRequest(path, "empty; name an item's field")
    return field
