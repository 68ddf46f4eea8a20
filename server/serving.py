"""What is being served: one immutable `Serving`. Nothing here loads, waits or answers; `server.current` holds it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

from ctr.v1.ranking_pb2 import RankResponse
from server.catalogue import Catalogue
from server.impressions.form import Form
from server.impressions.lines import Lines
from server.layers.binding import bound
from server.layers.parts import Parts
from server.model import Model
from server.ranker import Ranker
from server.receiving.plain_features import PlainReader
from server.user_records.wanted import WantedFields


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
    parts: Parts | None = None
    """What it was bound from; None where a process serves what it built itself."""
    variant_names: tuple[str, ...] = field(init=False)
    variant_of: dict[str, int] = field(init=False)
    user_fields: frozenset[str] = field(init=False)
    """Fields that the user's stored record may fill."""
    stored_fields: frozenset[str] = field(init=False)
    """Those of them that only the record can fill: all but the cookie's own."""
    cookie_fields: tuple[str, ...] = field(init=False)
    """User-side fields whose log column is the cookie: a request's cookie is their value."""
    wanted: WantedFields = field(init=False)
    """The user_fields as they are asked of the store and kept; the same object for versions alike in this."""
    item_fields: frozenset[str] = field(init=False)
    plain: PlainReader = field(init=False)
    user_bits: int = field(init=False)
    """The user_fields as `plain` counts what a request has given."""
    stored_bits: int = field(init=False)
    """The stored_fields likewise."""
    answer_heads: tuple[bytes, ...] = field(init=False)
    """By variant: the fields of an answer that name model, version and variant, as bytes of a RankResponse."""
    lines: Lines = field(init=False)
    """Makes what the log of impressions says of an answer."""
    user_raw_field: str | None = field(init=False)
    """Where a request's user.raw_keys go: the user's raw field; without one, the context's."""
    context_raw_field: str | None = field(init=False)
    """Where its context.raw_keys go: the context's raw field; without one, the user's."""
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
        curves = self.model.calibration
        bind(self, "plain", PlainReader(plan, needs_values=curves is not None and curves.by is not None))
        bind(self, "user_bits", self.plain.bits(self.user_fields))
        bind(self, "stored_bits", self.plain.bits(self.stored_fields))
        bind(self, "wanted", WantedFields.of(plan, cookie_column))
        answers = (
            RankResponse(model=self.name, version=self.version, variant=variant) for variant in plan.variants
        )
        bind(self, "answer_heads", tuple(answer.SerializeToString() for answer in answers))
        form = Form(self.model.spec, plan)
        bind(self, "lines", Lines.of(self.name, self.version, form, self.catalogue, self.wanted))
        bind(self, "item_fields", frozenset(f.name for f in plan.item_fields))
        raw = {f.side: f.name for f in reversed(plan.fields) if f.kind == "raw"}
        bind(self, "user_raw_field", raw.get("user", raw.get("context")))
        bind(self, "context_raw_field", raw.get("context", raw.get("user")))
        bind(self, "item_raw_field", raw.get("item"))

    @classmethod
    def bind(cls, parts: Parts) -> Serving:
        """What a worker serves of these parts. O(fields) and the pages of the values, which it touches.

        Raises ArtefactError if the parts do not fit together.
        """
        model, catalogue, items = bound(parts)
        ranker = Ranker(model, catalogue, items)
        return cls(
            parts.name, parts.version, parts.sha256, model, catalogue, ranker, parts.items_generation, parts
        )

    def on_released(self, callback: Callable[[], None]) -> None:
        """Call `callback` once nothing reads the parts any more: neither this, nor a request that still ranks with it.

        It is called in the thread that lets go last, so it must not block or raise.
        """
        weakref.finalize(self.model, callback).atexit = False
