"""Where the library reports what the command line prints: warnings as Python warnings, progress as a bar.

The bar is shown on a terminal and in a notebook, and nowhere else.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import ParamSpec, TypeVar, get_type_hints

from ftrie.terminal import library_progress
from model_store.errors import FtrieError, counted
from trainer.output import SILENT, Progress

# A command that a message tells to type keeps its flags.
_FLAG = re.compile(r"\bftrie [a-z]+ [^;`]*|--([a-z][a-z-]*)")
_ARGUMENTS = {"slice": "slices", "force": "force=True"}
_Given = ParamSpec("_Given")
_Answer = TypeVar("_Answer")


class FtrieWarning(UserWarning):
    """Something about the data, the spec or the run that does not end the work; the message says what to look into."""


class LibraryOutput:
    """An `Output` for callers in Python. Notes are dropped; they describe what a caller asked for."""

    def __init__(self, shows_progress: bool = True) -> None:
        self._shows_progress = shows_progress

    def note(self, message: str, /) -> None:
        """Drop a note."""

    def warn(self, message: str, /) -> None:
        """Issue an FtrieWarning at the line that called ftrie."""
        warnings.warn(in_python(message), FtrieWarning, stacklevel=_caller())

    @contextmanager
    def progress(
        self, description: str, /, total: int | None = None, unit: str = "rows"
    ) -> Iterator[Progress]:
        """A bar on a terminal and in a notebook."""
        shown = library_progress if self._shows_progress else SILENT.progress
        with shown(description, total, unit) as progress:
            yield progress


def warn_of_rejects(count: int, reasons: Sequence[str]) -> None:
    """Warn of rows that were skipped, if there are any; reasons: of the first ones."""
    if count:
        warn(f"{counted(count, 'row')} rejected: {'; '.join(reasons)}")


def warn(message: str) -> None:
    """Issue an FtrieWarning at the line that called ftrie."""
    warnings.warn(in_python(message), FtrieWarning, stacklevel=_caller())


def in_python(message: str) -> str:
    """The message with the names of arguments where it names flags: no_header for --no-header."""
    return _FLAG.sub(lambda f: _ARGUMENTS.get(f[1], f[1].replace("-", "_")) if f[1] else f[0], message)


def names_arguments(call: Callable[_Given, _Answer]) -> Callable[_Given, _Answer]:
    """A function of the library whose errors, which the engine words for the command line, are `in_python`.

    Where it takes `**log: Unpack[Log]`, the arguments of Log are in its signature, and no others are taken.
    """
    signature = inspect.signature(call)
    *parameters, last = signature.parameters.values()
    if last.kind is inspect.Parameter.VAR_KEYWORD:
        # Annotations are text in these modules (from __future__ import annotations).
        arguments = get_type_hints(call.__globals__[last.annotation.removeprefix("Unpack[").rstrip("]")])
        parameters += [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=False if kind is bool else None, annotation=kind
            )
            for name, kind in arguments.items()
        ]
        signature = signature.replace(parameters=parameters)

    @functools.wraps(call)
    def called(*given: _Given.args, **named: _Given.kwargs) -> _Answer:
        # At run time Unpack of a TypedDict lets any keyword pass.
        if unknown := next((name for name in named if name not in signature.parameters), None):
            raise TypeError(f"{call.__qualname__}() got an unexpected keyword argument {unknown!r}")
        try:
            return call(*given, **named)
        except FtrieError as error:
            # The same error: its class, attributes and traceback stay.
            error.args = (in_python(str(error)), *error.args[1:])
            raise

    called.__dict__["__signature__"] = signature
    return called


def _caller() -> int:
    """The stack level, as `warnings.warn` of this function's caller counts, of the first frame outside ftrie."""
    frame, level = sys._getframe(1), 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _OURS:
        frame, level = frame.f_back, level + 1  # type: ignore[assignment]
    return level


# contextlib: what is called in a `with` block of ftrie.
_OURS = frozenset(["ftrie", "trainer", "server", "model_store", "contextlib"])
