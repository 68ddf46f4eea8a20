"""A model of ten million keys, made in seconds: a spec with few fields, and keys drawn at random for its crosses."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from model_store.artefact.artefact import Artefact
from model_store.artefact.rows import columns_of
from model_store.spec.spec import ModelSpec, parse_spec

KEYS = 10_000_000
ITEMS = 100_000
NAME = "large"
FIELDS = {"user": 2_000_000, "city": 3000, "hour": 24, "sku": 100_000, "brand": 2000, "category": 300}
ITEM_FIELDS = ("sku", "brand", "category")
CROSSES = (("city", "sku"), ("user", "category"), ("user", "brand"), ("hour", "city", "brand"))

Array = npt.NDArray[Any]


def spec(variants: int = 1) -> ModelSpec:
    """The spec, resolved. variants: with a weight of its own for each, if there are several."""
    fields = "".join(
        f'{name} = {{ side = "{"item" if name in ITEM_FIELDS else "user"}" }}\n' for name in FIELDS
    )
    crosses = "".join(f"[[crosses]]\nfields = {list(cross)}\n" for cross in CROSSES)
    text = f'[model]\nname = "{NAME}"\n[input]\nlabel = "click"\n[fields]\n{fields}{crosses}'
    if variants > 1:
        text += "[variants]\n" + "".join(f"v{number} = {{}}\n" for number in range(variants))
        text += '[learner]\nvalues = "per_variant"\n'
    return parse_spec(text).resolve(["click", *FIELDS])


def artefact(keys: int = KEYS, seed: int = 7, variants: int = 1) -> Artefact:
    """About `keys` keys with random weights, one for each variant."""
    draw = np.random.default_rng(seed)
    columns = [pa.array([b"bias"], pa.large_binary())]
    columns += [_field(name, np.arange(min(size, keys // 10))) for name, size in FIELDS.items()]
    each = (keys - sum(map(len, columns))) // len(CROSSES)
    for cross in CROSSES:
        columns.append(_cross(cross, [draw.integers(FIELDS[name], size=each) for name in cross]))
    rows = pc.unique(pa.concat_arrays(columns))
    key_data, key_offsets = columns_of(rows.take(pc.sort_indices(rows)))
    count = len(rows)
    weight = draw.normal(0, 0.05, count if variants == 1 else (count, variants)).astype(np.float32)
    return Artefact.from_columns(
        key_data=key_data,
        key_offsets=key_offsets,
        weight=weight,
        variants=np.full(count, (1 << variants) - 1, np.uint32),
        rate=np.full_like(weight, 0.1),
        spec=spec(variants),
        metrics={},
    )


def items(count: int = ITEMS) -> list[tuple[str, dict[str, str]]]:
    """Items, each with a sku of its own."""
    draw = np.random.default_rng(3)
    brands, categories = (draw.integers(FIELDS[name], size=count).tolist() for name in ("brand", "category"))
    return [
        (f"item-{n}", {"sku": f"sku{n}", "brand": f"brand{b}", "category": f"category{c}"})
        for n, (b, c) in enumerate(zip(brands, categories, strict=True))
    ]


def _field(name: str, values: Array) -> pa.Array:
    return _joined([f"{name}={name}"], [values])


def _cross(names: tuple[str, ...], values: list[Array]) -> pa.Array:
    texts = ["*".join(names) + "=" + names[0], *(f"*{name}" for name in names[1:])]
    return _joined(texts, values)


def _joined(texts: list[str], values: list[Array]) -> pa.Array:
    parts: list[Any] = []
    for text, column in zip(texts, values, strict=True):
        parts += [pa.scalar(text, pa.large_string()), pc.cast(pa.array(column), pa.large_string())]
    empty = pa.scalar("", pa.large_string())
    return pc.cast(pc.binary_join_element_wise(*parts, empty), pa.large_binary())
