"""From the names that a user gives to open sources, each at its place. Only what a file begins with is read here.

A source is known by its name: the key of a stream, the name of a file as it was given, the topic and partition. Where
the store or the broker is may change from run to run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from glob import escape, glob

from model_store.errors import InputError
from model_store.redis.redis_keys import ModelKeys
from model_store.spec.spec import ModelSpec
from model_store.store import Store
from trainer.events.events import Place, Source
from trainer.events.files import FileChain, FileSource
from trainer.events.kafka import SCHEME, kafka_name
from trainer.events.redis import StreamSource
from trainer.events.rows import RowSource, format_of
from trainer.logs import json_rows
from trainer.logs.reader import format_by_name

STORE = "store"
KINDS = ("impressions", "clicks")
ROWS = "rows"
_STORES = ("redis://", "rediss://", "unix://", "embedded:")
_EXPECTED = (
    "a file, a folder, a glob, redis://HOST:PORT, unix://SOCKET, embedded:DIR, each with #impressions, #clicks or #KEY "
    "or without, store, or kafka://HOST:PORT/TOPIC"
)

Say = Callable[[str], None]


@dataclass(frozen=True)
class _Opener:
    """What is known before a source is opened: its name, and how it is opened at a place."""

    name: str
    open: Callable[[Place], Source]
    may_be_new: bool = False


def open_sources(
    names: Sequence[str],
    spec: ModelSpec,
    store: Store | None,
    places: Sequence[Place] = (),
    on_note: Say = lambda text: None,
    *,
    once: bool = False,
) -> list[Source]:
    """The sources that `names` stand for (docs/sources.md), each at its place.

    places: as `Source.place` told them, or none to begin at the beginning. once: what is there now is all there is.
    Stores that are opened here are closed with the source that reads them. Raises InputError for a name that cannot be
    understood and for places of other sources, StoreError, StoreUnavailable, SourceUnavailable.
    """
    if not names:
        raise InputError(f"no source of events: expected {_EXPECTED}")
    opening = _Opening(spec, store, on_note, once)
    openers = [opener for name in names for opener in opening.openers(name)]
    _check_names(openers)
    found = _at_places(openers, places)
    with ExitStack() as undo:
        sources = []
        for opener, place in found:
            source = opener.open(place)
            undo.callback(source.close)
            sources.append(source)
        undo.pop_all()
    return sources


def known_as(name: str) -> str:
    """A name as a checkpoint keeps it: without what may change from run to run, such as hosts and passwords."""
    kind, equals, rest = name.partition("=")
    name = rest if equals and kind in KINDS else name
    if name.startswith(_STORES):
        _, hash, part = name.partition("#")
        return f"{STORE}{hash}{part}"
    return f"kafka {kafka_name(name).topic}" if name.startswith(SCHEME) else name


def check_there(names: Sequence[str]) -> None:
    """Raise InputError for a file, folder or glob that there is nothing of: for who will not wait for it."""
    for name in names:
        kind, equals, rest = name.partition("=")
        path = rest if equals and kind in (*KINDS, ROWS) else name
        is_path = "://" not in path and not path.startswith(_STORES) and path.partition("#")[0] != STORE
        if is_path and not (os.path.exists(path) or glob(path, recursive=True) or glob(f"{escape(path)}.*")):
            raise InputError(f"{path}: there is no such file; name a file, folder or glob that is there")


class _Opening:
    """Understands names."""

    def __init__(self, spec: ModelSpec, store: Store | None, on_note: Say, once: bool) -> None:
        self._keys = ModelKeys(spec.model.name)
        self._store = store
        self._on_note = on_note
        self._once = once

    def openers(self, name: str) -> Iterator[_Opener]:
        """Those of one name. A kind before it, as in clicks=PATH, is only looked at."""
        kind, equals, rest = name.partition("=")
        if equals and kind == ROWS:
            raise InputError(f"{name}: labelled rows cannot be read beside events; name them alone")
        if equals and kind in KINDS:
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
            yield _Opener(key, lambda place, key=key: self._stream(url, key, place))  # type: ignore[misc]

    def _stream(self, url: str, key: str, place: Place) -> Source:
        if url != STORE:
            return _OwnStream(url, key, place, self._on_note, once=self._once)
        if self._store is None:
            raise InputError(
                "the source `store` is the store that the model is published to, and there is none"
            )
        return StreamSource(key, self._store.event_stream(key), place, self._on_note, once=self._once)

    def _partitions(self, name: str) -> Iterator[_Opener]:
        from trainer.events.kafka import PartitionSource, partitions_of

        topic, config = kafka_name(name).topic, kafka_name(name).config
        for number in partitions_of(config, topic):
            shown = f"kafka {topic}#{number}"

            def opened(place: Place, number: int = number, shown: str = shown) -> Source:
                return PartitionSource(shown, config, topic, number, place, self._on_note, once=self._once)

            yield _Opener(shown, opened, may_be_new=True)

    def _files(self, name: str) -> _Opener:
        return _Opener(name, lambda place: FileSource(name, place, self._on_note, once=self._once))


class _OwnStream(StreamSource):
    """A stream of a store that is opened for it alone."""

    def __init__(self, url: str, key: str, place: Place, on_note: Say, *, once: bool) -> None:
        self._store = Store.open(url)
        super().__init__(key, self._store.event_stream(key), place, on_note, once=once)

    def close(self) -> None:
        """Close the store."""
        self._store.close()


def _check_names(openers: Sequence[_Opener]) -> None:
    names = [each.name for each in openers]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{name} is named more than once among the sources; each is to be read once")


def _at_places(openers: Sequence[_Opener], places: Sequence[Place]) -> list[tuple[_Opener, Place]]:
    """Each with its place; {} of one that had brought nothing. The order decides on ties, and stays."""
    by_name = {place["source"]: place for place in places if "source" in place}
    known = [each.name for each in openers if each.name in by_name]
    new = [each.name for each in openers if each.name not in by_name and not each.may_be_new]
    if known != list(by_name) or (places and len(new) > len(places) - len(by_name)):
        raise InputError(
            f"the checkpoint has read {_shown(by_name)}; the sources are now {_shown(each.name for each in openers)}; "
            "name the same ones in the same order, or begin anew with another folder of checkpoints"
        )
    return [(each, by_name.get(each.name, {})) for each in openers]


def _shown(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing"


# --- Which of the names that a user gives hold labelled rows instead of events, for trainer and replay;
# opening rows ---


ROWS_PREFIX = "rows="
_JSON = (None, "jsonl")


def are_rows(names: Sequence[str], spec: ModelSpec) -> bool:
    """True if the names hold labelled rows. Raises InputError where more than the one source of rows is named.

    Rows have no place in the order of events.
    """
    found = [holds_rows(name, spec.input.label) for name in names]
    if any(found) and len(names) > 1:
        raise InputError(
            f"{names[found.index(True)]} holds labelled rows, which are read in the order of their files; name it "
            "alone: one file, folder or glob"
        )
    return any(found)


def holds_rows(name: str, label: str) -> bool:
    """True for rows=PATH, and for a path whose first file holds rows; where there is none yet, by its extension.

    CSV, TSV, Parquet and the formats whose rows name their features hold nothing but rows. JSON lines hold rows if the
    label is among the columns of their first 64 KiB: an event has no label, it is what the join makes of it.
    """
    kind, equals, _ = name.partition("=")
    if equals and f"{kind}=" == ROWS_PREFIX:
        return True
    is_stream = "://" in name or name.partition("#")[0] == STORE or name.startswith("embedded:")
    if is_stream or (equals and kind in KINDS):
        return False
    chain = FileChain(name, {}, lambda text: None, once=True, least_lines=2)
    try:
        found = chain.first()
        if found is None:
            return format_by_name(name) not in _JSON
        record, opened = found
        head = opened.head()
        return format_of(record.path, head) not in _JSON or label in json_rows.columns(head)
    except InputError:
        return False
    finally:
        chain.close()


def open_rows(
    names: Sequence[str],
    spec: ModelSpec,
    places: Sequence[Place] = (),
    on_note: Callable[[str], None] = lambda text: None,
    *,
    once: bool = False,
) -> RowSource:
    """The one source of rows, at its place; see `open_sources`. Raises InputError for a place of another source."""
    [name] = (each.removeprefix(ROWS_PREFIX) for each in names)
    if not name or "://" in name:
        raise InputError(
            f"{ROWS_PREFIX}{name}: expected a file, a folder or a glob of CSV, TSV or JSON lines"
        )
    read = next((place["source"] for place in places if "source" in place), name)
    if read != name:
        raise InputError(
            f"the checkpoint has read {read}; the source is now {name}; name the same one, or begin anew with another "
            "folder of checkpoints"
        )
    fields = [(field.column or key, field) for key, field in spec.fields.items()]
    return RowSource(
        *(name, places[0] if places else {}, on_note),
        once=once,
        objects=frozenset(column for column, field in fields if field.kind == "set"),
        optional=frozenset(column for column, field in fields if field.optional),
    )
