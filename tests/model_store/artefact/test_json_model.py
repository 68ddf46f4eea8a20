"""The JSON form: what is read is written again, what is malformed is named."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from model_store.artefact import json_model
from model_store.artefact.artefact import Artefact
from model_store.artefact.inspection import OTHER, PrefixRules, key_ranges
from model_store.errors import ArtefactError, SpecError
from model_store.features.features import FeaturePlan
from model_store.model_files import infer_spec
from model_store.spec.learner_section import LearnerSection
from tests.model_store.models import KEYS, SPEC, model

UNICODE = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
ENTRY = st.fixed_dictionaries(
    {
        "fid": UNICODE | st.integers(),
        "key": st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8),
        "value": st.floats(-3e38, 3e38) | st.integers(-(2**53), 2**53),
    }
)
MODEL = st.fixed_dictionaries(
    {"list": st.lists(ENTRY, max_size=12, unique_by=lambda entry: entry["key"]), "type": UNICODE}
)
ONE = b'{"list": [{"fid": "0", "key": "age=25", "value": 0.5}], "type": "t"}'


def imported(document: Any) -> Artefact:
    parsed = json_model.parse(json.dumps(document).encode())
    return json_model.to_artefact(parsed, infer_spec("ads", parsed.keys))


def test_an_adpredictor_is_neither_read_nor_written_since_its_variances_would_be_missing() -> None:
    learner = LearnerSection(algorithm="adpredictor", rate="posterior", l1=0.0)
    spec = SPEC.model_copy(update={"learner": learner})
    says = r"adpredictor.* a variance for each key.*"
    with pytest.raises(SpecError, match=says + r"import an \.arrow file"):
        json_model.to_artefact(json_model.parse(ONE), spec)
    with pytest.raises(SpecError, match=says + r"export it to an \.arrow file"):
        json_model.render(replace(model(KEYS), spec=spec))


def exact(document: Any) -> list[tuple[Any, ...]]:
    """The document with every double as its bits, so that -0.0 and 0.0 differ."""
    entries = [(type(e["fid"]), e["fid"], e["key"], float(e["value"]).hex()) for e in document["list"]]
    return [(document["type"],), *entries]


@given(MODEL)
def test_a_json_model_survives_import_bytes_and_export(document: Any) -> None:
    stored = Artefact.from_bytes(imported(document).to_bytes())
    assert exact(json.loads(json_model.render(stored))) == exact(document)


@given(st.lists(st.binary(min_size=1, max_size=6), unique=True, max_size=12))
def test_keys_of_any_bytes_survive_export_and_import(keys: list[bytes]) -> None:
    artefact = model(keys)
    again = json_model.to_artefact(json_model.parse(json_model.render(artefact)), SPEC)
    assert again.key_list() == artefact.key_list()
    assert again.weight.tobytes() == artefact.weight.tobytes()


def test_a_trained_model_names_its_fields_and_an_imported_weight_is_of_every_variant_without_a_rate() -> None:
    fids = {"bias": "bias", "age=25": "age", "age*brand=25*acme": "age*brand", "brand=acme": "brand"}
    fids |= {"made elsewhere": "other"}
    document = json.loads(json_model.render(model([key.encode() for key in fids])))
    assert document["type"] == "ads"
    assert {entry["key"]: entry["fid"] for entry in document["list"]} == fids
    artefact = json_model.to_artefact(json_model.parse(ONE), SPEC)
    assert (artefact.variants.tolist(), artefact.rate.tolist()) == ([0b11], [0.0])
    assert artefact.weight.dtype == np.float32


@given(st.sets(st.text("abgimnrs=*.", min_size=1, max_size=9).map(str.encode) | st.sampled_from(KEYS)))
@example({b"!", b"age*brand=1*2", b"age=1", b"age=2", b"b", b"bias", b"bias=", b"brand=2", b"z"})
def test_ranges_cover_every_row_once_in_order_and_agree_with_the_prefix_rules(keys: set[bytes]) -> None:
    artefact, ranges = model(list(keys)), key_ranges(model(list(keys)))
    rules = PrefixRules.of(FeaturePlan.of(SPEC))
    assert [row for _, begin, end in ranges for row in range(begin, end)] == list(range(artefact.rows))
    owner = {artefact.key(row): name for name, begin, end in ranges for row in range(begin, end)}
    assert owner == {key: rules.owner(key) or OTHER for key in keys}


GOOD = {"fid": "0", "key": "a", "value": 1.0}
LONE = "\ud800"


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ({"fid": "0", "key": "b"}, r"list\[1\]: not exactly these members: got \{.*; allowed is"),
        (GOOD | {"key": "b", "more": 1}, r"list\[1\]: not exactly"),
        ("b", r"list\[1\]: not exactly these members: got \"b\""),
        (GOOD | {"key": 7}, "key is not a string"),
        (GOOD | {"key": ""}, "key has 0 bytes"),
        (GOOD | {"key": "é" * 2049}, "key has 4098 bytes, 1 to 4096"),
        (GOOD | {"key": LONE}, "lone surrogate"),
        (GOOD | {"key": "\udcc3\udca9"}, "write the character"),
        (GOOD | {"key": "b", "fid": None}, "fid is neither"),
        (GOOD | {"key": "b", "fid": True}, "fid is neither"),
        (GOOD | {"key": "b", "value": "1"}, "value is not a number"),
        (GOOD | {"key": "b", "value": True}, "value is not a number"),
        (GOOD | {"key": "b", "value": math.nan}, "value is not finite"),
        (GOOD | {"key": "b", "value": -math.inf}, "value is not finite"),
        (GOOD | {"key": "b", "value": 1e39}, "value is not finite, or beyond"),
        (GOOD | {"key": "b", "value": 10**400}, "value is not finite"),
        (GOOD, r"list\[1\]: the key 'a' occurs in list\[0\] already"),
    ],
)
def test_a_malformed_entry_is_named_with_what_is_allowed(entry: Any, complaint: str) -> None:
    with pytest.raises(ArtefactError, match=complaint):
        imported({"list": [GOOD, entry], "type": "t"})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b'{"list": [', "not valid JSON"),
        (b"\xff\xfe\xfa", "UTF-8"),
        (b"[]", r"got \[\]; expected an object"),
        (b'{"list": []}', "expected an object"),
        (b'{"list": [], "type": "t", "more": 1}', "expected an object"),
        (b'{"list": {}, "type": "t"}', "list: got {}; expected an array"),
        (b'{"list": [], "type": 1}', "type: got 1; expected a string"),
        (b"", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"list":' * 50_000, "not valid JSON"),
        (b'{"type": "x", "list": [{"fid": "0", "key": "a", "value": 1e999}]}', "value is not finite"),
        (
            b'{"type": "x", "list": [{"fid": "0", "key": "a", "value": %b}]}' % (b"9" * 5000),
            "not valid JSON|not finite",
        ),
    ],
)
def test_a_malformed_document_is_refused(text: bytes, complaint: str) -> None:
    with pytest.raises(ArtefactError, match=complaint):
        json_model.parse(text)


def kinds(keys: list[bytes]) -> dict[str, str]:
    return {name: field.kind for name, field in infer_spec("m", keys).fields.items()}


def test_a_spec_is_inferred_from_keys_of_our_grammar_and_the_rest_is_raw() -> None:
    ours = [b"bias", b"age=25", b"price=", b"age*brand=25*a%3Db", b"age*brand=26*x"]
    keys = [*ours, b"P_N_T_1", b"x%=1", b"a=b=c"]
    raw = {"raw": "raw", "user_raw": "raw", "item_raw": "raw"}
    assert kinds(keys) == {"age": "category", "price": "number", "brand": "category", **raw}
    spec = infer_spec("m", keys)
    assert [cross.fields for cross in spec.crosses] == [("age", "brand")]
    sides = {name: field.side for name, field in spec.fields.items() if field.side != "context"}
    assert sides == {"user_raw": "user", "item_raw": "item"}
    assert list(spec.variants) == ["base"]
    for key in (b"a*a=1*2", b"a*b*c*d*e=1*2*3*4*5", b"a*b=1", b"=1", b"a**b=1*2*3"):  # no crosses of ours
        assert kinds([key]) == raw, key
    both_ways = infer_spec("m", [b"a*b=1*2", b"b*a=2*1"])
    assert (len(both_ways.crosses), both_ways.fields["raw"].kind) == (1, "raw")
    # A field named raw does not hide the raw keys.
    hidden = {"raw": "category", "raw_": "raw", "user_raw": "raw", "item_raw": "raw"}
    assert kinds([b"raw=1", b"whole"]) == hidden


@given(st.lists(st.text("ab=*%25", min_size=1, max_size=8).map(str.encode), unique=True, max_size=8))
def test_every_list_of_keys_has_a_spec(keys: list[bytes]) -> None:
    artefact = model(keys, spec=infer_spec("m", keys), metrics={})
    assert sum(end - begin for _, begin, end in key_ranges(artefact)) == len(keys)
