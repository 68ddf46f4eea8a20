"""The spec: what it accepts, what it refuses and in which words, and what it makes of a log's columns."""

from __future__ import annotations

import re

import pytest

from model_store.errors import SpecError
from model_store.spec.spec import load_spec, parse_spec, spec_from_json

HEAD = '[model]\nname = "ads"\n[input]\nlabel = "click"\n'
COLUMNS = ("id", "click", "age", "brand")
OWN = '[learner]\nalgorithm = "ftrl"\nvalues = "per_variant"\n[variants]\n'
BY_AGE = '[fields]\nage = {}\n[calibration]\nkind = "power"\nby = "age"\n'


def test_four_lines_are_a_spec():
    spec = parse_spec(HEAD).resolve(COLUMNS)
    assert list(spec.fields) == ["id", "age", "brand"]
    assert all(field.kind == "category" and field.side == "context" for field in spec.fields.values())
    assert {name: variant.share for name, variant in spec.variants.items()} == {"base": 1.0}


def test_named_and_ignored_columns_are_no_fields():
    spec = parse_spec(f'{HEAD}cookie = "age"\nignore = ["id"]\n').resolve(COLUMNS)
    assert list(spec.fields) == ["brand"]
    assert spec.wanted_columns() == ("click", "brand")


def test_shares_are_even_where_none_is_given():
    spec = parse_spec(f"{HEAD}[variants]\na = {{}}\nb = {{}}\nc = {{}}\n")
    assert sum(variant.share for variant in spec.variants.values()) == pytest.approx(1.0)
    assert spec.variants["b"].share == pytest.approx(1 / 3)


def test_a_spec_survives_json():
    spec = parse_spec(
        f'{HEAD}[fields]\nage = {{ side = "user" }}\nbrand = {{ side = "item", kind = "set", separator = "|" }}\n'
        '[[crosses]]\nfields = ["age", "brand"]\n[variants]\na = { share = 1 }\n'
        'b = { share = 0, without = ["age*brand"] }\n'
    )
    again = spec_from_json(spec.to_json())
    assert again == spec
    assert again.sha256 == spec.sha256
    assert parse_spec(HEAD).sha256 != spec.sha256


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[model", "not valid TOML"),
        (f'{HEAD}[fields]\n"" = {{ column = "age" }}\n', "fields: a name may not be empty"),
        ('[model]\nname = "a"\n', "input: missing; it is required"),
        (HEAD.replace("ads", "a b"), "model.name: got the model name 'a b'"),
        (HEAD + "foo = 1\n", "input.foo: no such key; allowed here: label, weight"),
        (
            HEAD + "[learner]\nalpha = -1\n",
            "learner.alpha: got -1; input should be greater than or equal to 0.000000000001",
        ),
        (
            HEAD + "[learner]\nalpha = 1e13\n",
            "learner.alpha: got 10000000000000.0; input should be less than",
        ),
        (HEAD + "[learner]\nbeta = 1e-300\n", "learner.beta: got 1e-300; expected 0, or 1e-12 to 1e+12"),
        (HEAD + "[learner]\nl2 = 1e300\n", "learner.l2: got 1e+300; input should be less than"),
        (HEAD + '[learner]\nalgorithm = "ogd"\nrate = "constant"\nbeta = 0\n', "beta is 0: an unseen key's"),
        (HEAD + '[learner]\nrate = "constant"\nbeta = 0\nl2 = 1\n', "beta is 0: an unseen key's"),
        (HEAD + OWN + "a = { beta = 0 }\n", "variants.a: beta is 0 and so is l2"),
        (
            HEAD + OWN.replace('"ftrl"', '"truncation"\ntheta = 0.1') + "a = { l1 = 1 }\n",
            "variants.a.l1: l1 does not belong to",
        ),
        (
            HEAD + '[learner]\nalgorithm = "ogd"\nl2 = 10\n',
            "eta l2 must be below 1; lower l2 or alpha, or take",
        ),
        (HEAD + OWN.replace("ftrl", "ogd") + "a = { l2 = 10 }\n", "variants.a: l2 = 10 is too large"),
        (
            HEAD + '[learner]\nalgorithm = "ogd"\nrate = "global"\nl1 = 0.1\n',
            'take algorithm = "fobos", which stops at 0, or another rate',
        ),
        (
            HEAD + '[learner]\nalgorithm = "ogd"\nrate = "global"\n[rules."a="]\nl1 = 0.1\n',
            'rules."a=".l1: l1 does not fit algorithm = "ogd" with rate = "global"',
        ),
        (HEAD + '[learner]\nshrink = "fixed"\n', 'shrink = "fixed" belongs to truncated_gradient'),
        (HEAD + '[learner]\nalgorithm = "adam"\n', "input should be 'ogd', 'truncation'"),
        (HEAD + "[learner]\nrate_scale = 1\n", "either alpha and beta, or rate_scale and rate_decay"),
        (
            HEAD + '[fields]\nage = { kind = "numbr" }\n',
            "fields.age.kind: got 'numbr'; input should be 'category'",
        ),
        (HEAD + '[fields]\nage = { bucket = "log" }\n', 'bucket belongs to kind = "number"'),
        (HEAD + '[fields]\nage = { kind = "time" }\n', 'kind = "time" needs part'),
        (HEAD + '[fields]\nage = { side = "users" }\n', "'user', 'item' or 'context'"),
        (
            HEAD + '[fields]\nage = {}\n[[crosses]]\nfields = ["age", "bran"]\n',
            "crosses[0]: no field 'bran'; fields: age",
        ),
        (HEAD + '[fields]\nage = {}\n[[crosses]]\nfields = ["age", "age"]\n', "a cross names a field twice"),
        (
            HEAD + "[variants]\na = { share = 0.5 }\nb = { share = 0.4 }\n",
            "the shares must sum to 1, they sum to 0.9",
        ),
        (
            HEAD + "[variants]\n" + "".join(f"v{i} = {{}}\n" for i in range(33)),
            "from 1 to 32 are allowed, got 33",
        ),
        (
            HEAD + '[fields]\nage = {}\n[variants]\na = { share = 1, without = ["ages"] }\n',
            "variants.a.without: 'ages' is neither a field nor a cross; fields: age",
        ),
        (HEAD + '[calibration]\nby = "age"\n', 'by = "age" needs kind = "power" or "isotonic"'),
        (HEAD + BY_AGE.replace('"age"', '"ages"'), "calibration.by: no field 'ages'; fields: age"),
        (HEAD + BY_AGE.replace("{}", '{ side = "item" }'), "'age' is a field of the item"),
        (
            HEAD + BY_AGE.replace("{}", '{ kind = "set" }'),
            "'age' is of kind 'set'; expected a category, a time",
        ),
        (HEAD + BY_AGE.replace("{}", '{ kind = "number" }'), "'age' is of kind 'number'"),
    ],
)
def test_a_wrong_spec_names_the_key_what_stood_there_and_what_is_allowed(text, message):
    with pytest.raises(SpecError, match=re.escape(message)) as raised:
        parse_spec(text, "ads.toml")
    assert str(raised.value).startswith("ads.toml: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            HEAD.replace("click", "clicked"),
            "input.label: no column 'clicked' in the log; it has: id, click, age, brand",
        ),
        (HEAD + 'weight = "w"\n', "input.weight: no column 'w'"),
        (HEAD + 'timestamp = "ts"\n', "input.timestamp: no column 'ts'"),
        (HEAD + '[fields]\nage = { column = "years" }\n', "fields.age: no column 'years'"),
    ],
)
def test_a_missing_column_is_named_with_those_there_are(text, message):
    with pytest.raises(SpecError, match=re.escape(message)):
        parse_spec(text).resolve(COLUMNS)


def test_shares_may_miss_one_by_a_rounding_error():
    parse_spec(f"{HEAD}[variants]\na = {{ share = 0.3333333 }}\nb = {{ share = 0.6666669 }}\n")


def test_a_spec_file_that_is_not_there(tmp_path):
    with pytest.raises(SpecError, match=r"cannot read the spec .*No such file"):
        load_spec(tmp_path / "none.toml")


def test_what_is_seldom_meant_is_said_and_allowed():
    head = '[model]\nname = "m"\n[input]\nlabel = "y"\n[fields]\nprice = { kind = "number" }\nage = {}\n'
    assert parse_spec(head).warnings() == ()
    (doubt,) = parse_spec(head + '[learner]\nrate = "counts"\n').warnings()
    assert "fields.price" in doubt and 'bucket = "log"' in doubt


def test_a_time_of_the_join_section_is_at_most_a_year() -> None:
    head = '[model]\nname = "m"\n[input]\nlabel = "click"\n[join]\n'
    assert parse_spec(head + 'window = "366d"').join.window == "366d"
    with pytest.raises(SpecError, match="expected at most"):
        parse_spec(head + 'late_within = "367d"')
