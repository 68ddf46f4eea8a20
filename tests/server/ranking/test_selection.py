"""Selection against the slow one in plain Python, and what each option promises."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr.v1.ranking_pb2 import RankRequest
from model_store.artefact.calibration import PowerCurve
from model_store.features.features import FeaturePlan
from model_store.spec.spec import parse_spec
from server.errors import DeadlinePassed, InvalidRequest
from server.model.columns import Catalogue
from server.ranking.limits import MAX_CAPS, MAX_FILTER_VALUES, MAX_FILTERS
from server.ranking.request import Received, read_options
from server.ranking.select.exploration import Exploration, normals
from server.ranking.select.filters import AnyOf, CandidateColumns, Cap, Condition, InRange, NoneOf
from server.ranking.select.selection import Options, Scored, Selection
from tests.matrix import examples

Record = Mapping[str, str]

PLAN = FeaturePlan.of(
    parse_spec('model = { name = "m" }\ninput = { label = "click" }\nfields = { brand = { side = "item" } }')
)


def candidates(records: list[Record]) -> CandidateColumns:
    catalogue = Catalogue.build(PLAN, zip(ids(records), records, strict=True))
    return CandidateColumns(catalogue, ids(records), np.arange(len(records), dtype=np.int32), [])


def ids(records: list[Record]) -> list[str]:
    return [f"i{at}" for at in range(len(records))]


def select(
    scores: list[float],
    records: list[Record] | None = None,
    top_k: int | None = None,
    uncertainty: list[float] | None = None,
    request_id: str = "r",
    curve: Any = None,
    **message: Any,
) -> Selection:
    records = [{} for _ in scores] if records is None else records
    sigma = None if uncertainty is None else np.array(uncertainty)
    scored = Scored(np.array(scores, np.float64), sigma, curve)
    return options_of(message).select(scored, candidates(records), ids(records), top_k, request_id)


def options_of(message: dict[str, Any], objective: str = "", until_s: float = math.inf) -> Options:
    options = read_options(Received.of(RankRequest(**message)).extras, objective, until_s)
    assert options is not None
    return options


def slow_passes(condition: Condition, record: Record) -> bool:
    text = record.get(condition.field, "")
    if isinstance(condition, InRange):
        number = number_in(text)
        return number is not None and condition.least <= number <= condition.most
    has = text != "" and text.encode() in condition.texts
    return has if isinstance(condition, AnyOf) else isinstance(condition, NoneOf) and not has


def number_in(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def slow_select(
    scores: Sequence[float],
    records: Sequence[Record],
    conditions: Sequence[Condition],
    caps: Sequence[Cap],
    value: Callable[[float, Record], float],
    top_k: int | None,
) -> list[int]:
    """The numbers of the candidates returned, best first."""

    def key(at: int) -> tuple[bool, float, int]:
        number = value(scores[at], records[at])
        finite = math.isfinite(number)
        return not finite, -(number if finite else scores[at]), at

    kept = [at for at in range(len(scores)) if all(slow_passes(c, records[at]) for c in conditions)]
    counts: Counter[tuple[int, str]] = Counter()
    taken: list[int] = []
    for at in sorted(kept, key=key):
        mine = [(number, records[at].get(cap.field, "")) for number, cap in enumerate(caps)]
        mine = [(number, text) for number, text in mine if text]
        if all(counts[group] < caps[group[0]].at_most for group in mine):
            counts.update(mine)
            taken.append(at)
    return taken[:top_k]


FIELD = st.sampled_from(["seller", "brand", "bid", "gone"])
RECORD = st.fixed_dictionaries(
    {},
    optional={
        "seller": st.sampled_from("ab"),
        "brand": st.sampled_from("xyz"),
        "bid": st.sampled_from(["1", "2", "", "-1", "x"]),
    },
)
TEXTS = st.frozensets(st.sampled_from([b"a", b"b", b"x", b"1", b"2"]), min_size=1, max_size=3)
CONDITION: st.SearchStrategy[Condition] = st.one_of(
    st.builds(AnyOf, FIELD, TEXTS),
    st.builds(NoneOf, FIELD, TEXTS),
    st.builds(InRange, FIELD, st.sampled_from([-math.inf, 0.0, 1.0]), st.sampled_from([1.0, math.inf])),
)


@examples(300)
@given(
    st.lists(st.tuples(st.sampled_from([-1.0, 0.0, 0.5, 2.0]), RECORD), max_size=14),
    st.lists(CONDITION, max_size=2),
    st.lists(st.builds(Cap, FIELD, st.integers(1, 3)), max_size=2),
    st.sampled_from(["", "score * bid", "bid", "score * (bid ?? 1)", "-score"]),
    st.one_of(st.none(), st.integers(1, 9)),
)
def test_the_items_and_their_order_equal_the_slow_selection(
    items: list[tuple[float, Record]],
    conditions: list[Condition],
    caps: list[Cap],
    objective: str,
    top_k: int | None,
) -> None:
    def value(score: float, record: Record) -> float:
        bid = number_in(record.get("bid", ""))
        missing = math.nan if bid is None else bid
        return {
            "": score, "score * bid": score * missing, "bid": missing,
            "score * (bid ?? 1)": score * (1.0 if bid is None else bid), "-score": -score,
        }[objective]  # fmt: skip

    scores, records = [score for score, _ in items], [record for _, record in items]
    expected = slow_select(scores, records, conditions, caps, value, top_k)
    compiled = options_of({"objective": objective}).objective if objective else None
    plan = Options(compiled, tuple(conditions), tuple(caps), None)
    scored = Scored(np.array(scores, np.float64), None, None)
    found = plan.select(scored, candidates(records), ids(records), top_k, "r")
    assert found.order.tolist() == expected
    assert found.score.tolist() == [scores[at] for at in expected]
    if objective:
        assert found.objective is not None
        slow = [value(scores[at], records[at]) for at in expected]
        assert np.array_equal(found.objective, np.array(slow), equal_nan=True)


def test_an_objective_is_returned_and_items_without_a_finite_value_stand_last_by_score() -> None:
    found = select([0.0, 1.0, 2.0], [{"bid": "4"}, {"bid": "1"}, {"bid": "1"}], objective="ctr * bid")
    assert found.order.tolist() == [0, 2, 1]
    assert found.objective == pytest.approx(found.ctr * [4, 1, 1])
    assert (found.notes, found.uncertainty, found.propensity) == ([], None, None)
    for text, bids, without, why in (
        ("ctr * bid", [{"bid": "1"}, {}, {"bid": "soon"}], 2, "no number in 'bid'"),
        ("1 / bid", [{"bid": "1"}, {"bid": "0"}, {"bid": "-1"}], 1, "the result is not finite"),
    ):
        found = select([0.0, 1.0, 2.0], bids, objective=text)  # type: ignore[arg-type]
        assert found.order.tolist() == [0, 2, 1]
        note = f"objective: {without} of 3 candidates have no value and are ranked last: {why}"
        assert list(map(str, found.notes)) == [note]


def test_ctr_goes_through_the_curve_in_the_answer_and_in_the_objective() -> None:
    found = select([0.0, 1.0], curve=PowerCurve(0.5, 1.0), objective="-ctr")
    assert found.order.tolist() == [0, 1]
    assert found.objective is not None
    assert found.ctr.tolist() == [0.25, 0.5 / (1 + math.exp(-1.0))]
    assert found.objective.tolist() == (-found.ctr).tolist()


def test_nothing_to_return_is_no_trouble() -> None:
    found = select([1.0], filters=[{"field": "seller", "any_of": {"values": ["z"]}}])
    assert (found.order.tolist(), found.ctr.tolist()) == ([], [])
    capped = {"objective": "bid", "caps": [{"field": "a", "at_most": 1}]}
    for policy in ({"ucb": {"width": 1.0}}, {"thompson": {"width": 1.0}}):
        assert select([], [], 3, [], exploration=policy, **capped).order.tolist() == []


def test_ucb_adds_the_uncertainty_to_what_orders_and_to_the_ctr_that_the_objective_sees() -> None:
    found = select([1.0, 0.9, 0.0], uncertainty=[0.0, 0.2, 0.1], exploration={"ucb": {"width": 2.0}})
    assert found.order.tolist() == [1, 0, 2]
    assert found.score.tolist() == [0.9, 1.0, 0.0], "what is returned is the model's own score"
    assert found.uncertainty is not None and found.propensity is not None
    assert (found.uncertainty.tolist(), found.propensity.tolist()) == ([0.2, 0.0, 0.1], [1.0, 1.0, 1.0])
    found = select([0.0], uncertainty=[1.0], exploration={"ucb": {"width": 1.0}}, objective="ctr")
    assert found.objective is not None
    assert (found.objective[0], found.ctr[0]) == (1 / (1 + math.exp(-1.0)), 0.5)


THOMPSON = {"thompson": {"width": 1.0}}


def test_a_draw_depends_on_the_request_and_the_item_alone() -> None:
    names = [f"item {at}" for at in range(50)]
    draws = dict(zip(names, normals("r1", names).tolist(), strict=True))
    some = list(reversed(names[10:20]))
    assert normals("r1", some).tolist() == [draws[name] for name in some]
    assert not set(normals("r2", names).tolist()) & set(draws.values())
    twice = normals("r", ["a", "b", "a"])
    assert len(set(twice.tolist())) == 3, "a candidate that comes twice is drawn twice"
    assert twice[:2].tolist() == normals("r", ["a", "b"]).tolist()


def test_draws_are_standard_normal_and_independent() -> None:
    names = [f"item-{at}" for at in range(2000)]
    draws = np.array([normals(f"request {at}", names) for at in range(50)])
    assert abs(draws.mean()) < 0.015
    assert draws.std() == pytest.approx(1.0, abs=0.015)
    assert np.abs(np.corrcoef(draws[:20])[np.triu_indices(20, 1)]).max() < 0.12
    below = [(draws < z).mean() for z in (-2.0, -1.0, 0.0, 1.0, 2.0)]
    assert below == pytest.approx([0.0228, 0.1587, 0.5, 0.8413, 0.9772], abs=0.005)


def test_thompson_is_decided_by_the_request_id_and_its_propensities_are_frequencies() -> None:
    scores, sigma = [0.2 * at for at in range(8)], [0.25 * (1 + at % 3) for at in range(8)]

    def ask(request_id: str) -> tuple[list[int], list[float]]:
        found = select(scores, None, 3, sigma, request_id, exploration={"thompson": {"width": 2.0}})
        assert found.propensity is not None
        return found.order.tolist(), found.propensity.tolist()

    assert ask("a") == ask("a")
    count = 400
    answers = [ask(f"r{number}") for number in range(count)]
    said = {at: p for order, propensities in answers for at, p in zip(order, propensities, strict=True)}
    hits = Counter(at for order, _ in answers for at in order)
    for at, propensity in said.items():
        noise = 4.5 * math.sqrt(propensity * (1 - propensity) / count) + 0.012
        assert hits[at] / count == pytest.approx(propensity, abs=noise)


def test_what_is_certain_or_fails_a_filter_takes_no_part_in_a_propensity() -> None:
    found = select([0.0, 2.0, 1.0], uncertainty=[0.0] * 3, top_k=2, exploration=THOMPSON)
    assert found.order.tolist() == [1, 2], "the plain order"
    assert found.propensity is not None and found.propensity.tolist() == [1.0, 1.0]
    records: list[Record] = [{"seller": "a"}, {"seller": "b"}, {"seller": "a"}]
    some = [{"field": "seller", "any_of": {"values": ["a"]}}]
    found = select([0.0, 9.0, 0.0], records, 1, [1.0] * 3, exploration=THOMPSON, filters=some)
    assert found.propensity is not None
    assert found.propensity.tolist() == pytest.approx([0.5], abs=1e-3)


def test_the_models_objective_holds_where_the_request_has_none() -> None:
    assert read_options(None, "") is None
    found, own = options_of({}, "ctr * bid"), options_of({"objective": "ctr"}, "ctr * bid")
    assert found.objective is not None and own.objective is not None
    assert (found.objective.text, own.objective.text) == ("ctr * bid", "ctr")
    assert not found.needs_uncertainty
    assert options_of({"objective": "ctr - uncertainty"}).needs_uncertainty
    for policy, is_drawn in (("ucb", False), ("thompson", True)):
        assert options_of({"exploration": {policy: {"width": 0.5}}}).exploration == Exploration(0.5, is_drawn)


TOO_MANY = ["x"] * (MAX_FILTER_VALUES + 1)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"objective": "ctr *"}, "objective: at character 6: got the end"),
        ({"filters": [{"field": "", "any_of": {"values": ["a"]}}]}, "filters[0].field: empty"),
        ({"filters": [{"field": "a"}]}, "filters[0]: no test"),
        ({"filters": [{"field": "a", "any_of": {}}]}, "filters[0].any_of: got 0 values"),
        ({"filters": [{"field": "a", "none_of": {"values": TOO_MANY}}]}, "filters[0].none_of: got"),
        ({"filters": [{"field": "a", "range": {"min": 2, "max": 1}}]}, "filters[0].range: got 2.0 to 1.0"),
        ({"filters": [{"field": "a", "range": {"min": math.nan}}]}, "filters[0].range: got nan"),
        ({"filters": [{"field": "a", "range": {}}] * (MAX_FILTERS + 1)}, "filters: got"),
        ({"caps": [{"field": "a", "at_most": 0}]}, "caps[0].at_most: got 0"),
        ({"caps": [{"at_most": 1}]}, "caps[0].field: empty"),
        ({"caps": [{"field": "a", "at_most": 1}] * (MAX_CAPS + 1)}, "caps: got"),
        ({"exploration": {}}, "exploration: no policy"),
        ({"exploration": {"ucb": {"width": -1}}}, "exploration.ucb.width: got -1.0"),
        ({"exploration": {"thompson": {"width": math.inf}}}, "exploration.thompson.width: got inf"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_refused_with_its_path(message: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        read_options(Received.of(RankRequest(**message)).extras, "")
    assert str(raised.value).startswith(text)


def test_filters_stop_at_the_deadline_while_they_are_read_and_while_they_are_tested() -> None:
    message = {"filters": [{"field": "seller", "any_of": {"values": ["a"]}}]}
    with pytest.raises(DeadlinePassed):
        options_of(message, until_s=0.0)
    options, records = options_of(message), list[Record]([{"seller": "a"}])
    asked = Scored(np.zeros(1), None, None), candidates(records), ids(records), None, "r"
    with pytest.raises(DeadlinePassed):
        options.select(*asked, until_s=0.0)
    assert options.select(*asked).order.tolist() == [0]


EXTREME = st.sampled_from([0.0, 1e-300, 0.5, 3.0, 700.0, 1e30, 1e300, 1.7e308])
WILD = [
    "",
    "score * bid",
    "exp(score)",
    "1 / bid",
    "bid ** score",
    "log(-ctr)",
    "min(score, 1)",
    "0 * uncertainty",
]


@pytest.mark.filterwarnings("error")
@examples(200)
@given(
    st.lists(st.tuples(st.sampled_from([-1.0, 1.0]), EXTREME, EXTREME, RECORD), min_size=1, max_size=8),
    st.sampled_from(WILD),
    EXTREME,
    st.integers(1, 9),
    st.booleans(),
)
def test_extreme_numbers_break_nothing_and_propensities_are_chances(
    items: list[tuple[float, float, float, Record]], objective: str, width: float, top_k: int, capped: bool
) -> None:
    scores = [sign * min(size, 1e30) for sign, size, _, _ in items]
    uncertainty = [min(sigma, 1e30) for _, _, sigma, _ in items]
    records = [record for _, _, _, record in items]
    caps = [{"field": "seller", "at_most": 1}] if capped else []
    for policy in ("ucb", "thompson"):
        more = {"exploration": {policy: {"width": width}}, "objective": objective, "caps": caps}
        found = select(scores, records, top_k, uncertainty, **more)
        assert len(set(found.order.tolist())) == len(found.order) <= top_k
        assert found.propensity is not None
        assert ((found.propensity >= 0.0) & (found.propensity <= 1.0)).all()
