"""Observers of calls, each only if it is configured: the access log, traces, and the recorder.

The recorder writes a share of the requests to a file, which `ftrie bench serve` replays. One JSON object a line:
{"at": seconds since 1970, "request": a ctr.v1.RankRequest as JSON}. The file holds cookies and features, so only its
owner may read it. A call only queues its bytes; if the disk is full, or slower than the calls, requests go unrecorded.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import grpc
import structlog
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError

from ctr.v1.ranking_pb2 import RankRequest
from server.events import sinks
from server.events.shadows import ShadowLog
from server.events.writer import BackgroundWriter
from server.serve.ranking_service import RANK
from server.settings import Settings
from server.telemetry.log import AccessLog
from server.telemetry.meter import Meter

MOST_WAITING = 1000
BATCH = 64
CLOSE_WITHIN_S = 2.0

_log = structlog.get_logger(__name__)


def check(settings: Settings) -> None:
    """Check the settings once, before any process starts. Raises ServerError where no worker could run."""
    if settings.traces:
        import_module("server.telemetry.tracing")  # raises if OpenTelemetry is missing
    if settings.record:
        _file(settings.record).check("requests to")
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
        recorder = Recorder(path, share)
        self._wrap.append(lambda handlers: Recorded(handlers, RANK, recorder))
        self._closers.append(recorder.close)

    def _trace(self, endpoint: str, share: float, meter: Meter) -> None:
        from server.telemetry.tracing import Traced, note_answer, provider

        spans = provider(endpoint, share)
        meter.listeners += (note_answer,)
        self._wrap.append(lambda handlers: Traced(handlers, spans))
        self._closers.append(spans.shutdown)


def _file(path: str) -> sinks.RotatingFile:
    return sinks.RotatingFile(path, sys.maxsize, 0, 0o600)  # never full


class Recorder:
    """Appends requests to a file. Several processes may append to the same file."""

    def __init__(self, path: str, share: float) -> None:
        """share: of the requests, from 0 to 1, drawn at random. Raises OutputError if it cannot be written."""
        self._file = _file(path)
        self._file.check("requests to")
        self._share = share
        self._writer = BackgroundWriter("recorder", self._write, most=MOST_WAITING, batch=BATCH)

    def take(self, message: bytes) -> None:
        """Record a request, if it is drawn and there is room."""
        if random.random() < self._share:
            self._writer.offer((time.time(), message))

    def close(self) -> None:
        """Write what is waiting, and close the file."""
        self._writer.close(time.monotonic() + CLOSE_WITHIN_S)

    def _write(self, batch: Sequence[tuple[float, bytes]]) -> bool:
        """A line is whole or absent, also where the disk takes a part of it."""
        for at, message in batch if self._share else ():
            try:
                request = MessageToDict(RankRequest.FromString(message), preserving_proto_field_name=True)
            except (DecodeError, ValueError):
                continue  # such a request is refused
            line = json.dumps({"at": round(at, 6), "request": request}, ensure_ascii=False) + "\n"
            try:
                self._file.append(line.encode("utf-8", "surrogatepass"))
            except OSError as error:
                _log.error("recording ends", error=str(error))
                self._share = 0.0
                break
        return True


class Recorded(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs alone
    """Handlers that show the recorder each message to `method`."""

    def __init__(self, handlers: grpc.GenericRpcHandler[Any, Any], method: str, recorder: Recorder) -> None:
        self._handlers = handlers
        self._method = method
        self._recorder = recorder

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The method's handler."""
        handler = self._handlers.service(details)
        if handler is None or details.method != self._method or handler.unary_unary is None:
            return handler
        parse = handler.request_deserializer

        def recorded(message: bytes) -> Any:
            # In grpc's one thread, which reads messages (`CallPool`): it must only queue.
            self._recorder.take(message)
            return parse(message) if parse else message

        return grpc.unary_unary_rpc_method_handler(handler.unary_unary, recorded, handler.response_serializer)
