"""The flags of every command that calls a server: TLS and token. What they mean is `ftrie.client.access`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ftrie.client.messages import Exploration, Filter, Question


AddressOption = Annotated[str, typer.Option(metavar="HOST:PORT", help="The server.")]
TlsCaOption = Annotated[
    str,
    typer.Option(
        "--tls-ca",
        envvar="FTRIE_TLS_CA",
        metavar="FILE",
        help="Speak TLS; the server must be signed by one of these authorities (PEM), or `system`.",
    ),
]
TlsCertOption = Annotated[
    str,
    typer.Option(
        "--tls-cert",
        envvar="FTRIE_TLS_CERT",
        metavar="FILE",
        help="For mutual TLS: one's own certificate, PEM.",
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


# --- The flags that ask a ranking, shared by `ftrie rank` and `ftrie explain`, and what their texts mean ---


MAX_TOP_K = 2**31 - 1  # an int32 on the wire
_FILTER = re.compile(r"(?P<field>.+?)(?P<test>!=|>=|<=|=)(?P<value>.*)", re.DOTALL)

CookieOption = Annotated[str, typer.Option(help="The user; may be left out.")]
CandidatesOption = Annotated[str, typer.Option(metavar="A,B,C", help="Item ids, separated by commas.")]
CandidateSetOption = Annotated[str, typer.Option(metavar="NAME", help="A set of items in the store.")]
ContextOption = Annotated[
    list[str] | None, typer.Option(metavar="FIELD=VALUE", help="A feature of this moment; twice for a set.")
]
UserOption = Annotated[
    list[str] | None, typer.Option(metavar="FIELD=VALUE", help="A feature of the user, over the stored one.")
]
TopKOption = Annotated[
    int | None, typer.Option(min=1, max=MAX_TOP_K, help="How many items; all if left out.")
]
VariantOption = Annotated[str | None, typer.Option(help="Force a variant; else the cookie decides.")]
ObjectiveOption = Annotated[
    str, typer.Option(metavar="TEXT", help='What to order by, such as "ctr * bid"; default: the model\'s.')
]
FilterOption = Annotated[
    list[str] | None,
    typer.Option(
        "--filter", metavar="TEST", help="FIELD=A,B or FIELD!=A,B or FIELD>=N or FIELD<=N; may be repeated."
    ),
]
CapOption = Annotated[
    list[str] | None,
    typer.Option("--cap", metavar="FIELD=N", help="At most N items of one value; may be repeated."),
]
ExploreOption = Annotated[
    str, typer.Option(metavar="HOW:WIDTH", help="ucb:WIDTH or thompson:WIDTH, a number of uncertainties.")
]
RequestIdOption = Annotated[str, typer.Option(help="The request's id, which decides what Thompson draws.")]
TimeoutOption = Annotated[float, typer.Option(min=0.001, metavar="SECONDS", help="How long to wait.")]


def question_of(
    cookie: str,
    candidates: str,
    candidate_set: str,
    context: Sequence[str] | None,
    user: Sequence[str] | None,
    top_k: int | None,
    variant: str | None,
    request_id: str,
    objective: str,
    filters: Sequence[str] | None,
    caps: Sequence[str] | None,
    explore: str,
) -> Question:
    """What the flags ask. Raises typer.BadParameter for a flag that cannot be read."""
    if bool(candidates) == bool(candidate_set):
        raise typer.BadParameter("give either --candidates A,B,C or --candidate-set NAME")
    return {
        "cookie": cookie,
        "candidates": _listed(candidates) if candidates else (),
        "candidate_set": candidate_set,
        "context": _features("--context", context),
        "user": _features("--user", user),
        "top_k": top_k,
        "variant": variant,
        "request_id": request_id,
        "objective": objective,
        "filters": [_filter(text) for text in filters or ()],
        "caps": dict(_cap(text) for text in caps or ()),
        "exploration": exploration_of(explore),
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
    """`thompson:2` → Thompson(2.0); "" is none. Raises typer.BadParameter for what cannot be read."""
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
