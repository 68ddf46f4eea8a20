"""Small generated logs for the trainer's tests, as specs, rows and batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from model_store.spec.spec import ModelSpec, parse_spec
from trainer.examples.hashing import ExampleMaker
from trainer.learn.model import LearningModel
from trainer.logs.batch import Position, RowBatch

SPEC = """
[model]
name = "shop"
[input]
label = "click"
weight = "importance"
[fields]
age = { side = "user" }
tags = { side = "user", kind = "set", separator = "|" }
brand = { side = "item" }
price = { side = "item", kind = "number", bucket = "log" }
size = { side = "item", kind = "number" }
hour = { kind = "time", part = "hour", format = "epoch_s" }
hashes = { kind = "raw", separator = " " }
[[crosses]]
fields = ["brand", "age"]
[[crosses]]
fields = ["tags", "brand", "size"]
[variants]
base = { share = 0.5 }
plain = { share = 0.3, without = ["age*brand"] }
lean = { share = 0.2, without = ["tags", "hour"] }
[learner]
alpha = 0.3
beta = 0.7
l1 = 0.05
l2 = 0.4
"""


def shop_spec(variants: int = 3) -> ModelSpec:
    """The spec above, with its three variants or with one."""
    text = SPEC
    if variants == 1:
        text = SPEC[: SPEC.index("[variants]")] + SPEC[SPEC.index("[learner]") :]
    return parse_spec(text)


def shop_rows(rows: int, seed: int) -> list[dict[str, bytes]]:
    """Rows of text as a CSV file would hold them: missing values, sets, characters that must be escaped."""
    random = np.random.default_rng(seed)
    return [
        {
            "click": random.choice([b"0", b"1", b"true", b"false"]),
            "importance": b"%.3f" % random.uniform(0.1, 3.0),
            "age": random.choice([b"", b"20", b"30", b"4*0", b"5=0%"]),
            "tags": b"|".join(random.choice([b"a", b"b", b"c", b"a*", "ü".encode()], random.integers(0, 4))),
            "brand": random.choice([b"", b"nike", b"b2%2A", b"puma", b"x" * 30]),
            "price": random.choice([b"", b"0", b"-3.5", b"12", b"1e6"]),
            "size": random.choice([b"", b"0.5", b"-2", b"1"]),
            "hour": b"%d" % random.integers(0, 10**9),
            "hashes": random.choice([b"", b"P_N_1", b"P_N_2 P*N=3", b"P_N_1 P_N_1"]),
        }
        for _ in range(rows)
    ]


def batch_of(rows: Sequence[Mapping[str, bytes]], file: str = "log") -> RowBatch:
    """Rows as a batch of binary columns."""
    columns = {name: pa.array([row[name] for row in rows], pa.binary()) for name in rows[0]}
    return RowBatch(columns, np.arange(2, len(rows) + 2), file, (), len(rows), Position(file))


def model_of(spec: ModelSpec, columns: Sequence[str], *, keep_seen: bool = False) -> LearningModel:
    """An untrained model of the spec."""
    return LearningModel(ExampleMaker(spec.resolve(columns)), keep_seen=keep_seen)


def learn(model: LearningModel, rows: Sequence[Mapping[str, bytes]], size: int = 10**9) -> Any:
    """Learn rows in batches of `size`."""
    for start in range(0, len(rows), size):
        model.learn(model.maker.make(batch_of(rows[start : start + size])))
    return model


def state_of(model: LearningModel) -> dict[bytes, tuple[float, float]]:
    """(z, n) of every key in the table."""
    keys = model.table.keys()
    data = keys.data.tobytes()
    state = {}
    for index, slot in enumerate(keys.slots):
        held = model.table.slots[slot]
        state[data[keys.offsets[index] : keys.offsets[index + 1]]] = (float(held["z"]), float(held["n"]))
    return state
