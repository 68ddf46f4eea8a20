"""docs/degradation.md, "What is published": a version for which there is no memory."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from ftrie.api.client import RankFailed
from model_store.artefact.artefact import Artefact
from tests.degradation.learning import OfStreams, ending
from tests.degradation.recovered import Recovered
from tests.degradation.system import COMPILE_S, Running
from tests.degradation.test_trainer_and_disk import checkpoints
from tests.degradation.whole_shop import WholeShop, whole_shop
from tests.server import shop
from tests.waiting import eventually

MIB = 1 << 20
ROWS = 2_000_000
SMALL, LARGE = 1, 2


def large(rows: int) -> Artefact:
    """The shop's spec over keys that no request has, about 20 bytes a key to serve it."""
    digits = np.arange(rows)[:, None] // 10 ** np.arange(8)[::-1] % 10 + ord("0")
    keys = np.concatenate([np.tile(np.frombuffer(b"age=", np.uint8), (rows, 1)), digits.astype(np.uint8)], 1)
    return Artefact.from_columns(
        key_data=keys.ravel(),
        key_offsets=np.arange(rows + 1, dtype=np.int64) * keys.shape[1],
        weight=np.ones(rows, np.float32),
        variants=np.full(rows, 3, np.uint32),
        rate=np.full(rows, 0.1, np.float32),
        spec=shop.spec(),
        metrics={},
    )


@contextmanager
def little_memory(pid: int, room: int) -> Iterator[None]:
    """The process may map so many bytes more than it has."""
    status = Path(f"/proc/{pid}/status").read_text()
    (size,) = (int(line.split()[1]) for line in status.splitlines() if line.startswith("VmSize"))
    before = resource.prlimit(pid, resource.RLIMIT_AS, (size * 1024 + room, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_AS, before)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeShop]:
    with whole_shop(tmp_path_factory.mktemp("memory")) as whole:
        whole.versions.publish(large(ROWS))
        yield whole


@pytest.fixture
def whole(shared: WholeShop) -> WholeShop:
    """The first version is served; the second is there, and large."""
    shared.versions.activate(SMALL)
    eventually(lambda: served(shared.running)[0] == SMALL, "the small version")
    return shared


@pytest.mark.slow
def test_no_memory_to_build_a_version(whole: WholeShop, recovered: Recovered) -> None:
    before = refused(whole)
    with little_memory(whole.running.process.pid, room=24 * MIB):
        whole.versions.activate(LARGE, force=True)  # it scores all candidates alike
        stays_at_the_first(whole, "version refused", before)
        assert "memory" in whole.running.model()["problem"]
    recovered.then(lambda: served(whole.running) == (LARGE, 0.0), "the version is served")


@pytest.mark.slow
def test_no_memory_in_a_worker(whole: WholeShop, recovered: Recovered) -> None:
    running = whole.running
    for _ in range(20):  # so that every thread is there which is needed to answer
        whole.awaits_whole_answer("u1")
        assert running.healthy()
    before = refused(whole)
    with little_memory(running.workers()[0], room=24 * MIB):
        whole.versions.activate(LARGE, force=True)  # it scores all candidates alike
        stays_at_the_first(whole, "parts refused", before)
        assert "memory" in running.status()["workers"][0]["refused"]["shop"]
    recovered.then(lambda: served(running) == (LARGE, 0.0), "the version is served")
    assert running.status()["workers"][0]["refused"] == {}


@pytest.mark.slow
def test_no_memory_to_read_a_request_or_to_answer_it(whole: WholeShop, recovered: Recovered) -> None:
    running = whole.running
    many = ["x" * 1500 + str(n) for n in range(9_900)]  # 15 MiB, and 75 MiB to read and answer them
    for _ in range(20):  # so that every thread is there which is needed to answer
        whole.awaits_whole_answer("u1")
    failed = []
    for room in range(2, 66, 4):  # so that each of what is needed is what there is no memory for
        with little_memory(running.workers()[0], room * MIB):
            try:
                running.client.rank(candidates=many, request_id="r-large")
            except RankFailed as error:
                failed.append(error)
    assert {(error.code.name, error.reason) for error in failed} == {("RESOURCE_EXHAUSTED", "OUT_OF_MEMORY")}
    assert not [text for text in map(str, failed) if "alloc" in text or "serialize" in text]
    eventually(lambda: bool(running.logs("rank failed")), "its line in the log")
    eventually(lambda: whole.metric("ftrie_errors_total", status="RESOURCE_EXHAUSTED") >= 1, "its count")
    recovered.then(lambda: running.client.rank(candidates=many[:1000], top_k=1).version == SMALL, "an answer")


@pytest.mark.slow
def test_no_memory_for_a_trainer(tmp_path: Path, recovered: Recovered) -> None:
    system = OfStreams(tmp_path, "--every", "1s")
    trainer = system.trainer
    with ending(system):
        eventually(system.has_learned_all, "all is served", COMPILE_S)
        eventually(lambda: bool(checkpoints(trainer.state)), "a checkpoint")
        # Its limit goes with it.
        resource.prlimit(trainer.process.pid, resource.RLIMIT_AS, (1 << 20, resource.RLIM_INFINITY))
        for _ in range(10):
            system.more(150)
        eventually(trainer.has_ended, "its end")
        assert trainer.process.returncode == 1
        assert "not enough memory" in trainer.said() and "Traceback" not in trainer.said()
        recovered.from_now()
        trainer.start()
        recovered.when(system.has_learned_all, "started again it has learned all", COMPILE_S)
        assert trainer.status()["events"] == system.day.given


def refused(whole: WholeShop) -> float:
    return whole.metric("ftrie_refused_versions_total", reason="memory")


def stays_at_the_first(whole: WholeShop, logged: str, before: float) -> None:
    """The version active is refused for want of memory, and the first answers, whole."""
    # Seen in the log, since /metrics and /healthz need some memory for a thread, too.
    eventually(lambda: bool(whole.running.logs(logged)), "its refusal in the log")
    eventually(lambda: refused(whole) > before, "its refusal")
    assert whole.ask().version == SMALL
    whole.awaits_whole_answer("u1")
    assert whole.running.healthy()


def served(running: Running) -> tuple[int, float]:
    answer = running.client.rank(candidates=["item-1"], variant="base")
    return answer.version, answer.items[0].score
