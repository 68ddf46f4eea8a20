"""`ftrie tune`: flags and output. The search for the learner's parameters is `trainer.tune`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ftrie import terminal
from ftrie.commands.flags import LogFlags, SpecArgument, ThreadsOption, grouped
from ftrie.terminal import JsonOption, note, print_json, print_table, progress, warn
from model_store.errors import InputError, OutputError

if TYPE_CHECKING:
    from model_store.spec.spec import ModelSpec
    from trainer.tune.candidates import Candidate
    from trainer.tune.halving import Comparison, Tuning


def register(app: typer.Typer) -> None:
    """Add `ftrie tune`."""
    epilog = (
        "Example: ftrie tune ads.toml 'clicks/*.csv.gz' --try alpha=0.03,0.1,0.3 --try l1=0,1,3 -o best.toml"
    )
    app.command("tune", epilog=epilog)(tune)


@grouped
def tune(
    spec: SpecArgument,
    inputs: Annotated[
        list[str], typer.Argument(metavar="INPUT…", help="Log files or globs, read in this order.")
    ],
    *,
    tries: Annotated[
        list[str] | None,
        typer.Option(
            "--try",
            metavar="NAME=V,V…",
            help="Values to try for a parameter of [learner]; repeated: all combinations. "
            "Default: alpha and beta, twelve points around those of SPEC.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write SPEC with the best parameters here."),
    ] = None,
    judge_last: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Judge by the last part of the rows only, such as 0.1.")
    ] = 1.0,
    by: Annotated[str, typer.Option(metavar="METRIC", help="Rank by logloss or by auc.")] = "logloss",
    variant: Annotated[
        str | None, typer.Option(help="The variant whose features are used; default: the first.")
    ] = None,
    halving: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="ROWS",
            help="Successive halving: start with ROWS rows, and keep the best third after each round.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the output file.")] = False,
    log: LogFlags,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Try parameters of the learner on a log, and rank them by their progressive metrics.

    Candidates of alpha, beta, l1 and l2 are variants of one pass, up to 32, if the spec has one variant or per-variant
    values; others are models that learn side by side. A bad row is counted and skipped.
    """
    from model_store.spec.spec import load_spec
    from model_store.whole_file import write_whole
    from trainer.runs.warmup import formats_of
    from trainer.tune.best_spec import with_best
    from trainer.tune.candidates import candidates_of
    from trainer.tune.halving import Comparison
    from trainer.tune.halving import tune as search
    from trainer.tune.passes import Repeated

    if by not in ("logloss", "auc"):
        raise typer.BadParameter(f"--by {by}: expected logloss or auc")
    if judge_last == 0.0:
        raise typer.BadParameter("--judge-last 0: expected a part of the log above 0")
    if output is not None and output.exists() and not force:
        raise OutputError(f"{output} exists already; overwrite it with --force")
    model_spec = load_spec(spec)
    candidates = candidates_of(model_spec, tries or [])
    text = spec.read_text(encoding="utf-8")
    if output is not None:
        with_best(text, model_spec, candidates[0])  # fails now if the file cannot be edited
    comparison = Comparison(judge_last, by, variant, halving)
    opened = log.log(inputs, model_spec.input)
    note(f"{len(candidates)} candidates")
    _compile(model_spec, candidates, comparison, formats_of(inputs, log.format))
    with progress("tuning") as bar:
        repeated = Repeated(opened, threads, lambda rows, total: bar.update(rows, total=total))
        found = search(model_spec, candidates, repeated, comparison)
    if not found.ranking:
        raise InputError(f"no row could be learned from ({found.rejected:,} rejected); nothing can be ranked")
    for warning in _warnings(found):
        warn(warning)
    if output is not None:
        write_whole(output, with_best(text, model_spec, found.ranking[0].parameters).encode())
    _print(found, output, as_json)


def _warnings(found: Tuning) -> list[str]:
    from trainer.logs.rejects import MOST_REJECTED

    if found.rejected_share <= MOST_REJECTED:
        return []
    return [
        f"{found.rejected:,} rows were rejected, {100 * found.rejected_share:.3g} % of those read: the ranking is "
        "that of the others alone; `ftrie train --rejects FILE` lists them"
    ]


def _compile(
    spec: ModelSpec, candidates: Sequence[Candidate], comparison: Comparison, formats: frozenset[str]
) -> None:
    from trainer.runs.warmup import compile_kernels, kernels_are_ready
    from trainer.tune.candidates import groups_of
    from trainer.tune.halving import compared_variant

    groups = groups_of(spec, candidates, range(len(candidates)), compared_variant(spec, comparison.variant))
    for group in groups:
        if not kernels_are_ready(group.spec, formats):
            compile_kernels(group.spec, formats, output=terminal)


def _print(found: Tuning, output: Path | None, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "best": dict(found.ranking[0].parameters),
                "ranking": [each.as_dict() for each in found.ranking],
                "rejected": found.rejected,
                "passes": found.passes,
                "seconds": round(found.seconds, 6),
                "output": str(output) if output is not None else None,
                "warnings": _warnings(found),
            }
        )
        return
    names = list(found.ranking[0].parameters)
    rows = [
        [
            rank,
            *(_plain(each.parameters[name]) for name in names),
            each.outcome.metrics.logloss,
            each.outcome.metrics.auc,
            each.outcome.nonzero,
            each.judged_rows,
        ]
        for rank, each in enumerate(found.ranking, 1)
    ]
    print_table(["", *names, "log-loss", "AUC", "non-zeros", "rows judged"], rows)
    passes = "pass" if found.passes == 1 else "passes"
    print(f"{found.passes} {passes} in {found.seconds:.1f} s, {found.rejected:,} rows rejected", end="")
    print(f"; the best is in {output}" if output is not None else "")


def _plain(value: float | int | str) -> str:
    """A parameter as a user would write it: 1e-06, not 0.00000."""
    return value if isinstance(value, str) else f"{value:g}"
