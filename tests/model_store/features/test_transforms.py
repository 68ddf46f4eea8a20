"""Transforms of numbers and texts: what each gives, and that one value and a column of it have the same tokens."""

from __future__ import annotations

import decimal
import math
import re
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from model_store.errors import FieldValueError, SpecError
from model_store.features.features import FieldPlan
from model_store.spec.kinds import Token, words_of
from model_store.spec.numbers import log2_squared, log2_squared_buckets
from model_store.spec.spec import parse_spec, spec_from_json
from model_store.spec.values import Value
from tests.matrix import slow_except
from tests.model_store.features.fields import HEAD, column_of, field_of, plan_of, tokens_of

NUMBER_OPTIONS = [
    "",
    'bucket = "log"',
    'bucket = "log2_squared"',
    'bucket = "quantile:4", learned = [-1.5, 0.0, 7.0]',
    'bucket = "quantile:4", learned = []',
    "bucket = [-2, -0.5, 0, 1e-300, 3, 1e300]",
    'scale = "standard", learned = [3.25, 0.1]',
    'scale = "standard", learned = [0, 1e-300]',
    'scale = "minmax", learned = [-7, 12.5]',
    'scale = "log1p"',
]
# Each with every clip, and with or without a key for what is missing; all but one of each in `make test-all` only.
MISSING = ', missing = "key"'
OPTIONS = [
    f'kind = "number"{", " * bool(options)}{options}{clip}{MISSING * ((n + m) % 2)}'
    for n, options in enumerate(NUMBER_OPTIONS)
    for m, clip in enumerate(("", ", clip = [-10, 0]", ", clip = [0.1, 1e6]"))
]
QUICK = [OPTIONS[3 * n + n % 3] for n in range(len(NUMBER_OPTIONS))]
FLOATS = st.one_of(
    st.floats(),
    st.sampled_from([0.0, -0.0, 1e24, 1.1e24, -1e25, 1.7e308, 5e-324, -2.0, 2.0, 0.1, 2**0.5, 3.0]),
    st.integers(-10, 10).map(float),
)
COLUMNS = st.one_of(
    st.lists(st.one_of(st.none(), FLOATS), min_size=1).map(lambda v: pa.array(v, pa.float64())),
    st.lists(st.one_of(st.none(), st.floats(width=32)), min_size=1).map(lambda v: pa.array(v, pa.float32())),
    st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), min_size=1).map(
        lambda v: pa.array(v, pa.int64())
    ),
    st.lists(st.one_of(st.none(), st.booleans()), min_size=1).map(lambda v: pa.array(v, pa.bool_())),
    st.lists(
        st.one_of(
            st.none(),
            FLOATS.map(repr),
            st.integers().map(str),
            st.sampled_from(["", " ", "1_0", "abc", "1e999", "0x10", "+3", "-.5", "nan", "inf", "1,5"]),
        ),
        min_size=1,
    ).map(lambda v: pa.array([None if t is None else t.encode() for t in v], pa.binary())),
    st.integers(1, 3).map(pa.nulls),
)


def assert_same(field: FieldPlan, array: pa.Array) -> None:
    """Every value of a column has the tokens that it has alone, or is refused in both with the same reason."""
    column = column_of(field, array)
    reasons = dict(column.bad)
    for row, value in enumerate(array.to_pylist()):
        tokens, refusal = tokens_or_refusal(field, value)
        assert (refusal is not None) == (row in reasons)
        if refusal is None:
            found = [(text, x.hex()) for text, x in tokens_of(column, row)]
            assert found == [(text, x.hex()) for text, x in tokens]
        elif isinstance(value, float) and math.isfinite(value):
            assert refusal == f"f: {reasons[row]}"


def tokens_or_refusal(field: FieldPlan, value: Value) -> tuple[tuple[Token, ...], str | None]:
    try:
        return field.tokens(value), None
    except FieldValueError as error:
        return (), str(error)


@pytest.mark.parametrize("options", slow_except(QUICK, OPTIONS))
def test_a_number_has_the_same_tokens_alone_and_in_a_column(options):
    field = field_of(options)

    @given(COLUMNS)
    def check(array):
        assert_same(field, array)

    check()


TEXTS = st.one_of(st.none(), st.text(max_size=12), st.lists(st.sampled_from("ab"), max_size=9).map(" ".join))
TEXT_COLUMNS = st.one_of(
    st.lists(TEXTS, min_size=1).map(lambda v: pa.array(v, pa.string())),
    st.lists(st.binary(max_size=6), min_size=1).map(lambda v: pa.array(v, pa.binary())),
    st.lists(st.one_of(st.none(), st.integers(-99, 99)), min_size=1).map(lambda v: pa.array(v, pa.int64())),
)


@given(TEXT_COLUMNS, st.sampled_from([1, 2, 3]))
def test_a_text_has_the_same_tokens_alone_and_in_a_column(array, ngrams):
    assert_same(field_of(f'kind = "text", ngrams = {ngrams}, most = 5'), array)


def test_log2_squared_is_exact_at_its_edges():
    """The bucket of the last double below and of the first at or above every edge 2^√k, by 80 digits."""
    with decimal.localcontext() as context:
        context.prec = 80
        for k in (*range(3, 90), *(n * n for n in (20, 21, 100, 511, 512, 1023)), 100_003, 1_000_003):
            root = decimal.Decimal(k).sqrt()
            edge = (root * decimal.Decimal(2).ln()).exp()
            near = float(edge)
            below = near if Fraction(near) < Fraction(edge) else math.nextafter(near, 0.0)
            if root == root.to_integral_value():
                below, at = math.nextafter(2.0 ** int(root), 0.0), 2.0 ** int(root)
            else:
                at = math.nextafter(below, math.inf)
            expected = [k - 1, k]
            assert [log2_squared(below), log2_squared(at)] == expected
            assert log2_squared_buckets(np.array([below, at])).tolist() == expected
            assert log2_squared(-at) == -k


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False))
@example(2.0, 2.5)
@example(1.0, 2.1)
def test_log2_squared_is_monotone(a, b):
    low, high = sorted((a, b))
    assert log2_squared(low) <= log2_squared(high)


def test_what_a_number_becomes():
    for options, value, token in [
        ('bucket = "log2_squared"', 0, (b"0", 1.0)),
        ('bucket = "log2_squared"', -1, (b"-1", 1.0)),
        ('bucket = "log2_squared"', 2, (b"2", 1.0)),
        ('bucket = "log2_squared"', 100, (b"44", 1.0)),
        ('bucket = "log2_squared"', -1024, (b"-100", 1.0)),
        ("bucket = [1, 10]", 0.99, (b"0", 1.0)),
        ("bucket = [1, 10]", 1, (b"1", 1.0)),
        ("bucket = [1, 10]", 10, (b"2", 1.0)),
        ('bucket = "quantile:9", learned = [1, 10]', 9.99, (b"1", 1.0)),
        ('scale = "standard", learned = [10, 4]', 8, (b"", -0.5)),
        ('scale = "minmax", learned = [10, 14]', 18, (b"", 2.0)),
        ('scale = "minmax", learned = [10, 14], clip = [10, 14]', 18, (b"", 1.0)),
        ('scale = "log1p"', -3, (b"", -math.log1p(3))),
        ('scale = "log1p"', 1e300, (b"", math.log1p(1e300))),
        ("clip = [0, 5]", 1e300, (b"", 5.0)),
        ('missing = "key"', None, (b"missing", 1.0)),
        ('missing = "key", bucket = "log"', "", (b"missing", 1.0)),
        ('missing = "key", scale = "log1p"', b"", (b"missing", 1.0)),
    ]:
        assert field_of(f'kind = "number", {options}').tokens(value) == (token,), (options, value)
    with pytest.raises(FieldValueError, match=re.escape("which is what scale makes of 1e+20")):
        field_of('kind = "number", scale = "standard", learned = [0, 1e-10]').tokens(1e20)


def test_words():
    for text, words in {
        "Running SHOES, men's (size 42)": ["running", "shoes", "men", "s", "size", "42"],
        "a_b-c*d=e%f": ["a", "b", "c", "d", "e", "f"],
        "ÄPFEL … «Müller»\u00a0x": ["äpfel", "müller", "x"],
        "İSTANBUL ΟΔΟΣ": ["istanbul", "οδοσ"],
        "跑步鞋，男士。": ["跑步鞋", "男士"],
        "می\u200cخواهم": ["می\u200cخواهم"],
        " .,! ": [],
    }.items():
        assert words_of(text) == words


def test_ngrams_come_by_size_each_once_and_at_most_so_many():
    def texts(options: str) -> list[bytes]:
        return [token.text for token in field_of(f'kind = "text"{options}').tokens("a b a b c")]

    assert texts("") == [b"a", b"b", b"c", b"a b", b"b a", b"b c"]
    assert texts(", ngrams = 1") == [b"a", b"b", b"c"]
    assert texts(", ngrams = 3")[6:] == [b"a b a", b"b a b", b"a b c"]
    assert texts(", most = 4") == [b"a", b"b", b"c", b"a b"]
    long = " ".join(map(str, range(1000)))
    assert len(field_of('kind = "text"').tokens(long)) == 64


def test_a_text_is_crossed_like_a_set_and_a_field_without_keys_of_its_own_too():
    plan = plan_of(
        'title = { kind = "text", main = false }\nprice = { kind = "number", missing = "key" }\n'
        '[[crosses]]\nfields = ["title", "price"]\n'
    )
    assert plan.keys({"title": "Red shoe"}) == [
        (b"bias", 1.0, 1),
        (b"price=missing", 1.0, 1),
        (b"title*price=red*missing", 1.0, 1),
        (b"title*price=shoe*missing", 1.0, 1),
        (b"title*price=red shoe*missing", 1.0, 1),
    ]


def test_what_is_learned_is_in_the_canonical_spec_and_without_it_there_is_no_plan():
    for options in ('bucket = "quantile:4"', 'scale = "standard"', 'scale = "minmax"'):
        with pytest.raises(SpecError, match=r"fields\.f: has learned nothing yet"):
            field_of(f'kind = "number", {options}')
    spec = parse_spec(f'{HEAD}f = {{ kind = "number", bucket = "quantile:3", learned = [0.1, 2] }}')
    again = spec_from_json(spec.to_json())
    assert again == spec
    assert again.fields["f"].learned == (0.1, 2.0)
