"""Shards of a log: together they hold exactly what `ftrie train` reads, however the log is dealt."""

from __future__ import annotations

import gzip
import json
import pickle
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from model_store.spec.spec import ModelSpec, parse_spec
from trainer.distributed.dealing import (
    HeldOut,
    ShardOptions,
    ShardPlan,
    plan_shards,
)
from trainer.distributed.shard import Rows, Shard, ShardKeys, build_shard
from trainer.examples.open_log import Log, open_log
from trainer.learn.model import LearningModel

SPEC = """
[model]
name = "ads"
[input]
label = "click"
[fields]
site = {}
user = { side = "user" }
price = { kind = "number" }
tags = { kind = "set", separator = "|" }
[[crosses]]
fields = ["site", "tags"]
"""
BLOCK = 3_000


def spec_of(text: str = SPEC) -> ModelSpec:
    return parse_spec(text)


def rows_of(rows: int = 1_200, seed: int = 1) -> list[dict[str, object]]:
    draw = np.random.default_rng(seed)
    return [
        {
            "click": int(draw.random() < 0.2),
            "site": f"s{draw.zipf(1.4) % 50}",
            "user": f"u{draw.integers(400)}",
            "price": round(float(draw.uniform(0, 3)), 2),
            "tags": [f"t{tag}" for tag in draw.integers(9, size=draw.integers(4))],
        }
        for _ in range(rows)
    ]


def delimited(rows: list[dict[str, object]], delimiter: str) -> str:
    lines = [delimiter.join(("click", "site", "user", "price", "tags"))]
    for row in rows:
        lines.append(delimiter.join("|".join(v) if isinstance(v, list) else str(v) for v in row.values()))
    return "\n".join(lines) + "\n"


def write(path: Path, rows: list[dict[str, object]]) -> str:
    """The rows in the format of the file's name."""
    kinds = path.name.split(".")[1:]
    if kinds[0] == "parquet":
        table = pa.Table.from_pylist(rows)
        pq.write_table(table, path, row_group_size=int(kinds[1]) if len(kinds) > 1 else len(rows))
        return str(path)
    if kinds[0] == "jsonl":
        text = "".join(json.dumps(row) + "\n" for row in rows)
    elif kinds[0] == "vw":
        text = "".join(
            f"{row['click']} |site {row['site']} |user {row['user']} |tags {' '.join(row['tags'])}\n"  # type: ignore[arg-type]
            for row in rows
        )
    else:
        text = delimited(rows, "\t" if kinds[0] == "tsv" else ",")
    path.write_bytes(gzip.compress(text.encode()) if kinds[-1] == "gz" else text.encode())
    return str(path)


def of_vw(spec: ModelSpec, name: str) -> ModelSpec:
    """The spec without what Vowpal Wabbit text cannot say."""
    if ".vw" not in name:
        return spec
    return parse_spec(
        f'[model]\nname = "ads"\n[input]\nlabel = "label"\nignore = ["importance", "tag"]\n{""}'
    )


def texts(keys: ShardKeys) -> list[bytes]:
    data = keys.data.tobytes()
    return [data[first:end] for first, end in zip(keys.offsets[:-1], keys.offsets[1:], strict=True)]


def contents(keys: ShardKeys, rows: Rows) -> Iterator[tuple[object, ...]]:
    """Every row as a value: its label, its weight, its keys in order with their x."""
    names = texts(keys)
    for row in range(rows.labels.size):
        part = slice(rows.starts[row], rows.starts[row + 1])
        x = rows.x[part].tolist() if rows.x.size else [1.0] * (part.stop - part.start)
        weight = float(rows.weights[row]) if rows.weights.size else 1.0
        yield (
            float(rows.labels[row]),
            weight,
            tuple(zip((names[i] for i in rows.ids[part]), x, strict=True)),
        )


def learned(spec: ModelSpec, log: Log) -> tuple[LearningModel, list[tuple[object, ...]]]:
    """What `ftrie train` reads: the model, and each row as above."""
    with open_log(log, spec) as opened:
        model = LearningModel(opened.maker)
        found = list[tuple[float, float, list[int], list[float]]]()
        with opened.examples(1) as stream:
            for examples in stream:
                model.learn(examples)
                hashed = examples.hashed
                for row in range(hashed.labels.size):
                    part = slice(hashed.starts[row], hashed.starts[row + 1])
                    x = hashed.x[part].tolist() if hashed.x.size else [1.0] * (part.stop - part.start)
                    weight = float(hashed.weights[row]) if hashed.weights.size else 1.0
                    found.append((float(hashed.labels[row]), weight, hashed.hashes[part].tolist(), x))
    keys = model.table.keys()
    *_, hashes = model.table._arena_content(model.table.count)
    data = keys.data.tobytes()
    names = {int(h): data[a:b] for h, a, b in zip(hashes, keys.offsets[:-1], keys.offsets[1:], strict=True)}
    return model, [
        (label, weight, tuple((names[h], x) for h, x in zip(hashed, xs, strict=True)))
        for label, weight, hashed, xs in found
    ]


def plans_of(spec: ModelSpec, inputs: list[str], workers: int, **options: object) -> list[ShardPlan]:
    return plan_shards(spec, Log(inputs, batch_bytes=BLOCK), workers, ShardOptions(**options))  # type: ignore[arg-type]


def assert_transposed(shard: Shard) -> None:
    rows, columns = shard.rows, shard.columns
    keys = shard.keys.hashes.size
    by_row = np.repeat(np.arange(rows.labels.size), np.diff(rows.starts))
    order = np.argsort(rows.ids, kind="stable")
    assert np.array_equal(np.diff(columns.starts), np.bincount(rows.ids, minlength=keys))
    assert np.array_equal(columns.rows, by_row[order])
    assert columns.x.size == rows.x.size
    if rows.x.size:
        assert np.array_equal(columns.x, rows.x[order])
    assert np.array_equal(shard.keys.counts, np.bincount(rows.ids, minlength=keys).astype(float))


NAMES = ["log.csv", "log.tsv.gz", "log.jsonl", "log.vw", "log.parquet", "log.parquet.100"]


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_shards_hold_the_rows_and_keys_that_train_reads(tmp_path: Path, name: str, workers: int) -> None:
    spec = of_vw(spec_of(), name)
    rows = 9_000 if name == "log.parquet" else 1_200  # a Parquet batch has 1,024 rows or more
    inputs = [write(tmp_path / name, rows_of(rows))]
    model, expected = learned(spec, Log(inputs))
    shards = [build_shard(plan) for plan in plans_of(spec, inputs, workers)]
    found = [row for shard in shards for row in contents(shard.keys, shard.rows)]
    assert Counter(found) == Counter(expected)
    assert all(shard.rows.labels.size > rows / workers / 3 for shard in shards)
    every = {key for shard in shards for key in texts(shard.keys)}
    assert len(every) == model.table.count
    for shard in shards:
        assert_transposed(shard)


def test_one_shard_has_the_rows_keys_and_weights_of_train_in_their_order(tmp_path: Path) -> None:
    inputs = [write(tmp_path / "log.csv", rows_of())]
    model, expected = learned(spec_of(), Log(inputs))
    (plan,) = plans_of(spec_of(), inputs, 1)
    shard = build_shard(plan)
    keys = model.table.keys()
    assert list(contents(shard.keys, shard.rows)) == expected
    assert np.array_equal(shard.keys.data, keys.data)
    assert np.array_equal(shard.keys.features, keys.features)
    assert np.array_equal(shard.first, model.coordinates.weights(keys))
    assert np.array_equal(shard.n[:, 0], model.table.slots["n"][keys.slots])
    assert shard.progressive == model.metrics.summary()


def test_a_plan_makes_the_same_shard_again_after_it_was_sent(tmp_path: Path) -> None:
    inputs = [write(tmp_path / f"{part}.csv", rows_of(300, part)) for part in range(3)]
    plan = plans_of(spec_of(), inputs, 2, held_out=HeldOut(share=0.2))[1]
    first, again = build_shard(plan), build_shard(pickle.loads(pickle.dumps(plan)))
    assert_equal(first, again)


def assert_equal(first: Shard, second: Shard) -> None:
    for part in ("keys", "rows", "columns", "held"):
        for name, array in vars(getattr(first, part)).items():
            assert np.array_equal(array, getattr(getattr(second, part), name)), (part, name)
    for name in ("first", "n", "masks"):
        assert np.array_equal(getattr(first, name), getattr(second, name)), name
