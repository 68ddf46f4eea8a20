"""A server process's life: startup, serve, drain, shutdown. What it answers is in `server.service`.

Health says SERVING once a model is loaded and its kernels are warm, and NOT_SERVING before that and from the
first signal on. The drain is bounded; a second signal ends the process at once.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import FrameType
from typing import Any

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from model_store.errors import ServerError, StoreUnavailable
from model_store.redis_keys import check_model_name
from server.current import Current
from server.late_items import LateItems
from server.reflection import add_reflection
from server.service import SERVICE, RankingService
from server.serving import Serving
from server.stored import DEFAULT_BUDGET_S, StoredReads
from server.watcher import Watcher

DEFAULT_THREADS = 8
DEFAULT_DRAIN_S = 10.0
MAX_REQUEST_BYTES = 16 << 20
WATCHER_GRACE_S = 2.0
REFUSE_S = 0.25
SIGNAL_SLICE_S = 0.2

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Settings:
    """How one server runs. `port` 0 takes a free one."""

    model: str
    store: str
    host: str = "127.0.0.1"
    port: int = 0
    threads: int = DEFAULT_THREADS
    drain_s: float = DEFAULT_DRAIN_S
    store_budget_s: float = DEFAULT_BUDGET_S


class Server:
    """One model, one port. `run` is a whole life; tests call the verbs one by one."""

    def __init__(
        self, settings: Settings, on_ready: Callable[[Serving, str], None] = lambda serving, address: None
    ) -> None:
        """`on_ready` is called once, with the address, when the first version is served."""
        self._settings = settings
        self._on_ready = on_ready
        self.ready = threading.Event()
        self._signals = 0
        self._stopping = threading.Event()
        self._drained = threading.Event()
        self.address = ""
        self._reads = StoredReads(settings.store, settings.store_budget_s)
        self.current = Current(settings.model, LateItems(self._reads))
        self._service = RankingService({settings.model: self.current}, self._reads)
        self._watcher = Watcher(settings.store, self._reads, self.current, self._swapped)
        self._health = Health(
            experimental_non_blocking=True, experimental_thread_pool=ThreadPoolExecutor(max_workers=1)
        )
        self._grpc = grpc_server(self._service.handlers(), self._health, settings.threads)

    def run(self) -> None:
        """Live until SIGTERM or SIGINT. Must be called by the main thread."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self.startup()
        _await(self._stopping)
        self.drain()
        self.shutdown()

    def startup(self) -> None:
        """Listen, say NOT_SERVING, begin to load.

        A store that is away is waited for. Raises ServerError if the port is taken, StoreError for a URL or a model
        name that cannot be one.
        """
        check_model_name(self._settings.model)
        try:
            self._reads.connect()
        except StoreUnavailable as error:
            _log.warning("store away, waiting for it", error=str(error))
        self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        self.address = self._listen()
        self._grpc.start()
        _log.info(
            "listening", address=self.address, model=self._settings.model, threads=self._settings.threads
        )
        self._watcher.start()

    def drain(self) -> None:
        """Refuse new calls, finish those that have begun, for at most `drain_s` seconds.

        grpc cancels calls that arrive once it is told to stop, so callers are told UNAVAILABLE for a moment before.
        """
        _log.info("draining", at_most_s=self._settings.drain_s)
        self._health.enter_graceful_shutdown()
        self._service.draining = True
        self._watcher.stop()
        told_s = min(REFUSE_S, self._settings.drain_s)
        self._drained.wait(told_s)
        _await(self._grpc.stop(grace=self._settings.drain_s - told_s))
        self._drained.set()

    def shutdown(self) -> None:
        """Let go of the store. Call after `drain`."""
        self._watcher.join(WATCHER_GRACE_S)
        self._reads.close()
        _log.info("stopped", model=self._settings.model)

    def _listen(self) -> str:
        wanted = f"{self._settings.host}:{self._settings.port}"
        try:
            port = self._grpc.add_insecure_port(wanted)
        except RuntimeError:
            port = 0
        if not port:
            raise ServerError(
                f"cannot listen on {wanted}: is the port taken? --port 0 chooses a free one; "
                "or is the host no address of this machine?"
            )
        return f"{self._settings.host}:{port}"

    def _swapped(self, serving: Serving) -> None:
        if self.ready.is_set():
            return
        self._set_health(health_pb2.HealthCheckResponse.SERVING)
        self._on_ready(serving, self.address)
        self.ready.set()

    def _set_health(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for service in ("", SERVICE):
            self._health.set(service, status)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        if self._signals > 1:
            os._exit(128 + number)
        self._stopping.set()


def _await(event: threading.Event) -> None:
    """Wait in slices: a signal may be handed to another thread, and its handler runs when this one wakes."""
    while not event.wait(SIGNAL_SLICE_S):
        pass


class Health(health.HealthServicer):
    """Health whose Check has a thread of its own too, so that it answers while all others are busy."""

    def Check(self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext) -> Any:
        """The status of one service."""
        return super().Check(request, context)

    Check.experimental_thread_pool = ThreadPoolExecutor(  # type: ignore[attr-defined]
        max_workers=1, thread_name_prefix="health"
    )


def grpc_server(
    ranking: grpc.GenericRpcHandler[Any, Any], health_servicer: health.HealthServicer, threads: int
) -> grpc.Server:
    """The grpc server, not yet listening. `ranking` stands first: grpc asks its handlers in order for each call."""
    server = grpc.server(
        ThreadPoolExecutor(max_workers=threads, thread_name_prefix="rank"),
        handlers=[ranking],
        options=[
            ("grpc.so_reuseport", 0),  # a second server on the port is a mistake until there are workers
            ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
        ],
    )
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    add_reflection(server, (SERVICE, health.SERVICE_NAME))
    return server
