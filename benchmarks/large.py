"""Ten million keys from outside: from the store to answers, deltas until they are seen, memory of 1, 2 and 4 workers.

    python -m benchmarks.large [--keys N]

Nothing is pinned: supervisor and workers have all cores. Memory is that of all the server's processes, shared pages
counted once (PSS). The dict is Python's, the same keys as bytes with a float each, as one process would hold it.
`benchmarks.layers` takes the parts of this apart in process.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks import large_model
from benchmarks.changes import SCALE, deltas
from benchmarks.common import ROUNDS, Spread, report
from benchmarks.processes import Running, served
from ftrie.api.client import Client
from model_store.artefact.artefact import Artefact
from model_store.features.features import FeaturePlan
from model_store.store import Store
from model_store.versions.model_versions import ModelVersions

CHANGED, NEW = 9_000, 1_000
WORKERS = (1, 2, 4)
NAME = large_model.NAME
VISIBLE_S = 120.0
Row = tuple[str, str, object, object, object, str]


def row(what: str, unit: str, values: list[float], goal: str = "") -> Row:
    """A row of the table, with three significant digits."""
    spread = Spread.of(values)
    low, high = (spread.low, spread.high) if len(values) > 1 else ("", "")
    return what, unit, _short(spread.median), _short(low), _short(high), goal


def dict_bytes(artefact: Artefact) -> int:
    """What a dict of the keys and their weights takes, by the growth of this process."""
    gc.collect()
    before = _resident()
    weight_of = dict(zip(artefact.key_list(), artefact.weight.tolist(), strict=True))
    grown = _resident() - before
    assert len(weight_of) == artefact.rows
    return grown


def parts_bytes(artefact: Artefact) -> tuple[int, int]:
    """What the server's trie takes, and a buffer of its weights, variants and rates."""
    from server.model.columns import Catalogue
    from server.model.live_model import LiveModel

    catalogue = Catalogue.build(FeaturePlan.of(large_model.spec()), large_model.items()[:1])
    parts = LiveModel(NAME).load(1, "", artefact, catalogue)
    return parts.base.nbytes, parts.values.nbytes


def until_answered(client: Client, version: int) -> float:
    """Seconds from now until the server answers with the version. Raises RuntimeError after VISIBLE_S."""
    began = time.perf_counter()
    while client.rank(candidates=["item-1"], top_k=1).version != version:
        if time.perf_counter() - began > VISIBLE_S:
            raise RuntimeError(f"version {version} is not served after {VISIBLE_S:.0f} s")
        time.sleep(0.005)
    return time.perf_counter() - began


def memory_rows(artefact: Artefact) -> list[Row]:
    """A dict beside the trie and its values."""
    a_dict = dict_bytes(artefact) / 1e6
    trie, values = (size / 1e6 for size in parts_bytes(artefact))
    weights = artefact.rows * 4 / 1e6
    return [
        row("a dict of floats", "MB", [a_dict]),
        row("trie", "MB", [trie]),
        row("weights alone", "MB", [weights]),
        row("a buffer: weights, variants and rates", "MB", [values]),
        row("trie and weights, of the dict", "%", [100 * (trie + weights) / a_dict], "≤ 40 %"),
        row("trie and one buffer, of the dict", "%", [100 * (trie + values) / a_dict]),
        row("trie and both buffers, of the dict", "%", [100 * (trie + 2 * values) / a_dict]),
    ]


def followed_rows(versions: ModelVersions, client: Client, artefact: Artefact) -> list[Row]:
    """A running server: deltas, and another snapshot."""
    version = versions.active_or_fail()
    seen_s: list[float] = []
    for change in deltas(artefact, ROUNDS + 1, CHANGED, _new_keys):
        began = time.perf_counter()
        version = versions.publish_and_activate(replace(change, parent=version))
        until_answered(client, version)
        seen_s.append(time.perf_counter() - began)
    other = replace(
        artefact, weight=np.random.default_rng(9).normal(0, SCALE, artefact.rows).astype(np.float32)
    )
    began = time.perf_counter()
    version = versions.publish_and_activate(other)
    published_s = time.perf_counter() - began
    follow_s = until_answered(client, version)
    count = f"{CHANGED + NEW:,} keys"
    return [
        row(f"the first delta of {count}: publish to answer", "s", seen_s[:1]),
        row(f"later deltas of {count}: publish to answer", "s", seen_s[1:], "< 1 s"),
        row("another snapshot: encode and publish", "s", [published_s]),
        row("another snapshot: Redis to answer, running server", "s", [follow_s], "< 20 s"),
    ]


def measure(url: str, store: Store, artefact: Artefact) -> list[Row]:
    """The table but for the dict's part."""
    versions = store.model(NAME)
    began = time.perf_counter()
    versions.publish_and_activate(artefact)
    rows = [row("encode and publish", "s", [time.perf_counter() - began])]
    start_s: list[float] = []
    weighed: list[Row] = []
    for workers in WORKERS:
        began = time.perf_counter()
        with (
            served(NAME, "--store", url, workers=workers, pinned=False) as server,
            Client(server.address, timeout_s=30) as client,
        ):
            until_answered(client, versions.active_or_fail())
            start_s.append(time.perf_counter() - began)
            weighed += _weight(server, workers, "as started")
            if workers == 1:
                followed = followed_rows(versions, client, artefact)
                weighed += _weight(server, workers, "after deltas and a snapshot")
    spread = row("a new server, start of Python included: Redis to answer", "s", start_s, "< 20 s")
    return [*rows, spread, *followed, *weighed]


def _weight(server: Running, workers: int, when: str) -> list[Row]:
    """The memory of a server's processes, settled."""
    time.sleep(2.0)  # the builder's scratch is given back
    memory = server.memory()
    names = "a worker and its" if workers == 1 else f"{workers} workers and their"
    return [
        row(f"{names} supervisor, {when}", "MB", [sum(each.whole for each in memory) / 1e6]),
        row("· the supervisor's own", "MB", [memory[0].own / 1e6]),
        row("· each worker's own", "MB", [each.own / 1e6 for each in memory[1:]]),
    ]


def _new_keys(number: int) -> list[bytes]:
    return [b"city*sku=city%d*sku%d" % (10_000 + number, sku) for sku in range(NEW)]


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def _short(value: float | str) -> object:
    return value if isinstance(value, str) else f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=large_model.KEYS)
    artefact = large_model.artefact(parser.parse_args().keys)
    rows = memory_rows(artefact)
    with tempfile.TemporaryDirectory(prefix="ftrie-") as folder:
        url = f"embedded:{folder}/store"
        with Store.open(url, timeout_s=60.0) as store:
            store.records.put_items(large_model.items())
            rows += measure(url, store, artefact)
    title = (
        f"{artefact.rows:,} keys, {large_model.ITEMS:,} items; deltas: median of {ROUNDS}, lowest and highest"
    )
    report("large", title, ("what", "unit", "value", "low", "high", "goal"), rows)


if __name__ == "__main__":
    main()
