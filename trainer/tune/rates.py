"""Chooses alpha, beta and l1 that a spec leaves as "auto", by a log's first rows.

Candidates are those of `ftrie tune` around the defaults, for the parameters that are open, widened where the best lies
on an edge. They learn the first 100,000 rows as variants of one pass, and are compared frozen by the last half of them.
The same rows choose the same, on any machine and with any number of threads. The run then learns all rows from the
first on.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from model_store.errors import InputError
from model_store.spec.spec import ModelSpec
from trainer.examples.learned import LEARNED_ROWS
from trainer.examples.open_log import Log
from trainer.formats.batch import STDIN
from trainer.output import SILENT, Output
from trainer.tune.candidates import Value, around, rebuilt
from trainer.tune.choice import CHOSEN_BY, why_not
from trainer.tune.first_rows import FirstRows
from trainer.tune.halving import Comparison, tune


def with_rates(
    spec: ModelSpec, log: Log, known: Sequence[ModelSpec] = (), output: Output = SILENT
) -> list[ModelSpec]:
    """The `known` specs of `open_log`, and before them one with the parameters chosen, if `spec` leaves any open.

    Raises InputError for standard input, which is read once; otherwise as `open_log`.
    """
    auto = spec.with_learned_of(known).learner.auto
    if not auto:
        return [*known]
    if STDIN in log.inputs or (log.table is not None and log.table.rows is None):
        raise InputError(
            f'learner.{auto[0]} = "auto" is chosen on the first rows, which are then learned: give a file or a table, '
            "or a number"
        )
    rows = FirstRows.read(replace(log, on_note=lambda text: None), spec, LEARNED_ROWS)
    first = next(name for name, each in spec.variants.items() if each.average is None)
    alone = {first: {"share": 1.0, "without": list(spec.variants[first].without)}}
    learner = spec.learner.model_dump(mode="json", exclude_unset=True)
    del learner["auto"]
    plain = rebuilt(rows.spec, {"variants": alone, "learner": learner, "calibration": {"kind": "none"}})
    rows, chosen, why = replace(rows, spec=plain), dict[str, float](), ""
    if reason := why_not(rows):
        why = f"the default, since {reason}"
    else:
        grid: dict[str, list[Value]] = {
            name: values for name, values in around(plain.learner).items() if name in auto
        }
        candidates = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
        comparison = Comparison(CHOSEN_BY, end=rows.learned, widen=2, frozen=True)
        with output.progress(f"choosing {', '.join(grid)}") as bar:
            shown = replace(rows, on_progress=lambda done, total: bar.update(done, total=total))
            best = tune(plain, candidates, shown, comparison).ranking[0].parameters
        chosen = {name: float(best[name]) for name in grid}
        why = f"chosen on the first {rows.learned:,} rows"
    values = {name: chosen.get(name, getattr(plain.learner, name)) for name in auto}
    output.note(f"{', '.join(f'{name} = {value:g}' for name, value in values.items())}: {why}")
    return [rebuilt(rows.spec, {"learner": learner | values}), *known]
