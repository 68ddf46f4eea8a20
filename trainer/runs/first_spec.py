"""The first spec for a log: columns guessed from their names and values, what is doubtful measured on the first rows.

In: a log of rows or events. Out: the spec as commented TOML, which `ftrie init` and `ftrie.Spec.infer` give.
`trainer.inspect` guesses, `trainer.tune.choice` measures, `SpecDraft` writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import PurePath
from typing import Any

from model_store.errors import InputError
from model_store.spec.sections import ChosenSection, ChosenStep
from model_store.spec.spec import ModelSpec, parse_spec
from trainer.examples.open_log import Log
from trainer.formats.batch import STDIN
from trainer.formats.reader import EVENTS, FORMATS
from trainer.formats.streams import is_pipe
from trainer.formats.tables import NAME
from trainer.inspect.examine import opened_source, without_leaks
from trainer.inspect.guesses import ROLES_WITH_ONE_COLUMN, Guess, may_be_quantity
from trainer.inspect.profiles import SAMPLE_ROWS
from trainer.output import SILENT, Output
from trainer.runs.warmup import compile_kernels
from trainer.sources.open_sources import kind_of
from trainer.tune.candidates import as_variants, rebuilt
from trainer.tune.choice import Doubts, SpecChoice, choose, why_not
from trainer.tune.crosses import Proposal
from trainer.tune.passes import FirstRows, Outcome, PairedDifference

ROWS, VALUES = 100_000, 2_000_000
"""How many of the first rows are measured on, and of their values: at most these, which takes about ten seconds."""
FEWEST_MEASURED = 20_000
_EXTENSIONS = {".gz", ".zst", *(end for each in FORMATS.values() for end in each.extensions)}
_SUGGESTED_CROSSES = 3
_NAMES_A_LINE = 10
_CROSS_VALUES = range(2, 2000)
_MOST_LISTS = 2
_RANKS = [2, 3, 5, 10]

_JOIN = """\
[join]
window = "10m"                        # how long after an impression a click of it counts"""
TEXTBOOK = {"alpha": 0.1, "beta": 1.0, "l1": 1.0, "l2": 0.0}
_WHY = {"alpha": "the learning rate", "l1": "higher: fewer keys keep a weight"}


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
    path, dialect = name or (log.inputs[0] if log.inputs else NAME), sample.dialect
    draft = SpecDraft(path, guesses, has_header=sample.has_header, joins=joins, dialect=dialect)
    text, choice, reason = draft.text(), None, ""
    spec = parse_spec(text, "the guessed spec")
    if measures and once:
        reason = "it can be read only once"
    elif measures:
        choice, reason = _measured(log, draft, spec, output)
    if choice is not None:
        text = draft.text(choice)
        parse_spec(text, "the chosen spec")
    return FirstSpec(text, guesses, choice, reason)


def _measured(log: Log, draft: SpecDraft, spec: ModelSpec, output: Output) -> tuple[SpecChoice | None, str]:
    if not draft.wide:
        return None, "no column can be a field"
    wide = rebuilt(spec, {"fields": {line.name: dict(line.members) for line in draft.wide}})
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
        return choose(shown, draft.doubts), ""


@dataclass(frozen=True)
class Line:
    """A field as the spec writes it. members: of its table.

    doubt: what it is, if it is no use to some models, "" for certain; guessed: whether it is in without a measurement.
    """

    name: str
    members: Mapping[str, Any]
    why: str
    doubt: str = ""
    guessed: bool = True

    @property
    def tried(self) -> bool:
        """Whether a measurement decides if it is in; the weekday of a single day cannot be measured."""
        return bool(self.doubt) and (self.guessed or self.members.get("part") is None)

    @property
    def may_be_crossed(self) -> bool:
        """Whether it may help in crosses alone, as an id does."""
        return bool(self.doubt) and self.members.get("kind", "category") == "category"

    def __str__(self) -> str:
        members = ", ".join(f"{name} = {_value(value)}" for name, value in self.members.items())
        key = self.name if re.fullmatch(r"[A-Za-z0-9_-]+", self.name) else _quote(self.name)
        return f"{key} = {{ {members} }}"


class SpecDraft:
    """The spec of a log as text: as it was guessed, or with what was measured.

    wide: the fields that a measurement needs; doubts: what it decides.
    """

    def __init__(
        self,
        path: str,
        guesses: Sequence[Guess],
        *,
        has_header: bool = True,
        joins: bool = False,
        dialect: Mapping[str, Any] | None = None,
    ) -> None:
        """path: of the log, or the model's name; joins: of events; dialect: see `LogSample`."""
        self._path, self._guesses, self._has_header, self._joins = path, guesses, has_header, joins
        self._dialect = dialect or {}
        self._names = names = _field_names(guesses)
        lines = [*self._field_lines()]
        if not any(line.guessed for line in lines):  # a spec needs a field
            lines = [replace(line, guessed=True) for line in lines]
        self._lines = [*lines, *self._bucket_lines()]
        self._ways = self._ways_of_numbers()
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
        """The spec as TOML, valid for `parse_spec` and for training on the log."""
        lines, names = (self._lines, dict[str, str]()) if choice is None else self._chosen_lines(choice)
        parts = [
            self._opening(),
            *map(
                "\n".join,
                (
                    self._input(),
                    self._fields(lines, choice),
                    self._crosses(choice, names),
                    _variants(lines, choice, names),
                ),
            ),
            *([_JOIN] if self._joins else []),
            "\n".join(_learner(choice)),
            *(["\n".join(_chosen(choice))] if choice is not None else []),
        ]
        return "\n\n".join(parts) + "\n"

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

    def _opening(self) -> str:
        path, rows = self._path, len(self._guesses[0].profile.texts)
        source = "standard input" if path == STDIN else PurePath(path).name
        return (
            f"# Guessed from the first {rows:,} rows of {_comment(source)}. Review it: names and a few rows do not\n"
            "# tell what a column means. Comments give the reason of each guess, or a suggestion.\n"
            f'\n[model]\nname = "{model_name(path)}"'
        )

    def _input(self) -> Iterator[str]:
        guesses = self._guesses
        yield "[input]"
        for name, value in self._dialect.items():
            yield _line(
                f"{name} = {json.dumps(value, ensure_ascii=False)}", "how the log's cells are written"
            )
        if not self._has_header:
            yield _line("columns = [", "the log has no header: rename the columns here and below")
            names = [f"{_quote(guess.name)}," for guess in guesses]
            for start in range(0, len(names), _NAMES_A_LINE):
                yield f"    {' '.join(names[start : start + _NAMES_A_LINE])}"
            yield "]"
        for role in ROLES_WITH_ONE_COLUMN:
            for guess in guesses:
                if guess.role == role:
                    yield _line(f"{role} = {_quote(guess.name)}", guess.why)
                    if guess.positive is not None:
                        yield _line(f"positive = {_quote(guess.positive)}", "the value that is a click")
        ignored = [guess for guess in guesses if guess.role == "ignore"]
        if ignored:
            yield "ignore = ["
            for guess in ignored:
                yield _line(f"    {_quote(guess.name)},", guess.why)
            yield "]"

    def _field_lines(self) -> Iterator[Line]:
        """Every field that the guesses know of; of events also those of lists and histories."""
        guesses, names = self._guesses, self._names
        for guess in guesses:
            name = names[guess.name]
            if guess.role == "timestamp":
                taken = {name for column, name in names.items() if column != guess.name}
                for part in ("hour", "weekday"):
                    own = part if part not in taken else f"{names[guess.name]}_{part}"
                    one_day = part == "weekday" and guess.profile.days < 2
                    rows = len(guess.profile.texts)
                    doubt = f"The {rows:,} rows read are of one day; where the log has more days"
                    members = _members(guess, own, part)
                    yield Line(own, members, guess.why, doubt if one_day else "a time", guessed=not one_day)
            elif guess.role == "cookie":
                doubt = "to learn each user individually, which needs many clicks per user"
                yield Line(name, _members(guess, name), "its name", doubt, guessed=False)
            elif guess.role in ("item", "field"):
                place = guess.doubt == "a place"
                yield Line(name, _members(guess, name), guess.why, guess.doubt, guessed=not place)
        if self._joins:
            yield from self._list_lines()
            yield from self._history_lines()

    def _ways_of_numbers(self) -> dict[str, list[Line]]:
        """Ways to make keys of the numbers, by what they are called, beside that of `_field_lines`, which is "log"."""
        ways: dict[str, list[Line]] = {"values": [], "quantiles": [], "quantiles and size": [], "size": []}
        for guess in self._guesses:
            if guess.role != "field" or guess.kind != "number":
                continue
            name = self._names[guess.name]
            options = {**_members(replace(guess, kind="category"), name), "column": guess.name}
            number = {**options, "kind": "number"}
            value = Line(f"{name}_value", options, guess.why)
            bucket = Line(f"{name}_bucket", {**number, "bucket": "quantile:20"}, guess.why)
            scaled = Line(f"{name}_scaled", {**number, "scale": "standard"}, guess.why)
            for way, lines in zip(ways, ([value], [bucket], [bucket, scaled], [scaled]), strict=True):
                ways[way] += lines
        return ways if ways["values"] else {}

    def _bucket_lines(self) -> Iterator[Line]:
        """Buckets beside the values of categories that are numbers."""
        for guess in self._guesses:
            is_category = guess.role == "field" and guess.kind == "category" and not guess.optional
            if is_category and may_be_quantity(guess.profile):
                name = self._names[guess.name]
                more = {"kind": "number", "bucket": "quantile:20", "column": guess.name}
                members = {**_members(guess, name), **more}
                yield Line(f"{name}_bucket", members, guess.why, "its values as sizes", guessed=False)

    def _list_lines(self) -> Iterator[Line]:
        """How an item's number compares with those of the others in its list."""
        numbers = [g for g in self._guesses if g.role == "field" and g.kind == "number" and g.side == "item"]
        for guess in numbers[:_MOST_LISTS]:
            for kind, bucket in (("rank", _RANKS), ("gap", "log"), ("min", "log")):
                name = self._names[guess.name]
                members = {"side": "item", "kind": "number", "bucket": bucket, "list": kind, "of": name}
                yield Line(f"{name}_{kind}", members, "among the items of the list", "a list", guessed=False)

    def _history_lines(self) -> Iterator[Line]:
        """What the user saw and clicked before."""
        guesses, names = self._guesses, self._names
        if not {"cookie", "timestamp", "item"} <= {guess.role for guess in guesses}:
            return
        of_item = [
            g
            for g in guesses
            if g.role == "field" and g.side == "item" and g.kind == "category" and not g.optional
        ]
        own = {"kind": "number", "bucket": "log"}
        found: dict[str, dict[str, Any]] = {
            "seen_before": {"side": "item", **own, "history": "seen", "measure": "count"},
            "clicked_before": {"side": "item", **own, "history": "clicked", "measure": "count"},
            "clicks_before": {"side": "user", **own, "history": "clicked", "measure": "count"},
            "last_clicked": {
                "side": "user",
                "kind": "set",
                "history": "clicked",
                "measure": "last",
                "last": 3,
            },
        }
        for guess in of_item[:_MOST_LISTS]:
            name, count = (
                names[guess.name],
                {"history": "clicked", "measure": "count", "of": names[guess.name]},
            )
            found[f"{name}_clicked_before"] = {"side": "item", **own, **count}
        taken = {*names.values()}
        for name, members in found.items():
            if name not in taken:
                yield Line(
                    name, members, "the trainer keeps it, docs/features.md", "a history", guessed=False
                )

    def _fields(self, lines: Sequence[Line], choice: SpecChoice | None) -> Iterator[str]:
        yield '[fields]                              # side: "user", "item" or "context": where the value comes from'
        gains, kept, hidden = dict[str, str](), set[str](), dict[str, str]()
        if choice is not None:
            fields = choice.best.spec.fields
            kept = {each.name for each in self._lines if each.doubt and each.name in fields}
            gains = _gains(choice.fields, kept)
            lists = {of: name for name, each in fields.items() for of in each.inputs}
            hidden = {  # those without a key of their own, and why they are in
                name: f"for {lists[name]}" if name in lists else "for its crosses"
                for name, each in fields.items()
                if not each.main
            }
        for line in lines:
            found = gains.get(line.name, "")
            if line.name in hidden:
                line = replace(line, members={**line.members, "main": False})
                yield _line(str(line), hidden[line.name])
            elif line.name in kept if found else line.guessed:
                yield _line(str(line), f"{line.why}; {found}" if found else line.why)
            elif found:
                yield _line(f"# {line}", found)
            elif line.doubt and line.doubt not in ("a list", "a history"):
                yield f"# {line.doubt[0].upper()}{line.doubt[1:]}:"
                yield f"# {line}"

    def _crosses(self, choice: SpecChoice | None, names: Mapping[str, str]) -> Iterator[str]:
        if choice is not None and choice.crosses.proposed:
            yield "# A cross learns pairs of values; these gain more than chance explains, each beside those before it:"
            for each in choice.crosses.proposed:
                pair = [names.get(name, name) for name in each.fields]
                yield f"[[crosses]]\n{_line(f'fields = {_value(pair)}', _saves(each.gain))}"
            return
        yield "# A cross learns pairs of values, such as the taste of some users for some items:"
        if choice is not None:
            yield "# (no pair of these fields gained more than chance explains)"
        for request_side, item_side in self._pairs() or [("field", "other_field")]:
            fields = ", ".join(_quote(self._names.get(name, name)) for name in (request_side, item_side))
            yield f"# [[crosses]]\n# fields = [{fields}]"

    def _pairs(self) -> list[tuple[str, str]]:
        """Pairs of a request-side and an item-side column with a moderate number of values, user columns first."""
        usable = [
            guess
            for guess in self._guesses
            if guess.role in ("field", "item")
            and guess.kind == "category"
            and not guess.warning
            and guess.profile.distinct in _CROSS_VALUES
        ]
        items = [guess.name for guess in usable if guess.side == "item"]
        others = [guess.name for guess in usable if guess.side == "user"]
        others += [guess.name for guess in usable if guess.side == "context"]
        if not items:
            return list(pairwise(others))[:1]
        return [(other, item) for other in others[:2] for item in items[:2]][:_SUGGESTED_CROSSES]


def _members(guess: Guess, name: str, part: str | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"side": guess.side}
    if guess.kind != "category":
        found["kind"] = guess.kind
    if guess.kind == "number":
        found["bucket"] = "log"
    if part is not None:
        found["part"] = part
    if guess.format not in (None, "iso"):
        found["format"] = guess.format
    if guess.separator is not None:
        found["separator"] = guess.separator
    if guess.optional:
        found["optional"] = True
    if name != guess.name:
        found["column"] = guess.name
    return found


def _variants(lines: Sequence[Line], choice: SpecChoice | None, names: Mapping[str, str]) -> Iterator[str]:
    yield "[variants]"
    if choice is not None and choice.doubtful:
        best, base = choice.best, choice.steps[-2]
        without = [
            *(name for name, each in best.spec.fields.items() if each.main and name not in base.spec.fields),
            *("*".join(names.get(name, name) for name in pair) for pair in choice.crosses.features),
        ]
        own = "".join(
            f", {name} = {_value(value)}"
            for name, value in base.parameters.items()
            if value != best.parameters[name]
        )
        yield "# Whether the crosses help is not clear from these rows; both learn and serve side by side:"
        yield f"base = {{ share = 0.5, without = {_value(without)}{own} }}"
        yield "crosses = { share = 0.5 }"
        return
    fields = [line.name for line in lines if line.guessed and not line.doubt]
    yield _line("base = { share = 1.0 }", "variants learn and serve side by side; shares sum to 1")
    if fields:
        yield "# base = { share = 0.5 }"
        yield f"# small = {{ share = 0.5, without = [{_quote(fields[-1])}] }}"


def _learner(choice: SpecChoice | None) -> Iterator[str]:
    yield '[learner]\nalgorithm = "ftrl"'
    if choice is not None and choice.doubtful:
        yield _line('values = "per_variant"', "each variant learns as if it was alone")
    for name, value in (TEXTBOOK if choice is None else choice.best.parameters).items():
        why = _WHY.get(name, "")
        if choice is None and name == "alpha":
            why += ": try 0.03 and 0.3"
        yield _line(f"{name} = {float(value)!r}", why) if why else f"{name} = {float(value)!r}"


def _chosen(choice: SpecChoice) -> Iterator[str]:
    steps = []
    for name, judged in _named_steps(choice):
        figures = {"logloss": judged.metrics.logloss, "auc": judged.metrics.auc, "mrr": judged.measure}
        known = {key: round(value, 5) for key, value in figures.items() if value is not None}
        steps.append(ChosenStep.model_validate({"step": name, **known, "weights": judged.nonzero}))
    section = ChosenSection(rows=choice.rows, judged_rows=choice.judged_rows, steps=tuple(steps))
    yield _line("[chosen]", "by `ftrie init` on the log's first rows; only people and reports read it")
    yield _line(f"rows = {section.rows}", "by which rate, fields and crosses were chosen")
    yield _line(
        f"judged_rows = {section.judged_rows}", "after them: predicted, not learned; they chose nothing"
    )
    yield "steps = ["
    for step in section.steps:
        members = step.model_dump(exclude_none=True)
        yield f"    {{ {', '.join(f'{name} = {_value(value)}' for name, value in members.items())} }},"
    yield "]"


def _gains(fields: Proposal, kept: Collection[str]) -> dict[str, str]:
    """What each doubtful field gained, by its name. kept: those that are in, some for their crosses alone."""
    found = dict[str, str]()
    for each in fields.tried:
        name = each.fields[0]
        if name in kept:
            found[name] = f"in all the same; by itself it {_saves(each.gain)}"
        elif each.passes_test:
            found[name] = "not in: beside the others it saves nothing"
        else:
            found[name] = f"not in: it {_saves(each.gain)}, which chance may explain"
    return found | {each.fields[0]: _saves(each.gain) for each in fields.proposed}


def _saves(gain: PairedDifference) -> str:
    """A gain in words."""
    return f"{'saves' if gain.mean >= 0.0 else 'costs'} {abs(gain.mean):.5f} of the log-loss"


def _named_steps(choice: SpecChoice) -> list[tuple[str, Outcome]]:
    named = []
    for each in choice.steps:
        known = {name: value for name, value in each.parameters.items() if value or name != "l2"}
        parameters = ", ".join(f"{name} {value:g}" for name, value in known.items())
        named.append((f"{each.name}: {parameters}", each.judged))
    return [*named, *([choice.unknown] if choice.unknown else [])]


def steps_table(choice: SpecChoice) -> Iterator[list[Any]]:
    """The steps as rows of a text and numbers, a head before them."""
    yield ["", "log-loss", "AUC", *(["MRR"] if choice.has_measure else []), "weights"]
    for name, judged in _named_steps(choice):
        measure = [judged.measure] if choice.has_measure else []
        yield [name, judged.metrics.logloss, judged.metrics.auc, *measure, judged.nonzero]


def _field_names(guesses: Sequence[Guess]) -> dict[str, str]:
    """Column → field: the last part of a nested column's path where that is unique, else the whole path."""
    columns = [guess.name for guess in guesses]
    last = [name.rpartition(".")[2] for name in columns]
    return {
        name: short if short and last.count(short) == 1 else name
        for name, short in zip(columns, last, strict=True)
    }


def model_name(path: str) -> str:
    """A model name from the log's file name: `logs/ads 2024.csv.gz` gives `ads-2024`."""
    name = PurePath(path)
    while name.suffix.lower() in _EXTENSIONS:
        name = name.with_suffix("")
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name.name).strip("-.")[:128]
    return plain if plain and path != STDIN else "model"


def _line(text: str, why: str) -> str:
    return f"{text.ljust(37)} # {_comment(why)}"


def _comment(text: str) -> str:
    """The text without control characters, which TOML does not allow in comments."""
    return "".join(character if character.isprintable() else "�" for character in text)


def _value(value: Any) -> str:
    """A value of a member as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    return _quote(value) if isinstance(value, str) else repr(value)


def _quote(text: str) -> str:
    # A JSON string is a valid TOML string except that TOML requires DEL escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
