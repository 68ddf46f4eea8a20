"""A spec meets the first impressions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from model_store.errors import SpecError
from model_store.spec.spec import ModelSpec, parse_spec
from trainer.events.columns import RESERVED, Wanted
from trainer.events.fields import resolve_fields

HEAD = '[model]\nname = "m"\n[input]\nlabel = "click"\n'


def spec(text: str = "") -> ModelSpec:
    return parse_spec(HEAD + text)


def data(**more: Any) -> bytes:
    item = {
        "id": "a",
        "position": 1,
        "ctr": 0.1,
        "propensity": 0.5,
        "features": {"brand": "x", "tags": ["n"]},
    }
    event = {"request_id": "r", "ts": 1, "cookie": "c", "session": "s", "version": 1, "items": [item], **more}
    return (
        b"no event\n"
        + json.dumps({"request_id": "r", "item": "a"}).encode()
        + b"\n"
        + json.dumps(event).encode()
    )


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


def test_without_fields_and_without_impressions_it_says_what_to_do() -> None:
    with pytest.raises(SpecError, match="no impression yet"):
        resolve_fields(spec(), b'{"request_id": "r", "item": "a", "ts": 1}\n')


def test_named_fields_need_no_impression() -> None:
    assert list(resolve_fields(spec("[fields]\nbrand = {}\n"), b"").fields) == ["brand"]


def test_a_field_that_no_impression_has_is_named_with_those_there_are() -> None:
    with pytest.raises(
        SpecError, match=r"fields\.colour: no impression so far has 'colour'; they have: brand, tags, id"
    ):
        resolve_fields(spec("[fields]\ncolour = {}\n"), data())


def test_an_optional_field_may_come_later() -> None:
    assert list(resolve_fields(spec("[fields]\ncolour = {optional = true}\n"), data()).fields) == ["colour"]


@pytest.mark.parametrize(
    "column", ["brand", "position", "hour", "age", "session", "context.hour", "device.kind"]
)
def test_a_field_may_stand_anywhere_in_the_event(column: str) -> None:
    fields = f'[fields]\nf = {{column = "{column}"}}\n'
    events = data(context={"hour": 3, "device": {"kind": "tablet"}}, user={"age": 30})
    assert resolve_fields(spec(fields), events).fields["f"].column == column


def test_wanted_are_the_columns_of_learning_but_the_label_and_the_reserved_ones() -> None:
    wanted = Wanted.of(
        resolve_fields(spec("[fields]\nbrand = {}\nprice = {kind = 'number', column = 'cost'}\n"), b"")
    )
    assert wanted.names == ("brand", "cost", *RESERVED)
