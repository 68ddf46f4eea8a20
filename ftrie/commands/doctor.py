"""`ftrie doctor`: flags and output. The examination is `trainer.inspect.examine`."""

from __future__ import annotations

import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ftrie import terminal
from ftrie.api.data import Log, log_of
from ftrie.command import command
from ftrie.commands.flags import DialectFlags, InputsArgument
from ftrie.terminal import JsonOption, note_once, print_json
from model_store.flags import Flag

if TYPE_CHECKING:
    from trainer.inspect.findings import Diagnosis, Finding

ERRORS_FOUND = 9
"""The exit code if a finding is an error."""
WIDTH = 80
_INDENT = 10


@command("Learn", 2, "Example: ftrie doctor clicks.csv.gz && ftrie train ads.toml clicks.csv.gz")
def doctor(
    inputs: InputsArgument,
    *,
    spec: Annotated[
        Path | None, Flag("The model spec; default: what `ftrie init` would guess.", "SPEC", file="reads")
    ] = None,
    label: Annotated[
        str | None, Flag("Without --spec: the column that says whether there was a click.", "NAME")
    ] = None,
    log: Log,
    dialect: DialectFlags,
    as_json: JsonOption = False,
) -> None:
    """Check a log for problems before it is learned.

    Leaks of the label, repeated rows and requests, clicks without impressions, impossible times, click rates that
    shift, values that explode, broken propensities and cells: each finding has a count, an example, and what to do. The
    log is read once. Exit code 9 if a finding is an error.
    """
    from model_store.spec.spec import load_spec
    from trainer.inspect.examine import examine

    if spec is not None and label is not None:
        raise typer.BadParameter("--label belongs to a log without --spec, which names the label")
    if inputs[0].endswith(".toml"):
        raise typer.BadParameter(f"{inputs[0]} is a spec, not a log: give it as --spec {inputs[0]}")
    if spec is not None and dialect != DialectFlags():
        raise typer.BadParameter(
            "--separator and its like are for a log without --spec, whose [input] says it"
        )
    if spec is None and (log["items"] is not None or log["users"] is not None):
        raise typer.BadParameter("--items and --users need --spec, which names the columns of their ids")
    given = load_spec(spec) if spec is not None else None
    section = given.input if given is not None else None
    opened = log_of(inputs, section, note=note_once(), dialect=dialect.dialect(), **log)
    found = examine(opened, given, label, terminal)
    if as_json:
        print_json(found.as_dict())
    else:
        _print(found)
    if found.errors:
        raise typer.Exit(ERRORS_FOUND)


def _print(found: Diagnosis) -> None:
    # A pipe gets the same lines on every machine.
    width = WIDTH if not sys.stdout.isatty() else max(min(shutil.get_terminal_size().columns, 100), 40)
    for line in summary(found, width):
        print(line)
    for finding in found.findings:
        print()
        for line in finding_lines(finding, width):
            print(line)
    if found.examination:
        print("\nhow often people look at a position, by all rows and by swaps, with 95 % intervals:")
        rows = [
            [
                each.position,
                f"{each.views:,.0f}",
                f"{each.clicks:,.0f}",
                *map(_interval, (each.theta, each.swaps)),
            ]
            for each in found.examination
        ]
        terminal.print_table(("position", "views", "clicks", "by all rows", "by swaps"), rows)
        print(
            f"\nto learn clicks with these, if the two agree (docs/decide.md):\n\n[input]\n{found.spec_fragment}"
        )


def _interval(found: tuple[float, float, float] | None) -> str:
    return "" if found is None else "{:.3f} ({:.3f} to {:.3f})".format(*found)


def summary(found: Diagnosis, width: int = WIDTH) -> list[str]:
    """What was read, what the columns were taken for, and how many findings there are."""
    rate = f", {100 * found.clicks / found.views:.3g} % clicked" if found.views else ""
    rejected = f", {found.rejected:,} rejected" if found.rejected else ""
    speed = found.rows / max(found.seconds, 1e-9)
    read = f"{found.rows:,} rows{rejected}, {found.columns:,} columns{rate}; {found.seconds:.1f} s, {speed:,.0f} rows/s"
    guessed = "guessed: " if found.is_guessed else ""
    roles = guessed + ", ".join(f"{role} {column}" for role, column in found.roles.items())
    return [*textwrap.wrap(read, width), *textwrap.wrap(roles, width), found.verdict]


def finding_lines(finding: Finding, width: int = WIDTH) -> list[str]:
    """A finding as lines: its severity and check, what it says, an example, what to do."""
    about = "~" if finding.is_estimate else ""
    counted = f"{about}{finding.count:,} of {finding.of:,} {finding.unit}" if finding.of else ""
    head = f"{finding.severity:<{_INDENT}}{finding.check}"
    lines = [f"{head}{counted.rjust(max(width - len(head), len(counted) + 2))}" if counted else head]
    parts = [("", finding.message)]
    example = ": ".join(filter(None, (finding.where, finding.example)))
    if example:
        parts.append(("example", example))
    parts.append(("do", finding.remedy))
    for name, text in parts:
        wrapped = textwrap.wrap(text, width - _INDENT, break_on_hyphens=False) or [""]
        lines += [f"{name if not number else '':<{_INDENT}}{line}" for number, line in enumerate(wrapped)]
    return lines
