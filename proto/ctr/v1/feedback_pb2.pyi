import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FeedbackKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FEEDBACK_KIND_UNSPECIFIED: _ClassVar[FeedbackKind]
    FEEDBACK_KIND_CLICK: _ClassVar[FeedbackKind]
    FEEDBACK_KIND_CONVERSION: _ClassVar[FeedbackKind]
    FEEDBACK_KIND_SEEN: _ClassVar[FeedbackKind]
    FEEDBACK_KIND_ACTIVATED: _ClassVar[FeedbackKind]
    FEEDBACK_KIND_VIEW: _ClassVar[FeedbackKind]
FEEDBACK_KIND_UNSPECIFIED: FeedbackKind
FEEDBACK_KIND_CLICK: FeedbackKind
FEEDBACK_KIND_CONVERSION: FeedbackKind
FEEDBACK_KIND_SEEN: FeedbackKind
FEEDBACK_KIND_ACTIVATED: FeedbackKind
FEEDBACK_KIND_VIEW: FeedbackKind

class FeedbackEvent(_message.Message):
    __slots__ = ("event_id", "request_id", "item_id", "kind", "event_time", "value", "position", "cookie", "features")
    class FeaturesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    EVENT_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    EVENT_TIME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    COOKIE_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    event_id: str
    request_id: str
    item_id: str
    kind: FeedbackKind
    event_time: _timestamp_pb2.Timestamp
    value: float
    position: int
    cookie: str
    features: _containers.ScalarMap[str, str]
    def __init__(self, event_id: _Optional[str] = ..., request_id: _Optional[str] = ..., item_id: _Optional[str] = ..., kind: _Optional[_Union[FeedbackKind, str]] = ..., event_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., value: _Optional[float] = ..., position: _Optional[int] = ..., cookie: _Optional[str] = ..., features: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ReportRequest(_message.Message):
    __slots__ = ("model", "events")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    model: str
    events: _containers.RepeatedCompositeFieldContainer[FeedbackEvent]
    def __init__(self, model: _Optional[str] = ..., events: _Optional[_Iterable[_Union[FeedbackEvent, _Mapping]]] = ...) -> None: ...

class RejectedEvent(_message.Message):
    __slots__ = ("index", "reason")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    index: int
    reason: str
    def __init__(self, index: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class ReportResponse(_message.Message):
    __slots__ = ("accepted_count", "duplicate_count", "rejected_events")
    ACCEPTED_COUNT_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_COUNT_FIELD_NUMBER: _ClassVar[int]
    REJECTED_EVENTS_FIELD_NUMBER: _ClassVar[int]
    accepted_count: int
    duplicate_count: int
    rejected_events: _containers.RepeatedCompositeFieldContainer[RejectedEvent]
    def __init__(self, accepted_count: _Optional[int] = ..., duplicate_count: _Optional[int] = ..., rejected_events: _Optional[_Iterable[_Union[RejectedEvent, _Mapping]]] = ...) -> None: ...
