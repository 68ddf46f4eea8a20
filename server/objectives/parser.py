"""From the tokens of an objective to a program for a stack. Recursive descent, bounded in every direction.

    objective := sum ("??" sum)*                 the default for a missing value; binds loosest
    sum       := product (("+" | "-") product)*
    product   := sign (("*" | "/") sign)*
    sign      := "-" sign | power
    power     := atom ["**" sign]                to the right, and tighter than a sign before it: -2 ** 2 is -4
    atom      := NUMBER | NAME | FIELD | NAME "(" objective ("," objective)* ")" | "(" objective ")"

Nothing here evaluates anything, and no text of a request is ever run as Python.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from server.errors import ObjectiveError
from server.objectives.operations import (
    ADDITIVE,
    FUNCTIONS,
    MULTIPLICATIVE,
    Function,
    otherwise,
    power,
)
from server.objectives.tokens import Token, tokens

Array = npt.NDArray[Any]

MAX_CHARACTERS = 1000
MAX_STEPS = 200
MAX_DEPTH = 30

PREDICTIONS = ("ctr", "score", "uncertainty")
"""Names that stand for the prediction. An item field of such a name is reached in `backquotes`."""

_AN_OPERAND = "a number, a name, a function, - or ("


class Push(NamedTuple):
    """Put a constant on the stack."""

    value: float


class Load(NamedTuple):
    """Put a column on the stack: a prediction, or else an item's field."""

    name: str
    is_prediction: bool


class Apply(NamedTuple):
    """Replace the topmost `arguments` of the stack by what the operation makes of them."""

    operation: Callable[..., Array]
    arguments: int


Step = Push | Load | Apply


def parse(text: str) -> tuple[Step, ...]:
    """The program of an objective. Raises ObjectiveError with the character's number. O(length)."""
    if len(text) > MAX_CHARACTERS:
        raise ObjectiveError(f"{len(text)} characters; the limit is {MAX_CHARACTERS}")
    parser = _Parser(text)
    parser.objective()
    if parser.next.kind != "end":
        raise parser.unexpected("an operator (+ - * / ** ??) or the end")
    return tuple(parser.steps)


class _Parser:
    """One token of look-ahead, and the steps so far."""

    def __init__(self, text: str) -> None:
        self._tokens = tokens(text)
        self.next: Token = next(self._tokens)
        self.steps: list[Step] = []
        self._depth = 0

    def unexpected(self, expected: str) -> ObjectiveError:
        return ObjectiveError(f"at character {self.next.at}: got {self.next}, expected {expected}")

    def objective(self) -> None:
        """Parse a whole expression."""
        self._deeper()
        self._left_to_right(self._sum, {"??": otherwise})
        self._depth -= 1

    def _sum(self) -> None:
        self._left_to_right(self._product, ADDITIVE)

    def _product(self) -> None:
        self._left_to_right(self._sign, MULTIPLICATIVE)

    def _left_to_right(self, operand: Callable[[], None], operators: dict[str, Callable[..., Array]]) -> None:
        operand()
        while self.next.kind == "operator" and self.next.text in operators:
            operation = operators[self._take().text]
            operand()
            self._add(Apply(operation, 2))

    def _sign(self) -> None:
        if not self._skip("-"):
            self._power()
            return
        self._deeper()
        self._sign()
        self._add(Apply(np.negative, 1))
        self._depth -= 1

    def _power(self) -> None:
        self._atom()
        if self._skip("**"):
            self._deeper()
            self._sign()
            self._add(Apply(power, 2))
            self._depth -= 1

    def _atom(self) -> None:
        token = self.next
        if token.kind == "number":
            self._add(Push(self._number()))
        elif token.kind == "field":
            self._add(Load(self._take().text, False))
        elif token.kind == "name":
            self._take()
            if self.next.text == "(" and self.next.kind == "operator":
                self._call(token)
            else:
                self._add(Load(token.text, token.text in PREDICTIONS))
        elif self._skip("("):
            self.objective()
            self._expect(")", "an operator or )")
        else:
            raise self.unexpected(_AN_OPERAND)

    def _number(self) -> float:
        value = float(self.next.text)
        if not math.isfinite(value):
            raise self.unexpected("a number that a double can hold")
        self._take()
        return value

    def _call(self, name: Token) -> None:
        function = FUNCTIONS.get(name.text)
        if function is None:
            raise ObjectiveError(
                f"at character {name.at}: got {name}, expected one of the functions {', '.join(FUNCTIONS)}"
            )
        self._expect("(", "(")
        count = 1
        self.objective()
        while count < function.most and self._skip(","):
            self.objective()
            count += 1
        if count < function.least:
            raise self.unexpected(f"a comma: {name.text} takes {_counted(function)}")
        self._expect(")", f"an operator or ): {name.text} takes {_counted(function)}")
        self._apply(function, count)

    def _apply(self, function: Function, count: int) -> None:
        if function.least == function.most:
            self._add(Apply(function.apply, count))
            return
        for _ in range(count - 1):  # min(a, b, c) is min(a, min(b, c))
            self._add(Apply(function.apply, 2))

    def _add(self, step: Step) -> None:
        if len(self.steps) == MAX_STEPS:
            raise ObjectiveError(
                f"at character {self.next.at}: more than {MAX_STEPS} numbers, names and operations"
            )
        self.steps.append(step)

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ObjectiveError(f"at character {self.next.at}: nested more than {MAX_DEPTH} deep")

    def _take(self) -> Token:
        taken = self.next
        self.next = next(self._tokens)
        return taken

    def _skip(self, operator: str) -> bool:
        if self.next.kind != "operator" or self.next.text != operator:
            return False
        self._take()
        return True

    def _expect(self, operator: str, expected: str) -> None:
        if not self._skip(operator):
            raise self.unexpected(expected)


def _counted(function: Function) -> str:
    if function.least == function.most:
        return f"{function.least} argument{'s' if function.least > 1 else ''}"
    return f"{function.least} to {function.most} arguments"
