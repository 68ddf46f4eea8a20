"""What `ftrie train` prints at its end: a run's report in a few lines and tables, or as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from model_store.terminal import print_json, print_table

if TYPE_CHECKING:
    from trainer.train import Report
    from trainer.watching.records import VariantMetrics

_MOST_REASONS = 5
_MANY_KEYS = 10_000


def show(report: Report, as_json: bool) -> None:
    """Print the report: as JSON, or as a few lines and a table."""
    if as_json:
        print_json(report.as_dict())
        return
    rate = report.rows / report.seconds if report.seconds else 0.0
    print(
        f"{report.rows:,} rows in {report.seconds:.1f} s ({rate:,.0f} rows/s), {report.rejected:,} rejected"
        + (f", {report.subsampled:,} not drawn" if report.subsampled else "")
        + f"; {report.keys:,} keys, {report.nonzero:,} with a weight"
        + (f", {report.evicted:,} dropped" if report.evicted else "")
        + (f"; version {report.version}" if report.version is not None else "")
        + _published(report)
    )
    for line in (_reasons(report), _labels(report), _size(report)):
        if line:
            print(line)
    show_variants(report.variants)
    _show_calibration(report)


def show_variants(variants: Mapping[str, VariantMetrics]) -> None:
    """Print the metrics of all variants over all rows."""
    change = ["difference"] if len(variants) > 1 else []
    print_table(
        ["variant", "log-loss, all rows", *change, "AUC", "calibration", "normalized entropy"],
        [
            [name, m.logloss, *(_change(m) for _ in change), m.auc, m.calibration, m.normalized_entropy]
            for name, m in variants.items()
        ],
    )


def _published(report: Report) -> str:
    """The versions of a run that publishes while it learns."""
    counts = report.published
    if not counts.snapshots + counts.deltas + counts.failed:
        return ""
    failed = f", {counts.failed:,} could not be published" if counts.failed else ""
    refused = f", {counts.refused:,} refused by the guard" if counts.refused else ""
    return f" ({counts.snapshots:,} whole, {counts.deltas:,} of changes{failed}{refused})"


def _show_calibration(report: Report) -> None:
    """What the curves did for the predictions that came after each was fitted."""
    if not report.calibration:
        return
    fitted = [
        [name, c.logloss, c.logloss_corrected, c.calibration, c.calibration_corrected, c.values]
        for name, c in report.calibration.items()
        if c.logloss is not None
    ]
    print()
    if fitted:
        heading = ["calibrated", "log-loss", "corrected", "calibration", "corrected", "values of their own"]
        print_table(heading, fitted)
    else:
        print("no curve could be judged: that takes 100 clicks, 100 other rows, and as many rows again")


def _reasons(report: Report) -> str:
    """Why rows were rejected, most frequent first."""
    counts = [f"{reason} ({count:,})" for reason, count in report.reasons.items()]
    more = [f"and {len(counts) - _MOST_REASONS} more"] if len(counts) > _MOST_REASONS else []
    return f"rejected for: {', '.join(counts[:_MOST_REASONS] + more)}" if counts else ""


def _labels(report: Report) -> str:
    """That labels were written as -1 and +1, where they were."""
    return "labels are read as -1/+1: -1 is no click" if report.labels.get("-1") else ""


def _size(report: Report) -> str:
    """The memory of the table, in all and a key, and of the filters that guard it; of a small one it says nothing."""
    memory = report.memory
    if memory is None or report.keys < _MANY_KEYS:
        return ""
    filters = f", filters {memory.filters / 1e6:,.1f} MB" if memory.filters else ""
    return f"table {memory.table / 1e6:,.1f} MB, {memory.table / report.keys:.1f} bytes a key{filters}"


def _change(metrics: VariantMetrics) -> str | None:
    """How the log-loss differs from the first variant's, with half its 95 % interval; None for the first itself."""
    found = metrics.difference
    if found is None or found.logloss is None:
        return None
    if found.low is None or found.high is None:
        return f"{found.logloss:+.5f}"
    return f"{found.logloss:+.5f} ± {(found.high - found.low) / 2:.5f}"
