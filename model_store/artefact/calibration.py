"""Calibration curves, which map a variant's predictions to observed click rates.

The trainer fits them (`trainer.learn.calibration`), an artefact stores them, the server and `ftrie evaluate` apply
them. Every curve is increasing, so the order of candidates does not change. docs/evaluate.md describes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from model_store.errors import ArtefactError

Array = npt.NDArray[Any]
CurveKind = Literal["power", "isotonic"]

MAX_KNOTS = 1024
# Neither 0 nor 1, whose log-loss is infinite where they are wrong.
SMALLEST_CTR = 1e-12
LARGEST_CTR = 1.0 - 1e-6  # gamma p^kappa may exceed 1


@dataclass(frozen=True)
class PowerCurve:
    """tau(p) = gamma p^kappa, both > 0 (McMahan et al., KDD 2013, section 7)."""

    gamma: float
    kappa: float

    def apply(self, p: Array) -> Array:
        """tau of every p, float64, within [SMALLEST_CTR, LARGEST_CTR]."""
        return np.clip(self.gamma * p**self.kappa, SMALLEST_CTR, LARGEST_CTR)


@dataclass(frozen=True)
class IsotonicCurve:
    """Linear interpolation from (0, 0) through the knots (p, ctr) to (1, 1); both ascend strictly, within (0, 1)."""

    knots: tuple[tuple[float, float], ...]

    def apply(self, p: Array) -> Array:
        """tau of every p, float64, within [SMALLEST_CTR, LARGEST_CTR]."""
        return np.clip(np.interp(p, *self._line), SMALLEST_CTR, LARGEST_CTR)

    @cached_property
    def _line(self) -> tuple[Array, Array]:
        points = np.array([(0.0, 0.0), *self.knots, (1.0, 1.0)])
        # Contiguous: np.interp copies a strided column at each call.
        return np.ascontiguousarray(points[:, 0]), np.ascontiguousarray(points[:, 1])


Curve = PowerCurve | IsotonicCurve


@dataclass(frozen=True)
class VariantCurves:
    """One variant's curves: `whole` for all requests, `values` for requests with these values of the slicing field.

    Too few examples give None, or no entry in `values`: then `whole` applies, else the prediction stays unchanged.
    A value is its token text in a key (`age=25`: `25`).
    """

    whole: Curve | None = None
    values: Mapping[bytes, Curve] = field(default_factory=dict)


@dataclass(frozen=True)
class Calibration:
    """All variants' curves, of one kind. `by` is the field whose values have their own curves, or None."""

    kind: CurveKind
    by: str | None
    variants: Mapping[str, VariantCurves]

    def curve(self, variant: str, value: bytes | None = None) -> Curve | None:
        """The curve for a variant and the slicing field's value; None: predictions stay unchanged."""
        curves = self.variants.get(variant)
        if curves is None:
            return None
        found = curves.values.get(value) if value is not None else None
        return curves.whole if found is None else found

    def of_variants(self, names: Collection[str]) -> Calibration:
        """The curves of these variants only."""
        return replace(self, variants={name: c for name, c in self.variants.items() if name in names})

    def to_json(self) -> str:
        """Canonical JSON: the same curves give the same text. Bytes of values that are not UTF-8 become surrogates."""
        document = {
            "kind": self.kind,
            "by": self.by,
            "variants": {
                name: {
                    "whole": None if curves.whole is None else _numbers(curves.whole),
                    "values": {
                        value.decode("utf-8", "surrogateescape"): _numbers(curve)
                        # Sorted: the same curves give the same text, in whatever order they were fitted.
                        for value, curve in sorted(curves.values.items())
                    },
                }
                for name, curves in self.variants.items()
            },
        }
        return json.dumps(document, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Calibration:
        """Read `to_json`'s text. Raises ArtefactError; `check_fits` checks variants and fields."""
        try:
            document = json.loads(text)
            kind, by = document["kind"], document["by"]
            if kind not in _READERS:
                raise ValueError(f"kind is {kind!r}, expected one of {', '.join(_READERS)}")
            if by is not None and not isinstance(by, str):
                raise ValueError(f"by is {by!r}, expected a field's name or null")
            read = _READERS[kind]
            variants = {
                name: VariantCurves(
                    None if curves["whole"] is None else read(curves["whole"]),
                    {
                        v.encode("utf-8", "surrogateescape"): read(each)
                        for v, each in curves["values"].items()
                    },
                )
                for name, curves in document["variants"].items()
            }
            if by is None and any(curves.values for curves in variants.values()):
                raise ValueError("got curves of values, but no field")
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ArtefactError(f"the calibration cannot be read: {error!r}") from None
        return cls(cast(CurveKind, kind), by, variants)


def check_fits(calibration: Calibration, variants: Iterable[str], request_fields: Iterable[str]) -> None:
    """Raise ArtefactError unless the curves' variants and slicing field are among these."""
    unknown = sorted(calibration.variants.keys() - set(variants))
    if unknown:
        raise ArtefactError(f"the calibration has curves of {unknown}, which are not variants of the spec")
    if calibration.by is not None and calibration.by not in set(request_fields):
        raise ArtefactError(
            f"the calibration slices by {calibration.by!r}, which is not a request field of the spec"
        )


def _numbers(curve: Curve) -> list[Any]:
    if isinstance(curve, PowerCurve):
        return [curve.gamma, curve.kappa]
    return [list(knot) for knot in curve.knots]


def _power(numbers: Any) -> Curve:
    gamma, kappa = map(float, numbers)
    if not (0.0 < gamma < np.inf and 0.0 < kappa < np.inf):
        raise ValueError(f"a power curve has gamma {gamma} and kappa {kappa}; expected two numbers > 0")
    return PowerCurve(gamma, kappa)


def _isotonic(numbers: Any) -> Curve:
    knots = tuple((float(p), float(ctr)) for p, ctr in numbers)
    if not 1 <= len(knots) <= MAX_KNOTS:
        raise ValueError(f"an isotonic curve has {len(knots)} knots; expected 1 to {MAX_KNOTS}")
    line = ((0.0, 0.0), *knots, (1.0, 1.0))
    # Strictly: a flat part would give candidates of different scores the same rate, and lose their order.
    if not all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(line)):
        raise ValueError("the knots of an isotonic curve must ascend strictly, within (0, 1)")
    return IsotonicCurve(knots)


_READERS: dict[str, Callable[[Any], Curve]] = {"power": _power, "isotonic": _isotonic}
