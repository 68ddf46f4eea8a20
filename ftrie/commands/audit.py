"""`ftrie audit`: flags and output. What it computes lives in `trainer.runs.audit`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ftrie import terminal
from ftrie.commands.scoring_flags import (
    FormatOption,
    InputsArgument,
    ItemsOption,
    ModelArgument,
    SpecOption,
    UsersOption,
    VariantOption,
    WithoutOption,
)
from ftrie.terminal import DEFAULT_STORE, JsonOption, StoreOption, note, print_json, print_table

if TYPE_CHECKING:
    from trainer.runs.audit import RowAudit


def register(app: typer.Typer) -> None:
    """Add `ftrie audit`."""
    app.command("audit", epilog="Example: ftrie audit ads clicks.csv --row 17")(audit)


def audit(
    model: ModelArgument,
    inputs: InputsArgument,
    row: Annotated[int, typer.Option(min=1, metavar="N", help="Which row of the log, from 1.")] = 1,
    variant: VariantOption = None,
    store: StoreOption = DEFAULT_STORE,
    without: WithoutOption = None,
    spec: SpecOption = None,
    items: ItemsOption = None,
    users: UsersOption = None,
    input_format: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take one row's score apart: its keys, their weights, what each adds, and which keys the model lacks."""
    from model_store.model_files import read_named
    from trainer.examples.open_log import Log
    from trainer.examples.side_tables import side_tables
    from trainer.runs.audit import audit
    from trainer.runs.warmup import announce_scoring, mark_scoring

    named = read_named(model, store, spec)
    log = Log(inputs, input_format, side_tables(items, users, named.artefact.spec.input), note)
    announce_scoring(terminal)
    found = audit(named.artefact, log, row, variant, without or ())
    mark_scoring()
    if as_json:
        from dataclasses import asdict

        print_json({"model": named.name, "row": row, **asdict(found)})
    else:
        _show_audit(named.name, found)


def _show_audit(name: str, found: RowAudit) -> None:
    print(f"{name}, variant {found.variant}: {found.file}, line {found.line}")
    rows: list[list[Any]] = []
    for field in found.fields:
        for key in field.keys:
            weight: Any = "not in the model" if key.weight is None else f"{key.weight:.5f}"
            rate: Any = "—" if key.rate is None else f"{key.rate:.5f}"
            rows.append([field.name, key.key, f"{key.x:g}", weight, key.contribution, rate])
        if len(field.keys) > 1:
            rows.append([field.name, "sum", "", "", field.contribution, ""])
    print_table(["field or cross", "key", "x", "weight", "adds", "rate"], rows)
    print(f"\nscore {found.score:.6f}, the sum; predicted {found.predicted:.6f}, ctr {found.ctr:.6f}")
    if found.uncertainty is not None:
        print(f"uncertainty {found.uncertainty:.6f}: how far one more example could move the score")
