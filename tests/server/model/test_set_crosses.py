"""Sets that are crossed with one another: a request may not make a worker walk millions of keys."""

from __future__ import annotations

import pytest

from model_store.features.features import FeaturePlan
from model_store.spec.spec import parse_spec
from model_store.spec.values import Value
from server.errors import InvalidRequest
from server.model.tokens import SetCrosses
from server.ranking.ranker import Ranker
from tests.server.ranked import ranked, ranker_of
from tests.server.slow_ranker import artefact_of

SPEC = parse_spec("""
[model]
name = "sets"
[input]
label = "click"
[fields]
likes = { side = "user", kind = "set" }
seen = { side = "context", kind = "set" }
hour = { side = "context" }
tags = { side = "item", kind = "set" }
sizes = { side = "item", kind = "set" }
[[crosses]]
fields = ["likes", "hour", "seen"]
[[crosses]]
fields = ["likes", "tags", "sizes"]
""")
KEYS = (b"bias", b"likes*hour*seen=a*7*b", b"likes*tags*sizes=a*b*c")
MANY = [str(number) for number in range(2000)]


@pytest.fixture(scope="module")
def ranker() -> Ranker:
    return ranker_of(artefact_of(SPEC, dict.fromkeys(KEYS, (1.0, 1))))


def test_sets_of_a_request_that_make_too_many_keys_are_refused(ranker: Ranker) -> None:
    few: dict[str, Value] = {"likes": ["a", "x"], "hour": "7", "seen": ["b"]}
    assert ranked(ranker, few, ["item"]).score == [2.0]
    assert ranked(ranker, {"likes": MANY, "hour": "7", "seen": MANY[:400]}, ["item"]).score == [1.0]
    said = r"the sets of likes\*hour\*seen: they make more than 1,000,000 keys"
    with pytest.raises(InvalidRequest, match=said):
        ranked(ranker, {"likes": MANY, "hour": "7", "seen": MANY}, ["item"])


def test_sets_of_items_count_together_and_other_plans_have_none_to_count(ranker: Ranker) -> None:
    large: dict[str, Value] = {"tags": [*MANY[:999], "b"], "sizes": [*MANY[:299], "c"]}
    items = [(str(number), large) for number in range(4)]
    assert ranked(ranker, {"likes": ["a"]}, [], items[:3]).score == [2.0] * 3
    with pytest.raises(InvalidRequest, match=r"the sets of likes\*tags\*sizes"):
        ranked(ranker, {"likes": ["a"]}, [], items)
    plan = FeaturePlan.of(SPEC)
    fewer = [field for field in plan.fields if field.name != "seen" and field.side != "item"]
    assert SetCrosses(plan, plan.request_fields)
    assert not SetCrosses(plan, fewer)
