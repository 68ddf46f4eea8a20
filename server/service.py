"""`ctr.v1.RankingService`: a request is converted, ranked, converted back. The steps live elsewhere.

Written for the hot path: everything that does not depend on the message is bound at start, and work that only
some requests need (the store, unknown items, values that do not fit) stands behind one test each.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter_ns

import grpc
import structlog
from google.protobuf.message import DecodeError

from ctr.v1.ranking_pb2 import RankRequest
from model_store.errors import FieldValueError
from server import wire
from server.candidate_sets import CandidateSets
from server.current import Current
from server.errors import (
    CandidateSetNotFound,
    DeadlinePassed,
    InvalidRequest,
    ModelNotServed,
    NotReady,
    abort,
    status_of,
)
from server.experiments import Assignment
from server.explaining.answer import explanation, request_within
from server.late_items import PART as ITEMS
from server.metrics.meter import Meter
from server.ranker import Ranking
from server.receiving.plain_features import PlainFeatures
from server.receiving.request import Received, received
from server.selection.options import Options
from server.serving import Serving
from server.shadows import Seen, ShadowLog
from server.stored import StoredReads
from server.users import UserFeatures, drop_misfits

SERVICE = "ctr.v1.RankingService"
REQUEST_ID_BYTES = 16

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Question:
    """One ranking question, and the message it came in, if it came in one. `spelled` is as the request has it."""

    fields: wire.Fields | PlainFeatures
    item_ids: Sequence[str]
    spelled: Sequence[wire.Spelled]
    variant: int
    top_k: int | None
    message: Received | None = None
    options: Options | None = None
    shadows: Sequence[int] = ()

    def ask(self, serving: Serving) -> Ranking:
        """Rank with `serving`, which need not be the one that the question was put to. Raises FieldValueError."""
        fields = self.fields
        if isinstance(fields, PlainFeatures) and fields.reader is not serving.plain and self.message:
            fields = wire.fields(self.message.with_features(), serving)
        spelled = serving.catalogue.under(self.spelled) if self.spelled else ()
        return serving.ranker.rank(
            fields,
            self.item_ids,
            spelled,
            self.variant,
            self.top_k,
            options=self.options,
            shadows=self.shadows,
        )


class RankingService:
    """Answers Rank for the models of one worker. Shared by every thread of the server."""

    def __init__(
        self,
        models: Mapping[str, Current],
        reads: StoredReads,
        meter: Meter | None = None,
        shadow_log: ShadowLog | None = None,
        users: UserFeatures | None = None,
    ) -> None:
        """`models`: by name; which ones there are does not change. Without a shadow_log no shadow is scored."""
        self._models = models
        self._only = next(iter(models.values())) if len(models) == 1 else None
        self._sets = CandidateSets(reads)
        self._meter = meter or Meter()
        self._shadow_log = shadow_log
        self._users = users or UserFeatures(reads, meter=self._meter)
        self.draining = False

    def handlers(self) -> grpc.GenericRpcHandler[Received | DecodeError, bytes]:
        """What a grpc server is given."""
        rank = grpc.unary_unary_rpc_method_handler(
            self.Rank,
            request_deserializer=received,
        )
        explain = grpc.unary_unary_rpc_method_handler(
            partial(self.Rank, explain=True),
            request_deserializer=request_within,
        )
        return grpc.method_handlers_generic_handler(SERVICE, {"Rank": rank, "Explain": explain})

    def Rank(
        self, message: Received | DecodeError, context: grpc.ServicerContext, explain: bool = False
    ) -> bytes:
        """The RPC; with `explain`, Explain. Every failure leaves through the table in `server.errors`."""
        began_ns = perf_counter_ns()
        if isinstance(message, DecodeError):
            self._meter.failed("", grpc.StatusCode.INVALID_ARGUMENT.name)
            abort(context, InvalidRequest(wire.UNREADABLE), "")
        request_id = message.brief.request_id or os.urandom(REQUEST_ID_BYTES).hex()
        try:
            return self._rank(message, request_id, context, began_ns, explain)
        except Exception as error:
            status = status_of(error)
            self._meter.failed(self._label(message.brief.model), status.name)
            if status is grpc.StatusCode.INTERNAL:
                _log.error("rank failed", request_id=request_id, exc_info=error)
            abort(context, error, request_id)

    def _rank(
        self,
        message: Received,
        request_id: str,
        context: grpc.ServicerContext,
        began_ns: int,
        explain: bool,
    ) -> bytes:
        if context.time_remaining() == 0:
            raise DeadlinePassed("the deadline passed while the call waited for a thread")
        request, item_ids = message.brief, message.item_ids
        current = self._models.get(request.model) if request.model else self._only
        if current is None:
            raise self._not_served(request.model)
        serving = current.serving
        if serving is None or self.draining:
            raise self._not_ready(current)
        plain = None if explain else serving.plain.read(message)
        inline = plain or _in_python(message, serving)
        top_k = wire.top_k(request)
        spelled = wire.spelled_out(request, item_ids, serving)
        of_set = list[str]()
        if spelled is None:
            item_ids, of_set = self._members(request, context)
            spelled = []
        candidates = len(item_ids) + len(spelled)
        wire.check_id("request_id", request_id)
        cookie = wire.check_id("cookie", request.cookie)
        assignment = current.assigned(serving)
        variant = _variant(request, serving, assignment, cookie or request_id)
        options = None
        if message.has_options or assignment.objective:
            options = Options.of(request, assignment.objective, request_id)
        shadows: Sequence[int] = ()
        if assignment.shadows and self._shadow_log is not None and self._shadow_log.wants(request_id):
            shadows = assignment.shadows_beside(variant)
        read_ns = perf_counter_ns()
        fields, degraded = self._completed(inline, cookie, serving, context)
        degraded += of_set
        complete_ns = perf_counter_ns()
        question = Question(fields, item_ids, spelled, variant, top_k, message, options, shadows)
        try:
            ranking = question.ask(serving)
        except FieldValueError as error:
            ranking = _rank_without_misfits(message.with_features(), question, serving, degraded, error)
        ranked_ns = perf_counter_ns()
        if ranking.unknown_items:
            wire.check_unknown(request, item_ids, ranking.unknown_items)
            ranking = self._rank_with_late_items(question, ranking, serving, degraded, context, current)
        if spelled and (names := wire.unknown_item_fields(spelled, serving)):
            ranking.unknown_fields = list(dict.fromkeys([*ranking.unknown_fields, *names]))
        current.recent.append(question)
        if current.degraded:
            degraded = [*degraded, *current.degraded]
        if explain:
            return explanation(request_id, serving, question, ranking, degraded)
        answer = wire.answer(request, request_id, serving.answer_heads[variant], ranking, degraded)
        if ranking.shadows and self._shadow_log is not None:
            self._shadow_log.offer(Seen.of(request_id, serving, variant, ranking))
        store_ns, ranking_ns = complete_ns - read_ns, ranked_ns - complete_ns
        self._meter.answered(
            serving, variant, candidates, began_ns, store_ns, ranking_ns, degraded, request_id
        )
        return answer

    def _completed(
        self,
        inline: wire.Fields | PlainFeatures,
        cookie: str,
        serving: Serving,
        context: grpc.ServicerContext,
    ) -> tuple[wire.Fields | PlainFeatures, list[str]]:
        """What the request brings, completed from the store where it is not all that the store may have."""
        if isinstance(inline, PlainFeatures):
            return self._users.complete_plain(cookie, inline, serving, context)
        return self._users.complete(cookie, inline, serving, context)

    def _label(self, model: str) -> str:
        """The model of a failed request in the metrics: one that is served here, or "", never another text."""
        return model if model in self._models else self._only.name if self._only and not model else ""

    def _not_served(self, name: str) -> Exception:
        served = ", ".join(map(repr, self._models))
        if name:
            return ModelNotServed(f"model: this server serves {served}, not {name!r}")
        return InvalidRequest(f"model: empty, and this server serves several: {served}")

    def _not_ready(self, current: Current) -> NotReady:
        if self.draining:
            return NotReady("this server is draining; ask another one, or this one's successor")
        return NotReady(f"model {current.name!r} is still loading, or no version of it is active")

    def _members(
        self, request: RankRequest, context: grpc.ServicerContext
    ) -> tuple[Sequence[str], list[str]]:
        """The members of the candidate set that is asked for, and what `degraded` must say of them."""
        name = wire.check_id("candidate_set", request.candidate_set)
        members, problems = self._sets.members(name, context)
        if members is None:
            raise CandidateSetNotFound(f"candidate_set: the store has no set {name!r}")
        if len(members) > wire.MAX_CANDIDATES:
            raise InvalidRequest(
                f"candidate_set: {name!r} has more than {wire.MAX_CANDIDATES} members, the limit"
            )
        return members, problems

    def _rank_with_late_items(
        self,
        question: Question,
        ranking: Ranking,
        serving: Serving,
        degraded: list[str],
        context: grpc.ServicerContext,
        current: Current,
    ) -> Ranking:
        """Look the unknown items up and, if the store has some, rank again with those spelled out."""
        records, problems = current.late_items.look_up(ranking.unknown_items, context)
        degraded += problems
        if not records:
            return ranking
        late: list[wire.Spelled] = []
        for item in question.item_ids:
            if item in records:
                fields, problems = drop_misfits(dict(records[item]), serving, f"{ITEMS}: {item!r}")
                degraded += problems
                late.append((item, fields))
        question.spelled = [*question.spelled, *late]
        question.item_ids = [item for item in question.item_ids if item not in records]
        return question.ask(serving)


def _in_python(message: Received, serving: Serving) -> wire.Fields:
    """The request's own features as Python values."""
    try:
        return wire.fields(message.with_features(), serving)
    except DecodeError:
        raise InvalidRequest(wire.UNREADABLE) from None


def _variant(request: RankRequest, serving: Serving, assignment: Assignment, cookie: str) -> int:
    if not request.HasField("variant"):
        return assignment.choose(cookie)
    variant = serving.variant_of.get(request.variant)
    if variant is None:
        raise InvalidRequest(
            f"variant: no variant {request.variant!r}; the model has: {', '.join(serving.variant_names)}"
        )
    return variant


def _rank_without_misfits(
    request: RankRequest, question: Question, serving: Serving, degraded: list[str], error: FieldValueError
) -> Ranking:
    """A value does not fit: blame the request if it is in the request, else leave the stored value out."""
    wrong = wire.wrong_value(request, serving)
    if wrong is not None:
        raise wrong from error
    if not isinstance(question.fields, PlainFeatures):
        question.fields, problems = drop_misfits(question.fields, serving)
        degraded += problems
    return question.ask(serving)
