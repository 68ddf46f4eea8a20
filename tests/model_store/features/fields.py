"""Fields of a spec, and the tokens that a column of Arrow gives to each of its rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from model_store.features.features import FeaturePlan, FieldPlan
from model_store.spec.kinds import Token
from model_store.spec.spec import parse_spec
from trainer.examples.token_columns import TokenColumn, token_columns

HEAD = '[model]\nname = "m"\n[input]\nlabel = "y"\n[fields]\n'


def plan_of(fields: str) -> FeaturePlan:
    return FeaturePlan.of(parse_spec(HEAD + fields))


def field_of(options: str) -> FieldPlan:
    return plan_of(f"f = {{ {options} }}").fields[0]


def column_of(field: FieldPlan, array: pa.Array) -> TokenColumn:
    [column] = token_columns([field], [array])
    return column


def tokens_of(column: TokenColumn, row: int) -> tuple[Token, ...]:
    """The tokens of a row as the trainer hashes them."""
    texts, x = column.text.to_pylist(), column.x if column.x is not None else np.ones(len(column.text))
    if column.starts is not None:
        places = range(column.starts[row], column.starts[row + 1])
    else:
        places = range(row, row + (column.x is not None or bool(texts[row])))
    return tuple(Token(texts[at], float(x[at])) for at in places if not np.isnan(x[at]))
