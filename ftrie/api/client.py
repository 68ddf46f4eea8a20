"""The Python client of a server: plain values in, frozen dataclasses out.

with Client("127.0.0.1:50051") as client:
    ranking = client.rank("ads", cookie="u1", candidates=["a", "b"], context={"device": "mobile"}, top_k=1)
    print(ranking.items[0].id, ranking.items[0].ctr)
    client.feedback("ads", [Feedback(ranking.request_id, ranking.items[0].id)])  # once it was clicked
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, Unpack

from ctr.v1.feedback_pb2_grpc import FeedbackServiceStub
from ctr.v1.ranking_pb2 import ExplainRequest
from ctr.v1.ranking_pb2_grpc import RankingServiceStub
from ftrie.api.access import OPEN, Access, Balance, CallFailed, Connection, cookie_metadata
from ftrie.api.feedback import Feedback, Report, ReportFailed
from ftrie.api.feedback import request_of as report_of
from ftrie.api.messages import (
    AnyOf,
    Between,
    Degradation,
    Explanation,
    FeatureValues,
    NoneOf,
    Options,
    RankedItem,
    Ranking,
    Thompson,
    UpperConfidenceBound,
    request_of,
)

__all__ = [
    "AnyOf", "Between", "Client", "Degradation", "Explanation", "FeatureValues", "Feedback", "NoneOf", "Options",
    "RankFailed", "RankedItem", "Ranking", "Report", "ReportFailed", "Thompson", "UpperConfidenceBound",
]  # fmt: skip

METHOD = "/ctr.v1.RankingService/Rank"
DEFAULT_TIMEOUT_S = 5.0

T = TypeVar("T")


class RankFailed(CallFailed):
    """A Rank or Explain call failed."""


@dataclass(frozen=True, slots=True)
class PreparedCall(Generic[T]):
    """A call before it is made: calling `method` so, of `grpc` or of `grpc.aio`, brings what `read` takes."""

    method: Any
    request: Any
    keywords: dict[str, Any]
    read: Callable[[Any], T]
    failed: type[CallFailed]


class Calls:
    """What the clients of threads and of asyncio share: a channel, and how each call is made. Immutable."""

    def __init__(
        self, address: str, channel: Any, timeout_s: float, access: Access, balance: Balance | None
    ) -> None:
        """`timeout_s`: of calls that name none. `access` and `balance`: those that the channel was opened with."""
        self.address, self._channel, self._timeout_s = address, channel, timeout_s
        self._metadata, self._by_cookie = access.metadata(), balance == "cookie"
        self._ranking, self._feedback = RankingServiceStub(channel), FeedbackServiceStub(channel)

    def _rank(self, model: str, timeout_s: float | None, options: Options) -> PreparedCall[Ranking]:
        request = request_of(model, **options)
        keywords = self._keywords(timeout_s, request.cookie)
        return PreparedCall(self._ranking.Rank, request, keywords, Ranking.of, RankFailed)

    def _explain(self, model: str, timeout_s: float | None, options: Options) -> PreparedCall[Explanation]:
        request = ExplainRequest(request=request_of(model, **options))
        keywords = self._keywords(timeout_s, request.request.cookie)
        return PreparedCall(self._ranking.Explain, request, keywords, Explanation.of, RankFailed)

    def _report(
        self, model: str, timeout_s: float | None, events: Iterable[Feedback]
    ) -> PreparedCall[Report]:
        keywords = self._keywords(timeout_s)
        return PreparedCall(
            self._feedback.Report, report_of(model, events), keywords, Report.of, ReportFailed
        )

    def _keywords(self, timeout_s: float | None, cookie: str = "") -> dict[str, Any]:
        """The keywords of one call: its time limit, the token, and the header that chooses a user's server."""
        # Only where it chooses the server: the header costs a hash a call.
        metadata = self._metadata + cookie_metadata(cookie) if self._by_cookie else self._metadata
        return {"timeout": self._timeout_s if timeout_s is None else timeout_s, "metadata": metadata}


class Client(Calls, Connection):
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
        super().__init__(address, access.channel(address, balance=balance), timeout_s, access, balance)

    def rank(self, model: str = "", *, timeout_s: float | None = None, **options: Unpack[Options]) -> Ranking:
        """Rank `candidates` by id, `items` with their features, or a `candidate_set`.

        `ftrie.api.messages.Options` describes every keyword. Raises RankFailed with the server's message and
        status, FieldValueError for text that is not Unicode, TypeError for an unknown keyword.
        """
        return self._made(self._rank(model, timeout_s, options))

    def explain(
        self, model: str = "", *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> Explanation:
        """Rank at most 100 candidates, with the keys that make up each score. Arguments and errors as in `rank`."""
        return self._made(self._explain(model, timeout_s, options))

    def feedback(self, model: str, events: Iterable[Feedback], *, timeout_s: float | None = None) -> Report:
        """Report 1 to 1,000 clicks and conversions. The accepted ones are in the store when this returns.

        Raises ReportFailed with the server's message and status; the same events may be reported again. Raises
        FieldValueError for text that is not Unicode, or an event of an unknown kind.
        """
        return self._made(self._report(model, timeout_s, events))

    report = feedback  # its name before

    def _made(self, call: PreparedCall[T]) -> T:
        return call.read(self._answer(call.failed, call.method, call.request, call.keywords))
