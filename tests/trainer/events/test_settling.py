"""A spec meets the first impressions."""

from __future__ import annotations

from typing import Any

import pytest

from model_store.errors import SpecError
from model_store.spec.spec import ModelSpec, parse_spec
from tests.trainer.events.sources import lines_of
from trainer.events.columns import RESERVED, Wanted, resolve_fields

HEAD = '[model]\nname = "m"\n[input]\nlabel = "click"\n'


def spec(text: str = "") -> ModelSpec:
    return parse_spec(HEAD + text)


def data(**more: Any) -> bytes:
    features = {"brand": "x", "tags": ["n"]}
    item = {"id": "a", "position": 1, "ctr": 0.1, "propensity": 0.5, "features": features}
    event = {"request_id": "r", "ts": 1, "cookie": "c", "session": "s", "version": 1, "items": [item], **more}
    return b"\n".join([b"no event", *lines_of([{"request_id": "r", "item": "a"}, event])])


def test_without_fields_it_takes_features_context_and_user_with_their_sides() -> None:
    found = resolve_fields(spec(), data(context={"hour": 3}, user={"age": 30, "likes": {"a": 1.5}}))
    assert {name: (field.side, field.kind) for name, field in found.fields.items()} == {
        "brand": ("item", "category"),
        "tags": ("item", "set"),
        "hour": ("context", "category"),
        "age": ("user", "category"),
        "likes": ("user", "set"),
    }


def test_columns_that_input_names_or_ignores_are_no_fields() -> None:
    named = spec('ignore = ["brand"]\ncookie = "visitor"\n')
    found = resolve_fields(named, data(context={"hour": 3}, user={"visitor": "v"}))
    assert list(found.fields) == ["tags", "hour"]


def test_fields_need_an_impression_unless_they_are_named_and_must_be_in_one_unless_they_are_optional():
    with pytest.raises(SpecError, match="no impression yet"):
        resolve_fields(spec(), b'{"request_id": "r", "item": "a", "ts": 1}\n')
    with pytest.raises(SpecError, match=r"fields\.colour: .* has 'colour'; they have: brand, tags, id"):
        resolve_fields(spec("[fields]\ncolour = {}\n"), data())
    assert list(resolve_fields(spec("[fields]\ncolour = {optional = true}\n"), data()).fields) == ["colour"]
    named = resolve_fields(spec("[fields]\nbrand = {}\nprice = {kind = 'number', column = 'cost'}\n"), b"")
    assert list(named.fields) == ["brand", "price"]
    # What is wanted of events: the columns of learning but the label, and the reserved ones.
    assert Wanted.of(named).names == ("brand", "cost", *RESERVED)


def test_a_field_may_stand_anywhere_in_the_event() -> None:
    events = data(context={"hour": 3, "device": {"kind": "tablet"}}, user={"age": 30})
    for column in ("brand", "position", "hour", "age", "session", "context.hour", "device.kind"):
        fields = f'[fields]\nf = {{column = "{column}"}}\n'
        assert resolve_fields(spec(fields), events).fields["f"].column == column
