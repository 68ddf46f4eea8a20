"""The Python client of a server: plain values in, frozen dataclasses out.

with Client("127.0.0.1:50051") as client:
    ranking = client.rank("ads", cookie="u1", candidates=["a", "b"], context={"device": "mobile"}, top_k=1)
    print(ranking.items[0].id, ranking.items[0].ctr)
    client.feedback("ads", [Feedback(ranking.request_id, ranking.items[0].id)])  # once it was clicked
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any, Unpack

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
        self._channel = access.channel(address, balance=balance)
        self._calls = Calls(self._channel, timeout_s, access, balance)

    def rank(self, model: str = "", *, timeout_s: float | None = None, **options: Unpack[Options]) -> Ranking:
        """Rank `candidates` by id, `items` with their features, or a `candidate_set`.

        `ftrie.client.messages.Options` describes every keyword. Raises RankFailed with the server's message and
        status, FieldValueError for text that is not Unicode, TypeError for an unknown keyword.
        """
        request, calls = request_of(model, **options), self._calls
        return Ranking.of(self._call(calls.rank, request, calls.keywords(timeout_s, request.cookie)))

    def explain(
        self, model: str = "", *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> Explanation:
        """Rank at most 100 candidates, with the keys that make up each score. Arguments and errors as in `rank`."""
        request, calls = ExplainRequest(request=request_of(model, **options)), self._calls
        keywords = calls.keywords(timeout_s, request.request.cookie)
        return Explanation.of(self._call(calls.explain, request, keywords))

    def feedback(self, model: str, events: Iterable[Feedback], *, timeout_s: float | None = None) -> Report:
        """Report 1 to 1,000 clicks and conversions. The accepted ones are in the store when this returns.

        Raises ReportFailed with the server's message and status; the same events may be reported again. Raises
        FieldValueError for text that is not Unicode, or an event of an unknown kind.
        """
        request, calls = report_of(model, events), self._calls
        return Report.of(self._call(calls.report, request, calls.keywords(timeout_s), ReportFailed))

    report = feedback  # its name before

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
        self, method: Any, request: Any, keywords: dict[str, Any], failed: type[CallFailed] = RankFailed
    ) -> Any:
        try:
            return method(request, **keywords)
        except grpc.RpcError as error:
            raise failed.of(self.address, error) from error
