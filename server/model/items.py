"""What a version of a model knows of the catalogue's items: each one's own sums for every variant, and its item parts.

The catalogue is a block that outlives versions. What a version knows of it is another block, written for each version:
the sums always, the item parts only if the model has other ones than before. `bound` is a worker's side: a model, a
catalogue and the items' sums, as views of shared memory.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from functools import cached_property
from mmap import mmap
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from model_store.artefact.calibration import Calibration
from model_store.errors import ArtefactError
from model_store.spec.sections import MAX_CROSS_FIELDS
from server.model.byte_kernels import touch
from server.model.columns import Catalogue
from server.model.items_kernels import code_items, sum_items
from server.model.layers import Base, fresh_of_part
from server.model.model import Model, id_fields
from server.model.shared_memory import Parts, SharedBlock
from server.model.tokens import TokenTable
from server.model.values import Values

Array = npt.NDArray[Any]

_NAMES = ("own", "unsure", "codes", "run_start", "run_half", "run_x")
_UNKNOWN = "unknown"


@dataclass(frozen=True, eq=False)
class ItemTable:
    """Items as the ranking kernels read them: codes int32[rows, groups], the runs, and two sums a variant and row.

    own float64[variants, rows] is Σ w·x over the keys that the item makes alone, unsure Σ rate·|x| over the same keys,
    or with the probit link their variance.

    A code is the number of an item part, NO_HALF, or FIRST_RUN - r for run r: the pairs run_start[r] …
    run_start[r + 1] - 1 of run_half (int32) and run_x (float64), for items with several parts in a group, or with an x
    other than 1. unknown float64[rows, groups] is Σ x² over the parts that the model does not have; without rows unless
    the link is probit.
    """

    own: Array
    unsure: Array
    codes: Array
    run_start: Array
    run_half: Array
    run_x: Array
    unknown: Array

    @classmethod
    def of(cls, model: Model, tokens: TokenTable, variants: range) -> ItemTable:
        """Look every row up, with the sums of `variants`. O(tokens)."""
        return cls(*sums_of(model, tokens, variants), *codes_of(model, tokens))

    @classmethod
    def of_arrays(cls, arrays: dict[str, Array]) -> ItemTable:
        """The table with these arrays, by name."""
        known = {name: arrays[name] for name in _NAMES}
        return cls(**known, unknown=arrays.get(_UNKNOWN, np.empty((0, known["codes"].shape[1]))))

    @property
    def by_name(self) -> dict[str, Array]:
        """The arrays as the block `items` names them."""
        names = (*_NAMES, _UNKNOWN) if len(self.unknown) else _NAMES
        return {name: getattr(self, name) for name in names}

    @property
    def code_arrays(self) -> tuple[Array, ...]:
        """The group `items` of the scoring kernels without the sums and `unknown`."""
        return self.codes, self.run_start, self.run_half, self.run_x

    @cached_property
    def longest_run(self) -> int:
        """The most item parts that a row has in a group, at least 1."""
        return int(np.diff(self.run_start).max(initial=1))


def sums_of(
    model: Model, tokens: TokenTable, variants: range, *, by_value: bool = False
) -> tuple[Array, Array]:
    """The arrays `own` and `unsure` of an ItemTable.

    by_value: walk each value of a field once, in the table's order, instead of each row's. For a catalogue: its values
    are sorted, and shared by many rows or unique.
    """
    own, unsure = (np.zeros((len(variants), len(tokens.values)), np.float64) for _ in range(2))
    choice = np.empty(MAX_CROSS_FIELDS, np.int64)
    # Fields with more tokens than this, such as sets of many members, are walked by row; so memory is bounded.
    found = np.empty((2, 2 * len(tokens.values) if by_value else 0), np.int64)
    sum_items(
        *model.base.trie.walked, *model.base.values.arrays, *model.fresh.trie.walked, *model.fresh.values.arrays,
        model.terms.item, *tokens.arrays, variants.start, model.priors, choice, found, own, unsure,
    )  # fmt: skip
    return own, unsure


def codes_of(model: Model, tokens: TokenTable) -> tuple[Array, Array, Array, Array, Array]:
    """The codes, runs and unknown of an ItemTable. Runs are rare: a second pass follows only if the first finds any."""
    rows, groups = len(tokens.values), len(model.terms.groups)
    codes = np.empty((rows, groups), np.int32)
    base, fresh = model.base.item_parts, model.fresh.item_parts
    runs = pairs = 0
    # The first attempt has room for no run: most models have none, and the arrays are then complete.
    while True:
        arrays = codes, np.zeros(runs + 1, np.int64), np.empty(pairs, np.int32), np.empty(pairs, np.float64)
        unknown = np.zeros((rows if len(model.priors) else 0, groups))
        found = code_items(
            *base.trie.walked, *fresh.trie.walked, fresh.first, model.terms.groups,
            *tokens.arrays, np.empty(MAX_CROSS_FIELDS, np.int64), *arrays, unknown,
        )  # fmt: skip
        if found == (runs, pairs):
            return *arrays, unknown
        runs, pairs = found


@dataclass(frozen=True, eq=False)
class KnownItems:
    """A catalogue and its block. id_fields: of items whose own ids are their missing values."""

    catalogue: Catalogue
    part: SharedBlock
    id_fields: tuple[str, ...]

    @classmethod
    def of(cls, catalogue: Catalogue, base: Base, before: KnownItems | None) -> KnownItems:
        """Pack a catalogue, unless `before` holds the same. O(items). Raises ArtefactError for another plan's."""
        if [field.name for field in catalogue.fields] != [field.name for field in base.plan.item_fields]:
            raise ArtefactError(
                f"the catalogue was built for the item fields {[field.name for field in catalogue.fields]}, "
                f"the model has {[field.name for field in base.plan.item_fields]}; build it again"
            )
        own = id_fields(base.spec, base.plan)
        # The same object: the items have not changed, and workers keep the block that they have mapped.
        if before is not None and before.catalogue is catalogue and before.id_fields == own:
            return before
        head, arrays = catalogue.pack()
        part = SharedBlock.write(head, arrays)
        return cls(catalogue, part, own)

    @classmethod
    def of_part(cls, part: SharedBlock, base: Base) -> KnownItems:
        """Bind a block. O(items without a value in a field of `id_fields`)."""
        catalogue = Catalogue.unpack(base.plan, part.head, part.arrays)
        own = id_fields(base.spec, base.plan)
        return cls(catalogue, part, own)


def items_part(model: Model, items: KnownItems, codes_from: SharedBlock | None) -> SharedBlock:
    """The block `items` of a model, with its calibration in the head. codes_from: a block whose codes still hold."""
    tokens = items.catalogue.tokens_of(items.id_fields)
    own, unsure = sums_of(model, tokens, range(len(model.plan.variants)), by_value=True)
    if codes_from is None:
        table = ItemTable(own, unsure, *codes_of(model, tokens))
    else:
        before = ItemTable.of_arrays(codes_from.arrays)
        table = replace(before, own=own, unsure=unsure)
    calibration = None if model.calibration is None else model.calibration.to_json()
    return SharedBlock.write({"calibration": calibration}, table.by_name)


def calibration_of(part: SharedBlock) -> Calibration | None:
    """The calibration in the head of a block `items`."""
    text = part.head["calibration"]
    return None if text is None else Calibration.from_json(text)


# -- in a worker, which only reads


def bound(parts: Parts) -> tuple[Model, Catalogue, ItemTable]:
    """The views. O(fields), and a read of each new page. Raises ArtefactError for parts that do not fit together."""
    for part in (parts.base, parts.values, parts.fresh, parts.items, parts.catalogue):
        if part is not None:
            _touch(part)
    base, values = Base.of_part(parts.base), Values.of_part(parts.values)
    # Kernels check no bounds: slots of the one array would read beyond the end of the other.
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


# Weak: bound once for all versions over one block, and dropped with the last of them.
_CATALOGUES: WeakKeyDictionary[SharedBlock, Catalogue] = WeakKeyDictionary()
# By map and not by block: a buffer of values comes back under another uid, and its pages are in the page table by then.
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
