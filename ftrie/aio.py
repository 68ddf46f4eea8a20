"""The client of a server for asyncio: `ftrie.api.client.Client` with coroutines, by the same messages.

async with Client("127.0.0.1:50051") as client:
    ranking = await client.rank("ads", cookie="u1", candidates=["a", "b"], context={"device": "mobile"}, top_k=1)
    await client.feedback("ads", [Feedback(ranking.request_id, ranking.items[0].id)])  # once it was clicked
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Self, TypeVar, Unpack

import grpc

from ftrie.api.access import OPEN, Access, Balance
from ftrie.api.client import DEFAULT_TIMEOUT_S, Calls, PreparedCall, RankFailed
from ftrie.api.feedback import Feedback, Report, ReportFailed
from ftrie.api.messages import (
    AnyOf,
    Between,
    Explanation,
    NoneOf,
    Options,
    Ranking,
    Thompson,
    UpperConfidenceBound,
)

__all__ = [
    "AnyOf", "Between", "Client", "Feedback", "NoneOf", "RankFailed", "ReportFailed", "Thompson",
    "UpperConfidenceBound",
]  # fmt: skip

T = TypeVar("T")


class Client(Calls):
    """A connection to one server, or to several that share the calls. For one event loop; any number of its tasks.

    A task that is cancelled cancels its call on the server.
    """

    def __init__(
        self,
        address: str,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        access: Access = OPEN,
        balance: Balance | None = None,
    ) -> None:
        """Arguments and errors as for `ftrie.api.client.Client`. Make it in a coroutine of the loop that uses it."""
        super().__init__(address, access.aio_channel(address, balance=balance), timeout_s, access, balance)

    async def rank(
        self, model: str = "", *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> Ranking:
        """Rank candidates. Keywords and errors as for `ftrie.api.client.Client.rank`."""
        return await self._made(self._rank(model, timeout_s, options))

    async def explain(
        self, model: str = "", *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> Explanation:
        """Rank at most 100 candidates, with the keys that make up each score. Arguments and errors as in `rank`."""
        return await self._made(self._explain(model, timeout_s, options))

    async def feedback(
        self, model: str, events: Iterable[Feedback], *, timeout_s: float | None = None
    ) -> Report:
        """Report 1 to 1,000 clicks and conversions. Errors as for `ftrie.api.client.Client.feedback`."""
        return await self._made(self._report(model, timeout_s, events))

    report = feedback  # its name before

    async def close(self) -> None:
        """Close the connection; calls that are under way end with RankFailed or ReportFailed."""
        # No grace: what is under way is cancelled.
        await self._channel.close(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _made(self, call: PreparedCall[T]) -> T:
        try:
            return call.read(await call.method(call.request, **call.keywords))
        except grpc.RpcError as error:
            raise call.failed.of(self.address, error) from error
