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

class WorkerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_STATE_UNSPECIFIED: _ClassVar[WorkerState]
    WORKER_STATE_STARTING: _ClassVar[WorkerState]
    WORKER_STATE_SERVING: _ClassVar[WorkerState]
    WORKER_STATE_DRAINING: _ClassVar[WorkerState]
    WORKER_STATE_GONE: _ClassVar[WorkerState]

class ExperimentState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EXPERIMENT_STATE_UNSPECIFIED: _ClassVar[ExperimentState]
    EXPERIMENT_STATE_RUNNING: _ClassVar[ExperimentState]
    EXPERIMENT_STATE_STOPPED: _ClassVar[ExperimentState]
MODEL_SOURCE_UNSPECIFIED: ModelSource
MODEL_SOURCE_STORE: ModelSource
MODEL_SOURCE_DISK: ModelSource
WORKER_STATE_UNSPECIFIED: WorkerState
WORKER_STATE_STARTING: WorkerState
WORKER_STATE_SERVING: WorkerState
WORKER_STATE_DRAINING: WorkerState
WORKER_STATE_GONE: WorkerState
EXPERIMENT_STATE_UNSPECIFIED: ExperimentState
EXPERIMENT_STATE_RUNNING: ExperimentState
EXPERIMENT_STATE_STOPPED: ExperimentState

class ModelStatus(_message.Message):
    __slots__ = ("name", "version", "kind", "sha256", "content", "published", "since", "keys", "items", "source", "store_away", "refused", "problem", "division", "disk_problem")
    class RefusedEntry(_message.Message):
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
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    STORE_AWAY_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    DIVISION_FIELD_NUMBER: _ClassVar[int]
    DISK_PROBLEM_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    kind: str
    sha256: str
    content: str
    published: _timestamp_pb2.Timestamp
    since: _timestamp_pb2.Timestamp
    keys: int
    items: int
    source: ModelSource
    store_away: bool
    refused: _containers.ScalarMap[str, int]
    problem: str
    division: Division
    disk_problem: str
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ..., kind: _Optional[str] = ..., sha256: _Optional[str] = ..., content: _Optional[str] = ..., published: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., keys: _Optional[int] = ..., items: _Optional[int] = ..., source: _Optional[_Union[ModelSource, str]] = ..., store_away: _Optional[bool] = ..., refused: _Optional[_Mapping[str, int]] = ..., problem: _Optional[str] = ..., division: _Optional[_Union[Division, _Mapping]] = ..., disk_problem: _Optional[str] = ...) -> None: ...

class Division(_message.Message):
    __slots__ = ("revision", "shares", "shadows", "problem")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    SHADOWS_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    revision: int
    shares: _containers.RepeatedCompositeFieldContainer[VariantShare]
    shadows: _containers.RepeatedScalarFieldContainer[str]
    problem: str
    def __init__(self, revision: _Optional[int] = ..., shares: _Optional[_Iterable[_Union[VariantShare, _Mapping]]] = ..., shadows: _Optional[_Iterable[str]] = ..., problem: _Optional[str] = ...) -> None: ...

class VariantShare(_message.Message):
    __slots__ = ("variant", "share")
    VARIANT_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    variant: str
    share: float
    def __init__(self, variant: _Optional[str] = ..., share: _Optional[float] = ...) -> None: ...

class WorkerStatus(_message.Message):
    __slots__ = ("number", "pid", "state", "restarts", "versions")
    class VersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    number: int
    pid: int
    state: WorkerState
    restarts: int
    versions: _containers.ScalarMap[str, int]
    def __init__(self, number: _Optional[int] = ..., pid: _Optional[int] = ..., state: _Optional[_Union[WorkerState, str]] = ..., restarts: _Optional[int] = ..., versions: _Optional[_Mapping[str, int]] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("address", "ready", "draining", "models", "workers", "predecessors")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    PREDECESSORS_FIELD_NUMBER: _ClassVar[int]
    address: str
    ready: bool
    draining: bool
    models: _containers.RepeatedCompositeFieldContainer[ModelStatus]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStatus]
    predecessors: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, address: _Optional[str] = ..., ready: _Optional[bool] = ..., draining: _Optional[bool] = ..., models: _Optional[_Iterable[_Union[ModelStatus, _Mapping]]] = ..., workers: _Optional[_Iterable[_Union[WorkerStatus, _Mapping]]] = ..., predecessors: _Optional[_Iterable[int]] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[ModelStatus]
    def __init__(self, models: _Optional[_Iterable[_Union[ModelStatus, _Mapping]]] = ...) -> None: ...

class ListVersionsRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class Version(_message.Message):
    __slots__ = ("version", "active", "published", "rows", "bytes", "sha256", "kind", "parent", "content")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    version: int
    active: bool
    published: _timestamp_pb2.Timestamp
    rows: int
    bytes: int
    sha256: str
    kind: str
    parent: int
    content: str
    def __init__(self, version: _Optional[int] = ..., active: _Optional[bool] = ..., published: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ..., sha256: _Optional[str] = ..., kind: _Optional[str] = ..., parent: _Optional[int] = ..., content: _Optional[str] = ...) -> None: ...

class ListVersionsResponse(_message.Message):
    __slots__ = ("versions",)
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.RepeatedCompositeFieldContainer[Version]
    def __init__(self, versions: _Optional[_Iterable[_Union[Version, _Mapping]]] = ...) -> None: ...

class ActivateVersionRequest(_message.Message):
    __slots__ = ("model", "version")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: int
    def __init__(self, model: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class ActivateVersionResponse(_message.Message):
    __slots__ = ("version", "before")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    version: int
    before: int
    def __init__(self, version: _Optional[int] = ..., before: _Optional[int] = ...) -> None: ...

class RollBackRequest(_message.Message):
    __slots__ = ("model", "version")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: int
    def __init__(self, model: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class RollBackResponse(_message.Message):
    __slots__ = ("version", "before")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    version: int
    before: int
    def __init__(self, version: _Optional[int] = ..., before: _Optional[int] = ...) -> None: ...

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

class Experiment(_message.Message):
    __slots__ = ("revision", "state", "winner", "shares", "salt", "pins", "shadows", "objective", "updated")
    class SharesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class PinsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    REVISION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WINNER_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    PINS_FIELD_NUMBER: _ClassVar[int]
    SHADOWS_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVE_FIELD_NUMBER: _ClassVar[int]
    UPDATED_FIELD_NUMBER: _ClassVar[int]
    revision: int
    state: ExperimentState
    winner: str
    shares: _containers.ScalarMap[str, float]
    salt: str
    pins: _containers.ScalarMap[str, str]
    shadows: _containers.RepeatedScalarFieldContainer[str]
    objective: str
    updated: _timestamp_pb2.Timestamp
    def __init__(self, revision: _Optional[int] = ..., state: _Optional[_Union[ExperimentState, str]] = ..., winner: _Optional[str] = ..., shares: _Optional[_Mapping[str, float]] = ..., salt: _Optional[str] = ..., pins: _Optional[_Mapping[str, str]] = ..., shadows: _Optional[_Iterable[str]] = ..., objective: _Optional[str] = ..., updated: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class GetExperimentRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class GetExperimentResponse(_message.Message):
    __slots__ = ("experiment", "division")
    EXPERIMENT_FIELD_NUMBER: _ClassVar[int]
    DIVISION_FIELD_NUMBER: _ClassVar[int]
    experiment: Experiment
    division: Division
    def __init__(self, experiment: _Optional[_Union[Experiment, _Mapping]] = ..., division: _Optional[_Union[Division, _Mapping]] = ...) -> None: ...

class UpdateExperimentRequest(_message.Message):
    __slots__ = ("model", "experiment")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    EXPERIMENT_FIELD_NUMBER: _ClassVar[int]
    model: str
    experiment: Experiment
    def __init__(self, model: _Optional[str] = ..., experiment: _Optional[_Union[Experiment, _Mapping]] = ...) -> None: ...

class UpdateExperimentResponse(_message.Message):
    __slots__ = ("experiment",)
    EXPERIMENT_FIELD_NUMBER: _ClassVar[int]
    experiment: Experiment
    def __init__(self, experiment: _Optional[_Union[Experiment, _Mapping]] = ...) -> None: ...
