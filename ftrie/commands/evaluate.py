"""`ftrie evaluate`: flags and output. What it computes lives in `trainer.scoring`."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ftrie import terminal
from ftrie.commands.scoring_flags import (
    FormatOption,
    InputsArgument,
    ItemsOption,
    ModelArgument,
    SpecOption,
    UsersOption,
    WithoutOption,
)
from ftrie.terminal import (
    DEFAULT_STORE,
    JsonOption,
    StoreOption,
    note,
    print_json,
    print_table,
    progress,
    warn,
)
from model_store.errors import SpecError, counted

if TYPE_CHECKING:
    from model_store.artefact.artefact import Artefact
    from trainer.runs.evaluate import Evaluation, RequestReport


def register(app: typer.Typer) -> None:
    """Add `ftrie evaluate`."""
    app.command("evaluate", epilog="Example: ftrie evaluate ads:7 'clicks/2026-11-*.csv.gz' --k 5")(evaluate)


def evaluate(
    model: ModelArgument,
    inputs: InputsArgument,
    store: StoreOption = DEFAULT_STORE,
    k: Annotated[int, typer.Option("--k", min=1, help="NDCG counts the first so many ranks.")] = 10,
    without: WithoutOption = None,
    position: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="The column with the position at which a row was shown; judges that order."
        ),
    ] = None,
    predictions: Annotated[
        Path | None,
        typer.Option(metavar="FILE.csv", help="Write every row's score, ctr and uncertainty here."),
    ] = None,
    variant: Annotated[
        str | None, typer.Option(metavar="NAME", help="Whose predictions to write; default: the first.")
    ] = None,
    rejects: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="List bad rows here: JSON lines of file, line, reason."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first bad row.")] = False,
    spec: SpecOption = None,
    items: ItemsOption = None,
    users: UsersOption = None,
    input_format: FormatOption = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Scoring threads; the result does not depend on it.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Judge a published model on a log that it did not learn from: every variant, every row.

    Log-loss, AUC, calibration and normalized entropy of all rows; where rows carry a request (input.request), also the
    mean reciprocal rank and NDCG of the requests with a clicked and an unclicked row. The model does not change.
    """
    from model_store.model_files import read_named
    from trainer.examples.open_log import Log
    from trainer.examples.side_tables import side_tables
    from trainer.logs.rejects import RejectLog
    from trainer.runs.evaluate import Judging, PredictionFile, evaluate
    from trainer.runs.warmup import announce_scoring, mark_scoring

    named = read_named(model, store, spec)
    log = Log(inputs, input_format, side_tables(items, users, named.artefact.spec.input), note)
    chosen = _variant(named.artefact, variant)
    if position is not None and named.artefact.spec.input.request is None:
        raise SpecError(
            "--position: the model's spec has no input.request, so rows make no requests to be ordered"
        )
    announce_scoring(terminal)
    writing = PredictionFile(predictions, chosen) if predictions is not None else nullcontext()
    with RejectLog(rejects, strict) as reject_log, writing as file, progress("scoring") as bar:

        def show(rows: int, logloss: float | None) -> None:
            fields = {"log-loss": logloss} if logloss is not None else {}
            bar.update(rows, total=None, **fields)

        judged = evaluate(
            named.artefact,
            log,
            Judging(k, position, file),
            without=without or (),
            rejects=reject_log,
            threads=threads,
            on_progress=show,
        )
    mark_scoring()
    (_evaluation_as_json if as_json else _show_evaluation)(named.name, judged)
    if judged.requests is not None and (column := named.artefact.spec.input.request) is not None:
        _warn_of_requests(judged.requests, column)


def _variant(artefact: Artefact, name: str | None) -> int:
    names = list(artefact.spec.variants)
    if name is not None and name not in names:
        raise SpecError(f"--variant: no variant {name!r}; the model has: {', '.join(names)}")
    return 0 if name is None else names.index(name)


def _show_evaluation(name: str, judged: Evaluation) -> None:
    print(
        f"{name}: {judged.rows:,} rows, {judged.rejected:,} rejected; "
        f"weight {judged.weight:,.6g}, of which clicked {judged.clicks:,.6g}"
    )
    columns = ["variant", "log-loss", "AUC", "calibration", "normalized entropy", "uncertainty"]
    sets = [("", judged.variants), (" uncalibrated", judged.predicted or {})]
    rows = [
        [
            variant + suffix,
            *(m.logloss, m.auc, m.calibration, m.normalized_entropy),
            judged.uncertainty.get(variant),
        ]
        for suffix, variants in sets
        for variant, m in variants.items()
    ]
    print_table(columns, rows)
    if (requests := judged.requests) is not None:
        print(
            f"\n{requests.requests:,} requests, {requests.clicked:,} with a click; MRR and NDCG are means over "
            f"{requests.judged:,} of them"
        )
        orders = [[order, m.mrr, m.ndcg] for order, m in requests.orders.items()]
        print_table(["order", "MRR", f"NDCG@{requests.k}"], orders)


def _warn_of_requests(requests: RequestReport, column: str) -> None:
    """Say which requests the ranking metrics leave out."""
    from trainer.examples.requests import MOST_ROWS

    without = requests.clicked - requests.judged
    if requests.requests > 1 and requests.single == requests.requests:
        warn(
            f"every request has one row, so there is no order to judge: input.request = {column!r} must name the "
            "request that showed several rows together; no MRR and no NDCG"
        )
    elif without:
        warn(
            f"MRR and NDCG leave out {counted(without, 'request')} with a click but no unclicked row beside it"
        )
    if requests.resumed:
        warn(
            f"{requests.resumed:,} times a request went on after rows of another, and counts as several; sort the log "
            f"by {column!r}"
        )
    if requests.too_long:
        warn(
            f"MRR and NDCG leave out {counted(requests.too_long, 'request')} of more than {MOST_ROWS:,} rows; "
            f"does {column!r} name requests?"
        )


def _evaluation_as_json(name: str, judged: Evaluation) -> None:
    from dataclasses import asdict

    predicted = judged.predicted
    print_json(
        {
            "model": name,
            "rows": judged.rows,
            "rejected": judged.rejected,
            "weight": judged.weight,
            "clicks": judged.clicks,
            "variants": {
                variant: {**m.as_dict(), "uncertainty": judged.uncertainty.get(variant)}
                for variant, m in judged.variants.items()
            },
            "uncalibrated": predicted and {variant: m.as_dict() for variant, m in predicted.items()},
            "requests": judged.requests and asdict(judged.requests),
        }
    )
