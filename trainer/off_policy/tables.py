"""Plain tables: what their columns mean, and the target policies that are columns."""

from __future__ import annotations

import json
from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from model_store.errors import InputError, SpecError, listed
from trainer.formats.cells import number_column, plain
from trainer.off_policy.logged import LoggedRows
from trainer.off_policy.policies import Candidates

Array = npt.NDArray[Any]
_CLOSE = 1e-6


@dataclass(frozen=True)
class TableColumns:
    """The columns of a plain table that name no other thing.

    targets: of target policies: the probability of the row's item, or objects of all items and their probabilities, as
    JSON or as columns TARGET.ITEM. context: what else the reward may depend on. marginal: the columns with the
    probability of a row's item at its position, whatever is above it, as logged and as the target has it; None where it
    is that of the other columns.
    """

    targets: tuple[str, ...]
    context: tuple[str, ...]
    marginal: tuple[str, str] | None = None

    def context_of(self, rows: LoggedRows, named: Set[str | None]) -> tuple[str, ...]:
        """The columns of the context: those given, else all that name no other thing; named: by the log's section."""
        for name in self.context:
            if name not in rows.columns:
                raise SpecError(
                    f"--context: no column {name!r} in the table; it has: {listed(rows.columns, name)}"
                )
        taken = {*named, *self.targets, *(self.marginal or ())}
        return self.context or tuple(
            name
            for name in rows.columns
            if name not in taken and not any(name.startswith(f"{each}.") for each in self.targets)
        )

    def chances(self, rows: LoggedRows, candidates: Candidates) -> Iterator[tuple[str, Array]]:
        """Of each target float64[rows, candidates], or float64[rows] of a column of numbers.

        Raises InputError, SpecError.
        """
        for name in self.targets:
            yield name, self._chances(rows, name, candidates)

    def _chances(self, rows: LoggedRows, name: str, candidates: Candidates) -> Array:
        number = {item.decode("utf-8", "replace"): at for at, item in enumerate(candidates.ids.to_pylist())}
        if name not in rows.columns:
            prefix = f"{name}."
            wide = [each for each in rows.columns if each.startswith(prefix)]
            if not wide:
                raise SpecError(
                    f"--target: no column {name!r} in the table; it has: {listed(rows.columns, name)}"
                )
            given = np.column_stack([_numbers(each, rows.columns[each], absent=0.0) for each in wide])
            _check_sums(name, given.sum(axis=1))
            found = np.zeros((len(rows), len(number)))
            for each, column in zip(wide, given.T, strict=True):
                if (at := number.get(each.removeprefix(prefix))) is not None:
                    found[:, at] = column
            return found
        column = plain(rows.columns[name])
        if pa.types.is_binary(column.type) and pc.any(pc.starts_with(column, b"{")).as_py():
            texts = column.fill_null(b"").dictionary_encode()
            objects = [_object(name, text) for text in texts.dictionary.to_pylist()]
            of_row = np.asarray(texts.indices)
            _check_sums(name, np.array([sum(each.values()) for each in objects])[of_row])
            found = np.zeros((len(objects), len(number)))
            for row, chances in enumerate(objects):
                for item, chance in chances.items():
                    if item in number:
                        found[row, number[item]] = chance
            return np.asarray(found[of_row])
        return _numbers(name, column)

    def alone(self, rows: LoggedRows) -> Array | None:
        """The weight of each row's item at its position alone; None where it is the row's own."""
        if self.marginal is None:
            return None
        logged, target = (_numbers(name, rows.columns[name]) for name in self.marginal)
        if not logged.all():
            raise InputError(
                f"{self.marginal[0]}: row {int(np.argmin(logged)) + 1:,} is 0; expected a number in (0, 1]"
            )
        return np.asarray(target / logged)


def _numbers(name: str, column: Any, absent: float = np.nan) -> Array:
    """A column of probabilities. Raises InputError naming the first row that has none."""
    numbers, _ = number_column(plain(column))
    numbers = np.where(np.asarray(plain(column).is_null()), absent, numbers)
    bad = np.flatnonzero(~((numbers >= 0.0) & (numbers <= 1.0 + _CLOSE)))
    if bad.size:
        got = plain(column)[int(bad[0])].as_py()
        text = got.decode("utf-8", "replace") if isinstance(got, bytes) else got
        raise InputError(f"{name}: got {text!r}, expected a probability from 0 to 1 ({bad.size:,} such rows)")
    return np.minimum(numbers, 1.0)


def _object(name: str, text: bytes) -> dict[str, float]:
    """The probabilities of items, from JSON. Raises InputError."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(
        isinstance(each, int | float) and 0.0 <= each <= 1.0 + _CLOSE for each in found.values()
    ):
        shown = text.decode("utf-8", "replace")
        raise InputError(
            f'{name}: got {shown!r}, expected an object of probabilities, such as {{"a": 0.3, "b": 0.7}}'
        )
    return {item: float(chance) for item, chance in found.items()}


def _check_sums(name: str, sums: Array) -> None:
    bad = np.flatnonzero(np.abs(sums - 1.0) > _CLOSE)
    if bad.size:
        raise InputError(
            f"{name}: the probabilities of a row add up to {sums[bad[0]]:.6g}, expected 1 ({bad.size:,} such rows)"
        )
