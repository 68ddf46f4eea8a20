"""What an experiment looks like on the terminal and as JSON. Nothing here reads or changes one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from model_store.terminal import counted, print_json, print_table

if TYPE_CHECKING:
    from model_store.experiments import Experiment
    from server.experiments import Assignment


def say(
    model: str, record: Experiment | None, after: Assignment | None, moves: float | None, as_json: bool
) -> None:
    """Print a record and what comes of it: `after`, None where no version is active; `moves`, a fraction of cookies."""
    if as_json:
        _say_as_json(model, record, after, moves)
        return
    if after is not None:
        _print_variants(after)
    if record is None:
        print(f"{model}: no experiment; the shares are those of the spec")
        return
    print(f"{model}: revision {record.revision}, {_state(record)}, {counted(len(record.pins), 'pin')}")
    if record.salt:
        print(f"salt: {record.salt}")
    if record.objective:
        print(f"objective: {record.objective}")
    if moves is not None:
        print(f"moves {moves:.1%} of the cookies to another variant")


def _state(record: Experiment) -> str:
    return record.state if record.running else f"{record.state}: {record.winner} answers everything"


def _print_variants(after: Assignment) -> None:
    pins = list(after.experiment.pins.values()) if after.experiment is not None else []
    rows = [
        [name, after.shares[bit], after.spec_shares[bit], pins.count(name), bit in after.shadows]
        for bit, name in enumerate(after.variants)
    ]
    print_table(["variant", "share", "share in the spec", "pins", "shadow"], rows)


def _say_as_json(
    model: str, record: Experiment | None, after: Assignment | None, moves: float | None
) -> None:
    print_json(
        {
            "model": model,
            "experiment": record and record.plain(),
            "in_force": after and dict(zip(after.variants, after.shares, strict=True)),
            "problem": (after and after.problem) or None,
            "moves": moves,
        }
    )
