"""`ftrie tune`: flags and output. The search for parameters and crosses is `trainer.tune`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ftrie import terminal
from ftrie.api.data import CachedTimedLog, log_of
from ftrie.command import command
from ftrie.commands.flags import SpecArgument, ThreadsOption
from ftrie.terminal import JsonOption, note, note_once, picked, print_json, print_table, progress, warn
from model_store.errors import OutputError, counted
from model_store.flags import Argument, Flag

if TYPE_CHECKING:
    from model_store.spec.spec import ModelSpec
    from trainer.examples.open_log import Log
    from trainer.tune.candidates import Candidate
    from trainer.tune.crosses import Proposal
    from trainer.tune.halving import LastPart
    from trainer.tune.passes import SearchState
    from trainer.tune.search import SearchOptions, SearchResult

HELD_OUT = "0.2"
WORTH_IT = 0.8
"""A candidate that is as good as the best is named if it has at most this share of its non-zero weights."""


@command(
    "Learn",
    6,
    "Examples: ftrie tune ads.toml 'clicks/*.csv.gz' --crosses --keys 100000 -o best.toml; ftrie tune "
    "ads.toml 'clicks/*.csv.gz' --try alpha=0.03,0.1,0.3 --try l1=0,1,3 --hold-out 1d --state ads.tune",
)
def tune(
    spec: SpecArgument,
    inputs: Annotated[list[str], Argument("Log files or globs, read in this order.", "INPUT…", file="reads")],
    *,
    tries: Annotated[
        list[str] | None,
        Flag(
            "Values to try for a parameter of [learner]; repeated: all combinations. "
            "Default: alpha, beta and l1, up to 24 points around those of SPEC; then l2 around the best.",
            "NAME=V,V…",
            names="--try",
        ),
    ] = None,
    widen: Annotated[
        int,
        Flag("Where the best lies on the edge of the grid, try values beyond it, up to N times.", "N", min=0),
    ] = 2,
    crosses: Annotated[
        bool,
        Flag(
            "Try every pair of fields as a cross; the best spec has those that gain more than chance explains."
        ),
    ] = False,
    keys: Annotated[
        int | None,
        Flag("With --crosses: the most keys that all proposed crosses together may add.", "N", min=1),
    ] = None,
    output: Annotated[
        Path | None,
        Flag(
            "Write SPEC with the best parameters and crosses here.",
            "FILE",
            names="--output -o",
            file="writes",
        ),
    ] = None,
    report: Annotated[
        Path | None,
        Flag(
            "Draw the search to this page; a name ending in .svg gets the charts alone.",
            "FILE",
            file="writes",
        ),
    ] = None,
    hold_out: Annotated[
        str | None,
        Flag(
            "Choose on the rows before the last part, a share of the rows or a time span such as 1d, and judge "
            f"the best on it, frozen and learning on; 0: choose on all rows. Default: {HELD_OUT}.",
            "PART",
        ),
    ] = None,
    judge_last: Annotated[
        float,
        Flag(
            "Choose by the last part only of the rows not held out, such as 0.1; the others are learned.",
            min=0.0,
            max=1.0,
        ),
    ] = 1.0,
    by: Annotated[
        str,
        Flag(
            "Rank by logloss or auc, or by a mean over requests: mrr, ndcg@10, hit@1, hit@3, hit@10, request_auc.",
            "METRIC",
        ),
    ] = "logloss",
    online: Annotated[
        bool,
        Flag(
            "Rank for a model that continues to learn, as `ftrie trainer` does: each row is learned before the next "
            "is predicted. Default: for one that `ftrie train` leaves, each tenth of the rows before it is learned."
        ),
    ] = False,
    variant: Annotated[str | None, Flag("The variant whose features are used; default: the first.")] = None,
    halving: Annotated[
        int | None,
        Flag(
            "Successive halving: start with ROWS rows, and keep the best third after each round.",
            "ROWS",
            min=1,
        ),
    ] = None,
    state: Annotated[
        Path | None,
        Flag(
            "Keep the results of finished passes here; the same command continues after them if it was stopped.",
            "FILE",
            file="writes",
        ),
    ] = None,
    force: Annotated[bool, Flag("Overwrite the output file.")] = False,
    log: CachedTimedLog,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Try parameters of the learner, and crosses, on a log; rank them by how they predict rows not learned yet.

    Candidates of alpha, beta, l1 and l2 are variants of one pass, up to 32, if the spec has one variant or per-variant
    values; others are models that learn side by side. The last part of the log is held out: the best spec is judged on
    it, frozen and learning on, and stays only if it is no worse there than SPEC. A bad row is counted and skipped.
    """
    from model_store.files import write_whole
    from model_store.spec.spec import load_spec
    from trainer.formats.batch import STDIN
    from trainer.learn.metrics.figures import RANKED
    from trainer.learn.metrics.requests import BY_REQUEST, RequestMeasure
    from trainer.runs.warmup import compile_kernels, formats_of, kernels_are_ready
    from trainer.tune.candidates import candidates_of
    from trainer.tune.crosses import pairs_of
    from trainer.tune.halving import Comparison, compared_variant
    from trainer.tune.passes import RepeatedLog
    from trainer.tune.search import SearchOptions, models_of, search, with_best

    by = by.replace("log-loss", "logloss")  # as texts write it
    if by not in RANKED and RequestMeasure.parse(by) is None:
        raise typer.BadParameter(f"--by {by}: expected {', '.join((*RANKED, *BY_REQUEST))} or ndcg@K")
    if judge_last == 0.0:
        raise typer.BadParameter("--judge-last 0: expected a part of the log above 0")
    if keys is not None and not crosses:
        raise typer.BadParameter("--keys is the budget of --crosses: add --crosses")
    if output is not None and output.exists() and not force:
        raise OutputError(f"{output} exists already; overwrite it with --force")
    if report is not None:
        from ftrie.draw.charts import require_charts

        # Before the search: a missing extra should not cost hours.
        require_charts()
    model_spec = load_spec(spec)
    candidates = candidates_of(model_spec, tries or [])
    text = spec.read_text(encoding="utf-8")
    if output is not None:  # fails now if the file cannot be edited
        pairs = pairs_of(model_spec, compared_variant(model_spec, variant)) if crosses else ()
        with_best(text, model_spec, candidates[0], tuple(pairs)[:1])
    opened = log_of(inputs, model_spec.input, note=note_once(), **log)
    held_out, widen = _parts(opened, hold_out, widen)
    frozen = not online and STDIN not in opened.inputs
    comparison = Comparison(judge_last, by, variant, halving, widen=widen, l2=not tries, frozen=frozen)
    options = SearchOptions(comparison, held_out, crosses, keys)
    note(f"{len(candidates)} candidates")
    kept = _state(state, model_spec, opened, candidates, options)
    formats = formats_of(opened)
    for each in models_of(model_spec, candidates, options):
        if not kernels_are_ready(each, formats):
            compile_kernels(each, formats, output=terminal)
    with progress("tuning") as bar:
        repeated = RepeatedLog(opened, threads, lambda rows, total: bar.update(rows, total=total), kept)
        found = search(model_spec, candidates, repeated, options)
    for warning in found.warnings():
        warn(warning)
    if output is not None:
        best = text if found.keeps_given else with_best(text, model_spec, found.best, found.pairs)
        write_whole(output, best.encode())
    if report is not None:
        from ftrie.draw.tuning import save_report

        save_report(report, model_spec.model.name, found)
    if as_json:
        print_json(_answer(found, output))
    else:
        _print(found, output)


def _parts(log: Log, hold_out: str | None, widen: int) -> tuple[LastPart, int]:
    """The part to hold out, and how often to widen the grid. Standard input is read once, and so has neither."""
    from trainer.formats.batch import STDIN
    from trainer.tune.halving import LastPart

    if hold_out is None and STDIN in log.inputs:
        note(
            "standard input is read once: no part of it is held out, the grid is not widened, and "
            "candidates are ranked as with --online"
        )
        return LastPart(), 0
    try:
        return LastPart.of(hold_out or HELD_OUT), widen
    except ValueError as error:
        raise typer.BadParameter(f"--hold-out: {error}") from None


def _state(
    path: Path | None, spec: ModelSpec, log: Log, candidates: Sequence[Candidate], options: SearchOptions
) -> SearchState | None:
    """The finished passes of the same search over the same log, kept in `path`."""
    import json
    from dataclasses import asdict

    from trainer.tune.passes import SearchState, log_identity

    if path is None:
        return None
    # Part of the file's identity: passes of another search must not be taken for these.
    search = {"candidates": [dict(each) for each in candidates], **asdict(options)}
    flags = json.dumps(search, sort_keys=True)
    state = SearchState(path, {"log": log_identity(log), "spec": spec.sha256, "grid or flags": flags})
    if state.kept:
        note(f"{path}: {counted(state.kept, 'finished pass', 'finished passes')} are not repeated")
    return state


def _answer(found: SearchResult, output: Path | None) -> dict[str, object]:
    crosses = found.crosses
    judged = {each.frozen: each.as_dict() for each in found.judged}
    return {
        "best": dict(found.best),
        "ranking": [each.as_dict() for each in found.tuning.ranking],
        **picked(found.tuning, "widened edges"),
        "crosses": crosses
        and {
            "proposed": [each.as_dict() for each in crosses.proposed],
            "tried": [each.as_dict() for each in crosses.tried],
            "over_budget": [each.as_dict() for each in crosses.too_large],
        },
        "extent": found.extent,
        "kept": "given" if found.keeps_given else "best",
        "judged": judged.get(True),
        "judged_learning": judged.get(False),
        **picked(found, "rejected passes seconds", seconds=round(found.seconds, 6)),
        "output": str(output) if output is not None else None,
        "warnings": list(found.warnings()),
    }


def _print(found: SearchResult, output: Path | None) -> None:
    from ftrie.draw.tuning import parameters_text, ranking_table, value_text

    ranking, names = found.tuning.ranking, list(found.best)
    head, cells = ranking_table(found)
    rows = [
        [rank, *(value_text(candidate[name]) for name in names), *more]
        for rank, (candidate, more) in enumerate(cells, 1)
    ]
    print_table(["", *names, *head], rows)
    for name, values in found.tuning.widened.items():
        added = ", ".join(map(value_text, values))
        print(f"{name}: around the best, beyond the grid, {added} were tried too")
    same = [each for each in ranking if each.difference is not None and each.difference.may_be_zero]
    print(
        f"{len(same)} of {len(ranking) - 1} others are not distinguishable from the best (95 % intervals)",
        end="",
    )
    small = min([ranking[0], *same], key=lambda each: each.outcome.nonzero)
    if small.outcome.nonzero < WORTH_IT * ranking[0].outcome.nonzero:
        print(f"; {parameters_text(small.parameters)} has the fewest non-zero weights of them", end="")
    print()
    if found.crosses is not None:
        _print_crosses(found.crosses)
    _print_judged(found)
    passes = counted(found.passes, "pass", "passes")
    print(f"{passes} in {found.seconds:.1f} s, {found.rejected:,} rows rejected", end="")
    kept = "spec as given" if found.keeps_given else "best"
    print(f"; the {kept} is in {output}" if output is not None else "")


def _print_crosses(proposal: Proposal) -> None:
    from ftrie.draw.tuning import difference_text

    tried = len(proposal.tried)
    ranked = "; the ranking has them" if proposal.proposed else ""
    print(
        f"\n{tried} pairs tried as crosses, {len(proposal.proposed)} proposed (tests at 5 % / {tried}){ranked}"
    )
    if proposal.proposed:
        rows = [["*".join(each.fields), difference_text(each.gain), each.keys] for each in proposal.proposed]
        print_table(["cross", "log-loss saved", "keys"], rows)
    elif proposal.tried:
        first = proposal.tried[0]
        print(f"the largest gain: {'*'.join(first.fields)}, {difference_text(first.gain)}")
    same = [f"{'*'.join(each.fields)} (of {each.same_as})" for each in proposal.tried if each.same_as]
    if same:
        print(f"not proposed, as each has one key for a key of one of its fields: {', '.join(same)}")
    for each in proposal.too_large:
        print(f"{'*'.join(each.fields)} would add {each.keys:,} keys, more than the budget has left")


def _print_judged(found: SearchResult) -> None:
    from ftrie.draw.tuning import compared, difference_text, judged_table

    extent = found.extent
    if not found.judged or extent is None:
        return
    times = f", {extent.split_time} to {extent.end}" if extent.split_time else ""
    print(f"\njudged on the last {found.judged[0].rows:,} rows{times}, by which no candidate was chosen:")
    print("frozen, as `ftrie train` leaves a model, and learning on, as `ftrie trainer` does")
    tables = [(judged, *judged_table(found, judged)) for judged in found.judged]
    print_table(["", *tables[0][1]], [[judged.how, *row] for judged, _, rows in tables for row in rows])
    for judged in found.judged:
        difference = difference_text(judged.difference)
        print(f"{compared(found)} of the best minus the spec's as given, {judged.how}: {difference}")
