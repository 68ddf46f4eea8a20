"""What is being served: one immutable `Serving`. Nothing here loads, waits or answers; `server.current` holds it."""

from __future__ import annotations

from dataclasses import dataclass, field

from server.catalogue import Catalogue
from server.model import Model
from server.ranker import Ranker


@dataclass(frozen=True)
class Serving:
    """A model version, the items, and all that requests need of both, bound once. Shared by every thread."""

    name: str
    version: int
    sha256: str
    model: Model
    catalogue: Catalogue
    ranker: Ranker
    items_generation: int
    variant_names: tuple[str, ...] = field(init=False)
    variant_of: dict[str, int] = field(init=False)
    user_fields: frozenset[str] = field(init=False)
    """Fields that the user's stored record may fill."""
    stored_fields: frozenset[str] = field(init=False)
    """Those of them that only the record can fill: all but the cookie's own."""
    cookie_fields: tuple[str, ...] = field(init=False)
    """User-side fields whose log column is the cookie: a request's cookie is their value."""
    item_fields: frozenset[str] = field(init=False)
    request_raw_field: str | None = field(init=False)
    item_raw_field: str | None = field(init=False)

    def __post_init__(self) -> None:
        plan = self.model.plan
        bind = object.__setattr__
        bind(self, "variant_names", plan.variants)
        bind(self, "variant_of", {name: bit for bit, name in enumerate(plan.variants)})
        users = [f for f in plan.request_fields if f.side == "user"]
        bind(self, "user_fields", frozenset(f.name for f in users))
        cookie_column = self.model.spec.input.cookie
        bind(self, "cookie_fields", tuple(f.name for f in users if f.column == cookie_column))
        bind(self, "stored_fields", self.user_fields - set(self.cookie_fields))
        bind(self, "item_fields", frozenset(f.name for f in plan.item_fields))
        raw = [f for f in plan.fields if f.kind == "raw"]
        bind(self, "request_raw_field", next((f.name for f in raw if f.side != "item"), None))
        bind(self, "item_raw_field", next((f.name for f in raw if f.side == "item"), None))
