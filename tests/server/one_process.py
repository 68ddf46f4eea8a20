"""A server in one process, for tests: the parts that `ftrie serve` divides between a supervisor and its workers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog

from model_store.errors import StoreUnavailable
from model_store.store import Store
from server.ranking.served import ModelHandle, ServedVersion
from server.serve.worker import Worker
from server.settings import Settings
from server.sync.state_folder import StateFolder
from server.sync.store_sync import StoreSync
from server.telemetry.meter import Meter, Totals
from server.telemetry.status import ModelStatus
from tests.server import shop

_log = structlog.get_logger(__name__)


class Server:
    """All models of `settings` on one port, without other workers."""

    def __init__(
        self,
        settings: Settings,
        on_ready: Callable[[ServedVersion, str], None] = lambda served, address: None,
    ) -> None:
        """`on_ready` is called once, with the first model's version and the address, when every model is served."""
        self._settings = settings
        self._on_ready: Callable[[ServedVersion, str], None] | None = on_ready
        self.address = ""
        self.totals = Totals()
        self.meter = Meter()
        self._state = StateFolder(Path(settings.state)) if settings.state else None
        self._sync = StoreSync(settings, self._state, self.meter)
        self._worker = Worker(settings, self.say)

    @property
    def models(self) -> Mapping[str, ModelHandle]:
        return self._worker.models

    @property
    def current(self) -> ModelHandle:
        return self.models[self._settings.models[0]]

    @property
    def ready(self) -> threading.Event:
        return self._worker.ready

    def status(self) -> tuple[ModelStatus, ...]:
        return self._sync.status()

    def startup(self) -> None:
        """Listen, say NOT_SERVING, begin to load.

        A store that is away is waited for. Raises ServerError if the port is taken, StoreError for a bad URL.
        """
        try:
            Store.open(self._settings.store, timeout_s=1.0).close()
        except StoreUnavailable as error:
            _log.warning("store away, waiting for it", error=str(error))
        self.address = self._worker.listen(self._settings.port)
        _log.info("listening", address=self.address, models=self._settings.models)
        self._worker.start()
        self._sync.distribution.join(self._worker)
        self._sync.start()

    def drain(self, *, refuse: bool = True) -> None:
        """Finish the calls that have begun, for at most `drain_s` seconds; `refuse`: see `Worker.drain`."""
        _log.info("draining", at_most_s=self._settings.drain_s)
        self._sync.stop()
        self._worker.drain(refuse=refuse)

    def shutdown(self) -> None:
        """Let go of the store. Call after `drain`."""
        self._sync.close(time.monotonic() + self._settings.drain_s)
        self._worker.close()
        if self._state is not None:
            self._state.close()
            self._state = None
        _log.info("stopped", models=self._settings.models)

    def end(self) -> None:
        """Stop it, without a pause in which it refuses calls."""
        self.drain(refuse=False)
        self.shutdown()

    def say(self, body: dict[str, Any]) -> None:
        """What a supervisor does with what its workers say."""
        match body["did"]:
            case "ready":
                served = self.current.served
                if served is not None and self._on_ready is not None:
                    on_ready, self._on_ready = self._on_ready, None
                    on_ready(served, self.address)
            case "release":
                self._sync.distribution.given_back(self._worker, body["serial"])
            case "count":
                self.totals.add("worker", body["meter"])
                self._sync.items_found(body["late"])


@contextmanager
def serving(url: str, *models: str, **settings: Any) -> Iterator[Server]:
    """A server of these models, or of the shop, once it is ready."""
    server = Server(Settings(models or (shop.NAME,), url, drain_s=1.0, **settings))
    server.startup()
    try:
        assert server.ready.wait(180)
        yield server
    finally:
        server.end()
