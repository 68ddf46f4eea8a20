"""Guesses what each column of a log is: label, weight, time, identity, field of some kind, or to be ignored.

In: the profiles of the columns in the log's first rows. Out: a `Guess` per column, with its reason in one line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from model_store.errors import SpecError
from model_store.features.cells import EXPECTED_LABELS
from model_store.spec.spec import WEIGHT
from trainer.guess.profiles import Profile, can_be_label


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Column names as `_short_name` gives them, the likeliest first.
_LABELS = _names(
    """click clicked isclick isclicked label islabel clk y target conversion converted isconverted purchase
    purchased response outcome installed engaged"""
)
_WEIGHTS = _names("weight importance sampleweight exampleweight")
_REQUESTS = _names("requestid request reqid qid impressionid queryid searchid pageviewid bidid auctionid")
_COOKIES = _names(
    """cookie cookieid userid uid user visitorid memberid customerid clientid deviceid accountid profileid
    anonymousid"""
)
_ITEMS = _names(
    """itemid item adid productid creativeid articleid newsid movieid videoid docid documentid sku asin
    listingid hotelid offerid bannerid songid trackid contentid"""
)

# Words within a column name.
_TIME_WORDS = frozenset(_names("ts time timestamp datetime date day hour dt when at clock"))
_USER_WORDS = frozenset(
    _names("user cookie visitor member customer client device age gender sex account profile")
)
_ITEM_WORDS = frozenset(
    _names(
        """item ad ads product brand price campaign creative advertiser article sku movie video hotel listing
        offer genre"""
    )
)
_CONTEXT_WORDS = frozenset(
    _names("pos position rank slot site app page placement context request session os browser")
)
_QUANTITY_WORDS = frozenset(
    _names(
        """price cost amount count cnt num number duration length score rate ratio distance bid size views age
        income budget quantity qty seconds minutes days hours"""
    )
)
_IDENTITY_WORDS = frozenset(_names("id uuid guid key hash index idx ip code"))

Role = Literal["label", "weight", "timestamp", "request", "cookie", "item", "ignore", "field"]
ROLES_WITH_ONE_COLUMN: tuple[Role, ...] = ("label", "weight", "timestamp", "request", "cookie", "item")

_MANY_VALUES = 100
_MANY_FRACTIONS = 20
_NAMES: dict[Role, tuple[str, ...]] = {
    "weight": _WEIGHTS,
    "request": _REQUESTS,
    "cookie": _COOKIES,
    "item": _ITEMS,
}
_SIDES = {"cookie": "user", "item": "item"}


@dataclass(frozen=True)
class Guess:
    """What a column probably is, and why. `kind`, `side`, `separator` and `format` apply to fields."""

    profile: Profile
    role: Role
    why: str
    side: str = "context"
    kind: str = "category"
    separator: str | None = None
    format: str | None = None

    @property
    def name(self) -> str:
        """The column's name."""
        return self.profile.name


def guess_all(profiles: Sequence[Profile], label: str | None = None) -> tuple[Guess, ...]:
    """Guess every column, in order. Raises SpecError if no column can be the label, or the one named `label` cannot."""
    chosen = _label(profiles, label)
    guesses = [chosen if p is chosen.profile else _guess(p, chosen.profile) for p in profiles]
    for role in ROLES_WITH_ONE_COLUMN:
        guesses = _keep_one(guesses, role)
    return tuple(guesses)


def _label(profiles: Sequence[Profile], wanted: str | None) -> Guess:
    if wanted is not None:
        return _wanted_label(profiles, wanted)
    binary = [profile for profile in profiles if profile.is_label]
    named = [(_LABELS.index(_short_name(p.name)), p) for p in binary if _short_name(p.name) in _LABELS]
    if named:
        _, best = min(named, key=lambda each: each[0])
        return Guess(best, "label", f"its name, and {_click_rate(best)}")
    varied = [profile for profile in binary if profile.distinct > 1]
    if len(varied) == 1:
        return Guess(varied[0], "label", f"the only column of 0 and 1: {_click_rate(varied[0])}")
    which = (
        f"{_list(varied)} could be it"
        if varied
        else "no column holds only 0 and 1, -1 and 1, or true and false"
    )
    raise SpecError(
        f"cannot tell which column is the label: {which}; name it with --label; columns: {_list(profiles)}"
    )


def _wanted_label(profiles: Sequence[Profile], wanted: str) -> Guess:
    for profile in profiles:
        if profile.name == wanted and profile.is_label:
            return Guess(profile, "label", _click_rate(profile))
        if profile.name == wanted:
            odd = [text for text in profile.counts if not can_be_label(text)]
            got = ", ".join(map(repr, odd[:3])) if odd else "empty cells"
            raise SpecError(f"column {wanted!r} cannot be the label: expected {EXPECTED_LABELS}, got {got}")
    raise SpecError(f"--label: no column {wanted!r} in the log; it has {_list(profiles)}")


def _click_rate(profile: Profile) -> str:
    return f"{100 * sum(profile.labels) / len(profile.labels):.3g} % are 1"


def _guess(profile: Profile, label: Profile) -> Guess:
    """The first rule that applies decides."""
    return (
        _by_format(profile)
        or _not_a_feature(profile, label)
        or _by_role_name(profile)
        or _time(profile)
        or guess_field(profile)
    )


def _by_format(profile: Profile) -> Guess | None:
    """A guess for a column that the log's format gives a role."""
    if profile.kind == WEIGHT:
        return Guess(profile, "weight", f"so the format has it; {_values(profile)}")
    if profile.kind is None and profile.filled and _short_name(profile.name) in _REQUESTS:
        return _request_of_one_row(profile) or Guess(
            profile, "request", f"so the format has it; {_values(profile)}"
        )
    if profile.kind is None:
        return Guess(profile, "ignore", f"names a row and says nothing of it; {_values(profile)}")
    return None


def _not_a_feature(profile: Profile, label: Profile) -> Guess | None:
    if profile.distinct == 0:
        return Guess(profile, "ignore", "empty in these rows")
    if profile.is_label and _short_name(profile.name) in _LABELS:
        return Guess(profile, "ignore", "looks like another label, not known when ranking")
    if "propensity" in _words(profile.name):
        return Guess(profile, "ignore", "says how the item was chosen, not whether it is clicked")
    if _comes_with_the_click(profile, label):
        return Guess(profile, "ignore", "only there in clicked rows: it would give the answer away")
    return None


def _comes_with_the_click(profile: Profile, label: Profile) -> bool:
    clicked = [label == 1 for label, text in zip(label.labels, profile.texts, strict=True) if text]
    return len(clicked) >= 10 and all(clicked) and 0 in label.labels


def _by_role_name(profile: Profile) -> Guess | None:
    for role, names in _NAMES.items():
        fits = not profile.lists and (role != "weight" or _is_weight(profile))
        if fits and _short_name(profile.name) in names:
            if role == "request" and (one_row := _request_of_one_row(profile)) is not None:
                return one_row
            return Guess(profile, role, f"its name; {_values(profile)}", _SIDES.get(role, "context"))
    return None


def _request_of_one_row(profile: Profile) -> Guess | None:
    """Ignore a column that is named like a request id and has a different value in every row."""
    if not profile.is_unique:
        return None
    why = (
        f"another value in every row, such as {profile.examples(1)[0]}: as the request, each row would be one"
    )
    return Guess(profile, "ignore", why)


def _is_weight(profile: Profile) -> bool:
    return profile.numbers is not None and min(profile.numbers) >= 0


def _time(profile: Profile) -> Guess | None:
    form = profile.time_format
    hinted = bool(_TIME_WORDS & set(_words(profile.name)))
    # A number may mean anything, unless the name suggests a time; text such as 2024-05-01 is unambiguous.
    if form is None or (profile.numbers is not None and not hinted):
        return None
    return Guess(profile, "timestamp", f"times like {profile.examples(1)[0]}", kind="time", format=form)


def guess_field(profile: Profile) -> Guess:
    """The kind of a column that is a feature, or why it is none."""
    side = _side(profile.name)
    guess = Guess(profile, "field", _values(profile), side)
    if profile.lists or profile.separator is not None:
        separator = None if profile.lists or profile.separator in ("[", ",") else profile.separator
        return replace(guess, kind="set", separator=separator, why=f"lists; {guess.why}")
    if _is_quantity(profile):
        return replace(guess, kind="number", why=f"numbers; {guess.why}")
    if profile.is_unique:
        return replace(
            guess, role="ignore", why=f"another value in every row, such as {profile.examples(1)[0]}"
        )
    if profile.distinct == 1:
        return replace(guess, role="ignore", why=f"always {profile.examples(1)[0]} in these rows")
    return guess


def _is_quantity(profile: Profile) -> bool:
    if profile.numbers is None or _IDENTITY_WORDS & set(_words(profile.name)):
        return False
    if not profile.is_whole:
        return profile.distinct > _MANY_FRACTIONS
    named = bool(_QUANTITY_WORDS & set(_words(profile.name)))
    counting = not profile.is_unique and profile.is_dense
    return profile.distinct > _MANY_VALUES and (named or counting)


def _side(name: str) -> str:
    found = set(_words(name))
    top = name.partition(".")[0]
    if top in ("user", "item", "context") and top != name:
        return top
    if found & _CONTEXT_WORDS or (found & _USER_WORDS and found & _ITEM_WORDS):
        return "context"
    return "user" if found & _USER_WORDS else "item" if found & _ITEM_WORDS else "context"


def _keep_one(guesses: list[Guess], role: Role) -> list[Guess]:
    """Leave `role` to the first column guessed to have it; guess the others as fields."""
    found = [guess for guess in guesses if guess.role == role]
    return [
        guess
        if guess.role != role or guess is found[0]
        else replace(guess_field(guess.profile), side=guess.side)
        for guess in guesses
    ]


def _values(profile: Profile) -> str:
    if profile.lists:
        shown = ", ".join(_cut(text) for text, _ in profile.members.most_common(3))
        return f"{len(profile.members):,} member{'s' if len(profile.members) != 1 else ''}: {shown}"
    shown = ", ".join(_cut(text) for text in profile.examples())
    count = f"{profile.distinct:,} value{'s' if profile.distinct != 1 else ''}"
    absent = len(profile.texts) - profile.filled
    return f"{count}{': ' if shown else ''}{shown}" + (
        f"; empty in {100 * absent / len(profile.texts):.0f} %" if absent else ""
    )


def _cut(text: str) -> str:
    return text if len(text) <= 24 else f"{text[:23]}…"


def _list(profiles: Sequence[Profile]) -> str:
    return ", ".join(profile.name for profile in profiles)


def _words(name: str) -> list[str]:
    """The lower-case words of a column name: user_id, userId and context.userID all end in user, id."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    return re.findall(r"[a-z]+|[0-9]+", spaced.lower())


def _short_name(name: str) -> str:
    """The last part of a nested column's path without case and punctuation: context.User-ID is userid."""
    return "".join(_words(name.rpartition(".")[2]))
