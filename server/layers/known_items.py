"""Known items: the catalogue as a part, and what a version of a model knows of its items as another.

The catalogue's part outlives versions. The other is made anew for each of them: every item's own sums by kernel, and
its codes again only where there are other halves than before.
"""

from __future__ import annotations

from dataclasses import dataclass

from model_store.errors import ArtefactError
from server.catalogue import Catalogue
from server.layers.base import Base
from server.mapped import Mapped
from server.model import Model, id_fields
from server.scoring.items import ItemTable, codes_of, sums_of
from server.scoring.tokens import TokenTable


@dataclass(frozen=True, eq=False)
class KnownItems:
    """A catalogue, packed. tokens: the items', where one has its own id as value if it has no other."""

    catalogue: Catalogue
    part: Mapped
    tokens: TokenTable
    id_fields: tuple[str, ...]

    @classmethod
    def of(cls, catalogue: Catalogue, base: Base, before: KnownItems | None) -> KnownItems:
        """Pack a catalogue, unless `before` is the same. O(items). Raises ArtefactError for one of another plan."""
        if [field.name for field in catalogue.fields] != [field.name for field in base.plan.item_fields]:
            raise ArtefactError(
                f"the catalogue was built for the item fields {[field.name for field in catalogue.fields]}, "
                f"the model has {[field.name for field in base.plan.item_fields]}; build it again"
            )
        own = id_fields(base.spec, base.plan)
        if before is not None and before.catalogue is catalogue and before.id_fields == own:
            return before
        head, arrays = catalogue.pack()
        part = Mapped.write(head, arrays)
        return cls(catalogue, part, catalogue.tokens_with_ids(own), own)

    @classmethod
    def of_part(cls, part: Mapped, base: Base) -> KnownItems:
        """Bind a part. O(items without a value in a field that stands for the item)."""
        catalogue = Catalogue.unpack(base.plan, part.head, part.arrays)
        own = id_fields(base.spec, base.plan)
        return cls(catalogue, part, catalogue.tokens_with_ids(own), own)


def items_part(model: Model, items: KnownItems, codes_from: Mapped | None) -> Mapped:
    """What a model knows of items, its calibration in the head. `codes_from`: a part whose codes are still right."""
    own, unsure = sums_of(model, items.tokens, range(len(model.plan.variants)))
    if codes_from is None:
        table = ItemTable(own, unsure, *codes_of(model, items.tokens))
    else:
        table = ItemTable(own, unsure, *ItemTable.of_arrays(codes_from.arrays).code_arrays)
    calibration = None if model.calibration is None else model.calibration.to_json()
    return Mapped.write({"calibration": calibration}, table.by_name)
