"""What a metric is, for servers and trainers: each is declared once, beside the line that counts it.

The tables of docs/metrics.md are made from the declarations (docs/generate.py).
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from socketserver import TCPServer
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from prometheus_client import Metric

Labels = tuple[str, ...]
Sample = tuple[Labels, float]
SUM = "sum"
"""In place of a bucket's bound, the last label of a histogram's sample: the sum of what was observed."""
NOT_ACCEPTED_S = 0.1


@dataclass(frozen=True, eq=False)
class Family:
    """One metric: its name, its labels, what it counts, and the upper bounds of a histogram's buckets; +Inf follows.

    help: a phrase in Markdown without links. Families are compared by identity: one is half of the key that each call
    looks up to count. Thread safety: immutable.
    """

    name: str
    labels: Labels
    help: str
    buckets: tuple[float, ...] = ()

    def __str__(self) -> str:
        return self.name

    @property
    def kind(self) -> Literal["counter", "gauge", "histogram"]:
        """Follows from the name, by Prometheus's conventions: counters end in _total, and nothing else does."""
        if self.buckets:
            return "histogram"
        return "counter" if self.name.endswith("_total") else "gauge"

    @cached_property
    def bounds(self) -> tuple[str, ...]:
        """The label `le` of each bucket."""
        return (*(f"{bound:g}" for bound in self.buckets), "+Inf")

    def bucket_of(self, value: float) -> str:
        """The bound of the bucket that a value falls into."""
        return self.bounds[bisect_left(self.buckets, value)]

    def metric(self, samples: Iterable[Sample]) -> Metric:
        """The metric for prometheus_client. The samples of a histogram have one label more: a bound, or SUM.

        A bucket's sample has the observations in this bucket alone; those that are missing are 0. A metric without
        labels is 0 before its first sample.
        """
        # Imported here: who counts (a Ranker in a process that imports ftrie) need not be one that exports.
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        # The help of the documentation is Markdown, that of Prometheus plain text.
        text = self.help.replace("`", "")
        if not self.buckets:
            kind = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
            plain = kind(self.name, text, labels=self.labels)
            for labels, number in samples or ([] if self.labels else [((), 0.0)]):
                plain.add_metric(labels, number)
            return plain
        metric = HistogramMetricFamily(self.name, text, labels=self.labels)
        observed: dict[Labels, dict[str, float]] = {}
        for labels, number in samples:
            observed.setdefault(labels[:-1], {})[labels[-1]] = number
        for labels, numbers in observed.items():
            below, buckets = 0.0, []
            for bound in self.bounds:
                # Prometheus counts up: a bucket holds all observations below its bound. Here each is counted once.
                below += numbers.get(bound, 0.0)
                buckets.append((bound, below))
            metric.add_metric(labels, buckets, numbers.get(SUM, 0.0))
        return metric


def pause_where_none_is_accepted(page: TCPServer) -> None:
    """Have a page of metrics wait a moment after a connection that it could not accept.

    Without a free descriptor that connection stays, and the page would try at once again, for ever.
    """
    accept = page.get_request

    def get_request() -> Any:
        try:
            return accept()
        except OSError:
            time.sleep(NOT_ACCEPTED_S)
            raise

    page.get_request = get_request  # type: ignore[method-assign]
