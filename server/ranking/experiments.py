"""Which variant answers a request, and which ones are scored as shadows: sticky by cookie, in proportion to the shares.

A cookie is hashed with a salt, by default the model's name, to a point in [0, 1); the variants divide that interval in
their order in the spec. So a cookie keeps its variant while the shares are the same, changes it only if a border moves
past its point, and is assigned independently under every salt.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate, pairwise

from model_store.errors import ArtefactError, ExperimentError, ObjectiveError, SpecError
from model_store.features.objective import Objective
from model_store.keys import cure
from model_store.spec.spec import ModelSpec, spec_from_json
from model_store.versions.audit import By
from model_store.versions.experiments import Experiment
from model_store.versions.model_versions import ModelVersions
from server.ranking.teams import Teams

_POINTS = 1 << 64
_DIGEST_BYTES = 8


class Assignment:
    """An experiment over the variants of a model version. Immutable, so any number of threads may use it.

    `experiment` is the one in force, None for the shares of the spec; `asked` is the latest one in the store. They
    differ, and `problem` says why, while the latest does not fit the model: then the first of `earlier` that fits
    is in force. That depends on the version, `asked` and `earlier` alone: workers that were told the same agree,
    however late they started and whichever versions they have served.
    """

    def __init__(
        self,
        model: str,
        variants: Sequence[str],
        shares: Sequence[float],
        experiment: Experiment | None = None,
    ) -> None:
        """`variants` and `shares` (fractions that sum to 1) are those of the spec, in its order.

        Raises ExperimentError for an experiment that names a variant that the model lacks, or has no sound objective.
        """
        if experiment is not None:
            experiment.check_variants(variants)
            check_objective(experiment.objective)
        self.model = model
        self.variants = tuple(variants)
        self.spec_shares = tuple(shares)
        self.experiment = self.asked = experiment
        self.earlier: tuple[Experiment, ...] = ()
        self.problem = ""
        self.shares = _shares(experiment, self.variants, self.spec_shares)
        """The fraction of traffic of each variant, without pins."""
        self.objective = experiment.objective if experiment is not None else ""
        """The objective of a request that has none; empty for ctr."""
        self.explore = experiment.explore if experiment is not None else None
        """The exploration of a request that has none."""
        self.apprentice = experiment is not None and experiment.apprentice
        """Whether requests are answered in their own order."""
        self.has_options = bool(self.objective or self.explore or self.apprentice)
        live = experiment if experiment is not None and experiment.running else None
        bit_of = {name: bit for bit, name in enumerate(self.variants)}
        self.shadows = tuple(bit_of[name] for name in live.shadows) if live else ()
        """The bits of the variants that are scored beside the one that answers."""
        self._pins = {cookie: bit_of[name] for cookie, name in live.pins.items()} if live else {}
        self.teams: Teams | None = None
        """The variants that answer together each request of a cookie without a pin; None: `choose` names one."""
        if live is not None and live.interleave:
            bits = tuple(bit_of[name] for name in live.interleave)
            self.teams = Teams.of(live, bits, self.shadows)
        self._beside = tuple(tuple(s for s in self.shadows if s != bit) for bit in range(len(self.variants)))
        self._borders, self._last = _borders(self.shares)
        self.salt = (experiment.salt if experiment is not None else "") or model
        # The zero byte keeps a salt and a cookie apart from a longer salt and a shorter cookie.
        self._salted = blake2b(self.salt.encode() + b"\0", digest_size=_DIGEST_BYTES)

    def choose(self, cookie: str) -> int:
        """The variant's bit for `cookie`, or for the request's id if there is no cookie. O(log variants)."""
        if self._pins and (pinned := self._pins.get(cookie)) is not None:
            return pinned
        if not self._borders:
            return self._last
        point = self._salted.copy()
        point.update(cookie.encode("utf-8", "surrogatepass"))
        return bisect_right(self._borders, int.from_bytes(point.digest(), "big"))

    def is_pinned(self, cookie: str) -> bool:
        """Whether one variant alone answers this cookie, whatever else the experiment says. O(1)."""
        return cookie in self._pins

    def shadows_beside(self, variant: int) -> tuple[int, ...]:
        """The shadows of a request that `variant` answers, without `variant` itself. O(1)."""
        return self._beside[variant]

    def moves_to(self, other: Assignment) -> float:
        """The fraction of cookies that get another variant under `other`, without pins. In [0, 1]."""
        if self.teams is not None and other.teams is not None:
            return float(self.teams[2:5] != other.teams[2:5])
        if self.teams is not other.teams:
            return 1.0
        if self.salt != other.salt:
            # Points under another salt are independent of these.
            return 1.0 - sum(a * b for a, b in zip(self.shares, other.shares, strict=True))
        ours, theirs = (list(pairwise([0.0, *accumulate(each.shares)])) for each in (self, other))
        both = zip(ours, theirs, strict=True)
        return max(0.0, 1.0 - sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a, b in both))

    def asked_for(
        self, experiment: Experiment | None, earlier: Sequence[Experiment] | None = None
    ) -> Assignment:
        """The assignment once the store has `experiment`: by it if it fits, else as it is now, with a `problem`.

        earlier: what is in force where `experiment` does not fit; by default what is in force now.
        """
        if earlier is None:
            earlier = self.earlier if self.experiment is None else (self.experiment,)
        return self._settled(experiment, earlier, self.variants, self.spec_shares)

    def over(self, variants: Sequence[str], shares: Sequence[float]) -> Assignment:
        """The same for another version of the model, which `asked` may fit now, or no longer.

        O(1) where the variants and their shares are as before, as with each delta; else O(pins).
        """
        if self.variants == tuple(variants) and self.spec_shares == tuple(shares):
            same = copy(self)
            # The very tuple of the version (`tuple` copies no tuple): `ModelHandle.assigned` compares by identity.
            same.variants = tuple(variants)
            return same
        return self._settled(self.asked, self.earlier, variants, shares)

    def _settled(
        self,
        asked: Experiment | None,
        earlier: Sequence[Experiment],
        variants: Sequence[str],
        shares: Sequence[float],
    ) -> Assignment:
        """By `asked` if it fits, else by the first of `earlier` that fits, else by the spec's shares."""
        problem = ""
        # The spec's shares fit every model, so that the last attempt cannot fail.
        for candidate in (asked, *earlier, None):
            try:
                settled = Assignment(self.model, variants, shares, candidate)
            except ExperimentError as error:
                problem = problem or str(error)
            else:
                settled.asked, settled.earlier, settled.problem = asked, tuple(earlier), problem
                return settled
        raise AssertionError("no experiment fits every model")


def assigned_by_spec(versions: ModelVersions) -> Assignment | None:
    """The division of traffic by the active version's spec; None if no version is active."""
    spec = _active_spec(versions)
    if spec is None:
        return None
    shares = [variant.share for variant in spec.variants.values()]
    return Assignment(versions.model, tuple(spec.variants), shares)


def _active_spec(versions: ModelVersions) -> ModelSpec | None:
    active = versions.active()
    if active is None:
        return None
    try:
        return spec_from_json(versions.manifest(active).spec)
    except SpecError as error:
        raise ArtefactError(
            f"version {active} of {versions.model} has a spec that cannot be read: {error}; "
            f"{cure(versions.keys.active)} makes it again from its bytes"
        ) from None


def divided_since(versions: ModelVersions, record: Experiment | None) -> int:
    """The first whole minute since 1970 in which the traffic is divided as now: by the record, or by the spec."""
    if record is not None and (record.shares or not record.running):
        began = record.assigned or record.updated
    else:
        known = [versions.spec_since(), record.assigned if record is not None else None]
        began = max((each for each in known if each is not None), default=None)
    # One minute more: that in which the change was made has answers of both divisions.
    return int(began.timestamp()) // 60 + 1 if began is not None else 0


@dataclass(frozen=True)
class ChangedExperiment:
    """A change that was made: the record before and after, and its effect on the traffic, None without a version."""

    before: Experiment
    record: Experiment
    by_spec: Assignment | None

    @property
    def moves(self) -> float | None:
        """The share of cookies that get another variant; None without an active version."""
        if self.by_spec is None:
            return None
        return self.by_spec.asked_for(self.before).moves_to(self.by_spec.asked_for(self.record))


def change_experiment(
    versions: ModelVersions,
    edit: Callable[[Experiment], Experiment],
    *,
    by: By,
    revision: int | None = None,
) -> ChangedExperiment:
    """Edit the record if the result fits the active version. by: whose order, for the audit.

    revision: change only that one. Raises ExperimentError, ExperimentChanged, StoreError.
    """
    by_spec = assigned_by_spec(versions)
    previous: list[Experiment] = []

    def checked(before: Experiment) -> Experiment:
        # The edit is made again if another writer was faster: the last record that it saw is the one that was replaced.
        previous.append(before)
        after = edit(before)
        check_objective(after.objective)
        if by_spec is not None:
            Assignment(versions.model, by_spec.variants, by_spec.spec_shares, after)
            _check_new_items(versions, after)
        return after

    record = versions.experiments.change(checked, revision, by)
    return ChangedExperiment(previous[-1], record, by_spec)


def _check_new_items(versions: ModelVersions, experiment: Experiment) -> None:
    """Raise ExperimentError if new items are to have places and the active version cannot tell which are new."""
    spec = _active_spec(versions) if experiment.explore and experiment.explore.new_share else None
    if spec is not None:
        from server.ranking.evidence import (
            why_no_evidence,  # kernels, which `ftrie experiment` has no other use for
        )

        if why := why_no_evidence(spec):
            raise ExperimentError(why)


def check_objective(text: str) -> None:
    """Raise ExperimentError for an objective that cannot be compiled. An empty text is no objective."""
    if not text:
        return
    try:
        Objective.of(text)
    except ObjectiveError as error:
        raise ExperimentError(f"objective: {error}") from None


def _shares(
    experiment: Experiment | None, variants: Sequence[str], spec_shares: Sequence[float]
) -> tuple[float, ...]:
    if experiment is None:
        return tuple(spec_shares)
    if not experiment.running:
        return tuple(float(name == experiment.winner) for name in variants)
    if not experiment.shares:
        return tuple(spec_shares)
    return tuple(experiment.shares.get(name, 0.0) for name in variants)


def _borders(shares: Sequence[float]) -> tuple[list[int], int]:
    """Where each variant's part of the 2^64 points ends, and the last variant that has a part."""
    if not shares:
        return [], 0
    total = sum(shares)
    borders = [int(_POINTS * (share / total)) for share in accumulate(shares)]
    # The last variant with a share gets what rounding leaves over.
    last = max(index for index, share in enumerate(shares) if share > 0)
    return borders[:last], last
