"""The Python client of a server: plain values in, frozen dataclasses out.

with Client("127.0.0.1:50051") as client:
    ranking = client.rank("ads", cookie="u1", candidates=["a", "b"], context={"hour": 21}, top_k=1)
    print(ranking.items[0].id, ranking.items[0].ctr)
    client.report("ads", [Feedback(ranking.request_id, ranking.items[0].id)])  # once it was clicked
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any, Unpack

import grpc

from ctr.v1.feedback_pb2 import ReportRequest, ReportResponse
from ctr.v1.ranking_pb2 import ExplainRequest, ExplainResponse, RankRequest, RankResponse
from ftrie.client.access import OPEN, Access, CallFailed
from ftrie.client.balance import Balance, cookie_metadata
from ftrie.client.feedback import Feedback, Report, ReportFailed
from ftrie.client.feedback import request_of as report_of
from ftrie.client.messages import (
    AnyOf,
    Between,
    Degradation,
    Explanation,
    FeatureValues,
    NoneOf,
    Question,
    RankedItem,
    Ranking,
    Thompson,
    UpperConfidenceBound,
    request_of,
)

__all__ = [
    "AnyOf", "Between", "Client", "Degradation", "Explanation", "FeatureValues", "Feedback", "NoneOf", "RankFailed",
    "RankedItem", "Ranking", "Report", "ReportFailed", "Thompson", "UpperConfidenceBound",
]  # fmt: skip

METHOD = "/ctr.v1.RankingService/Rank"
EXPLAIN = "/ctr.v1.RankingService/Explain"
REPORT = "/ctr.v1.FeedbackService/Report"
DEFAULT_TIMEOUT_S = 5.0


class RankFailed(CallFailed):
    """A Rank or Explain call failed."""


class Client:
    """A connection to one server, or to several that share the calls. Thread safety: may be shared by all threads."""

    def __init__(
        self,
        address: str,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        access: Access = OPEN,
        balance: Balance | None = None,
    ) -> None:
        """`address` is host:port; `access` has the TLS files and the token. Connects on the first call.

        Several servers: "10.0.0.5:50051,10.0.0.6:50051", or one name of all of them, "dns:///ftrie:50051", with
        `balance`: "round_robin" (the default for a list), or "cookie" to send each user to the same server. Then only
        healthy servers are called, and a call that a server could not take is made again elsewhere.
        Raises ServerError for a malformed address, or if `access` cannot be used for it.
        """
        self.address = address
        self._timeout_s = timeout_s
        self._channel = access.channel(address, balance=balance)
        self._metadata = access.metadata()
        self._by_cookie = balance == "cookie"
        self._rank = self._channel.unary_unary(
            METHOD,
            request_serializer=RankRequest.SerializeToString,
            response_deserializer=RankResponse.FromString,
        )
        self._explain = self._channel.unary_unary(
            EXPLAIN,
            request_serializer=ExplainRequest.SerializeToString,
            response_deserializer=ExplainResponse.FromString,
        )
        self._report = self._channel.unary_unary(
            REPORT,
            request_serializer=ReportRequest.SerializeToString,
            response_deserializer=ReportResponse.FromString,
        )

    def rank(self, model: str = "", *, timeout_s: float | None = None, **asked: Unpack[Question]) -> Ranking:
        """Rank `candidates` by id, `items` with their features, or a `candidate_set`.

        `ftrie.client.messages.Question` describes every keyword. Raises RankFailed with the server's message and
        status, FieldValueError for text that is not Unicode.
        """
        request = request_of(model, **asked)
        return Ranking.of(self._call(self._rank, request, timeout_s, cookie=request.cookie))

    def explain(
        self, model: str = "", *, timeout_s: float | None = None, **asked: Unpack[Question]
    ) -> Explanation:
        """Rank at most 100 candidates, with the keys that make up each score. Arguments and errors as in `rank`."""
        request = ExplainRequest(request=request_of(model, **asked))
        return Explanation.of(self._call(self._explain, request, timeout_s, cookie=request.request.cookie))

    def report(self, model: str, events: Iterable[Feedback], *, timeout_s: float | None = None) -> Report:
        """Report 1 to 1,000 clicks and conversions. The accepted ones are in the store when this returns.

        Raises ReportFailed with the server's message and status; the same events may be reported again. Raises
        FieldValueError for text that is not Unicode, or an event of an unknown kind.
        """
        request = report_of(model, events)
        return Report.of(self._call(self._report, request, timeout_s, failed=ReportFailed))

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _call(
        self,
        method: Any,
        request: Any,
        timeout_s: float | None,
        *,
        cookie: str = "",
        failed: type[CallFailed] = RankFailed,
    ) -> Any:
        metadata = self._metadata + cookie_metadata(cookie) if self._by_cookie else self._metadata
        try:
            return method(
                request, timeout=self._timeout_s if timeout_s is None else timeout_s, metadata=metadata
            )
        except grpc.RpcError as error:
            raise failed.of(self.address, error) from error
