"""docs/degradation.md, "Histories": the store, a record or the trainer that writes them is away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ftrie.api.messages import Ranking
from ftrie.cli import run
from model_store.keys import history_key
from model_store.store import Store
from tests.degradation.recovered import Recovered
from tests.degradation.system import COMPILE_S, Running, Valkey, serving
from tests.integration.test_histories import training
from tests.waiting import eventually

SPEC = """
[model]
name = "shop"
[input]
label = "click"
timestamp = "ts"
cookie = "cookie"
item = "item"
request = "request"
[fields]
item = { side = "item" }
brand = { side = "item" }
taste = { side = "user", optional = true }
seen_before = { side = "item", kind = "number", bucket = [1], history = "seen", measure = "count" }
[join]
window = "1h"
[learner]
l1 = 0.0
"""
ITEM = "i0"
TASTES = ("sweet", "salty")


class Histories:
    """A trainer that writes histories, and a server whose model tells items that the user has seen from others."""

    def __init__(self, folder: Path, valkey: Valkey, stack: ExitStack) -> None:
        self.valkey = valkey
        self._spec, self._folder, self._stack = folder / "shop.toml", folder, stack
        self._spec.write_text(SPEC)
        log = folder / "log.csv"
        # The item is clicked by those who see it for the first time, and by nobody else.
        rows = [f"r{n},{n},u{n // 4},i0,b0,{int(n % 4 == 0)},{TASTES[n % 8 < 4]}" for n in range(400)]
        log.write_text("\n".join(["request,ts,cookie,item,brand,click,taste", *rows]) + "\n")
        with Store.open(valkey.url) as store:
            store.records.put_items([(ITEM, {"brand": "b0"})])
        assert run(["train", str(self._spec), str(log), "--store", valkey.url, "--activate"]) == 0
        self.start_trainer()
        flags = ("--impressions", "store", "--user-ttl", "0.2", "--store-budget", "150")
        self.running: Running = stack.enter_context(serving(valkey.url, folder, *flags))
        self.running.await_ready()

    def start_trainer(self) -> None:
        flags = ("--no-publish", "--every", "1s")
        started = training(self._spec, self.valkey.url, self._folder / "trainer", *flags)
        self._trainer = self._stack.enter_context(started)

    def stop_trainer(self) -> None:
        self._trainer.kill()
        self._trainer.wait()

    def ask(self, cookie: str) -> Ranking:
        """An answer with the item, which the user sees."""
        return self.running.client.rank("shop", cookie=cookie, candidates=[ITEM])

    def is_known(self, answer: Ranking) -> bool:
        """Whether the answer was scored as for a user who has seen the item: a whole unit lower than for the first."""
        return answer.items[0].score < self.fresh() - 1.0

    def fresh(self, **user: str) -> float:
        """The item's score for a user without a history."""
        return self.running.client.rank("shop", user=user, candidates=[ITEM]).items[0].score

    def has_seen_one(self, cookie: str) -> None:
        """Let the user see the item, and wait until the trainer has written it and the server has read it."""
        self.ask(cookie)
        eventually(lambda: self.record(cookie) is not None, "the trainer's record", COMPILE_S)
        eventually(lambda: self.is_known(self.ask(cookie)), "an answer with it")

    def record(self, cookie: str) -> bytes | None:
        with Store.open(self.valkey.url) as store:
            found: bytes | None = store.client.get(history_key("shop", cookie.encode()))
        return found


@pytest.fixture(scope="module")
def histories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Histories]:
    """Each test has users of its own, and leaves the trainer running."""
    folder = tmp_path_factory.mktemp("histories")
    valkey = Valkey(folder)
    try:
        with ExitStack() as stack:
            yield Histories(folder, valkey, stack)
    finally:
        valkey.go_on()
        valkey.kill()


def degraded(answer: Ranking) -> list[str]:
    return [str(each) for each in answer.degraded]


@pytest.mark.slow
def test_store_of_histories_stalls(histories: Histories, recovered: Recovered) -> None:
    histories.has_seen_one("ann")
    histories.valkey.stall()

    def says_so() -> bool:
        answer = histories.ask("ann")
        assert histories.is_known(answer)
        return any(each.startswith("user_features: stale") for each in degraded(answer))

    eventually(says_so, "an answer that says so")
    eventually(lambda: histories.running.metric("ftrie_store_away", model="shop") == 1, "ftrie_store_away")
    metric = {"part": "user_features"}
    eventually(lambda: histories.running.metric("ftrie_degraded_total", **metric) > 0, "the count")
    nobody = histories.ask("bob")
    assert any(each.startswith("user_features: ") for each in degraded(nobody))
    assert not histories.is_known(nobody)
    assert histories.running.healthy()
    histories.valkey.go_on()
    recovered.then(lambda: not histories.ask("ann").degraded, "answers are whole")
    recovered.when(lambda: histories.is_known(histories.ask("bob")), "what was shown meanwhile counts")


@pytest.mark.slow
def test_history_is_damaged(histories: Histories, recovered: Recovered) -> None:
    users = ("cat", "dan")
    with Store.open(histories.valkey.url) as store:
        store.records.put_users([(user, {"taste": "sweet"}) for user in users])
        for user in users:
            histories.has_seen_one(user)
        histories.stop_trainer()
        store.client.set(history_key("shop", b"cat"), b"no history")
        store.client.delete(history_key("shop", b"dan"))
        store.client.lpush(history_key("shop", b"dan"), "no STRING")

    def says_so(user: str) -> bool:
        answer = histories.ask(user)
        if not answer.degraded:
            return False  # the record that was read before is fresh for a second
        (reason,) = degraded(answer)
        assert reason.startswith("user_history: ")
        fresh = histories.fresh(taste="sweet")  # all but the history
        assert answer.items[0].score == pytest.approx(fresh)
        assert 0.01 < abs(fresh - histories.fresh()) < 0.9
        return True

    for user in users:
        eventually(lambda user=user: says_so(user), "an answer that says so")
    assert histories.running.healthy()
    metric = {"part": "user_history"}
    eventually(lambda: histories.running.metric("ftrie_degraded_total", **metric) > 0, "the metric")
    recovered.from_now()
    histories.start_trainer()

    def is_whole() -> bool:
        answers = [histories.ask(user) for user in users]
        return all(not answer.degraded and histories.is_known(answer) for answer in answers)

    recovered.when(is_whole, "the trainer has written it again", COMPILE_S)


@pytest.mark.slow
def test_trainer_of_histories_is_killed(histories: Histories, recovered: Recovered) -> None:
    histories.has_seen_one("eve")
    histories.stop_trainer()
    before = histories.record("eve")
    assert not histories.ask("fay").degraded
    old = histories.ask("eve")
    assert not old.degraded
    assert histories.is_known(old)
    assert not histories.is_known(histories.ask("fay"))
    assert (histories.record("eve"), histories.record("fay")) == (before, None)
    recovered.from_now()
    histories.start_trainer()
    what = "what was shown meanwhile counts"
    recovered.when(lambda: histories.is_known(histories.ask("fay")), what, COMPILE_S)
