"""What a worker holds of each model: the version it serves now, and what goes with it. Nothing here loads or answers.

A request reads `serving` once and computes from what it got, so each response comes from exactly one version.
Assigning a reference is atomic in Python, so no request waits for a lock; those who change something take turns.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from server.experiments import Assignment

if TYPE_CHECKING:
    from model_store.experiments import Experiment
    from server.late_items import LateItems
    from server.question import Question
    from server.serving import Serving

RECENT_REQUESTS = 16
RECENT_BYTES = 1 << 19
"""A longer request is not kept to warm with: it may have 16 MiB."""


class Current:
    """One model as it is served at this moment. Shared by every thread."""

    def __init__(self, name: str, late_items: LateItems) -> None:
        self.name = name
        self.serving: Serving | None = None
        """Set by `serve` alone."""
        self.assignment = Assignment(name, (), ())
        """Over the variants of `serving`; a request that has read an older one asks `assigned`."""
        self.degraded: tuple[str, ...] = ()
        """What every answer says in `degraded`: why the version served may not be the one it should be."""
        self._changing = threading.Lock()
        self.late_items = late_items
        self.recent: deque[Question] = deque(maxlen=RECENT_REQUESTS)
        """The latest questions; the next version is warmed with them."""

    def serve(self, serving: Serving) -> None:
        """Swap. Requests that have begun end with the version that they read."""
        with self._changing:
            self.assignment = self.assignment.over(serving.variant_names, serving.model.plan.shares)
            self.serving = serving

    def ask_for(self, experiment: Experiment | None) -> None:
        """Divide traffic by this experiment if it fits what is served, now or once it is served."""
        with self._changing:
            self.assignment = self.assignment.asked_for(experiment)

    def assigned(self, serving: Serving) -> Assignment:
        """The assignment over the variants of `serving`, which may have been swapped out just now. O(1), but then."""
        assignment = self.assignment
        if assignment.variants is not serving.variant_names:
            assignment = assignment.over(serving.variant_names, serving.model.plan.shares)
        return assignment
