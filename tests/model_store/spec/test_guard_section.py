"""`[guard]` of a spec: what it may hold, and that specs without it are what they were."""

from __future__ import annotations

import pytest

from model_store.errors import SpecError
from model_store.spec.spec import parse_spec, spec_from_json

HEAD = '[model]\nname = "m"\n[input]\nlabel = "y"\n'


def test_a_spec_without_the_section_has_the_hash_that_earlier_versions_gave_it() -> None:
    assert parse_spec(HEAD).sha256 == "2ac5034233402a2d31df7de944ae1ac441307b676171941db03f5bc6a7103679"
    assert parse_spec(HEAD + "[join]\n").sha256 == parse_spec(HEAD).sha256


def test_an_empty_section_asks_for_the_defaults_and_none_for_nothing() -> None:
    assert parse_spec(HEAD).guard is None
    spec = parse_spec(HEAD + "[guard]\n")
    assert spec.guard is not None
    assert (spec.guard.calibration, spec.guard.cooldown_s) == ((0.8, 1.25), 600)
    assert spec.sha256 != parse_spec(HEAD).sha256
    assert spec.without_guard() == parse_spec(HEAD)


def test_the_section_survives_json() -> None:
    spec = parse_spec(HEAD + '[guard]\ncalibration = "off"\nonline_calibration = [0.9, 2]\nkeys_rise = 10\n')
    assert spec_from_json(spec.to_json()) == spec


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("calibration = [2, 3]", "guard.calibration: got [2, 3]; expected two numbers around 1"),
        (
            "online_calibration = 0.5",
            "guard.online_calibration: got 0.5; expected two numbers around 1, such as [0.8",
        ),
        ('calibration = "on"', "guard.calibration: got 'on'; expected two numbers around 1"),
        ("calibration = [0.5, inf]", "guard.calibration: got [0.5, inf]"),
        ("logloss_rise = -1", 'guard.logloss_rise: got -1; expected a number >= 0, or "off"'),
        ("keys_fall = true", 'guard.keys_fall: got True; expected a number >= 0, or "off"'),
        ('cooldown = "soon"', "guard.cooldown: got 'soon'; expected a time"),
        ("examples = 10", "guard.examples: got 10;"),
        ("min_examples = 20_000", "min_examples: got 20,000, more than the window of examples = 10,000"),
        ("bound = 1", "guard.bound: no such key; allowed here: examples, min_examples, logloss_rise"),
    ],
)
def test_a_wrong_bound_is_named_with_what_is_allowed(line: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(f"{HEAD}[guard]\n{line}\n")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)  # one mistake, one message
