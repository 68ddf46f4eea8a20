"""Proposed crosses against logs whose truth is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from model_store.errors import SpecError
from model_store.spec.spec import parse_spec
from tests.trainer.tune.logs import SPEC, write_log
from trainer.examples.open_log import Log
from trainer.tune.crosses import pairs_of, propose
from trainer.tune.passes import RepeatedLog
from trainer.tune.search import with_best

FIELDS = """
[model]
name = "m"
[input]
label = "click"
[fields]
price = { kind = "number" }
usual = { kind = "number" }
dear = { kind = "number", ratio = ["price", "usual"] }
level = { kind = "number", column = "price", bucket = "log" }
hour = { kind = "time", part = "hour", column = "ts" }
day = { kind = "time", part = "weekday", column = "ts" }
stamp = { column = "ts" }
hashes = { kind = "raw" }
title = { kind = "text" }
brand = {}
"""


def proposed(log, **options):
    return propose(parse_spec(SPEC), {"alpha": 0.2}, RepeatedLog(Log([log])), variant="base", **options)


def test_a_planted_cross_is_proposed_and_nothing_else(tmp_path):
    found = proposed(write_log(tmp_path / "log.csv", 4000, 1, effect=1.0))
    assert found.features == (("a", "b"),)
    (cross,) = found.proposed
    assert cross.keys == 9
    low, high = cross.gain.interval()
    assert 0.0 < low < cross.gain.mean < high and found.tried[0].fields == ("a", "b")
    assert len(found.tried) == 6


def test_a_log_without_an_effect_proposes_none_in_19_of_20_searches(tmp_path):
    searches = 60
    wrong = sum(
        bool(proposed(write_log(tmp_path / "log.csv", 600, seed)).features) for seed in range(searches)
    )
    assert wrong <= 0.05 * searches


def test_a_cross_over_the_budget_of_keys_is_named_and_left_out(tmp_path):
    log = write_log(tmp_path / "log.csv", 4000, 1, effect=1.0)
    assert proposed(log, budget=9).features == (("a", "b"),)
    sparse = propose(parse_spec(SPEC), {"l1": 30.0}, RepeatedLog(Log([log])), variant="base")
    assert {each.keys for each in sparse.tried} == {9}  # whatever the parameters chosen later
    found = proposed(log, budget=8)
    assert (found.features, [each.fields for each in found.too_large]) == ((), [("a", "b")])


def test_a_cross_of_an_item_with_its_own_attribute_is_named_and_not_proposed(tmp_path):
    """Given an e that is constant for each a, when crosses are tried, a*e is none, whatever it would gain."""
    log = Path(write_log(tmp_path / "log.csv", 4000, 1, effect=1.0))
    head, *lines = log.read_text().splitlines()
    log.write_text("\n".join([f"{head},e", *(f"{line},e{'a2' in line:d}" for line in lines)]) + "\n")
    spec = parse_spec(SPEC.replace("d = {}", "d = {}\ne = {}"))
    found = propose(spec, {"alpha": 0.01}, RepeatedLog(Log([str(log)])), variant="base")
    assert {each.fields: each.same_as for each in found.tried if each.same_as} == {("a", "e"): "a"}
    assert next(each for each in found.tried if each.fields == ("a", "e")).gain.mean > 0.0
    assert ("a", "b") in found.features and ("a", "e") not in found.features


def test_pairs_that_cannot_gain_are_not_tried():
    pairs = set(pairs_of(parse_spec(FIELDS), "base"))
    names = {"price", "usual", "dear", "level", "hour", "day", "stamp", "brand"}
    assert {name for pair in pairs for name in pair} == names
    for one, other in [
        ("price", "usual"),
        ("price", "dear"),
        ("price", "level"),
        ("hour", "stamp"),
        ("usual", "dear"),
    ]:
        assert (one, other) not in pairs
    assert {("hour", "day"), ("price", "brand"), ("level", "brand"), ("usual", "level")} <= pairs


def test_fields_that_a_variant_lacks_and_crosses_that_the_spec_has_are_not_tried():
    crosses = '[[crosses]]\nfields = ["b", "a"]\n[variants]\nlean = { without = ["d"] }\n'
    spec = parse_spec(SPEC.replace("[learner]", crosses + "[learner]"))
    assert set(pairs_of(spec, "lean")) == {("a", "c"), ("b", "c")}


def test_a_spec_with_nothing_to_cross_is_refused(tmp_path):
    spec = parse_spec(SPEC.replace("b = {}\nc = {}\nd = {}\n", ""))
    log = RepeatedLog(Log([write_log(tmp_path / "log.csv", 10, 1)]))
    with pytest.raises(SpecError, match="no two fields"):
        propose(spec, {}, log, variant="base")


def test_the_best_spec_has_the_crosses_after_its_own():
    text = SPEC + '[[crosses]]\nfields = ["a", "b"]\n'
    best = parse_spec(with_best(text, parse_spec(text), {"alpha": 0.7}, [("c", "d")]))
    assert [cross.fields for cross in best.crosses] == [("a", "b"), ("c", "d")]
    assert best.learner.alpha == 0.7
    inline = SPEC.replace("[model]", 'crosses = [{ fields = ["a", "b"] }]\n[model]')
    with pytest.raises(SpecError, match=r'add to its crosses: \{ fields = \["c", "d"\] \}'):
        with_best(inline, parse_spec(inline), {"alpha": 0.7}, [("c", "d")])
