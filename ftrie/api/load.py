"""The load generator of `ftrie bench serve`: reads recorded requests, replays them with callers, measures latencies.

With a schedule (--rate, --pace) a latency counts from when the request was due, not from when a caller was free, so
that a stall is charged for every request that had to wait. Without one each caller sends its next request at once.
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
from ftrie.api.access import Access, Balance, cookie_metadata
from ftrie.api.client import METHOD
from model_store.bounded import json_value
from model_store.errors import InputError

CONNECTIONS = 8
"""The maximum number of connections: workers share a port, and each connection belongs to one worker."""
QUANTILES = (50.0, 90.0, 99.0, 99.9)
STEPS_A_DOUBLING = 2
WIDTH = 48
EIGHTHS = " ▏▎▍▌▋▊▉"


@dataclass
class LoadResult:
    """The calls of a run. latencies_ns: of answered calls, unordered. errors: calls by gRPC status."""

    seconds: float = 0.0
    # 8 bytes a call, where a list of ints would take several times as much.
    latencies_ns: array[int] = field(default_factory=lambda: array("Q"))
    errors: Counter[str] = field(default_factory=Counter)

    @property
    def calls(self) -> int:
        """The number of finished calls."""
        return len(self.latencies_ns) + self.errors.total()


class Load:
    """Calls a server, or several, for a while. Call `run` once."""

    def __init__(
        self,
        address: str,
        access: Access,
        schedule: Iterator[tuple[float, bytes]],
        timeout_s: float,
        balance: Balance | None = None,
    ) -> None:
        """`address`, `access` and `balance` as in `ftrie.api.client.Client`."""
        self._address = address
        self._access = access
        self._schedule = schedule
        self._timeout_s = timeout_s
        self._balance = balance
        self._metadata: dict[bytes, tuple[tuple[str, str], ...]] = {}
        self._lock = threading.Lock()
        self._results: list[LoadResult] = []

    def run(self, concurrency: int, duration_s: float, on_progress: Callable[[int], None]) -> LoadResult:
        """Call with `concurrency` callers for `duration_s`; `on_progress` gets the number of calls at intervals."""
        channels = [
            self._access.channel(self._address, balance=self._balance, own_connection=True)
            for _ in range(min(concurrency, CONNECTIONS))
        ]
        began_ns = time.perf_counter_ns()
        callers = [
            # As a daemon: Ctrl-C does not wait for calls that hang.
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
                on_progress(sum(result.calls for result in list(self._results)))
        for channel in channels:
            channel.close()
        total = LoadResult((time.perf_counter_ns() - began_ns) / 1e9)
        for result in self._results:
            total.latencies_ns.extend(result.latencies_ns)
            total.errors.update(result.errors)
        return total

    def _call(self, channel: grpc.Channel, began_ns: int, duration_s: float) -> None:
        """One caller."""
        result = LoadResult()
        # An append is atomic; `run` copies the list, to which callers add as they begin.
        self._results.append(result)
        call = channel.unary_unary(METHOD, None, None)  # bytes out, bytes in
        while True:
            # The schedule is a generator, which raises if a second thread enters it.
            with self._lock:
                due_s, message = next(self._schedule)
            now_s = (time.perf_counter_ns() - began_ns) / 1e9
            if max(due_s, now_s) >= duration_s:
                return
            if due_s > now_s:
                time.sleep(due_s - now_s)
            # Without a schedule due_s is 0, and the latency is that of the call alone.
            from_ns = began_ns + int(due_s * 1e9) if due_s else time.perf_counter_ns()
            try:
                call(message, timeout=self._timeout_s, metadata=self._metadata_of(message))
            except grpc.RpcError as error:
                result.errors[error.code().name] += 1
            else:
                result.latencies_ns.append(time.perf_counter_ns() - from_ns)

    def _metadata_of(self, message: bytes) -> tuple[tuple[str, str], ...]:
        """Of each request once: requests are repeated, and their cookies are inside the messages."""
        # Without a lock: two callers may make the same entry, with the same value.
        found = self._metadata.get(message)
        if found is None:
            found = self._access.metadata()
            if self._balance == "cookie":
                found += cookie_metadata(RankRequest.FromString(message).cookie)
            self._metadata[message] = found
        return found


@dataclass(frozen=True)
class Bar:
    """One bar of the histogram: the calls that took from `above_ms` to `up_to_ms`."""

    above_ms: float
    up_to_ms: float
    calls: int


def figures(result: LoadResult) -> dict[str, Any]:
    """The --json output: counts, rates, latencies in milliseconds (None if no call was answered)."""
    ms = np.frombuffer(result.latencies_ns, np.uint64) / 1e6
    quantiles = np.percentile(ms, QUANTILES) if len(ms) else [None] * len(QUANTILES)
    return {
        "calls": result.calls,
        "answered": len(ms),
        "errors": dict(result.errors.most_common()),
        "seconds": round(result.seconds, 3),
        "answered_a_second": round(len(ms) / result.seconds, 1),
        "mean_ms": _rounded(ms.mean() if len(ms) else None),
        **{f"p{name:g}_ms": _rounded(value) for name, value in zip(QUANTILES, quantiles, strict=True)},
        "max_ms": _rounded(ms.max() if len(ms) else None),
        "histogram": [[bar.above_ms, bar.up_to_ms, bar.calls] for bar in histogram(ms)],
    }


def histogram(ms: Sequence[float] | np.ndarray[Any, Any]) -> list[Bar]:
    """Bars whose bounds grow by √2, from the fastest call to the slowest."""
    if not len(ms):
        return []
    # The logarithm of 0 has no bar: a microsecond is the least.
    steps = np.floor(np.log2(np.maximum(ms, 1e-3)) * STEPS_A_DOUBLING).astype(int)
    first = int(steps.min())
    counts = np.bincount(steps - first)
    bounds = [round(2.0 ** ((first + i) / STEPS_A_DOUBLING), 4) for i in range(len(counts) + 1)]
    return [Bar(bounds[i], bounds[i + 1], int(calls)) for i, calls in enumerate(counts)]


def drawn(bars: Sequence[tuple[float, float, int]] | Sequence[Sequence[float]]) -> list[str]:
    """The histogram as lines of text, the longest bar WIDTH characters wide; a single call is still visible."""
    most = max((calls for *_, calls in bars), default=1)
    lines = []
    for above, up_to, calls in bars:
        eighths = max(round(8 * WIDTH * calls / most), 1 if calls else 0)
        bar = "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()
        lines.append(f"{above:>9.3g} – {up_to:<8.3g} ms {int(calls):>10,}  {bar}".rstrip())
    return lines


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(float(value), 3)


@dataclass(frozen=True)
class Requests:
    """Serialized messages, and the second at which each was recorded, from 0. timed: whether every line has a time."""

    messages: list[bytes]
    at: list[float]
    timed: bool


def read(path: Path) -> Requests:
    """Read a file of requests. Raises InputError, with the line.

    One JSON object a line: {"at": seconds, "request": a ctr.v1.RankRequest as JSON}, as `ftrie serve --record` writes
    them, or the request alone. Each gets `no_log`: no user sees the answers, so the server must not log impressions.
    """
    lines = enumerate(path.read_bytes().splitlines(), 1)
    read = [_parsed(path, number, line) for number, line in lines if line.strip()]
    if not read:
        raise InputError(
            f"{path}: no requests; expected one JSON object a line, as written by ftrie serve --record"
        )
    times = [at for at, _ in read if at is not None]
    if len(times) < len(read):
        return Requests([message for _, message in read], [0.0] * len(read), timed=False)
    first = min(times)
    in_order = sorted(((at or 0.0) - first, number) for number, (at, _) in enumerate(read))
    return Requests([read[number][1] for _, number in in_order], [at for at, _ in in_order], timed=True)


def due(requests: Requests, rate: float | None, pace: float | None) -> Iterator[tuple[float, bytes]]:
    """(second, message) without end; the requests are repeated.

    rate: calls a second, evenly spaced. pace: the recorded times, this many times as fast. Neither: all due at once.
    """
    messages = itertools.cycle(requests.messages)
    if rate is not None:
        return ((number / rate, message) for number, message in enumerate(messages))
    if pace is None:
        return ((0.0, message) for message in messages)
    # The gap between the last request and the first of the next round is the mean gap.
    span = requests.at[-1] + requests.at[-1] / max(len(requests.at) - 1, 1)
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
        raise InputError(f"{path}:{number}: not a ctr.v1.RankRequest as JSON: {error}") from None
