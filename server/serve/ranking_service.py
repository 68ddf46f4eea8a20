"""`ctr.v1.RankingService`: resolve a request, rank it, answer it and count it."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from time import perf_counter_ns

import grpc
import structlog

from ctr.v1.ranking_pb2 import DESCRIPTOR
from model_store.errors import listed
from server.errors import (
    DeadlinePassed,
    InvalidRequest,
    NotReady,
    abort,
    is_own_fault,
    served_name,
    status_of,
)
from server.events.log import ImpressionLog
from server.events.shadows import ShadowLog, ShadowRecord
from server.ranking.answer import rank_response
from server.ranking.explain import explain_response
from server.ranking.request import Received, received
from server.ranking.resolve import Call, Prefetched, Resolver
from server.ranking.served import ModelHandle
from server.ranking.store_reads import StoredReads
from server.ranking.users import Users
from server.serve.gate import UnaryCall, path_of
from server.telemetry.meter import Meter, declare

_WIRE = DESCRIPTOR.services_by_name["RankingService"]
SERVICE = _WIRE.full_name
RANK, EXPLAIN = (path_of(_WIRE, name) for name in ("Rank", "Explain"))
REQUEST_ID_BYTES = 16
EXPLORED = declare(
    "ftrie_explored_total",
    ("model", "explored"),
    "answers under the exploration of an experiment, by whether they `explored`: `yes`, or `no` for the greedy order",
)
EXPECTED = declare(
    "ftrie_exploration_clicks_total",
    ("model", "order"),
    "clicks that the model expects of the same answers, by `order`: `greedy` and `served`; 1 - served / greedy is "
    "what exploration costs",
)
APPRENTICE = declare(
    "ftrie_apprentice_total",
    ("model", "first"),
    "answers in apprentice mode, by whether the model's `first` item is the caller's: `same` or `other`",
)

_log = structlog.get_logger(__name__)


class RankingService:
    """Answers for the models of one worker. Shared by every thread of the server."""

    def __init__(
        self,
        models: Mapping[str, ModelHandle],
        reads: StoredReads,
        meter: Meter | None = None,
        shadow_log: ShadowLog | None = None,
        users: Users | None = None,
        impressions: ImpressionLog | None = None,
    ) -> None:
        """`models` by name: its keys do not change. Without a shadow_log no shadow is scored."""
        self._models = models
        self._clock = reads.clock
        self._only = next(iter(models.values())) if len(models) == 1 else None
        self._meter = meter or Meter()
        self._shadow_log = shadow_log
        self._impressions = impressions
        wants_shadows = shadow_log.wants if shadow_log is not None else None
        self._resolver = Resolver(reads, users or Users(reads, meter=self._meter), wants_shadows, self._other)
        self.draining = False

    def forget(self) -> None:
        """Keep no user and no candidate set that the store lacks."""
        self._resolver.forget()

    def handlers(self) -> grpc.GenericRpcHandler[bytes, bytes]:
        """The methods, for a grpc server. Requests and answers are bytes: each is read in the thread that ranks it."""
        rank = grpc.unary_unary_rpc_method_handler(self.Rank)
        explain = grpc.unary_unary_rpc_method_handler(partial(self.Rank, explain=True))
        return grpc.method_handlers_generic_handler(SERVICE, {"Rank": rank, "Explain": explain})

    def batched(self, calls: Sequence[UnaryCall]) -> Iterator[UnaryCall]:
        """The calls in the order to answer them, see `server.serve.gate.Batching`: first those that need no user read.

        The users of the others are then read together, so that the calls share the round trip, and its system calls and
        thread switches.
        """
        reading: list[tuple[UnaryCall, Prefetched]] = []
        others: list[UnaryCall] = []
        for call in calls:
            prefetched = self._prefetch(call)
            if prefetched is not None:
                call.message = prefetched  # grpc hands it to `Rank` in the message's place
            if prefetched is not None and prefetched.reads_user:
                reading.append((call, prefetched))
            else:
                others.append(call)
        yield from others
        while reading:
            reading, ready = self._resolver.read_together(reading)
            yield from (call for call, _ in ready)

    def _prefetch(self, call: UnaryCall) -> Prefetched | None:
        """What can be done for a call before its turn; None if `Rank` does not answer it, or only with an error."""
        began_ns = perf_counter_ns()
        request = call.message
        if request is None or call.method != RANK:
            return None
        message = received(request)
        if isinstance(message, InvalidRequest):
            return None
        name = message.model
        model = self._models.get(name) if name else self._only
        served = model.served if model is not None else None
        if served is None or self.draining:
            return None
        prefetched = self._resolver.prefetch(message, served)
        prefetched.spent_ns = perf_counter_ns() - began_ns
        return prefetched

    def Rank(
        self, request: bytes | Prefetched, context: grpc.ServicerContext, explain: bool = False
    ) -> bytes:
        """The RPC; with `explain`, Explain. Every failure leaves through the table in `server.errors`.

        request: the message, or what `batched` has put in its place.
        """
        began_ns = perf_counter_ns()
        method = "Explain" if explain else "Rank"
        prefetched: Prefetched | None = None
        message: Received | InvalidRequest
        request_id = model = ""
        try:
            if isinstance(request, Prefetched):
                prefetched, message = request, request.message
                # The call's time includes what was done for it before its turn, but not the answers to others in
                # between.
                began_ns -= prefetched.spent_ns + prefetched.read_ns
            else:
                message = received(request, explain)
            if isinstance(message, InvalidRequest):
                raise message
            model = self._label(message.model)
            request_id = message.request_id or os.urandom(REQUEST_ID_BYTES).hex()
            return self._answer(message, request_id, context, began_ns, explain, prefetched)
        except Exception as error:
            self._meter.failed(model, method, status_of(error).name)
            if is_own_fault(error):
                _log.error("rank failed", request_id=request_id, exc_info=error)
            abort(context, error, request_id, within="request" if explain else "")

    def _answer(
        self,
        message: Received,
        request_id: str,
        context: grpc.ServicerContext,
        began_ns: int,
        explain: bool,
        prefetched: Prefetched | None,
    ) -> bytes:
        left_s = context.time_remaining()
        if left_s == 0:
            raise DeadlinePassed("the deadline passed while the call waited for a thread")
        until_s = math.inf if left_s is None else time.monotonic() + left_s
        name = message.model
        model = self._models.get(name) if name else self._only
        if model is None:
            model = self._models[served_name(name, self._models)]
        served = model.served  # read once: one version computes the whole answer
        if served is None or self.draining:
            raise self._not_ready(model)
        # A swap came in between: what was read is for the fields of the version before.
        if prefetched is not None and prefetched.served is not served:
            prefetched = None
        call = Call(message, request_id, context, model, served, explain, until_s, prefetched)
        query = self._resolver.resolve(call)
        ranking = served.ranker.rank(query, until_s)
        ranking_ns = perf_counter_ns() - query.completed_ns
        # Only here: a query that failed is no good one to warm the next version with.
        model.keep(query)
        degraded = [*query.degraded, *model.degraded]
        if explain:
            return explain_response(query, ranking, served, degraded)
        answer = rank_response(query, ranking, served.answer_heads[query.variant], degraded)
        if self._impressions is not None and context.is_active():  # else the caller never saw the answer
            self._impressions.offer(served, query, ranking)
        if ranking.shadows and self._shadow_log is not None and not query.no_log:
            now_s = self._clock.time()
            self._shadow_log.offer(ShadowRecord.of(request_id, served, query, ranking, now_s))
        if ranking.spent is not None:
            self._meter.count(EXPLORED, served.name, "yes" if ranking.spent.explored else "no")
            self._meter.count(EXPECTED, served.name, "greedy", by=ranking.spent.greedy)
            self._meter.count(EXPECTED, served.name, "served", by=ranking.spent.served)
        if ranking.own is not None and ranking.own.order.size:
            same = ranking.own.order[0] == ranking.order[0]
            self._meter.count(APPRENTICE, served.name, "same" if same else "other")
        self._meter.answered(
            served.name,
            served.version,
            query.variant_of(served.variant_names),
            len(query.candidates.ids),
            began_ns,
            query.store_ns,
            ranking_ns,
            degraded,
            request_id,
            unknown_user=not ranking.knows_user and served.ranker.names_user(query),
        )
        return answer

    def _other(self, name: str) -> tuple[Resolver, ModelHandle] | str:
        """A model that an objective names, see `server.ranking.resolve.Others`."""
        model = self._models.get(name)
        return (
            (self._resolver, model)
            if model is not None
            else f"this server serves {listed(self._models, name)}"
        )

    def _label(self, model: str) -> str:
        """The model of a failed request in the metrics: one that is served here, or ""."""
        return model if model in self._models else self._only.name if self._only and not model else ""

    def _not_ready(self, model: ModelHandle) -> NotReady:
        if self.draining:
            return NotReady("this server is draining; call another one, or its successor")
        return NotReady(model.why_not_ready)
