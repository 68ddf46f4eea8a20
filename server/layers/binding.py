"""Binding parts in a worker: a model, a catalogue and the items' sums as views of shared memory. Copies nothing."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np

from model_store.errors import ArtefactError
from server.catalogue import Catalogue
from server.layers.base import Base
from server.layers.fresh import fresh_of_part
from server.layers.kernels import touch
from server.layers.parts import Parts
from server.layers.state import calibration_of
from server.layers.values import Values
from server.mapped import Mapped
from server.model import Model
from server.scoring.items import ItemTable


def bound(parts: Parts) -> tuple[Model, Catalogue, ItemTable]:
    """The views. O(fields), and a read of each page of what is new. Raises ArtefactError for parts that do not fit."""
    for part in (parts.base, parts.values, parts.fresh, parts.items, parts.catalogue):
        if part is not None:
            _touch(part)
    base, values = Base.of_part(parts.base), Values.of_part(parts.values)
    if len(values) != len(base.trie):
        raise ArtefactError(f"{len(values)} values for {len(base.trie)} keys: parts of two versions")
    fresh = fresh_of_part(base, values, parts.fresh)
    calibration = calibration_of(parts.items)
    model = Model.of(parts.version, base, values, fresh, calibration)
    catalogue = _CATALOGUES.get(parts.catalogue)
    if catalogue is None:
        catalogue = Catalogue.unpack(base.plan, parts.catalogue.head, parts.catalogue.arrays)
        _CATALOGUES[parts.catalogue] = catalogue
    return model, catalogue, ItemTable.of_arrays(parts.items.arrays)


_CATALOGUES: WeakKeyDictionary[Mapped, Catalogue] = WeakKeyDictionary()
_TOUCHED: WeakKeyDictionary[Mapped, bool] = WeakKeyDictionary()


def _touch(part: Mapped) -> None:
    """Once a part: have the kernel's page table filled before a request comes."""
    if part not in _TOUCHED:
        for array in part.arrays.values():
            touch(array.reshape(-1).view(np.uint8))
        _TOUCHED[part] = True
