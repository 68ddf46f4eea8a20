import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ModelSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODEL_SOURCE_UNSPECIFIED: _ClassVar[ModelSource]
    MODEL_SOURCE_STORE: _ClassVar[ModelSource]
    MODEL_SOURCE_DISK: _ClassVar[ModelSource]

class VersionKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERSION_KIND_UNSPECIFIED: _ClassVar[VersionKind]
    VERSION_KIND_SNAPSHOT: _ClassVar[VersionKind]
    VERSION_KIND_DELTA: _ClassVar[VersionKind]

class WorkerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_STATE_UNSPECIFIED: _ClassVar[WorkerState]
    WORKER_STATE_STARTING: _ClassVar[WorkerState]
    WORKER_STATE_SERVING: _ClassVar[WorkerState]
    WORKER_STATE_DRAINING: _ClassVar[WorkerState]
    WORKER_STATE_GONE: _ClassVar[WorkerState]
MODEL_SOURCE_UNSPECIFIED: ModelSource
MODEL_SOURCE_STORE: ModelSource
MODEL_SOURCE_DISK: ModelSource
VERSION_KIND_UNSPECIFIED: VersionKind
VERSION_KIND_SNAPSHOT: VersionKind
VERSION_KIND_DELTA: VersionKind
WORKER_STATE_UNSPECIFIED: WorkerState
WORKER_STATE_STARTING: WorkerState
WORKER_STATE_SERVING: WorkerState
WORKER_STATE_DRAINING: WorkerState
WORKER_STATE_GONE: WorkerState

class ModelStatus(_message.Message):
    __slots__ = ("name", "version", "kind", "sha256", "content_digest", "publish_time", "serve_start_time", "key_count", "item_count", "source", "store_unavailable", "refusal_counts", "problem", "traffic_split", "disk_problem")
    class RefusalCountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    CONTENT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_TIME_FIELD_NUMBER: _ClassVar[int]
    SERVE_START_TIME_FIELD_NUMBER: _ClassVar[int]
    KEY_COUNT_FIELD_NUMBER: _ClassVar[int]
    ITEM_COUNT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    STORE_UNAVAILABLE_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_COUNTS_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_SPLIT_FIELD_NUMBER: _ClassVar[int]
    DISK_PROBLEM_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    kind: VersionKind
    sha256: str
    content_digest: str
    publish_time: _timestamp_pb2.Timestamp
    serve_start_time: _timestamp_pb2.Timestamp
    key_count: int
    item_count: int
    source: ModelSource
    store_unavailable: bool
    refusal_counts: _containers.ScalarMap[str, int]
    problem: str
    traffic_split: TrafficSplit
    disk_problem: str
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ..., kind: _Optional[_Union[VersionKind, str]] = ..., sha256: _Optional[str] = ..., content_digest: _Optional[str] = ..., publish_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., serve_start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., key_count: _Optional[int] = ..., item_count: _Optional[int] = ..., source: _Optional[_Union[ModelSource, str]] = ..., store_unavailable: _Optional[bool] = ..., refusal_counts: _Optional[_Mapping[str, int]] = ..., problem: _Optional[str] = ..., traffic_split: _Optional[_Union[TrafficSplit, _Mapping]] = ..., disk_problem: _Optional[str] = ...) -> None: ...

class TrafficSplit(_message.Message):
    __slots__ = ("revision", "shares", "shadows", "problem", "exploration", "apprentice", "interleave", "draft")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    SHADOWS_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    EXPLORATION_FIELD_NUMBER: _ClassVar[int]
    APPRENTICE_FIELD_NUMBER: _ClassVar[int]
    INTERLEAVE_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    revision: int
    shares: _containers.RepeatedCompositeFieldContainer[VariantShare]
    shadows: _containers.RepeatedScalarFieldContainer[str]
    problem: str
    exploration: str
    apprentice: bool
    interleave: _containers.RepeatedScalarFieldContainer[str]
    draft: str
    def __init__(self, revision: _Optional[int] = ..., shares: _Optional[_Iterable[_Union[VariantShare, _Mapping]]] = ..., shadows: _Optional[_Iterable[str]] = ..., problem: _Optional[str] = ..., exploration: _Optional[str] = ..., apprentice: _Optional[bool] = ..., interleave: _Optional[_Iterable[str]] = ..., draft: _Optional[str] = ...) -> None: ...

class VariantShare(_message.Message):
    __slots__ = ("variant", "share")
    VARIANT_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    variant: str
    share: float
    def __init__(self, variant: _Optional[str] = ..., share: _Optional[float] = ...) -> None: ...

class WorkerStatus(_message.Message):
    __slots__ = ("index", "pid", "state", "restart_count", "versions")
    class VersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    INDEX_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    RESTART_COUNT_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    index: int
    pid: int
    state: WorkerState
    restart_count: int
    versions: _containers.ScalarMap[str, int]
    def __init__(self, index: _Optional[int] = ..., pid: _Optional[int] = ..., state: _Optional[_Union[WorkerState, str]] = ..., restart_count: _Optional[int] = ..., versions: _Optional[_Mapping[str, int]] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("address", "ready", "draining", "models", "workers", "predecessor_pids")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    PREDECESSOR_PIDS_FIELD_NUMBER: _ClassVar[int]
    address: str
    ready: bool
    draining: bool
    models: _containers.RepeatedCompositeFieldContainer[ModelStatus]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStatus]
    predecessor_pids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, address: _Optional[str] = ..., ready: _Optional[bool] = ..., draining: _Optional[bool] = ..., models: _Optional[_Iterable[_Union[ModelStatus, _Mapping]]] = ..., workers: _Optional[_Iterable[_Union[WorkerStatus, _Mapping]]] = ..., predecessor_pids: _Optional[_Iterable[int]] = ...) -> None: ...

class ReloadRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class ReloadResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: ModelStatus
    def __init__(self, model: _Optional[_Union[ModelStatus, _Mapping]] = ...) -> None: ...
