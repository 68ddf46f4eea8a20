"""The client of a server for asyncio: `ftrie.client.client.Client` with coroutines, by the same messages.

async with Client("127.0.0.1:50051") as client:
    ranking = await client.rank("ads", cookie="u1", candidates=["a", "b"], context={"device": "mobile"}, top_k=1)
    await client.feedback("ads", [Feedback(ranking.request_id, ranking.items[0].id)])  # once it was clicked
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self, Unpack

import grpc

from ctr.v1.ranking_pb2 import ExplainRequest
from ftrie.client.access import OPEN, Access, CallFailed
from ftrie.client.balance import Balance
from ftrie.client.calls import DEFAULT_TIMEOUT_S, Calls, RankFailed
from ftrie.client.feedback import Feedback, Report, ReportFailed
from ftrie.client.feedback import request_of as report_of
from ftrie.client.messages import (
    AnyOf,
    Between,
    Explanation,
    NoneOf,
    Options,
    Ranking,
    Thompson,
    UpperConfidenceBound,
    request_of,
)

__all__ = [
    "AnyOf", "Between", "Client", "Feedback", "NoneOf", "RankFailed", "ReportFailed", "Thompson",
    "UpperConfidenceBound",
]  # fmt: skip


class Client:
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
        """Arguments and errors as for `ftrie.client.client.Client`. Make it in a coroutine of the loop that uses it."""
        self.address = address
        self._channel = access.aio_channel(address, balance=balance)
        self._calls = Calls(self._channel, timeout_s, access, balance)

    async def rank(
        self, model: str = "", *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> Ranking:
        """Rank candidates. Keywords and errors as for `ftrie.client.client.Client.rank`."""
        request, calls = request_of(model, **options), self._calls
        return Ranking.of(await self._call(calls.rank, request, calls.keywords(timeout_s, request.cookie)))

    async def explain(
        self, model: str = "", *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> Explanation:
        """Rank at most 100 candidates, with the keys that make up each score. Arguments and errors as in `rank`."""
        request, calls = ExplainRequest(request=request_of(model, **options)), self._calls
        keywords = calls.keywords(timeout_s, request.request.cookie)
        return Explanation.of(await self._call(calls.explain, request, keywords))

    async def feedback(
        self, model: str, events: Iterable[Feedback], *, timeout_s: float | None = None
    ) -> Report:
        """Report 1 to 1,000 clicks and conversions. Errors as for `ftrie.client.client.Client.feedback`."""
        request, calls = report_of(model, events), self._calls
        return Report.of(await self._call(calls.report, request, calls.keywords(timeout_s), ReportFailed))

    report = feedback  # its name before

    async def close(self) -> None:
        """Close the connection; calls that are under way end with RankFailed or ReportFailed."""
        await self._channel.close(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _call(
        self, method: Any, request: Any, keywords: dict[str, Any], failed: type[CallFailed] = RankFailed
    ) -> Any:
        try:
            return await method(request, **keywords)
        except grpc.RpcError as error:
            raise failed.of(self.address, error) from error
