"""A request from plain Python values: short forms, values that are absent, and keywords that no ranking has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ftrie.client.messages import AnyOf, Between, Options, request_of


def test_an_unknown_keyword_is_refused_and_the_known_ones_are_listed() -> None:
    for keyword, said in (
        ("candidate", "did you mean 'candidates'?"),
        ("topk", "did you mean 'top_k'?"),
        ("contxt", "did you mean 'context'?"),
        ("zzzz", "'zzzz'; a ranking takes"),
    ):
        with pytest.raises(TypeError) as raised:
            request_of("shop", **{"cookie": "u1", keyword: 1})  # type: ignore[misc]
        assert said in str(raised.value)
        listed = str(raised.value).partition("a ranking takes ")[2].split(", ")
        assert sorted(listed) == sorted(Options.__optional_keys__)


def test_a_filter_by_field_is_one_text_or_several_or_two_bounds() -> None:
    tests: Any = {"brand": "b1", "seller": {"s1"}, "tags": ["a", "", "a"], "bid": (np.float64(2), None)}
    tests |= {"age": (None, -5), "x": (None, None), "y": (-0.5, 5)}
    long = [AnyOf("brand", ["b1"]), AnyOf("seller", ["s1"]), AnyOf("tags", ["a", "", "a"])]
    bounds = [Between("bid", 2), Between("age", most=-5), Between("x"), Between("y", -0.5, 5)]
    assert request_of("shop", filters=tests) == request_of("shop", filters=[*long, *bounds])
    for test in (1, (1, 2, 3), ["a", 1], (None, "b")):
        with pytest.raises(
            TypeError, match="filters: got .* for 'bid', expected a text, several texts, or the pair"
        ):
            request_of("shop", filters={"bid": test})  # type: ignore[dict-item]


def test_none_is_no_value_and_numpy_s_values_are_python_s() -> None:
    plain = request_of("shop", user={"age": 20, "new": True, "x": 1.5, "likes": ["a"]}, context=None)
    user: Any = {"age": np.int64(20), "new": np.bool_(True), "x": np.float32(1.5)}
    user |= {"likes": np.array(["a"]), "city": None}
    assert plain == request_of("shop", user=user, items=None)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"candidates": "item-1"}, "candidates: got the text 'item-1', expected a list of ids"),
        ({"candidates": ["a", 7]}, r"candidates\[1\]: got 7, expected a text"),
        ({"items": {7: {}}}, "items: got 7, expected a text"),
        ({"cookie": 7}, "cookie: got 7, expected a text"),
        ({"user": {"likes": ["a", 7]}}, r"user\['likes'\]: got 7, expected a text"),
        ({"items": {"a": {"tags": [None]}}}, r"items\['a'\]\['tags'\]: got None, expected a text"),
        ({"context": {7: "a"}}, "context: got 7, expected a text"),
    ],
)
def test_a_value_of_another_type_is_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        request_of("shop", **options)  # type: ignore[misc]
