"""How often people look at a position: a market whose curve is known, obvious loops, and what cannot be told."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import ftrie
from ftrie.demo.market import looked_at
from model_store.errors import SpecError
from model_store.spec.spec import parse_spec
from trainer.inspect import examination
from trainer.inspect.examination import ItemPositions, fragment

PLACES = 8
TRUE = looked_at(PLACES)


def market(
    lists: int, seed: int, items: int = 200, noise: float = 0.7, propensity: bool = False, level: float = -2.0
):
    """Lists ordered by what is known of the items, with noise: items, positions, whether drawn, attraction, clicks."""
    random = np.random.default_rng(seed)
    attraction = np.exp(random.normal(level, 0.8, items)).clip(0, 0.8)
    candidates = np.argsort(random.random((lists, items)), 1)[:, : 2 * PLACES]
    scores = np.log(attraction[candidates]) + random.normal(0, noise, candidates.shape)
    order = np.take_along_axis(candidates, np.argsort(-scores, 1), 1)[:, :PLACES]
    clicks = random.random(order.shape) < TRUE * attraction[order]
    place = np.tile(np.arange(1, PLACES + 1), lists)
    drawn = np.full(place.size, propensity)
    return order.ravel(), place, drawn, attraction[order.ravel()], clicks.ravel().astype(np.float64)


def hashes(items: np.ndarray) -> np.ndarray:
    return (items.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)


def counted(items, place, drawn, clicks, pieces: int = 3) -> ItemPositions:
    made = ItemPositions()
    for part in np.array_split(np.arange(items.size), pieces):
        made.add(hashes(items[part]), place[part], drawn[part], np.ones(part.size), clicks[part])
    return made


@pytest.mark.slow
def test_a_market_with_a_known_curve_is_recovered_within_five_percent_by_both_estimates() -> None:
    items, place, drawn, _, clicks = market(40_000, seed=1)
    assert clicks.sum() > 35_000
    found = counted(items, place, drawn, clicks).examined()
    assert [each.position for each in found] == list(range(1, PLACES + 1))
    naive = np.bincount(place, clicks)[1:] / np.bincount(place)[1:]
    assert abs(naive[-1] / naive[0] / TRUE[-1] - 1) > 0.3, "click rates alone say that people look less"
    for each, true in zip(found, TRUE, strict=True):
        assert each.swaps is not None
        for theta, low, high in (each.theta, each.swaps):
            assert theta == pytest.approx(true, rel=0.05) and low <= theta <= high
    assert (
        np.mean([each.theta[1] <= true <= each.theta[2] for each, true in zip(found, TRUE, strict=True)])
        > 0.7
    )


def test_the_estimates_are_those_of_obvious_loops() -> None:
    items, place, drawn, _, clicks = market(1_500, seed=2, items=40)
    found = counted(items, place, drawn, clicks).examined()
    views, clicked = np.zeros((40, PLACES)), np.zeros((40, PLACES))
    for item, at, click in zip(items, place - 1, clicks, strict=True):
        views[item, at] += 1
        clicked[item, at] += click
    theta = [1.0] * PLACES
    for _ in range(300):
        rate = [
            sum(clicked[i]) / max(sum(views[i, k] * theta[k] for k in range(PLACES)), 1e-9) for i in range(40)
        ]
        theta = [sum(clicked[:, k]) / sum(views[i, k] * rate[i] for i in range(40)) for k in range(PLACES)]
        theta = [each / theta[0] for each in theta]
    assert [each.theta[0] for each in found] == pytest.approx(theta, rel=1e-4)
    pairs = []
    for one in range(PLACES):
        for other in range(one + 1, PLACES):
            sums = [0.0, 0.0, 0.0]
            for i in range(40):
                if views[i, one] and views[i, other]:
                    both = views[i, one] + views[i, other]
                    sums[0] += clicked[i, one] * views[i, other] / both
                    sums[1] += clicked[i, other] * views[i, one] / both
                    sums[2] += views[i, one] * views[i, other] / both
            pairs.append((one, other, sums))
    swaps = [1.0] * PLACES
    for _ in range(500):
        rates = [(a + b) / (w * (swaps[one] + swaps[other])) for one, other, (a, b, w) in pairs]
        clicks_at, looks_at = [0.0] * PLACES, [0.0] * PLACES
        for (one, other, (a, b, w)), rate in zip(pairs, rates, strict=True):
            clicks_at[one] += a
            clicks_at[other] += b
            looks_at[one] += w * rate
            looks_at[other] += w * rate
        swaps = [a / b for a, b in zip(clicks_at, looks_at, strict=True)]
        swaps = [each / swaps[0] for each in swaps]
    assert [each.swaps and each.swaps[0] for each in found] == pytest.approx(swaps, rel=1e-4)


def test_where_exploration_drew_some_rows_swaps_are_of_these_alone() -> None:
    one, other = market(4_000, seed=3), market(4_000, seed=4, propensity=True)
    both = [np.concatenate([a, b]) for a, b in zip(one, other, strict=True)]
    found = counted(both[0], both[1], both[2], both[4]).examined()
    alone = counted(other[0], other[1], other[2], other[4]).examined()
    assert [each.swaps for each in found] == [each.swaps for each in alone]
    assert [each.theta for each in found] != [each.theta for each in alone]


def test_what_cannot_be_compared_is_left_out_and_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    items, place, drawn, _, clicks = market(3_000, seed=5)
    assert counted(place, place, drawn, clicks).examined() == (), "each item is always at the same place"
    assert counted(items, place, drawn, 0 * clicks).examined() == ItemPositions().examined() == ()
    apart = np.where(place > 4, items + 10_000, items)  # two groups of items, never at the same places
    assert [each.position for each in counted(apart, place, drawn, clicks).examined()] == [1, 2, 3, 4]
    monkeypatch.setattr(examination, "MOST_CELLS", 500)
    few = counted(items, place, drawn, clicks, pieces=40)
    assert few.examined()[0].clicks < clicks[place == 1].sum() and few._items.size <= 500


@pytest.mark.slow
def test_a_model_that_learns_clicks_by_the_printed_lines_predicts_what_those_who_look_click() -> None:
    items, place, _, attraction, clicks = market(20_000, seed=6, items=40, noise=1.5, level=-3.0)
    table = pa.table(
        {"click": clicks.astype(np.int64), "ad": [f"i{each}" for each in items], "position": place}
    )
    head = '[model]\nname = "m"\n[input]\nlabel = "click"\nitem = "ad"\n'
    tail = '\n[fields]\nad = { side = "item" }\n[learner]\nl1 = 0\nalpha = 0.3\n'
    found = ftrie.doctor(table, head + tail, progress=False)
    assert "examination" in found.to_dict() and found.spec_fragment.startswith(
        'position = "position"\nexamination = [1, '
    )
    truth = np.array([attraction[items == each][0] for each in range(40)])
    ads, views = pa.table({"ad": [f"i{each}" for each in range(40)]}), np.bincount(items)
    errors = {}
    for name, lines in {"with": found.spec_fragment, "without": ""}.items():
        predicted = ftrie.train(head + lines + tail, table, progress=False).model.predict(ads)
        wrong = np.abs(predicted["base"].to_numpy() - truth)
        errors[name] = float((wrong @ views) / (truth @ views))
    assert errors["with"] < 0.12 < 0.4 < errors["without"]


def test_the_fragment_fills_gaps_and_a_spec_reads_it() -> None:
    items, place, drawn, _, clicks = market(3_000, seed=7)
    kept = place != 3
    found = counted(items[kept], place[kept], drawn[kept], clicks[kept]).examined()
    lines = fragment(found, "position")
    head = '[model]\nname = "m"\n[input]\nlabel = "y"\n'
    values = parse_spec(head + lines + "\n[fields]\nad = {}\n").input.examination
    assert values is not None and len(values) == PLACES and values[0] == 1.0 and values[1] == values[2]
    for wrong in ("[0, 1]", "[]", '["a"]', "[true]", "0.5", "[11]", "[nan]"):
        with pytest.raises(SpecError, match="expected numbers from 0.001 to 10, one a position from 1"):
            parse_spec(f"{head}position = 'p'\nexamination = {wrong}\n[fields]\nad = {{}}\n")
    with pytest.raises(SpecError, match="examination needs position"):
        parse_spec(head + "examination = [1.0]\n[fields]\nad = {}\n")
