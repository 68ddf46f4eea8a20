"""A worker: one port, one thread pool, and the served version of each model.

It runs in a process of its own (`server.serve.worker_main`) and is handed the parts to serve. A thread beside those
that answer binds new parts, warms them with recent requests and swaps them in by changing one reference.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import structlog

from model_store.clock import SYSTEM, Clock
from model_store.errors import FtrieError, StoreError, StoreUnavailable
from model_store.versions.experiments import Experiment
from model_store.waiting import Backoff
from server.errors import Degradation
from server.events.log import ImpressionLog
from server.events.shadows import ShadowLog
from server.model.shared_memory import Parts
from server.ranking.candidates import LateItems
from server.ranking.served import ModelHandle, ServedVersion
from server.ranking.store_reads import StoredReads
from server.ranking.users import Users
from server.ranking.warmup import warm, warm_kernels
from server.serve.feedback_service import FeedbackService
from server.serve.grpc_server import grpc_server, listen
from server.serve.health import Health
from server.serve.observers import Observers
from server.serve.ranking_service import RankingService
from server.serve.security import credentials, tokens
from server.settings import Settings
from server.sync.version_retry import REFUSED_VERSIONS, reason_of
from server.telemetry.meter import Meter

LEAVE_S = 0.25
"""How long a worker whose health is NOT_SERVING goes on answering: clients that watch health call others meanwhile."""
REFUSE_S = 0.25
"""How long callers are answered UNAVAILABLE before the port closes: gRPC cancels calls that arrive once it stops."""
REPORT_EVERY_S = 1.0
SWAPPER_ENDS_S = 2.0
"""How long `close` waits for a version that is being bound."""

_log = structlog.get_logger(__name__)


class Worker:
    """Serves the models of `settings`. Thread safety: any method, any thread; `start` and `drain` once."""

    def __init__(
        self,
        settings: Settings,
        say: Callable[[dict[str, Any]], None],
        *,
        shares_port: bool = False,
        clock: Clock = SYSTEM,
    ) -> None:
        """say: takes what a worker tells its supervisor, see `server.serve.channel`; called from any thread."""
        self._settings = settings
        self._say = say
        self._meter = Meter()
        self._reads = StoredReads(settings.store, settings.store_budget_s, settings.user_store, clock)
        users = Users(self._reads, settings.user_cache, settings.user_ttl_s, self._meter)
        self.models: Mapping[str, ModelHandle] = {
            name: ModelHandle(name, LateItems(self._reads)) for name in settings.models
        }
        self._shadow_log = ShadowLog.of(settings, self._meter.count)
        self._impressions = ImpressionLog.of(settings, self._meter, clock)
        self._service = RankingService(
            self.models, self._reads, self._meter, self._shadow_log, users, self._impressions
        )
        self._feedback = FeedbackService(
            self.models.keys(),
            self._meter,
            settings.store,
            settings.feedback_length,
            settings.feedback_age_s,
            clock,
        )
        self._health = Health(settings.models)
        self._observers = Observers(settings, self._meter)
        callers = tokens(settings)
        self._grpc = grpc_server(
            self._observers.around(self._service.handlers()),
            self._health,
            settings.threads,
            max_concurrency=settings.max_concurrency,
            meter=self._meter,
            tokens=callers,
            feedback=self._feedback.gate(callers),
            shares_port=shares_port,
            connection_age_s=settings.connection_age_s or 0.0,
            batching=self._service.batched,
        )
        self._errands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        # One thread for all models: binding and warming take the interpreter's lock from calls, one version at a time.
        self._swapper = threading.Thread(target=self._run_errands, name="swap", daemon=True)
        self._newest: dict[str, int] = {}
        self._connecting = threading.Lock()
        self._stopping = threading.Event()
        self.ready = threading.Event()
        """Set once every model is served that has a version, and one is."""

    # -- a life

    def start(self) -> None:
        """Start the threads that swap in parts, connect to the store and report. Nothing listens yet."""
        # Before any parts, and in the thread that binds them: the port may answer UNAVAILABLE while kernels are
        # compiled.
        self._errands.put(warm_kernels)
        self._swapper.start()
        for task in (self._find_store, self._report):
            threading.Thread(target=task, name=task.__name__.strip("_"), daemon=True).start()

    def listen(self, port: int) -> str:
        """Open the port and answer; returns the address. Raises ServerError if the port is taken."""
        address = listen(self._grpc, self._settings.host, port, credentials(self._settings))
        self._grpc.start()
        return address

    def drain(self, *, refuse: bool = True) -> None:
        """Accept no more calls, and finish those that have begun, for at most `drain_s` seconds.

        refuse: first report NOT_SERVING and go on for a moment, then answer UNAVAILABLE for another. Without it the
        port closes at once, and callers reach the processes that share it.
        """
        self._stopping.set()
        left_s = self._settings.drain_s
        if refuse:
            self._health.drain()
            threading.Event().wait(min(LEAVE_S, left_s / 2))
            self._service.draining = self._feedback.draining = True
            threading.Event().wait(min(REFUSE_S, left_s / 2))
            left_s -= min(LEAVE_S + REFUSE_S, left_s)
        ended = self._grpc.stop(grace=left_s)
        while not ended.wait(REFUSE_S):  # in slices, so that a signal's handler can run
            pass

    def close(self) -> None:
        """End the threads and disconnect from the store. Call after `drain`."""
        self._stopping.set()
        self._errands.put(None)
        if self._swapper.is_alive():
            self._swapper.join(SWAPPER_ENDS_S)
        self._observers.close()
        if self._impressions is not None:
            self._impressions.close()
            self._say_counts({})  # what was logged and lost since the last report
        if self._shadow_log is not None:
            self._shadow_log.close()
        self._feedback.close()
        self._reads.close()

    # -- orders of the supervisor

    def take(self, parts: Parts, serial: int) -> None:
        """Serve these parts soon, unless newer ones of their model come first; then say that `serial` is released."""
        # Before the errand: parts that still wait in the queue then give way to these.
        self._newest[parts.name] = serial
        self._errands.put(lambda: self._swap(parts, serial))

    def refuse(self, model: str, version: int, serial: int, error: Exception) -> None:
        """Report that these parts cannot be served, and release `serial`: its buffer must become writable again."""
        known = isinstance(error, FtrieError | MemoryError | OSError)
        facts = {"model": model, "version": version, "error": str(error)}
        _log.error("parts refused", **facts, exc_info=None if known else error)
        self._meter.count(REFUSED_VERSIONS, model, reason_of(error))
        self._say({"did": "refuse", "model": model, "version": version, "error": str(error)})
        self._release(serial)
        if self.models[model].served is None:
            self.models[model].lacking = f"version {version} was refused ({reason_of(error)})"
            self._note_ready()

    def tell(self, body: Mapping[str, Any]) -> None:
        """Handle a message without parts: experiment, degraded, lacking or forget."""
        current = self.models[body["model"]]
        match body["do"]:
            case "degraded":
                current.degraded = tuple(
                    Degradation.not_current(part, detail) for part, detail in body["parts"].items()
                )
            case "lacking":
                current.lacking = body["why"]
                self._note_ready()
            case "forget":
                self._service.forget()
            case "experiment":
                current.ask_for(*map(Experiment.from_json, body["experiments"]))

    def orphaned(self, text: str) -> None:
        """Have every answer say that the supervisor, which brings newer models, is gone."""
        orphaned = Degradation.not_current("model", text)
        for current in self.models.values():
            # A tuple that is replaced whole, since calls read it without a lock.
            current.degraded = (*current.degraded, orphaned)

    # -- threads

    def _run_errands(self) -> None:
        while (errand := self._errands.get()) is not None:
            try:
                errand()
            except Exception:
                _log.exception("an errand failed")
            del errand  # it may hold parts, which would stay alive until the next one

    def _swap(self, parts: Parts, serial: int) -> None:
        # Several versions may have come while one was bound; only the newest is worth warming.
        if self._newest[parts.name] != serial:
            self._release(serial)
            return
        current = self.models[parts.name]
        try:
            # Warmed before it is served: no call pays for the first touch of its memory.
            served = warm(ServedVersion.bind(parts), current.recent)
        except Exception as error:
            return self.refuse(parts.name, parts.version, serial, error)
        # Called in the thread that ends the last request: it only queues the report.
        served.on_released(lambda: self._errands.put(lambda: self._release(serial)))
        self._put_in_service(current, served)

    def _put_in_service(self, current: ModelHandle, served: ServedVersion) -> None:
        before = current.served
        with suppress(StoreError):  # connected before the swap, the first answer can already read users
            self._connect()
        current.serve(served)
        if before is None or before.catalogue is not served.catalogue:
            current.late_items.rebuilt()
        _log.info("serving", model=current.name, version=served.version, items=len(served.catalogue))
        self._say({"did": "swap", "model": current.name, "version": served.version})
        if before is None:
            self._note_ready()

    def _note_ready(self) -> None:
        """Say which models are served. One without a version does not keep the worker from serving the others."""
        served = [each.name for each in self.models.values() if each.served]
        lacking = sum(not each.served and bool(each.lacking) for each in self.models.values())
        if served and len(served) + lacking == len(self.models) and not self.ready.is_set():
            self.ready.set()
            self._say({"did": "ready"})
        self._health.say(serving=self.ready.is_set(), served=served)

    def _find_store(self) -> None:
        backoff = Backoff()
        while not self._stopping.is_set():
            try:
                return self._connect()
            except StoreUnavailable as error:
                if not backoff.failures:
                    _log.warning("store away, waiting for it", error=str(error))
                self._stopping.wait(backoff.failed())

    def _connect(self) -> None:
        with self._connecting:
            try:
                self._reads.connect()
            finally:  # feedback does not need the reads
                self._feedback.connect()

    def _report(self) -> None:
        while not self._stopping.wait(REPORT_EVERY_S):
            found = {name: current.late_items.take_found() for name, current in self.models.items()}
            late = {name: ids for name, ids in found.items() if ids}
            self._say_counts(late)

    def _say_counts(self, late: Mapping[str, Sequence[str]]) -> None:
        self._say({"did": "count", "meter": self._meter.take(), "late": late})

    def _release(self, serial: int) -> None:
        self._say({"did": "release", "serial": serial})
