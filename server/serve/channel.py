"""The control channel between supervisor and worker: JSON messages and file descriptors over a Unix socket pair.

A message is a length of 4 bytes, little endian, and that many bytes of JSON; descriptors travel with the length. Both
ends run the same release of ftrie.

To a worker, by `do`:
    start       settings; number, of the worker; port; listen, NOW or WHEN_READY: a worker that shares its port with
                others that serve must not accept calls before it can answer them. The first message.
    serve       parts (see `parts_body`) and serial; the descriptors are those of the blocks, in the order of BLOCKS
    experiment  model, experiments: the record in the store, and those in force where it does not fit
    degraded    model, parts: what every answer says in `degraded`, a detail by part
    lacking     model, why: there is no version to serve, so be ready without it; "" once there is
    forget      model: drop the cached users and candidate sets that the store lacks, as an operator has ordered
    ping        answered by pong
    drain       refuse: first answer UNAVAILABLE for a moment, since no other process answers on this port

From a worker, by `did`:
    pong
    listen      address
    ready       every model that has a version answers from now on
    swap        model, version: this version answers requests from now on
    release     serial: no request reads these parts any more
    refuse      model, version, error: these parts could not be served
    count       meter: what was counted since the last report; late: by model, ids of items that requests found in the
                store and that the catalogue lacks
    fail        error: the worker cannot serve at all, and ends
"""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from server.model.shared_memory import BLOCKS, Parts, SharedBlock

MAX_MESSAGE_BYTES = 64 << 20
MAX_DESCRIPTORS = 16
SEND_TIMEOUT_S = 5.0
_LENGTH = struct.Struct("<I")


class ChannelClosed(Exception):
    """The other end is gone, or receives nothing: treat its process as dead."""


@dataclass(frozen=True)
class Message:
    """What was received. The receiver owns `descriptors` and closes them."""

    body: dict[str, Any]
    descriptors: tuple[int, ...] = ()


class Channel:
    """One end. Thread safety: any thread may send; one thread receives."""

    def __init__(self, end: socket.socket) -> None:
        """Takes over a connected, blocking stream socket of the Unix family."""
        # Bounded, so that an end that receives nothing does not hold up the others.
        # Not `settimeout`, which would bound the thread that receives as well.
        seconds, microseconds = int(SEND_TIMEOUT_S), int(SEND_TIMEOUT_S % 1 * 1e6)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", seconds, microseconds))
        self._socket = end
        self._sending = threading.Lock()

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """A channel, and the socket of its other end, which a child inherits."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(ours), theirs

    def send(self, body: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send one message; the caller keeps its descriptors. Raises ChannelClosed."""
        if len(descriptors) > MAX_DESCRIPTORS:
            raise ValueError(
                f"got {len(descriptors)} descriptors; a message carries at most {MAX_DESCRIPTORS}"
            )
        text = json.dumps(body, allow_nan=False).encode()
        with self._sending:
            try:
                # A length of four bytes enters the socket's buffer whole or not at all.
                socket.send_fds(self._socket, [_LENGTH.pack(len(text))], descriptors)
                self._socket.sendall(text)
            except OSError as error:
                self.hang_up()  # half a message may have been sent: nothing may follow it
                raise ChannelClosed(f"the other end receives no message: {error.strerror}") from error

    def receive(self) -> Message:
        """Wait for the next message. Raises ChannelClosed at the end of the stream."""
        head, descriptors = self._head()
        try:
            (length,) = _LENGTH.unpack(head)
            if length > MAX_MESSAGE_BYTES:
                raise ChannelClosed(f"a message of {length} bytes; the most is {MAX_MESSAGE_BYTES}")
            return Message(json.loads(self._exactly(length)), tuple(descriptors))
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            raise

    def hang_up(self) -> None:
        """End both directions: the other end and a waiting `receive` see the end of the stream."""
        with suppress(OSError):
            # A receive in another thread returns; closing the descriptor would leave it waiting.
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Hang up and close the socket. No thread may still receive."""
        self.hang_up()
        self._socket.close()

    def _head(self) -> tuple[bytes, list[int]]:
        try:
            # Descriptors arrive with the first byte of what they were sent with, which is the length.
            head, descriptors, _, _ = socket.recv_fds(self._socket, _LENGTH.size, MAX_DESCRIPTORS)
        except OSError as error:
            raise ChannelClosed(f"the channel broke: {error.strerror}") from error
        try:
            rest = self._exactly(_LENGTH.size - len(head)) if head else b""
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        if not head:
            raise ChannelClosed("the other end has closed the channel")
        return head + rest, descriptors

    def _exactly(self, count: int) -> bytes:
        received = bytearray()
        while len(received) < count:
            try:
                piece = self._socket.recv(min(count - len(received), 1 << 20))
            except OSError as error:
                raise ChannelClosed(f"the channel broke: {error.strerror}") from error
            if not piece:
                raise ChannelClosed("the other end closed the channel within a message")
            received += piece
        return bytes(received)


NOW, WHEN_READY = "now", "when ready"


def parts_body(parts: Parts) -> tuple[dict[str, Any], list[int]]:
    """The JSON of `parts`, and the descriptors of their blocks in the order of BLOCKS; an absent block has none."""
    blocks = [getattr(parts, name) for name in BLOCKS]
    return parts.to_json(lambda name, block: block.uid), [block.fd for block in blocks if block is not None]


class Opener:
    """A worker's end: maps each block once, however often it is sent. For one thread."""

    def __init__(self) -> None:
        self._open: weakref.WeakValueDictionary[str, SharedBlock] = weakref.WeakValueDictionary()

    def parts(self, body: dict[str, Any], descriptors: Sequence[int]) -> Parts:
        """The parts described by `parts_body`; takes over the descriptors. Raises ArtefactError, OSError."""
        left = list(descriptors)
        try:
            return Parts.of_json(body, lambda uid: self._block(uid, left))
        finally:
            for descriptor in left:
                os.close(descriptor)

    def _block(self, uid: str, left: list[int]) -> SharedBlock:
        if not left:
            # The kernel drops the descriptors for which a process has no room, without an error.
            raise OSError(errno.EMFILE, f"{os.strerror(errno.EMFILE)} (ulimit -n)")
        block = self._open.get(uid)
        if block is None:
            block = SharedBlock.open(left[0], uid)
            # The map outlives the descriptor, and a worker sends none on.
            block.close()
            self._open[uid] = block
        else:
            os.close(left[0])
        del left[0]
        return block
