"""Calls that go on while something is broken, and what came of them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import grpc
import pytest

from ctr.v1.ranking_pb2 import RankRequest, RankResponse
from ftrie.api.access import Balance
from ftrie.api.client import METHOD, Client, RankFailed
from ftrie.api.messages import Ranking
from tests.server import shop
from tests.waiting import eventually

CALLERS = 2
PAUSE_S = 0.05
"""Between a thread's calls, or they would take the processor from whom they wait for."""
REQUEST = RankRequest(item_ids=list(shop.ITEMS), variant="base")
EXPECTED = {item: shop.expected_score(fields, 0) for item, fields in shop.ITEMS.items()}


class Load:
    """Calls one after another by a few threads, each on a connection of its own.

    A new connection falls to any worker, an old one to its own.
    """

    def __init__(self, address: str, threads: int = CALLERS, timeout_s: float = 10.0) -> None:
        self._address, self._timeout_s = address, timeout_s
        self._stop = threading.Event()
        self.answers: Counter[str] = Counter()
        self.wrong = 0
        self._threads = [threading.Thread(target=self._run) for _ in range(threads)]

    def _run(self) -> None:
        while not self._stop.wait(PAUSE_S):
            try:
                answer = self._call()
            except (grpc.RpcError, RankFailed) as error:
                code = error.code if isinstance(error, RankFailed) else error.code()
                self.answers[code.name] += 1
                continue
            self.answers["OK"] += 1
            self.wrong += {item.id: item.score for item in answer.items} != pytest.approx(EXPECTED)

    def _call(self) -> RankResponse | Ranking:
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(self._address, options=options) as channel:
            call = channel.unary_unary(METHOD, RankRequest.SerializeToString, RankResponse.FromString)
            answer: RankResponse = call(REQUEST, timeout=self._timeout_s, wait_for_ready=True)
            return answer

    @contextmanager
    def running(self) -> Iterator[Load]:
        """While calls are made; waits for some before the block. None is made any more after it."""
        for thread in self._threads:
            thread.start()
        try:
            self.some_more()
            yield self
        finally:
            self.stop()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def some_more(self, calls: int = 20) -> None:
        wanted = self.answers["OK"] + calls
        eventually(lambda: self.answers["OK"] >= wanted, f"{calls} more answers")

    @property
    def failed(self) -> int:
        return sum(self.answers.values()) - self.answers["OK"]


class BalancedLoad(Load):
    """Calls by one client of several servers, for ever new users."""

    def __init__(self, addresses: list[str], balance: Balance) -> None:
        super().__init__(",".join(addresses))
        self._client = Client(self._address, timeout_s=self._timeout_s, balance=balance)
        self._users = count()

    def stop(self) -> None:
        super().stop()
        self._client.close()

    def _call(self) -> Ranking:
        cookie = f"balanced-{next(self._users)}"
        return self._client.rank(cookie=cookie, candidates=list(shop.ITEMS), variant="base")
