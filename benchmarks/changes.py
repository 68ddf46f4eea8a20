"""Deltas one upon another, made without a model of each: keys whose weight changes, and keys that are new."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from model_store.artefact.artefact import Artefact, Delta
from model_store.artefact.rows import Content

SCALE = 0.05
"""Standard deviation of the new weights."""


def deltas(
    artefact: Artefact, count: int, changed: int, new_keys: Callable[[int], list[bytes]], seed: int = 11
) -> Iterator[Delta]:
    """`count` deltas of `changed` keys of the artefact, none of them twice, and the keys of `new_keys(number)`.

    Each names its place in the row as its parent, from 1 on: publish it with the version's number instead.
    """
    draw, content = np.random.default_rng(seed), Content.parse(artefact.content)
    rows = draw.permutation(artefact.rows)[: count * changed].reshape(count, changed)
    for number in range(count):
        old = {artefact.key(int(row)): int(row) for row in rows[number]}
        gone = _columns(old, artefact.weight[[*old.values()]], artefact.rate[[*old.values()]])
        keys = [*old, *new_keys(number)]
        come = _columns(keys, draw.normal(0, SCALE, len(keys)), np.full(len(keys), 0.1))
        before, content = content, content - Content.of(**gone) + Content.of(**come)
        yield Delta.from_columns(
            **come,
            spec=artefact.spec,
            metrics={},
            parent=number + 1,
            parent_content=str(before),
            content=str(content),
        )


def _columns(keys: Any, weight: Any, rate: Any) -> dict[str, np.ndarray]:
    order = sorted(range(len(keys)), key=(listed := list(keys)).__getitem__)
    return {
        "key_data": np.frombuffer(b"".join(listed[row] for row in order), np.uint8),
        "key_offsets": np.cumsum([0, *(len(listed[row]) for row in order)], dtype=np.int64),
        "weight": np.asarray(weight, np.float32)[order],
        "variants": np.ones(len(listed), np.uint32),
        "rate": np.asarray(rate, np.float32)[order],
    }
