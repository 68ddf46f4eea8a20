"""The whole search of `ftrie tune`: choose parameters, then crosses, then parameters again; judge the choice once.

In: a spec, candidates, a log. The last part of the log by time is held out: it chooses no candidate. At the end the
best spec and the spec as given are judged on that part twice: frozen, as models that `ftrie train` made of the rows
before, and learning on, as `ftrie trainer` does. They may disagree: a fast learner follows what a frozen one must know.
So candidates are ranked for one of the two uses.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from model_store.errors import InputError
from model_store.spec.spec import ModelSpec
from trainer.examples.open_log import open_log
from trainer.formats.batch import STDIN
from trainer.formats.rejects import MOST_REJECTED, no_usable_row
from trainer.learn.metrics.requests import RequestMeasure
from trainer.tune.candidates import Candidate, as_variants, groups_of, learns_alone
from trainer.tune.crosses import Feature, Proposal, propose, with_crosses
from trainer.tune.extent import Extent, HeldOut, measure
from trainer.tune.halving import (
    ONCE,
    Comparison,
    Tuning,
    compared_from,
    compared_variant,
    predicted_ahead,
    tune,
)
from trainer.tune.paired import Difference
from trainer.tune.passes import Outcome, Repeated


@dataclass(frozen=True)
class Options:
    """What is searched beside the grid. crosses: propose crosses, of at most `keys` keys; held_out: the last part."""

    comparison: Comparison
    held_out: HeldOut = field(default_factory=HeldOut)
    crosses: bool = False
    keys: int | None = None


@dataclass(frozen=True)
class Judged:
    """The best spec on the last part of the log, beside the spec as given; difference: best minus given.

    frozen: both learned the rows before it alone; else they learned on, each row after it was predicted.
    """

    frozen: bool
    rows: int
    best: Outcome
    given: Outcome
    difference: Difference

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
class Found:
    """The result of a search. tuning: of the last search for parameters, with the crosses if any are proposed.

    by, frozen: what candidates were ranked by, see `Comparison`; judged: frozen, then learning on; empty if no part is
    held out.
    """

    by: str
    frozen: bool
    tuning: Tuning
    extent: Extent | None
    crosses: Proposal | None
    judged: tuple[Judged, ...]
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

    @property
    def _rows(self) -> int:
        return self.extent.rows if self.extent is not None else self.tuning.ranking[0].rows

    def warnings(self) -> Iterator[str]:
        """Warnings for the user."""
        tuning, share = self.tuning, self.rejected / max(self.rejected + self._rows, 1)
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


def search(spec: ModelSpec, candidates: Sequence[Candidate], log: Repeated, options: Options) -> Found:
    """Search, and judge the best once. Raises InputError if no row can be learned; see `tune` and `propose`."""
    began, extent, comparison = time.perf_counter(), None, options.comparison
    if STDIN in log.log.inputs and (options.crosses or options.held_out != HeldOut()):
        raise InputError(ONCE)
    if options.held_out != HeldOut():
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
    judged = list[Judged]()
    if extent is not None and extent.split is not None:
        for frozen in (True, False):
            best = tuning.ranking[0].parameters
            each, more = _judged(spec, better, best, log, comparison, extent.split, frozen)
            judged.append(each)
            passes += more
    return Found(
        comparison.by,
        comparison.frozen,
        tuning,
        extent,
        proposal,
        tuple(judged),
        passes,
        time.perf_counter() - began,
    )


def models_of(spec: ModelSpec, candidates: Sequence[Candidate], options: Options) -> Iterator[ModelSpec]:
    """The specs whose kernels a search needs."""
    variant = compared_variant(spec, options.comparison.variant)
    for group in groups_of(spec, candidates, range(len(candidates)), variant):
        yield group.spec
    for several in (1, 2) if options.crosses or learns_alone(spec) else ():
        yield as_variants(spec, [candidates[0]] * several, range(several), variant).spec


def _proposal(
    spec: ModelSpec, tuning: Tuning, log: Repeated, comparison: Comparison, budget: int | None
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
        compare_from=compared_from(comparison, rows),
        ahead=predicted_ahead(comparison, rows),
    )


def _judged(
    spec: ModelSpec,
    better: ModelSpec,
    best: Candidate,
    log: Repeated,
    comparison: Comparison,
    split: int,
    frozen: bool,
) -> tuple[Judged, int]:
    """Learn the log by the best spec and by the spec as given; compare them from row `split` on."""
    variant, measure = compared_variant(spec, comparison.variant), RequestMeasure.parse(comparison.by)
    if better is spec:
        groups = [groups_of(spec, [best, {}], (0, 1), variant)]
    else:
        groups = [groups_of(better, [best], (0,), variant), groups_of(spec, [best, {}], (1,), variant)]
    passes = [log.learn(each, compare_from=split, measure=measure, frozen=frozen) for each in groups]
    outcomes = {index: outcome for each in passes for index, outcome in each.outcomes.items()}
    difference = Difference.of(outcomes[0].sums, outcomes[1].sums, passes[0].weights)
    return Judged(frozen, passes[0].judged_rows, outcomes[0], outcomes[1], difference), len(passes)
