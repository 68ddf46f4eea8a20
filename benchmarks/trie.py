"""FlatTrie beside a dict, marisa-trie and pygtrie: memory, build, look-up and prefix look-up over the same keys.

The keys are those of `benchmarks.rank_model`. pygtrie, the slowest to build, gets each tenth of them.

    python -m benchmarks.trie [--json]
"""

from __future__ import annotations

import gc
import json
import random
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import marisa_trie
import numpy as np
import pygtrie

from benchmarks import rank_model as shop
from benchmarks.common import Spread, alternate, report
from model_store.trie.trie import FlatTrie

NEEDS = ("marisa_trie",)
COLUMNS = ("structure", "keys", "bytes a key", "build ns a key", "get ns", "get ns, many", "prefix ns")
PROBES = 20_000
PYGTRIE_STEP = 10


@dataclass(frozen=True)
class Contestant:
    """A structure over `keys` in its own form, and the operations that it has."""

    keys: Sequence[Any]
    build: Callable[[Sequence[Any]], Any]
    get: Callable[[Any], Callable[[Any], Any]]
    bytes_of: Callable[[Any], int] | None = None  # None: what building allocates
    get_many: Callable[[Any, Sequence[Any]], Any] | None = None
    has_prefix: Callable[[Any], Callable[[Any], Any]] | None = None


def main() -> None:
    warm = FlatTrie.of([b"a", b"b"])
    _flat_get_many(warm, [b"a"])
    warm.has_prefix(b"a")
    rows = measure(_keys())
    if "--json" in sys.argv:
        print(json.dumps([dict(zip(COLUMNS, row, strict=True)) for row in rows], indent=2))
    else:
        report("trie", f"{rows[0][1]:,} keys, medians of five; keys probed in random order", COLUMNS, rows)


def measure(keys: Sequence[bytes]) -> list[tuple[Any, ...]]:
    """A row of COLUMNS for each structure; `keys` sorted and unique."""
    contestants = _contestants(keys)
    built = alternate({name: _timed_build(c) for name, c in contestants.items()})
    rows = []
    for name, contestant in contestants.items():
        structure, allocated = _traced_build(contestant)
        size = contestant.bytes_of(structure) if contestant.bytes_of else allocated
        times = alternate(_probes(contestant, structure))
        per_key = (size / len(contestant.keys), _median(built[name]) / len(contestant.keys) * 1e9)
        probed = [
            _median(times[kind]) * 1e9 / PROBES if kind in times else None
            for kind in ("get", "many", "prefix")
        ]
        shown = [None if number is None else round(number, 1) for number in (*per_key, *probed)]
        rows.append((name, len(contestant.keys), *shown))
    return rows


def _contestants(keys: Sequence[bytes]) -> dict[str, Contestant]:
    texts = [key.decode("latin-1") for key in keys]
    return {
        "FlatTrie": Contestant(
            keys,
            lambda keys: FlatTrie.of(list(keys)),
            lambda trie: trie.get,
            lambda trie: trie.nbytes,
            _flat_get_many,
            lambda trie: trie.has_prefix,
        ),
        "dict": Contestant(
            keys, lambda keys: {key: slot for slot, key in enumerate(keys)}, lambda d: d.get, _dict_bytes
        ),
        "marisa_trie.Trie": Contestant(
            texts,
            marisa_trie.Trie,
            lambda trie: trie.get,
            lambda trie: len(trie.tobytes()),
            has_prefix=_has_prefix,
        ),
        "marisa_trie.BytesTrie": Contestant(
            texts,
            lambda keys: marisa_trie.BytesTrie(
                (key, slot.to_bytes(4, "little")) for slot, key in enumerate(keys)
            ),
            lambda trie: trie.get,
            lambda trie: len(trie.tobytes()),
            has_prefix=_has_prefix,
        ),
        "pygtrie.CharTrie": Contestant(
            texts[::PYGTRIE_STEP],
            lambda keys: pygtrie.CharTrie((key, slot) for slot, key in enumerate(keys)),
            lambda trie: trie.get,
            has_prefix=lambda trie: trie.has_node,
        ),
    }


def _keys() -> list[bytes]:
    artefact = shop.artefact()
    data, offsets = artefact.key_data.tobytes(), artefact.key_offsets.tolist()
    return [data[begin:end] for begin, end in pairwise(offsets)]


def _flat_get_many(trie: FlatTrie, keys: Sequence[bytes]) -> Any:
    offsets = np.zeros(len(keys) + 1, np.int64)
    np.cumsum([len(key) for key in keys], out=offsets[1:])
    return trie.get_many(np.frombuffer(bytearray(b"".join(keys)), np.uint8), offsets)


def _dict_bytes(found: dict[bytes, int]) -> int:
    """The table, the key objects and the integers that Python does not keep anyway."""
    return (
        sys.getsizeof(found)
        + sum(map(sys.getsizeof, found))
        + sum(sys.getsizeof(v) for v in found.values() if v > 256)
    )


def _timed_build(contestant: Contestant) -> Callable[[], float]:
    def run() -> float:
        gc.collect()
        began = time.perf_counter()
        contestant.build(contestant.keys)
        return time.perf_counter() - began

    return run


def _traced_build(contestant: Contestant) -> tuple[Any, int]:
    if contestant.bytes_of is not None:
        return contestant.build(contestant.keys), 0
    tracemalloc.start()
    structure = contestant.build(contestant.keys)
    allocated, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return structure, allocated


def _probes(contestant: Contestant, structure: Any) -> dict[str, Callable[[], float]]:
    probes = random.Random(11).choices(contestant.keys, k=PROBES)
    runs = {"get": _timed(contestant.get(structure), probes)}
    if contestant.get_many is not None:
        many, all_at_once = contestant.get_many, [probes]
        runs["many"] = _timed(lambda keys: many(structure, keys), all_at_once)
    if contestant.has_prefix is not None:
        runs["prefix"] = _timed(contestant.has_prefix(structure), [key[: len(key) // 2] for key in probes])
    return runs


def _has_prefix(trie: Any) -> Callable[[str], bool]:
    """Whether marisa_trie holds a key under a prefix, by its first key."""
    keys_under = trie.iterkeys
    return lambda prefix: next(keys_under(prefix), None) is not None


def _timed(call: Callable[[Any], Any], arguments: Sequence[Any]) -> Callable[[], float]:
    def run() -> float:
        began = time.perf_counter()
        for argument in arguments:
            call(argument)
        return time.perf_counter() - began

    return run


def _median(values: Sequence[float]) -> float:
    return Spread.of(values).median


if __name__ == "__main__":
    main()
