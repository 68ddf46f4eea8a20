"""`ftrie evaluate`: flags and output. The evaluation is `trainer.runs.evaluate`."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ftrie import terminal
from ftrie.api.data import TimedLog, log_of
from ftrie.command import command
from ftrie.commands.flags import (
    InputsArgument,
    JsonSpecOption,
    ModelArgument,
    RejectsOption,
    StrictOption,
    WithoutOption,
)
from ftrie.terminal import JsonOption, note, note_once, picked, print_json, print_table, warn
from model_store.errors import InputError, SpecError, counted, listed
from model_store.flags import DEFAULT_STORE, Flag, StoreOption

if TYPE_CHECKING:
    from model_store.artefact.artefact import Artefact
    from trainer.learn.metrics.requests import RequestReport
    from trainer.runs.evaluate import Evaluation


@command(
    "Judge",
    1,
    "Examples: ftrie evaluate ads:7 'clicks/2026-11-*.csv.gz' --k 5; ftrie evaluate ads day.csv --report "
    "ads.html",
)
def evaluate(
    model: ModelArgument,
    inputs: InputsArgument,
    *,
    store: StoreOption = DEFAULT_STORE,
    k: Annotated[int, Flag("NDCG takes the first K ranks into account.", min=1)] = 10,
    without: WithoutOption = None,
    position: Annotated[
        str | None,
        Flag(
            "Judge the order shown too: the column with a row's position in its request; events have it.",
            "COLUMN",
        ),
    ] = None,
    predictions: Annotated[
        Path | None,
        Flag("Write every row's ids, label, score, ctr and uncertainty here.", "FILE.csv", file="writes"),
    ] = None,
    report: Annotated[
        Path | None,
        Flag(
            "Draw where the model is wrong, on what it relies and what has drifted to this page (.html), or the "
            "charts alone (.svg); with --json also as numbers.",
            "FILE",
            file="writes",
        ),
    ] = None,
    slices: Annotated[
        list[str] | None,
        Flag(
            "A field by whose values --report shows calibration; repeatable. Default: fields of 2 to 64 values.",
            "FIELD",
            names="--slice",
        ),
    ] = None,
    worst: Annotated[int, Flag("Rows with the largest log-loss that --report lists.", "N", min=0)] = 10,
    repeats: Annotated[
        int, Flag("How often --report permutes each field over the rows; 0: not at all.", "N", min=0)
    ] = 5,
    variant: Annotated[
        str | None,
        Flag("The variant of --predictions (default: the first) and of --report (default: all).", "NAME"),
    ] = None,
    rejects: RejectsOption = None,
    strict: StrictOption = False,
    spec: JsonSpecOption = None,
    log: TimedLog,
    threads: Annotated[
        int | None, Flag("Scoring threads; the result does not depend on their number.", min=1)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Evaluate a published model on a log that it did not learn from: every variant, every row.

    Log-loss, AUC, calibration and normalized entropy over all rows; if rows have a request (input.request), also MRR,
    NDCG, hit rates and AUC of the requests with both a clicked and an unclicked row. The log may be impressions and
    clicks, which are joined, and judged beside the order shown. The model does not change.
    """
    from model_store.model_files import read_named
    from trainer.formats.rejects import RejectLog, no_usable_row
    from trainer.runs.diagnostics import DiagnosticsOptions
    from trainer.runs.evaluate import PredictionFile, evaluate

    named = read_named(model, store, spec)
    chosen = _variant(named.artefact, variant)
    given = named.artefact.spec.input
    request = given.request or "request_id"
    if slices and report is None:
        raise SpecError("--slice belongs to --report FILE, which is missing")
    diagnostics = None
    if report is not None:
        from ftrie.draw.charts import require_charts

        # Before the log is read: a missing extra should not cost a run.
        require_charts()
        diagnostics = DiagnosticsOptions(tuple(dict.fromkeys(slices or ())), variant, worst, repeats)
    writing = PredictionFile(predictions, chosen, given) if predictions is not None else nullcontext()
    with RejectLog(rejects, strict) as reject_log, writing as file:
        found = evaluate(
            named.artefact,
            log_of(inputs, given, note=note_once(), **log),
            k=k,
            position=position,
            predictions=file,
            diagnostics=diagnostics,
            without=without or (),
            rejects=reject_log,
            threads=threads,
            output=terminal,
        )
    if report is not None and found.report is not None:
        from ftrie.draw.model_page import save_report

        save_report(report, named.name, found.report)
        note(f"{report}: the report of {counted(len(found.report.variants), 'variant')}")
    (_print_json if as_json else _print_tables)(named.name, found)
    if found.requests is not None:
        _warn_of_requests(found.requests, request)
    if not found.rows:
        raise InputError(no_usable_row("judged", 0, ()))


def _variant(artefact: Artefact, name: str | None) -> int:
    names = list(artefact.spec.variants)
    if name is not None and name not in names:
        raise SpecError(f"--variant: no variant {name!r}; the model has: {listed(names, name)}")
    return 0 if name is None else names.index(name)


def _print_tables(name: str, found: Evaluation) -> None:
    print(
        f"{name}: {found.rows:,} rows, {found.rejected:,} rejected; "
        f"weight {found.weight:,.6g}, of which clicked {found.clicks:,.6g}"
    )
    from trainer.learn.metrics.figures import IN_TABLES
    from trainer.learn.metrics.requests import BY_REQUEST

    columns = ["variant", *IN_TABLES.values(), "uncertainty"]
    sets = [("", found.variants), (" uncalibrated", found.predicted or {})]
    rows = [
        [
            variant + suffix,
            *(getattr(m, name) for name in IN_TABLES),
            found.uncertainty.get(variant),
        ]
        for suffix, variants in sets
        for variant, m in variants.items()
    ]
    print_table(columns, rows)
    if (requests := found.requests) is not None:
        print(
            f"\n{requests.requests:,} requests, {requests.clicked:,} with a click; the figures are means over "
            f"{requests.judged:,} of them"
        )
        orders = [
            [order, *(getattr(found, each.member) for each in BY_REQUEST.values())]
            for order, found in requests.orders.items()
        ]
        heads = [each.label.format(k=requests.k) for each in BY_REQUEST.values()]
        print_table(["order", *heads], orders)


def _warn_of_requests(requests: RequestReport, column: str) -> None:
    """Warn about requests that the ranking metrics leave out or split."""
    from trainer.examples.requests import MOST_ROWS

    without = requests.clicked - requests.judged
    if requests.requests > 1 and requests.single == requests.requests:
        warn(
            f"every request has one row, so there is no order to judge: input.request = {column!r} must name the "
            "request that showed several rows together; no MRR and no NDCG"
        )
    elif without:
        warn(f"the means leave out {counted(without, 'request')} with a click but no unclicked row beside it")
    if requests.resumed:
        warn(
            f"{requests.resumed:,} times a request continued after rows of another, and counts as several; "
            f"sort the log by {column!r}"
        )
    if requests.too_long:
        warn(
            f"the means leave out {counted(requests.too_long, 'request')} of more than {MOST_ROWS:,} rows; "
            f"does {column!r} name requests?"
        )


def _print_json(name: str, found: Evaluation) -> None:
    variants = {
        each: {**metrics.as_dict(), "uncertainty": found.uncertainty.get(each)}
        for each, metrics in found.variants.items()
    }
    predicted = {each: metrics.as_dict() for each, metrics in (found.predicted or {}).items()}
    parts = {
        "variants": variants,
        "uncalibrated": predicted or None,
        "requests": found.requests,
    }
    report = {"report": found.report} if found.report is not None else {}
    print_json({"model": name, **picked(found, "rows rejected weight clicks"), **parts, **report})
