"""A small shop for the server's tests: a spec, items, users, and models whose weights can be computed again.

A key's weight is drawn from a hash of the key and a seed: two seeds make two models with the same keys, and
`expected_score` can say what a server must answer without any part of the server. With values = "per_variant", each
variant has another weight of the key.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from functools import cache

import numpy as np

from model_store.artefact.artefact import Artefact
from model_store.features.features import FeaturePlan
from model_store.spec.spec import ModelSpec, parse_spec
from model_store.spec.values import Value
from model_store.store import Store

NAME = "shop"
VARIANTS = ("base", "plain")
SPEC = """
[model]
name = "shop"
[input]
label = "click"
cookie = "device"
[fields]
age = { side = "user" }
device = { side = "user" }
likes = { side = "user", kind = "set" }
hour = { side = "context", kind = "time", part = "hour" }
distance = { side = "context", kind = "number" }
brand = { side = "item" }
tags = { side = "item", kind = "set" }
price = { side = "item", kind = "number", bucket = "log" }
[[crosses]]
fields = ["age", "brand"]
[[crosses]]
fields = ["likes", "tags"]
[[crosses]]
fields = ["age", "hour", "price"]
[[crosses]]
fields = ["distance", "brand"]
[[crosses]]
fields = ["age", "likes"]
[[crosses]]
fields = ["brand", "price"]
[variants]
base = { share = 0.5 }
plain = { share = 0.5, without = ["age*brand", "tags"] }
"""
AGES = ("20", "30", "40")
LIKES = ('["red"]', '["red","blue"]', '["green"]')
HOURS = ("2024-05-01T08:00:00", "2024-05-01T21:30:00")
ITEMS: dict[str, dict[str, str]] = {
    f"item-{n}": {
        "brand": f"b{n % 4}",
        "tags": ('["red"]', '["blue","green"]', "[]")[n % 3],
        "price": str(1.5 * 2**n),
    }
    for n in range(12)
}
USERS: dict[str, dict[str, str]] = {
    "u1": {"age": "20", "likes": '["red","blue"]', "never used": "x"},
    "u2": {"age": "30", "likes": '["green"]'},
}


def spec(values: str = "single") -> ModelSpec:
    parsed = parse_spec(f'{SPEC}[learner]\nvalues = "{values}"\n')
    return parsed.resolve(["click", "device", *parsed.fields])


def weight(key: bytes, seed: int, variant: int | None = None) -> float:
    """The weight of a key in the model `seed`, in [-1, 1], as float32 holds it; or a variant's own weight of it."""
    key = key if variant is None else b"%d:%b" % (variant, key)
    number = int.from_bytes(hashlib.blake2b(key, key=b"%d" % seed, digest_size=4).digest(), "big")
    return float(np.float32(number / 2**31 - 1.0))


@cache
def masks() -> dict[bytes, int]:
    """The model's keys with their variants: six of seven that the shop's users and items can have."""
    plan = FeaturePlan.of(spec())
    found: dict[bytes, int] = {}
    for age, likes, hour, device, item in itertools.product(AGES, LIKES, HOURS, ("u1", "u2"), ITEMS.values()):
        example = {"age": age, "likes": likes, "hour": hour, "distance": 2.5, "device": device, **item}
        found.update((key, mask) for key, _, mask in plan.keys(example))
    return {key: found[key] for key in sorted(found) if hashlib.blake2b(key).digest()[0] % 7}


def artefact(seed: int = 1, values: str = "single") -> Artefact:
    keys = list(masks())
    data = b"".join(keys)
    if values == "single":
        weights = np.array([weight(key, seed) for key in keys], np.float32)
    else:
        used = [[mask >> v & 1 for v in range(len(VARIANTS))] for mask in masks().values()]
        own = [[weight(key, seed, v) for v in range(len(VARIANTS))] for key in keys]
        weights = np.array(own, np.float32) * np.array(used, np.float32)
    return Artefact.from_columns(
        key_data=np.frombuffer(data, np.uint8).copy(),
        key_offsets=np.cumsum([0, *map(len, keys)]).astype(np.int64),
        weight=weights,
        variants=np.array(list(masks().values()), np.uint32),
        rate=np.full_like(weights, 0.1),
        spec=spec(values),
        metrics={},
    )


def expected_score(
    example: Mapping[str, Value], variant: int, seed: int = 1, values: str = "single"
) -> float:
    """The sum of the weights of an example's keys in the model `seed`, as its definition says."""
    keys = FeaturePlan.of(spec()).keys(example)
    whose = None if values == "single" else variant
    return sum(
        weight(key, seed, whose) * x for key, x, mask in keys if mask >> variant & 1 and key in masks()
    )


def fill(store: Store, seed: int = 1, values: str = "single") -> int:
    """Publish and activate the model `seed`, with users, items and a candidate set. Returns the version."""
    store.records.put_users(USERS.items())
    store.records.put_items(ITEMS.items())
    store.records.put_candidates("front page", ["item-3", "item-1", "item-2"])
    return publish(store, seed, values)


def publish(store: Store, seed: int, values: str = "single") -> int:
    """Publish and activate the model `seed`. Returns the version."""
    versions = store.model(NAME)
    version = versions.publish(artefact(seed, values))
    versions.activate(version)
    return version
