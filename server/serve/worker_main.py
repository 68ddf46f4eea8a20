"""A worker's process, spawned by a supervisor as `python -m server.serve.worker_main DESCRIPTOR`.

It ends when its supervisor says so, or at SIGTERM. If the supervisor dies, it serves on until a successor is ready and
ends it by SIGTERM, or until there has been no successor for `--alone` seconds.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from types import FrameType
from typing import Any

import structlog

from model_store.errors import FtrieError, ServerError
from model_store.waiting import SignalEvent
from server.serve.channel import NOW, Channel, ChannelClosed, Message, Opener
from server.serve.worker import Worker
from server.settings import Settings
from server.sync.state_folder import has_supervisor
from server.telemetry.log import log_to_stderr

LOOK_EVERY_S = 0.5
ORPHANED = "this worker's supervisor is gone, newer versions wait for its successor"
SIGNAL_SLICE_S = 0.2

_log = structlog.get_logger(__name__)


class WorkerMain:
    """One worker, from start to end, and its end of the channel."""

    def __init__(self, channel: Channel, start: Mapping[str, Any]) -> None:
        self._channel = channel
        self._settings = Settings.from_json(start["settings"])
        self._port: int = start["port"]
        self._listen_now = start["listen"] == NOW
        self._opener = Opener()
        self._worker = Worker(self._settings, self._say, shares_port=True)
        self._stopping = SignalEvent()
        self._refuse = False
        self._orphan = False
        self._signals = 0

    def run(self) -> None:
        """Serve until the supervisor or a signal ends it."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's to handle
        self._worker.start()
        threading.Thread(target=self._follow_orders, name="orders", daemon=True).start()
        if self._listen():
            while not self._stopping.wait(SIGNAL_SLICE_S):
                pass
            _log.info("draining", at_most_s=self._settings.drain_s)
            self._worker.drain(refuse=self._refuse)
        self._worker.close()

    def _listen(self) -> bool:
        """Open the port, at once or once the worker is ready; False if the worker is stopped before that."""
        while not (self._listen_now or self._worker.ready.wait(SIGNAL_SLICE_S)):
            if self._stopping.is_set():
                return False
        self._say({"did": "listen", "address": self._worker.listen(self._port)})
        return True

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        if self._signals > 1:
            os._exit(128 + number)
        self._stopping.set()

    # -- the channel

    def _follow_orders(self) -> None:
        try:
            while True:
                self._obey(self._channel.receive())
        except ChannelClosed:
            pass
        except Exception:
            # From here on no ping is answered: the supervisor takes this worker for one that hangs, and replaces it.
            _log.exception("an order could not be carried out; accepting no more")
        if not self._stopping.is_set():
            self._serve_alone()

    def _obey(self, message: Message) -> None:
        body = message.body
        match body["do"]:
            case "ping":
                self._say({"did": "pong"})
            case "serve":
                parts, serial = body["parts"], body["serial"]
                try:
                    self._worker.take(self._opener.parts(parts, message.descriptors), serial)
                except (FtrieError, OSError, MemoryError) as error:
                    self._worker.refuse(parts["name"], parts["version"], serial, error)
            case "drain":
                self._refuse = body["refuse"]
                self._stopping.set()
            case _:
                self._worker.tell(body)

    def _serve_alone(self) -> None:
        """Serve on without a supervisor while a successor may come."""
        self._orphan = True
        # Without a model it answers nothing, and nobody will bring one.
        if not self._worker.ready.is_set():
            self._stopping.set()
            return
        _log.error("the supervisor is gone, serving on", at_most_s=self._settings.alone_s)
        self._worker.orphaned(ORPHANED)
        alone_s = 0.0
        while alone_s < self._settings.alone_s and not self._stopping.wait(LOOK_EVERY_S):
            alone_s = 0.0 if has_supervisor(self._settings.state) else alone_s + LOOK_EVERY_S
        self._stopping.set()

    def _say(self, body: dict[str, Any]) -> None:
        if not self._orphan:
            with suppress(ChannelClosed):  # `_follow_orders` notices it too
                self._channel.send(body)


def main() -> None:
    """Receive the first message, and serve."""
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    start = channel.receive().body
    log_to_stderr(start["settings"]["log_level"], worker=start["number"])
    try:
        if start["settings"]["pin"]:
            pin(start["number"])
        WorkerMain(channel, start).run()
    except ServerError as error:
        with suppress(ChannelClosed):
            channel.send({"did": "fail", "error": str(error)})
        sys.exit(error.exit_code)


def pin(number: int) -> None:
    """Keep this process on one of the cores it may use; the next worker takes the next core.

    Python runs one thread at a time, and a thread that waits for its turn on another core is slow to wake. Measured
    with one worker and 32 callers on two cores: 3,968 calls/s unpinned, 7,366 pinned (benchmarks/workers.py).
    """
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[number % len(cores)]})


if __name__ == "__main__":
    main()
