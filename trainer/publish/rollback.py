"""Automatic rollback: when the online calibration of the served versions leaves the band of `[guard]`.

One version at a time is the candidate. Its evidence is the answers of that version and of all later ones: with a
version a second no single one would ever get enough clicks. Once the evidence has `online_clicks` expected clicks,
either the candidate is good, and the version active now is the next candidate; or all versions from the candidate on
are refused, and servers go back to the last good one. That one is then watched until another version is
served.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from model_store.errors import ArtefactError, StaleEpoch, VersionNotFound
from model_store.spec.sections import GuardSection
from model_store.versions.guard_record import GuardRecord
from model_store.versions.model_versions import ModelVersions
from trainer.publish.guard import crossed_bound, shown_calibration


@dataclass(frozen=True)
class Evidence:
    """Expected and observed clicks of a version's answers, of requests whose join window has closed.

    Clicks are the join's positives: conversions, if those are learned.
    """

    expected: float = 0.0
    clicks: float = 0.0

    def __add__(self, other: Evidence) -> Evidence:
        return Evidence(self.expected + other.expected, self.clicks + other.clicks)

    def __sub__(self, other: Evidence) -> Evidence:
        return Evidence(self.expected - other.expected, self.clicks - other.clicks)


EvidenceSince = Callable[[int], Mapping[int, Evidence]]
"""The evidence by version of answers after this time, microseconds since 1970."""


@dataclass(frozen=True)
class Rollback:
    """A rollback from one version to another."""

    origin: int
    target: int
    reason: str


class RollbackWatch:
    """Watches the served versions of one model; `rolled_back` counts this process's rollbacks. For one thread."""

    def __init__(
        self, bounds: GuardSection | None, versions: ModelVersions, on_warning: Callable[[str], None]
    ) -> None:
        """bounds: None to watch nothing."""
        self.rolled_back = 0
        self._bounds = bounds
        self._versions = versions
        self._warn = on_warning
        self._before: Mapping[int, Evidence] = {}  # the evidence when the candidate became one
        self._since_us = 0  # the record's when `_before` was taken
        self._stuck = 0  # the active version for which `_warn_stuck` has warned

    def check(self, evidence_since: EvidenceSince, epoch: int) -> Rollback | None:
        """Judge the evidence so far, by version; roll back if it is bad. To be called every few seconds.

        evidence_since: `OnlineAccumulator.evidence`. epoch: the trainer's; a writer that has activated a version
        since is not overruled. Raises StoreUnavailable.
        """
        bounds = self._bounds
        if bounds is None or bounds.online_calibration == "off":
            return None
        active = self._versions.known_active()
        if active is None:
            return None
        record, now_us = self._versions.guard.dated()
        evidence = evidence_since(record.since_us)
        if record.since_us != self._since_us:
            self._since_us, self._before = record.since_us, {}
        if not record.candidate or active < record.candidate:  # the first one, or an operator went back
            self._begin(active, record.good, evidence)
            return None
        if record.candidate == record.target and active > record.origin:  # the first one after a rollback
            # Else the target would be refused for the answers of this one, and nothing be left to go back to.
            self._begin(active, record.target, evidence)
            return None
        pooled = self._pooled(evidence, record)
        if pooled.expected < bounds.online_clicks:
            return None
        crossed = crossed_bound(bounds.online_calibration, pooled.expected, pooled.expected, pooled.clicks)
        if crossed is None:
            self._begin(active, record.candidate, evidence)
            return None
        if record.when_us and now_us < record.when_us + bounds.cooldown_s * 1_000_000:
            return None
        band = bounds.online_calibration
        reason = (
            f"online calibration since version {record.candidate}: got "
            f"{shown_calibration(pooled.expected, pooled.clicks)}, {crossed[0]} the band from {band[0]:g} to "
            f"{band[1]:g}"
        )
        return self._roll_back(active, record, reason, evidence, epoch)

    def _pooled(self, evidence: Mapping[int, Evidence], record: GuardRecord) -> Evidence:
        """The evidence of the candidate and of all later versions, except those that were rolled back."""
        pooled = Evidence()
        for version, known in evidence.items():
            gone = record.target < version <= record.origin
            if version >= record.candidate and not gone:
                pooled += known - self._before.get(version, Evidence())
        return pooled

    def _begin(self, candidate: int, good: int, evidence: Mapping[int, Evidence]) -> None:
        """Watch `candidate` from now on."""
        self._versions.guard.watch(candidate, good)
        self._before = dict(evidence)

    def _roll_back(
        self, active: int, record: GuardRecord, reason: str, evidence: Mapping[int, Evidence], epoch: int
    ) -> Rollback | None:
        versions = self._versions
        infos = versions.versions()
        bad = [info.version for info in infos if info.version >= record.candidate]
        is_sound = {info.version: not info.refused for info in infos}
        target = record.good if 0 < record.good < record.candidate and is_sound.get(record.good) else None
        target = target or versions.served_before(record.candidate)
        if target is None:
            self._warn_stuck(active, reason, "there is no earlier version to roll back to")
            return None
        try:
            versions.go_back(target, epoch=epoch)
        except (ArtefactError, StaleEpoch, VersionNotFound) as error:
            self._warn_stuck(active, reason, str(error))
            return None
        # Marked afterwards: after a crash in between the evidence remains, and the next call repeats both.
        versions.guard.refuse(bad, f"rolled back: {reason}")
        versions.guard.note_rollback(max([active, *bad]), target, reason)
        self._before = dict(evidence)
        self.rolled_back += 1
        self._warn(
            f"ROLLED BACK from version {active} to {target}: {reason}. Look at what is learned and logged; to "
            f"overrule: ftrie store activate {versions.model} {active} --force"
        )
        return Rollback(active, target, reason)

    def _warn_stuck(self, active: int, reason: str, why: str) -> None:
        """Warn, once for each active version, why it stays active."""
        if self._stuck != active:
            self._stuck = active
            self._warn(
                f"VERSION {active} SHOULD BE ROLLED BACK AND IS NOT: {reason}; {why}. Activate a sound one manually: "
                f"ftrie store versions {self._versions.model}"
            )
