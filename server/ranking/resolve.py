"""From a call's message to a question: candidates, variant, options, and the user's features from the store.

Written for the hot path: work that only some requests need stands behind one test each. Nothing here ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns

from google.protobuf.message import DecodeError

from ctr.v1.ranking_pb2 import RankRequest
from model_store.errors import FieldValueError
from server.errors import CandidateSetNotFound, InvalidRequest, unreadable
from server.ranking import wire
from server.ranking.candidates import ITEMS_PART as ITEMS
from server.ranking.candidates import CandidateSets
from server.ranking.experiments import Assignment
from server.ranking.explain import check_explainable
from server.ranking.features import PlainFeatures
from server.ranking.query import Call, Question
from server.ranking.ranker import Ranking
from server.ranking.request import Received
from server.ranking.select.options import Options
from server.ranking.served import ServedVersion
from server.ranking.store_reads import StoredReads
from server.ranking.users import UserFeatures, drop_misfits


class Asking:
    """Makes the questions of one worker. Shared by every thread of the server."""

    def __init__(
        self, reads: StoredReads, users: UserFeatures, wants_shadows: Callable[[str], bool] | None = None
    ) -> None:
        """wants_shadows: of a request's id, whether its shadows are scored; without it none are."""
        self._sets = CandidateSets(reads)
        self._users = users
        self._wants_shadows = wants_shadows

    def forget(self) -> None:
        """Keep no user and no set that the store lacks."""
        self._users.forget()
        self._sets.forget()

    def question(self, call: Call) -> Question:
        """The question, complete. Raises InvalidRequest, CandidateSetNotFound, StoreUnavailable or DeadlinePassed."""
        message, served = call.message, call.served
        request = message.brief
        inline = (None if call.explain else served.plain.read(message)) or _in_python(message, served)
        top_k = wire.top_k(request)
        item_ids, spelled = self._candidates(call)
        if call.explain:
            check_explainable(len(item_ids) + len(spelled))
        wire.check_id("request_id", call.request_id)
        cookie = wire.check_id("cookie", request.cookie)
        assignment = call.current.assigned(served)
        variant = _variant(request, served, assignment, cookie or call.request_id)
        options = Options.of(request, assignment.objective, call.request_id, call.until_s)
        fields = self._completed(inline, cookie, call)
        shadows = self._shadows(assignment, variant, call) if assignment.shadows else ()
        return Question(fields, item_ids, spelled, variant, top_k, message, options, shadows)

    def _candidates(self, call: Call) -> tuple[Sequence[str], list[wire.Spelled]]:
        """The ids named, by the request or by the candidate set it asks for, and the items spelled out."""
        request, item_ids = call.message.brief, call.message.item_ids
        spelled = wire.spelled_out(request, item_ids, call.served)
        if spelled is not None:
            return item_ids, spelled
        name = wire.check_id("candidate_set", request.candidate_set)
        members, problems = self._sets.members(name, call.context)
        if members is None:
            raise CandidateSetNotFound(f"candidate_set: the store has no set {name!r}")
        if len(members) > wire.MAX_CANDIDATES:
            raise InvalidRequest(
                f"candidate_set: {name!r} has more than {wire.MAX_CANDIDATES} members, the limit"
            )
        call.degraded += problems
        return members, []

    def _completed(
        self, inline: wire.Fields | PlainFeatures, cookie: str, call: Call
    ) -> wire.Fields | PlainFeatures:
        """What the request brings, completed from the store where it is not all that the store may have."""
        began_ns = perf_counter_ns()
        fields: wire.Fields | PlainFeatures
        if isinstance(inline, PlainFeatures):
            fields, problems = self._users.complete_plain(cookie, inline, call.served, call.context)
        else:
            fields, problems = self._users.complete(cookie, inline, call.served, call.context)
        call.degraded += problems
        call.store_ns = perf_counter_ns() - began_ns
        return fields

    def _shadows(self, assignment: Assignment, variant: int, call: Call) -> tuple[int, ...]:
        if self._wants_shadows is None or not self._wants_shadows(call.request_id):
            return ()
        return assignment.shadows_beside(variant)


def _in_python(message: Received, served: ServedVersion) -> wire.Fields:
    """The request's own features as Python values."""
    try:
        return wire.fields(message.with_features(), served)
    except DecodeError:
        raise unreadable(RankRequest) from None


def _variant(request: RankRequest, served: ServedVersion, assignment: Assignment, cookie: str) -> int:
    if not request.HasField("variant"):
        return assignment.choose(cookie)
    variant = served.variant_of.get(request.variant)
    if variant is None:
        raise InvalidRequest(
            f"variant: no variant {request.variant!r}; the model has: {', '.join(served.variant_names)}"
        )
    return variant


# --- From a question to a ranking, whatever is wrong with stored values and whichever items the catalogue
# lacks ---


def ranked(call: Call, question: Question) -> Ranking:
    """Rank; what had to be left out is in call.degraded then. Raises InvalidRequest where the request is to blame."""
    asked = question.spelled  # late items are added to it, whose records nobody asked with
    try:
        ranking = question.ask(call.served, call.until_s)
    except FieldValueError as error:
        ranking = _without_misfits(call, question, error)
    if ranking.unknown_items:
        wire.check_unknown(call.message.brief, question.item_ids, ranking.unknown_items)
        ranking = _with_late_items(call, question, ranking)
    if asked and (names := wire.unknown_item_fields(asked, call.served)):
        ranking.unknown_fields = list(dict.fromkeys([*ranking.unknown_fields, *names]))
    return ranking


def _without_misfits(call: Call, question: Question, error: FieldValueError) -> Ranking:
    """A value does not fit: blame the request if it is in the request, else leave the stored value out."""
    wrong = wire.wrong_value(call.message.with_features(), call.served)
    if wrong is not None:
        raise wrong from error
    if not isinstance(question.fields, PlainFeatures):
        question.fields, problems = drop_misfits(question.fields, call.served)
        call.degraded += problems
    return question.ask(call.served, call.until_s)


def _with_late_items(call: Call, question: Question, ranking: Ranking) -> Ranking:
    """Look the unknown items up and, if the store has some, rank again with those spelled out."""
    records, problems = call.current.late_items.look_up(ranking.unknown_items, call.context)
    call.degraded += problems
    if not records:
        return ranking
    late: list[wire.Spelled] = []
    for item in question.item_ids:
        if item in records:
            fields, problems = drop_misfits(dict(records[item]), call.served, ITEMS, repr(item))
            call.degraded += problems
            late.append((item, fields))
    question.spelled = [*question.spelled, *late]
    question.item_ids = [item for item in question.item_ids if item not in records]
    return question.ask(call.served, call.until_s)
