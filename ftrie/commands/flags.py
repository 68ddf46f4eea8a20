"""The flags that several commands share, each declared once.

A flag is an annotated type (`RejectsOption`); flags that belong together are a frozen dataclass of them (`LogFlags`). A
command decorated with `grouped` takes such a group as one parameter.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from ftrie.terminal import note_once

if TYPE_CHECKING:
    from ftrie.client.access import Access
    from ftrie.client.messages import Exploration, Filter, Options
    from model_store.spec.sections import InputSection
    from trainer.examples.open_log import Log
    from trainer.logs.dialect import Dialect


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Make a command of a function some of whose parameters are groups of flags.

    A parameter annotated with a dataclass stands for one flag per field, in this order and with the fields' defaults;
    the function receives the dataclass. All parameters must be known by name.
    """
    groups: dict[str, Any] = {}
    flags: list[inspect.Parameter] = []
    hints = get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        if is_dataclass(hints[name]):
            groups[name] = hints[name]
            own = get_type_hints(hints[name], include_extras=True)
            flags += [_flag(each.name, own[each.name], _default(each)) for each in fields(hints[name])]
        else:
            flags.append(_flag(name, hints[name], parameter.default))

    @functools.wraps(command)
    def call(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{each.name: values.pop(each.name) for each in fields(group)})
        command(**values)

    call.__signature__ = inspect.Signature(flags)  # type: ignore[attr-defined]
    call.__annotations__ = {flag.name: flag.annotation for flag in flags}
    return call


def _flag(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return inspect.Parameter.empty if field.default is MISSING else field.default


# --- Models, logs, and what a run writes ---

SpecArgument = Annotated[Path, typer.Argument(metavar="SPEC", help="The model spec, a TOML file.")]
InputsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT…",
        help="Log files or globs, read in this order, or impressions and clicks, joined; - is standard input.",
    ),
]
ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="NAME (its active version) or NAME:VERSION in the store, or a file: .arrow, .json.",
    ),
]
JsonSpecOption = Annotated[Path | None, typer.Option(metavar="TOML", help="The spec of a .json model.")]
WithoutOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FIELD", help="Score without this field or cross (a*b), as if no row had it; repeatable."
    ),
]
FormatOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Format of the log: csv, tsv, jsonl, parquet, vw, libsvm, libffm, or events (impressions and clicks); "
        "default: detected.",
    ),
]
NoHeaderOption = Annotated[
    bool,
    typer.Option(
        "--no-header",
        help="CSV, TSV: the first line is a row; the columns are c1, c2, …, or those of [input] columns. Default: "
        "detected.",
    ),
]
SeparatorOption = Annotated[
    str | None,
    typer.Option(
        metavar="CHAR",
        help="CSV, TSV: what separates cells; `\\t` is a tab. Default: told by the first lines.",
    ),
]
NullOption = Annotated[
    list[str] | None,
    typer.Option("--null", metavar="WORD", help="CSV, TSV: a cell without a value; may be repeated."),
]
QuoteOption = Annotated[
    str | None, typer.Option(metavar="CHAR", help="CSV, TSV: what encloses cells, empty for nothing.")
]
EscapeOption = Annotated[
    str | None,
    typer.Option(metavar="CHAR", help="CSV, TSV: a backslash, if cells are escaped with it; empty if not."),
]
DecimalOption = Annotated[
    str | None,
    typer.Option(metavar="CHAR", help="CSV, TSV: the decimal mark of numbers, a point or a comma."),
]
ThreadsOption = Annotated[
    int | None, typer.Option(min=1, help="Hashing threads; the result does not depend on their number.")
]
RejectsOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="List bad rows here: JSON lines of file, line, reason.")
]
StrictOption = Annotated[bool, typer.Option("--strict", help="Stop at the first bad row.")]
SaveOption = Annotated[
    Path | None, typer.Option(metavar="FILE.arrow", help="Write the learned model to this file.")
]
ForceOption = Annotated[
    bool,
    typer.Option("--force", help="Publish even if more than a tenth of the rows were rejected."),
]
InitFromOption = Annotated[
    str | None,
    typer.Option(
        metavar="VERSION|FILE",
        help="Start from a published model: its version in the store, `active`, or a FILE.arrow; ignored when "
        "resuming from a checkpoint.",
    ),
]
ThresholdOption = Annotated[
    float,
    typer.Option(
        min=0.0,
        metavar="X",
        help="When publishing changes: hold a weight back until it has moved by more than X.",
    ),
]
KEPT = (
    "How many of the newest versions to keep; default: 5, and a snapshot of each of the last 5 minutes, 6 hours and 3 "
    "days."
)
KeepOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="N",
        help=f"When versions are published, delete old ones as `ftrie store gc` does. {KEPT} 0 keeps all.",
    ),
]


@dataclass(frozen=True)
class DialectFlags:
    """How a CSV or TSV file is written, for commands that need no spec, whose `[input]` says it otherwise."""

    separator: SeparatorOption = None
    quote: QuoteOption = None
    escape: EscapeOption = None
    null: NullOption = None
    decimal: DecimalOption = None

    def dialect(self) -> Dialect:
        """What is given. Raises SpecError."""
        from model_store.spec.spec import parse_spec
        from trainer.logs.dialect import Dialect

        given = {
            "separator": "\t" if self.separator == "\\t" else self.separator,
            "quote": self.quote,
            "escape": self.escape,
            "nulls": self.null or None,
            "decimal": self.decimal,
        }
        lines = [f"{name} = {json.dumps(value)}" for name, value in given.items() if value is not None]
        text = "\n".join(['[model]\nname = "m"\n[input]\nlabel = "l"', *lines])
        return Dialect.of(parse_spec(text, "the dialect's flags").input)


@dataclass(frozen=True)
class LogFlags:
    """The format of a log of rows, and the files that are joined to it."""

    items: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A file of items: columns that the log lacks, joined by input.item."
        ),
    ] = None
    users: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A file of users: columns that the log lacks, joined by input.cookie."
        ),
    ] = None
    format: FormatOption = None
    no_header: NoHeaderOption = False

    def log(self, inputs: Sequence[str], section: InputSection, batch_bytes: int | None = None) -> Log:
        """The log, its files of items and users loaded. Raises SpecError, InputError."""
        from trainer.examples.open_log import Log
        from trainer.examples.side_tables import side_tables
        from trainer.logs.reader import BATCH_BYTES

        note = note_once()
        tables = side_tables(self.items, self.users, section, note)
        size = batch_bytes or BATCH_BYTES
        return Log(inputs, self.format, tables, note, size, no_header=self.no_header)


@dataclass(frozen=True)
class TimedLogFlags(LogFlags):
    """A log, and the time from and until which its rows count."""

    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Only rows from this time of input.timestamp on; earlier ones count as history.",
        ),
    ] = None
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only rows before this time of input.timestamp.")
    ] = None

    def log(self, inputs: Sequence[str], section: InputSection, batch_bytes: int | None = None) -> Log:
        """See LogFlags."""
        return replace(super().log(inputs, section, batch_bytes), since=self.since, until=self.until)


CacheOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Keep the log's rows in this file, and read them from there as long as the log stays the same.",
    ),
]


@dataclass(frozen=True)
class CachedLogFlags(LogFlags):
    """A log whose rows may be kept in a file."""

    cache: CacheOption = None

    def log(self, inputs: Sequence[str], section: InputSection, batch_bytes: int | None = None) -> Log:
        """See LogFlags."""
        return replace(super().log(inputs, section, batch_bytes), cache=self.cache)


@dataclass(frozen=True)
class CachedTimedLogFlags(TimedLogFlags):
    """A log whose rows may be kept in a file, and the time from and until which they count."""

    cache: CacheOption = None

    def log(self, inputs: Sequence[str], section: InputSection, batch_bytes: int | None = None) -> Log:
        """See LogFlags."""
        return replace(super().log(inputs, section, batch_bytes), cache=self.cache)


# --- Reaching a server ---

DEFAULT_ADDRESS = "127.0.0.1:50051"

TlsCaOption = Annotated[
    str,
    typer.Option(
        "--tls-ca",
        envvar="FTRIE_TLS_CA",
        metavar="FILE",
        help="Use TLS; one of these authorities (PEM) must have signed the server's certificate. `system`: those of "
        "this system.",
    ),
]
TlsCertOption = Annotated[
    str,
    typer.Option(
        "--tls-cert",
        envvar="FTRIE_TLS_CERT",
        metavar="FILE",
        help="For mutual TLS: the client's certificate, PEM.",
    ),
]
TlsKeyOption = Annotated[
    str,
    typer.Option("--tls-key", envvar="FTRIE_TLS_KEY", metavar="FILE", help="For mutual TLS: its key, PEM."),
]
TokenOption = Annotated[
    str,
    typer.Option(
        "--token",
        envvar="FTRIE_TOKEN",
        help="The bearer token; better in FTRIE_TOKEN, since all users of a machine see its command lines.",
    ),
]


BalanceOption = Annotated[
    Literal["round_robin", "cookie"] | None,
    typer.Option(
        metavar="HOW",
        help="How calls are divided among several servers: round_robin (default for a list), or cookie, each user's "
        "to one server.",
    ),
]


@dataclass(frozen=True)
class AccessFlags:
    """The credentials for a server."""

    tls_ca: TlsCaOption = ""
    tls_cert: TlsCertOption = ""
    tls_key: TlsKeyOption = ""
    token: TokenOption = ""

    def access(self) -> Access:
        """The credentials. Raises ServerError."""
        from ftrie.client.access import Access

        return Access(self.tls_ca, self.tls_cert, self.tls_key, self.token)


@dataclass(frozen=True)
class _AddressFlags:
    address: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="The server; or several, IP:PORT,IP:PORT, of which any that is healthy takes a call.",
        ),
    ] = DEFAULT_ADDRESS
    timeout: Annotated[float, typer.Option(min=0.001, metavar="SECONDS", help="How long to wait.")] = 5.0


@dataclass(frozen=True)
class ServerFlags(AccessFlags, _AddressFlags):
    """A server's address, the time to wait for it, and the credentials."""


# --- What to rank ---

MAX_TOP_K = 2**31 - 1  # an int32 on the wire
_FILTER = re.compile(r"(?P<field>.+?)(?P<test>!=|>=|<=|=)(?P<value>.*)", re.DOTALL)


@dataclass(frozen=True)
class RankFlags:
    """One ranking request."""

    cookie: Annotated[str, typer.Option(help="The user's id, as --user ID.")] = ""
    candidates: Annotated[str, typer.Option(metavar="A,B,C", help="Item ids, separated by commas.")] = ""
    candidate_set: Annotated[str, typer.Option(metavar="NAME", help="A set of items in the store.")] = ""
    context: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD=VALUE", help="A feature of the context; repeat it for a set."),
    ] = None
    user: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID|FIELD=VALUE",
            help="The user's id, or a feature of the user, which overrides the stored one.",
        ),
    ] = None
    top_k: Annotated[
        int | None, typer.Option(min=1, max=MAX_TOP_K, help="How many items; all if left out.")
    ] = None
    variant: Annotated[str | None, typer.Option(help="Force a variant; else the cookie decides.")] = None
    objective: Annotated[
        str,
        typer.Option(metavar="TEXT", help='What to order by, such as "ctr * bid"; default: the model\'s.'),
    ] = ""
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="TEST",
            help="FIELD=A,B or FIELD!=A,B or FIELD>=N or FIELD<=N; may be repeated.",
        ),
    ] = None
    caps: Annotated[
        list[str] | None,
        typer.Option("--cap", metavar="FIELD=N", help="At most N items of one value; may be repeated."),
    ] = None
    explore: Annotated[
        str,
        typer.Option(metavar="HOW:WIDTH", help="ucb:WIDTH or thompson:WIDTH, a number of uncertainties."),
    ] = ""
    request_id: Annotated[
        str, typer.Option(help="The request's id, which is the seed of Thompson draws.")
    ] = ""

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
    from ftrie.client.messages import AnyOf, Between, NoneOf

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
    from ftrie.client.messages import Thompson, UpperConfidenceBound

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
