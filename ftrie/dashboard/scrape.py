"""Servers and trainers as the dashboard sees them: their metrics pages, read again and again, as rates and percentiles.

`ServerWatch.scrape` and `TrainerWatch.scrape` read /metrics (and a server's /healthz) once; `state` is then the latest
snapshot, with the last ten minutes of the figures that are drawn over time. Counters become rates per second between
two reads; one that has become smaller belongs to a process that has restarted, and counts from 0.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from prometheus_client.parser import text_string_to_metric_families

TIMEOUT_S = 2.0
KEPT = 600
"""Moments of each figure over time."""
OVER_S, LEAST_S = 10.0, 0.9
"""Rates and percentiles are of the last OVER_S seconds, once LEAST_S have passed."""
MOST_BYTES = 16 << 20
PERCENTILES = (0.5, 0.95, 0.99)

Labels = tuple[tuple[str, str], ...]
Samples = dict[str, dict[Labels, float]]
S = TypeVar("S", bound="ProcessState")
Histogram = dict[float, float]
"""Upper bound → observations at or below it."""


@dataclass(frozen=True)
class Moment:
    """The figures of one read. at: seconds since 1970; percentiles in seconds, None without calls."""

    at: float
    calls: float
    percentiles: tuple[float | None, ...]


@dataclass(frozen=True)
class ProcessState:
    """A server or a trainer as it was read last. totals, rates: by metric and labels, since its start and per second.

    problem: why it cannot be read now.
    """

    address: str
    at: float = 0.0
    problem: str = "not read yet"
    totals: Samples = field(default_factory=dict)
    rates: Samples = field(default_factory=dict)

    def rate(self, name: str, **labels: str) -> float:
        """The sum of a counter's rates per second over all series with these labels."""
        return added(self.rates, name, labels)

    def total(self, name: str, **labels: str) -> float:
        """The sum of a metric over all series with these labels."""
        return added(self.totals, name, labels)

    def highest(self, name: str) -> float | None:
        """The highest value of a gauge, None if it has no series."""
        return max(self.totals.get(name, {}).values(), default=None)


@dataclass(frozen=True)
class ServerState(ProcessState):
    """One server. health: its /healthz."""

    health: Mapping[str, Any] = field(default_factory=dict)
    moments: tuple[Moment, ...] = ()

    @property
    def models(self) -> list[Mapping[str, Any]]:
        """What /healthz says of every model."""
        return list(self.health.get("models", ()))


@dataclass(frozen=True)
class TrainerState(ProcessState):
    """One trainer."""

    moments: tuple[tuple[float, float], ...] = ()
    """Time and lag in seconds."""


def added(samples: Samples, name: str, labels: Mapping[str, str]) -> float:
    """The sum over all series of a metric that have these labels."""
    wanted = set(labels.items())
    return sum(value for key, value in samples.get(name, {}).items() if wanted <= set(key))


def grown(before: float, now: float) -> float:
    """How much a counter has grown; one that is smaller has started again at 0."""
    return now - before if now >= before else now


class _Watch(Generic[S]):
    """Reads one process. `scrape` on one thread at a time; `state` on any."""

    def __init__(self, state: S) -> None:
        self.state = state
        self._before: deque[tuple[float, Samples]] = deque()
        """The totals of the last OVER_S seconds, from which rates are made."""

    def scrape(self) -> None:
        """Read the pages; a failure is the state's `problem`."""
        address = self.state.address
        try:
            self.state = self._read(address)
        # Whatever answers at the address may say anything; an error that left here would end the thread of all pages.
        except Exception as error:
            self.state = replace(self.state, problem=f"no answer from {address}: {_reason(error)}")

    def _read(self, address: str) -> S:
        raise NotImplementedError

    def _totals_and_rates(self, address: str) -> tuple[float, Samples, Samples]:
        """When /metrics was read, its totals, and their rates since OVER_S seconds before."""
        totals = samples_of(fetched(address, "/metrics").decode())
        # Rates by the one that nobody sets.
        at, now_s = time.time(), time.monotonic()
        self._before.append((now_s, totals))
        # One that is at least OVER_S old is kept, so that rates are of the whole time.
        while len(self._before) > 2 and self._before[1][0] <= now_s - OVER_S:
            self._before.popleft()
        began, first = self._before[0]
        if now_s - began < LEAST_S:  # a single call would look like many a second
            return at, totals, {}
        rates = {
            name: {
                key: grown(first.get(name, {}).get(key, 0.0), total) / (now_s - began)
                for key, total in series.items()
            }
            for name, series in totals.items()
        }
        return at, totals, rates


class ServerWatch(_Watch[ServerState]):
    """Reads /healthz and /metrics of one server."""

    def __init__(self, address: str) -> None:
        super().__init__(ServerState(address))

    def _read(self, address: str) -> ServerState:
        health = json.loads(fetched(address, "/healthz"))
        at, totals, rates = self._totals_and_rates(address)
        moments = self.state.moments
        if rates:
            calls = histogram(rates, "ftrie_call_seconds")
            percentiles = tuple(percentile(calls, share) for share in PERCENTILES)
            answered = added(rates, "ftrie_call_seconds_count", {})
            # A new tuple: viewers may be reading the old one.
            moments = (*moments, Moment(at, answered, percentiles))[-KEPT:]
        health = health if isinstance(health, dict) else {}
        return ServerState(address, at, "", totals, rates, health, moments)


class TrainerWatch(_Watch[TrainerState]):
    """Reads /metrics of one trainer."""

    def __init__(self, address: str) -> None:
        super().__init__(TrainerState(address))

    def _read(self, address: str) -> TrainerState:
        at, totals, rates = self._totals_and_rates(address)
        lags, moments = totals.get("ftrie_trainer_lag_seconds", {}), self.state.moments
        if lags:
            moments = (*moments, (at, max(lags.values())))[-KEPT:]
        return TrainerState(address, at, "", totals, rates, moments)


_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Metrics pages are asked as Prometheus asks them, without the environment's proxy."""


def fetched(address: str, path: str) -> bytes:
    """A page of a server. A status other than 200 with a body is an answer too.

    Raises OSError; HTTPException if what answers does not speak HTTP; either, or ValueError, for no HOST:PORT.
    """
    url = f"http://{address}{path}"
    try:
        with _DIRECT.open(url, timeout=TIMEOUT_S) as answer:
            # Bounded: the address may be of anything that speaks HTTP.
            return bytes(answer.read(MOST_BYTES))
    except urllib.error.HTTPError as error:  # 503: not ready; the body says why
        return error.read(MOST_BYTES)


def samples_of(text: str) -> Samples:
    """A page in Prometheus's text format. Raises ValueError."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            # Clients of Prometheus add when each counter was made.
            if not sample.name.endswith("_created"):
                found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def histogram(samples: Samples, name: str, **labels: str) -> Histogram:
    """The buckets of a histogram, added up over all series with these labels."""
    wanted = set(labels.items())
    found: Histogram = {}
    for key, value in samples.get(f"{name}_bucket", {}).items():
        bound = dict(key).get("le")
        if bound is not None and wanted <= set(key):
            found[float(bound)] = found.get(float(bound), 0.0) + value
    return found


def percentile(buckets: Histogram, share: float) -> float | None:
    """The value below which this share of the observations is, linear within a bucket; None without observations."""
    bounds = sorted(buckets)
    if not bounds or buckets[bounds[-1]] <= 0.0:
        return None
    wanted, below, low = share * buckets[bounds[-1]], 0.0, 0.0
    for bound in bounds:
        if buckets[bound] >= wanted:
            if bound == float("inf"):  # nothing more is known of what is beyond the last bound
                return low
            inside = buckets[bound] - below
            return low + (bound - low) * ((wanted - below) / inside if inside else 1.0)
        below, low = buckets[bound], bound
    return low


def per_bucket(buckets: Histogram) -> list[tuple[float, float, float]]:
    """Lower bound, upper bound and observations of each bucket, in order."""
    found, low, below = [], 0.0, 0.0
    for bound in sorted(buckets):
        found.append((low, bound, max(0.0, buckets[bound] - below)))
        low, below = bound, buckets[bound]
    return found


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", error)
    return str(getattr(reason, "strerror", None) or reason).strip() or type(error).__name__


def labels_of(samples: Samples, name: str, label: str) -> Sequence[str]:
    """The values of a label of a metric, in order."""
    return sorted({dict(key).get(label, "") for key in samples.get(name, {})})
