"""The spec: what it accepts, what it refuses and in which words, and what it makes of a log's columns."""

from __future__ import annotations

import re

import pytest

from model_store.errors import SpecError
from model_store.spec.spec import load_spec, parse_spec, spec_from_json

HEAD = '[model]\nname = "ads"\n[input]\nlabel = "click"\n'
AGE = "[fields]\nage = "
OGD = '[learner]\nalgorithm = "ogd"\n'
GLOBAL = OGD + 'rate = "global"\n'
COLUMNS = ("id", "click", "age", "brand")
OWN = '[learner]\nalgorithm = "ftrl"\nvalues = "per_variant"\n[variants]\n'
TRUNCATED = OWN.replace('"ftrl"', '"truncation"\ntheta = 0.1')
BY_AGE = '[fields]\nage = {}\n[calibration]\nkind = "power"\nby = "age"\n'


def test_four_lines_are_a_spec():
    spec = parse_spec(HEAD).resolve(COLUMNS)
    assert list(spec.fields) == ["id", "age", "brand"]
    assert all(field.kind == "category" and field.side == "context" for field in spec.fields.values())
    assert {name: variant.share for name, variant in spec.variants.items()} == {"base": 1.0}
    # Named and ignored columns are no fields.
    spec = parse_spec(f'{HEAD}cookie = "age"\nignore = ["id"]\n').resolve(COLUMNS)
    assert list(spec.fields) == ["brand"]
    assert spec.wanted_columns() == ("click", "brand")


def test_shares_are_even_where_none_is_given_and_may_miss_one_by_a_rounding_error():
    spec = parse_spec(f"{HEAD}[variants]\na = {{}}\nb = {{}}\nc = {{}}\n")
    assert [variant.share for variant in spec.variants.values()] == pytest.approx([1 / 3] * 3)
    parse_spec(f"{HEAD}[variants]\na = {{ share = 0.3333333 }}\nb = {{ share = 0.6666669 }}\n")


@pytest.mark.parametrize(
    ("given", "alpha", "l1", "auto"),
    [
        ('algorithm = "adpredictor"\nalpha = "auto"', 0.03, 0.0, ("alpha",)),
        ('algorithm = "fobos"\nl1 = "auto"', 0.1, 0.0, ("l1",)),
        ('algorithm = "adpredictor"\nrate_scale = 0.1\nrate_decay = 0.5', 0.2, 0.0, ()),
        ('l1 = "auto"', 0.1, 1.0, ("l1",)),
    ],
)
def test_what_is_left_to_be_chosen_has_the_algorithms_default_until_then(given, alpha, l1, auto):
    learner = parse_spec(f"{HEAD}[learner]\n{given}\n").learner
    assert (learner.alpha, learner.l1, learner.auto) == (alpha, l1, auto)


def test_a_spec_survives_json():
    spec = parse_spec(
        f'{HEAD}[fields]\nage = {{ side = "user" }}\nbrand = {{ side = "item", kind = "set", separator = "|" }}\n'
        '[[crosses]]\nfields = ["age", "brand"]\n[variants]\na = { share = 1 }\n'
        'b = { share = 0, without = ["age*brand"] }\n'
        '[guard]\ncalibration = "off"\nonline_calibration = [0.9, 2]\nkeys_rise = 10\n'
    )
    again = spec_from_json(spec.to_json())
    assert again == spec
    assert again.sha256 == spec.sha256 != parse_spec(HEAD).sha256


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[fields]\n\"\" = { column = 'age' }\n", "fields: a name may not be empty"),
        ("foo = 1\n", "input.foo: no such key; allowed here: label, weight"),
        (
            "[learner]\nalpha = -1\n",
            "learner.alpha: got -1; input should be greater than or equal to 0.00000",
        ),
        ("[learner]\nalpha = 1e13\n", "learner.alpha: got 10000000000000.0; input should be less than"),
        ("[learner]\nbeta = 1e-300\n", "learner.beta: got 1e-300; expected 0, or 1e-12 to 1e+12"),
        ("[learner]\nl2 = 1e300\n", "learner.l2: got 1e+300; input should be less than"),
        (OGD + 'rate = "constant"\nbeta = 0\n', "beta is 0: an unseen key's"),
        ('[learner]\nrate = "constant"\nbeta = 0\nl2 = 1\n', "beta is 0: an unseen key's"),
        (OWN + "a = { beta = 0 }\n", "variants.a: beta is 0 and so is l2"),
        (TRUNCATED + "a = { l1 = 1 }\n", "variants.a.l1: l1 does not belong to"),
        (OGD + "l2 = 10\n", "eta l2 must be below 1; lower l2 or alpha, or take"),
        (OWN.replace("ftrl", "ogd") + "a = { l2 = 10 }\n", "variants.a: l2 = 10 is too large"),
        (GLOBAL + "l1 = 0.1\n", 'take algorithm = "fobos", which stops at 0, or shrink = "touched"'),
        (GLOBAL + '[rules."a="]\nl1 = 0.1\n', 'rules."a=".l1: l1 does not fit algorithm = "ogd" with rate'),
        ('[learner]\nshrink = "fixed"\n', 'shrink = "fixed" belongs to truncated_gradient'),
        ('[learner]\nalgorithm = "adam"\n', "input should be 'ogd', 'truncation'"),
        ("[learner]\nrate_scale = 1\n", "either alpha and beta, or rate_scale and rate_decay"),
        (AGE + '{ kind = "numbr" }\n', "fields.age.kind: got 'numbr'; input should be 'category'"),
        (AGE + '{ bucket = "log" }\n', 'bucket belongs to kind = "set" or "number"'),
        (AGE + '{ kind = "time" }\n', 'kind = "time" needs part'),
        (AGE + '{ side = "users" }\n', "'user', 'item' or 'context'"),
        (AGE + '{}\n[[crosses]]\nfields = ["age", "bran"]\n', "crosses[0]: no field 'bran'; fields: age"),
        (AGE + '{}\n[[crosses]]\nfields = ["age", "age"]\n', "a cross names a field twice"),
        (
            "[variants]\na = { share = 0.5 }\nb = { share = 0.4 }\n",
            "the shares must sum to 1, they sum to 0.9",
        ),
        ("[variants]\n" + "".join(f"v{i} = {{}}\n" for i in range(33)), "from 1 to 32 are allowed, got 33"),
        (
            AGE + '{}\n[variants]\na = { share = 1, without = ["ages"] }\n',
            "variants.a.without: 'ages' is neither a field nor a cross; fields and crosses: age; did you mean age?",
        ),
        ('[calibration]\nby = "age"\n', 'by = "age" needs kind = "power" or "isotonic"'),
        (BY_AGE.replace('"age"', '"ages"'), "calibration.by: no field 'ages'; fields: age"),
        (BY_AGE.replace("{}", '{ side = "item" }'), "'age' is a field of the item"),
        (BY_AGE.replace("{}", '{ kind = "set" }'), "'age' is of kind 'set'; expected a category, a time"),
        (BY_AGE.replace("{}", '{ kind = "number" }'), "'age' is of kind 'number'"),
        ("[guard]\ncalibration = [2, 3]", "guard.calibration: got [2, 3]; expected two numbers around 1"),
        ("[guard]\nonline_calibration = 0.5", "got 0.5; expected two numbers around 1, such as [0.8"),
        ('[guard]\ncalibration = "on"', "guard.calibration: got 'on'; expected two numbers around 1"),
        ("[guard]\ncalibration = [0.5, inf]", "guard.calibration: got [0.5, inf]"),
        ("[guard]\nlogloss_rise = -1", 'guard.logloss_rise: got -1; expected a number >= 0, or "off"'),
        ("[guard]\nkeys_fall = true", 'guard.keys_fall: got True; expected a number >= 0, or "off"'),
        ('[guard]\ncooldown = "soon"', "guard.cooldown: got 'soon'; expected a time"),
        ("[guard]\nexamples = 10", "guard.examples: got 10;"),
        ("[guard]\nmin_examples = 20_000", "got 20,000, more than the window of examples = 10,000"),
        (
            "[guard]\nbound = 1",
            "guard.bound: no such key; allowed here: examples, min_examples, logloss_rise",
        ),
        ('[join]\nlate_within = "367d"', "expected at most"),
    ],
)
def test_a_wrong_spec_names_the_key_what_stood_there_and_what_is_allowed(text, message):
    with pytest.raises(SpecError, match=re.escape(message)) as raised:
        parse_spec(HEAD + text, "ads.toml")
    assert str(raised.value).startswith("ads.toml: ")
    assert "\n" not in str(raised.value) or "[guard]" not in text  # one mistake, one message


def test_a_spec_without_what_it_must_have_is_refused(tmp_path):
    for text, message in {
        "[model": "not valid TOML",
        '[model]\nname = "a"\n': "input: missing; it is required",
        HEAD.replace("ads", "a b"): "model.name: got the model name 'a b'",
    }.items():
        with pytest.raises(SpecError, match=re.escape(message)):
            parse_spec(text)
    with pytest.raises(SpecError, match=r"cannot read the spec .*No such file"):
        load_spec(tmp_path / "none.toml")


def test_a_guard_is_asked_for_by_its_section_and_specs_without_it_are_what_they_were():
    """The hash is that of earlier versions."""
    plain, spec = parse_spec(HEAD.replace("ads", "m").replace("click", "y")), parse_spec(HEAD + "[guard]\n")
    assert plain.sha256 == "2ac5034233402a2d31df7de944ae1ac441307b676171941db03f5bc6a7103679"
    assert parse_spec(HEAD + "[join]\n").sha256 == parse_spec(HEAD).sha256 != spec.sha256
    assert plain.guard is None and spec.guard is not None
    assert (spec.guard.calibration, spec.guard.cooldown_s) == ((0.8, 1.25), 600)
    assert spec.without_guard() == parse_spec(HEAD)


def test_a_missing_column_is_named_with_those_there_are():
    there = "input.label: no column 'clicked' in the log; it has: id, click, age, brand"
    for text, message in {
        HEAD.replace("click", "clicked"): there,
        HEAD + 'weight = "w"\n': "input.weight: no column 'w'",
        HEAD + 'timestamp = "ts"\n': "input.timestamp: no column 'ts'",
        HEAD + '[fields]\nage = { column = "years" }\n': "fields.age: no column 'years'",
    }.items():
        with pytest.raises(SpecError, match=re.escape(message)):
            parse_spec(text).resolve(COLUMNS)


def test_what_is_seldom_meant_is_said_and_allowed():
    fields = HEAD + '[fields]\nprice = { kind = "number" }\nage = {}\n'
    assert parse_spec(fields).warnings() == ()
    (doubt,) = parse_spec(fields + '[learner]\nrate = "counts"\n').warnings()
    assert "fields.price" in doubt and 'bucket = "log"' in doubt
    assert parse_spec(HEAD + '[join]\nwindow = "366d"').join.window == "366d"
