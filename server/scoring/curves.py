"""Which calibration curve a request's predictions go through. Curves rise, so an order by score stays one by ctr."""

from __future__ import annotations

from collections.abc import Mapping

from model_store.calibration import Calibration, Curve
from model_store.features import FeaturePlan
from model_store.values import Value


class RequestCurves:
    """A model's curves, bound to its plan. Immutable; shared by all threads."""

    def __init__(self, calibration: Calibration | None, plan: FeaturePlan) -> None:
        by = calibration.by if calibration is not None else None
        self._field = plan.field(by) if by is not None else None
        self._calibration = calibration
        self._whole = [None if calibration is None else calibration.curve(name) for name in plan.variants]
        self._variants = plan.variants

    def choose(self, variant: int, fields: Mapping[str, Value]) -> Curve | None:
        """The curve for a variant and a request's fields; None where predictions stand as they are. O(1)."""
        if self._calibration is None or self._field is None:
            return self._whole[variant]
        value = fields.get(self._field.name)
        tokens = self._field.tokens(value) if value is not None else ()
        if not tokens:
            return self._whole[variant]
        return self._calibration.curve(self._variants[variant], tokens[0].text)
