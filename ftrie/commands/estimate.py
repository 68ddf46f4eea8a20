"""`ftrie estimate`: flags and output. The estimates are `trainer.off_policy`."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict

from ftrie import terminal
from ftrie.api.data import Format, log_of
from ftrie.api.estimate import PolicyFlags, TableFlags
from ftrie.command import command
from ftrie.commands.flags import InputsArgument
from ftrie.commands.replay import check_answered, print_estimates
from ftrie.terminal import JsonOption, note_once, print_json, progress
from model_store.flags import DEFAULT_STORE, StoreOption


@command(
    "Judge",
    4,
    "Example: ftrie estimate offers.csv --reward revenue --target new_policy --cluster customer --reward-model",
)
def estimate(
    inputs: InputsArgument,
    *,
    columns: TableFlags,
    policies: PolicyFlags,
    log: Format,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Estimate what another policy would have earned, from a plain table of actions, rewards and propensities.

    A row is an action, what it earned, and the probability with which it was chosen; other columns are its context.
    IPS, clipped IPS and SNIPS; with --reward-model the direct method, DR, Switch-DR and DRos, for targets whose
    probabilities of all actions are known; where --request joins rows to lists, item-position, RIPS and cascade-DR.
    Exit code 11 if the table cannot answer for one of the targets.
    """
    from trainer.runs.warmup import compiling_scorer

    compiling = compiling_scorer(terminal) if policies.policy else nullcontext()
    with compiling, progress("estimating", unit="steps") as bar:
        found = columns.run(
            log_of(inputs, note=note_once(), **log),
            policies,
            store,
            lambda step, done, total: bar.update(done, total=total, of=step),
        )
    if as_json:
        print_json(asdict(found))
    else:
        print_estimates(found, f"mean {columns.reward} per row", "actions")
    check_answered(found)
