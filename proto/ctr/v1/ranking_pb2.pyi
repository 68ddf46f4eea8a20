from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DegradationReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEGRADATION_REASON_UNSPECIFIED: _ClassVar[DegradationReason]
    DEGRADATION_REASON_UNAVAILABLE: _ClassVar[DegradationReason]
    DEGRADATION_REASON_STALE: _ClassVar[DegradationReason]
    DEGRADATION_REASON_INVALID_DATA: _ClassVar[DegradationReason]
    DEGRADATION_REASON_LIMIT_EXCEEDED: _ClassVar[DegradationReason]
    DEGRADATION_REASON_NO_OBJECTIVE_VALUE: _ClassVar[DegradationReason]
DEGRADATION_REASON_UNSPECIFIED: DegradationReason
DEGRADATION_REASON_UNAVAILABLE: DegradationReason
DEGRADATION_REASON_STALE: DegradationReason
DEGRADATION_REASON_INVALID_DATA: DegradationReason
DEGRADATION_REASON_LIMIT_EXCEEDED: DegradationReason
DEGRADATION_REASON_NO_OBJECTIVE_VALUE: DegradationReason

class Features(_message.Message):
    __slots__ = ("values", "raw_keys")
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: FeatureValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[FeatureValue, _Mapping]] = ...) -> None: ...
    VALUES_FIELD_NUMBER: _ClassVar[int]
    RAW_KEYS_FIELD_NUMBER: _ClassVar[int]
    values: _containers.MessageMap[str, FeatureValue]
    raw_keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, values: _Optional[_Mapping[str, FeatureValue]] = ..., raw_keys: _Optional[_Iterable[str]] = ...) -> None: ...

class FeatureValue(_message.Message):
    __slots__ = ("text", "number", "set", "weighted_set")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SET_FIELD_NUMBER: _ClassVar[int]
    WEIGHTED_SET_FIELD_NUMBER: _ClassVar[int]
    text: str
    number: float
    set: StringList
    weighted_set: WeightedSet
    def __init__(self, text: _Optional[str] = ..., number: _Optional[float] = ..., set: _Optional[_Union[StringList, _Mapping]] = ..., weighted_set: _Optional[_Union[WeightedSet, _Mapping]] = ...) -> None: ...

class StringList(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, values: _Optional[_Iterable[str]] = ...) -> None: ...

class WeightedSet(_message.Message):
    __slots__ = ("members",)
    class MembersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    members: _containers.ScalarMap[str, float]
    def __init__(self, members: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Item(_message.Message):
    __slots__ = ("id", "features")
    ID_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    id: str
    features: Features
    def __init__(self, id: _Optional[str] = ..., features: _Optional[_Union[Features, _Mapping]] = ...) -> None: ...

class RankRequest(_message.Message):
    __slots__ = ("model", "request_id", "cookie", "user", "context", "item_ids", "items", "candidate_set", "top_k", "variant", "objective", "filters", "caps", "exploration", "no_log", "deferred")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    COOKIE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    ITEM_IDS_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_SET_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    VARIANT_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVE_FIELD_NUMBER: _ClassVar[int]
    FILTERS_FIELD_NUMBER: _ClassVar[int]
    CAPS_FIELD_NUMBER: _ClassVar[int]
    EXPLORATION_FIELD_NUMBER: _ClassVar[int]
    NO_LOG_FIELD_NUMBER: _ClassVar[int]
    DEFERRED_FIELD_NUMBER: _ClassVar[int]
    model: str
    request_id: str
    cookie: str
    user: Features
    context: Features
    item_ids: _containers.RepeatedScalarFieldContainer[str]
    items: _containers.RepeatedCompositeFieldContainer[Item]
    candidate_set: str
    top_k: int
    variant: str
    objective: str
    filters: _containers.RepeatedCompositeFieldContainer[Filter]
    caps: _containers.RepeatedCompositeFieldContainer[Cap]
    exploration: Exploration
    no_log: bool
    deferred: bool
    def __init__(self, model: _Optional[str] = ..., request_id: _Optional[str] = ..., cookie: _Optional[str] = ..., user: _Optional[_Union[Features, _Mapping]] = ..., context: _Optional[_Union[Features, _Mapping]] = ..., item_ids: _Optional[_Iterable[str]] = ..., items: _Optional[_Iterable[_Union[Item, _Mapping]]] = ..., candidate_set: _Optional[str] = ..., top_k: _Optional[int] = ..., variant: _Optional[str] = ..., objective: _Optional[str] = ..., filters: _Optional[_Iterable[_Union[Filter, _Mapping]]] = ..., caps: _Optional[_Iterable[_Union[Cap, _Mapping]]] = ..., exploration: _Optional[_Union[Exploration, _Mapping]] = ..., no_log: _Optional[bool] = ..., deferred: _Optional[bool] = ...) -> None: ...

class Filter(_message.Message):
    __slots__ = ("field", "any_of", "none_of", "range")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    ANY_OF_FIELD_NUMBER: _ClassVar[int]
    NONE_OF_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    field: str
    any_of: StringList
    none_of: StringList
    range: NumberRange
    def __init__(self, field: _Optional[str] = ..., any_of: _Optional[_Union[StringList, _Mapping]] = ..., none_of: _Optional[_Union[StringList, _Mapping]] = ..., range: _Optional[_Union[NumberRange, _Mapping]] = ...) -> None: ...

class NumberRange(_message.Message):
    __slots__ = ("min", "max")
    MIN_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    min: float
    max: float
    def __init__(self, min: _Optional[float] = ..., max: _Optional[float] = ...) -> None: ...

class Cap(_message.Message):
    __slots__ = ("field", "at_most")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    AT_MOST_FIELD_NUMBER: _ClassVar[int]
    field: str
    at_most: int
    def __init__(self, field: _Optional[str] = ..., at_most: _Optional[int] = ...) -> None: ...

class Exploration(_message.Message):
    __slots__ = ("ucb", "thompson")
    UCB_FIELD_NUMBER: _ClassVar[int]
    THOMPSON_FIELD_NUMBER: _ClassVar[int]
    ucb: UpperConfidenceBound
    thompson: Thompson
    def __init__(self, ucb: _Optional[_Union[UpperConfidenceBound, _Mapping]] = ..., thompson: _Optional[_Union[Thompson, _Mapping]] = ...) -> None: ...

class UpperConfidenceBound(_message.Message):
    __slots__ = ("width",)
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    width: float
    def __init__(self, width: _Optional[float] = ...) -> None: ...

class Thompson(_message.Message):
    __slots__ = ("width",)
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    width: float
    def __init__(self, width: _Optional[float] = ...) -> None: ...

class RankedItem(_message.Message):
    __slots__ = ("id", "ctr", "score", "objective", "uncertainty", "propensity", "models", "team", "credit")
    ID_FIELD_NUMBER: _ClassVar[int]
    CTR_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVE_FIELD_NUMBER: _ClassVar[int]
    UNCERTAINTY_FIELD_NUMBER: _ClassVar[int]
    PROPENSITY_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    TEAM_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    id: str
    ctr: float
    score: float
    objective: float
    uncertainty: float
    propensity: float
    models: _containers.RepeatedCompositeFieldContainer[ModelPrediction]
    team: str
    credit: float
    def __init__(self, id: _Optional[str] = ..., ctr: _Optional[float] = ..., score: _Optional[float] = ..., objective: _Optional[float] = ..., uncertainty: _Optional[float] = ..., propensity: _Optional[float] = ..., models: _Optional[_Iterable[_Union[ModelPrediction, _Mapping]]] = ..., team: _Optional[str] = ..., credit: _Optional[float] = ...) -> None: ...

class ModelPrediction(_message.Message):
    __slots__ = ("model", "version", "variant", "ctr", "score")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VARIANT_FIELD_NUMBER: _ClassVar[int]
    CTR_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: int
    variant: str
    ctr: float
    score: float
    def __init__(self, model: _Optional[str] = ..., version: _Optional[int] = ..., variant: _Optional[str] = ..., ctr: _Optional[float] = ..., score: _Optional[float] = ...) -> None: ...

class Degradation(_message.Message):
    __slots__ = ("reason", "part", "detail")
    REASON_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    reason: DegradationReason
    part: str
    detail: str
    def __init__(self, reason: _Optional[_Union[DegradationReason, str]] = ..., part: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class RankResponse(_message.Message):
    __slots__ = ("request_id", "cookie", "model", "version", "variant", "items", "degraded", "unknown_items", "unknown_fields")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    COOKIE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VARIANT_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_ITEMS_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELDS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    cookie: str
    model: str
    version: int
    variant: str
    items: _containers.RepeatedCompositeFieldContainer[RankedItem]
    degraded: _containers.RepeatedCompositeFieldContainer[Degradation]
    unknown_items: _containers.RepeatedScalarFieldContainer[str]
    unknown_fields: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request_id: _Optional[str] = ..., cookie: _Optional[str] = ..., model: _Optional[str] = ..., version: _Optional[int] = ..., variant: _Optional[str] = ..., items: _Optional[_Iterable[_Union[RankedItem, _Mapping]]] = ..., degraded: _Optional[_Iterable[_Union[Degradation, _Mapping]]] = ..., unknown_items: _Optional[_Iterable[str]] = ..., unknown_fields: _Optional[_Iterable[str]] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("request",)
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    request: RankRequest
    def __init__(self, request: _Optional[_Union[RankRequest, _Mapping]] = ...) -> None: ...

class KeyContribution(_message.Message):
    __slots__ = ("key", "weight", "x", "contribution", "learning_rate")
    KEY_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    X_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTION_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    weight: float
    x: float
    contribution: float
    learning_rate: float
    def __init__(self, key: _Optional[bytes] = ..., weight: _Optional[float] = ..., x: _Optional[float] = ..., contribution: _Optional[float] = ..., learning_rate: _Optional[float] = ...) -> None: ...

class Contributions(_message.Message):
    __slots__ = ("name", "sum", "keys")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    name: str
    sum: float
    keys: _containers.RepeatedCompositeFieldContainer[KeyContribution]
    def __init__(self, name: _Optional[str] = ..., sum: _Optional[float] = ..., keys: _Optional[_Iterable[_Union[KeyContribution, _Mapping]]] = ...) -> None: ...

class ExplainedItem(_message.Message):
    __slots__ = ("item", "groups")
    ITEM_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    item: RankedItem
    groups: _containers.RepeatedCompositeFieldContainer[Contributions]
    def __init__(self, item: _Optional[_Union[RankedItem, _Mapping]] = ..., groups: _Optional[_Iterable[_Union[Contributions, _Mapping]]] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("request_id", "model", "version", "variant", "items", "degraded", "unknown_items", "unknown_fields", "known_fields")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VARIANT_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_ITEMS_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELDS_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELDS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    version: int
    variant: str
    items: _containers.RepeatedCompositeFieldContainer[ExplainedItem]
    degraded: _containers.RepeatedCompositeFieldContainer[Degradation]
    unknown_items: _containers.RepeatedScalarFieldContainer[str]
    unknown_fields: _containers.RepeatedScalarFieldContainer[str]
    known_fields: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., version: _Optional[int] = ..., variant: _Optional[str] = ..., items: _Optional[_Iterable[_Union[ExplainedItem, _Mapping]]] = ..., degraded: _Optional[_Iterable[_Union[Degradation, _Mapping]]] = ..., unknown_items: _Optional[_Iterable[str]] = ..., unknown_fields: _Optional[_Iterable[str]] = ..., known_fields: _Optional[_Iterable[str]] = ...) -> None: ...
