"""`ftrie.Model`: a trained model that predicts, explains itself, is compared, saved, published, and ranked with."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ftrie.api.data import Data, Log, TimedLog, as_given, log_of
from ftrie.api.output import LibraryOutput, in_python, names_arguments, warn, warn_of_rejects
from ftrie.api.spec import Spec
from ftrie.api.weights import ModelDiff, diff_of, heaviest, weights_table
from ftrie.draw.notebook import arrow_html, details, html_table, paragraph
from model_store.artefact import json_model
from model_store.artefact.artefact import Artefact
from model_store.artefact.inspection import one_variant, summaries
from model_store.errors import InputError, UsageError, counted, listed
from model_store.flags import DEFAULT_STORE
from model_store.model_files import write_model
from model_store.store import Store as StoreEngine
from trainer.formats.rejects import RejectLog
from trainer.learn.metrics.figures import METRICS
from trainer.learn.metrics.records import VariantMetrics
from trainer.runs.audit import RowAudit, audit
from trainer.runs.diagnostics import DiagnosticsOptions, ModelReport
from trainer.runs.evaluate import Evaluation as EngineEvaluation
from trainer.runs.evaluate import evaluate, predict

if TYPE_CHECKING:
    import altair as alt

    from ftrie.api.ranker import Ranker


class Model:
    """A trained model. Immutable; may be shared by all threads.

    Made by `ftrie.train`, `Learner.model`, `ftrie.load` and `Store.load`. `artefact` is the model as the engine holds
    it; internal. withheld: why it should not be published, "" if it may be.
    """

    def __init__(self, artefact: Artefact, withheld: str = "") -> None:
        self.artefact = artefact
        self.withheld = in_python(withheld)

    @property
    def spec(self) -> Spec:
        """The spec, resolved: every field is named."""
        return Spec.of(self.artefact.spec)

    @property
    def name(self) -> str:
        """The model's name in a store."""
        return self.artefact.spec.model.name

    @property
    def variants(self) -> tuple[str, ...]:
        """The names of the variants, the base first."""
        return tuple(self.artefact.spec.variants)

    @property
    def keys(self) -> int:
        """The number of keys."""
        return self.artefact.rows

    @property
    def metrics(self) -> Mapping[str, Mapping[str, float]]:
        """The training metrics of each variant."""
        return self.artefact.metrics

    @names_arguments
    def predict(
        self,
        data: Data,
        *,
        uncertainty: bool = False,
        score: bool = False,
        threads: int | None = None,
        progress: bool = False,
        **log: Unpack[Log],
    ) -> Any:
        """The click rate of every row by every variant: a float64 column a variant, a line a row, in order.

        A table of the type of `data`: pandas, with its index, or polars; pyarrow.Table for everything else.
        data: see `ftrie.train`; it needs no labels. score: also `NAME.score`, the log-odds (of an adpredictor the mean)
        before calibration. uncertainty: also `NAME.uncertainty`, the most that one more example could change the score
        (of an adpredictor its standard deviation); keys that the model lacks count with their initial rate, as in
        `ftrie evaluate`, and not at all in a server's. A row that cannot be read or has a bad value is null in all
        columns, and they are a warning. Raises SpecError for a missing column, InputError if the data cannot be read to
        its end.
        """
        opened = log_of(data, self.artefact.spec.input, **log)
        kinds = ["ctr", *(["score"] if score else []), *(["uncertainty"] if uncertainty else [])]
        columns = [(kind, bit) for kind in kinds for bit in range(len(self.variants))]
        parts: list[list[npt.NDArray[np.float64]]] = [[] for _ in columns]
        bad: list[str] = []
        rejected = 0
        for batch in predict(self.artefact, opened, threads=threads, output=LibraryOutput(progress)):
            for part, (kind, bit) in zip(parts, columns, strict=True):
                part.append(getattr(batch.scores, kind)[:, bit])
            rejected += len(batch.rejects)
            bad += [str(each) for each in batch.rejects[: 3 - len(bad)]]
        if rejected:
            warn(f"{counted(rejected, 'row')} could not be scored: {'; '.join(bad)}")
        names = [self.variants[bit] + ("" if kind == "ctr" else f".{kind}") for kind, bit in columns]
        answer = {
            # from_pandas: NaN, of a row that could not be scored, becomes null.
            name: pa.array(np.concatenate(part) if part else np.empty(0), from_pandas=True)
            for name, part in zip(names, parts, strict=True)
        }
        return as_given(pa.table(answer), data)

    def weights(self) -> pa.Table:
        """A line a key: key, field, weight and learning_rate, and the variants that use it. O(keys).

        Where each variant has its own values (learner.values = "per_variant") the columns are `weight.NAME` and
        `learning_rate.NAME`, null where the variant does not use the key.
        """
        return weights_table(self.artefact)

    @names_arguments
    def explain(self, row: Mapping[str, Any], variant: str | None = None) -> Explanation:
        """The contribution of each key of one row to its score. variant: the base by default.

        Raises SpecError for an unknown variant or a missing column, InputError for a value that does not fit.
        """
        log = log_of([row], self.artefact.spec.input, unlabelled=True)
        return Explanation(audit(self.artefact, log, 1, variant))

    @names_arguments
    def evaluate(
        self,
        data: Data,
        *,
        k: int = 10,
        position: str | None = None,
        without: Sequence[str] = (),
        slices: Sequence[str] = (),
        diagnose: bool = False,
        strict: bool = False,
        threads: int | None = None,
        progress: bool = True,
        **log: Unpack[TimedLog],
    ) -> Evaluation:
        """Judge the predictions of every variant on labelled rows that were not learned.

        k: NDCG's; position: the column with a row's position in its request, to judge the order shown too; without:
        fields and crosses to score without. diagnose: also where the model is wrong, on what it relies and what has
        drifted, which `save_report` draws; slices: the fields by whose values, default those of few values. Raises
        SpecError for a missing column, InputError if the data cannot be read to its end.
        """
        output = LibraryOutput(progress)
        options = DiagnosticsOptions(tuple(slices)) if diagnose or slices else None
        with RejectLog(strict=strict) as rejects:
            found = evaluate(
                self.artefact,
                log_of(data, self.artefact.spec.input, **log),
                rejects=rejects,
                k=k,
                position=position,
                diagnostics=options,
                without=without,
                threads=threads,
                output=output,
            )
        warn_of_rejects(rejects.count, rejects.reasons)
        return Evaluation(self.name, found)

    def diff(self, other: Model, variant: str | None = None) -> ModelDiff:
        """How this model differs from `other`, an older one, in one variant, by default the base. O(keys of both).

        Raises UsageError if one of them lacks the variant.
        """
        return diff_of(other.artefact, self.artefact, variant or self.variants[0])

    def to_json(self, variant: str | None = None) -> str:
        """The JSON form: a list of keys with their weights (`ftrie store export`), without calibration.

        variant: as a model of its own; required where each variant has its own values. Raises ArtefactError for a model
        that the form cannot hold.
        """
        artefact = self.artefact if variant is None else one_variant(self.artefact, variant)
        return json_model.render(artefact).decode()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model: .arrow for everything, .json for the JSON form; atomically. Raises OutputError."""
        write_model(self.artefact, Path(path))

    def publish(self, store: Any = None, *, activate: bool = False, force: bool = False) -> int:
        """Put the model into a store as a new version, and return its number. activate: servers switch to it.

        store: a `Store` or a URL; by default FTRIE_STORE, else the embedded store of this folder. Raises InputError if
        too many rows were rejected, unless force; StoreError if it could not be published, LeaseHeld if a trainer
        publishes this model.
        """
        if self.withheld and not force:
            raise InputError(self.withheld)
        with opened_engine(store) as engine:
            return published(self.artefact, engine, activate)

    def ranker(self, items: Data | None = None, users: Data | None = None) -> Ranker:
        """A ranker in this process: the server's, without a server. items, users: stored features by id."""
        from ftrie.api.ranker import Ranker

        return Ranker(self, items=items, users=users)

    def plot_weights(self, n: int = 20, variant: str | None = None) -> alt.LayerChart:
        """The `n` keys with the largest weights of a variant. Needs the extra `notebook`."""
        from ftrie.draw.notebook import plot_weights

        name = variant or self.variants[0]
        if name not in self.variants:
            raise UsageError(f"no variant {name!r}; the model has: {listed(self.variants, name)}")
        keys, weights = heaviest(self.artefact, self.variants.index(name), n)
        return plot_weights(keys, weights, f"{self.name}, variant {name}: the largest weights")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and self.artefact.sha256 == other.artefact.sha256

    def __hash__(self) -> int:
        return hash(self.artefact.sha256)

    def __repr__(self) -> str:
        return f"Model({self.name!r}: {self.keys:,} keys, variants {', '.join(self.variants)})"

    def _repr_html_(self) -> str:
        figures = {
            name: VariantMetrics.model_validate(_complete(each)) for name, each in self.metrics.items()
        }
        owners = [[each.name, each.keys, each.weight_sum, each.heaviest] for each in summaries(self.artefact)]
        return (
            paragraph(repr(self))
            + variants_table(figures)
            + details("keys by field", html_table(["field or cross", "keys", "sum |w|", "max |w|"], owners))
        )


@contextmanager
def opened_engine(store: Any) -> Iterator[Any]:
    """The engine of an open `Store`, or of the one that a URL names (None: the default), which is closed after."""
    if store is not None and not isinstance(store, str):
        yield store.engine
    else:
        with StoreEngine.open(store or os.environ.get("FTRIE_STORE") or DEFAULT_STORE) as opened:
            yield opened


def published(artefact: Artefact, engine: StoreEngine, activate: bool) -> int:
    """Put a model into a store as a new version, and return its number. A guard that is passed by is a warning."""
    versions = engine.model(artefact.spec.model.name, warn)
    if not activate:
        return versions.publish(artefact)
    # A guard judges by the latest examples of a run, which a model alone does not have.
    if artefact.spec.guard is not None:
        name = artefact.spec.model.name
        warn(
            f"the guard of {name!r} does not judge what is published from Python: version activated unjudged"
        )
    return versions.publish_and_activate(artefact)


@dataclass(frozen=True)
class Explanation:
    """A row's score as the sum of its keys' contributions. `audit` has all figures."""

    audit: RowAudit

    @property
    def score(self) -> float:
        """The sum of the contributions: the log-odds before calibration."""
        return self.audit.score

    @property
    def ctr(self) -> float:
        """The predicted click rate, calibrated."""
        return self.audit.ctr

    @property
    def table(self) -> pa.Table:
        """field, key, x, weight, contribution, learning_rate: a line a key; weight is null if the model lacks it."""
        lines = [
            {
                "field": field.name,
                "key": key.key,
                "x": key.x,
                "weight": key.weight,
                "contribution": key.contribution,
                "learning_rate": key.learning_rate,
            }
            for field in self.audit.fields
            for key in field.keys
        ]
        kinds = [pa.string(), pa.string(), *[pa.float64()] * 4]
        names = ["field", "key", "x", "weight", "contribution", "learning_rate"]
        return pa.Table.from_pylist(lines, schema=pa.schema(list(zip(names, kinds, strict=True))))

    def __str__(self) -> str:
        lines = [f"{self.audit.variant}: score {self.score:.6f}, ctr {self.ctr:.6f}"]
        for field in self.audit.fields:
            lines += [
                f"  {key.contribution:+.6f}  {key.key}"
                + ("" if key.weight is not None else " (not in the model)")
                for key in field.keys
            ]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        first = f"{self.audit.variant}: score {self.score:.6f}, ctr {self.ctr:.6f}"
        return paragraph(first) + arrow_html(self.table)


class Evaluation:
    """How good a model's predictions are on labelled rows. `report` has all figures of the engine."""

    def __init__(self, name: str, report: EngineEvaluation) -> None:
        self.name, self.report = name, report

    @property
    def variants(self) -> dict[str, VariantMetrics]:
        """The metrics of every variant: logloss, auc, calibration, normalized_entropy, mean_prediction."""
        return self.report.variants

    @property
    def table(self) -> pa.Table:
        """A line a variant: its metrics, and of logs with requests those of its order."""
        requests = self.report.requests
        lines = []
        for name, figures in self.variants.items():
            line: dict[str, Any] = {"variant": name, **figures.model_dump(exclude={"difference"})}
            if requests is not None:
                order = requests.orders[name]
                line |= {"mrr": order.mrr, "ndcg": order.ndcg, "hit_1": order.hit_1, "request_auc": order.auc}
            lines.append(line)
        return pa.Table.from_pylist(lines)

    def save_report(self, path: str | os.PathLike[str]) -> None:
        """Write the page of `ftrie evaluate --report`, .html or .svg. Raises UsageError without `diagnose=True`."""
        from ftrie.draw.model_page import save_report

        save_report(Path(path), self.name, self._diagnosed("save_report"))

    def plot_calibration(self) -> alt.LayerChart:
        """Click rates by predicted rate, with 95 % intervals. Needs `diagnose=True` and the extra `notebook`."""
        from ftrie.draw.notebook import plot_calibration

        total = self._diagnosed("plot_calibration").total
        return plot_calibration({name: each.bins for name, each in total.variants.items()})

    def plot_slices(self, name: str) -> alt.LayerChart:
        """Each variant's calibration by the values of a field. Needs `diagnose=True` and the extra `notebook`."""
        from ftrie.draw.notebook import plot_slices

        slices = {each.field: each.values for each in self._diagnosed("plot_slices").slices}
        if name not in slices:
            raise UsageError(f"no slices by {name!r}; the evaluation has: {listed(slices, name)}")
        return plot_slices(name, slices[name])

    def _diagnosed(self, what: str) -> ModelReport:
        if self.report.report is None:
            raise UsageError(f"{what} needs evaluate(..., diagnose=True)")
        return self.report.report

    def __repr__(self) -> str:
        losses = ", ".join(
            f"{name} {m.logloss:.5f}" for name, m in self.variants.items() if m.logloss is not None
        )
        return f"Evaluation({self.name!r}: {self.report.rows:,} rows; log-loss {losses})"

    def _repr_html_(self) -> str:
        first = f"{self.name}: {self.report.rows:,} rows, {self.report.rejected:,} rejected"
        return paragraph(first) + arrow_html(self.table)


def variants_table(variants: Mapping[str, VariantMetrics]) -> str:
    """The metrics of every variant as an HTML table."""
    rows = [[variant, *(getattr(figures, name) for name in METRICS)] for variant, figures in variants.items()]
    return html_table(["variant", *(each.label for each in METRICS.values())], rows)


def _complete(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Stored metrics with None for those that are not defined."""
    return {name: metrics.get(name) for name in METRICS}
