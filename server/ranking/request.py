"""Reading a `ctr.v1.RankRequest`: its bytes become Python values, checked against every limit.

The paths in error messages are protobuf field paths: `item_ids[3]`, `context.values["age"]`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from ctr.v1.ranking_pb2 import Cap as CapMessage
from ctr.v1.ranking_pb2 import ExplainRequest, Features, FeatureValue, Filter, Item, RankRequest
from ctr.v1.ranking_pb2 import Exploration as ExplorationMessage
from model_store.errors import FieldValueError, listed
from model_store.features.features import FeaturePlan
from model_store.features.values import Value
from server.errors import InvalidRequest, ObjectiveError, check_deadline, unreadable
from server.model.catalogue import InlineItem
from server.model.item_ids import ItemIds
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
from server.ranking.select.exploration import Exploration, Thompson, UpperConfidenceBound
from server.ranking.select.filters import AnyOf, Cap, Condition, InRange, NoneOf
from server.ranking.select.objective import Objective
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


class Received:
    """One request as it arrived. For one thread at a time.

    item_ids: the named candidates. brief: the message, perhaps without item ids, user and context. found: where
    `split` located user and context in the bytes; None if the protobuf library has parsed all of the message. is_plain:
    it surely has no inline items, candidate set, variant and options.
    """

    __slots__ = ("_bytes", "_is_whole", "brief", "found", "is_plain", "item_ids", "size", "text")

    def __init__(self, message: bytes) -> None:
        """O(bytes). Raises DecodeError."""
        self._bytes, self.size = message, len(message)
        self.text = np.frombuffer(message, np.uint8)
        spans, rest, found = _scratch(len(message))
        count = split(self.text, spans, rest, found)
        if count == IRREGULAR:
            self._parsed(RankRequest.FromString(message))
        else:
            self.brief = RankRequest.FromString(rest[: found[REST]].tobytes())
            self.item_ids: Sequence[str] = ItemIds(message, self.text, spans[:count].copy())
            self.found: Array | None = found.copy()
            self.is_plain = not int(found[FIELDS]) & _NOT_PLAIN
            self._is_whole = False

    @classmethod
    def of(cls, request: RankRequest) -> Received:
        """A request that the protobuf library has parsed."""
        made = cls.__new__(cls)
        made._bytes, made.size, made.text = b"", request.ByteSize(), np.empty(0, np.uint8)
        made._parsed(request)
        return made

    def _parsed(self, request: RankRequest) -> None:
        self.brief, self.item_ids, self.found, self._is_whole = request, request.item_ids[:], None, True
        self.is_plain = False

    def with_features(self) -> RankRequest:
        """The message with user and context; it may lack the item ids. Raises InvalidRequest."""
        if not self._is_whole and self.found is not None:
            _, user, user_end, context, context_end, _ = self.found.tolist()
            try:
                if user:
                    self.brief.user.MergeFromString(self._bytes[user:user_end])
                if context:
                    self.brief.context.MergeFromString(self._bytes[context:context_end])
            except DecodeError as error:
                raise unreadable(RankRequest, error) from None
            self._is_whole = True
        return self.brief

    def texts(self) -> dict[str, Value]:
        """The features of a request that has only texts, as `read_features` reads them. Only where `found` is set."""
        assert self.found is not None
        _, user, user_end, context, context_end, _ = self.found.tolist()
        values: dict[str, Value] = {}
        for begin, end in ((user, user_end), (context, context_end)):
            if begin:
                features = Features.FromString(self._bytes[begin:end])
                values.update((name, value.text) for name, value in features.values.items())
        return values


def received(message: bytes) -> Received | InvalidRequest:
    """A Rank request, or the error: grpc answers INTERNAL where a deserializer raises."""
    try:
        return Received(message)
    except DecodeError as error:
        return unreadable(RankRequest, error)


def explain_received(message: bytes) -> Received | InvalidRequest:
    """The request inside an ExplainRequest, or the error."""
    try:
        return Received.of(ExplainRequest.FromString(message).request)
    except DecodeError as error:
        return unreadable(ExplainRequest, error)


def _scratch(size: int) -> tuple[Array, Array, Array]:
    """This thread's scratch arrays for a message of `size` bytes. Those for an uncommonly long one are not kept."""
    have: tuple[Array, Array, Array] | None = getattr(_local, "scratch", None)
    if have is None or len(have[1]) < size:
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
        raw = {f.side: f.name for f in reversed(plan.fields) if f.kind == "raw"}
        user, context = raw.get("user", raw.get("context")), raw.get("context", raw.get("user"))
        return cls(plan, user, context, raw.get("item"), frozenset(f.name for f in plan.item_fields))


# -- features


def read_features(message: Received, schema: RequestSchema) -> dict[str, Value]:
    """The request's features by field name; the context's replace the user's. Raises InvalidRequest."""
    request = message.with_features()
    user, context = request.user, request.context
    merged = _read_values("user", user)
    merged |= _read_values("context", context)
    if user.raw_keys or context.raw_keys:
        check_members("user.raw_keys, context.raw_keys", [*user.raw_keys, *context.raw_keys])
        raw: dict[str, list[str]] = {}
        for name, keys in (
            (schema.user_raw, user.raw_keys),
            (schema.context_raw, context.raw_keys),
        ):
            if keys:
                raw.setdefault(name or RAW_KEYS, []).extend(keys)
        for name in raw.keys() & merged.keys():
            raise InvalidRequest(
                f"user.raw_keys, context.raw_keys: values contain the raw field {name!r} as well"
            )
        merged |= raw
    check_fields("user, context", merged)
    return merged


def _read_values(path: str, features: Features) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for name, value in features.values.items():
        kind = value.WhichOneof("kind")
        values[name] = value.text if kind == "text" else _not_text(f'{path}.values["{name}"]', kind, value)
    return values


def _not_text(path: str, kind: str | None, value: FeatureValue) -> Value:
    """A number or a set. Raises InvalidRequest for no value, or a set with too many members."""
    if kind == "number":
        return value.number
    if kind == "set":
        check_members(path, value.set.values)
        return list(value.set.values)
    if kind == "weighted_set":
        check_members(path, value.weighted_set.members)
        return dict(
            sorted(value.weighted_set.members.items())
        )  # a map has no order, and sums round by theirs
    raise InvalidRequest(f"{path}: no value; give text, number, set or weighted_set")


def misfit(message: Received, schema: RequestSchema) -> InvalidRequest | None:
    """The first value in the request that does not fit its field, or None if every value does."""
    for path, name, value in _values(message.with_features(), schema):
        field = schema.plan.field(name or "")
        if field is not None and field.side == "item" and not path.startswith("items["):
            return InvalidRequest(f"{path}: belongs to the item; give it with an item spelled out, in items")
        try:
            if field is not None:
                field.tokens(value)
        except FieldValueError as error:
            return InvalidRequest(f"{path}: {error}")
    return None


def _values(request: RankRequest, schema: RequestSchema) -> Iterator[tuple[str, str | None, Value]]:
    yield from _feature_values("user", request.user, schema.user_raw)
    yield from _feature_values("context", request.context, schema.context_raw)
    for index, item in enumerate(request.items):
        yield from _feature_values(f"items[{index}].features", item.features, schema.item_raw)


def _feature_values(
    path: str, features: Features, raw_field: str | None
) -> Iterator[tuple[str, str | None, Value]]:
    for name, value in _read_values(path, features).items():
        yield f'{path}.values["{name}"]', name, value
    for index, key in enumerate(features.raw_keys):
        yield f"{path}.raw_keys[{index}]", raw_field, [key]


# -- candidates


def read_top_k(request: RankRequest) -> int | None:
    """How many items are wanted; None for all. Raises InvalidRequest."""
    if not request.HasField("top_k"):
        return None
    if request.top_k < 1:
        raise InvalidRequest(
            f"top_k: got {request.top_k}, expected at least 1; leave it out to get every item"
        )
    return request.top_k


def read_inline(message: Received, schema: RequestSchema) -> list[InlineItem] | None:
    """The inline items beside those named; None if the request names a candidate set instead.

    Raises InvalidRequest. Named ids are checked by `check_unknown`, once it is known which ones the catalogue lacks.
    """
    request, inline = message.brief, list[InlineItem]()
    if not message.is_plain and request.items:
        inline = [_inline_item(item, index, schema) for index, item in enumerate(request.items)]
    count = len(message.item_ids) + len(inline)
    if not message.is_plain and request.candidate_set:
        if count:
            raise InvalidRequest(
                "candidate_set: give either a candidate set, or item_ids and items, not both"
            )
        return None
    if not count:
        raise InvalidRequest("item_ids: no candidates; give item_ids, items, or the name of a candidate_set")
    if count > MAX_CANDIDATES:
        raise InvalidRequest(f"item_ids, items: {count} candidates; the limit is {MAX_CANDIDATES}")
    return inline


def _inline_item(item: Item, index: int, schema: RequestSchema) -> InlineItem:
    if not item.id:
        raise InvalidRequest(f"items[{index}].id: empty; an item id has at least one character")
    check_id(f"items[{index}].id", item.id)
    features = item.features
    path = f"items[{index}].features"
    values = _read_values(path, features)
    if features.raw_keys:
        check_members(f"{path}.raw_keys", features.raw_keys)
        if (name := schema.item_raw or RAW_KEYS) in values:
            raise InvalidRequest(f"{path}.raw_keys: values contain the raw field {name!r} as well")
        values[name] = list(features.raw_keys)
    check_fields(path, values)
    return item.id, values


def check_unknown(item_ids: Sequence[str], unknown: Sequence[str]) -> None:
    """Raise InvalidRequest for an empty or too long id among those named. No catalogue has such an id."""
    if "" in unknown and "" in item_ids:
        at = item_ids.index("")
        raise InvalidRequest(f"item_ids[{at}]: empty; an item id has at least one character")
    if max(map(len, unknown)) * 4 > MAX_ID_BYTES:
        for at, item in enumerate(item_ids):
            check_id(f"item_ids[{at}]", item)


def unknown_item_fields(inline: Sequence[InlineItem], schema: RequestSchema) -> list[str]:
    """Names among the features of inline items that are not item fields of the model, each once."""
    known = schema.item_names
    odd = [features for _, features in inline if not features.keys() <= known]
    return list(dict.fromkeys(name for features in odd for name in features if name not in known))


# -- variant and options


def read_variant(request: RankRequest, variant_of: Mapping[str, int]) -> int | None:
    """The variant that the request names, None if it names none. Raises InvalidRequest for one the model lacks."""
    if not request.HasField("variant"):
        return None
    number = variant_of.get(request.variant)
    if number is None:
        raise InvalidRequest(
            f"variant: no variant {request.variant!r}; the model has: {listed(variant_of, request.variant)}"
        )
    return number


def read_options(request: RankRequest, default_objective: str, until_s: float = math.inf) -> Options | None:
    """The options of a request to a model with this objective ("" for none); None for the plain order.

    Raises InvalidRequest, and DeadlinePassed after `until_s` (monotonic).
    """
    explores = request.HasField("exploration")
    objective = request.objective or default_objective
    if not (objective or request.filters or request.caps or explores):
        return None
    return Options(
        _objective(objective),
        _conditions(request.filters, until_s),
        _caps(request.caps),
        _exploration(request.exploration) if explores else None,
    )


def _objective(text: str) -> Objective | None:
    if not text:
        return None
    try:
        return Objective.of(text)
    except ObjectiveError as error:
        raise ObjectiveError(f"objective: {error}") from None


def _conditions(filters: Sequence[Filter], until_s: float) -> tuple[Condition, ...]:
    if len(filters) > MAX_FILTERS:
        raise InvalidRequest(f"filters: got {len(filters)}; the limit is {MAX_FILTERS}")
    conditions = []
    for at, one in enumerate(filters):
        check_deadline(until_s)
        conditions.append(_condition(f"filters[{at}]", one))
    return tuple(conditions)


def _condition(path: str, one: Filter) -> Condition:
    field = _named(f"{path}.field", one.field)
    test = one.WhichOneof("test")
    if test is None:
        raise InvalidRequest(f"{path}: no test; give any_of, none_of or range")
    if test == "range":
        return _in_range(f"{path}.range", field, one)
    values = one.any_of.values if test == "any_of" else one.none_of.values
    if not 1 <= len(values) <= MAX_FILTER_VALUES:
        raise InvalidRequest(f"{path}.{test}: got {len(values)} values, expected 1 to {MAX_FILTER_VALUES}")
    return AnyOf(field, tuple(values)) if test == "any_of" else NoneOf(field, tuple(values))


def _in_range(path: str, field: str, one: Filter) -> InRange:
    least = one.range.min if one.range.HasField("min") else -math.inf
    most = one.range.max if one.range.HasField("max") else math.inf
    if not least <= most:  # false where one of them is NaN
        raise InvalidRequest(f"{path}: got {least} to {most}, expected a min that is not above the max")
    return InRange(field, least, most)


def _caps(caps: Sequence[CapMessage]) -> tuple[Cap, ...]:
    if len(caps) > MAX_CAPS:
        raise InvalidRequest(f"caps: got {len(caps)}; the limit is {MAX_CAPS}")
    for at, cap in enumerate(caps):
        if cap.at_most < 1:
            raise InvalidRequest(f"caps[{at}].at_most: got {cap.at_most}, expected at least 1")
    return tuple(Cap(_named(f"caps[{at}].field", cap.field), cap.at_most) for at, cap in enumerate(caps))


def _exploration(message: ExplorationMessage) -> Exploration:
    policy = message.WhichOneof("policy")
    if policy is None:
        raise InvalidRequest("exploration: no policy; give ucb or thompson")
    width = message.ucb.width if policy == "ucb" else message.thompson.width
    if not 0.0 <= width < math.inf:
        raise InvalidRequest(f"exploration.{policy}.width: got {width}, expected a finite number, 0 or more")
    return UpperConfidenceBound(width) if policy == "ucb" else Thompson(width)


def _named(path: str, field: str) -> str:
    if not field:
        raise InvalidRequest(f"{path}: empty; name an item's field")
    return field
