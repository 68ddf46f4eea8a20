"""Opens the sources that a user names, each at its position.

A source is identified by the key of a stream, the name of a file as given, or the topic and partition. The address of
the store or broker may change from run to run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from glob import escape, glob

from model_store.errors import InputError
from model_store.keys import ModelKeys
from model_store.redis.servers import EMBEDDED, SCHEMES
from model_store.spec.spec import ModelSpec
from model_store.store import Store
from trainer.events.events import Source, SourcePosition
from trainer.formats.csv import Header
from trainer.formats.dialect import Dialect
from trainer.formats.streams import is_pipe
from trainer.sources.files import FileSource
from trainer.sources.kafka import SCHEME, kafka_name
from trainer.sources.kinds import PREFIXES, ROWS, ROWS_PREFIX, STORE, is_stream
from trainer.sources.open_files import Listing
from trainer.sources.redis import StreamSource
from trainer.sources.rows import RowSource

_STORES = (*(f"{scheme}://" for scheme in SCHEMES), EMBEDDED)
_EXPECTED = (
    "a file, a folder, a glob, redis://HOST:PORT, unix://SOCKET, cluster://HOST:PORT, sentinel://HOST:PORT/MASTER, "
    "embedded:DIR, each with #impressions, #clicks or #KEY "
    "or without, store, or kafka://HOST:PORT/TOPIC"
)

Say = Callable[[str], None]


@dataclass(frozen=True)
class _Opener:
    """A source before it is opened: its name, and how to open it at a position."""

    name: str
    open: Callable[[SourcePosition], Source]
    may_be_new: bool = False


def open_sources(
    names: Sequence[str],
    spec: ModelSpec,
    store: Store | None,
    positions: Sequence[SourcePosition] = (),
    on_note: Say = lambda text: None,
    *,
    once: bool = False,
) -> list[Source]:
    """Open the sources that `names` stand for (docs/events.md), each at its position.

    positions: from `Source.position`, none to begin at the start. once: read what is there now, then end.
    A store opened here is closed with its source. Raises InputError for an invalid name and for positions of other
    sources, StoreError, StoreUnavailable, SourceUnavailable.
    """
    if not names:
        raise InputError(f"no source of events: expected {_EXPECTED}")
    opening = _Opening(spec, store, on_note, once)
    openers = [opener for name in names for opener in opening.openers(name)]
    _check_names(openers)
    found = _at_positions(openers, positions)
    with ExitStack() as undo:
        sources = []
        for opener, position in found:
            source = opener.open(position)
            undo.callback(source.close)
            sources.append(source)
        undo.pop_all()
    return sources


def known_as(name: str) -> str:
    """A name as checkpoints keep it: without what may change from run to run, such as hosts and passwords."""
    kind, equals, rest = name.partition("=")
    name = rest if equals and kind in PREFIXES else name
    if name.startswith(_STORES):
        _, hash, part = name.partition("#")
        return f"{STORE}{hash}{part}"
    return f"kafka {kafka_name(name).topic}" if name.startswith(SCHEME) else name


def check_there(names: Sequence[str]) -> None:
    """Raise InputError for a file, folder or glob that does not exist, for callers that do not wait for it."""
    for name in names:
        kind, equals, rest = name.partition("=")
        path = rest if equals and kind in (*PREFIXES, ROWS) else name
        found = (
            is_stream(path) or os.path.exists(path) or glob(path, recursive=True) or glob(f"{escape(path)}.*")
        )
        if not found:
            raise InputError(f"{path}: there is no such file; name a file, folder or glob that is there")


class _Opening:
    """Parses the names of sources."""

    def __init__(self, spec: ModelSpec, store: Store | None, on_note: Say, once: bool) -> None:
        self._keys = ModelKeys(spec.model.name)
        self._store = store
        self._on_note = on_note
        self._once = once

    def openers(self, name: str) -> Iterator[_Opener]:
        """The sources of one name. A kind before it, as in clicks=PATH, is checked and dropped."""
        kind, equals, rest = name.partition("=")
        if equals and kind == ROWS:
            raise InputError(f"{name}: labelled rows cannot be read beside events; name them alone")
        if equals and kind in PREFIXES:
            name = rest
        if not name:
            raise InputError(f"got an empty source; expected {_EXPECTED}")
        if name.partition("#")[0] == STORE or name.startswith(_STORES):
            yield from self._streams(name)
        elif name.startswith(SCHEME):
            yield from self._partitions(name)
        elif "://" in name:
            raise InputError(
                f"{name}: {name.partition('://')[0]!r} is no kind of source; expected {_EXPECTED}"
            )
        else:
            yield self._files(name)

    def _streams(self, name: str) -> Iterator[_Opener]:
        url, _, part = name.partition("#")
        known = {"impressions": self._keys.impressions, "clicks": self._keys.clicks}
        for key in [known.get(part, part)] if part else known.values():
            yield _Opener(key, lambda position, key=key: self._stream(url, key, position))  # type: ignore[misc]

    def _stream(self, url: str, key: str, position: SourcePosition) -> Source:
        if url != STORE:
            return _OwnStream(url, key, position, self._on_note, once=self._once)
        if self._store is None:
            raise InputError(
                "the source `store` is the store that the model is published to, and there is none"
            )
        return StreamSource(key, self._store.event_stream(key), position, self._on_note, once=self._once)

    def _partitions(self, name: str) -> Iterator[_Opener]:
        from trainer.sources.kafka import PartitionSource, partitions_of

        topic, config = kafka_name(name).topic, kafka_name(name).config
        for number in partitions_of(config, topic):
            shown = f"kafka {topic}#{number}"

            def opened(position: SourcePosition, number: int = number, shown: str = shown) -> Source:
                return PartitionSource(shown, config, topic, number, position, self._on_note, once=self._once)

            yield _Opener(shown, opened, may_be_new=True)

    def _files(self, name: str) -> _Opener:
        return _Opener(name, lambda position: FileSource(name, position, self._on_note, once=self._once))


class _OwnStream(StreamSource):
    """A stream with a store of its own."""

    def __init__(self, url: str, key: str, position: SourcePosition, on_note: Say, *, once: bool) -> None:
        self._store = Store.open(url)
        super().__init__(key, self._store.event_stream(key), position, on_note, once=once)

    def close(self) -> None:
        """Close the store."""
        self._store.close()


def _check_names(openers: Sequence[_Opener]) -> None:
    names = [each.name for each in openers]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{name} is named more than once among the sources; each is to be read once")


def _at_positions(
    openers: Sequence[_Opener], positions: Sequence[SourcePosition]
) -> list[tuple[_Opener, SourcePosition]]:
    """Each with its position, {} for one without. The order of sources decides ties, so it must not change."""
    by_name = {position["source"]: position for position in positions if "source" in position}
    known = [each.name for each in openers if each.name in by_name]
    new = [each.name for each in openers if each.name not in by_name and not each.may_be_new]
    if known != list(by_name) or (positions and len(new) > len(positions) - len(by_name)):
        raise InputError(
            f"the checkpoint has read {_shown(by_name)}; the sources are now {_shown(each.name for each in openers)}; "
            "name the same ones in the same order, or begin anew with another folder of checkpoints"
        )
    return [(each, by_name.get(each.name, {})) for each in openers]


def _shown(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing"


def files_of_rows(names: Sequence[str]) -> list[str]:
    """Logs of rows as files and globs for `trainer.formats.reader`: a folder stands for its files, in order.

    Raises InputError for a folder without files.
    """
    return [path for name in names for path in _files_of(name.removeprefix(ROWS_PREFIX))]


def _files_of(name: str) -> list[str]:
    if not os.path.isdir(name):
        return [name]
    files = [entry.path for entry in Listing(name).entries() or []]
    if not files:
        raise InputError(f"{name}: the folder has no file of rows")
    return files


def names_store(name: str) -> bool:
    """True if the name stands for streams of the store that holds the model."""
    return name.partition("#")[0] == STORE


def open_rows(
    names: Sequence[str],
    spec: ModelSpec,
    positions: Sequence[SourcePosition] = (),
    on_note: Callable[[str], None] = lambda text: None,
    *,
    once: bool = False,
) -> RowSource:
    """The source of rows, at its position; see `open_sources`. Raises InputError for another source's position."""
    if len(names) > 1:
        raise InputError(
            f"{names[0]} holds labelled rows, which are read in the order of their files; name it alone: one file, "
            "folder or glob"
        )
    name = names[0].removeprefix(ROWS_PREFIX)
    if not name or is_pipe(name) or "://" in name:
        raise InputError(
            f"{ROWS_PREFIX}{name}: expected a file, a folder or a glob of CSV, TSV or JSON lines"
        )
    read = next((position["source"] for position in positions if "source" in position), name)
    if read != name:
        raise InputError(
            f"the checkpoint has read {read}; the source is now {name}; name the same one, or begin anew with another "
            "folder of checkpoints"
        )
    fields = [(field.column or key, field) for key, field in spec.fields.items()]
    return RowSource(
        *(name, positions[0] if positions else {}, on_note),
        once=once,
        objects=frozenset(column for column, field in fields if field.kind == "set"),
        optional=frozenset(column for column, field in fields if field.optional or field.is_derived),
        header=Header(
            spec.input.columns, known=frozenset([spec.input.label]), dialect=Dialect.of(spec.input)
        ),
    )
