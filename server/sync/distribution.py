"""Hands the latest parts of every model to every taker, and tracks which buffers of values are still being read.

A taker is a worker, in a process of its own or in this one, or the thread that keeps the last good models. Each
hand-over has a serial number, which the taker gives back once no request reads those parts any more. When all serials
of a buffer have come back, `on_free` is called: the buffer may be written again. The parts are opaque to this module.

Invariant: a buffer is lent from before it is sent until each of its serials has been given back or its taker has left.
The latest parts of a model are always lent, since a new taker may be given them at any moment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from server.model.shared_memory import Parts

Body = Mapping[str, Any]


class Taker(Protocol):
    """Receives parts and messages. Neither method may raise or block for long."""

    def take(self, parts: Parts, serial: int) -> None:
        """Take these parts, and give `serial` back when they have been read for the last time."""

    def tell(self, body: Body) -> None:
        """Take a message without parts; `do` names its kind (`server.serve.channel`)."""


class Distribution:
    """The latest parts and messages of every model, and who holds them. Thread safety: any method, any thread."""

    def __init__(self, on_free: Callable[[str, str], None]) -> None:
        """`on_free(model, uid)` is called once for each buffer that is not read any more; it must not block."""
        self._on_free = on_free
        # Reentrant: a taker in this process may give parts back while it is handed them.
        self._lock = threading.RLock()
        self._takers: set[Taker] = set()
        self._latest: dict[str, tuple[int, Parts]] = {}
        self._messages: dict[tuple[str, str], Body] = {}
        self._lent: dict[tuple[Taker | None, int], tuple[str, str]] = {}
        self._serial = 0

    def deliver(self, parts: Parts) -> None:
        """Make `parts` the latest of their model, and hand them to every taker."""
        with self._lock:
            self._serial += 1
            before = self._latest.get(parts.name)
            self._latest[parts.name] = (self._serial, parts)
            self._lend(None, self._serial, parts)
            for taker in self._takers:
                self._hand(taker, self._serial, parts)
            if before is not None:
                # Last: the new parts may share the buffer of the old ones (other items), which must not count as free
                # in between.
                self._give_back(None, before[0])

    def tell(self, model: str, body: Body) -> None:
        """Send a message to every taker, also to later ones; the next of the same model and kind (`do`) replaces it."""
        with self._lock:
            self._messages[model, body["do"]] = body
            for taker in self._takers:
                taker.tell(body)

    def join(self, taker: Taker) -> None:
        """Add a taker: hand it the latest of everything, and from now on whatever is delivered."""
        with self._lock:
            self._takers.add(taker)
            for body in self._messages.values():
                taker.tell(body)
            for serial, parts in self._latest.values():
                self._hand(taker, serial, parts)

    def leave(self, taker: Taker) -> None:
        """Remove a taker whose process has been reaped: it reads nothing any more."""
        with self._lock:
            self._takers.discard(taker)
            # A list, since giving back changes the dict.
            for holder, serial in [key for key in self._lent if key[0] is taker]:
                self._give_back(holder, serial)

    def given_back(self, taker: Taker, serial: int) -> None:
        """A taker has read the parts of `serial` for the last time."""
        with self._lock:
            self._give_back(taker, serial)

    def borrow(self, taker: Taker, model: str) -> tuple[Parts, int] | None:
        """Lend a model's latest parts to a taker, which gives the serial back; None if there are none."""
        with self._lock:
            if model not in self._latest:
                return None
            serial, parts = self._latest[model]
            self._lend(taker, serial, parts)
            return parts, serial

    def hand_again(self, taker: Taker, model: str) -> None:
        """Hand a model's latest parts again to a taker that could not take them."""
        with self._lock:
            if model in self._latest and taker in self._takers:
                self._serial += 1
                # Under a new serial: the refusal has given the old one back.
                self._hand(taker, self._serial, self._latest[model][1])

    def _hand(self, taker: Taker, serial: int, parts: Parts) -> None:
        self._lend(taker, serial, parts)
        taker.take(parts, serial)

    def _lend(self, holder: Taker | None, serial: int, parts: Parts) -> None:
        self._lent[holder, serial] = (parts.name, parts.values.uid)

    def _give_back(self, holder: Taker | None, serial: int) -> None:
        buffer = self._lent.pop((holder, serial), None)
        if buffer is not None and buffer not in self._lent.values():
            self._on_free(*buffer)
