"""`ftrie report`: draws metrics files to one page. See `ftrie.draw.runs`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ftrie.command import command
from ftrie.terminal import JsonOption, note, print_json
from model_store.errors import counted
from model_store.flags import Argument, Flag

if TYPE_CHECKING:
    from ftrie.draw.runs import RunMetrics


@command("Learn", 8, "Example: ftrie report monday.jsonl tuesday.jsonl -o report.html")
def report(
    metrics: Annotated[
        list[Path],
        Argument("Files that `ftrie train --metrics` wrote; several are overlaid.", "METRICS…", file="reads"),
    ],
    output: Annotated[
        Path,
        Flag(
            "File to write; a name ending in .svg gets the charts alone.",
            "FILE",
            names="--output -o",
            file="writes",
        ),
    ] = Path("report.html"),
    as_json: JsonOption = False,
) -> None:
    """Draw the learning curves, calibration and slices of one or more runs to a self-contained page.

    A run that has not ended is drawn as far as it has come.
    """
    from ftrie.draw.runs import read_runs, save_report

    runs = read_runs(metrics)
    save_report(output, runs)
    for run in runs:
        for each in run.notes:
            note(f"{run.name}: {each}")
    if as_json:
        print_json({"report": str(output), "runs": [_answer(run) for run in runs]})
    else:
        windows = sum(len(run.windows) for run in runs)
        print(f"{output}: {counted(windows, 'window')} of {counted(len(runs), 'run')}")


def _answer(run: RunMetrics) -> dict[str, object]:
    total = run.windows[-1].total.as_dict() if run.windows else None
    slices = run.detail.slices if run.detail else {}
    return {
        "name": run.name,
        "model": run.header.model,
        "rows": run.rows,
        "windows": len(run.windows),
        "ended": run.ended,
        "notes": run.notes,
        "total": total,
        "slices": {name: [each.as_dict() for each in values] for name, values in slices.items()},
    }
