"""From a request's message to a `Query`: everything is validated, completed from the store and bound to one version.

Written for the hot path: work that only some requests need costs the others one test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, takewhile
from time import perf_counter_ns
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from model_store.errors import FieldValueError
from model_store.features.features import FeaturePlan
from model_store.features.history import UserHistory
from model_store.spec.values import Value
from server.errors import CandidateSetNotFound, Degradation, InvalidRequest, ModelNotServed
from server.model.columns import InlineItem
from server.ranking.candidates import LATE_PART, SET_PART, CandidateSets
from server.ranking.derived import item_values, read_history, user_values, with_item_values
from server.ranking.features import PlainTokens, StoredUser, UserFields
from server.ranking.limits import (
    MAX_CANDIDATES,
    MAX_DEGRADED,
    MAX_ECHOED_BYTES,
    MAX_EXPLAINED,
    check_id,
    is_id,
)
from server.ranking.query import Candidates, OtherModel, Query, RequestFeatures
from server.ranking.request import (
    Received,
    Request,
    check_top_k,
    check_unknown,
    misfit,
    read_features,
    read_inline,
    read_options,
    unknown_item_fields,
    variant_named,
)
from server.ranking.served import ModelHandle, ServedVersion
from server.ranking.store_reads import SHORTEST_WAIT_S, StoredReads, Timed
from server.ranking.users import PendingRead, Users

Array = npt.NDArray[Any]
OTHERS_PART = "other_models"


@dataclass(slots=True, repr=False)
class Prefetched:
    """What was done for a call before its turn, together with other calls: for this version, and for one thread.

    plain: its features, None unless all are plain. reads_user: its user must be read and may be read together with
    others. spent_ns: how long this took without the read, which took read_ns.
    """

    message: Received
    served: ServedVersion
    plain: PlainTokens | None
    reads_user: bool
    spent_ns: int = 0
    read_ns: int = 0
    pending: PendingRead | None = None


C = TypeVar("C", bound=Timed)


@dataclass(slots=True)
class Call:
    """One call: its message, and the version that answers it. For one thread.

    until_s: its deadline on the monotonic clock. prefetched: what was done for it before, by the same version.
    degraded: the notes so far. history: the user's, if known. store_ns, completed_ns, time_us: see `Query`. named: the
    candidates that are named, for a call that asks a model beside the one that answers what it predicts of them.
    """

    message: Request
    request_id: str
    context: Timed
    model: ModelHandle
    served: ServedVersion
    explain: bool = False
    until_s: float = math.inf
    prefetched: Prefetched | None = None
    degraded: list[Degradation] = field(default_factory=list)
    store_ns: int = 0
    completed_ns: int = 0
    time_us: int = 0
    history: UserHistory | None = None
    named: Sequence[str] | None = None


Others = Callable[[str], "tuple[Resolver, ModelHandle] | str"]
"""A model beside the one that answers, by name, and what makes its queries; or why there is none of this name."""


class Resolver:
    """Makes the queries of one worker. Shared by every thread of the server."""

    def __init__(
        self,
        reads: StoredReads,
        users: Users,
        wants_shadows: Callable[[str], bool] | None = None,
        others: Others = lambda name: "there is no other model here",
    ) -> None:
        """wants_shadows: whether the shadows of a request with this id are scored. Without it none are."""
        self._reads, self._sets = reads, CandidateSets(reads)
        self._users = users
        self._wants_shadows = wants_shadows
        self._others = others

    def forget(self) -> None:
        """Keep no user and no candidate set that the store lacks."""
        self._users.forget()
        self._sets.forget()

    def prefetch(self, message: Received, served: ServedVersion) -> Prefetched:
        """What can be done for a call before its turn, apart from the read."""
        plain = _plain(message, served)
        cookie, wanted = message.cookie, served.user_fields
        lacks = plain is not None and self._users.lacks(cookie, plain.given, served.name, wanted)
        # A cookie that is too long is refused in its own turn, with its own error.
        return Prefetched(message, served, plain, lacks and is_id(cookie))

    def read_together(
        self, waiting: Sequence[tuple[C, Prefetched]]
    ) -> tuple[list[tuple[C, Prefetched]], list[tuple[C, Prefetched]]]:
        """Read the users of calls that lack them in one round trip; the calls to read again, and those to answer now.

        The round trip is given the shortest time that one of the calls has for its read. If it fails by that, the calls
        with more time are read again: each waits for the store as long as it would alone.
        """
        served = waiting[0][1].served
        # Others' version was swapped in between: it may read other fields of a user.
        again = [(call, prefetched) for call, prefetched in waiting if prefetched.served is not served]
        ready: list[tuple[C, Prefetched]] = []
        timed: list[tuple[C, Prefetched, float]] = []
        for call, prefetched in waiting:
            if prefetched.served is served:
                left_s = self._reads.users.left_s(call, prefetched.read_ns / 1e9)
                # Too late for a read: `resolve` finds that out too, and answers with what is known.
                if left_s < SHORTEST_WAIT_S:
                    ready.append((call, prefetched))
                else:
                    timed.append((call, prefetched, left_s))
        if not timed:
            return again, ready
        wait_s = min(left_s for _, _, left_s in timed)
        cookies = [prefetched.message.cookie for _, prefetched, _ in timed]
        began_ns = perf_counter_ns()
        reads = self._users.read_together(cookies, served.name, served.user_fields, wait_s)
        took_ns = perf_counter_ns() - began_ns
        for call, prefetched, left_s in timed:
            prefetched.pending = pending = reads.get(prefetched.message.cookie)
            prefetched.read_ns += took_ns
            failed = pending is not None and pending.user is None
            # Not silent for its own time, but for the shortest of all.
            late = failed and took_ns >= wait_s * 1e9 and left_s - wait_s >= SHORTEST_WAIT_S
            (again if late else ready).append((call, prefetched))
        return again, ready

    def resolve(self, call: Call) -> Query:
        """The query. Raises InvalidRequest, FieldValueError, CandidateSetNotFound, StoreUnavailable, DeadlinePassed.

        And ModelNotServed where the request's own objective names a model that is not served here.
        """
        message, served = call.message, call.served
        derived, histories = served.derived, served.histories
        plain = _plain(message, served) if call.prefetched is None else call.prefetched.plain
        own = read_features(message, served.schema) if plain is None else _NO_VALUES
        top_k = check_top_k(message.top_k)
        named, inline = message.item_ids, read_inline(message, served.schema)
        if inline is None:
            named, inline = self._members(call) if call.named is None else call.named, []
        if call.explain and len(named) + len(inline) > MAX_EXPLAINED:
            raise InvalidRequest(
                "request",
                f"{len(named) + len(inline)} candidates; the limit for an explanation is {MAX_EXPLAINED}",
            )
        check_id("request_id", call.request_id)
        cookie = check_id("cookie", message.cookie)
        assignment = call.model.assigned(served)
        # A model that is asked beside another orders nothing: its variant is by its own experiment alone.
        extras = message.extras if call.named is None else None
        forced = None if extras is None else variant_named(extras.variant, served.variant_of)
        options = None
        if (assignment.has_options or extras is not None) and call.named is None:
            explore, apprentice = assignment.explore, assignment.apprentice
            options = read_options(extras, assignment.objective, call.until_s, explore, apprentice)
            if apprentice and extras is not None and extras.candidate_set:
                note = "a set has no order of its own: answered in the model's, in spite of apprentice mode"
                call.degraded.append(Degradation.limited(SET_PART, note))
        teams = assignment.teams if forced is None and call.named is None else None
        if teams is not None:
            # Exploration is a second source of chance: no estimate could tell its propensities from the draft's.
            explores = options is not None and options.exploration is not None
            teams = None if explores or assignment.is_pinned(cookie) else teams
        if teams is not None:
            variant = teams.variants[0]
        else:
            # Without a cookie each request is drawn for itself, by its id.
            variant = assignment.choose(cookie or call.request_id) if forced is None else forced
        try:
            features = self._features(call, cookie, plain, own)
            candidates = _located(served, named, inline)
        except FieldValueError as error:
            # The path is looked for only now, so that valid requests do not pay for it.
            if (wrong := misfit(message, served.schema)) is not None:
                raise wrong from error
            raise
        if candidates.unknown:
            if message.extras is None or not message.extras.candidate_set:
                check_unknown(named, candidates.unknown)
            candidates = _with_late_items(call, candidates, named, inline)
        of_history = None
        if histories is not None and histories.item_fields and call.history is not None:
            of_history = item_values(served, histories, candidates, call.history, call.time_us)
        if of_history or (derived is not None and (candidates.items or derived.per_request)):
            candidates = with_item_values(served, derived, candidates, features, of_history)
        unknown_fields = features.unknown
        if inline and (odd := unknown_item_fields(inline, served.schema)):
            unknown_fields = list(dict.fromkeys([*unknown_fields, *odd]))
        others: Mapping[str, OtherModel] = _NO_OTHERS
        if options is not None and options.objective is not None and options.objective.models:
            is_own = extras is not None and bool(extras.objective)
            models = options.objective.models
            others, unknown_fields = self._asked(call, models, named, candidates, unknown_fields, is_own)
        unknown_items = candidates.unknown
        if unknown_items or unknown_fields or len(call.degraded) > MAX_DEGRADED:
            unknown_items, unknown_fields = _bounded(call, unknown_items, unknown_fields)
        shadows: tuple[int, ...] = ()
        wants = self._wants_shadows if call.named is None else None
        if assignment.shadows and wants is not None and wants(call.request_id):
            shadows = assignment.shadows_beside(variant) if teams is None else teams.shadows
        return Query(
            features,
            candidates,
            variant,
            top_k,
            options,
            shadows,
            call.request_id,
            cookie,
            unknown_fields,
            unknown_items,
            call.degraded,
            forced is not None,
            message.no_log,
            message.deferred,
            message.size,
            call.store_ns,
            call.completed_ns,
            call.time_us,
            others,
            teams,
        )

    def _asked(
        self,
        call: Call,
        models: Sequence[str],
        named: Sequence[str],
        candidates: Candidates,
        unknown_fields: Sequence[str],
        is_own: bool,
    ) -> tuple[dict[str, OtherModel], Sequence[str]]:
        """What other models predict of the candidates, and the fields that none of all the models knows.

        Each resolves the same request by its own spec, in its own version. One that cannot answer has no value, which
        the answer says; is_own: the request's own objective names them, so that one not served here is its mistake.
        """
        found: dict[str, OtherModel] = {}
        for name in models:
            other = (self, call.model) if name == call.served.name else self._others(name)
            if isinstance(other, str):
                if is_own:
                    raise ModelNotServed(f"objective: it names the model {name!r}; {other}")
                why, served = other, None
            else:
                resolver, model = other
                # Read once: one version predicts for all candidates.
                why, served = model.why_not_ready, model.served
            if served is None:
                nothing = np.full(len(candidates.ids), np.nan)
                found[name] = OtherModel(None, "", nothing, nothing)
                call.degraded.append(Degradation.absent(OTHERS_PART, f"{name}: {why}"))
                continue
            query = resolver.resolve(
                Call(
                    call.message,
                    call.request_id,
                    call.context,
                    model,
                    served,
                    until_s=call.until_s,
                    named=named,
                )
            )
            notes = [*query.degraded, *model.degraded]
            call.degraded += [
                each._replace(part=OTHERS_PART, detail=f"{name}: {each}")
                for each in notes
                if each not in call.degraded
            ]
            known = frozenset(query.unknown_fields)
            unknown_fields = [field for field in unknown_fields if field in known]
            ctr, score = served.ranker.predict(query)
            # The candidates of both queries are in the request's order.
            found[name] = OtherModel(served.version, served.variant_names[query.variant], ctr, score)
        return found, unknown_fields

    def _members(self, call: Call) -> Sequence[str]:
        """The ids in the candidate set that the request names."""
        assert call.message.extras is not None  # it names one
        name = check_id("candidate_set", call.message.extras.candidate_set)
        members, notes = self._sets.members(name, call.context)
        if members is None:
            raise CandidateSetNotFound(f"candidate_set: the store has no set {name!r}")
        if len(members) > MAX_CANDIDATES:
            raise InvalidRequest(
                "candidate_set", f"{name!r} has more than {MAX_CANDIDATES} members, the limit"
            )
        call.degraded += notes
        return members

    def _features(
        self, call: Call, cookie: str, plain: PlainTokens | None, own: Mapping[str, Value]
    ) -> RequestFeatures:
        """The request's features, `plain` or else `own`, over the user's stored ones. Raises FieldValueError."""
        served, wanted = call.served, call.served.user_fields
        began_ns = perf_counter_ns()
        given = wanted.bits(own) if plain is None else plain.given
        before = call.prefetched
        pending, read_ns = (None, 0) if before is None else (before.pending, before.read_ns)
        user, notes = self._users.find(cookie, given, served.name, wanted, call.context, pending)
        call.completed_ns = perf_counter_ns()
        call.store_ns = call.completed_ns - began_ns + read_ns
        call.degraded += notes
        if plain is None:
            # The request's own values go before the stored ones.
            values = own if user is None else {**user.fields(wanted), **own}
            if served.histories is not None:
                # Once for the call: ages of events and the impression's line have the same time.
                call.time_us = int(self._reads.clock.time() * 1e6)
                if user is not None and user.history is not None:
                    call.history = read_history(served.histories, user.history)
                    values = {**user_values(served.histories, call.history, call.time_us), **values}
            return served.ranker.features(
                values if served.derived is None else served.derived.of_request(values)
            )
        tokens = plain.tokens if user is None else user.tokens(wanted).under(plain)
        return RequestFeatures(tokens, (), partial(_plain_values, call.message, user, wanted))


_NO_VALUES: Mapping[str, Value] = {}
_NO_OTHERS: Mapping[str, OtherModel] = {}


def _plain(message: Request, served: ServedVersion) -> PlainTokens | None:
    """The request's features; None unless all are plain, and the version reads no more than these."""
    derived = served.derived
    if served.histories is not None or (derived is not None and derived.request):
        return None
    return served.plain.read(message)


def _plain_values(message: Request, user: StoredUser | None, wanted: UserFields) -> dict[str, Value]:
    stored = {} if user is None else user.fields(wanted)
    return {**stored, **message.values()}


def _located(served: ServedVersion, named: Sequence[str], inline: Sequence[InlineItem]) -> Candidates:
    """The candidates in the catalogue, inline items over their records. Raises FieldValueError, InvalidRequest."""
    return served.ranker.candidates(named, served.catalogue.under(inline) if inline else ())


def _bounded(
    call: Call, unknown_items: Sequence[str], unknown_fields: Sequence[str]
) -> tuple[Sequence[str], Sequence[str]]:
    """The part of both that the answer lists; `degraded` says how much is left out, also of itself."""
    if (more := len(call.degraded) - MAX_DEGRADED) > 0:
        note = Degradation.limited("degraded", f"{more:,} more")
        call.degraded = [*call.degraded[:MAX_DEGRADED], note]
    listed = []
    for part, names in (("unknown_items", unknown_items), ("unknown_fields", unknown_fields)):
        sizes = accumulate(len(name.encode("utf-8", "surrogatepass")) for name in names)
        count = sum(1 for _ in takewhile(MAX_ECHOED_BYTES.__ge__, sizes))
        if count < len(names):
            note = Degradation.limited(part, f"{len(names):,}, of which the first {count:,} are listed")
            call.degraded = [*call.degraded, note]
        listed.append(names[:count])
    return listed[0], listed[1]


def _with_late_items(
    call: Call, candidates: Candidates, named: Sequence[str], inline: Sequence[InlineItem]
) -> Candidates:
    """The candidates, with those that the catalogue lacks and the store has as inline items."""
    records, notes = call.model.late_items.look_up(candidates.unknown, call.context)
    call.degraded += notes
    if not records:
        return candidates
    late: list[InlineItem] = []
    for item in named:
        if item in records:
            record, notes = _fitting(records[item], call.served.model.plan, repr(item))
            call.degraded += notes
            late.append((item, record))
    # Located again, now with the late ones as inline items: their tokens are made as a request's are.
    known = [item for item in named if item not in records]
    found = _located(call.served, known, [*inline, *late])
    # In the request's order, which decides among equal scores, and in apprentice mode about the answer.
    ahead, behind = iter(range(len(known))), iter(range(len(known) + len(inline), len(found.ids)))
    order = [next(behind) if item in records else next(ahead) for item in named]
    order += range(len(known), len(known) + len(inline))
    return found._replace(ids=found.ids_at(np.array(order)), rows=found.rows[order])


def _fitting(
    record: Mapping[str, Value], plan: FeaturePlan, item_id: str
) -> tuple[dict[str, Value], list[Degradation]]:
    """A stored record without the values that do not fit their field, and a note on each of those."""
    kept, notes = dict(record), list[Degradation]()
    for name, value in record.items():
        field = plan.field(name)
        try:
            if field is not None:
                field.tokens(value)
        except FieldValueError as error:
            del kept[name]
            notes.append(Degradation.left_out(LATE_PART, str(error), item_id))
    return kept, notes
