"""The limits on a request's features, from the outside."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from ftrie.api.client import Client, RankFailed
from server.ranking.limits import MAX_FIELDS, MAX_MEMBERS, MAX_NAME_CHARACTERS

LONG = "n" * (MAX_NAME_CHARACTERS + 1)
MANY = {f"f{number}": "x" for number in range(MAX_FIELDS + 1)}
LARGE = [str(number) for number in range(MAX_MEMBERS + 1)]
ONE = {"candidates": ["a"]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (ONE | {"user": MANY}, "user, context: 1025 fields; the limit is 1024"),
        (ONE | {"context": {LONG: "x"}}, "user, context: the name of a field, 'nnnnn"),
        (ONE | {"user": {"likes": LARGE}}, 'user.values["likes"]: 10001 members'),
        (ONE | {"context": {"moon": dict.fromkeys(LARGE, 1.0)}}, 'context.values["moon"]: 10001 members'),
        (ONE | {"user": {"raw_keys": LARGE}}, "user.raw_keys, context.raw_keys: 10001 members"),
        (ONE | {"request_id": "r" * 4097}, "request_id: longer than 4096 bytes"),
        ({"candidates": ["item-1", "i" * 4097]}, "item_ids[1]: longer than 4096 bytes"),
        ({"candidates": ["é" * 2049]}, "item_ids[0]: longer than 4096 bytes"),
        ({"items": {"i" * 4097: {}}}, "items[0].id: longer than 4096 bytes"),
        ({"items": {"a": MANY}}, "items[0].features: 1025 fields"),
        ({"items": {"a": {LONG: "x"}}}, "items[0].features: the name of a field"),
        ({"items": {"a": {"tags": LARGE}}}, 'items[0].features.values["tags"]: 10001 members'),
        ({"items": {"a": {"raw_keys": LARGE}}}, "items[0].features.raw_keys: 10001 members"),
    ],
)
def test_more_than_a_limit_is_refused_with_its_path(
    shared_client: Client, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(RankFailed) as failed:
        shared_client.rank(**arguments)
    assert failed.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert f"INVALID_ARGUMENT: {message}" in str(failed.value)
    assert LONG not in str(failed.value)


def test_what_is_at_a_limit_is_answered_and_a_message_beyond_its_refused_by_grpc(
    shared_client: Client,
) -> None:
    fields = dict(list(MANY.items())[:MAX_FIELDS])
    assert len(shared_client.rank(candidates=["item-1"], user=fields).unknown_fields) == MAX_FIELDS
    assert shared_client.rank(candidates=["é" * 2048], items={"i" * 4096: {}}).items
    user = {"likes": LARGE[:MAX_MEMBERS], "n" * MAX_NAME_CHARACTERS: "x"}
    assert shared_client.rank(candidates=["item-1"], user=user).items
    with pytest.raises(RankFailed) as failed:
        shared_client.rank(candidates=["x" * 4000] * 4300)
    assert failed.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
