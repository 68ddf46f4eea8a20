"""The language of objectives: what it computes, against Python's own arithmetic; and what it says of wrong texts."""

from __future__ import annotations

import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.errors import ObjectiveError
from model_store.features.objective import (
    FUNCTIONS,
    MAX_CHARACTERS,
    MAX_DEPTH,
    MAX_STEPS,
    PREDICTIONS,
    Objective,
)

NAN = math.nan
ITEMS = {
    "bid": np.array([2.0, NAN, 0.5]),
    "boost": np.array([1.0, 1.0, -3.0]),
    "ctr": np.array([9.0, 9.0, 9.0]),
}
SCORE = np.array([0.0, 1.0, -1.0])
CTR = np.array([0.5, 0.7, 0.25])


def value(text: str, **items: Any) -> list[float]:
    columns = {**ITEMS, **items}
    return Objective.of(text).evaluate(SCORE, CTR, np.array([0.1, 0.2, 0.3]), columns.__getitem__).tolist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", 1.0), (" 1.5e2 ", 150.0), (".5", 0.5), ("3.", 3.0), ("1 + 2 * 3", 7.0), ("(1 + 2) * 3", 9.0),
        ("8 / 4 / 2", 1.0), ("8 - 4 - 2", 2.0), ("2 ** 3 ** 2", 512.0), ("-2 ** 2", -4.0), ("2 ** -1", 0.5),
        ("--3", 3.0), ("2*-3", -6.0), ("min(3, 1, 2)", 1.0), ("max(3, 1, 2)", 3.0), ("abs(-4)", 4.0), ("exp(0)", 1.0),
        ("log(1)", 0.0), ("sqrt(9)", 3.0), ("sigmoid(0)", 0.5), ("clip(5, 0, 1)", 1.0), ("clip(-5, 0, 1)", 0.0),
        ("1 ?? 2", 1.0), ("1e-3", 0.001), ("2+3??4", 5.0),
    ],
)  # fmt: skip
def test_arithmetic_is_that_of_python(text: str, expected: float) -> None:
    assert value(text)[0] == expected


def test_names_are_predictions_and_item_fields() -> None:
    assert value("ctr * bid") == pytest.approx([1.0, NAN, 0.125], rel=0.0, abs=0.0, nan_ok=True)
    assert value("score + uncertainty") == [0.1, 1.2, -0.7]
    # A field called like a prediction, or with odd characters, is reached in backquotes.
    assert value("`ctr` + ctr") == [9.5, 9.7, 9.25]
    columns = np.array([1.0, 2.0, 3.0])
    assert value("`my-bid (€)` * 2", **{"my-bid (€)": columns}) == [2.0, 4.0, 6.0]
    others = {"purchase": SimpleNamespace(ctr=CTR, score=SCORE), "my-model.v2": SimpleNamespace(ctr=CTR / 2)}
    objective = Objective.of("purchase.ctr + purchase.score * `my-model.v2`.ctr + `purchase.ctr`")
    assert (objective.models, objective.fields) == (("purchase", "my-model.v2"), ("purchase.ctr",))
    found = objective.evaluate(SCORE, CTR, None, {"purchase.ctr": columns}.__getitem__, others)
    assert found.tolist() == (CTR + SCORE * CTR / 2 + columns).tolist()
    # A name without parentheses is a field even if a function has it.
    assert value("min + 1", min=columns) == [2.0, 3.0, 4.0]


def test_a_missing_value_has_none_without_a_default_and_what_cannot_be_computed_is_not_finite() -> None:
    for text in ("bid + 1", "bid ** 0", "1 ** bid", "min(bid, 0)", "clip(0, bid, 1)", "0 * bid"):
        assert math.isnan(value(text)[1]), text
    assert value("bid ?? 0") == [2.0, 0.0, 0.5]
    assert value("ctr * (bid ?? boost ?? 3)") == [1.0, 0.7, 0.125]
    for text in ("1 / 0", "-1 / 0", "log(0)", "sqrt(-1)", "exp(1000)", "(-2) ** 0.5", "0 / 0"):
        assert not math.isfinite(value(text)[0]), text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at character 1: got the end, expected a number, a name, a function, - or ("),
        ("ctr *", "at character 6: got the end, expected a number"),
        ("ctr bid", "at character 5: got 'bid', expected an operator"),
        ("ctr * & bid", "at character 7: got '& bid', expected a number, a name"),
        ("(ctr", "at character 5: got the end, expected an operator or )"),
        ("foo(1)", "at character 1: got 'foo', expected one of the functions min, max, abs"),
        ("min(1)", "at character 6: got ')', expected a comma: min takes 2 to 8 arguments"),
        ("abs(1, 2)", "at character 6: got ',', expected an operator or ): abs takes 1 argument"),
        ("clip(1, 2)", "at character 10: got ')', expected a comma: clip takes 3 arguments"),
        ("1e999", "at character 1: got '1e999', expected a number that a double can hold"),
        ("`bid", "at character 1: got '`bid'"),
        ("ctr ** ", "at character 8: got the end"),
        ("()", "at character 2: got ')'"),
        ("__import__('os').system('true')", "at character 1: got '__import__', expected one of the functions"),
        ("ctr if bid else 0", "at character 5: got 'if', expected an operator"),
        ("ctr == 1", "at character 5: got '== 1'"),
    ],
)  # fmt: skip
def test_a_wrong_text_is_refused_with_its_place_and_what_is_allowed(text: str, message: str) -> None:
    with pytest.raises(ObjectiveError) as raised:
        Objective.of(text)
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 + " * MAX_CHARACTERS + "1", f"the limit is {MAX_CHARACTERS}"),
        ("+".join("1" * (MAX_STEPS // 2 + 1)), f"more than {MAX_STEPS}"),
        ("(" * (MAX_DEPTH + 1) + "1" + ")" * (MAX_DEPTH + 1), f"more than {MAX_DEPTH} deep"),
        ("-" * (MAX_DEPTH + 1) + "1", f"more than {MAX_DEPTH} deep"),
        ("**".join("1" * (MAX_DEPTH + 2)), f"more than {MAX_DEPTH} deep"),
    ],
)
def test_length_steps_and_depth_are_bounded(text: str, message: str) -> None:
    with pytest.raises(ObjectiveError, match=message):
        Objective.of(text)


def test_it_is_compiled_once_and_tells_which_fields_it_needs() -> None:
    objective = Objective.of("ctr * bid + max(bid, `a b`) + uncertainty * score")
    assert objective.fields == ("bid", "a b")
    assert objective.uses_uncertainty
    assert not Objective.of("`uncertainty` * ctr").uses_uncertainty
    assert Objective.of("ctr * bid") is Objective.of("ctr * bid")


@given(st.text(alphabet="ctrbid01.+-*/(),?` e_x", max_size=40) | st.text(max_size=20))
def test_any_text_is_compiled_or_refused_and_never_breaks(text: str) -> None:
    try:
        objective = Objective.of(text)
    except ObjectiveError:
        return
    assert objective.evaluate(SCORE, CTR, SCORE, lambda _: SCORE).shape == SCORE.shape


def test_every_function_limit_and_prediction_is_in_the_document() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs/ranking.md").read_text("utf-8")
    table = page[page.index("| in an objective | is |") : page.index("At most 1,000 characters")]
    documented = set(re.findall(r"\b([a-z]+)\(", table)) | {"abs", "exp", "log", "sqrt", "sigmoid"}
    assert documented == set(FUNCTIONS)
    assert "`abs exp log sqrt sigmoid`" in table
    assert all(f"| `{name}` |" in table for name in PREDICTIONS)
    assert f"At most {MAX_CHARACTERS:,} characters, {MAX_STEPS} numbers" in page
    assert f"nested {MAX_DEPTH} deep" in page
