"""Sinks: where impressions go, a stream of a store or a file of JSON lines.

A sink is opened when it is first written to, and again after a failure: one that is away does not delay a server's
start. Queueing and retries are the `BackgroundWriter`'s. `RotatingFile` is the file, of impressions and of shadows.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from model_store.errors import OutputError, ServerError, StoreUnavailable
from model_store.files import elsewhere
from model_store.redis.connection import StoreConnection
from model_store.redis.servers import EMBEDDED, SCHEMES
from model_store.store import Store

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

    def check(self) -> None:
        """Raise StoreError for an invalid URL, OutputError for a file that cannot be written. Connects to nothing."""

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
        """See `Sink`."""
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
        self._file = RotatingFile(path, max_bytes, kept, FILE_MODE)

    def check(self) -> None:
        """See `Sink`."""
        self._file.check("impressions to")

    def append(self, model: str, lines: Sequence[bytes]) -> None:
        """See `Sink`."""
        # One write for the batch, under one lock.
        self._file.append(b"\n".join([*lines, b""]))

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
        sink.check()


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


class RotatingFile:
    """A file of lines that several processes append to, with a bounded size. Thread safety: none.

    A full FILE becomes FILE.1, that one FILE.2, and so on; the oldest is deleted. Processes take turns by flock. A line
    is whole or absent: if the disk is full, the file is truncated back, and a partial line left by a crash is ended
    first.
    """

    def __init__(self, path: str | Path, max_bytes: int, kept: int, mode: int = 0o666) -> None:
        """Keeps `kept` full files beside the present one. mode: of a new file, before the umask."""
        self._path = Path(path)
        self._mode = mode
        self._max_bytes = max_bytes
        self._kept = kept

    def check(self, what: str) -> None:
        """Make the file if there is none. what: comes before the path in the message. Raises OutputError."""
        try:
            with self._open():
                pass
        except OSError as error:
            raise OutputError(
                f"cannot write {what} {self._path}: {error.strerror}"
                + elsewhere(error, "name a file that can be written")
            ) from error

    def append(self, lines: bytes) -> None:
        """Add lines, each with its end: all or none. More than `max_bytes` get a file of their own. Raises OSError."""
        while not self._fits(lines):
            pass

    def _fits(self, lines: bytes) -> bool:
        """Write; or rename the full files and return False."""
        with self._open() as fd:
            size = os.fstat(fd).st_size
            # An empty file takes lines of any length: they would fit no other file either, and the loop would not end.
            if size and size + len(lines) >= self._max_bytes:
                self._rotate()
                return False
            # Only the last byte is read: a process that was killed within a write leaves a part of a line, without its
            # end.
            whole = not size or os.pread(fd, 1, size - 1) == b"\n"
            _write_all_or_none(fd, size, lines if whole else b"\n" + lines)
            return True

    def _rotate(self) -> None:
        # The oldest first: each name is free, or may be replaced, when the next younger file takes it.
        for number in range(self._kept, 1, -1):
            if (older := self._numbered(number - 1)).exists():
                older.replace(self._numbered(number))
        self._path.replace(self._numbered(1))

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    @contextmanager
    def _open(self) -> Iterator[int]:
        """The file, locked; opened again each time, since another process may have renamed it."""
        while True:
            fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, self._mode)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                # The lock belongs to the file, not to its name: while this process waited, the holder may have renamed
                # the file.
                if self._is_at_path(fd):
                    yield fd
                    return
            finally:
                os.close(fd)

    def _is_at_path(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(fd))
        except FileNotFoundError:
            return False


def _write_all_or_none(fd: int, size: int, lines: bytes) -> None:
    left = memoryview(lines)
    try:
        while left:
            # A disk that is nearly full takes a part, and fails at the next attempt.
            left = left[os.write(fd, left) :]
    except OSError:
        # Under the lock, so that nobody has appended behind the part that is cut off.
        os.ftruncate(fd, size)
        raise
