"""From a question to a ranking, whatever is wrong with stored values and whichever items the catalogue lacks."""

from __future__ import annotations

from model_store.errors import FieldValueError
from server import wire
from server.late_items import PART as ITEMS
from server.question import Call, Question
from server.ranker import Ranking
from server.receiving.plain_features import PlainFeatures
from server.users import drop_misfits


def ranked(call: Call, question: Question) -> Ranking:
    """Rank; what had to be left out is in call.degraded then. Raises InvalidRequest where the request is to blame."""
    asked = question.spelled  # late items are added to it, whose records nobody asked with
    try:
        ranking = question.ask(call.serving, call.until_s)
    except FieldValueError as error:
        ranking = _without_misfits(call, question, error)
    if ranking.unknown_items:
        wire.check_unknown(call.message.brief, question.item_ids, ranking.unknown_items)
        ranking = _with_late_items(call, question, ranking)
    if asked and (names := wire.unknown_item_fields(asked, call.serving)):
        ranking.unknown_fields = list(dict.fromkeys([*ranking.unknown_fields, *names]))
    return ranking


def _without_misfits(call: Call, question: Question, error: FieldValueError) -> Ranking:
    """A value does not fit: blame the request if it is in the request, else leave the stored value out."""
    wrong = wire.wrong_value(call.message.with_features(), call.serving)
    if wrong is not None:
        raise wrong from error
    if not isinstance(question.fields, PlainFeatures):
        question.fields, problems = drop_misfits(question.fields, call.serving)
        call.degraded += problems
    return question.ask(call.serving, call.until_s)


def _with_late_items(call: Call, question: Question, ranking: Ranking) -> Ranking:
    """Look the unknown items up and, if the store has some, rank again with those spelled out."""
    records, problems = call.current.late_items.look_up(ranking.unknown_items, call.context)
    call.degraded += problems
    if not records:
        return ranking
    late: list[wire.Spelled] = []
    for item in question.item_ids:
        if item in records:
            fields, problems = drop_misfits(dict(records[item]), call.serving, f"{ITEMS}: {item!r}")
            call.degraded += problems
            late.append((item, fields))
    question.spelled = [*question.spelled, *late]
    question.item_ids = [item for item in question.item_ids if item not in records]
    return question.ask(call.serving, call.until_s)
