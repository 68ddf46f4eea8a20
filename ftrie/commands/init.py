"""`ftrie init`: reads a log's first rows and writes a commented spec to start from. See `trainer.guess`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ftrie.commands.flags import DialectFlags, FormatOption, NoHeaderOption, grouped
from ftrie.terminal import JsonOption, note, print_json, warn

if TYPE_CHECKING:
    from trainer.guess.guesses import Guess


def register(app: typer.Typer) -> None:
    """Add `ftrie init`."""
    examples = (
        "ftrie init clicks.csv.gz -o ads.toml; ftrie init clicks.tsv --no-header --label c1 -o ads.toml; "
        "ftrie init impressions.jsonl.gz clicks.jsonl.gz -o ads.toml"
    )
    app.command("init", epilog=f"Examples: {examples}")(init)


@grouped
def init(
    *,
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT…",
            help="A log file (CSV, TSV, JSON lines, Parquet, Vowpal Wabbit, libsvm, libffm); - is standard input. "
            "Or files of impressions and their clicks.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the spec here, not to stdout."),
    ] = None,
    label: Annotated[
        str | None, typer.Option(metavar="NAME", help="The column that tells whether there was a click.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE.")] = False,
    format: FormatOption = None,
    no_header: NoHeaderOption = False,
    dialect: DialectFlags,
    as_json: JsonOption = False,
) -> None:
    """Write a commented spec to start from, guessed from the first rows of a log.

    Label, times, identities, numbers and lists are guessed from names and values; comments give the reasons. A log
    without a header gets the columns c1, c2, …, which the spec lists to be renamed; a label of two other values than
    1 and 0 gets `positive`, and clicks beside views get `views`. An attribute that never changes for an item gets the
    item's side; of equal columns the first is kept; a column that tells the label is left out; position bias is warned
    of. Of impressions and clicks, which are
    joined, a value's side is where it stands in the event.
    """
    from model_store.errors import InputError
    from model_store.spec.spec import parse_spec
    from model_store.whole_file import write_whole
    from trainer.doctor.examine import without_leaks
    from trainer.events.log_files import holds_events
    from trainer.examples.open_log import Log
    from trainer.guess.events import guess_events
    from trainer.guess.profiles import take_sample
    from trainer.guess.relations import guess_log
    from trainer.guess.spec_writer import spec_text
    from trainer.logs.csv import Header

    if output is not None and output.exists() and not force:
        raise InputError(f"{output} exists already; overwrite it with --force")
    known = frozenset(filter(None, [label]))
    header = Header(is_absent=no_header, known=known, any_label=True, dialect=dialect.dialect())
    of_events, has_header, found = holds_events(inputs, format, label), True, None
    if of_events:
        guesses = guess_events(inputs, on_note=note)
    elif len(inputs) > 1:
        raise InputError(f"got {len(inputs)} inputs; expected one log, or impressions and their clicks")
    else:
        sample = take_sample(inputs[0], format, header=header, on_note=note)
        guesses, has_header, found = guess_log(sample, label), sample.has_header, sample.dialect
    log = Log(inputs, format, no_header=no_header, dialect=dialect.dialect())
    guesses = without_leaks(guesses, log, label)
    for guess in guesses:
        if guess.warning:
            warn(guess.warning)
    text = spec_text(inputs[0], guesses, has_header, joins=of_events, dialect=found)
    parse_spec(text, "the guessed spec")
    if output is not None:
        write_whole(output, text.encode())
    if as_json:
        print_json({"spec": text, "columns": [_column(guess) for guess in guesses]})
    elif output is None:
        print(text, end="")
    else:
        note(f"wrote {output}; next: ftrie doctor --spec {output} {' '.join(inputs)}")


def _column(guess: Guess) -> dict[str, Any]:
    return {
        "name": guess.name,
        "role": guess.role,
        "side": guess.side,
        "kind": guess.kind,
        "distinct": guess.profile.distinct,
        "filled": guess.profile.filled,
        "examples": guess.profile.examples(),
        "why": guess.why,
    }
