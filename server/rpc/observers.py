"""Observers of calls, each only if it is configured: the access log, traces, the recorder."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

import grpc

from server.impressions import sinks
from server.impressions.shadows import ShadowLog
from server.rpc.ranking_service import RANK
from server.settings import Settings
from server.telemetry.log import AccessLog
from server.telemetry.meter import Meter


def check(settings: Settings) -> None:
    """Check the settings once, before any process starts. Raises ServerError where no worker could run."""
    if settings.traces:
        import_module("server.telemetry.tracing")  # raises if OpenTelemetry is missing
    if settings.record:
        from server.impressions.recorder import opened

        os.close(opened(settings.record))
    if (shadow_log := ShadowLog.of(settings, lambda metric, model: None)) is not None:
        shadow_log.close()
    sinks.check(settings)


class Observers:
    """The observers that `settings` name, from construction to `close`. Raises ServerError if one cannot start."""

    def __init__(self, settings: Settings, meter: Meter) -> None:
        """`meter` gets their listeners."""
        self._wrap: list[Callable[[grpc.GenericRpcHandler[Any, Any]], grpc.GenericRpcHandler[Any, Any]]] = []
        self._closers: list[Callable[[], None]] = []
        if settings.access_log > 0:
            meter.listeners += (AccessLog(settings.access_log),)
        if settings.record:
            self._record(settings.record, settings.record_share)
        if settings.traces:
            self._trace(settings.traces, settings.trace_share, meter)

    def around(self, handlers: grpc.GenericRpcHandler[Any, Any]) -> grpc.GenericRpcHandler[Any, Any]:
        """The handlers with the observers around them; the handlers themselves where there are none."""
        for wrap in self._wrap:
            handlers = wrap(handlers)
        return handlers

    def close(self) -> None:
        """Write and send everything that is queued. Call after the last call has ended."""
        for close in self._closers:
            close()

    def _record(self, path: str, share: float) -> None:
        from server.impressions.recorder import Recorded, Recorder

        recorder = Recorder(path, share)
        self._wrap.append(lambda handlers: Recorded(handlers, RANK, recorder))
        self._closers.append(recorder.close)

    def _trace(self, endpoint: str, share: float, meter: Meter) -> None:
        from server.telemetry.tracing import Traced, note_answer, provider

        spans = provider(endpoint, share)
        meter.listeners += (note_answer,)
        self._wrap.append(lambda handlers: Traced(handlers, spans))
        self._closers.append(spans.shutdown)
