"""Stores that fail as real ones do: the process stopped, or a line that loses, holds back and cuts."""

from __future__ import annotations

import os
import random
import selectors
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from model_store.store import Store


@contextmanager
def stalled(store: Store) -> Iterator[None]:
    """The store's process is stopped: connections stay open, nothing is answered."""
    process = int(store.client.info("server")["process_id"])
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


class Line:
    """A TCP proxy before a store's unix socket. Each connection is one thread's; the line's mood is everyone's.

    While `silent`, nothing is carried on, in either direction, and comes all at once when it ends. `delays`: each piece
    of an answer waits a random time up to so many seconds, and is cut at a random place. `cut` ends every connection,
    those in the middle of an answer too; `cuts_after`: each connection ends after so many bytes of answers. `loses`:
    the next command that has these bytes reaches the store, and its connection ends instead of the answer.
    """

    def __init__(self, path: str, seed: int = 0) -> None:
        self._path = path
        self._draw = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._carrying = threading.Event()
        self._carrying.set()
        self.delays = 0.0
        self.cuts_after: int | None = None
        self.loses: bytes | None = None
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """The store's URL behind this line."""
        return f"redis://127.0.0.1:{self._listener.getsockname()[1]}"

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Carry nothing for a while."""
        self._carrying.clear()
        try:
            yield
        finally:
            self._carrying.set()

    def cut(self) -> None:
        """End every connection."""
        for end in list(self._open):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End everything."""
        self._carrying.set()
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(self._path)
                self.connections += 1
                threading.Thread(target=self._carry, args=(near, far), daemon=True).start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        self._open |= {near, far}
        carried, is_lost = 0, False
        with near, far, selectors.DefaultSelector() as selector, suppress(OSError):
            selector.register(near, selectors.EVENT_READ, far)
            selector.register(far, selectors.EVENT_READ, near)
            while True:
                for key, _ in selector.select():
                    data = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
                    self._carrying.wait()
                    if not data or (is_lost and key.fileobj is far):
                        return
                    if key.fileobj is near and self.loses is not None and self.loses in data:
                        is_lost, self.loses = True, None
                    for piece in self._pieces(data) if key.fileobj is far else [data]:
                        carried += len(piece) if key.fileobj is far else 0
                        if self.cuts_after is not None and carried > self.cuts_after:
                            key.data.sendall(piece[: len(piece) // 2])
                            return
                        key.data.sendall(piece)
        self._open -= {near, far}

    def _pieces(self, data: bytes) -> Iterator[bytes]:
        """The data in two pieces, each after its delay."""
        if not self.delays:
            yield data
            return
        at = self._draw.randrange(len(data) + 1)
        for piece in (data[:at], data[at:]):
            if piece:
                threading.Event().wait(self._draw.uniform(0.0, self.delays))
                yield piece


def disturb(line: Line, store: Store, draw: random.Random, steps: int) -> None:
    """So many random disturbances, a few hundredths of a second each; then all is well again."""
    pause = threading.Event()
    for step in range(steps):
        pause.wait(draw.uniform(0.0, 0.03))
        match step if step < 5 else draw.randrange(5):
            case 0:
                with line.silent():
                    pause.wait(draw.uniform(0.04, 0.08))
            case 1:
                line.cut()
            case 2:
                line.delays = draw.choice([0.0, 0.0, 0.01, 0.05])
            case 3:
                line.cuts_after = draw.choice([None, None, 10, 300])
            case 4:
                store.client.client_pause(draw.randrange(60))
    line.delays, line.cuts_after = 0.0, None
    store.client.client_unpause()
