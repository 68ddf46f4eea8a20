"""The tokens of one candidate in one request, field by field, as the ranker reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from model_store.features import Token
from model_store.values import Value
from server.catalogue import Catalogue, id_tokens
from server.model import Model
from server.scoring.kernels import NO_ITEM

Tokens = dict[str, Sequence[Token]]


def request_tokens(model: Model, fields: Mapping[str, Value]) -> Tokens:
    """The tokens of the request's fields. Raises FieldValueError."""
    return {field.name: field.tokens(fields.get(field.name)) for field in model.plan.request_fields}


def item_tokens(
    model: Model, catalogue: Catalogue, item_id: str, features: Mapping[str, Value] | None
) -> Tokens:
    """The tokens of an item: spelled out where `features` are given, else as the catalogue has it, if it does.

    An item without a value in a field that stands for the item itself has its own id there. Raises FieldValueError.
    """
    found: Tokens = {}
    row = int(catalogue.rows.rows([item_id])[0][0]) if features is None else NO_ITEM
    for column, field in enumerate(model.plan.item_fields):
        if row != NO_ITEM:
            tokens = catalogue.tokens_at(row, column)
        else:
            tokens = field.tokens(None if features is None else features.get(field.name))
        if not tokens and field.name in model.item_id_fields:
            tokens = id_tokens(field, item_id)
        found[field.name] = tokens
    return found
