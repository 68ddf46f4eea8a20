"""Ctrl-C and SIGTERM end a run in good order; a second one takes the way it took before."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """While the block runs, the first signal calls `stop`, in the main thread."""
    # nohup's wish is kept.
    before = {
        number: signal.getsignal(number) for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN
    }

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def stop_once(number: int, frame: FrameType | None) -> None:
        restore()
        stop()

    for number in before:
        signal.signal(number, stop_once)
    try:
        yield
    finally:
        restore()
