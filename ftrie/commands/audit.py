"""`ftrie audit`: flags and output. The audit is `trainer.runs.audit`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from ftrie import terminal
from ftrie.api.data import Log, log_of
from ftrie.command import command
from ftrie.commands.flags import (
    InputsArgument,
    JsonSpecOption,
    ModelArgument,
    WithoutOption,
)
from ftrie.terminal import JsonOption, note_once, print_json, print_table
from model_store.flags import DEFAULT_STORE, Flag, StoreOption

if TYPE_CHECKING:
    from trainer.runs.audit import RowAudit


@command("Judge", 2, "Example: ftrie audit ads clicks.csv --row 17")
def audit(
    model: ModelArgument,
    inputs: InputsArgument,
    *,
    row: Annotated[int, Flag("The row of the log, from 1.", "N", min=1)] = 1,
    variant: Annotated[str | None, Flag("The variant; default: the first.", "NAME")] = None,
    store: StoreOption = DEFAULT_STORE,
    without: WithoutOption = None,
    spec: JsonSpecOption = None,
    log: Log,
    as_json: JsonOption = False,
) -> None:
    """Explain one row's score: its keys, their weights and contributions, and which keys the model lacks."""
    from model_store.model_files import read_named
    from trainer.runs.audit import audit

    named = read_named(model, store, spec)
    opened = log_of(inputs, named.artefact.spec.input, note=note_once(), **log)
    found = audit(named.artefact, opened, row, variant, without or (), terminal)
    if as_json:
        print_json({"model": named.name, "row": row, **vars(found)})
    else:
        _print_audit(named.name, found)


def _print_audit(name: str, found: RowAudit) -> None:
    print(f"{name}, variant {found.variant}: {found.file}, line {found.line}")
    rows: list[list[Any]] = []
    for field in found.fields:
        for key in field.keys:
            weight: Any = "not in the model" if key.weight is None else f"{key.weight:.5f}"
            rate: Any = "—" if key.learning_rate is None else f"{key.learning_rate:.5f}"
            rows.append([field.name, key.key, f"{key.x:g}", weight, key.contribution, rate])
        if len(field.keys) > 1:
            rows.append([field.name, "sum", "", "", field.contribution, ""])
    probit = found.link == "probit"
    print_table(
        ["field or cross", "key", "x", "weight", "adds", "variance" if probit else "learning rate"], rows
    )
    print(f"\nscore {found.score:.6f}, the sum; predicted {found.predicted:.6f}, ctr {found.ctr:.6f}")
    if found.uncertainty is not None:
        meaning = (
            "the standard deviation of the score"
            if probit
            else "how far one more example could move the score"
        )
        print(f"uncertainty {found.uncertainty:.6f}: {meaning}")
