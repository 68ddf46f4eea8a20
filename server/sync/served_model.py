"""One model as it is served: what was delivered, where it came from, and what every answer must say of that.

What cannot be taken is refused, and what is served then stays. While there is nothing to serve yet, the last good model
on disk is, and answers say so. Nothing here speaks to the store; whoever follows it calls.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

import structlog

from model_store.errors import FtrieError, UnreadableValue
from model_store.versions.experiments import Experiment
from model_store.versions.manifest import Manifest
from model_store.versions.model_versions import ModelVersions
from server.model.shared_memory import Parts
from server.model.state import AllEqual
from server.sync.builder import Builder
from server.sync.experiment_sync import FollowedExperiment
from server.sync.last_good import Keeper
from server.sync.version_retry import Refusals, reason_of
from server.telemetry.families import RELOAD_SECONDS, RELOADS
from server.telemetry.meter import Meter
from server.telemetry.status import ModelStatus, Source

PART, ITEMS_PART = "model", "items"
STORE: Source = "store"
DISK: Source = "disk"
ITEMS, RESTORED, REBUILT = "items", "restored", "rebuilt"

_log = structlog.get_logger(__name__)


class Receiver(Protocol):
    """To whom is delivered: a `Distribution`."""

    def deliver(self, parts: Parts) -> None:
        """Serve these parts."""

    def tell(self, model: str, body: Mapping[str, Any]) -> None:
        """Pass this message on to every worker."""


class ServedModel:
    """For the one thread that follows the model; `status` and `experiment` may be read by any."""

    def __init__(
        self,
        model: str,
        receiver: Receiver,
        keeper: Keeper | None,
        meter: Meter,
        *,
        with_fragments: bool = False,
    ) -> None:
        """keeper: who has the last good model; None where none is kept. with_fragments: as of `Builder`."""
        self.status = ModelStatus(model)
        self.experiment = FollowedExperiment(model, self._tell_experiment, meter)
        self.builder = Builder(model, with_fragments=with_fragments)
        self.refusals = Refusals(model, meter)
        self._model = model
        self._receiver = receiver
        self._keeper = keeper
        self._meter = meter
        self._said_none = False
        self._degraded: dict[str, str] = {}
        self._problems: dict[str, str] = {}
        self._items_orders = 0

    # -- what the store names

    def come_to(self, versions: ModelVersions, manifest: Manifest) -> None:
        """Serve this version, and the items as they are now. Raises StoreUnavailable, or why it cannot be taken."""
        self._said_none = False
        parts, began = self.builder.parts, time.monotonic()
        if parts is None and self._disk_has(manifest):
            pass
        elif parts is None or (parts.version, parts.sha256) != (manifest.version, manifest.sha256):
            before = self._begin_with_disk() if parts is None else None
            kind = self.builder.bring_to(versions, manifest)
            if before is not None:
                self.builder.freed(before.values.uid)  # it was delivered to nobody
            self._deliver(kind, began)
        else:
            self.follow_items(manifest)
        self._is_asked_for(manifest)

    def follow_items(self, manifest: Manifest | None = None) -> None:
        """Serve the items as they are now. Raises StoreUnavailable. manifest: of the version that is served."""
        began, forced = time.monotonic(), manifest is not None and manifest.forced
        if self.builder.items_moved() and self.builder.with_new_items(allow_equal=forced):
            self._deliver(ITEMS, began)
        self._note_items()

    def rebuild_if_due(self) -> None:
        """Put a second trie that has grown into the first: the same answers, looked up in one."""
        began = time.monotonic()
        if self.builder.rebuilt():
            self._deliver(REBUILT, began)

    def _deliver(self, kind: str, began: float) -> None:
        """Have what was built served; kind: how it came about."""
        parts = self.builder.parts
        assert parts is not None
        self.experiment.served(*self.builder.variants_and_shares())
        self.status = replace(
            self.status,
            version=parts.version,
            sha256=parts.sha256,
            content=parts.content,
            since=time.time(),
            keys=self.builder.keys,
            items=self.builder.items,
            source=STORE,
        )
        self._meter.count(RELOADS, self._model, kind)
        self._meter.count(RELOAD_SECONDS, self._model, kind, by=time.monotonic() - began)
        self._note_items()
        self._receiver.deliver(parts)  # last: whoever is ready by it finds all the rest done

    def _is_asked_for(self, manifest: Manifest) -> None:
        """What is served is what the store names, wherever it came from: no answer need say anything."""
        self.refusals.succeeded()
        self._say_degraded(PART, "")
        self._note_problem(PART, "")
        published = manifest.created.timestamp()
        self.status = replace(self.status, source=STORE, kind=manifest.kind, published=published)

    # -- what cannot be served

    def refuse(self, version: int, error: Exception) -> None:
        """This version cannot be taken."""
        self.refusals.refuse(version, error, self.status.version)
        problem = f"version {version} was refused ({reason_of(error)})"
        if isinstance(error, AllEqual):
            problem += f": {error}; to serve it: ftrie store activate {self._model} {version} --force"
        self.status = replace(self.status, refused=self.refusals.counts)
        self._note_problem(PART, problem)
        self.start_from_disk(problem)

    def pointer_is_junk(self, error: UnreadableValue) -> None:
        """What names the active version cannot be read; what is served stays."""
        if not self.refusals.resting(None):
            self.refusals.refuse(None, error, self.status.version)
        problem = f"the active version cannot be read ({reason_of(error)}): {error}"
        self.status = replace(self.status, refused=self.refusals.counts)
        self._note_problem(PART, problem)
        self.start_from_disk(problem)

    def none_is_active(self) -> None:
        """The store names no version; that is said once, until it names one again."""
        if self._said_none:
            return
        self._said_none = True
        if self.status.version is None:
            _log.info("no version is active yet, waiting", model=self._model)
        else:
            _log.error("no version is active any more", model=self._model, still_serving=self.status.version)
        problem = "the store names no active version"
        self._note_problem(PART, problem)
        self.start_from_disk(problem)

    def store_is_away(self, away: bool) -> None:
        """Note whether the store is away."""
        self.status = replace(self.status, store_away=away)

    # -- the copy on disk

    def start_from_disk(self, problem: str) -> None:
        """Where there is nothing to serve yet, serve the copy on disk, and let every answer say why."""
        if self.status.version is not None or self._keeper is None:
            return
        parts = self._keeper.last_good(self._model)
        if parts is not None:
            # Said before it is delivered: no answer of it is without.
            self._say_degraded(PART, f"{problem}; version {parts.version} is from this server's disk")
            if self._restore(parts):
                self.status = replace(self.status, source=DISK)
                _log.warning("serving from disk", model=self._model, version=parts.version, why=problem)

    def _disk_has(self, manifest: Manifest) -> bool:
        """Serve the copy on disk, if it is of this very version: it need not be fetched and built."""
        if self._keeper is None:
            return False
        parts = self._keeper.last_good(self._model, manifest.sha256)
        return parts is not None and parts.version == manifest.version and self._restore(parts)

    def _begin_with_disk(self) -> Parts | None:
        """Build on the copy on disk, of whatever version: its items stay where the store has lost them."""
        parts = self._keeper.last_good(self._model) if self._keeper is not None else None
        return parts if parts is not None and self._built_from_disk(parts) else None

    def _restore(self, parts: Parts) -> bool:
        began = time.monotonic()
        if not self._built_from_disk(parts):
            return False
        self._deliver(RESTORED, began)
        return True

    def _built_from_disk(self, parts: Parts) -> bool:
        try:
            self.builder.restore(parts)
        except (FtrieError, OSError, MemoryError) as error:
            _log.error("the last good model on disk is of no use", model=self._model, error=str(error))
            return False
        return True

    # -- messages to the workers

    def _note_items(self) -> None:
        """Say whether the items are those of the store, and let workers forget what they keep where that is ordered."""
        kept, refused, problem = self.builder.kept_items, self.builder.items_refused, ""
        if kept:
            problem = (
                f"the store lost its data: {kept:,} items that it lacks are kept as they were; load them again, or to "
                "keep none: ftrie store load items FILE --only"
            )
        elif refused:
            problem = (
                f"the store's items are refused: {refused}; to take them: ftrie store load items FILE --only"
            )
        self.status = replace(self.status, kept_items=kept, items_refused=bool(refused))
        self._note_problem(ITEMS_PART, problem)
        self._say_degraded(ITEMS_PART, problem)
        if self._items_orders != self.builder.items_orders:
            self._items_orders = self.builder.items_orders
            self._receiver.tell(self._model, {"do": "forget", "model": self._model})

    def _note_problem(self, part: str, text: str) -> None:
        """Show this as the problem of one part from now on; "" for none."""
        if text != self._problems.get(part, ""):
            self._problems[part] = text
            problem = "; ".join(filter(None, self._problems.values()))
            self.status = replace(self.status, problem=problem)

    def _say_degraded(self, part: str, text: str) -> None:
        """Have every answer say this of a part from now on; "" for nothing."""
        if text != self._degraded.get(part, ""):
            self._degraded[part] = text
            parts = {part: text for part, text in self._degraded.items() if text}
            self._receiver.tell(self._model, {"do": "degraded", "model": self._model, "parts": parts})

    def _tell_experiment(self, asked: Experiment | None) -> None:
        body = {"do": "experiment", "model": self._model, "experiment": asked and asked.to_json()}
        self._receiver.tell(self._model, body)
