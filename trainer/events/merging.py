"""All sources in one order: the merger. Stub of the signatures; being built."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from trainer.events.events import Lag, Merged, Place, Source
from trainer.events.wanted import Wanted


class Rows(Protocol):
    """Where the rows of impressions wait for their clicks."""

    def add(self, columns: Mapping[str, pa.Array], /) -> int:
        """Keep a table; its number."""


class Merger:
    """Reads and parses ahead in threads of its own, and hands events out in one order. `poll` from one thread.

    places: as of the checkpoint that the sources were opened with; each has a key `order_us` besides the source's own.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        wanted: Wanted,
        segments: Rows,
        *,
        places: Sequence[Place] = (),
        idle_s: float = 2.0,
        once: bool = False,
        read_ahead: int = 64 << 20,
        on_note: Callable[[str], None] = lambda _: None,
    ) -> None:
        raise NotImplementedError

    def poll(self, wait_s: float = 0.0) -> Merged | None:
        """The next events that are sure to be next; None if within `wait_s` there are none.

        Raises what a source raised, StoreUnavailable excepted: that is tried again, and said through on_note.
        """

    def places(self) -> list[Place]:
        """Where reading goes on in each source behind the events handed out so far."""

    @property
    def ended(self) -> bool:
        """With `once`: all that the sources held has been handed out."""

    def lags(self) -> list[Lag]:
        """Of each source, what is read ahead and not yet handed out included."""

    def close(self) -> None:
        """End the threads and close the sources."""
