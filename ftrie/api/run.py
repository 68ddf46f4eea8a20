"""`ftrie.train`: one run over a log or a table, and what it learned: the report, the model and the metrics."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import pyarrow as pa

from ftrie.api.data import Data, TimedLog, log_of
from ftrie.api.model import Model, variants_table
from ftrie.api.output import LibraryOutput, names_arguments, warn, warn_of_rejects
from ftrie.api.spec import Spec, spec_of
from ftrie.draw.notebook import details, html_table, paragraph
from ftrie.draw.runs import RunMetrics, run_of
from model_store.artefact.artefact import Artefact
from model_store.errors import InputError
from trainer.formats.rejects import Reject, RejectLog
from trainer.learn.metrics.figures import METRICS
from trainer.learn.metrics.metrics import MetricsOptions
from trainer.learn.metrics.records import MetricsLines, VariantMetrics
from trainer.runs.loop import PassOptions
from trainer.runs.train import Report, nothing_learned
from trainer.runs.warmup import train_compiled

if TYPE_CHECKING:
    import altair as alt

# Declared: a column in which no figure is defined would have no type.
_METRICS = pa.schema(
    [
        pa.field("rows", pa.int64()),
        pa.field("time", pa.string()),
        pa.field("variant", pa.string()),
        pa.field("window_rows", pa.int64()),
        pa.field("click_rate", pa.float64()),
        *(pa.field(f"{part}{name}", pa.float64()) for part in ("", "total_") for name in METRICS),
    ]
)


@names_arguments
def train(
    spec: Spec | str | os.PathLike[str] | Mapping[str, Any],
    data: Data,
    *,
    initial: Model | None = None,
    passes: int = 1,
    tolerance: float = 1e-4,
    window: int | None = None,
    slices: Sequence[str] = (),
    regret: bool = False,
    strict: bool = False,
    threads: int | None = None,
    progress: bool = True,
    **log: Unpack[TimedLog],
) -> Run:
    """Learn every variant of `spec` from `data`, row by row in its order; each row is predicted before it is learned.

    data: paths, a table, or an iterator of tables (`ftrie.api.data.Data`). items, users: files or tables of
    features that the data lacks, joined by id. initial: a model to start from. passes: the most times that the data is
    learned, until a pass lowers no variant's log-loss by `tolerance`. window: rows of a line of `Run.metrics`; None: it
    grows. slices: fields by whose values the metrics are split. regret: compute how far the learner stays from the best
    fixed weights. since, until: only rows of these times. strict: a bad row is an error; otherwise it is counted and
    skipped. threads: of hashing; the result does not depend on it. progress: show a bar on a terminal or in a notebook.

    The same rows give the same model as `ftrie train`, bit for bit. Raises SpecError if the spec does not fit the data,
    InputError if it cannot be read to its end, or no row can be learned from.
    """
    given, output = spec_of(spec), LibraryOutput(progress)
    opened = log_of(data, given.model_spec.input, **log)
    kept = MetricsLines()
    with RejectLog(strict=strict) as rejects:
        run = train_compiled(
            given.model_spec,
            opened,
            rejects=rejects,
            threads=threads,
            metrics=MetricsOptions(window, tuple(slices), kept, regret),
            initial=initial.artefact if initial is not None else None,
            passes=PassOptions(passes, tolerance),
            output=output,
        )
    if run.failure is not None:
        raise run.failure
    if not run.report.rows:
        raise InputError(nothing_learned(run))
    for message in run.report.warnings:
        warn(message)
    warn_of_rejects(run.report.rejected, run.rejected)
    if run.lacks:
        warn(run.lacks)
    metrics = run_of(kept.lines)
    return Run(given, run.report, run.model.artefact(), metrics, tuple(rejects.first), run.withheld)


class Run:
    """A training run that has ended.

    spec: as given; report: the figures of the run, `as_dict()` for JSON; model: what was learned; metrics: a table with
    a line per window and variant; rejected: the first bad row of each kind; withheld: why the model should not be
    published (too many rows were rejected, or all labels are one), "" if it may be.
    """

    def __init__(
        self,
        spec: Spec,
        report: Report,
        artefact: Artefact,
        metrics: RunMetrics,
        rejected: tuple[Reject, ...],
        withheld: str,
    ) -> None:
        self.spec = spec
        self.report = report
        self.model = Model(artefact, withheld)
        self.rejected = rejected
        self.withheld = self.model.withheld
        self._metrics = metrics

    @cached_property
    def metrics(self) -> pa.Table:
        """A line per window and variant: rows so far, time, the window's figures, and `total_*`, those of all rows.

        Columns: rows, time, variant, window_rows, click_rate (the window's), logloss, auc, calibration,
        normalized_entropy, mean_prediction, and the same five with `total_`. Null where a figure is not defined.
        `.to_pandas()` makes it a pandas DataFrame.
        """
        lines = []
        for window in self._metrics.windows:
            for variant, figures in window.window.variants.items():
                lines.append(
                    {
                        "rows": window.rows,
                        "time": window.time,
                        "variant": variant,
                        "window_rows": window.window.rows,
                        "click_rate": window.window.click_rate,
                        **_numbers(figures),
                        **{
                            f"total_{name}": x for name, x in _numbers(window.total.variants[variant]).items()
                        },
                    }
                )
        return pa.Table.from_pylist(lines, schema=_METRICS)

    def save_report(self, path: str | os.PathLike[str]) -> None:
        """Write the page of `ftrie report`: .html, or .svg for the charts alone. Raises OutputError."""
        from ftrie.draw.runs import save_report

        save_report(Path(path), [self._metrics])

    def plot_learning(self, figure: str = "logloss") -> alt.LayerChart:
        """The learning curve of every variant: a column of `metrics` by rows. Needs the extra `notebook`."""
        from ftrie.draw.notebook import plot_learning

        return plot_learning(self.metrics, figure)

    def plot_calibration(self) -> alt.LayerChart:
        """Click rates by predicted rate, over all rows, with 95 % intervals. Needs the extra `notebook`."""
        from ftrie.draw.notebook import plot_calibration

        detail = self._metrics.detail
        return plot_calibration(detail.reliability if detail is not None else {})

    def plot_slices(self, name: str) -> alt.LayerChart:
        """Each variant's calibration by the values of a slice. Needs the extra `notebook`."""
        from ftrie.draw.notebook import plot_slices

        return plot_slices(name, self.report.slices.get(name, []))

    def __repr__(self) -> str:
        losses = ", ".join(
            f"{name} {figures.logloss:.5f}"
            for name, figures in self.report.variants.items()
            if figures.logloss is not None
        )
        return f"Run({self.spec.name!r}: {self.report.rows:,} rows, {self.report.keys:,} keys; log-loss {losses})"

    def _repr_html_(self) -> str:
        report = self.report
        first = (
            f"{self.spec.name}: {report.rows:,} rows in {report.seconds:.1f} s, {report.rejected:,} rejected; "
            f"{report.keys:,} keys, {report.nonzero:,} with a weight"
        )
        parts = [paragraph(first), variants_table(report.variants)]
        if self.rejected:
            parts.append(
                details(
                    "rejected rows",
                    html_table(["first of its kind"], [[str(each)] for each in self.rejected]),
                )
            )
        if report.warnings:
            parts.append(details("warnings", html_table(["warning"], [[each] for each in report.warnings])))
        return "".join(parts)


def _numbers(figures: VariantMetrics) -> dict[str, float | None]:
    return figures.model_dump(exclude={"difference"})
