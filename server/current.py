"""What a worker holds of each model: the version it serves now, and what goes with it. Nothing here loads or answers.

A request reads `serving` once and computes from what it got, so each response comes from exactly one version.
Assigning a reference is atomic in Python, so neither side locks.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from server.late_items import LateItems
    from server.service import Question
    from server.serving import Serving

RECENT_REQUESTS = 16


class Current:
    """One model as it is served at this moment. Shared by every thread."""

    def __init__(self, name: str, late_items: LateItems) -> None:
        self.name = name
        self.serving: Serving | None = None
        self.late_items = late_items
        self.recent: deque[Question] = deque(maxlen=RECENT_REQUESTS)
        """The latest questions; the next version is warmed with them."""
