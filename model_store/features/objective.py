"""Objective: an expression over predictions and item fields, compiled to a program for a stack.

    objective := sum ("??" sum)*                      the default for a missing value; binds loosest
    sum       := product (("+" | "-") product)*
    product   := sign (("*" | "/") sign)*
    sign      := "-" sign | power
    power     := atom ["**" sign]                     to the right, and tighter than a sign before it: -2 ** 2 is -4
    atom      := NUMBER | NAME | `FIELD` | MODEL.ctr | MODEL.score | NAME "(" objective ("," objective)* ")"
               | "(" objective ")"

Parsing is recursive descent with bounds on length, steps and depth. No text of a request is ever run as Python.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from model_store.errors import ObjectiveError, listed

Array = npt.NDArray[Any]

MAX_CHARACTERS = 1000
MAX_STEPS = 200
MAX_DEPTH = 30
MAX_FUNCTION_ARGUMENTS = 8
LARGEST = 1e300
"""A larger result counts as infinite, so that candidates without a result can be ordered below all results."""
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

    @cached_property
    def models(self) -> tuple[str, ...]:
        """The other models it names, each once, in the order of the text."""
        loads = (step for step in self.program if isinstance(step, Load) and step.model)
        return tuple(dict.fromkeys(step.model for step in loads))

    @property
    def uses_uncertainty(self) -> bool:
        """Whether it names the prediction's uncertainty."""
        return Load("uncertainty", True) in self.program

    def evaluate(
        self,
        score: Array,
        ctr: Array,
        uncertainty: Array | None,
        field: Callable[[str], Array],
        others: Mapping[str, Any] | None = None,
    ) -> Array:
        """Its value for every candidate, float64, in the shape of `score`; NaN where a value is missing.

        score, ctr: float64[..., candidates]; uncertainty and what `field` gives for a name: float64[candidates], and so
        are ctr and score of `others`, the predictions of each of `models`.
        Never raises for any number: what cannot be computed is NaN or infinite. O(steps · candidates).
        """
        predictions = {"score": score, "ctr": ctr, "uncertainty": uncertainty}
        stack: list[Any] = []
        with np.errstate(all="ignore"):
            for step in self.program:
                if isinstance(step, Push):
                    # Not Python's float, which raises for 1 / 0 and 1e300 ** 2; numpy's gives infinity or NaN.
                    stack.append(np.float64(step.value))
                elif isinstance(step, Load):
                    if step.model:
                        assert others is not None
                        stack.append(getattr(others[step.model], step.name))
                    else:
                        stack.append(predictions[step.name] if step.is_prediction else field(step.name))
                else:
                    _apply(step, stack)
        # An objective without scores or fields is one number.
        return np.broadcast_to(np.asarray(stack[0], np.float64), score.shape)


def order_key(value: Array, latent: Array) -> Array:
    """The key to order by, descending: `value` where it is finite; all others below it, ordered by `latent`."""
    with np.errstate(all="ignore"):
        good = np.abs(value) <= LARGEST
        within = np.sign(latent) * (1.0 - 1.0 / (1.0 + np.abs(latent)))  # rises with it, in (-1, 1)
        # From -3 to -1 times LARGEST: finite, and below every value that counts.
        return np.where(good, value, LARGEST * (within - 2.0))


@lru_cache(REMEMBERED_OBJECTIVES)
def _compiled(text: str) -> Objective:
    return Objective(text, parse(text))


def _apply(step: Apply, stack: list[Any]) -> None:
    arguments = stack[-step.arguments :]
    del stack[-step.arguments :]
    stack.append(step.operation(*arguments))


# -- operators and functions, over float64 arrays. NaN means "no value" and stays NaN, except through `??`.


class Function(NamedTuple):
    """A function, and how many arguments it takes. One with a variable number is applied to two at a time."""

    apply: Callable[..., Array]
    least: int
    most: int


def power(base: Array, exponent: Array) -> Array:
    """base ** exponent; NaN where either is, although IEEE says that NaN ** 0 is 1."""
    return np.where(np.isnan(base) | np.isnan(exponent), np.nan, np.power(base, exponent))


def otherwise(value: Array, default: Array) -> Array:
    """`value`, and `default` where there is none."""
    return np.where(np.isnan(value), default, value)


def sigmoid(value: Array) -> Array:
    """1 / (1 + exp(-value))."""
    return np.divide(1.0, 1.0 + np.exp(np.negative(value)))


def clip(value: Array, least: Array, most: Array) -> Array:
    """`value` brought between two bounds; the upper one counts where they cross."""
    return np.minimum(np.maximum(value, least), most)


FUNCTIONS: dict[str, Function] = {
    "min": Function(np.minimum, 2, MAX_FUNCTION_ARGUMENTS),
    "max": Function(np.maximum, 2, MAX_FUNCTION_ARGUMENTS),
    "abs": Function(np.abs, 1, 1),
    "exp": Function(np.exp, 1, 1),
    "log": Function(np.log, 1, 1),
    "sqrt": Function(np.sqrt, 1, 1),
    "sigmoid": Function(sigmoid, 1, 1),
    "clip": Function(clip, 3, 3),
}
"""docs/ranking.md says what each one does; a test compares the two."""

ADDITIVE: dict[str, Callable[..., Array]] = {"+": np.add, "-": np.subtract}
MULTIPLICATIVE: dict[str, Callable[..., Array]] = {"*": np.multiply, "/": np.divide}


# -- parser


PREDICTIONS = ("ctr", "score", "uncertainty")
"""Names that stand for the prediction. An item field of such a name is reached in `backquotes`."""
OF_OTHERS = ("ctr", "score")
"""What NAME.ctr and NAME.score mean of another model; so an item field of such a name too is in `backquotes`."""

_AN_OPERAND = "a number, a name, a function, - or ("


class Push(NamedTuple):
    """Put a constant on the stack."""

    value: float


class Load(NamedTuple):
    """Put a column on the stack: a prediction, of this model or of another one that is named, or an item's field."""

    name: str
    is_prediction: bool
    model: str = ""


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
        elif token.kind == "other":
            model, _, name = self._take().text[1:].rpartition("`.")
            self._add(Load(name, True, model))
        elif token.kind == "name":
            self._take()
            if self.next.text == "(" and self.next.kind == "operator":
                self._call(token)
            else:
                model, dot, name = token.text.rpartition(".")
                of_other = bool(dot) and name in OF_OTHERS
                self._add(
                    Load(name, True, model) if of_other else Load(token.text, token.text in PREDICTIONS)
                )
        elif self._skip("("):
            self.objective()
            self._expect(")", "an operator or )")
        else:
            raise self.unexpected(_AN_OPERAND)

    def _number(self) -> float:
        # 1e999 is a token and infinite as a double.
        value = float(self.next.text)
        if not math.isfinite(value):
            raise self.unexpected("a number that a double can hold")
        self._take()
        return value

    def _call(self, name: Token) -> None:
        function = FUNCTIONS.get(name.text)
        if function is None:
            raise ObjectiveError(
                f"at character {name.at}: got {name}, expected one of the functions {listed(FUNCTIONS, name.text)}"
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
        # The parser calls itself: no text may exhaust Python's stack.
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


# -- tokens


Kind = Literal["number", "name", "other", "field", "operator", "end"]

# [0-9] and not \d, which takes the digits of every script.
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    | (?P<name>[A-Za-z_][A-Za-z0-9_.]*)
    | (?P<other>`[^`]+`\.(?:ctr|score)(?![A-Za-z0-9_.]))
    | `(?P<field>[^`]+)`
    | (?P<operator>\*\*|\?\?|[-+*/(),])
    )""",
    re.VERBOSE,
)
_SHOWN = 20


class Token(NamedTuple):
    """One token: `at` is the number of its first character, from 1."""

    kind: Kind
    text: str
    at: int

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else repr(self.text)


def tokens(text: str) -> Iterator[Token]:
    """The tokens of `text`, then one of kind "end". Raises ObjectiveError where no token can begin. O(length)."""
    at = 0
    while match := _TOKEN.match(text, at):
        kind = match.lastgroup
        assert kind is not None
        yield Token(kind, match[kind], match.start(kind) + 1 - (kind == "field"))  # type: ignore[arg-type]
        at = match.end()
    rest = text[at:].lstrip()
    if rest:
        raise ObjectiveError(
            f"at character {len(text) - len(rest) + 1}: got {rest[:_SHOWN]!r}, "
            "expected a number, a name, a field's name in `backquotes`, + - * / ** ?? ( ) or a comma"
        )
    yield Token("end", "", len(text) + 1)
