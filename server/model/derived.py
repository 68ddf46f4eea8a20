"""The derived fields of a plan, as a server computes them: with records, with a request, or over its candidates.

`model_store.features.derived` computes; this module says what is computed when, and lays the values under those given.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import isnan
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.features.derived import Derivations, is_absent, value_number
from model_store.features.features import FeaturePlan
from model_store.spec.values import Value

Array = npt.NDArray[Any]
Record = Mapping[str, Value]


@dataclass(frozen=True)
class DerivedFields:
    """Immutable; shared by all threads.

    request: fields of the user's and the context's side. records: fields of items that depend on the item alone; the
    catalogue holds their values. items: all fields of items. per_request: those of them that depend on the request.
    from_items, from_request: what `items` are computed from, by side; from_items includes the fields themselves.
    """

    request: Derivations
    records: Derivations
    items: Derivations
    per_request: tuple[str, ...]
    from_items: tuple[str, ...]
    from_request: tuple[str, ...]

    @classmethod
    def of(cls, plan: FeaturePlan) -> DerivedFields | None:
        """The plan's; None if it has none."""
        specs = {field.name: field.spec for field in plan.fields}
        found = Derivations.of(specs)
        if not found:
            return None
        items = found.only(lambda field: field.side == "item")
        sides = {name: specs[name].side for name in items.columns}
        # Fields that depend on the request, also by way of other derived fields, in one pass: the order is that of
        # computing.
        varying = {name for name, side in sides.items() if side != "item"}
        for field in items.fields:  # in the order in which they are computed
            if field.compares or varying.intersection(field.inputs):
                varying.add(field.name)
        return cls(
            request=found.only(lambda field: field.side != "item"),
            records=items.only(lambda field: field.name not in varying),
            items=items,
            per_request=tuple(field.name for field in items.fields if field.name in varying),
            from_items=tuple(name for name, side in sides.items() if side == "item"),
            from_request=tuple(name for name, side in sides.items() if side != "item"),
        )

    def numbers_of(self, records: Collection[Record]) -> dict[str, Array]:
        """float64[records] for each of `from_items`: what the records give, NaN where that is nothing of use.

        A derived value whose x the model does not take is of no use: impressions leave it out, so that the trainer
        computes it.
        """
        return self.fitting(
            {name: _numbers(record.get(name) for record in records) for name in self.from_items}
        )

    def completed(self, records: Collection[Record], numbers: Mapping[str, Array]) -> list[Record]:
        """Records with the values of the fields `records`, as texts. numbers: what they give. O(values).

        A number that is given and of no use is left out where none can be computed.
        """
        found = self.records.computed(numbers, np.zeros(1, np.int64))
        columns = [
            (name, values.tolist(), np.isnan(numbers[name]).tolist()) for name, values in found.items()
        ]
        completed: list[Record] = []
        for at, record in enumerate(records):
            made = dict(record)
            for name, values, is_missing in columns:
                if not is_missing[at]:
                    continue
                if not isnan(values[at]):
                    # As a text, as in records; `repr` is the shortest that reads back as the same double.
                    made[name] = repr(values[at])
                elif not isnan(value_number(record.get(name))):
                    del made[name]
            completed.append(made)
        return completed

    def of_request(self, values: Mapping[str, Value]) -> Mapping[str, Value]:
        """The values of a request's features with those that are computed from them. O(fields)."""
        if not self.request:
            return values
        given = {name: _numbers([values.get(name)]) for name in self.request.columns}
        found = self.request.computed(given, np.array([0, 1]))
        absent = (name for name in found if is_absent(values.get(name)))
        return {
            **values,
            # NaN, which does not equal itself, is no value.
            **{name: float(found[name][0]) for name in absent if found[name][0] == found[name][0]},
        }

    def of_candidates(
        self, values: Mapping[str, Value], given: Mapping[str, Array], count: int
    ) -> dict[str, Array]:
        """The values of the fields of items, by field: float64[count], one for each candidate, NaN where it has none.

        This is the one place where values that depend on a request and its candidates are computed. values: the
        request's features; only those of `from_request` are read. given: numbers of the candidates by field, as
        `numbers_of` makes them, for each of `from_items`.
        """
        request = {name: np.full(count, value_number(values.get(name))) for name in self.from_request}
        return self.items.computed({**request, **given}, np.array([0, count]))

    def fitting(self, values: dict[str, Array]) -> dict[str, Array]:
        """Given values, with NaN for those of fields of items whose x the model does not take."""
        for field in self.items.fields:
            if field.name in values:
                values[field.name] = field.fitting(values[field.name])
        return values


def _numbers(values: Iterable[Value]) -> Array:
    return np.array([value_number(value) for value in values], np.float64)
