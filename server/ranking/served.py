"""What a worker serves: `ServedVersion`, one version bound once, and `ModelHandle`, which names the current one.

A request reads `ModelHandle.served` once and computes from what it got, so each response comes from exactly one
version. Assigning a reference is atomic in Python, so no request waits for a lock; those who change something take
turns.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ctr.v1.ranking_pb2 import RankResponse
from model_store.features.history import HistoryPlan
from model_store.versions.experiments import Experiment
from server.errors import Degradation
from server.model.columns import Catalogue
from server.model.derived import DerivedFields
from server.model.event_form import Form
from server.model.items import bound
from server.model.model import Model
from server.model.shared_memory import Parts
from server.ranking.candidates import LateItems
from server.ranking.experiments import Assignment
from server.ranking.features import PlainReader, UserFields
from server.ranking.query import Query
from server.ranking.ranker import Ranker
from server.ranking.request import RequestSchema

RECENT_QUERIES = 16
RECENT_BYTES = 1 << 19
"""The query of a longer message is not kept to warm with: a message may have 16 MiB."""
RECENT_EVERY_NS = 5_000_000
"""One query in this time is kept: to free an older one costs a call some microseconds."""


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
    schema: RequestSchema = field(init=False)
    plain: PlainReader = field(init=False)
    derived: DerivedFields | None = field(init=False)
    histories: HistoryPlan | None = field(init=False)
    user_fields: UserFields = field(init=False)
    """The same object for successive versions with equal request fields."""
    answer_heads: tuple[bytes, ...] = field(init=False)
    """By variant: the fields of an answer that name model, version and variant, as bytes of a RankResponse."""
    form: Form = field(init=False)
    """How an impression's line prints features. A new one for each version."""

    def __post_init__(self) -> None:
        plan, bind = self.model.plan, object.__setattr__
        bind(self, "variant_names", plan.variants)
        bind(self, "variant_of", {name: bit for bit, name in enumerate(plan.variants)})
        bind(self, "schema", RequestSchema.of(plan))
        bind(self, "plain", PlainReader(plan))
        bind(self, "derived", DerivedFields.of(plan))
        bind(self, "histories", HistoryPlan.of(self.model.spec))
        bind(self, "user_fields", UserFields.of(plan, self.model.spec.input.cookie, self.histories))
        answers = (
            RankResponse(model=self.name, version=self.version, variant=variant) for variant in plan.variants
        )
        bind(self, "answer_heads", tuple(answer.SerializeToString() for answer in answers))
        bind(self, "form", Form(self.model.spec, plan))

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

        It is called in the thread that drops the last reference, so it must not block or raise.
        """
        # On the model, which a request that still ranks holds by its version; impressions that wait hold none of it. At
        # the end of the process there is nobody to report to.
        weakref.finalize(self.model, callback).atexit = False


class ModelHandle:
    """One model of a worker, and the version of it that answers now. Shared by every thread."""

    def __init__(self, name: str, late_items: LateItems) -> None:
        self.name = name
        self.served: ServedVersion | None = None
        """Set by `serve` alone."""
        self.lacking = ""
        """Why there is no version to serve, though the store answers; "" while there is one, or it still loads."""
        self.assignment = Assignment(name, (), ())
        """Over the variants of `served`; a request that has read an older version calls `assigned`."""
        self.degraded: tuple[Degradation, ...] = ()
        """Notes for every answer: why the version served may not be the one it should be."""
        self._changing = threading.Lock()
        self.late_items = late_items
        self.recent: deque[Query] = deque(maxlen=RECENT_QUERIES)
        """Some of the latest queries; the next version is warmed with them."""
        self._keep_after_ns = 0

    @property
    def why_not_ready(self) -> str:
        """Why there is no version to answer with, while there is none."""
        if self.lacking:
            return f"model {self.name!r} is not served here: {self.lacking}"
        return f"model {self.name!r} is still loading, or no version of it is active"

    def serve(self, served: ServedVersion) -> None:
        """Swap. Requests that have begun finish with the version that they read."""
        with self._changing:
            # The lock is among writers only. A call may read the one reference before and the other after: `assigned`
            # mends that.
            self.assignment = self.assignment.over(served.variant_names, served.model.plan.shares)
            self.served = served

    def keep(self, query: Query) -> None:
        """Keep a query in `recent`, if it is not too long and none was kept just now."""
        if query.completed_ns >= self._keep_after_ns and query.size <= RECENT_BYTES:
            # Without a lock: threads at the same time keep one query more.
            self._keep_after_ns = query.completed_ns + RECENT_EVERY_NS
            self.recent.append(query)

    def ask_for(self, experiment: Experiment | None, *earlier: Experiment) -> None:
        """Divide traffic by this experiment if it fits the version served, now or later, else by an earlier one."""
        with self._changing:
            self.assignment = self.assignment.asked_for(experiment, earlier)

    def assigned(self, served: ServedVersion) -> Assignment:
        """The assignment over the variants of `served`. O(1), unless it was swapped out just now."""
        # Read once: another thread may replace it between the test and the return.
        assignment = self.assignment
        if assignment.variants is not served.variant_names:
            assignment = assignment.over(served.variant_names, served.model.plan.shares)
        return assignment
