"""Sinks: where impressions go, a stream of a store or a file of JSON lines.

A sink is opened when it is first written to, and again after a failure: one that is away does not delay a server's
start. Queueing and retries are the `BackgroundWriter`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from model_store.errors import OutputError, ServerError, StoreUnavailable
from model_store.redis.connection import StoreConnection
from model_store.redis.store_url import EMBEDDED, SCHEMES
from model_store.store import Store
from server.impressions.rotating_file import RotatingFile

if TYPE_CHECKING:
    from model_store.streams.event_streams import EventStream
    from server.settings import Settings

STORE = "store"
FILE = "file:"
TIMEOUT_S = 1.0
FILE_MODE = 0o640
"""Lines hold cookies and features: readable by the owner, and by a group that a trainer may be in."""


class Sink(Protocol):
    """For one thread. kind: store, redis or file; shown: its address for messages, without a password."""

    kind: str
    shown: str

    def append(self, model: str, lines: Sequence[bytes]) -> None:
        """Add lines of one model. Raises FtrieError, OSError if it cannot tell that they were added."""

    def close(self) -> None:
        """Close what is open."""


class StreamSink:
    """The stream of each model's impressions in one store."""

    def __init__(self, url: str, kind: str, length: int, age_s: float) -> None:
        """length, age_s: what a stream keeps, about."""
        self.kind, self.shown = kind, kind
        self._url, self._length, self._age_s = url, length, age_s
        self._store: Store | None = None
        self._streams: dict[str, EventStream] = {}

    def check(self) -> None:
        """Raise StoreError for an invalid URL. Does not connect."""
        if not self._url.startswith(EMBEDDED):
            StoreConnection(self._url, TIMEOUT_S).close()

    def append(self, model: str, lines: Sequence[bytes]) -> None:
        """See `Sink`. If the store did not answer, the lines may be there; sent again, they are there twice."""
        try:
            self._stream(model).append(lines)
        except StoreUnavailable:
            self.close()
            raise

    def close(self) -> None:
        """See `Sink`."""
        self._streams = {}
        if self._store is not None:
            self._store.close()
            self._store = None

    def _stream(self, model: str) -> EventStream:
        if self._store is None:
            self._store = Store.open(self._url, timeout_s=TIMEOUT_S)
            self.shown = self._store.url
        stream = self._streams.get(model)
        if stream is None:
            stream = self._streams[model] = self._store.impressions(model)
            stream.length, stream.age_s = self._length, self._age_s
        return stream


class FileSink:
    """One file for all models, rotated when full. Several processes may append to it."""

    def __init__(self, path: str, max_bytes: int, kept: int) -> None:
        """Keeps `kept` full files beside the present one."""
        self.kind, self.shown = "file", path
        self._max_bytes, self._kept = max_bytes, kept
        self._file: RotatingFile | None = None

    def append(self, model: str, lines: Sequence[bytes]) -> None:
        """See `Sink`."""
        self.open().append(b"\n".join([*lines, b""]))

    def open(self) -> RotatingFile:
        """The file, opened if it was not. Raises OSError."""
        if self._file is None:
            self._file = RotatingFile(self.shown, self._max_bytes, self._kept, FILE_MODE)
        return self._file

    def close(self) -> None:
        """See `Sink`."""


def open_sinks(settings: Settings) -> list[Sink]:
    """The sinks of `--impressions`. Raises ServerError for an invalid name, or one given twice."""
    if len(set(settings.impressions)) < len(settings.impressions):
        raise ServerError("--impressions: one sink is given twice; expected each once")
    return [_sink(name, settings) for name in settings.impressions]


def check(settings: Settings) -> None:
    """Check the settings before the server starts.

    Raises ServerError for an invalid sink, StoreError for an invalid URL, OutputError for a file that is not writable.
    """
    for sink in open_sinks(settings):
        if isinstance(sink, StreamSink):
            sink.check()
        elif isinstance(sink, FileSink):
            try:
                sink.open()
            except OSError as error:
                raise OutputError(
                    f"cannot write impressions to {sink.shown}: {error.strerror}; name a file that can be written"
                ) from error


def _sink(name: str, settings: Settings) -> Sink:
    if name.startswith(FILE) and len(name) > len(FILE):
        path = name.removeprefix(FILE)
        return FileSink(path, settings.impressions_size_mib << 20, settings.impressions_kept)
    kind = STORE if name == STORE else "redis"
    if kind == STORE or name.startswith((EMBEDDED, *(f"{scheme}://" for scheme in SCHEMES))):
        url = settings.store if kind == STORE else name
        return StreamSink(url, kind, settings.impressions_length, settings.impressions_age_s)
    shown = name.rpartition("@")[2]  # before it there may be a password
    raise ServerError(f"--impressions: got {shown!r}, expected store, redis://HOST:PORT or file:PATH")
