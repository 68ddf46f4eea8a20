"""Options: what a request asks of its order beyond the plain one, read from the message and checked once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from ctr.v1.ranking_pb2 import Cap as CapMessage
from ctr.v1.ranking_pb2 import Exploration as ExplorationMessage
from ctr.v1.ranking_pb2 import Filter, RankRequest
from server.errors import InvalidRequest, ObjectiveError, check_deadline
from server.ranking.select.exploration import Exploration, Thompson, UpperConfidenceBound
from server.ranking.select.filters import AnyOf, Candidates, Cap, Condition, InRange, NoneOf, Spelled
from server.ranking.select.objective import Objective
from server.ranking.select.selection import Plan, Scored, Selection

if TYPE_CHECKING:
    from model_store.artefact.calibration import Curve
    from server.model.attributes import Attributes

Array = npt.NDArray[Any]

MAX_FILTERS = 32
MAX_FILTER_VALUES = 10_000
MAX_CAPS = 8


@dataclass(frozen=True)
class Options:
    """One request's options. `None` instead of one of these is the plain order: by ctr, all candidates."""

    plan: Plan
    request_id: str

    @classmethod
    def of(
        cls, request: RankRequest, default_objective: str, request_id: str, until_s: float = math.inf
    ) -> Options | None:
        """The options of a request to a model with this objective ("" for none); None where nothing is asked.

        Raises InvalidRequest with the field's path, DeadlinePassed where it is later than `until_s` (monotonic).
        """
        explores = request.HasField("exploration")
        objective = request.objective or default_objective
        if not (objective or request.filters or request.caps or explores):
            return None
        plan = Plan(
            _objective(objective),
            _conditions(request.filters, until_s),
            _caps(request.caps),
            _exploration(request.exploration) if explores else None,
        )
        return cls(plan, request_id)

    @property
    def needs_uncertainty(self) -> bool:
        """Whether `select` wants the candidates' uncertainty."""
        plan = self.plan
        return plan.exploration is not None or (
            plan.objective is not None and plan.objective.uses_uncertainty
        )

    def select(
        self,
        ids: Sequence[str],
        rows: Array,
        spelled: Sequence[Spelled],
        scores: Array,
        uncertainty: Array | None,
        curve: Curve | None,
        attributes: Attributes,
        top_k: int | None,
        until_s: float = math.inf,
    ) -> Selection:
        """Select from what the ranking kernel leaves, in the order of the candidates; copies what it keeps.

        Raises DeadlinePassed between two steps where it is later than `until_s` (monotonic).

        rows int32[candidates]: a catalogue row, NO_ITEM, or FIRST_SPELLED - r for spelled[r]; scores and uncertainty
        (None unless `needs_uncertainty`) float64[candidates].
        """
        candidates = Candidates(attributes, ids, rows, spelled)
        wanted = uncertainty if self.needs_uncertainty else None
        scored = Scored(scores, wanted, curve)
        return self.plan.select(scored, candidates, ids, top_k, self.request_id, until_s)


def _objective(text: str) -> Objective | None:
    if not text:
        return None
    try:
        return Objective.of(text)
    except ObjectiveError as error:
        raise ObjectiveError(f"objective: {error}") from None


def _conditions(filters: Sequence[Filter], until_s: float) -> tuple[Condition, ...]:
    if len(filters) > MAX_FILTERS:
        raise InvalidRequest(f"filters: got {len(filters)}; the limit is {MAX_FILTERS}")
    conditions = []
    for at, one in enumerate(filters):
        check_deadline(until_s)
        conditions.append(_condition(f"filters[{at}]", one))
    return tuple(conditions)


def _condition(path: str, one: Filter) -> Condition:
    field = _named(f"{path}.field", one.field)
    test = one.WhichOneof("test")
    if test is None:
        raise InvalidRequest(f"{path}: no test; give any_of, none_of or range")
    if test == "range":
        return _in_range(f"{path}.range", field, one)
    values = one.any_of.values if test == "any_of" else one.none_of.values
    if not 1 <= len(values) <= MAX_FILTER_VALUES:
        raise InvalidRequest(f"{path}.{test}: got {len(values)} values, expected 1 to {MAX_FILTER_VALUES}")
    return AnyOf(field, tuple(values)) if test == "any_of" else NoneOf(field, tuple(values))


def _in_range(path: str, field: str, one: Filter) -> InRange:
    least = one.range.min if one.range.HasField("min") else -math.inf
    most = one.range.max if one.range.HasField("max") else math.inf
    if not least <= most:  # also where one is NaN
        raise InvalidRequest(f"{path}: got {least} to {most}, expected a min that is not above the max")
    return InRange(field, least, most)


def _caps(caps: Sequence[CapMessage]) -> tuple[Cap, ...]:
    if len(caps) > MAX_CAPS:
        raise InvalidRequest(f"caps: got {len(caps)}; the limit is {MAX_CAPS}")
    for at, cap in enumerate(caps):
        if cap.at_most < 1:
            raise InvalidRequest(f"caps[{at}].at_most: got {cap.at_most}, expected at least 1")
    return tuple(Cap(_named(f"caps[{at}].field", cap.field), cap.at_most) for at, cap in enumerate(caps))


def _exploration(message: ExplorationMessage) -> Exploration:
    policy = message.WhichOneof("policy")
    if policy is None:
        raise InvalidRequest("exploration: no policy; give ucb or thompson")
    width = message.ucb.width if policy == "ucb" else message.thompson.width
    if not 0.0 <= width < math.inf:
        raise InvalidRequest(f"exploration.{policy}.width: got {width}, expected a finite number, 0 or more")
    return UpperConfidenceBound(width) if policy == "ucb" else Thompson(width)


def _named(path: str, field: str) -> str:
    if not field:
        raise InvalidRequest(f"{path}: empty; name an item's field")
    return field
