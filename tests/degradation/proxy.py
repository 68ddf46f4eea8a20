"""A line between a server and Valkey that breaks off in the middle of answers."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Proxy:
    """Passes bytes on; while `cut_after` is set, ends a connection after so many bytes of one piece of an answer."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listening.getsockname()[1]}"
        self._ends: list[socket.socket] = []
        self.cut_after: int | None = None
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                caller, _ = self._listening.accept()
                try:
                    answerer = socket.create_connection(("127.0.0.1", self._to))
                except OSError:
                    caller.close()
                    continue
                self._ends += [caller, answerer]
                threading.Thread(target=self._pass, args=(caller, answerer, False), daemon=True).start()
                threading.Thread(target=self._pass, args=(answerer, caller, True), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if answers and self.cut_after is not None and len(data) > self.cut_after:
                    target.sendall(data[: self.cut_after])
                    self.cuts += 1
                    break
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listening.close()
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
