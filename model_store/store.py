"""The store: opens a Redis, a cluster or an embedded Valkey and gives access to its models, records and streams."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from model_store.clock import SYSTEM, Clock
from model_store.keys import ModelKeys, Report, silent
from model_store.records.records import Records
from model_store.redis.connection import StoreConnection
from model_store.versions.model_versions import ModelVersions

if TYPE_CHECKING:
    from model_store.forget import ForgetStream, Forgotten
    from model_store.store_check import Finding
    from model_store.streams.event_streams import DeadLetters, EventStream
    from model_store.streams.feedback import Feedback
    from model_store.versions.lease import TrainerLease
    from model_store.versions.rounds import Rounds


class Store:
    """An open store. Thread safety: may be shared by all threads of a process; not across a fork.

    Open with `Store.open("embedded:.ftrie")`; use it as a context manager or call `close`, which stops an embedded
    server if no other process uses it.
    """

    def __init__(self, connection: StoreConnection, records: Records) -> None:
        self._connection = connection
        self.records = records

    @classmethod
    def open(
        cls,
        url: str,
        timeout_s: float = 5.0,
        user_timeout_s: float | None = None,
        clock: Clock = SYSTEM,
    ) -> Store:
        """Open a URL (`model_store.redis.servers` lists the kinds) or `embedded:DIR`, and check that it answers.

        `timeout_s` bounds each wait on the socket; `user_timeout_s` (default the same) those of `records.user` and
        `records.items`. `clock` dates what is published and reported, and decides what is due.
        Raises StoreError for an invalid URL, StoreUnavailable without an answer.
        """
        connection = StoreConnection(url, timeout_s, clock)
        store = cls(connection, Records(connection, timeout_s if user_timeout_s is None else user_timeout_s))
        try:
            store.ping()
        # An interrupt too: an embedded server that was started for it would stay.
        except BaseException:
            store.close()
            raise
        return store

    @property
    def url(self) -> str:
        """The URL this store was opened with, without its password."""
        return self._connection.shown_url

    @property
    def clock(self) -> Clock:
        """The clock it was opened with."""
        return self._connection.clock

    @property
    def client(self) -> Any:
        """The redis client, for a cluster a RedisCluster; it returns bytes and raises redis-py's exceptions."""
        return self._connection.client

    def model(self, name: str, on_junk: Report = silent) -> ModelVersions:
        """The versions of one model, which need not exist yet. Raises UsageError for an invalid name.

        on_junk is called once with a message for each value that was skipped because it cannot be read.
        """
        return ModelVersions(self._connection, name, on_junk)

    def model_names(self) -> list[str]:
        """The models with published versions, sorted. Reads all key names: O(keys of the store)."""
        names = (
            key.decode() for batch in self._connection.scan(b"ftrie:{*}:versions", 1000) for key in batch
        )
        return sorted({name.removeprefix("ftrie:{").removesuffix("}:versions") for name in names})

    def impressions(self, model: str) -> EventStream:
        """The stream of impressions. Raises UsageError for an invalid name."""
        return self.event_stream(ModelKeys(model).impressions)

    def clicks(self, model: str) -> EventStream:
        """The stream of clicks and conversions. Raises UsageError for an invalid name."""
        return self.event_stream(ModelKeys(model).clicks)

    def feedback(
        self, wait_s: float = 5.0, *, length: int | None = None, age_s: float | None = None
    ) -> Feedback:
        """A writer of clicks and conversions, each once. Close it before the store. `wait_s` bounds a report.

        length, age_s: approximate number of entries a stream keeps, and for how long.
        """
        from model_store.streams.feedback import AGE_S, LENGTH, Feedback

        return Feedback(
            self._connection,
            wait_s,
            length=LENGTH if length is None else length,
            age_s=AGE_S if age_s is None else age_s,
        )

    def event_stream(self, key: str) -> EventStream:
        """The stream of events at a key, which need not exist yet."""
        from model_store.streams.event_streams import EventStream

        return EventStream(self._connection, key)

    def dead_letters(self, model: str) -> DeadLetters:
        """A model's events that could not be learned from. Raises UsageError for an invalid name."""
        from model_store.streams.event_streams import DeadLetters

        return DeadLetters(self._connection, model)

    def trainer_lease(self, model: str, owner: str, partition: int = 1) -> TrainerLease:
        """The lease of a model's trainer, or of a partition's, not yet taken. Raises UsageError for an invalid name."""
        from model_store.versions.lease import TrainerLease

        return TrainerLease(self._connection, model, owner, partition=partition)

    def rounds(self, model: str) -> Rounds:
        """What the partitions of a model exchange. Raises UsageError for an invalid name."""
        from model_store.versions.rounds import Rounds

        return Rounds(self._connection, model)

    def check(self, models: Sequence[str] = (), *, repair: bool = False) -> list[Finding]:
        """Find invalid values in the keys of these models; without names, of all models and the records.

        repair: repair them. Raises UsageError for an invalid name, StoreUnavailable.
        """
        from model_store.store_check import check

        return check(self._connection, models, repair=repair)

    def forget(self, cookie: str, model: str | None = None, **options: Any) -> Forgotten:
        """Remove what the store has of a cookie, and have trainers forget it: `model_store.forget.forget`."""
        from model_store.forget import forget

        return forget(self._connection, cookie, model, **options)

    def to_forget(self, model: str) -> ForgetStream:
        """Those whom a model's trainers are to forget. Raises UsageError for an invalid name."""
        from model_store.forget import ForgetStream

        return ForgetStream(self._connection, model)

    def replication(self) -> tuple[bool, float] | None:
        """See `StoreConnection.replication`."""
        return self._connection.replication()

    def ping(self) -> None:
        """Raise StoreUnavailable unless the store answers."""
        self._connection.ping()

    def close(self) -> None:
        """Close all connections. Idempotent."""
        self.records.close()
        self._connection.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
