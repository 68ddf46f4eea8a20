"""The user's side of a request: stored features under those given inline, field by field.

The store is asked only if a cookie is given and some user-side field is not inline. Where it does not answer,
the request goes on with what it brought, and says so. Nothing here knows of candidates.
"""

from __future__ import annotations

import grpc

from model_store.errors import FieldValueError, StoreError
from server.serving import Serving
from server.stored import StoredReads
from server.wire import Fields

PART = "user_features"


class UserFeatures:
    """Completes a request's fields from the user's record. Safe for any number of threads."""

    def __init__(self, reads: StoredReads) -> None:
        self._reads = reads

    def complete(
        self, cookie: str, inline: Fields, serving: Serving, context: grpc.ServicerContext
    ) -> tuple[Fields, list[str]]:
        """Returns the fields to score with, and what `degraded` must say. Raises DeadlinePassed."""
        if not cookie or serving.user_fields <= inline.keys():
            return inline, []
        fields: Fields = dict.fromkeys(serving.cookie_fields, cookie)
        problems: list[str] = []
        if not serving.stored_fields <= inline.keys():
            try:
                record = self._reads.user(cookie, context)
                fields.update((name, record[name]) for name in serving.user_fields if name in record)
            except StoreError as error:
                problems = [f"{PART}: {error}"]
        fields.update(inline)
        return fields, problems


def drop_misfits(fields: Fields, serving: Serving, part: str = PART) -> tuple[Fields, list[str]]:
    """Leave out the values that do not fit their fields: stored by mistake, so no fault of the caller's."""
    kept, problems = dict(fields), []
    for name, value in fields.items():
        field = serving.model.plan.field(name)
        try:
            if field is not None:
                field.tokens(value)
        except FieldValueError as error:
            del kept[name]
            problems.append(f"{part}: left out {error}")
    return kept, problems
