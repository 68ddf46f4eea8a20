"""Callers that put requests to a server, each waiting for its answer, and how long each answer took.

Where requests are due at a time of their own (--rate, --pace), the time counts from then, not from when a caller was
free: a server that stalls is charged for all who had to wait. Otherwise each caller calls again at once.
"""

from __future__ import annotations

import itertools
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from google.protobuf.json_format import ParseDict, ParseError

from ctr.v1.ranking_pb2 import RankRequest
from ftrie.client.access import Access
from ftrie.client.client import METHOD
from model_store.bounded import json_value
from model_store.errors import InputError

CONNECTIONS = 8
"""At most so many connections: workers share a port, and each connection is one worker's."""


@dataclass
class Outcome:
    """What came of the calls. Latencies are of those that were answered, nanoseconds, in no order."""

    seconds: float = 0.0
    latencies_ns: array[int] = field(default_factory=lambda: array("Q"))
    errors: Counter[str] = field(default_factory=Counter)
    """gRPC status → calls."""

    @property
    def calls(self) -> int:
        """All that have ended."""
        return len(self.latencies_ns) + self.errors.total()


class Load:
    """Puts requests to one server for a while. `run` once."""

    def __init__(
        self, address: str, access: Access, schedule: Iterator[tuple[float, bytes]], timeout_s: float
    ) -> None:
        self._address = address
        self._access = access
        self._schedule = schedule
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._outcomes: list[Outcome] = []

    def run(self, concurrency: int, duration_s: float, advanced: Callable[[int], None]) -> Outcome:
        """Call with so many callers for so long; `advanced` is told the number of calls now and then."""
        channels = [
            self._access.channel(self._address, own_connection=True)
            for _ in range(min(concurrency, CONNECTIONS))
        ]
        began_ns = time.perf_counter_ns()
        callers = [
            threading.Thread(
                target=self._call, args=(channels[number % len(channels)], began_ns, duration_s), daemon=True
            )
            for number in range(concurrency)
        ]
        for caller in callers:
            caller.start()
        for caller in callers:
            while caller.is_alive():
                caller.join(0.1)
                advanced(sum(outcome.calls for outcome in list(self._outcomes)))
        for channel in channels:
            channel.close()
        return self._together((time.perf_counter_ns() - began_ns) / 1e9)

    def _call(self, channel: grpc.Channel, began_ns: int, duration_s: float) -> None:
        """One caller's life."""
        mine = Outcome()
        self._outcomes.append(mine)
        call = channel.unary_unary(METHOD, None, None)  # bytes out, bytes in
        metadata = self._access.metadata()
        while True:
            with self._lock:
                due_s, message = next(self._schedule)
            now_s = (time.perf_counter_ns() - began_ns) / 1e9
            if max(due_s, now_s) >= duration_s:
                return
            if due_s > now_s:
                time.sleep(due_s - now_s)
            from_ns = began_ns + int(due_s * 1e9) if due_s else time.perf_counter_ns()
            try:
                call(message, timeout=self._timeout_s, metadata=metadata)
            except grpc.RpcError as error:
                mine.errors[error.code().name] += 1
            else:
                mine.latencies_ns.append(time.perf_counter_ns() - from_ns)

    def _together(self, seconds: float) -> Outcome:
        whole = Outcome(seconds)
        for outcome in self._outcomes:
            whole.latencies_ns.extend(outcome.latencies_ns)
            whole.errors.update(outcome.errors)
        return whole


# --- An outcome in figures: quantiles, a histogram, and both as text and as JSON. Nothing here measures ---


QUANTILES = (50.0, 90.0, 99.0, 99.9)
STEPS_A_DOUBLING = 2
WIDTH = 48
EIGHTHS = " ▏▎▍▌▋▊▉"


@dataclass(frozen=True)
class Bar:
    """The calls of the histogram that took from `above_ms` to `up_to_ms`."""

    above_ms: float
    up_to_ms: float
    calls: int


def figures(outcome: Outcome) -> dict[str, Any]:
    """What --json prints: counts, rates, latencies in milliseconds (null where nothing was answered)."""
    ms = np.frombuffer(outcome.latencies_ns, np.uint64) / 1e6
    quantiles = np.percentile(ms, QUANTILES) if len(ms) else [None] * len(QUANTILES)
    return {
        "calls": outcome.calls,
        "answered": len(ms),
        "errors": dict(outcome.errors.most_common()),
        "seconds": round(outcome.seconds, 3),
        "answered_a_second": round(len(ms) / outcome.seconds, 1),
        "mean_ms": _rounded(ms.mean() if len(ms) else None),
        **{f"p{name:g}_ms": _rounded(value) for name, value in zip(QUANTILES, quantiles, strict=True)},
        "max_ms": _rounded(ms.max() if len(ms) else None),
        "histogram": [[bar.above_ms, bar.up_to_ms, bar.calls] for bar in histogram(ms)],
    }


def histogram(ms: Sequence[float] | np.ndarray[Any, Any]) -> list[Bar]:
    """Bars whose bounds grow by √2, from the quickest call's to the slowest's."""
    if not len(ms):
        return []
    steps = np.floor(np.log2(np.maximum(ms, 1e-3)) * STEPS_A_DOUBLING).astype(int)
    first = int(steps.min())
    counts = np.bincount(steps - first)
    bounds = [round(2.0 ** ((first + i) / STEPS_A_DOUBLING), 4) for i in range(len(counts) + 1)]
    return [Bar(bounds[i], bounds[i + 1], int(calls)) for i, calls in enumerate(counts)]


def drawn(bars: Sequence[tuple[float, float, int]] | Sequence[Sequence[float]]) -> list[str]:
    """The histogram as lines of text, the longest bar WIDTH characters wide; a call alone is still seen."""
    most = max((calls for *_, calls in bars), default=1)
    lines = []
    for above, up_to, calls in bars:
        eighths = max(round(8 * WIDTH * calls / most), 1 if calls else 0)
        bar = "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()
        lines.append(f"{above:>9.3g} – {up_to:<8.3g} ms {int(calls):>10,}  {bar}".rstrip())
    return lines


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(float(value), 3)


# --- The file of requests to replay, and when each is due. Nothing here calls a server ---
#
# One JSON object a line: {"at": seconds, "request": a ctr.v1.RankRequest as JSON}, as `ftrie serve --record`
# writes them, or the request alone. Each is sent with `no_log`: no user sees the answers, so the server must
# not log impressions.


@dataclass(frozen=True)
class Requests:
    """Messages as they go over the wire, and the second at which each was recorded, from 0 on."""

    messages: list[bytes]
    at: list[float]
    timed: bool
    """Whether every line has its time."""


def read(path: Path) -> Requests:
    """Read a file of requests. Raises InputError with the line that is none, or where there is none at all."""
    lines = enumerate(path.read_bytes().splitlines(), 1)
    read = [_parsed(path, number, line) for number, line in lines if line.strip()]
    if not read:
        raise InputError(f"{path}: no requests; expected one JSON object a line, as of ftrie serve --record")
    times = [at for at, _ in read if at is not None]
    if len(times) < len(read):
        return Requests([message for _, message in read], [0.0] * len(read), timed=False)
    first = min(times)
    in_order = sorted(((at or 0.0) - first, number) for number, (at, _) in enumerate(read))
    return Requests([read[number][1] for _, number in in_order], [at for at, _ in in_order], timed=True)


def due(requests: Requests, rate: float | None, pace: float | None) -> Iterator[tuple[float, bytes]]:
    """(second, message) without end, the requests over and over.

    rate: calls a second, evenly. pace: as recorded, so many times as fast. Neither: all are due at once.
    """
    messages = itertools.cycle(requests.messages)
    if rate is not None:
        return ((number / rate, message) for number, message in enumerate(messages))
    if pace is None:
        return ((0.0, message) for message in messages)
    span = requests.at[-1] + requests.at[-1] / max(
        len(requests.at) - 1, 1
    )  # and the gap before it begins again
    rounds = ((turn * span + at) / pace for turn in itertools.count() for at in requests.at)
    return zip(rounds, messages, strict=False)


def _parsed(path: Path, number: int, line: bytes) -> tuple[float | None, bytes]:
    try:
        document = json_value(line)
        request = document.get("request", document)
        at = document.get("at") if request is not document else None
        message = ParseDict(request, RankRequest())
        message.no_log = True
        return None if at is None else float(at), message.SerializeToString()
    except (ValueError, TypeError, AttributeError, ParseError, RecursionError) as error:
        raise InputError(f"{path}:{number}: no ctr.v1.RankRequest as JSON: {error}") from None
