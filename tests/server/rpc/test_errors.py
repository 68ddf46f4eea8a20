"""What a failed call carries besides its status: ErrorInfo, BadRequest and RetryInfo, as a client sees them."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from ftrie.client.access import CallFailed, FieldViolation
from ftrie.client.client import Client, RankFailed
from model_store.errors import FieldValueError, StoreError, StoreUnavailable
from server.errors import MAX_MESSAGE_BYTES, NotReady, ObjectiveError, abort


class Ends(grpc.RpcError):
    """A call's context that keeps how the call ended, as the client's grpc raises it."""

    def abort_with_status(self, status: Any) -> None:
        self.status = status
        raise self

    def code(self) -> Any:
        return self.status.code

    def details(self) -> str:
        return str(self.status.details)

    def trailing_metadata(self) -> Any:
        return self.status.trailing_metadata


def failed(error: Exception, **more: Any) -> CallFailed:
    context: Any = Ends()
    with pytest.raises(Ends):
        abort(context, error, **more)
    return CallFailed.of("here", context)


def test_each_error_has_its_reason_and_the_fields_at_fault() -> None:
    for error, reason, fields in (
        (ObjectiveError("objective: character 3: got '*'"), "INVALID_OBJECTIVE", ["objective"]),
        (FieldValueError('user.values["a: b, c"]: x'), "INVALID_FEATURE_VALUE", ['user.values["a: b, c"]']),
        (FieldValueError("user, context: 1025 fields"), "INVALID_FEATURE_VALUE", ["user", "context"]),
        (FieldValueError("no path at all"), "INVALID_FEATURE_VALUE", []),
        (StoreError("shop: WRONGTYPE"), "STORED_DATA_INVALID", []),
        (KeyError("a secret"), "INTERNAL", []),
    ):
        told = failed(error, request_id="r1")
        assert (told.reason, told.metadata, told.retry_after_s) == (reason, {"request_id": "r1"}, None)
        assert [each.field for each in told.violations] == fields
        assert "secret" not in str(told)


def test_only_what_may_succeed_later_says_when_to_try_again() -> None:
    assert failed(NotReady("draining")).retry_after_s is None
    told = failed(StoreUnavailable("away"), retry=True)
    assert told.retry_after_s is not None and 0.2 <= told.retry_after_s <= 1.0
    assert failed(StoreError("damaged"), retry=True).retry_after_s is None


def test_a_long_text_is_cut_so_that_the_details_reach_the_client() -> None:
    for text in ("x" * 100_000, "€" * 100_000, 'user.values["' + "x" * 5_000 + '"]: no'):
        context: Any = Ends()
        with pytest.raises(Ends):
            abort(context, FieldValueError(text), "r" * 100_000)
        assert len(context.details().encode()) <= MAX_MESSAGE_BYTES + 3
        assert sum(len(value) for _, value in context.trailing_metadata()) < 4 * MAX_MESSAGE_BYTES


def test_a_client_gets_the_field_and_the_reason(shared_client: Client) -> None:
    with pytest.raises(RankFailed) as wrong:
        shared_client.rank(candidates=["a", ""], request_id="r1")
    assert wrong.value.violations == (
        FieldViolation("item_ids[1]", "empty; an item id has at least one character"),
    )
    assert (wrong.value.reason, wrong.value.metadata) == ("INVALID_REQUEST", {"request_id": "r1"})
    with pytest.raises(RankFailed) as within:
        shared_client.explain(candidates=["a", ""])
    assert [each.field for each in within.value.violations] == ["request.item_ids[1]"]
    with pytest.raises(RankFailed) as unknown:
        shared_client.rank("other", candidates=["a"], request_id="r" * 10_000)
    assert (unknown.value.reason, unknown.value.violations) == ("MODEL_NOT_SERVED", ())
