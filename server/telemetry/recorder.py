"""Records a share of the requests to a file, for `ftrie bench serve` to replay. Nothing here answers one.

One JSON object a line: {"at": seconds since 1970, "request": a ctr.v1.RankRequest as JSON}. The file holds cookies and
features, so nobody but its owner may read it. A call only leaves its bytes in a queue; where the disk is full, or
slower than the calls, requests go unrecorded, never unanswered.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from contextlib import suppress
from queue import Empty, Full, Queue
from typing import Any

import grpc
import structlog
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError

from ctr.v1.ranking_pb2 import RankRequest
from model_store.errors import ServerError

MOST_WAITING = 1000
CLOSE_WITHIN_S = 2.0

_log = structlog.get_logger(__name__)


def opened(path: str) -> int:
    """A descriptor that appends to the file, which only its owner may read. Raises ServerError."""
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    except OSError as error:
        raise ServerError(f"cannot record to {path}: {error.strerror}") from error


class Recorder:
    """Appends requests to one file, from a thread of its own. Several processes may append to the same file."""

    def __init__(self, path: str, share: float) -> None:
        """`share`: of the requests, from 0 to 1, drawn at random. Raises ServerError if the file cannot be opened."""
        self._file = opened(path)
        self._share = share
        self._waiting: Queue[tuple[float, bytes]] = Queue(MOST_WAITING)
        self._closed = threading.Event()
        self._writer = threading.Thread(target=self._write_all, name="recorder", daemon=True)
        self._writer.start()

    def take(self, message: bytes) -> None:
        """Record a request, if it is drawn and there is room."""
        if random.random() < self._share:
            with suppress(Full):
                self._waiting.put_nowait((time.time(), message))

    def close(self) -> None:
        """Write what is waiting, and close the file."""
        self._closed.set()
        self._writer.join(CLOSE_WITHIN_S)

    def _write_all(self) -> None:
        try:
            while True:
                try:
                    self._write(*self._waiting.get(timeout=0.1))
                except Empty:
                    if self._closed.is_set():
                        return
        except OSError as error:
            _log.error("recording ends", error=str(error))
        finally:
            self._share = 0.0
            os.close(self._file)
            with suppress(Empty):  # nobody else takes these out, and they are up to 16 MiB each
                while True:
                    self._waiting.get_nowait()

    def _write(self, at: float, message: bytes) -> None:
        """One write a line, which the system keeps whole also beside other processes."""
        try:
            request = MessageToDict(RankRequest.FromString(message), preserving_proto_field_name=True)
        except (DecodeError, ValueError):
            return  # it was refused, too
        line = json.dumps({"at": round(at, 6), "request": request}, ensure_ascii=False) + "\n"
        os.write(self._file, line.encode("utf-8", "surrogatepass"))


class Recorded(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs alone
    """Handlers whose messages to `method` pass by the recorder."""

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
            self._recorder.take(message)
            return parse(message) if parse else message

        return grpc.unary_unary_rpc_method_handler(handler.unary_unary, recorded, handler.response_serializer)
