"""A running system that tests break one after another, each mending what it broke; and what it must answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import count
from pathlib import Path

import pytest

from ftrie.api.messages import Ranking
from model_store.store import Store
from tests.degradation.system import Running, Valkey, serving
from tests.server import shop
from tests.waiting import eventually

CANDIDATES = list(shop.ITEMS)
SET = "front page"
BUDGET_MS = 150


class WholeShop:
    """One store, one server, and what each version answers. Every answer that is asked for here is checked."""

    def __init__(self, running: Running, store: Store) -> None:
        self.running, self.store = running, store
        self.valkey: Valkey
        """The store's only server, unless it has several."""
        self.client = running.client
        self.versions = store.model(shop.NAME)
        self.users = dict(shop.USERS)
        self._seeds: defaultdict[int, set[int]] = defaultdict(set)
        self._fresh = count()
        self._other = count(100)

    def fill(self, seed: int) -> int:
        """Everything from the start, and the model `seed` active. Returns its version."""
        version = shop.fill(self.store, seed)
        self._seeds[version].add(seed)
        return version

    def fill_with_another_model(self) -> int:
        return self.fill(next(self._other))

    def publish(self, seed: int) -> int:
        version = shop.publish(self.store, seed)
        self.answers_as(version, seed)
        return version

    def answers_as(self, version: int, seed: int) -> None:
        """From now on this version is known: its scores are those of the model `seed`."""
        self._seeds[version].add(seed)

    def new_name(self) -> str:
        return f"new-{next(self._fresh)}"

    def new_user(self) -> str:
        cookie = self.new_name()
        self.users[cookie] = {"age": "30", "likes": '["red","blue"]'}
        self.store.records.put_users([(cookie, self.users[cookie])])
        return cookie

    def scores(self, item: str, version: int) -> list[float]:
        """What an item may score without any user: an emptied store gives a number to two models."""
        return [expected((), seed)[item] for seed in self._seeds[version]]

    def ask(self, cookie: str = "", known: Mapping[str, str] | None = None) -> Ranking:
        """All items for a user. Every score is that of the version named, over what the answer says it has read.

        known: what the store has of the user, if that is not what was written here.
        """
        answer = self.client.rank(cookie=cookie, candidates=CANDIDATES, variant="base")
        unread = any(str(reason).startswith("user_features: ") for reason in answer.degraded)
        stale = any(str(reason).startswith("user_features: stale") for reason in answer.degraded)
        if known is None:
            known = {} if unread and not stale else self.users.get(cookie, {})
        user = tuple(sorted({**known, **({"device": cookie} if cookie else {})}.items()))
        scores = {item.id: item.score for item in answer.items}
        possible = [expected(user, seed) for seed in self._seeds[answer.version]]
        assert any(scores == pytest.approx(each) for each in possible), (answer, possible)
        return answer

    def degraded(self, cookie: str = "") -> tuple[str, ...]:
        return tuple(map(str, self.ask(cookie).degraded))

    def awaits_whole_answer(self, cookie: str = "") -> None:
        """An answer lacks nothing. On a loaded machine a first read may take longer than its budget: asked again."""
        eventually(lambda: self.degraded(cookie) == (), "a whole answer")

    def serves(self, version: int) -> bool:
        answer = self.ask()
        return answer.version == version and answer.degraded == ()

    def follows(self) -> bool:
        model = self.running.model()
        return not model["problem"] and not model["store_away"] and model["source"] == "store"

    def metric(self, name: str, **labels: str) -> float:
        return self.running.metric(name, **labels)

    def is_whole(self) -> bool:
        return self.running.healthy() and self.follows() and self.degraded(self.new_user()) == ()


@cache
def expected(user: tuple[tuple[str, str], ...], seed: int) -> dict[str, float]:
    return {
        item: shop.expected_score({**fields, **dict(user)}, 0, seed) for item, fields in shop.ITEMS.items()
    }


@contextmanager
def whole_shop(folder: Path, *flags: str) -> Iterator[WholeShop]:
    with ExitStack() as last:
        valkey = Valkey(folder)
        last.callback(valkey.kill)
        whole = last.enter_context(shop_on(valkey.url, folder, *flags))
        whole.valkey = valkey
        yield whole


@contextmanager
def shop_on(url: str, folder: Path, *flags: str) -> Iterator[WholeShop]:
    """A shop that serves the model 1 from this empty store."""
    flags = ("--store-budget", str(BUDGET_MS), "--user-ttl", "0.2", *flags)
    with Store.open(url) as store:
        version = shop.fill(store)
        with serving(url, folder, *flags) as running:
            running.await_ready()
            whole = WholeShop(running, store)
            whole.answers_as(version, 1)
            yield whole


class SharedShop:
    """One shop for many tests, and another one after a test that left it broken."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self._folder, self._flags = folder, flags
        self._starts = count()
        self._open = ExitStack()
        self._whole: WholeShop | None = None

    def get(self) -> WholeShop:
        if self._whole is None:
            folder = self._folder / str(next(self._starts))
            folder.mkdir()
            self._whole = self._open.enter_context(whole_shop(folder, *self._flags))
        return self._whole

    def check(self) -> None:
        """See that a test has mended what it broke; else start over."""
        assert self._whole is not None
        try:
            eventually(self._whole.is_whole, "a whole shop after the test", within_s=10.0)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._whole is not None:
            self._whole.valkey.go_on()
        self._whole = None
        self._open.close()
        self._open = ExitStack()
