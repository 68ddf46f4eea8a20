"""A line in the log for a share of the answers, off by default. No cookie, item or feature is ever in it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from server.serving import Serving

_log = structlog.get_logger(__name__)


class AccessLog:
    """A listener of the meter."""

    def __init__(self, share: float) -> None:
        """`share`: of the answers, from 0 to 1, drawn at random."""
        self._share = share

    def __call__(
        self,
        serving: Serving,
        variant: str,
        candidates: int,
        took_ns: int,
        degraded: Sequence[str],
        request_id: str,
    ) -> None:
        """Log the answer, if it is drawn."""
        if random.random() >= self._share:
            return
        _log.info(
            "answered",
            request_id=request_id,
            model=serving.name,
            version=serving.version,
            variant=variant,
            candidates=candidates,
            ms=round(took_ns / 1e6, 3),
            # The part alone: what follows the colon may quote a stored value.
            degraded=[reason.partition(":")[0] for reason in degraded],
        )
