"""The whole search of `ftrie tune`: choose parameters, then crosses, then parameters again; judge the choice once.

In: a spec, candidates, a log. The last part of the log by time is held out: it chooses no candidate. At the end the
best spec and the spec as given are judged on that part twice: frozen, as models that `ftrie train` made of the rows
before, and learning on, as `ftrie trainer` does. They may disagree: a fast learner follows what a frozen one must know.
So candidates are ranked for one of the two uses.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from model_store.errors import InputError, SpecError
from model_store.spec.spec import ModelSpec, parse_spec
from trainer.examples.open_log import open_log
from trainer.formats.batch import STDIN
from trainer.formats.rejects import MOST_REJECTED, no_usable_row
from trainer.learn.metrics.requests import RequestMeasure
from trainer.tune.candidates import (
    Candidate,
    Value,
    as_variants,
    groups_of,
    learner_with,
    learns_alone,
    with_parameters,
)
from trainer.tune.crosses import Feature, Proposal, propose, with_crosses
from trainer.tune.halving import (
    ONCE,
    Comparison,
    Extent,
    LastPart,
    Tuning,
    compared_variant,
    measure,
    tune,
)
from trainer.tune.passes import Outcome, PairedDifference, RepeatedLog


@dataclass(frozen=True)
class SearchOptions:
    """What is searched beside the grid. crosses: propose crosses, of at most `keys` keys; held_out: the last part."""

    comparison: Comparison
    held_out: LastPart = field(default_factory=LastPart)
    crosses: bool = False
    keys: int | None = None


@dataclass(frozen=True)
class Judgement:
    """The best spec on the last part of the log, beside the spec as given; difference: best minus given.

    frozen: both learned the rows before it alone; else they learned on, each row after it was predicted.
    """

    frozen: bool
    rows: int
    best: Outcome
    given: Outcome
    difference: PairedDifference

    @property
    def how(self) -> str:
        """In words."""
        return "frozen" if self.frozen else "learning on"

    def as_dict(self) -> dict[str, object]:
        """The JSON form."""
        sides = {"best": self.best, "given": self.given}
        metrics = {name: each.figures() for name, each in sides.items()}
        return {"rows": self.rows, **metrics, "difference": self.difference.as_dict()}


@dataclass(frozen=True)
class SearchResult:
    """The result of a search. tuning: of the last search for parameters, with the crosses if any are proposed.

    by, frozen: what candidates were ranked by, see `Comparison`; judged: frozen, then learning on; empty if no part is
    held out.
    """

    by: str
    frozen: bool
    tuning: Tuning
    extent: Extent | None
    crosses: Proposal | None
    judged: tuple[Judgement, ...]
    passes: int
    seconds: float

    @property
    def has_measure(self) -> bool:
        """True if candidates were ranked by a measure of requests, and differences are of that."""
        return RequestMeasure.parse(self.by) is not None

    @property
    def best(self) -> Candidate:
        """The parameters of the best candidate."""
        return self.tuning.ranking[0].parameters

    @property
    def keeps_given(self) -> bool:
        """Whether, judged for the use that was searched for, the best is worse than the spec as given."""
        differences = [each.difference.mean for each in self.judged if each.frozen == self.frozen]
        return any((mean < 0.0) if self.has_measure else (mean > 0.0) for mean in differences)

    @property
    def pairs(self) -> tuple[Feature, ...]:
        """The crosses of the best spec that the spec as given lacks."""
        return self.crosses.features if self.crosses is not None else ()

    @property
    def rejected(self) -> int:
        """Rows of the log that could not be learned."""
        return self.extent.rejected if self.extent is not None else self.tuning.rejected

    def warnings(self) -> Iterator[str]:
        """Warnings for the user."""
        tuning, rows = self.tuning, (self.extent or self.tuning.ranking[0]).rows
        share = self.rejected / max(self.rejected + rows, 1)
        if share > MOST_REJECTED:
            yield (
                f"{self.rejected:,} rows were rejected, {100 * share:.3g} % of those read: the "
                "ranking is that of the others alone; `ftrie train --rejects FILE` lists them"
            )
        if self.extent is not None:
            yield from self.extent.warnings()
        best = tuning.ranking[0].outcome.metrics
        if best.normalized_entropy is not None and best.normalized_entropy > 1.0:
            yield (
                f"the best has a log-loss of {best.logloss:.5f}, worse than the click rate alone would: its order may "
                'be good, its click rates are not; rank by logloss, or set [calibration] kind = "power"'
            )
        if self.keeps_given:
            yield (
                "on the last part of the log the best is worse than the spec as given, which stays: what was gained "
                "on the rows before did not last"
            )
        for each in self.judged:
            if each.frozen == self.frozen:
                continue
            low, high = each.difference.interval() or (0.0, 0.0)
            if (high < 0.0) if self.has_measure else (low > 0.0):
                yield f"judged {each.how}, the best is worse than the spec as given: keep that for such a use"
        for edge in tuning.edges:
            direction = "larger" if edge.side == "largest" else "smaller"
            yield (
                f"the best {edge.name}, {edge.value:g}, is the {edge.side} tried: {direction} values may be better; "
                f"try them with --try {edge.name}=…"
            )


def search(
    spec: ModelSpec, candidates: Sequence[Candidate], log: RepeatedLog, options: SearchOptions
) -> SearchResult:
    """Search, and judge the best once. Raises InputError if no row can be learned; see `tune` and `propose`."""
    began, extent, comparison = time.perf_counter(), None, options.comparison
    if STDIN in log.log.inputs and (options.crosses or options.held_out != LastPart()):
        raise InputError(ONCE)
    if options.held_out != LastPart():
        extent = measure(log, spec, options.held_out)
        comparison = replace(comparison, end=extent.split)
    passes = 0 if extent is None else 1
    tuning = tune(spec, candidates, log, comparison)
    passes += tuning.passes
    if not tuning.ranking or tuning.ranking[0].outcome.metrics.logloss is None:
        said = no_usable_row("learned from", tuning.rejected, ())
        raise InputError(f"{said}; nothing can be ranked; `ftrie doctor` says why")
    if RequestMeasure.parse(comparison.by) and tuning.ranking[0].outcome.measure is None:
        raise InputError(
            f"no request has both a clicked and an unclicked row, so there is no {comparison.by} to compare by; does "
            "input.request name the requests that showed several rows together? Or compare by logloss or auc"
        )
    proposal, better = None, spec
    if options.crosses:
        proposal = _proposal(spec, tuning, log, comparison, options.keys)
        passes += proposal.passes
    if proposal is not None and proposal.features:
        better = with_crosses(spec, proposal.features)
        tuning = tune(better, candidates, log, comparison)
        passes += tuning.passes
    judged = list[Judgement]()
    if extent is not None and extent.split is not None:
        best, variant = tuning.ranking[0].parameters, compared_variant(spec, comparison.variant)
        groups = [groups_of(spec, [best, {}], (0, 1), variant)]
        if better is not spec:
            groups = [groups_of(better, [best], (0,), variant), groups_of(spec, [best, {}], (1,), variant)]
        for frozen in (True, False):
            by = RequestMeasure.parse(comparison.by)
            learned = [
                log.learn(each, compare_from=extent.split, measure=by, frozen=frozen) for each in groups
            ]
            outcomes = {index: outcome for each in learned for index, outcome in each.outcomes.items()}
            own, given = outcomes[0], outcomes[1]
            difference = PairedDifference.of(own.sums, given.sums, learned[0].weights)
            judged.append(Judgement(frozen, learned[0].judged_rows, own, given, difference))
            passes += len(learned)
    return SearchResult(
        comparison.by,
        comparison.frozen,
        tuning,
        extent,
        proposal,
        tuple(judged),
        passes,
        time.perf_counter() - began,
    )


def models_of(
    spec: ModelSpec, candidates: Sequence[Candidate], options: SearchOptions
) -> Iterator[ModelSpec]:
    """The specs whose kernels a search needs."""
    variant = compared_variant(spec, options.comparison.variant)
    for group in groups_of(spec, candidates, range(len(candidates)), variant):
        yield group.spec
    for several in (1, 2) if options.crosses or learns_alone(spec) else ():
        yield as_variants(spec, [candidates[0]] * several, range(several), variant).spec


def _proposal(
    spec: ModelSpec, tuning: Tuning, log: RepeatedLog, comparison: Comparison, budget: int | None
) -> Proposal:
    with open_log(log.log, spec) as opened:
        resolved = opened.spec
    rows = tuning.ranking[0].rows
    # Crosses are judged by log-loss, so by a model that is good by log-loss, whatever candidates are ranked by.
    whole = [each for each in tuning.ranking if each.rows == rows]
    best = min(whole, key=lambda each: each.outcome.metrics.logloss or 0.0)
    return propose(
        resolved,
        best.parameters,
        log,
        variant=compared_variant(spec, comparison.variant),
        budget=budget,
        rows=comparison.end,
        **comparison.over(rows),
    )


# --- The best spec as text ---


_HEADER = re.compile(r"^\s*\[\s*learner\s*\]\s*(#.*)?$")
_ANY_HEADER = re.compile(r"^\s*\[")
_KEY = re.compile(r"^\s*\"?([A-Za-z0-9_]+)\"?\s*=")
_OTHER_FORM = {"rate_scale", "rate_decay"}


def with_best(text: str, spec: ModelSpec, candidate: Candidate, pairs: Sequence[Feature] = ()) -> str:
    """The spec's TOML `text` with a candidate's parameters and these crosses after its own.

    Raises SpecError where the text cannot be edited safely.
    """
    wanted = with_crosses(with_parameters(spec, candidate), pairs)
    edited = _edited(text, spec, candidate)
    added = [f"fields = [{', '.join(map(json.dumps, pair))}]" for pair in pairs]
    edited += "".join(f"\n[[crosses]]\n{fields}\n" for fields in added)
    try:
        if parse_spec(edited).to_json() == wanted.to_json():
            return edited
    except SpecError:
        pass
    raise SpecError(
        "the spec cannot be edited line by line; set in its [learner]: "
        + ", ".join(f"{name} = {_toml(value)}" for name, value in candidate.items())
        + "".join(f"; add to its crosses: {{ {fields} }}" for fields in added)
    )


def _edited(text: str, spec: ModelSpec, candidate: Candidate) -> str:
    lines = text.splitlines()
    begin = next((at for at, line in enumerate(lines) if _HEADER.match(line)), None)
    if begin is None:
        lines += ["", "[learner]"]
        begin = len(lines) - 1
    end = next((at for at in range(begin + 1, len(lines)) if _ANY_HEADER.match(lines[at])), len(lines))
    section = _section(lines[begin + 1 : end], spec, candidate)
    return "\n".join([*lines[: begin + 1], *section, *lines[end:]]) + "\n"


def _section(lines: list[str], spec: ModelSpec, candidate: Candidate) -> list[str]:
    """The lines of `[learner]`: values replaced where the key is present, else inserted below the header."""
    kept, present = [], set()
    belongs = learner_with(spec.learner, candidate)
    own: dict[str, Value] = {"alpha": spec.learner.alpha, "beta": spec.learner.beta}
    rewritten: dict[str, Value] = {**own, **candidate} if _OTHER_FORM & {*map(_key, lines)} else {**candidate}
    for line in lines:
        name = _key(line)
        if name in rewritten:
            kept.append(f"{name} = {_toml(rewritten[name])}{_comment(line)}")
            present.add(name)
        elif name is None or name in belongs:
            kept.append(line)
    return [f"{name} = {_toml(value)}" for name, value in rewritten.items() if name not in present] + kept


def _key(line: str) -> str | None:
    found = _KEY.match(line)
    return found.group(1) if found else None


def _comment(line: str) -> str:
    """The comment after a value. Values that can be tuned contain no `#`."""
    _, mark, comment = line.partition("#")
    return f"  #{comment}" if mark else ""


def _toml(value: Value) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)
