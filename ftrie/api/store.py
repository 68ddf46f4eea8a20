"""`ftrie.Store`: published models, items, users and candidate sets in Redis, a cluster, or an embedded Valkey."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

from ftrie.api.data import Data, is_path, one_table
from ftrie.api.model import Model, opened_engine
from ftrie.api.output import names_arguments, warn
from model_store.flags import DEFAULT_STORE
from model_store.model_files import read_named, read_published
from model_store.store import Store as StoreEngine
from model_store.versions.manifest import VersionInfo
from model_store.versions.model_versions import ModelVersions
from trainer.formats.record_files import ITEM_IDS, USER_IDS, read_records, records_of


class Store:
    """An open store: what servers serve and trainers publish. A context manager; thread-safe.

    url: redis://…, rediss://…, unix://…, cluster://…, sentinel://…, or embedded:DIR, which starts or joins a Valkey in
    DIR; by default FTRIE_STORE, else embedded:.ftrie. Raises StoreError for an invalid URL, StoreUnavailable without an
    answer; so does every method. `engine` is the store as the engine holds it; internal.
    """

    def __init__(self, url: str | None = None, *, timeout_s: float = 5.0) -> None:
        self.engine = StoreEngine.open(url or os.environ.get("FTRIE_STORE") or DEFAULT_STORE, timeout_s)

    @property
    def url(self) -> str:
        """The URL, without its password."""
        return self.engine.url

    def models(self) -> list[str]:
        """The names of all models with a published version."""
        return self.engine.model_names()

    def versions(self, model: str) -> list[VersionInfo]:
        """The published versions of a model, oldest first."""
        return self._versions(model).versions()

    def active(self, model: str) -> int | None:
        """The version that servers serve; None if none is active."""
        return self._versions(model).active()

    def load(self, model: str, version: int | None = None) -> Model:
        """A published version, by default the active one; of a delta the whole model. Raises VersionNotFound."""
        versions = self._versions(model)
        return Model(versions.materialise(versions.active_or_fail() if version is None else version))

    def publish(self, model: Model, *, activate: bool = False, force: bool = False) -> int:
        """Put a model into the store as a new version, and return its number. activate: servers switch to it.

        Raises InputError if too many of its rows were rejected, unless force; LeaseHeld with `activate` while a trainer
        publishes this model. A spec's guard judges runs, not models that are published here: then there is a warning.
        """
        return model.publish(self, activate=activate, force=force)

    def activate(self, model: str, version: int, *, force: bool = False) -> int | None:
        """Make a version the one that servers serve, after verifying its bytes; returns the one before.

        force: even if a guard or server has refused it. Raises VersionNotFound, VersionRefused, ArtefactError.
        """
        return self._versions(model).activate(version, force=force)

    def rollback(self, model: str, version: int | None = None) -> int:
        """Activate the version that was active before, or `version`; returns the version now active."""
        return self._versions(model).rollback(version)

    def resume(self, model: str) -> int | None:
        """Let the trainer activate versions again after a manual activation; returns the version that was pinned."""
        return self._versions(model).resume()

    def gc(self, model: str, keep: int | None = None) -> list[int]:
        """Delete old versions, never one that is served or needed; returns those that were deleted."""
        return self._versions(model).gc(keep)

    @names_arguments
    def put_items(self, items: Data, id_column: str | None = None) -> int:
        """Replace the records of these items: a file or table, a line an item; returns their number. Servers follow.

        id_column: by default item, item_id or id. Raises SpecError without such a column.
        """
        return self.engine.records.put_items(records_from(items, "items", id_column))

    @names_arguments
    def put_users(self, users: Data, id_column: str | None = None) -> int:
        """Replace the records of these users, as `put_items`; id_column: by default cookie, user or user_id."""
        return self.engine.records.put_users(records_from(users, "users", id_column))

    def put_candidates(self, name: str, ids: Iterable[str]) -> int:
        """Replace a candidate set, which requests name, by these item ids, in order; returns their number."""
        return self.engine.records.put_candidates(name, list(ids))

    def items(self, ids: Iterable[str] | None = None) -> dict[str, dict[str, str]]:
        """The stored features of these items, or of all, by id; an item that the store lacks is left out."""
        if ids is None:
            found: Iterable[tuple[str, Any]] = self.engine.records.scan_items()
        else:
            wanted = list(ids)
            found = zip(wanted, self.engine.records.items(wanted), strict=True)
        return {name: dict(record) for name, record in found if record}

    def user(self, cookie: str) -> dict[str, str]:
        """A user's stored features; empty if there are none."""
        return dict(self.engine.records.user(cookie) or {})

    def candidates(self, name: str) -> list[str] | None:
        """The item ids of a candidate set; None if there is no such set."""
        return self.engine.records.candidates(name)

    def close(self) -> None:
        """Close the connections; an embedded store ends if no other process uses it. May be called twice."""
        self.engine.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

    def _versions(self, model: str) -> ModelVersions:
        return self.engine.model(model, warn)


@names_arguments
def load(source: str | os.PathLike[str], store: Store | str | None = None) -> Model:
    """A model from a file or a store.

    source: a path ending in .arrow; or `model:version`, or `model` for its active version, in `store`, which is a Store
    or a URL, by default FTRIE_STORE, else the embedded store of this folder. `store://model:version` is the same.
    Raises ArtefactError for a damaged file, VersionNotFound, StoreUnavailable.
    """
    name = os.fspath(source)
    if name.endswith(".arrow"):
        return Model(read_named(name, "").artefact)
    published = read_published(name.removeprefix("store://"), lambda: opened_engine(store), warn)
    return Model(published.artefact)


def records_from(
    data: Data, what: str, id_column: str | None = None
) -> Iterable[tuple[str, Mapping[str, str]]]:
    """The records of items or users in a file or table: id and features as text. Raises SpecError, InputError."""
    usual = ITEM_IDS if what == "items" else USER_IDS
    path = is_path(data)
    return (
        read_records(path, usual, id_column) if path else records_of(one_table(data), what, usual, id_column)
    )
