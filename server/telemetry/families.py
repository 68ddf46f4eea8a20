"""Every metric by name, with its labels and meaning: docs/server_metrics.md is this table.

No label holds text from a request: models, versions and variants are those served, parts and reasons those in the code.
The latest few versions of a model have series of their own; the others share version="older".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

NS = 1_000_000_000
VERSIONS_KEPT = 4
OLDER = "older"

BUCKETS_MS = (0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 50, 75, 100, 150, 250, 500, 1000, 2500)
"""Upper bounds of the latency histogram in milliseconds; +Inf follows."""
FRESHNESS_S = (0.1, 0.25, 0.5, 1, 1.5, 2, 3, 5, 10, 20, 30, 60, 120, 300, 600)
"""Upper bounds of the freshness histogram in seconds; +Inf follows."""
SUM = "sum"
"""In place of a bucket, in the counts of a process: the sum of a histogram."""


@dataclass(frozen=True)
class Family:
    """One metric. buckets: upper bounds of a histogram that `Meter.observe` fills. Thread safety: immutable."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()


CALL_SECONDS = "ftrie_call_seconds"
CANDIDATES = "ftrie_candidates_total"
UNKNOWN_USERS = "ftrie_unknown_users_total"
STAGE_SECONDS = "ftrie_stage_seconds_total"
ERRORS = "ftrie_errors_total"
DEGRADED = "ftrie_degraded_total"
REFUSED = "ftrie_refused_total"
IN_PROGRESS = "ftrie_calls_in_progress"
PLACES = "ftrie_places"
USER_CACHE = "ftrie_user_cache_total"
FEEDBACK = "ftrie_feedback_total"
SHADOW_DROPPED = "ftrie_shadow_dropped_total"
SHADOW_LOGGED = "ftrie_shadow_logged_total"
IMPRESSIONS_LOGGED = "ftrie_impressions_logged_total"
IMPRESSIONS_DROPPED = "ftrie_impressions_dropped_total"
IMPRESSIONS_FAILED = "ftrie_impressions_failed_total"
IMPRESSIONS_SKIPPED = "ftrie_impressions_skipped_total"
IMPRESSIONS_WAITING = "ftrie_impressions_waiting"
EXPERIMENT_REVISION = "ftrie_experiment_revision"
EXPERIMENT_REFUSED = "ftrie_experiment_refused"
RELOADS = "ftrie_reloads_total"
RELOAD_SECONDS = "ftrie_reload_seconds_total"
FRESHNESS = "ftrie_freshness_seconds"
REFUSED_VERSIONS = "ftrie_refused_versions_total"
STORE_AWAY = "ftrie_store_away"
USER_STORE_AWAY = "ftrie_user_store_away"
REPLICA_LAG = "ftrie_replica_lag_seconds"
ITEMS_KEPT = "ftrie_items_kept"
ITEMS_REFUSED = "ftrie_items_refused"
FROM_DISK = "ftrie_serving_from_disk"
LAST_GOOD_FAILED = "ftrie_last_good_failed"
MODEL_VERSION = "ftrie_model_version"
MODEL_PUBLISHED = "ftrie_model_published_timestamp_seconds"
READY = "ftrie_ready"
WORKERS = "ftrie_workers"
WORKER_RESTARTS = "ftrie_worker_restarts_total"

_ANSWER = ("model", "version", "variant")

FAMILIES = {
    family.name: family
    for family in (
        Family(CALL_SECONDS, "histogram", _ANSWER, "Time of a call that was answered, in the handler"),
        Family(CANDIDATES, "counter", _ANSWER, "Candidates of the calls that were answered"),
        Family(
            UNKNOWN_USERS,
            "counter",
            _ANSWER,
            "Those answers to a user of whom the model has no key, though the request or the store told who it is",
        ),
        Family(
            STAGE_SECONDS,
            "counter",
            (*_ANSWER, "stage"),
            "Time of those calls by stage: store (waiting for the store) or ranking",
        ),
        Family(
            ERRORS,
            "counter",
            ("model", "method", "status"),
            "Calls that ended with an error, by method (Rank, Explain or Report) and gRPC status",
        ),
        Family(DEGRADED, "counter", ("model", "part"), "Degradations of answers, by part"),
        Family(
            REFUSED,
            "counter",
            ("method", "reason"),
            "Calls refused before their message was read, by method and reason: overload, no_message, …",
        ),
        Family(IN_PROGRESS, "gauge", (), "Calls in the workers now, running or waiting"),
        Family(PLACES, "gauge", (), "How many calls the workers take at once"),
        Family(
            USER_CACHE, "counter", ("result",), "Users asked for: hit (fresh), miss (read), stale or failed"
        ),
        Family(
            FEEDBACK,
            "counter",
            ("model", "result"),
            "Events reported, by result: accepted, duplicate, rejected or failed",
        ),
        Family(SHADOW_LOGGED, "counter", ("model",), "Answers whose shadows were written to the log"),
        Family(SHADOW_DROPPED, "counter", ("model",), "Answers whose shadows the log could not take"),
        Family(IMPRESSIONS_LOGGED, "counter", ("model", "sink"), "Impressions that a sink has taken"),
        Family(
            IMPRESSIONS_DROPPED,
            "counter",
            ("model", "sink", "reason"),
            "Impressions that a sink will never get: queue, sink, closed, catalogue or failed",
        ),
        Family(
            IMPRESSIONS_SKIPPED,
            "counter",
            ("model", "reason"),
            "Answers that are no impressions: variant (the request forced one) or no_log (it asked for that)",
        ),
        Family(IMPRESSIONS_FAILED, "counter", ("sink",), "Attempts to hand impressions over that failed"),
        Family(IMPRESSIONS_WAITING, "gauge", ("sink",), "Impressions that wait for a sink now"),
        Family(EXPERIMENT_REVISION, "gauge", ("model",), "The experiment in force; 0 for the spec's shares"),
        Family(EXPERIMENT_REFUSED, "gauge", ("model",), "1 while the store's experiment cannot be used"),
        Family(RELOADS, "counter", ("model", "kind"), "Swaps of what is served, by how it came about"),
        Family(RELOAD_SECONDS, "counter", ("model", "kind"), "Time from fetching to swapping"),
        Family(
            FRESHNESS,
            "histogram",
            ("model",),
            "From the arrival of the newest event that a version was learned from to the swap to that version",
            FRESHNESS_S,
        ),
        Family(
            REFUSED_VERSIONS,
            "counter",
            ("model", "reason"),
            "Versions that could not be taken: damaged, newer (format), gone, equal, memory, unreadable or failed",
        ),
        Family(STORE_AWAY, "gauge", ("model",), "1 while the supervisor cannot reach the store"),
        Family(USER_STORE_AWAY, "gauge", (), "1 while the supervisor cannot reach the store of --user-store"),
        Family(
            REPLICA_LAG,
            "gauge",
            ("store",),
            "How long a replica that is read (store, or users of --user-store) has heard nothing from its primary",
        ),
        Family(
            ITEMS_KEPT,
            "gauge",
            ("model",),
            "Items kept as they were: the store lost its data, and lacks them",
        ),
        Family(
            ITEMS_REFUSED,
            "gauge",
            ("model",),
            "1 while the store's items are refused: all would score the same",
        ),
        Family(FROM_DISK, "gauge", ("model",), "1 while what is served came from the last good copy on disk"),
        Family(LAST_GOOD_FAILED, "gauge", ("model",), "1 while the last good model cannot be kept on disk"),
        Family(MODEL_VERSION, "gauge", ("model",), "The version that is served"),
        Family(MODEL_PUBLISHED, "gauge", ("model",), "When it was published; its age is time() minus this"),
        Family(READY, "gauge", ("model",), "1 if a worker answers for the model, 0 if none does"),
        Family(WORKERS, "gauge", (), "Workers that answer"),
        Family(WORKER_RESTARTS, "counter", (), "Workers that died and were replaced"),
    )
}
"""By name. A histogram's series are name_bucket, name_sum and name_count; the count is the number of calls."""
