"""The items that a policy may choose from, with their features, and rows × candidates as batches to be hashed.

The candidates of every decision are the same: all items of the log, or all of a file. What was eligible at the time is
not in a log, so this is an assumption; a mean weight far from 1 tells where it is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from model_store.errors import InputError, SpecError
from model_store.spec import ModelSpec
from trainer.hashing.examples import ExampleMaker, Examples
from trainer.replaying.logged import LoggedRows
from trainer.side_tables import SideTable

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Candidates:
    """The same for every decision.

    ids: text, each once; columns: what goes with the item, over the ids; place: int64[rows], the candidate that a row
    shows, -1 where it is none; logged: bool[candidates], whether the log shows it at all; varying: columns of items
    that differ between rows of one item.
    """

    ids: Any
    columns: Mapping[str, Any]
    place: Array
    logged: Array
    varying: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def of(cls, rows: LoggedRows, item: str, of_items: frozenset[str], table: SideTable | None) -> Candidates:
        """The items of the table, or else of the log. of_items: columns that belong to the item.

        A column that only the log has is as in the item's first row; `varying` names those that differ elsewhere.
        """
        ids = table.ids if table is not None else pc.unique(rows.item)
        first = pc.index_in(ids, value_set=rows.item)
        place = np.asarray(pc.index_in(rows.item, value_set=ids).fill_null(-1), np.int64)
        columns = {name: rows.columns[name].take(first) for name in of_items & rows.columns.keys()}
        varying = tuple(sorted(name for name in columns if _varies(rows.columns[name], place, columns[name])))
        if table is not None:
            columns |= table.columns
        logged = np.zeros(len(ids), bool)
        logged[place[place >= 0]] = True
        return cls(ids, {**columns, item: ids}, place, logged, varying)


def columns_of_items(*specs: ModelSpec) -> frozenset[str]:
    """The log columns of the fields of the side item. Raises SpecError for a spec without any."""
    found: set[str] = set()
    for spec in specs:
        columns = {field.column or name for name, field in spec.fields.items() if field.side == "item"}
        if not columns:
            raise SpecError(
                f'the model {spec.model.name!r} has no field with side = "item": every candidate would score the '
                "same; give the item's fields their side in the spec"
            )
        found |= columns
    return frozenset(found)


def expanded(maker: ExampleMaker, rows: LoggedRows, chosen: Array, candidates: Candidates) -> Examples:
    """Every chosen row with every candidate in the place of its item, hashed: row by row, candidates in order.

    Raises InputError where a candidate's features do not fit the model's fields.
    """
    size = len(candidates)
    spread = pa.array(np.tile(np.arange(size), len(chosen)))
    wanted = {*maker.spec.wanted_columns(), *rows.columns.keys()}
    values = {name: column.take(spread) for name, column in candidates.columns.items() if name in wanted}
    batch = rows.batch(np.repeat(chosen, size), values)
    examples = maker.make(batch)
    if examples.rows.size != batch.rows:
        good = np.zeros(batch.rows, bool)
        good[examples.rows] = True
        worst = int(np.flatnonzero(~good)[0])
        item = candidates.ids[worst % size].as_py().decode("utf-8", "replace")
        raise InputError(f"item {item!r} cannot be a candidate: {examples.rejects[0].reason}")
    return examples


def _varies(column: Any, place: Array, of_items: Any) -> bool:
    """True if some row's value is not its item's."""
    known = np.flatnonzero(place >= 0)
    own = column.take(pa.array(known))
    if pa.types.is_nested(own.type) or pa.types.is_null(own.type):
        return False
    theirs = of_items.take(pa.array(place[known]))
    differs = pc.not_equal(own, theirs).fill_null(False)
    return bool(
        pc.any(differs).as_py() or not pc.equal(own.is_null(), theirs.is_null()).to_numpy(False).all()
    )
