"""What a worker holds of each model: the version it serves now, and what goes with it. Nothing here loads or answers.

A request reads `served` once and computes from what it got, so each response comes from exactly one version.
Assigning a reference is atomic in Python, so no request waits for a lock; those who change something take turns.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ctr.v1.ranking_pb2 import RankResponse
from server.errors import Degradation
from server.model.binding import bound
from server.model.catalogue import Catalogue
from server.model.event_form import Form
from server.model.model import Model
from server.model.shared_memory import Parts
from server.ranking.experiments import Assignment
from server.ranking.features import PlainReader, WantedFields
from server.ranking.ranker import Ranker

if TYPE_CHECKING:
    from model_store.versions.experiments import Experiment
    from server.ranking.candidates import LateItems
    from server.ranking.query import Question


RECENT_REQUESTS = 16
RECENT_BYTES = 1 << 19
"""A longer request is not kept to warm with: it may have 16 MiB."""


class ModelHandle:
    """One model as it is served at this moment. Shared by every thread."""

    def __init__(self, name: str, late_items: LateItems) -> None:
        self.name = name
        self.served: ServedVersion | None = None
        """Set by `serve` alone."""
        self.assignment = Assignment(name, (), ())
        """Over the variants of `served`; a request that has read an older one asks `assigned`."""
        self.degraded: tuple[Degradation, ...] = ()
        """What every answer says in `degraded`: why the version served may not be the one it should be."""
        self._changing = threading.Lock()
        self.late_items = late_items
        self.recent: deque[Question] = deque(maxlen=RECENT_REQUESTS)
        """The latest questions; the next version is warmed with them."""

    def serve(self, served: ServedVersion) -> None:
        """Swap. Requests that have begun end with the version that they read."""
        with self._changing:
            self.assignment = self.assignment.over(served.variant_names, served.model.plan.shares)
            self.served = served

    def ask_for(self, experiment: Experiment | None) -> None:
        """Divide traffic by this experiment if it fits what is served, now or once it is served."""
        with self._changing:
            self.assignment = self.assignment.asked_for(experiment)

    def assigned(self, served: ServedVersion) -> Assignment:
        """The assignment over the variants of `served`, which may have been swapped out just now. O(1), but then."""
        assignment = self.assignment
        if assignment.variants is not served.variant_names:
            assignment = assignment.over(served.variant_names, served.model.plan.shares)
        return assignment


# --- What is being served: one immutable `ServedVersion`. Nothing here loads, waits or answers;
# `server.ranking.served` holds it ---


@dataclass(frozen=True)
class ServedVersion:
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
    form: Form = field(init=False)
    """How an impression's line prints features. A new one for each version."""
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
        bind(self, "form", Form(self.model.spec, plan))
        bind(self, "item_fields", frozenset(f.name for f in plan.item_fields))
        raw = {f.side: f.name for f in reversed(plan.fields) if f.kind == "raw"}
        bind(self, "user_raw_field", raw.get("user", raw.get("context")))
        bind(self, "context_raw_field", raw.get("context", raw.get("user")))
        bind(self, "item_raw_field", raw.get("item"))

    @classmethod
    def bind(cls, parts: Parts) -> ServedVersion:
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
