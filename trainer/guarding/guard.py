"""The guard of a model's publications: judges each version against the one that is served now.

What is served, and whether a rollback was a moment ago, is asked of the store each time, so that operators, other runs
and restarts are all seen. Without `[guard]` everything may be served, and nothing is asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from model_store.errors import ArtefactError, StoreError, VersionRefused
from model_store.guard_figures import RecentFigures
from model_store.guard_section import GuardSection
from model_store.model_versions import ModelVersions
from trainer.guarding.judging import Verdict, judge
from trainer.model import LearningModel

AGAIN_S = 60.0
"""What goes on being refused is told of this often."""


class Guard:
    """Judges the versions of one model. For one thread. `refused` and `held` count them."""

    def __init__(self, versions: ModelVersions, on_warning: Callable[[str], None]) -> None:
        self.refused = 0
        self.held = 0
        self._versions = versions
        self._warn = on_warning
        self._in_a_row = 0
        self._told_s = 0.0

    def judge(self, model: LearningModel, keys: int) -> Verdict:
        """Judge what the model would publish now, `keys` keys. Raises StoreUnavailable."""
        bounds, recent = model.spec.guard, model.recent
        if bounds is None or recent is None:
            return Verdict()
        verdict = judge(bounds, recent.figures(keys), self._served())
        return verdict if verdict.reasons else replace(verdict, held=self._cooling(bounds))

    def tell(self, version: int, verdict: Verdict) -> None:
        """Count and tell what became of a version that is published now. Raises StoreUnavailable."""
        if verdict.reasons:
            self._tell_refused(version, verdict)
        elif verdict.held:
            self.held += 1
        elif self._in_a_row:
            self._warn(
                f"version {version} is within its bounds again, after {self._in_a_row:,} that were refused"
            )
            self._in_a_row = 0

    def check(self, version: int, verdict: Verdict) -> None:
        """Raise VersionRefused if the version that ends a run is refused."""
        if verdict.reasons:
            raise VersionRefused(
                f"version {version} is published and stays inactive: {verdict.refused}; to serve it all the same: "
                f"ftrie store activate {self._versions.model} {version} --force"
            )

    def _tell_refused(self, version: int, verdict: Verdict) -> None:
        self.refused += 1
        self._in_a_row += 1
        now_s = time.monotonic()
        if self._in_a_row == 1 or now_s - self._told_s >= AGAIN_S:
            self._told_s = now_s
            name = self._versions.model
            self._warn(
                f"VERSION {version} IS REFUSED ({self._in_a_row:,} in a row): {verdict.refused}. Servers stay with "
                f"the active version. Look at what is being learned (ftrie store inspect {name} {version}); to serve "
                f"it all the same: ftrie store activate {name} {version} --force"
            )
        self._versions.refusals.count()

    def _served(self) -> RecentFigures | None:
        """The figures of the active version; None where none is active, or it has none."""
        active = self._versions.known_active()
        if active is None:
            return None
        try:
            text = self._versions.manifest(active).recent
            return RecentFigures.from_json(text) if text else None
        except (ArtefactError, StoreError):
            # Collected, or damaged: what it was like is not known, and absolute bounds still hold.
            return None

    def _cooling(self, bounds: GuardSection) -> str:
        """Why nothing is activated for now; empty if something may be."""
        refusals = self._versions.refusals
        last = refusals.record()
        left_s = last.when_us / 1e6 + bounds.cooldown_s - refusals.now_us() / 1e6 if last.when_us else 0.0
        if left_s <= 0.0:
            return ""
        return (
            f"version {last.origin} was rolled back, and for {left_s:.0f} s more nothing is activated "
            f"([guard] cooldown = {bounds.cooldown!r})"
        )
