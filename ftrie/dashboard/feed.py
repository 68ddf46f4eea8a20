"""What the dashboard knows: the state of the store, the servers and the trainers, read once a second for all viewers.

`Feed` runs one thread. In: the store's URL, and the metrics addresses of servers and trainers. Out: immutable
snapshots (`ModelState`, `ServerState`, `TrainerState`), each replaced as a whole, so that any thread may read them
without a lock. What cannot be reached keeps its last snapshot and says so in `problem`; nothing ends because a peer is
away.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ftrie.dashboard.minutes import Minutes
from ftrie.dashboard.scrape import ServerState, ServerWatch, TrainerState, TrainerWatch
from model_store.errors import ArtefactError, FtrieError, StoreUnavailable, UsageError, VersionNotFound
from model_store.spec.spec import ModelSpec, spec_from_json
from model_store.store import Store
from model_store.versions.audit import AuditEntry
from model_store.versions.experiments import Experiment
from model_store.versions.guard_record import GuardRecord
from model_store.versions.manifest import Manifest, VersionInfo
from model_store.versions.model_versions import ModelVersions
from server.ranking.experiments import divided_since

EVERY_S = 1.0
IDLE_EVERY_S = 10.0
"""How often everything is read, while somebody looks and while nobody does."""
SEEN_FOR_S = 30.0
"""A page that was refreshed longer ago counts as closed."""
LIST_EVERY_S = 15.0
"""How often the list of versions is read again though the active version is the same."""
MOST_MANIFESTS = 4_000
MOST_CHANGES = 20
MOST_LEARNED = 2_000
"""Versions whose metrics are remembered."""
NAMES_EVERY_S = 60.0
"""How often new models are looked for, which reads the names of all keys."""
OPEN_TIMEOUT_S = 3.0


class Learned(NamedTuple):
    """The training metrics of one version. at: seconds since 1970; metrics: by variant."""

    at: float
    version: int
    metrics: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class ModelState:
    """One model in the store at one moment.

    at: seconds since 1970 of the last complete read. manifests: those of `versions` that could be read. learned: of
    these and of versions seen before that are gone, oldest first. problem: why the store could not be read since, empty
    if it could. divided_since: the first minute in which the traffic is divided as now.
    """

    name: str
    at: float = 0.0
    problem: str = ""
    active: int | None = None
    pinned: int | None = None
    spec: ModelSpec | None = None
    versions: tuple[VersionInfo, ...] = ()
    manifests: Mapping[int, Manifest] = field(default_factory=dict)
    learned: tuple[Learned, ...] = ()
    experiment: Experiment | None = None
    experiment_problem: str = ""
    divided_since: int = 0
    guard: GuardRecord = field(default_factory=GuardRecord)
    changes: tuple[AuditEntry, ...] = ()
    impressions: int = 0
    clicks: int = 0
    dead_letters: int = 0

    @property
    def variants(self) -> tuple[str, ...]:
        """The active version's variants, the base first; empty if there is none."""
        return tuple(self.spec.variants) if self.spec is not None else ()

    @property
    def base(self) -> str | None:
        """The variant with which the others are compared."""
        return self.variants[0] if self.variants else None

    @property
    def shares(self) -> dict[str, float]:
        """The planned share of the traffic of every variant: the experiment's, else the spec's."""
        experiment = self.experiment
        if experiment is not None and not experiment.running:
            return {name: float(name == experiment.winner) for name in self.variants}
        if experiment is not None and experiment.shares:
            return {name: experiment.shares.get(name, 0.0) for name in self.variants}
        if self.spec is None:
            return {}
        given = {name: each.share for name, each in self.spec.variants.items()}
        total = sum(given.values())
        return {name: share / total for name, share in given.items()} if total else given


class Feed:
    """The latest snapshots. `start` and `stop` once; everything else on any thread."""

    def __init__(self, store_url: str, servers: Sequence[str] = (), trainers: Sequence[str] = ()) -> None:
        """servers, trainers: HOST:PORT of their metrics pages."""
        self._url = store_url
        self._servers = [ServerWatch(address) for address in servers]
        self._trainers = [TrainerWatch(address) for address in trainers]
        self._store: Store | None = None
        self._models: dict[str, _ModelWatch] = {}
        self._problem = "the store was not read yet"
        self._seen, self._named_at = time.monotonic(), -NAMES_EVERY_S
        self._stopped, self._wanted, self._turn = threading.Event(), threading.Event(), threading.Condition()
        self._turns = 0
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close the store."""
        # In this order: the thread that `_wanted` wakes looks at `_stopped`.
        self._stopped.set()
        self._wanted.set()
        self._thread.join()
        if self._store is not None:
            self._store.close()

    def seen(self) -> None:
        """A page is looked at: read every second for a while."""
        idle = time.monotonic() - self._seen > SEEN_FOR_S
        self._seen = time.monotonic()
        if idle:
            self._wanted.set()

    def refreshed(self, timeout_s: float) -> None:
        """Read everything now, and wait for it, at most `timeout_s`."""
        with self._turn:
            begun = self._turns
            self._wanted.set()
            # Two turns: a read that is under way may have passed what was just changed.
            self._turn.wait_for(lambda: self._turns >= begun + 2, timeout_s)

    @property
    def problem(self) -> str:
        """Why the store cannot be read now; empty if it can."""
        return self._problem

    @property
    def store(self) -> Store:
        """The open store. Raises the error for which it could not be opened, as an FtrieError."""
        if self._store is None:
            raise FtrieError(self._problem)
        return self._store

    @property
    def names(self) -> tuple[str, ...]:
        """The models in the store, by name."""
        # `sorted` copies the keys in one step under the GIL; the feed's thread may add a model at any time.
        return tuple(sorted(self._models))

    def model(self, name: str) -> ModelState:
        """A model's latest snapshot; an empty one for a name that the store lacks."""
        watch = self._models.get(name)
        return watch.state if watch is not None else ModelState(name, problem=self._problem)

    def minutes(self, name: str) -> Minutes:
        """A model's online metrics."""
        watch = self._models.get(name)
        return watch.minutes if watch is not None else Minutes()

    @property
    def servers(self) -> tuple[ServerState, ...]:
        """Every server that was given."""
        return tuple(each.state for each in self._servers)

    @property
    def trainers(self) -> tuple[TrainerState, ...]:
        """Every trainer that was given."""
        return tuple(each.state for each in self._trainers)

    # -- the thread

    def _run(self) -> None:
        peers: list[ServerWatch | TrainerWatch] = [*self._servers, *self._trainers]
        # A thread pool has at least one thread, also without peers.
        with ThreadPoolExecutor(max_workers=max(1, min(16, len(peers)))) as pool:
            while not self._stopped.is_set():
                # Before the read: what is wanted during it leads to another read.
                self._wanted.clear()
                began = time.monotonic()
                # While the store is read: a peer that is away takes its whole timeout.
                scrapes = [pool.submit(peer.scrape) for peer in peers]
                self._read_store()
                for scrape in scrapes:
                    scrape.result()
                with self._turn:
                    self._turns += 1
                    self._turn.notify_all()
                idle = time.monotonic() - self._seen > SEEN_FOR_S
                pause = (IDLE_EVERY_S if idle else EVERY_S) - (time.monotonic() - began)
                # A read that takes longer than the interval is followed by a pause all the same.
                self._wanted.wait(max(0.05, pause))

    def _read_store(self) -> None:
        try:
            if self._store is None:
                self._store = Store.open(self._url, OPEN_TIMEOUT_S)
            if time.monotonic() - self._named_at > (NAMES_EVERY_S if self._models else EVERY_S):
                self._named_at = time.monotonic()
                for name in self._store.model_names():
                    if name not in self._models:
                        # Raised for what is no model's name: `ftrie store check` shows the key.
                        with suppress(UsageError):
                            self._models[name] = _ModelWatch(self._store, name)
            for watch in list(self._models.values()):
                try:
                    watch.read()
                except StoreUnavailable:  # for all models: the others need not be tried
                    raise
                except Exception as error:  # of this model's keys: the others are read
                    watch.state = replace(watch.state, problem=_text(error))
            self._problem = ""
        except Exception as error:  # the thread must go on, and every page says what happened
            self._problem = _text(error)
            for watch in self._models.values():
                watch.state = replace(watch.state, problem=self._problem)


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, FtrieError) else f"{type(error).__name__}: {error}"


class _ModelWatch:
    """Reads one model. For the feed's thread; `state` and `minutes` are for all."""

    def __init__(self, store: Store, name: str) -> None:
        self.state = ModelState(name)
        self.minutes = Minutes()
        self._store, self._name = store, name
        self._versions: ModelVersions = store.model(name)
        self._manifests: OrderedDict[int, Manifest] = OrderedDict()
        self._learned: dict[int, Learned] = {}
        self._listed_at = 0.0

    def read(self) -> None:
        """Bring the state up to date. Raises StoreUnavailable."""
        versions, before = self._versions, self.state
        active = versions.known_active()
        listed, now = before.versions, time.monotonic()
        if active != before.active or now - self._listed_at > LIST_EVERY_S:
            listed, self._listed_at = tuple(versions.versions()), now
            self._keep_manifests(listed)
        experiment, problem = before.experiment, ""
        try:
            experiment = versions.experiment()
        except FtrieError as error:
            problem = str(error)
        with suppress(FtrieError):  # shown by the servers and by `ftrie store check`
            self.minutes.follow(versions.online)
        self.state = ModelState(
            name=self._name,
            at=time.time(),
            active=active,
            pinned=versions.pinned(),
            spec=self._spec(active, before),
            versions=listed,
            manifests=dict(self._manifests),
            learned=tuple(self._learned.values()),
            experiment=experiment,
            experiment_problem=problem,
            divided_since=divided_since(versions, experiment),
            guard=versions.guard.record(),
            changes=tuple(versions.audit.read(MOST_CHANGES)),
            impressions=self._store.impressions(self._name).info().length,
            clicks=self._store.clicks(self._name).info().length,
            dead_letters=self._store.dead_letters(self._name).last(),
        )

    def _keep_manifests(self, listed: Sequence[VersionInfo]) -> None:
        for info in listed[-MOST_MANIFESTS:]:
            known = self._manifests.get(info.version)
            # A published version does not change, but for its refusal.
            if info.damaged or (known is not None and known.refused == info.refused):
                continue
            with suppress(ArtefactError, VersionNotFound):  # collected meanwhile
                self._manifests[info.version] = self._versions.manifest(info.version)
        for info in listed:
            manifest = self._manifests.get(info.version)
            if manifest is not None and info.version not in self._learned:
                self._learned[info.version] = Learned(
                    info.published.timestamp(), info.version, manifest.metrics
                )
        if len(self._learned) > MOST_LEARNED:  # every second one of the older half: recent ones stay dense
            older = sorted(self._learned)[: MOST_LEARNED // 2]
            for version in older[::2]:
                del self._learned[version]
        there = {info.version for info in listed}
        for version in [each for each in self._manifests if each not in there]:
            del self._manifests[version]

    def _spec(self, active: int | None, before: ModelState) -> ModelSpec | None:
        manifest = self._manifests.get(active) if active is not None else None
        if manifest is None:
            return before.spec
        last = before.manifests.get(before.active) if before.active is not None else None
        # A trainer publishes a version a second with the same spec: it is parsed once.
        if before.spec is not None and last is not None and last.spec_sha256 == manifest.spec_sha256:
            return before.spec
        try:
            return spec_from_json(manifest.spec, f"version {manifest.version}")
        except FtrieError:
            return before.spec
