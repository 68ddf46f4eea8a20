"""Calls to rank, to several servers in turn: one that fails is counted, and the next is asked, until patience ends.

Nothing here knows what a visitor does with an answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ftrie.access import OPEN, Access
from ftrie.answers import Ranking
from ftrie.asking import Exploration
from ftrie.client import Client, RankFailed
from ftrie.simulation.market import Market
from ftrie.simulation.visits import Visit
from model_store.backoff import Backoff

PATIENCE_S = 5.0
CALL_S = 2.0
FIRST_WAIT_S, LONGEST_WAIT_S = 0.02, 0.5


@dataclass(frozen=True)
class Asked:
    """What all requests have in common. run: in every request_id, so that one run's are not another's."""

    run: str
    top_k: int
    exploration: Exploration | None = None


@dataclass(frozen=True)
class Answered:
    """An answer, and which server gave it: its place among the addresses."""

    ranking: Ranking
    server: int


class Callers:
    """Connections to all servers. Any thread may call; `close` ends it."""

    def __init__(
        self, addresses: Sequence[str], asked: Asked, failed: Callable[[str], None], access: Access = OPEN
    ) -> None:
        """`failed` is told the gRPC status of each call that fails."""
        self._clients = [Client(address, CALL_S, access) for address in addresses]
        self._asked = asked
        self._failed = failed

    def rank(
        self, market: Market, visit: Visit, model: str, *, stopped: Callable[[], bool]
    ) -> Answered | None:
        """The first answer for a visit; None where none came in time, or `stopped` says to leave off."""
        backoff = Backoff(FIRST_WAIT_S, LONGEST_WAIT_S)
        deadline = time.monotonic() + PATIENCE_S
        server = visit.number
        while not stopped():
            server = server % len(self._clients)
            try:
                return Answered(self._call(self._clients[server], market, visit, model), server)
            except RankFailed as error:
                self._failed(error.code.name)
            server += 1
            wait_s = backoff.failed()
            if time.monotonic() + wait_s > deadline:
                return None
            time.sleep(wait_s)
        return None

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients:
            client.close()

    def _call(self, client: Client, market: Market, visit: Visit, model: str) -> Ranking:
        return client.rank(
            model,
            # The same whenever the visit is asked for again: a server may have answered, and logged, a call that
            # failed on the way back.
            request_id=f"{self._asked.run}-{visit.number}",
            cookie=market.cookies[visit.user],
            candidates=[market.skus[item] for item in visit.candidates],
            context=visit.context,
            top_k=self._asked.top_k,
            exploration=self._asked.exploration,
        )
