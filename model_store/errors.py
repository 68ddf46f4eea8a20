"""All errors that users of ftrie can get, and the formatting of values in messages.

Each message says what was expected, what was found, and the remedy. The server maps the classes to gRPC status codes in
one table; the command line uses `exit_code`.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable
from difflib import get_close_matches


class FtrieError(Exception):
    """Base of all errors that are reported by a message instead of a traceback."""

    exit_code = 1


class OutputError(FtrieError):
    """A file cannot be written."""


class UsageError(FtrieError):
    """An invalid command line, or an invalid name on it."""

    exit_code = 2


class ObjectiveError(UsageError):
    """An objective cannot be parsed; the text has the character's position, what was found and what is expected."""


class SpecError(FtrieError):
    """The model spec is wrong, or does not fit the data."""

    exit_code = 2


class InputError(FtrieError):
    """A log cannot be read, or (with --strict) holds a bad row."""

    exit_code = 3


class FieldValueError(FtrieError, ValueError):
    """One value does not fit its field's kind. paths: the field's name, where it is known; str() begins with it."""

    exit_code = 3

    def __init__(self, text: str, path: str = "") -> None:
        super().__init__(f"{path}: {text}" if path else text)
        self.paths = (path,) if path else ()


class ArtefactError(FtrieError):
    """A model file or a published version is damaged, incomplete, or of an unknown format."""

    exit_code = 4


class NewerFormat(ArtefactError):
    """A model file or a published version has a format that only a newer ftrie reads."""


class StoreError(FtrieError):
    """The store answered, but the operation cannot be carried out."""

    exit_code = 5


class StoreUnavailable(StoreError):
    """The store did not answer."""


class SourceUnavailable(FtrieError):
    """A source of events that is not the store, such as a Kafka broker, does not answer."""

    exit_code = 5


class ClusterError(FtrieError):
    """Ray is away, has no room for all workers, or loses members again and again."""

    exit_code = 8


class UnreadableValue(StoreError):
    """A key of the store has an invalid value or type; `ftrie store check --repair` repairs it."""


class VersionNotFound(StoreError):
    """The store holds no such model or version."""


class VersionRefused(StoreError):
    """A guard has refused the version, or holds it during a cooldown, and no operator has overruled it."""


class NotActivated(StoreError):
    """A version was published, but the store failed before it was activated."""

    def __init__(self, model: str, version: int, error: StoreError) -> None:
        super().__init__(
            f"version {version} is published and stays inactive, since the store failed before it was activated: "
            f"{error}; activate it by: ftrie store activate {model} {version}"
        )


class StaleEpoch(StoreError):
    """Another writer has taken over this model since this one began."""


class Pinned(StaleEpoch):
    """An operator has pinned a version; the trainer's versions stay inactive until `ftrie store resume`."""


class LeaseHeld(StoreError):
    """Another trainer holds this model."""


class ExperimentError(FtrieError):
    """An experiment contradicts itself, or does not fit the model."""

    exit_code = 2


class ExperimentChanged(StoreError):
    """Another operator has changed the experiment in the meantime."""


class CheckpointError(FtrieError):
    """A checkpoint folder is in use, has another spec or format, or holds no undamaged checkpoint."""

    exit_code = 7


class Stopped(FtrieError):
    """A signal requested the end of a run, which ended cleanly."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


class NoSupport(FtrieError):
    """A log holds too little evidence about a policy to estimate what it would have earned."""

    exit_code = 11


class ServerError(FtrieError):
    """A server could not start, or a server answered with an error."""

    exit_code = 6


# Values of logs and stores appear in messages: an escape sequence in one must not reach the terminal.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def shown(value: object) -> str:
    """Format a value for a reader: 1,234,567 · 0.38749 · yes · — for None."""
    if value is None:
        return "—"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.5f}"
    return harmless(str(value))


def harmless(text: str) -> str:
    """Text from users, safe for a terminal: control characters except line feeds and tabs are escaped."""
    return _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def listed(names: Iterable[str], wanted: str) -> str:
    """The names there are, or "none", and the one that `wanted` may mean: age, device; did you mean age?"""
    known = list(names)
    near = get_close_matches(wanted, known, 1)
    return (shown_names(known) or "none") + (f"; did you mean {shown_names(near)}?" if near else "")


def installing(extra: str) -> str:
    """The command that adds an extra to the ftrie that runs. As ftrie is installed there, no index needs to have it."""
    return f"{shlex.quote(sys.executable)} -m pip install 'ftrie[{extra}]'"


def counted(number: int, thing: str, things: str | None = None) -> str:
    """1 window, 1,234 windows: a number with its noun; `things` is the plural, by default with an s."""
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"


def shown_names(names: Iterable[str]) -> str:
    """Names of columns for a message, those with invisible characters or blanks around them as Python writes them."""
    return ", ".join(name if name.isprintable() and name == name.strip() else repr(name) for name in names)
