"""Which columns of a log hold the chance with which a row was shown, and where it was shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from model_store.errors import SpecError
from trainer.events.wanted import POSITION, PROPENSITY

PROPENSITIES = ("propensity_score", "propensity", "pscore", PROPENSITY)
POSITIONS = ("position", POSITION)


@dataclass(frozen=True)
class Layout:
    """The columns' names; None where the log has none."""

    propensity: str | None = None
    position: str | None = None

    @classmethod
    def of(cls, columns: Sequence[str], propensity: str | None, position: str | None) -> Layout:
        """Those that were named, else the first usual name that the log has.

        Raises SpecError for a named column that is not there.
        """
        for flag, name in (("--propensity", propensity), ("--position", position)):
            if name is not None and name not in columns:
                raise SpecError(f"{flag}: no column {name!r} in the log; it has: {', '.join(columns)}")
        return cls(
            propensity or next((name for name in PROPENSITIES if name in columns), None),
            position or next((name for name in POSITIONS if name in columns), None),
        )

    @property
    def wanted(self) -> tuple[str, ...]:
        """Those there are."""
        return tuple(name for name in (self.propensity, self.position) if name is not None)
