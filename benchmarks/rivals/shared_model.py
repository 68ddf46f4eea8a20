"""The model that ftrie and its rivals all hold, weight for weight, and where Vowpal Wabbit's hash puts each key.

It is the shop's of `rank_model`, less the keys whose weight Vowpal Wabbit would share with another key that a request
may ask for: with them, no table of 2^BITS weights gives the same scores. About one key in seven goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks import rank_model as shop
from model_store.artefact.artefact import Artefact
from model_store.artefact.rows import columns_of

BITS = 24
LETTERS = dict(zip(shop.FIELDS, "abcdefghijklmn", strict=True))
"""Vowpal Wabbit tells namespaces apart by their first letter in crosses: each field gets one of its own."""
FLAGS = f"--quiet -b {BITS} --sgd --loss_function logistic " + " ".join(
    f"--interactions {''.join(LETTERS[name] for name in cross)}" for cross in shop.CROSSES
)
FNV_PRIME = np.uint64(16_777_619)  # vw/core/interactions.h: how a cross's hash comes of its parts'
CONSTANT = 11_650_396  # vw/core/constant.h: the bias

Slots = npt.NDArray[np.uint64]


def write(path: Path) -> Artefact:
    """Make the model and write it."""
    model = without_collisions(shop.artefact())
    model.write(path)
    return model


def weights(path: Path) -> dict[str, float]:
    """Key → weight, as a rival in Python holds them."""
    model = Artefact.read(path)
    keys = (key.decode() for key in model.key_array().to_pylist())
    return dict(zip(keys, model.weight.tolist(), strict=True))


@cache
def items() -> dict[str, dict[str, str]]:
    """The catalogue: item id → its fields."""
    return dict(shop.records(shop.ITEM_FIELDS, "item-", shop.ITEMS, seed=1))


def keys_of(fields: dict[str, str]) -> Iterator[str]:
    """The keys of one candidate with its user and context, as ftrie writes them."""
    yield "bias"
    for name, value in fields.items():
        yield f"{name}={value}"
    for cross in shop.CROSSES:
        yield "*".join(cross) + "=" + "*".join([fields[name] for name in cross])


def vw_text(fields: dict[str, str]) -> str:
    """Fields in Vowpal Wabbit's text format."""
    return " ".join(f"|{LETTERS[name]} {value}" for name, value in fields.items())


def without_collisions(model: Artefact) -> Artefact:
    """The model less the keys whose slot any other key of the shop's shares."""
    table = VwSlots()
    taken = np.zeros(1 << BITS, np.uint8)
    for slots in table.every():
        np.add.at(taken, slots, 1)
    kept = taken[table.of(model)] == 1
    key_data, key_offsets = columns_of(model.key_array().filter(pa.array(kept)))
    rows = {name: getattr(model, name)[kept] for name in ("weight", "variants", "rate")}
    return replace(model, key_data=key_data, key_offsets=key_offsets, **rows)


class VwSlots:
    """Which of the 2^BITS weights is a key's, by Vowpal Wabbit's own hash of names and its way with crosses."""

    def __init__(self) -> None:
        from vowpalwabbit import Workspace

        workspace: Any = Workspace(FLAGS)
        self._hashes = {name: self._values(workspace, name) for name in shop.FIELDS}
        workspace.finish()

    def of(self, model: Artefact) -> Slots:
        """u64[rows]: each row's slot."""
        return np.array([self._slot(key.decode()) for key in model.key_array().to_pylist()], np.uint64)

    def every(self) -> Iterator[Slots]:
        """The slots of all keys that a request may ask for, field by field and cross by cross."""
        yield _masked(np.array([CONSTANT], np.uint64))
        for hashes in self._hashes.values():
            yield _masked(hashes)
        for cross in shop.CROSSES:
            yield _masked(_crossed([self._hashes[name] for name in cross]))

    @staticmethod
    def _values(workspace: Any, name: str) -> Slots:
        """Every value's hash, by its number."""
        space = workspace.hash_space(LETTERS[name])
        found = [workspace.hash_feature(f"{name}{n}", space) for n in range(shop.FIELDS[name])]
        return np.array(found, np.uint64)

    def _slot(self, key: str) -> int:
        if key == "bias":
            return CONSTANT & ((1 << BITS) - 1)
        names, _, values = key.partition("=")
        cross = names.split("*")
        numbers = [int(v[len(n) :]) for n, v in zip(cross, values.split("*"), strict=True)]
        slot = int(self._hashes[cross[0]][numbers[0]])
        for name, number in zip(cross[1:], numbers[1:], strict=True):
            slot = slot * int(FNV_PRIME) ^ int(self._hashes[name][number])
        return slot & ((1 << BITS) - 1)


def _crossed(parts: list[Slots]) -> Slots:
    """The hashes of all combinations: u64[product of the parts' sizes]."""
    crossed = parts[0]
    for part in parts[1:]:
        crossed = (crossed[:, None] * FNV_PRIME ^ part[None, :]).ravel()
    return crossed


def _masked(hashes: Slots) -> Slots:
    return hashes & np.uint64((1 << BITS) - 1)
