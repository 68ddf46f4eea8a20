"""One partition's model between two rounds: what it has learned since the last one, and the merge of all partitions'.

In: of each partition the keys that it has changed, and their state. Out: one state for each of these keys, the same to
the bit in every partition. docs/distributed.md compares this rule with others.

A key that one partition has changed gets that partition's state. For one that several have changed, with their weights
w_i and the growth d_i of n in each:

    n = n0 + sum d_i          w = sum c_i w_i          c_i = |d_i| / sum |d_j|, in the order of the partitions

n grows as if one trainer had seen all examples, so the learning rate falls as it does there; the weight is an average,
so N partitions that each make the same step make it once, and not N times. FTRL's z follows from w and n; where w is 0,
z is the average of the partitions' z, which is within l1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.errors import SpecError
from model_store.hash_kernels import hash_keys
from model_store.spec.spec import ModelSpec
from trainer.learn.coordinates import Coordinates
from trainer.learn.learners.registry import untouched_stay
from trainer.publish.published_rows import PublishedRows

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]
Numbers = npt.NDArray[np.float64]

DATA, OFFSETS, FEATURES, VALUES = "keys.data", "keys.offsets", "keys.features", "keys.values"
"""The arrays of changed keys: their bytes end to end; int64[keys + 1]; uint16[keys]; float64[keys, 2 own], the state a
of every variant with values of its own, then n of each. In the order of the keys' hashes."""


def check_mergeable(spec: ModelSpec) -> None:
    """Raise SpecError, naming the settings, for a model that several partitions cannot learn."""
    section = spec.learner
    for name, variant in spec.variants.items():
        if variant.average is not None:
            raise SpecError(
                f"variants.{name}.average: --partition cannot merge averages; leave the variant out, or use one trainer"
            )
    settings = {
        f'algorithm = "{section.algorithm}", rate = "{section.rate}", l1 = {section.l1:g}, l2 = {section.l2:g}': (
            not untouched_stay(spec)
        ),
        'rate = "counts"': section.rate == "counts",
        f'precision = "{section.precision}"': section.precision != "f64",
        section.hashing: section.buckets is not None,
        f"ttl = {section.ttl}": section.ttl is not None,
    }
    histories = [name for name, field in spec.fields.items() if field.history is not None]
    if histories:
        raise SpecError(
            f"fields.{histories[0]}: --partition divides events by request, so no partition sees all events of a "
            "user, which history needs; use one trainer, or leave the field out"
        )
    wrong = [name for name, applies in settings.items() if applies]
    if wrong:
        raise SpecError(
            f"[learner] {'; '.join(wrong)}: --partition cannot merge such models; expected ftrl, adpredictor, or ogd "
            'without penalties or with shrink = "touched"; precision = "f64"; a rate of "gradients" or "constant"; '
            "neither hash_bits, hash_buckets nor ttl"
        )


class Reconciler:
    """The keys of one partition's model, and their state at the last round. For the model's thread.

    Memory: 16 bytes a key and variant with values of its own, and the index of `PublishedRows`.
    """

    def __init__(self, coordinates: Coordinates) -> None:
        """The model as it is now is that of all partitions; its slots store when they were touched."""
        self._coordinates = coordinates
        self._table = coordinates.table
        self._rows = PublishedRows(self._table, 0)
        _, keys = self._rows.touched(0)
        self._base = self._table.read(keys.slots)
        self._since = coordinates.examples + 1

    def changes(self) -> dict[str, Array]:
        """The keys that this partition has changed since the last round, and their state."""
        numbers, keys = self._rows.touched(self._since)
        now, base = self._table.read(keys.slots), self._base_of(numbers)
        differs = (now.view(np.uint64) != base.view(np.uint64)).any(axis=1) | (numbers >= len(self._base))
        return self._described(numbers[differs], keys.slots[differs])

    def whole(self) -> dict[str, Array]:
        """All keys and their state, in the same form: `merge` into an empty model gives this one."""
        numbers, keys = self._rows.touched(0)
        return self._described(numbers, keys.slots)

    def merge(self, changes: Sequence[Arrays]) -> int:
        """Continue with the model of all partitions; changes: of each, its own included. Returns the keys changed."""
        hashes = [_hashes(each[DATA], each[OFFSETS]) for each in changes]
        union, first = np.unique(np.concatenate(hashes), return_index=True)
        features = np.concatenate([each[FEATURES] for each in changes])[first]
        slots = self._slots_of(changes, union, features, first)
        numbers = self._rows.numbers_of(slots)
        places = [np.searchsorted(union, each) for each in hashes]
        merged = self._merged(features, self._base_of(numbers), places, [each[VALUES] for each in changes])
        self._table.write(slots, merged, self._coordinates.examples + 1)
        base, self._base = self._base, np.zeros((self._table.count, merged.shape[1]))
        self._base[: len(base)] = base
        self._base[numbers] = merged
        self._since = self._coordinates.examples + 1
        return int(union.size)

    def _slots_of(self, changes: Sequence[Arrays], union: Array, features: Array, first: Array) -> Array:
        """The slots of the keys with these hashes; new keys are admitted in the order of their hashes.

        first: where each is in the concatenation of all changes, of the first partition that has it.
        """
        slots = self._table.find(union, features)
        new = np.flatnonzero(slots < 0)
        if not new.size:
            return slots
        data = np.concatenate([each[DATA] for each in changes])
        shifts = np.cumsum([0, *(each[DATA].size for each in changes)])
        starts = np.concatenate([each[OFFSETS][:-1] + s for each, s in zip(changes, shifts, strict=False)])
        lengths = np.concatenate([np.diff(each[OFFSETS]) for each in changes])[first[new]]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        bytes_at = np.repeat(starts[first[new]] - offsets[:-1], lengths) + np.arange(offsets[-1])
        self._table.add(data[bytes_at], offsets, features[new])
        return self._table.find(union, features)

    def _merged(
        self, features: Array, base: Numbers, places: Sequence[Array], values: Sequence[Numbers]
    ) -> Numbers:
        """The merged state of keys with these features; places: of each partition's keys among them."""
        changed_by, merged = np.zeros(features.size, np.int64), base.copy()
        for place, value in zip(places, values, strict=True):
            changed_by[place] += 1
            merged[place] = value
        several = changed_by > 1
        rank, parts = np.cumsum(several) - 1, []
        for place, value in zip(places, values, strict=True):
            shared = several[place]
            parts.append((rank[place[shared]], value[shared]))
        own = self._coordinates.own
        for v in range(own):
            of_variant = [(at, value[:, v], value[:, own + v]) for at, value in parts]
            n0 = base[several, own + v]
            merged[several, v], merged[several, own + v] = self._averaged(
                features[several], v, n0, of_variant
            )
        return merged

    def _averaged(
        self, features: Array, v: int, n0: Numbers, parts: Sequence[tuple[Array, Numbers, Numbers]]
    ) -> tuple[Numbers, Numbers]:
        """a and n in variant v of keys that several partitions changed; parts: which of them, and their a and n."""
        coordinates, size = self._coordinates, features.size
        n, moved, sharing = n0.copy(), np.zeros(size), np.zeros(size)
        for at, _, own_n in parts:
            n[at] += own_n - n0[at]
            moved[at] += np.abs(own_n - n0[at])
            sharing[at] += 1.0
        n = np.maximum(n, 0.0)  # forgetting lowers it in every partition
        weight, within = np.zeros(size), np.zeros(size)
        for at, own_a, own_n in parts:
            some = moved[at] > 0.0
            share = np.where(some, np.abs(own_n - n0[at]), 1.0) / np.where(some, moved[at], sharing[at])
            weight[at] += share * coordinates.weight_of_state(v, features[at], own_a, own_n)
            within[at] += share * own_a
        return coordinates.state_of_weight(v, features, weight, n, within), n

    def _base_of(self, numbers: Array) -> Numbers:
        """The state at the last round; 0 for keys admitted since."""
        known, base = numbers < len(self._base), np.zeros((numbers.size, self._base.shape[1]))
        base[known] = self._base[numbers[known]]
        return base

    def _described(self, numbers: Array, slots: Array) -> dict[str, Array]:
        keys = self._rows.keys(numbers, slots)
        order = np.argsort(_hashes(keys.data, keys.offsets), kind="stable")
        keys = self._rows.keys(numbers[order], slots[order])
        values = self._table.read(keys.slots)
        return {DATA: keys.data, OFFSETS: keys.offsets, FEATURES: keys.features, VALUES: values}


def _hashes(data: Array, offsets: Array) -> Array:
    hashes = np.empty(offsets.size - 1, np.uint64)
    hash_keys(np.ascontiguousarray(data), np.ascontiguousarray(offsets), hashes)
    return hashes
