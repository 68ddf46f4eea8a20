"""Every key leads back to the field or cross it was made for."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from model_store.artefact.inspection import PrefixRules
from model_store.features.features import FeaturePlan
from model_store.spec.spec import spec_from_json

FIELDS: dict[str, Any] = {
    "a": {"side": "user"},
    "ab": {},
    "a=b": {},
    "price": {"side": "item", "kind": "number"},
    "tags*": {"side": "item", "kind": "set"},
}
CROSSES = [["a", "price"], ["a", "ab", "tags*"], ["a=b", "ab"]]


def plan(**more: Any) -> FeaturePlan:
    document: dict[str, Any] = {"model": {"name": "m"}, "input": {"label": "click"}, "fields": FIELDS | more}
    document["crosses"] = [{"fields": cross} for cross in CROSSES]
    return FeaturePlan.of(spec_from_json(json.dumps(document)))


texts = st.text(st.sampled_from("ab=*%é\x00"), min_size=1, max_size=5)


@given(a=texts, ab=texts, tags=st.lists(texts, max_size=2), price=st.floats(-5, 5))
def test_each_key_belongs_to_what_made_it(a: str, ab: str, tags: list[str], price: float) -> None:
    features = plan()
    rules = PrefixRules.of(features)
    prefixes = {part.prefix: part.name for part in (*features.fields, *features.crosses)}
    for key, _, _ in features.keys({"a": a, "ab": ab, "a=b": ab, "tags*": tags, "price": price})[1:]:
        prefix = key[: key.index(b"=") + 1]
        assert rules.owner(key) == prefixes[prefix]


def test_the_longest_prefix_wins_and_what_follows_no_rule_belongs_to_the_only_raw_field() -> None:
    owners = {b"bias": "bias", b"biased": None, b"a=1": "a", b"a*price=1*": "a*price", b"unknown=1": None}
    owners |= {b"P_N_T_1_20631": None, b"": None, b"a=\xff\x00": "a"}
    rules = PrefixRules.of(plan())
    assert {key: rules.owner(key) for key in owners} == owners
    rules = PrefixRules.of(plan(keys={"kind": "raw"}))
    assert [rules.owner(key) for key in (b"P_N_T_1", b"a=1", b"bias", b"")] == ["keys", "a", "bias", "keys"]
    rules = PrefixRules.of(plan(keys={"kind": "raw"}, more={"kind": "raw", "side": "item"}))
    assert rules.owner(b"P_N_T_1") is None  # two raw fields cannot be told apart
    rules = PrefixRules([(b"P_", "all"), (b"P_N_", "north"), (b"P_N_T_", "tall")])
    assert [rules.owner(k) for k in (b"P_1", b"P_N_1", b"P_N_T_1", b"Q")] == ["all", "north", "tall", None]
