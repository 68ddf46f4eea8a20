"""What supervisor and worker say to each other over a `Channel`, as JSON objects.

To a worker, by `do`:
  start       settings; number, of the worker; port; listen, "now" or "when ready": a worker that shares its port with
              others that serve must not take calls before it can answer them. The first message.
  serve       parts (see `parts_body`) and serial; the descriptors are those of the blocks, in the order of BLOCKS
  experiment  model, experiment: the record in the store, or null
  degraded    model, texts: what every answer says in `degraded`
  forget      model: keep no user and no candidate set that the store lacks; an operator has ordered it
  ping        answered by pong
  drain       refuse: tell callers UNAVAILABLE first, since nobody else will answer on this port

From a worker, by `did`:
  pong
  listen      address
  swap        model, version: requests are answered by it now
  release     serial: no request reads these parts any more
  refuse      model, version, error: these parts could not be served
  count       meter: what was counted since the last time; late: by model, ids of items that requests found in the
              store and that the catalogue lacks
  fail        error: the worker cannot serve at all, and ends
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import Any

from server.layers.parts import Parts
from server.mapped import Mapped

NOW, WHEN_READY = "now", "when ready"
BLOCKS = ("base", "values", "fresh", "items", "catalogue")


def parts_body(parts: Parts) -> tuple[dict[str, Any], list[int]]:
    """The JSON of `parts`, and the descriptors of their blocks in the order of BLOCKS; an absent block has none."""
    blocks = {name: getattr(parts, name) for name in BLOCKS}
    body = {
        "name": parts.name,
        "version": parts.version,
        "sha256": parts.sha256,
        "content": parts.content,
        "items_generation": parts.items_generation,
        "blocks": {name: block and block.uid for name, block in blocks.items()},
    }
    return body, [block.fd for block in blocks.values() if block is not None]


class Opener:
    """A worker's end: maps the blocks it is sent, each once however often it is sent. For one thread."""

    def __init__(self) -> None:
        self._open: weakref.WeakValueDictionary[str, Mapped] = weakref.WeakValueDictionary()

    def parts(self, body: dict[str, Any], descriptors: Sequence[int]) -> Parts:
        """The parts that `parts_body` described; takes over the descriptors. Raises ArtefactError, OSError."""
        left = list(descriptors)
        blocks: dict[str, Any] = {}
        try:
            for name, uid in body["blocks"].items():
                blocks[name] = None if uid is None else self._block(uid, left)
        finally:
            for descriptor in left:
                os.close(descriptor)
        described = {key: value for key, value in body.items() if key != "blocks"}
        return Parts(**described, **blocks)

    def _block(self, uid: str, left: list[int]) -> Mapped:
        block = self._open.get(uid)
        if block is None:
            block = Mapped.open(left[0], uid)
            # The map outlives its descriptor, and a worker passes none on.
            block.close()
            self._open[uid] = block
        else:
            os.close(left[0])
        del left[0]
        return block
