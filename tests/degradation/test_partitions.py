"""docs/degradation.md, "The trainer": one of several partitions is lost, damaged, or the store with all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from model_store.store import Store
from tests.degradation.learning import LONG_S, Day, Learning
from tests.degradation.recovered import Recovered
from tests.degradation.system import COMPILE_S, Valkey
from tests.trainer.runs.running import NAME
from tests.waiting import eventually

ROUND = ("--reconcile", "1s", "--every", "1s")


class Pair:
    """Two trainers of one model, on folders of their own, and the streams that both read."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.valkey, self.day = folder, Valkey(folder), Day()
        self.trainers: list[Learning] = []
        self.spares = 0
        self.more()
        try:
            self.trainers += [self.start("1/2", "first"), self.start("2/2", "second")]
        except BaseException:
            self.end()
            raise

    def start(self, partition: str, name: str) -> Learning:
        (self.folder / name).mkdir()
        return Learning(self.folder / name, self.valkey.url, ["--partition", partition, *ROUND])

    def replace_second(self) -> None:
        """A spare for it, which has a folder of its own."""
        self.spares += 1
        self.trainers[1] = self.start("any/2", f"spare-{self.spares}")

    def more(self) -> None:
        with Store.open(self.valkey.url) as store:
            store.impressions(NAME).append(self.day.some())

    def has_learned_all(self) -> bool:
        """Whether each event is learned, by one of them, and merged: nothing waits, and the rounds go on."""
        statuses = [each.status() for each in self.trainers]
        return sum(each["events"] for each in statuses) == self.day.given and self.goes_on()

    def goes_on(self) -> bool:
        return not any(each.status()["waiting_s"] > 1.0 for each in self.trainers)

    def end(self) -> None:
        for each in self.trainers:
            each.kill()
        self.valkey.kill()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    pair = Pair(tmp_path_factory.mktemp("pair"))
    try:
        yield pair
    finally:
        pair.end()


@pytest.fixture
def pair(shared: Pair) -> Pair:
    eventually(shared.has_learned_all, "both have learned all", COMPILE_S)
    return shared


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_partition_loses_its_trainer(pair: Pair, recovered: Recovered) -> None:
    first, second = pair.trainers
    second.kill()
    pair.more()
    warning = "partition 2, which has no trainer: start one with --partition 2/2 or any/2"
    eventually(lambda: warning in first.said(), "a warning that names it", LONG_S)
    assert first.metric("ftrie_trainer_waiting_seconds", partition="1/2") > 0
    recovered.from_now()
    pair.replace_second()
    recovered.when(pair.has_learned_all, "a spare has taken it over, and all is learned", COMPILE_S)
    assert pair.trainers[1].status()["partition"] == "2/2"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_contribution_is_damaged(pair: Pair, recovered: Recovered) -> None:
    first, second = pair.trainers
    first.kill()
    with Store.open(pair.valkey.url) as store:
        eventually(lambda: second.status()["waiting_s"] > 1.0, "the other waits", LONG_S)
        waits = second.status()["round"]
        (part,) = store.client.scan_iter(f"ftrie:{{{NAME}}}:round:*:{waits}:2")
        (chunk,) = store.client.scan_iter(part + b":chunk:*")
        whole = store.client.get(chunk)
        store.client.set(chunk, whole[:-1] + bytes([whole[-1] ^ 1]))
        first.start()
        eventually(lambda: "is damaged: got" in first.said(), "it is named", COMPILE_S)
        assert part.decode() in first.said()
        recovered.from_now()
        store.client.delete(part)
    recovered.when(lambda: pair.goes_on() and first.status()["round"] > waits, "the round is merged", LONG_S)
    pair.more()
    eventually(pair.has_learned_all, "both go on", LONG_S)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_store_of_partitions_is_flushed(pair: Pair, recovered: Recovered) -> None:
    first, second = pair.trainers
    with Store.open(pair.valkey.url) as store:
        store.client.flushall()
        recovered.from_now()
    pair.more()
    recovered.when(pair.has_learned_all, "new events are learned, and merged", LONG_S)
    merged = first.status()["round"]  # every fifth round is kept in the store
    eventually(lambda: first.status()["round"] > merged + 6, "the state is in the store again", LONG_S)
    second.kill()
    pair.replace_second()
    pair.more()
    eventually(pair.has_learned_all, "a spare has taken over from the store", COMPILE_S)
