"""Chooses a first spec by a log's first rows: learning rate, doubtful fields, crosses; judges the choice once.

In: the first rows, by a spec that has every field in question. The last fifth of them is held out. On the others the
machinery of `ftrie tune` chooses, frozen: parameters of the learner, how numbers become keys, which doubtful fields
are in, crosses, and parameters again. Then each step of the choice is judged on the held-out rows, as by a model that
`ftrie train` left. The same rows give the same choice.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from model_store.errors import InputError
from model_store.spec.spec import ModelSpec
from trainer.examples.learned import LEARNED_ROWS
from trainer.examples.open_log import Log
from trainer.formats.batch import STDIN
from trainer.learn.metrics.requests import RequestMeasure
from trainer.output import SILENT, Output
from trainer.tune.candidates import (
    OF_A_VARIANT,
    Candidate,
    CandidateGroup,
    Value,
    around,
    candidates_of,
    rebuilt,
    side_by_side,
    with_parameters,
)
from trainer.tune.crosses import Proposal, pairs_of, propose, screened, with_crosses
from trainer.tune.halving import Comparison, tune
from trainer.tune.passes import FirstRows, Outcome, PairedDifference, Pass

JUDGED, CHOSEN_BY = 0.2, 0.5
"""The last fifth of the rows is held out; what is chosen is compared by the last half of the others."""
FEWEST_ROWS, FEWEST_OF_EACH_LABEL = 200, 20
GOOD_ENOUGH = 1.001
"""Of candidates whose log-loss is within this factor of the best, that with the fewest non-zero weights is chosen."""
LEAST_CHANGE = 0.005
"""Of the log-loss: what another way of making keys of all numbers must save to be taken instead of the guess."""
MOST_PAIRS = 30
"""Of more pairs only these are learned, those that `screened` ranks highest. Two passes, at first."""
MEASURE, BASE = "mrr", "base"


@dataclass(frozen=True)
class Doubts:
    """What is to be measured: fields of the spec, by name.

    numbers: ways to make keys of numbers, each the fields it needs; the first is the guess. fields: each in or out.
    ids: those of them that may help in a cross alone. unknown: fields that a server may not know when it ranks.
    """

    numbers: Mapping[str, frozenset[str]] = field(default_factory=dict)
    fields: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True)
class Step:
    """A step of the choice: what it added, the spec after it, its parameters, and its judgement on the held-out rows.

    difference: of its log-loss minus that of the step before.
    """

    name: str
    spec: ModelSpec
    parameters: Candidate
    judged: Outcome
    difference: PairedDifference | None = None

    def as_dict(self) -> dict[str, object]:
        """The JSON form."""
        difference = self.difference and self.difference.as_dict()
        return {"step": self.name, "parameters": dict(self.parameters), **self.judged.figures()} | {
            "difference": difference
        }


@dataclass(frozen=True)
class SpecChoice:
    """The result. rows: those it was chosen on; judged_rows: those after them.

    fields: every doubtful field as it was tried, and `fields.features` those that are in; crosses: likewise.
    unknown: the last step judged without what a server may not know. has_measure: whether steps have a mean reciprocal
    rank of requests.
    """

    rows: int
    judged_rows: int
    steps: tuple[Step, ...]
    numbers: str
    fields: Proposal
    crosses: Proposal
    unknown: tuple[str, Outcome] | None
    has_measure: bool
    seconds: float

    @property
    def best(self) -> Step:
        """The last step."""
        return self.steps[-1]

    @property
    def doubtful(self) -> bool:
        """Whether the crosses do not clearly help, so that both specs should be compared on more rows."""
        difference = self.best.difference
        _, high = (difference and difference.interval()) or (0.0, 0.0)
        return bool(self.crosses.features) and high >= 0.0

    def as_dict(self) -> dict[str, object]:
        """The JSON form."""
        return {
            "rows": self.rows,
            "judged_rows": self.judged_rows,
            "steps": [each.as_dict() for each in self.steps],
            "numbers": self.numbers,
            "fields": [each.as_dict() for each in self.fields.tried],
            "fields_in": [each[0] for each in self.fields.features],
            "crosses": [each.as_dict() for each in self.crosses.tried],
            "crosses_in": [list(each) for each in self.crosses.features],
            "unknown": self.unknown and {"step": self.unknown[0], **self.unknown[1].figures()},
            "doubtful": self.doubtful,
            "seconds": round(self.seconds, 3),
        }


def why_not(rows: FirstRows) -> str:
    """Why nothing can be chosen by these rows; "" if it can."""
    with rows.examples(rows.spec) as (*_, stream):
        labels = [each.hashed.labels for each in stream]
    count, clicked = sum(each.size for each in labels), sum(int(each.sum()) for each in labels)
    if count < FEWEST_ROWS:
        return f"{count:,} rows are too few to choose by; {FEWEST_ROWS} are needed"
    if min(clicked, count - clicked) < FEWEST_OF_EACH_LABEL:
        rare = "clicked" if clicked < count - clicked else "not clicked"
        return f"{min(clicked, count - clicked):,} of {count:,} rows are {rare}, too few to choose by"
    return ""


def choose(rows: FirstRows, doubts: Doubts) -> SpecChoice:
    """Choose by the first rows, of which there are enough (`why_not`)."""
    began, search = time.perf_counter(), _SpecSearch(rows, doubts)
    way = next(iter(doubts.numbers), "")
    plain = search.with_fields(doubts.numbers.get(way, ()))
    rate = search.tuned(plain)
    textbook: Candidate = {name: getattr(plain.learner, name) for name in OF_A_VARIANT}  # as the guess has it
    steps = [("textbook rate", plain, textbook), ("chosen rate", plain, rate)]
    way = search.best_numbers(rate)
    numbers = doubts.numbers.get(way, ())
    fields = search.proposed(search.with_fields([*numbers, *doubts.fields]), rate, doubts.fields)
    kept = [name for (name,) in fields.features]
    spec = search.with_fields([*numbers, *kept])
    if not spec.fields:  # a spec needs one
        kept = [fields.tried[0].fields[0]]
        spec = search.with_fields([*numbers, *kept])
    if spec != plain:
        rate = search.tuned(spec)
        steps.append(("with fields", spec, rate))
    crosses = search.proposed(search.with_fields([*numbers, *kept], crossed=doubts.ids), rate)
    if crosses.features:
        crossed = [name for name in doubts.ids if any(name in pair for pair in crosses.features)]
        specs = [
            with_crosses(search.with_fields([*numbers, *kept, *own], crossed=crossed), crosses.features)
            for own in ((), crossed)
        ]
        spec = search.best_of(specs, rate) if crossed else specs[0]
        steps.append(("with crosses", spec, search.tuned(spec)))
    judged, unknown = search.judged(steps), search.judged_without(doubts.unknown, steps[-1])
    return SpecChoice(
        search.end,
        rows.learned - search.end,
        judged,
        way,
        fields,
        crosses,
        unknown,
        judged[-1].judged.measure is not None,
        time.perf_counter() - began,
    )


class _SpecSearch:
    """The searches of one choice, all on the same rows."""

    def __init__(self, rows: FirstRows, doubts: Doubts) -> None:
        self._rows, self._doubts = rows, doubts
        self.end = rows.learned - max(1, int(rows.learned * JUDGED))
        self._comparison = Comparison(CHOSEN_BY, end=self.end, widen=2, l2=True, frozen=True)
        self._compared: dict[str, Any] = {"rows": self.end, **self._comparison.over(self.end)}
        self.measure = RequestMeasure.parse(MEASURE) if rows.spec.input.request is not None else None

    def with_fields(self, doubtful: Iterable[str], crossed: Iterable[str] = ()) -> ModelSpec:
        """The spec of the certain fields and of these doubtful ones.

        crossed: those without a key of their own. What a list compares has none either unless it is in.
        """
        document = self._rows.spec.model_dump(mode="json", exclude_unset=True)["fields"]
        names, in_doubt = (
            {*doubtful},
            {*self._doubts.fields, *itertools.chain(*self._doubts.numbers.values())},
        )
        fields = {name: each for name, each in document.items() if name not in in_doubt or name in names}
        hidden = {of for name in fields for of in self._rows.spec.fields[name].inputs}
        fields |= {
            name: document[name] | {"main": False} for name in (*hidden, *crossed) if name not in fields
        }
        in_order = {name: fields[name] for name in document if name in fields}
        return rebuilt(self._rows.spec, {"fields": in_order})

    def tuned(self, spec: ModelSpec) -> Candidate:
        """The parameters of the sparsest of the candidates that are as good as the best."""
        ranking = tune(spec, candidates_of(spec, []), self._rows, self._comparison).ranking
        best = ranking[0].outcome.metrics.logloss
        assert best is not None
        good = [each for each in ranking if (each.outcome.metrics.logloss or 0.0) <= GOOD_ENOUGH * best]
        return min(good, key=lambda each: each.outcome.nonzero).parameters

    def best_numbers(self, rate: Candidate) -> str:
        """The best way to make keys of numbers; the guess unless another is better by LEAST_CHANGE."""
        ways = self._doubts.numbers
        if len(ways) < 2:
            return next(iter(ways), "")
        every = {*itertools.chain(*ways.values())}
        spec = self.with_fields(every)
        variants = {
            f"way-{number}": {"without": sorted(every - kept)} for number, kept in enumerate(ways.values())
        }
        learned = self._rows.learn([side_by_side(spec, rate, variants)], **self._compared)
        losses = {name: float(learned.outcomes[at].sums.sum()) for at, name in enumerate(ways)}
        guess, best = next(iter(ways)), min(losses, key=lambda name: losses[name])
        return best if losses[best] < (1.0 - LEAST_CHANGE) * losses[guess] else guess

    def best_of(self, specs: Sequence[ModelSpec], rate: Candidate) -> ModelSpec:
        """The spec of the least log-loss."""
        groups = [CandidateGroup(with_parameters(spec, rate), (0,), (0,)) for spec in specs]
        sums = [self._rows.learn([each], **self._compared).outcomes[0].sums.sum() for each in groups]
        return specs[int(np.argmin(sums))]

    def proposed(
        self, spec: ModelSpec, parameters: Candidate, fields: Sequence[str] | None = None
    ) -> Proposal:
        """The fields that help, of these; by default the crosses."""
        if fields is None:
            pairs, last, ahead = [*pairs_of(spec, BASE)], self.end, self._compared["ahead"]
            features = screened(self._rows, spec, parameters, pairs, MOST_PAIRS, last, ahead)
        else:
            features = [(each,) for each in fields]
        return propose(spec, parameters, self._rows, variant=BASE, features=features, **self._compared)

    def judged(self, steps: Sequence[tuple[str, ModelSpec, Candidate]]) -> tuple[Step, ...]:
        """The steps, judged on the rows held out."""
        judged, before = list[Step](), None
        for name, spec, parameters in steps:
            learned = self._judge(self._rows, spec, parameters)
            outcome, difference = learned.outcomes[0], None
            if before is not None:
                difference = PairedDifference.of(outcome.sums, before, learned.weights)
            if self.measure is not None:
                by_requests = self._judge(self._rows, spec, parameters, self.measure).outcomes[0]
                outcome = replace(outcome, measure=by_requests.measure)
            judged.append(Step(name, spec, parameters, outcome, difference))
            before = learned.outcomes[0].sums
        return tuple(judged)

    def judged_without(
        self, names: Iterable[str], step: tuple[str, ModelSpec, Candidate]
    ) -> tuple[str, Outcome] | None:
        """The step without the values of the fields that a server may not know, if it has one of them."""
        known = [name for name in names if name in step[1].fields]
        if not known:
            return None
        columns = [step[1].fields[name].column or name for name in known]
        rows = self._rows.lacking(columns, self.end)
        return f"without {', '.join(known)}", self._judge(rows, *step[1:], self.measure).outcomes[0]

    def _judge(
        self, rows: FirstRows, spec: ModelSpec, parameters: Candidate, measure: RequestMeasure | None = None
    ) -> Pass:
        group = CandidateGroup(with_parameters(spec, parameters), (0,), (0,))
        return rows.learn([group], compare_from=self.end, frozen=True, measure=measure)


# --- Parameters that are "auto" ---


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
