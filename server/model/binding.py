"""Binds parts in a worker: a model, a catalogue and the items' sums, as views of shared memory.

Separate from `live_model`, the supervisor's side: a worker only reads.
"""

from __future__ import annotations

from collections import deque
from mmap import mmap
from weakref import WeakKeyDictionary

import numpy as np

from model_store.errors import ArtefactError
from server.model.catalogue import Catalogue
from server.model.items import ItemTable, calibration_of
from server.model.layers import Base, fresh_of_part
from server.model.layers_kernels import touch
from server.model.model import Model
from server.model.shared_memory import Parts, SharedBlock
from server.model.values import Values


def bound(parts: Parts) -> tuple[Model, Catalogue, ItemTable]:
    """The views. O(fields), and a read of each new page. Raises ArtefactError for parts that do not fit together."""
    for part in (parts.base, parts.values, parts.fresh, parts.items, parts.catalogue):
        if part is not None:
            _touch(part)
    base, values = Base.of_part(parts.base), Values.of_part(parts.values)
    if len(values) != len(base.trie):
        raise ArtefactError(f"{len(values)} values for {len(base.trie)} keys: parts of two versions")
    _keep(parts)
    fresh = fresh_of_part(base, values, parts.fresh)
    calibration = calibration_of(parts.items)
    model = Model.of(parts.version, base, values, fresh, calibration)
    catalogue = _CATALOGUES.get(parts.catalogue)
    if catalogue is None:
        catalogue = Catalogue.unpack(base.plan, parts.catalogue.head, parts.catalogue.arrays)
        _CATALOGUES[parts.catalogue] = catalogue
    return model, catalogue, ItemTable.of_arrays(parts.items.arrays)


_CATALOGUES: WeakKeyDictionary[SharedBlock, Catalogue] = WeakKeyDictionary()
_TOUCHED: WeakKeyDictionary[mmap, bool] = WeakKeyDictionary()
_BUFFERS: dict[str, deque[SharedBlock]] = {}
"""By model, the latest two blocks of values. They are served in turns, and stay mapped from one turn to the next."""


def _touch(part: SharedBlock) -> None:
    """Read each page once, so that the page table is filled before a request comes."""
    if part.memory not in _TOUCHED:
        for array in part.arrays.values():
            touch(array.reshape(-1).view(np.uint8))
        _TOUCHED[part.memory] = True


def _keep(parts: Parts) -> None:
    """Keep the values mapped for their next turn, and those of an earlier base no longer."""
    kept = _BUFFERS.setdefault(parts.name, deque(maxlen=2))
    if any(block.nbytes != parts.values.nbytes for block in kept):
        kept.clear()
    if all(block.memory is not parts.values.memory for block in kept):
        kept.append(parts.values)
