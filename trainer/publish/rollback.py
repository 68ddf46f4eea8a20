"""Going back on its own account: when what users do with the served versions leaves the band of `[guard]`.

One version at a time is the candidate. What was answered by it and by all that came after it is its evidence; once that
has `online_clicks` expected clicks, the candidate is either found good, and the version active then is the next
candidate, or all from the candidate on are refused and servers go back to the last one that was found good. With a
version a second no single one would ever have clicks enough.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from model_store.errors import ArtefactError, StaleEpoch, VersionNotFound
from model_store.spec.sections import GuardSection
from model_store.versions.guard_record import GuardRecord
from model_store.versions.model_versions import ModelVersions
from trainer.publish.guard import leaves, shown_calibration


@dataclass(frozen=True)
class Evidence:
    """What a version's answers came to, of requests whose time for clicks is over: expected clicks, clicks."""

    expected: float = 0.0
    clicks: float = 0.0

    def __add__(self, other: Evidence) -> Evidence:
        return Evidence(self.expected + other.expected, self.clicks + other.clicks)

    def __sub__(self, other: Evidence) -> Evidence:
        return Evidence(self.expected - other.expected, self.clicks - other.clicks)


@dataclass(frozen=True)
class WentBack:
    """A rollback that has happened."""

    origin: int
    target: int
    reason: str


class Watch:
    """Watches what is served of one model. For one thread. `rolled_back` counts this process's rollbacks."""

    def __init__(
        self, bounds: GuardSection | None, versions: ModelVersions, on_warning: Callable[[str], None]
    ) -> None:
        """`bounds`: None to watch nothing."""
        self.rolled_back = 0
        self._bounds = bounds
        self._versions = versions
        self._warn = on_warning
        self._seen: Mapping[int, Evidence] = {}
        """What was known when the candidate became one."""
        self._stuck = 0

    def after(self, evidence: Mapping[int, Evidence], epoch: int) -> WentBack | None:
        """Judge what is known by now, version by version; go back if it is bad. To be called every few seconds.

        `epoch`: the trainer's; whoever has activated a version since is not overruled. Raises StoreUnavailable.
        """
        bounds = self._bounds
        if bounds is None or bounds.online_calibration == "off":
            return None
        active = self._versions.known_active()
        if active is None:
            return None
        record = self._versions.guard.record()
        if not record.candidate or active < record.candidate:  # the first one, or an operator went back
            self._begin(active, record.good, evidence)
            return None
        pooled = self._pooled(evidence, record)
        if pooled.expected < bounds.online_clicks:
            return None
        left = leaves(bounds.online_calibration, pooled.expected, pooled.expected, pooled.clicks)
        if left is None:
            self._begin(active, record.candidate, evidence)
            return None
        if self._is_cooling(record, bounds):
            return None
        band = bounds.online_calibration
        reason = (
            f"online calibration since version {record.candidate}: got "
            f"{shown_calibration(pooled.expected, pooled.clicks)}, {left[0]} the band from {band[0]:g} to {band[1]:g}"
        )
        return self._go_back(active, record, reason, evidence, epoch)

    def _pooled(self, evidence: Mapping[int, Evidence], record: GuardRecord) -> Evidence:
        """All of the candidate and of what came after it, but for versions that were rolled back."""
        pooled = Evidence()
        for version, known in evidence.items():
            gone = record.target < version <= record.origin
            if version >= record.candidate and not gone:
                pooled += known - self._seen.get(version, Evidence())
        return pooled

    def _begin(self, candidate: int, good: int, evidence: Mapping[int, Evidence]) -> None:
        """Watch `candidate` from here on."""
        self._versions.guard.watch(candidate, good)
        self._seen = dict(evidence)

    def _is_cooling(self, record: GuardRecord, bounds: GuardSection) -> bool:
        now_us = self._versions.guard.now_us()
        return bool(record.when_us) and now_us < record.when_us + bounds.cooldown_s * 1_000_000

    def _go_back(
        self, active: int, record: GuardRecord, reason: str, evidence: Mapping[int, Evidence], epoch: int
    ) -> WentBack | None:
        versions = self._versions
        infos = versions.versions()
        bad = [info.version for info in infos if info.version >= record.candidate]
        is_sound = {info.version: not info.refused for info in infos}
        target = record.good if 0 < record.good < record.candidate and is_sound.get(record.good) else None
        target = target or versions.served_before(record.candidate)
        if target is None:
            self._tell_stuck(active, reason, "there is no earlier version to go to")
            return None
        try:
            versions.go_back(target, epoch=epoch)
        except (ArtefactError, StaleEpoch, VersionNotFound) as error:
            self._tell_stuck(active, reason, str(error))
            return None
        # Marked after it: a crash in between leaves the evidence, and the next call goes back and marks again.
        versions.guard.refuse(bad, f"rolled back: {reason}")
        versions.guard.note_rollback(max([active, *bad]), target, reason)
        self._seen = dict(evidence)
        self.rolled_back += 1
        self._warn(
            f"ROLLED BACK from version {active} to {target}: {reason}. Look at what is learned and logged; to "
            f"overrule: ftrie store activate {versions.model} {active} --force"
        )
        return WentBack(active, target, reason)

    def _tell_stuck(self, active: int, reason: str, why: str) -> None:
        """Say, once for each active version, why it stays."""
        if self._stuck != active:
            self._stuck = active
            self._warn(
                f"VERSION {active} SHOULD BE ROLLED BACK AND IS NOT: {reason}; {why}. Activate a sound one by hand: "
                f"ftrie store versions {self._versions.model}"
            )
