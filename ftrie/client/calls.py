"""What the clients of threads and of asyncio share: the RPCs of a channel, and how each call is made."""

from __future__ import annotations

from typing import Any

from ctr.v1.feedback_pb2 import ReportRequest, ReportResponse
from ctr.v1.ranking_pb2 import ExplainRequest, ExplainResponse, RankRequest, RankResponse
from ftrie.client.access import Access, CallFailed
from ftrie.client.balance import Balance, cookie_metadata

METHOD = "/ctr.v1.RankingService/Rank"
EXPLAIN = "/ctr.v1.RankingService/Explain"
REPORT = "/ctr.v1.FeedbackService/Report"
DEFAULT_TIMEOUT_S = 5.0


class RankFailed(CallFailed):
    """A Rank or Explain call failed."""


class Calls:
    """The RPCs of one channel, of `grpc` or of `grpc.aio`. Immutable; may be shared by all threads."""

    def __init__(self, channel: Any, timeout_s: float, access: Access, balance: Balance | None) -> None:
        """`timeout_s`: of calls that name none. `access` and `balance`: those that the channel was opened with."""
        self._timeout_s = timeout_s
        self._metadata = access.metadata()
        self._by_cookie = balance == "cookie"
        self.rank = channel.unary_unary(
            METHOD,
            request_serializer=RankRequest.SerializeToString,
            response_deserializer=RankResponse.FromString,
        )
        self.explain = channel.unary_unary(
            EXPLAIN,
            request_serializer=ExplainRequest.SerializeToString,
            response_deserializer=ExplainResponse.FromString,
        )
        self.report = channel.unary_unary(
            REPORT,
            request_serializer=ReportRequest.SerializeToString,
            response_deserializer=ReportResponse.FromString,
        )

    def keywords(self, timeout_s: float | None, cookie: str = "") -> dict[str, Any]:
        """The keywords of one call: its time limit, the token, and the header that chooses a user's server."""
        metadata = self._metadata + cookie_metadata(cookie) if self._by_cookie else self._metadata
        return {"timeout": self._timeout_s if timeout_s is None else timeout_s, "metadata": metadata}
