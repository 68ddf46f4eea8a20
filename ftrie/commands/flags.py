"""The flags that several commands share, each declared once.

A flag is an annotated type (`RejectsOption`); flags that belong together are a dataclass of them (`ServerFlags`), which
a command takes as one parameter. Those of a log are in `ftrie.api.data`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from model_store.flags import Argument, Flag

if TYPE_CHECKING:
    from ftrie.api.access import Access
    from ftrie.api.messages import Exploration, Filter, Options
    from trainer.formats.dialect import Dialect


# --- Models, logs, and what a run writes ---

SpecArgument = Annotated[Path, Argument("The model spec, a TOML file.", "SPEC", file="reads")]
InputsArgument = Annotated[
    list[str],
    Argument(
        "Log files or globs, read in this order, or impressions and clicks, joined; - is standard input.",
        "INPUT…",
        file="reads",
    ),
]
ModelArgument = Annotated[
    str,
    Argument(
        "NAME (its active version) or NAME:VERSION in the store, or a file: .arrow, .json.",
        "MODEL",
        file="reads",
    ),
]
JsonSpecOption = Annotated[Path | None, Flag("The spec of a .json model.", "TOML", file="reads")]
WithoutOption = Annotated[
    list[str] | None,
    Flag("Score without this field or cross (a*b), as if no row had it; repeatable.", "FIELD"),
]
ThreadsOption = Annotated[
    int | None, Flag("Hashing threads; the result does not depend on their number.", min=1)
]
RejectsOption = Annotated[
    Path | None, Flag("List bad rows here: JSON lines of file, line, reason.", "FILE", file="writes")
]
StrictOption = Annotated[bool, Flag("Stop at the first bad row.")]


@dataclass(frozen=True)
class DialectFlags:
    """How a CSV or TSV file is written, for commands that need no spec, whose `[input]` says it otherwise."""

    separator: Annotated[
        str | None,
        Flag(
            "CSV, TSV: what separates cells; `\\t` is a tab. Default: recognised from the first lines.",
            "CHAR",
        ),
    ] = None
    quote: Annotated[str | None, Flag("CSV, TSV: what encloses cells, empty for nothing.", "CHAR")] = None
    escape: Annotated[
        str | None, Flag("CSV, TSV: a backslash, if cells are escaped with it; empty if not.", "CHAR")
    ] = None
    null: Annotated[list[str] | None, Flag("CSV, TSV: a cell without a value; may be repeated.", "WORD")] = (
        None
    )
    decimal: Annotated[
        str | None, Flag("CSV, TSV: the decimal mark of numbers, a point or a comma.", "CHAR")
    ] = None

    def dialect(self) -> Dialect:
        """What is given. Raises SpecError."""
        from model_store.spec.spec import parse_spec
        from trainer.formats.dialect import Dialect

        given = {
            # A shell passes `\t` as two characters.
            "separator": "\t" if self.separator == "\\t" else self.separator,
            "quote": self.quote,
            "escape": self.escape,
            "nulls": self.null or None,
            "decimal": self.decimal,
        }
        lines = [f"{name} = {json.dumps(value)}" for name, value in given.items() if value is not None]
        # By way of a spec's text, whose rules and messages for these members are the only ones.
        text = "\n".join(['[model]\nname = "m"\n[input]\nlabel = "l"', *lines])
        return Dialect.of(parse_spec(text, "the dialect's flags").input)


# --- Reaching a server ---

DEFAULT_ADDRESS = "127.0.0.1:50051"


BalanceOption = Annotated[
    Literal["round_robin", "cookie"] | None,
    Flag(
        "How calls are divided among several servers: round_robin (default for a list), or cookie, each user's "
        "to one server.",
        "HOW",
    ),
]


@dataclass(frozen=True)
class AccessFlags:
    """The credentials for a server."""

    tls_ca: Annotated[
        str,
        Flag(
            "Use TLS; one of these authorities (PEM) must have signed the server's certificate. `system`: those of "
            "this system.",
            "FILE",
            env="FTRIE_TLS_CA",
            file="reads",
        ),
    ] = ""
    tls_cert: Annotated[
        str,
        Flag("For mutual TLS: the client's certificate, PEM.", "FILE", env="FTRIE_TLS_CERT", file="reads"),
    ] = ""
    tls_key: Annotated[
        str, Flag("For mutual TLS: its key, PEM.", "FILE", env="FTRIE_TLS_KEY", file="reads")
    ] = ""
    token: Annotated[
        str,
        Flag(
            "The bearer token; better in FTRIE_TOKEN, since all users of a machine see its command lines.",
            env="FTRIE_TOKEN",
        ),
    ] = ""

    def access(self) -> Access:
        """The credentials. Raises ServerError."""
        from ftrie.api.access import Access

        return Access(self.tls_ca, self.tls_cert, self.tls_key, self.token)


@dataclass(frozen=True)
class _AddressFlags:
    address: Annotated[
        str,
        Flag(
            "The server; or several, IP:PORT,IP:PORT, of which any that is healthy takes a call.", "HOST:PORT"
        ),
    ] = DEFAULT_ADDRESS
    timeout: Annotated[float, Flag("How long to wait.", "SECONDS", min=0.001)] = 5.0


# A dataclass takes the fields of its last base first: the help begins with the address.
@dataclass(frozen=True)
class ServerFlags(AccessFlags, _AddressFlags):
    """A server's address, the time to wait for it, and the credentials."""


# --- What to rank ---

MAX_TOP_K = 2**31 - 1  # an int32 on the wire
# The shortest field: the first operator divides, so that a value may contain others.
_FILTER = re.compile(r"(?P<field>.+?)(?P<test>!=|>=|<=|=)(?P<value>.*)", re.DOTALL)


@dataclass(frozen=True)
class RankFlags:
    """One ranking request."""

    cookie: Annotated[str, Flag("The user's id, as --user ID.")] = ""
    candidates: Annotated[str, Flag("Item ids, separated by commas.", "A,B,C")] = ""
    candidate_set: Annotated[str, Flag("A set of items in the store.", "NAME")] = ""
    context: Annotated[
        list[str] | None, Flag("A feature of the context; repeat it for a set.", "FIELD=VALUE")
    ] = None
    user: Annotated[
        list[str] | None,
        Flag("The user's id, or a feature of the user, which overrides the stored one.", "ID|FIELD=VALUE"),
    ] = None
    top_k: Annotated[int | None, Flag("How many items; all if left out.", min=1, max=MAX_TOP_K)] = None
    variant: Annotated[str | None, Flag("Force a variant; else the cookie decides.")] = None
    objective: Annotated[
        str, Flag('What to order by, such as "ctr * bid"; default: the model\'s.', "TEXT")
    ] = ""
    filters: Annotated[
        list[str] | None,
        Flag("FIELD=A,B or FIELD!=A,B or FIELD>=N or FIELD<=N; may be repeated.", "TEST", names="--filter"),
    ] = None
    caps: Annotated[
        list[str] | None, Flag("At most N items of one value; may be repeated.", "FIELD=N", names="--cap")
    ] = None
    explore: Annotated[
        str, Flag("ucb:WIDTH or thompson:WIDTH; WIDTH is a multiple of the score's uncertainty.", "HOW:WIDTH")
    ] = ""
    request_id: Annotated[str, Flag("The request's id, which is the seed of Thompson draws.")] = ""
    deferred: Annotated[
        bool, Flag("The list is perhaps never shown: it counts once `ftrie feedback --activated` says so.")
    ] = False

    def options(self) -> Options:
        """The keywords of `Client.rank`. Raises typer.BadParameter for a flag that cannot be parsed."""
        if bool(self.candidates) == bool(self.candidate_set):
            raise typer.BadParameter("give either --candidates A,B,C or --candidate-set NAME")
        ids = sorted({self.cookie, *(text for text in self.user or () if "=" not in text)} - {""})
        if len(ids) > 1:
            raise typer.BadParameter(f"got the user ids {', '.join(ids)}; give one", param_hint="--user")
        return {
            "cookie": ids[0] if ids else "",
            "candidates": _listed(self.candidates) if self.candidates else (),
            "candidate_set": self.candidate_set,
            "context": _features("--context", self.context),
            "user": _features("--user", [text for text in self.user or () if "=" in text]),
            "top_k": self.top_k,
            "variant": self.variant,
            "request_id": self.request_id,
            "deferred": self.deferred,
            "objective": self.objective,
            "filters": [_filter(text) for text in self.filters or ()],
            "caps": dict(_cap(text) for text in self.caps or ()),
            "exploration": exploration_of(self.explore),
        }


def _features(flag: str, pairs: Sequence[str] | None) -> dict[str, str | list[str]]:
    """`["hour=21", "tag=a", "tag=b"]` → `{"hour": "21", "tag": ["a", "b"]}`."""
    features: dict[str, str | list[str]] = {}
    for pair in pairs or ():
        name, value = _pair(flag, pair, "FIELD=VALUE")
        before = features.get(name)
        if before is None:
            features[name] = value
        else:
            features[name] = [*([before] if isinstance(before, str) else before), value]
    return features


def _filter(text: str) -> Filter:
    from ftrie.api.messages import AnyOf, Between, NoneOf

    found = _FILTER.fullmatch(text)
    if found is None:
        raise _unread("--filter", text, "FIELD=A,B, FIELD!=A,B, FIELD>=N or FIELD<=N")
    field, test, value = found.groups()
    if test == "=":
        return AnyOf(field, _listed(value))
    if test == "!=":
        return NoneOf(field, _listed(value))
    bound = _number("--filter", text, value)
    return Between(field, least=bound) if test == ">=" else Between(field, most=bound)


def _cap(text: str) -> tuple[str, int]:
    field, value = _pair("--cap", text, "FIELD=N")
    if not value.isdecimal() or not 1 <= int(value) <= MAX_TOP_K:
        raise _unread("--cap", text, "FIELD=N with a whole number from 1 on")
    return field, int(value)


def exploration_of(text: str) -> Exploration | None:
    """`thompson:2` → Thompson(2.0); "" → None. Raises typer.BadParameter."""
    from ftrie.api.messages import Thompson, UpperConfidenceBound

    if not text:
        return None
    how, _, width = text.partition(":")
    if how not in ("ucb", "thompson"):
        raise _unread("--explore", text, "ucb:WIDTH or thompson:WIDTH")
    number = _number("--explore", text, width)
    return UpperConfidenceBound(number) if how == "ucb" else Thompson(number)


def _listed(text: str) -> list[str]:
    return [item.strip() for item in text.split(",")]


def _number(flag: str, text: str, number: str) -> float:
    try:
        return float(number)
    except ValueError:
        raise _unread(flag, text, f"a number where {number!r} stands") from None


def _pair(flag: str, text: str, expected: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise _unread(flag, text, expected)
    return name, value


def _unread(flag: str, text: str, expected: str) -> typer.BadParameter:
    return typer.BadParameter(f"got {text!r}, expected {expected}", param_hint=flag)
