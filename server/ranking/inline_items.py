"""Items spelled out in a request, looked up in it exactly as the catalogue's were before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from model_store.features.values import Value
from server.model.catalogue import id_tokens
from server.model.items import ItemTable
from server.model.tokens import NO_VALUE, TokenWriter

if TYPE_CHECKING:
    from server.model.model import Model

Spelled = tuple[str, Mapping[str, Value]]


def spelled_out(model: Model, items: Sequence[Spelled], variants: range) -> ItemTable:
    """What the model knows of these items, for these variants. Raises FieldValueError for a value that does not fit.

    Raises InvalidRequest for sets whose crosses are too many keys.
    """
    writer = TokenWriter()
    fields, id_fields = model.plan.item_fields, model.item_id_fields
    values = np.empty((len(items), len(fields)), np.int32)
    keys = 0
    for row, (item_id, features) in enumerate(items):
        for column, field in enumerate(fields):
            number = writer.add(field.tokens(features.get(field.name)))
            if number == NO_VALUE and field.name in id_fields:
                number = writer.add(id_tokens(field, item_id))
            values[row, column] = number
        if model.item_set_crosses:
            keys = model.item_set_crosses.count([writer.tokens_of(number) for number in values[row]], keys)
    return ItemTable.of(model, writer.table(values), variants)
