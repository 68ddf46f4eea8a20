"""The model, users and items that `benchmarks.rank` serves: a million keys over 8 request and 6 item fields.

12 crosses, two of them of three fields. How many values a field has is like a mid-sized shop; which pairs have a key is
drawn at random, as many for a cross as its share of the million.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from model_store.artefact.artefact import Artefact
from model_store.spec.spec import ModelSpec, parse_spec

NAME = "bench"
KEYS = 1_000_000
ITEMS = 10_000
USER_FIELDS = {"age": 10, "gender": 3, "city": 1000, "segment": 200, "phone": 500}
CONTEXT_FIELDS = {"hour": 24, "page": 50, "position": 10}
ITEM_FIELDS = {"brand": 500, "category": 60, "seller": 2000, "price": 30, "colour": 12, "size": 8}
FIELDS = USER_FIELDS | CONTEXT_FIELDS | ITEM_FIELDS
CROSSES = (
    ("age", "brand"),
    ("age", "category"),
    ("gender", "brand"),
    ("gender", "colour"),
    ("city", "category"),
    ("city", "seller"),
    ("segment", "seller"),
    ("segment", "brand"),
    ("phone", "price"),
    ("page", "brand"),
    ("age", "gender", "category"),
    ("hour", "category", "price"),
)


def spec(variants: int = 1, values: str = "single", learner: str = "") -> ModelSpec:
    """The spec, resolved."""
    return parse_spec(spec_text(variants, values, learner)).resolve(["click", *FIELDS])


def spec_text(variants: int = 1, values: str = "single", learner: str = "") -> str:
    """The spec as TOML."""
    sides = {"user": USER_FIELDS, "context": CONTEXT_FIELDS, "item": ITEM_FIELDS}
    fields = "".join(f'{name} = {{ side = "{side}" }}\n' for side, names in sides.items() for name in names)
    crosses = "".join(f"[[crosses]]\nfields = {list(cross)}\n" for cross in CROSSES)
    names = "".join(f"v{number} = {{}}\n" for number in range(variants))
    text = (
        f'[model]\nname = "{NAME}"\n[input]\nlabel = "click"\n[fields]\n{fields}{crosses}[variants]\n{names}'
    )
    return text + f'[learner]\nvalues = "{values}"\n{learner}\n'


def artefact(seed: int = 7, most: int = KEYS) -> Artefact:
    """A million keys with random weights, or `most`, though never fewer than the fields have values."""
    draw = np.random.default_rng(seed)
    keys = sorted(_keys(draw, most))
    lengths = np.fromiter(map(len, keys), np.int64, len(keys))
    return Artefact.from_columns(
        key_data=np.frombuffer(b"".join(keys), np.uint8).copy(),
        key_offsets=np.concatenate([[0], np.cumsum(lengths)]),
        weight=draw.normal(0, 0.05, len(keys)).astype(np.float32),
        variants=np.ones(len(keys), np.uint32),
        rate=np.full(len(keys), 0.1, np.float32),
        spec=spec(),
        metrics={},
    )


def with_own_weights(artefact: Artefact, variants: int, seed: int = 8) -> Artefact:
    """The same keys, and a random weight of each for every variant."""
    weight = np.random.default_rng(seed).normal(0, 0.05, (artefact.rows, variants)).astype(np.float32)
    every = np.full(artefact.rows, 2**variants - 1, np.uint32)
    resolved = spec(variants, "per_variant")
    return replace(artefact, weight=weight, rate=np.full_like(weight, 0.1), variants=every, spec=resolved)


def as_adpredictor(artefact: Artefact, seed: int = 9) -> Artefact:
    """The same means, with variances between nearly 0 and the prior's."""
    resolved = spec(learner='algorithm = "adpredictor"')
    draw = np.random.default_rng(seed)
    rates = draw.uniform(0.0, resolved.learner.alpha, artefact.rate.shape).astype(np.float32)
    return replace(artefact, rate=rates, spec=resolved)


def _keys(draw: np.random.Generator, most: int) -> set[bytes]:
    keys = {b"bias"} | {
        b"%b=%b%d" % (n.encode(), n.encode(), v) for n, count in FIELDS.items() for v in range(count)
    }
    sizes = {cross: int(np.prod([FIELDS[name] for name in cross])) for cross in CROSSES}
    for cross, size in sorted(sizes.items(), key=lambda pair: pair[1]):
        left = sum(1 for other in sizes.values() if other >= size)
        wanted = min(
            size, max(0, most - len(keys)) // left
        )  # what a small cross cannot take, the larger ones get
        keys.update(_cross_keys(cross, draw.choice(size, wanted, replace=False)))
    return keys


def _cross_keys(cross: tuple[str, ...], cells: np.ndarray) -> Iterator[bytes]:
    values = np.unravel_index(cells, [FIELDS[name] for name in cross])
    template = "*".join(cross) + "=" + "*".join(f"{name}%d" for name in cross)
    return ((template % cell).encode() for cell in zip(*(v.tolist() for v in values), strict=True))


def records(
    fields: dict[str, int], prefix: str, count: int, seed: int
) -> Iterator[tuple[str, dict[str, str]]]:
    """`count` random records, as a store's loader takes them."""
    draw = random.Random(seed)
    for number in range(count):
        yield f"{prefix}{number}", {name: f"{name}{draw.randrange(size)}" for name, size in fields.items()}
