"""docs/degradation.md, "What is published": a version for which there is no memory."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from model_store.artefact import Artefact
from model_store.store import Store
from tests.degradation.recovered import Recovered
from tests.degradation.system import Running, Valkey, eventually, serving
from tests.degradation.whole_shop import WholeShop
from tests.server import shop

ROWS = 3_000_000
ROOM_BYTES = 24 << 20


def large() -> Artefact:
    """The shop's spec over keys that no request has: its weights alone are 12 MB, its trie is more."""
    keys = np.char.encode(np.char.add("age=", np.char.zfill(np.arange(ROWS).astype(str), 8)))
    return Artefact.from_columns(
        key_data=np.frombuffer(keys.tobytes(), np.uint8).copy(),
        key_offsets=np.arange(ROWS + 1, dtype=np.int64) * keys.dtype.itemsize,
        weight=np.ones(ROWS, np.float32),
        variants=np.full(ROWS, 3, np.uint32),
        rate=np.full(ROWS, 0.1, np.float32),
        spec=shop.spec(),
        metrics={},
    )


@contextmanager
def little_memory(pid: int) -> Iterator[None]:
    """The process may map hardly more than it has."""
    status = Path(f"/proc/{pid}/status").read_text()
    (size,) = (int(line.split()[1]) for line in status.splitlines() if line.startswith("VmSize"))
    before = resource.prlimit(pid, resource.RLIMIT_AS, (size * 1024 + ROOM_BYTES, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_AS, before)


def test_no_memory_for_a_version(valkey: Valkey, tmp_path: Path, recovered: Recovered) -> None:
    with serving(valkey.url, tmp_path) as running, Store.open(valkey.url) as store:
        running.await_ready()
        whole = WholeShop(valkey, running, store)
        whole.answers_as(1, seed=1)
        version = whole.versions.publish(large())
        with little_memory(running.process.pid):
            whole.versions.activate(version)
            eventually(
                lambda: running.metric("ftrie_refused_versions_total", reason="memory") > 0, "its refusal"
            )
            assert whole.ask().version == 1
            assert whole.degraded("u1") == ()
            assert running.healthy()
        recovered.from_now()
        recovered.when(lambda: served(running) == (version, 0.0), "the version is served")


def served(running: Running) -> tuple[int, float]:
    """Which version answers, and an item's score."""
    answer = running.client.rank(candidates=["item-1"], variant="base")
    return answer.version, answer.items[0].score
