"""The first spec for a log: columns guessed from their names and values, what is doubtful measured on the first rows.

In: a log of rows or events. Out: the spec as commented TOML, which `ftrie init` and `ftrie.Spec.infer` give.
`trainer.inspect` guesses, `trainer.tune.choice` measures.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from model_store.errors import InputError
from model_store.spec.sections import ChosenSection, ChosenStep
from model_store.spec.spec import ModelSpec, parse_spec
from trainer.examples.open_log import Log
from trainer.formats.registry import EVENTS
from trainer.formats.streams import is_pipe
from trainer.formats.tables import NAME
from trainer.inspect.examine import opened_source, without_leaks
from trainer.inspect.guesses import Guess
from trainer.inspect.profiles import SAMPLE_ROWS, LogSample
from trainer.inspect.spec_writer import (
    Line,
    Measured,
    bucket_lines,
    field_lines,
    field_names,
    spec_text,
    ways_of_numbers,
)
from trainer.output import SILENT, Output
from trainer.runs.warmup import compile_kernels
from trainer.sources.kinds import kind_of
from trainer.tune.candidates import as_variants, rebuilt
from trainer.tune.choice import Doubts, SpecChoice, Step, choose, why_not
from trainer.tune.crosses import Proposal
from trainer.tune.passes import FirstRows, Outcome, PairedDifference

ROWS, VALUES = 100_000, 2_000_000
"""How many of the first rows are measured on, and of their values: at most these, which takes about ten seconds."""
FEWEST_MEASURED = 20_000


@dataclass(frozen=True)
class FirstSpec:
    """The spec as text; the guesses it is made of; what was measured, or why nothing was ("" if not asked for)."""

    text: str
    guesses: tuple[Guess, ...]
    choice: SpecChoice | None
    why_not: str = ""


def first_spec(
    log: Log, label: str | None = None, *, name: str = "", measures: bool = True, output: Output = SILENT
) -> FirstSpec:
    """Guess and measure. name: of the model, as a path; by default the log's.

    Raises InputError for a log that cannot be read, SpecError if no column can be the label.
    """
    joins = log.table is None and kind_of(log.inputs, label, log.format) == EVENTS
    if len(log.inputs) > 1 and not joins:
        raise InputError(f"got {len(log.inputs)} inputs; expected one log, or impressions and their clicks")
    once = any(map(is_pipe, log.inputs)) or (log.table is not None and log.table.rows is None)
    with opened_source(log, None, label) as source:
        guesses, sample = source.guesses(), source.sample
        if not once:
            guesses = without_leaks(guesses, source.examine(most_rows=SAMPLE_ROWS))
    for guess in guesses:
        if guess.warning:
            output.warn(guess.warning)
    writer = _SpecDraft(name or (log.inputs[0] if log.inputs else NAME), guesses, sample, joins)
    text, choice, reason = writer.text(), None, ""
    spec = parse_spec(text, "the guessed spec")
    if measures and once:
        reason = "it can be read only once"
    elif measures:
        choice, reason = _measured(log, writer, spec, output)
    if choice is not None:
        text = writer.text(choice)
        parse_spec(text, "the chosen spec")
    return FirstSpec(text, guesses, choice, reason)


def _measured(log: Log, writer: _SpecDraft, spec: ModelSpec, output: Output) -> tuple[SpecChoice | None, str]:
    if not writer.wide:
        return None, "no column can be a field"
    wide = rebuilt(spec, {"fields": {line.name: dict(line.members) for line in writer.wide}})
    most = min(ROWS, max(VALUES // len(wide.fields), FEWEST_MEASURED))
    quiet = replace(log, on_note=lambda text: None)  # the notes on the first rows have been given
    rows = FirstRows.read(quiet, wide, most)
    reason = why_not(rows)
    if reason:
        return None, reason
    for several in (1, 2):  # a spec of several variants needs other kernels than one of a single one
        compile_kernels(as_variants(spec, [{}] * several, range(several), "base").spec, output=output)
    with output.progress("measuring") as bar:
        shown = replace(rows, on_progress=lambda done, total: bar.update(done, total=total))
        return choose(shown, writer.doubts), ""


class _SpecDraft:
    """Writes the spec, without and with a choice."""

    def __init__(self, name: str, guesses: tuple[Guess, ...], sample: LogSample, joins: bool) -> None:
        self._name, self._guesses, self._sample, self._joins = name, guesses, sample, joins
        self._lines = [*field_lines(guesses, joins), *bucket_lines(guesses)]
        self._ways = ways_of_numbers(guesses)
        names = field_names(guesses)
        self._numbers = [names[g.name] for g in guesses if g.role == "field" and g.kind == "number"]
        tried = [line for line in self._lines if line.tried]
        seen = [line for line in self._lines if line.tried or not line.doubt]
        more = {line.name: line for lines in self._ways.values() for line in lines}
        self.wide = [*seen, *more.values()]
        ways = {way: frozenset(line.name for line in lines) for way, lines in self._ways.items()}
        self.doubts = Doubts(
            {"log": frozenset(self._numbers), **ways} if ways else {},
            tuple(line.name for line in tried),
            tuple(line.name for line in tried if line.may_be_crossed),
            tuple(names[g.name] for g in guesses if g.role == "field" and g.optional),
        )

    def text(self, choice: SpecChoice | None = None) -> str:
        """The spec as TOML."""
        lines, measured = self._lines, None
        if choice is not None:
            lines, names = self._chosen_lines(choice)
            measured = self._measured(choice, names)
        return spec_text(
            self._name,
            self._guesses,
            self._sample.has_header,
            joins=self._joins,
            dialect=self._sample.dialect,
            lines=lines,
            measured=measured,
        )

    def _chosen_lines(self, choice: SpecChoice) -> tuple[list[Line], dict[str, str]]:
        """The lines, those of numbers in the way that was chosen; and the names of fields that took a number's."""
        ways, found, names = self._ways.get(choice.numbers, []), list[Line](), dict[str, str]()
        for line in self._lines:
            column = line.members.get("column", line.name)
            others = [each for each in ways if each.members["column"] == column]
            if line.name not in self._numbers or not others:
                found.append(line)
                continue
            if line.name in choice.best.spec.fields:  # a list needs it
                found.append(line)
            else:
                names[others[0].name] = line.name
                members = {**others[0].members, "column": column}
                if column == line.name:
                    del members["column"]
                others[0] = replace(others[0], name=line.name, members=members)
            found += others
        return found, names

    def _measured(self, choice: SpecChoice, names: Mapping[str, str]) -> Measured:
        best, base = choice.best, choice.steps[-2] if choice.doubtful else None
        fields = best.spec.fields
        kept = {each.name for each in self._lines if each.doubt and each.name in fields}
        lists = {of: name for name, each in fields.items() for of in each.inputs}
        hidden = {
            name: f"for {lists[name]}" if name in lists else "for its crosses"
            for name, each in fields.items()
            if not each.main
        }
        return Measured(
            chosen=_section(choice),
            fields=_gains(choice.fields, kept),
            kept=kept,
            hidden=hidden,
            crosses=[
                ([names.get(name, name) for name in each.fields], saves(each.gain))
                for each in choice.crosses.proposed
            ],
            learner=best.parameters,
            base=None if base is None else base.parameters,
            without=[]
            if base is None
            else [
                *(name for name, each in fields.items() if each.main and name not in base.spec.fields),
                *("*".join(names.get(name, name) for name in pair) for pair in choice.crosses.features),
            ],
        )


def _gains(fields: Proposal, kept: Collection[str]) -> dict[str, str]:
    """What each doubtful field gained, by its name. kept: those that are in, some for their crosses alone."""
    found = dict[str, str]()
    for each in fields.tried:
        name = each.fields[0]
        if name in kept:
            found[name] = f"in all the same; by itself it {saves(each.gain)}"
        elif each.passes_test:
            found[name] = "not in: beside the others it saves nothing"
        else:
            found[name] = f"not in: it {saves(each.gain)}, which chance may explain"
    return found | {each.fields[0]: saves(each.gain) for each in fields.proposed}


def saves(gain: PairedDifference) -> str:
    """A gain in words."""
    return f"{'saves' if gain.mean >= 0.0 else 'costs'} {abs(gain.mean):.5f} of the log-loss"


def _section(choice: SpecChoice) -> ChosenSection:
    """The choice as the spec has it; figures with five digits."""
    steps = []
    for name, judged in _named_steps(choice):
        figures = {"logloss": judged.metrics.logloss, "auc": judged.metrics.auc, "mrr": judged.measure}
        known = {key: round(value, 5) for key, value in figures.items() if value is not None}
        steps.append(ChosenStep.model_validate({"step": name, **known, "weights": judged.nonzero}))
    return ChosenSection(rows=choice.rows, judged_rows=choice.judged_rows, steps=tuple(steps))


def _named_steps(choice: SpecChoice) -> list[tuple[str, Outcome]]:
    named = [(f"{each.name}: {_parameters(each)}", each.judged) for each in choice.steps]
    return [*named, *([choice.unknown] if choice.unknown else [])]


def steps_table(choice: SpecChoice) -> Iterator[list[Any]]:
    """The steps as rows of a text and numbers, a head before them."""
    yield ["", "log-loss", "AUC", *(["MRR"] if choice.has_measure else []), "weights"]
    for name, judged in _named_steps(choice):
        measure = [judged.measure] if choice.has_measure else []
        yield [name, judged.metrics.logloss, judged.metrics.auc, *measure, judged.nonzero]


def _parameters(step: Step) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in step.parameters.items() if value or name != "l2")
