"""Ten million keys: from Redis to served, a delta of ten thousand keys, and bytes against a dict of floats.

python -m benchmarks.layers [KEYS]
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import numpy as np

from benchmarks import large_model
from benchmarks.common import ROUNDS, Spread, report
from model_store.artefact.artefact import Artefact, Delta
from model_store.artefact.rows import Content
from model_store.features.features import FeaturePlan
from model_store.store import Store
from server.model.columns import Catalogue
from server.model.live_model import LiveModel
from server.ranking.served import ServedVersion
from server.ranking.warmup import run_kernels

CHANGED, NEW = 9_000, 1_000
T = TypeVar("T")
Row = tuple[str, str, float]


def main() -> None:
    keys = int(sys.argv[1]) if len(sys.argv) > 1 else large_model.KEYS
    run_kernels()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="ftrie-") as folder:
        artefact = large_model.artefact(keys)
        rows += _dict_rows(artefact)
        with Store.open(f"embedded:{folder}") as store:
            versions = store.model(large_model.NAME)
            versions.activate(versions.publish(artefact))
            count, content = artefact.rows, artefact.content
            changes = [*_changes(artefact)]
            del artefact
            rows += _serving_rows(store, rows, changes, content)
    report("layers", f"{count:,} keys, {large_model.ITEMS:,} items", ("what", "unit", "value"), rows)


def _dict_rows(artefact: Artefact) -> list[Row]:
    before = _resident_bytes()
    weight_of = dict(zip(artefact.key_list(), artefact.weight.tolist(), strict=True))
    size = _resident_bytes() - before
    assert len(weight_of) == artefact.rows
    return [("dict of floats", "bytes a key", round(size / artefact.rows, 1))]


def _serving_rows(store: Store, rows: list[Row], changes: list[Delta], content: str) -> list[Row]:
    versions, model = store.model(large_model.NAME), LiveModel(large_model.NAME)
    catalogue = Catalogue.build(FeaturePlan.of(large_model.spec()), large_model.items())
    artefact, fetch_s = _timed(lambda: versions.materialise(1))
    parts, build_s = _timed(partial(model.load, 1, "", artefact, catalogue))
    del artefact
    served, bind_s = _timed(lambda: ServedVersion.bind(parts))
    keys = len(served.model.base)
    assert parts.content == content
    trie, values = parts.base.nbytes / keys, parts.values.nbytes / keys
    apply_s = [_delta_s(model, delta) for delta in changes]
    spread = Spread.of(apply_s[1:])
    rebuilding = model.begin_rebuild()
    _, rebuild_s = _timed(rebuilding)
    rebuilt, swap_s = _timed(model.finish_rebuild)
    assert rebuilt is not None and rebuilt.fresh is None
    a_dict = rows[0][2]
    return [
        ("trie, with item halves", "bytes a key", round(trie, 1)),
        ("weights, variants and rates", "bytes a key", round(values, 1)),
        ("trie and one buffer, of the dict", "%", round(100 * (trie + values) / a_dict, 1)),
        ("trie and both buffers, of the dict", "%", round(100 * (trie + 2 * values) / a_dict, 1)),
        ("trie and weights alone, of the dict", "%", round(100 * (trie + 4) / a_dict, 1)),
        ("fetch and verify", "s", round(fetch_s, 2)),
        ("build parts", "s", round(build_s, 2)),
        ("bind in a worker", "s", round(bind_s, 3)),
        ("Redis to served", "s", round(fetch_s + build_s + bind_s, 2)),
        (f"first delta of {CHANGED + NEW:,} keys", "s", round(apply_s[0], 3)),
        ("a later one, median", "s", round(spread.median, 3)),
        ("a later one, slowest", "s", round(spread.high, 3)),
        ("rebuild, beside the deltas", "s", round(rebuild_s, 2)),
        ("take over what was rebuilt", "s", round(swap_s, 3)),
    ]


def _delta_s(model: LiveModel, delta: Delta) -> float:
    """From a fetched delta to a served that is bound in a worker."""
    before = model.parts.values.uid
    served, seconds = _timed(lambda: ServedVersion.bind(model.apply(delta.parent + 1, "", delta)))
    assert served.version == delta.parent + 1
    model.released(before)
    return seconds


def _changes(artefact: Artefact) -> Iterator[Delta]:
    """Deltas one upon another: keys whose weight changes, and keys that are new. Made without a model of each."""
    draw, content = np.random.default_rng(11), Content.parse(artefact.content)
    present = np.arange(artefact.rows)
    for parent in range(1, ROUNDS + 2):
        rows = draw.choice(present, CHANGED, replace=False)
        present = np.setdiff1d(present, rows)
        old = {artefact.key(int(row)): float(artefact.weight[row]) for row in rows}
        cities, skus = draw.integers(10**6, 10**7, NEW).tolist(), draw.integers(0, 10**6, NEW).tolist()
        new = {b"city*sku=city%d*sku%d" % pair for pair in zip(cities, skus, strict=True)}
        gone, come = _rows(old), _rows({key: float(draw.normal()) for key in [*old, *new]})
        before = content
        content = content - Content.of(**gone) + Content.of(**come)
        yield Delta.from_columns(
            **come,
            spec=artefact.spec,
            metrics={},
            parent=parent,
            parent_content=str(before),
            content=str(content),
        )


def _rows(weights: dict[bytes, float]) -> dict[str, np.ndarray]:
    keys = sorted(weights)
    return {
        "key_data": np.frombuffer(b"".join(keys), np.uint8),
        "key_offsets": np.cumsum([0, *map(len, keys)], dtype=np.int64),
        "weight": np.array([weights[key] for key in keys], np.float32),
        "variants": np.ones(len(keys), np.uint32),
        "rate": np.full(len(keys), 0.1, np.float32),
    }


def _timed(call: Callable[[], T]) -> tuple[T, float]:
    began = time.perf_counter()
    result = call()
    return result, time.perf_counter() - began


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
