"""Objective: one compiled expression over predictions and item fields. It computes; it orders and reads nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from server.objectives.parser import Apply, Load, Push, Step, parse

Array = npt.NDArray[Any]

REMEMBERED_OBJECTIVES = 256


@dataclass(frozen=True)
class Objective:
    """What to order candidates by. Immutable; shared by all threads. Two of the same text are equal."""

    text: str
    program: tuple[Step, ...]

    @classmethod
    def of(cls, text: str) -> Objective:
        """Compile `text`, or find it compiled. Raises ObjectiveError with the number of the character at fault."""
        return _compiled(text)

    @property
    def fields(self) -> tuple[str, ...]:
        """The item fields it names, each once, in the order of the text."""
        loads = (step for step in self.program if isinstance(step, Load) and not step.is_prediction)
        return tuple(dict.fromkeys(step.name for step in loads))

    @property
    def uses_uncertainty(self) -> bool:
        """Whether it names the prediction's uncertainty."""
        return Load("uncertainty", True) in self.program

    def evaluate(
        self, score: Array, ctr: Array, uncertainty: Array | None, field: Callable[[str], Array]
    ) -> Array:
        """Its value for every candidate, float64, in the shape of `score`; NaN where a value is missing.

        score, ctr: float64[..., candidates]; uncertainty and what `field` gives for a name: float64[candidates].
        Never raises for any number: what cannot be computed is NaN or infinite. O(steps · candidates).
        """
        predictions = {"score": score, "ctr": ctr, "uncertainty": uncertainty}
        stack: list[Any] = []
        with np.errstate(all="ignore"):
            for step in self.program:
                if isinstance(step, Push):
                    stack.append(np.float64(step.value))
                elif isinstance(step, Load):
                    stack.append(predictions[step.name] if step.is_prediction else field(step.name))
                else:
                    _apply(step, stack)
        return np.broadcast_to(np.asarray(stack[0], np.float64), score.shape)


@lru_cache(REMEMBERED_OBJECTIVES)
def _compiled(text: str) -> Objective:
    return Objective(text, parse(text))


def _apply(step: Apply, stack: list[Any]) -> None:
    arguments = stack[-step.arguments :]
    del stack[-step.arguments :]
    stack.append(step.operation(*arguments))
