"""Columns of logs and events with the values of derived fields, which `model_store.features.derived` computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from model_store.features.derived import ABSENT, Derivations, Numbers, Starts
from model_store.spec.values import LARGEST_REAL
from trainer.formats.cells import number_column, plain, text_column

Columns = Mapping[str, Any]


def derive(derived: Derivations, columns: Columns, starts: Starts) -> dict[str, Any]:
    """The columns of whole requests, derived values included. `starts` as in `Derivations.computed`."""
    numbers = numbers_read(derived, columns, int(starts[-1]))
    return with_numbers(derived, columns, derived.computed(numbers, starts))


def numbers_read(derived: Derivations, columns: Columns, rows: int) -> dict[str, Numbers]:
    """The numbers of the fields that are read or computed, from columns of `rows` rows; NaN without a column."""
    return {
        name: column_numbers(columns[column]) if column in columns else np.full(rows, ABSENT)
        for name, column in derived.columns.items()
    }


def with_numbers(derived: Derivations, columns: Columns, numbers: Mapping[str, Numbers]) -> dict[str, Any]:
    """The columns, with these numbers where the columns of derived fields have no value."""
    own = {derived.columns[field.name]: numbers[field.name] for field in derived.fields}
    return {name: _filled(column, own[name]) if name in own else column for name, column in columns.items()}


def column_numbers(column: Any) -> Numbers:
    """`derived.value_number` of every value of an Arrow column."""
    array = plain(column)
    if pa.types.is_nested(array.type):
        return np.full(len(array), np.nan)
    numbers, _ = number_column(array)
    numbers[np.abs(numbers) > LARGEST_REAL] = np.nan
    return numbers


def _filled(column: Any, numbers: Numbers) -> Any:
    """The column with numbers where it has no value. A value that is no number stays, so that its row is rejected."""
    array = plain(column)
    if pa.types.is_nested(array.type):
        return array
    missing = array.is_null()
    if pa.types.is_binary(array.type):
        # The empty text is a null too, as in all columns of text.
        missing = pc.or_kleene(missing, pc.equal(pc.binary_length(array), 0)).fill_null(True)
    if not missing.true_count:
        return array
    made = pa.array(numbers, mask=np.isnan(numbers))
    if missing.true_count == len(array):
        return made
    if pa.types.is_integer(array.type) or pa.types.is_floating(array.type):
        # Doubles for all: each number is read as a double later anyway.
        return pc.if_else(missing, made, array.cast(pa.float64(), safe=False))
    # As text, which also holds values that are not numbers.
    return pc.if_else(missing, text_column(made), text_column(array))
