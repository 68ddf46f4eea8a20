"""Settings: how a server runs, in plain values that a supervisor hands to its workers as JSON. Starts nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from model_store.errors import ServerError
from model_store.redis.redis_keys import check_model_name

DEFAULT_THREADS = 8
DEFAULT_DRAIN_S = 10.0
DEFAULT_STORE_BUDGET_S = 0.05
DEFAULT_USER_CACHE = 100_000
DEFAULT_USER_TTL_S = 60.0
DEFAULT_FEEDBACK_LENGTH = 1_000_000
DEFAULT_FEEDBACK_AGE_S = 86_400.0
DEFAULT_IMPRESSIONS_LENGTH = 1_000_000
DEFAULT_IMPRESSIONS_AGE_S = 86_400.0
DEFAULT_IMPRESSIONS_QUEUE = 10_000
DEFAULT_IMPRESSIONS_SIZE_MIB = 256
DEFAULT_IMPRESSIONS_KEPT = 8


@dataclass(frozen=True)
class Settings:
    """How one server runs. Only numbers, texts, truth values and tuples of texts: all that JSON holds.

    port: 0 takes a free one. state: the folder of the last good models, "" keeps none. admin_port, metrics_port:
    None opens none, 0 a free one. alone_s: how long a worker goes on without a supervisor. connection_age_s: after
    this long a connection is asked to be made anew, so that it may fall to another worker; 0 never asks.
    pin: each worker stays on one core.

    user_store: the store of users' records, "" for the models'. user_cache: users a worker keeps for each model.
    user_ttl_s: how long a user's record counts as fresh.

    feedback_length, feedback_age_s: what a stream of clicks keeps.

    impressions: sinks of what was shown, none for no such log. impressions_length, impressions_age_s: what a stream
    keeps. impressions_queue: how many wait at most. impressions_size_mib, impressions_kept: files of that size.

    max_concurrency: calls a worker takes at once, 0 for 32 a thread. tls_*, tokens, record, shadow_log: files, ""
    for none. traces: an OTLP endpoint. access_log, trace_share, record_share, shadow_sample: of answers, calls and
    requests, from 0 to 1.
    """

    models: tuple[str, ...]
    store: str
    host: str = "127.0.0.1"
    port: int = 0
    workers: int = 1
    threads: int = DEFAULT_THREADS
    drain_s: float = DEFAULT_DRAIN_S
    store_budget_s: float = DEFAULT_STORE_BUDGET_S
    user_store: str = ""
    user_cache: int = DEFAULT_USER_CACHE
    user_ttl_s: float = DEFAULT_USER_TTL_S
    state: str = ""
    alone_s: float = 60.0
    connection_age_s: float = 0.0
    pin: bool = False
    admin_port: int | None = None
    admin_host: str = "127.0.0.1"
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    feedback_length: int = DEFAULT_FEEDBACK_LENGTH
    feedback_age_s: float = DEFAULT_FEEDBACK_AGE_S
    impressions: tuple[str, ...] = ()
    impressions_length: int = DEFAULT_IMPRESSIONS_LENGTH
    impressions_age_s: float = DEFAULT_IMPRESSIONS_AGE_S
    impressions_queue: int = DEFAULT_IMPRESSIONS_QUEUE
    impressions_size_mib: int = DEFAULT_IMPRESSIONS_SIZE_MIB
    impressions_kept: int = DEFAULT_IMPRESSIONS_KEPT
    max_concurrency: int = 0
    tls_cert: str = ""
    tls_key: str = ""
    tls_client_ca: str = ""
    tokens: str = ""
    log_level: str = "info"
    access_log: float = 0.0
    traces: str = ""
    trace_share: float = 0.01
    record: str = ""
    record_share: float = 1.0
    shadow_log: str = ""
    shadow_sample: float = 1.0

    def __post_init__(self) -> None:
        """Raise UsageError for a name that no model can have, ServerError for none or one twice."""
        object.__setattr__(self, "models", tuple(self.models))
        object.__setattr__(self, "impressions", tuple(self.impressions))
        for name in self.models:
            check_model_name(name)
        if not self.models or len(set(self.models)) < len(self.models):
            raise ServerError(f"got the models {list(self.models)}; expected one or more different names")

    def to_json(self) -> dict[str, Any]:
        """Every field by its name."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Settings:
        """The settings that `to_json` gave. Raises ServerError for one of another release of ftrie."""
        unknown = document.keys() - {field.name for field in fields(cls)}
        if unknown:
            raise ServerError(
                f"got the settings {sorted(unknown)}, which this release of ftrie does not know"
            )
        return cls(**document)
