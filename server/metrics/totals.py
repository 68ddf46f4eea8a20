"""Adds up what the processes of a server have counted. Nothing here counts, and nothing here knows Prometheus.

A process reports increments, so what a worker counted stays counted when it has died, and no total ever falls.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from server.metrics.families import OLDER, VERSIONS_KEPT
from server.metrics.meter import ROW, Labels

Row = list[int]


class Totals:
    """What all processes together have counted. Thread safety: all methods from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._versions: dict[str, dict[str, dict[str, Row]]] = {}
        """Model → version, the latest counted one last → variant → row."""
        self._counts: dict[tuple[str, Labels], float] = {}
        self._gauges: dict[str, dict[tuple[str, Labels], float]] = {}

    def add(self, source: str, taken: Mapping[str, Any]) -> None:
        """Add what the process `source` took from its meter; its gauges replace those it sent before."""
        with self._lock:
            for model, version, variant, row in taken["answers"]:
                self._add_row(model, str(version), variant, row)
            for name, labels, number in taken["counts"]:
                key = (name, tuple(labels))
                self._counts[key] = self._counts.get(key, 0) + number
            self._gauges[source] = {(name, tuple(labels)): value for name, labels, value in taken["gauges"]}

    def gone(self, source: str) -> None:
        """A process has ended: its gauges are no more, its counts stay."""
        with self._lock:
            self._gauges.pop(source, None)

    def answers(self) -> list[tuple[Labels, Row]]:
        """(model, version, variant) and the sum of its rows; of the versions of a model the latest few by name."""
        with self._lock:
            return [
                ((model, version, variant), list(row))
                for model, versions in self._versions.items()
                for version, variants in versions.items()
                for variant, row in variants.items()
            ]

    def counts(self) -> list[tuple[str, Labels, float]]:
        """Each counter's name, labels and sum."""
        with self._lock:
            return [(name, labels, number) for (name, labels), number in self._counts.items()]

    def gauges(self) -> list[tuple[str, Labels, float]]:
        """Each gauge's name, labels and sum over the processes alive."""
        summed: dict[tuple[str, Labels], float] = {}
        with self._lock:
            for gauges in self._gauges.values():
                for key, value in gauges.items():
                    summed[key] = summed.get(key, 0.0) + value
        return [(name, labels, value) for (name, labels), value in summed.items()]

    def _add_row(self, model: str, version: str, variant: str, row: Row) -> None:
        versions = self._versions.setdefault(model, {OLDER: {}})
        variants = versions.pop(version, {})
        versions[version] = variants  # the last, since it was counted last
        _add(variants, variant, row)
        if len(versions) > VERSIONS_KEPT + 1:
            oldest = next(name for name in versions if name != OLDER)
            for name, numbers in versions.pop(oldest).items():
                _add(versions[OLDER], name, numbers)


def _add(variants: dict[str, Row], variant: str, row: Row) -> None:
    before = variants.get(variant) or [0] * ROW
    variants[variant] = [a + b for a, b in zip(before, row, strict=True)]
