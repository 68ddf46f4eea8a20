"""`ctr.v1.RankingService`: a request is read, ranked, answered and counted. The steps live elsewhere."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from functools import partial
from time import perf_counter_ns

import grpc
import structlog

from server.errors import DeadlinePassed, InvalidRequest, NotReady, abort, served_name, status_of
from server.impressions.log import ImpressionLog
from server.impressions.shadows import Seen, ShadowLog
from server.ranking import wire
from server.ranking.explain import explanation, request_within
from server.ranking.query import Call, Question
from server.ranking.ranker import Ranking
from server.ranking.request import Received, received
from server.ranking.resolve import Asking, ranked
from server.ranking.served import RECENT_BYTES, ModelHandle
from server.ranking.store_reads import StoredReads
from server.ranking.users import UserFeatures
from server.telemetry.meter import Meter

SERVICE = "ctr.v1.RankingService"
REQUEST_ID_BYTES = 16

_log = structlog.get_logger(__name__)


class RankingService:
    """Answers for the models of one worker. Shared by every thread of the server."""

    def __init__(
        self,
        models: Mapping[str, ModelHandle],
        reads: StoredReads,
        meter: Meter | None = None,
        shadow_log: ShadowLog | None = None,
        users: UserFeatures | None = None,
        impressions: ImpressionLog | None = None,
    ) -> None:
        """`models`: by name; which ones there are does not change. Without a shadow_log no shadow is scored.

        impressions: is offered what is answered.
        """
        self._models = models
        self._only = next(iter(models.values())) if len(models) == 1 else None
        self._meter = meter or Meter()
        self._shadow_log = shadow_log
        self._impressions = impressions
        wants_shadows = shadow_log.wants if shadow_log is not None else None
        self._asking = Asking(reads, users or UserFeatures(reads, meter=self._meter), wants_shadows)
        self.draining = False

    def forget(self) -> None:
        """Keep no user and no candidate set that the store lacks."""
        self._asking.forget()

    def handlers(self) -> grpc.GenericRpcHandler[Received | InvalidRequest, bytes]:
        """What a grpc server is given. Answers are bytes already."""
        rank = grpc.unary_unary_rpc_method_handler(self.Rank, request_deserializer=received)
        explain = grpc.unary_unary_rpc_method_handler(
            partial(self.Rank, explain=True), request_deserializer=request_within
        )
        return grpc.method_handlers_generic_handler(SERVICE, {"Rank": rank, "Explain": explain})

    def Rank(
        self, message: Received | InvalidRequest, context: grpc.ServicerContext, explain: bool = False
    ) -> bytes:
        """The RPC; with `explain`, Explain. Every failure leaves through the table in `server.errors`."""
        began_ns = perf_counter_ns()
        method = "Explain" if explain else "Rank"
        if isinstance(message, InvalidRequest):
            self._meter.failed("", method, grpc.StatusCode.INVALID_ARGUMENT.name)
            abort(context, message, "")
        request_id = message.brief.request_id or os.urandom(REQUEST_ID_BYTES).hex()
        try:
            return self._answer(message, request_id, context, began_ns, explain)
        except Exception as error:
            status = status_of(error)
            self._meter.failed(self._label(message.brief.model), method, status.name)
            if status is grpc.StatusCode.INTERNAL:
                _log.error("rank failed", request_id=request_id, exc_info=error)
            abort(context, error, request_id)

    def _answer(
        self,
        message: Received,
        request_id: str,
        context: grpc.ServicerContext,
        began_ns: int,
        explain: bool,
    ) -> bytes:
        left_s = context.time_remaining()
        if left_s == 0:
            raise DeadlinePassed("the deadline passed while the call waited for a thread")
        until_s = math.inf if left_s is None else time.monotonic() + left_s
        call = self._begun(message, request_id, context, explain, until_s)
        question = self._asking.question(call)
        candidates = len(question.item_ids) + len(question.spelled)
        asked_ns = perf_counter_ns()
        ranking = ranked(call, question)
        call.ranking_ns = perf_counter_ns() - asked_ns
        if len(message.message) <= RECENT_BYTES:
            call.current.recent.append(question)
        call.degraded += call.current.degraded
        if explain:
            return explanation(request_id, call.served, question, ranking, call.degraded)
        answer = wire.answer(
            message.brief, request_id, call.served.answer_heads[question.variant], ranking, call.degraded
        )
        self._count(call, question, ranking, candidates, began_ns)
        return answer

    def _begun(
        self,
        message: Received,
        request_id: str,
        context: grpc.ServicerContext,
        explain: bool,
        until_s: float,
    ) -> Call:
        """The call, with what serves it: read here, once. Raises ModelNotServed, InvalidRequest or NotReady."""
        name = message.brief.model
        current = self._models.get(name) if name else self._only
        if current is None:
            current = self._models[served_name(name, self._models)]
        served = current.served
        if served is None or self.draining:
            raise self._not_ready(current)
        return Call(message, request_id, context, current, served, explain, until_s)

    def _count(
        self, call: Call, question: Question, ranking: Ranking, candidates: int, began_ns: int
    ) -> None:
        if (
            self._impressions is not None and call.context.is_active()
        ):  # else nobody is there to be shown anything
            self._impressions.offer(call.request_id, call.served, question, ranking)
        if ranking.shadows and self._shadow_log is not None and not call.message.brief.no_log:
            self._shadow_log.offer(Seen.of(call.request_id, call.served, question.variant, ranking))
        self._meter.answered(
            call.served.name,
            call.served.version,
            call.served.variant_names[question.variant],
            candidates,
            began_ns,
            call.store_ns,
            call.ranking_ns,
            call.degraded,
            call.request_id,
        )

    def _label(self, model: str) -> str:
        """The model of a failed request in the metrics: one that is served here, or "", never another text."""
        return model if model in self._models else self._only.name if self._only and not model else ""

    def _not_ready(self, current: ModelHandle) -> NotReady:
        if self.draining:
            return NotReady("this server is draining; call another one, or its successor")
        return NotReady(f"model {current.name!r} is still loading, or no version of it is active")
