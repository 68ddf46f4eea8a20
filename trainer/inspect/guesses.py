"""Guesses what each column of a log is: label, weight, time, identity, field of some kind, or to be ignored.

In: the profiles of the columns in the log's first rows. Out: a `Guess` per column, with its reason in one line.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from model_store.errors import SpecError, shown_names
from model_store.spec.sections import FieldSpec, InputSection, ModelSection
from model_store.spec.spec import WEIGHT, ModelSpec
from trainer.events.columns import POSITION
from trainer.examples.joined import REQUEST
from trainer.formats.cells import EXPECTED_LABELS
from trainer.inspect.profiles import LogSample, Profile, can_be_label, moments_of


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Column names as `short_name` gives them, the likeliest first.
LABEL_NAMES = _names(
    """click clicked isclick isclicked label islabel clk y target conversion converted isconverted purchase
    purchased response outcome installed engaged"""
)
_CLICKS = _names("clicks numclicks nclicks clickcount clk clicked click conversions numconversions")
_VIEWS = _names(
    """views numviews nviews viewcount impressions numimpressions nimpressions impressioncount impression imps impr
    shows"""
)
# Values that are a click, or that are none, whatever the column is called; and those that are so in a label.
_CLICKED = _words(
    """click clicked clk conversion converted purchase purchased buy bought install installed engaged responded
    liked"""
)
_SKIPPED = _words("noclick notclicked unclicked nonclick skip skipped notconverted")
_YES = _CLICKED | _words("yes y positive pos good like")
_NO = _SKIPPED | _words("no n none negative neg bad dislike impression view viewed shown ignored")
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
TIME_WORDS = _words("ts time timestamp datetime date day hour dt when at clock")
_USER_WORDS = _words("user cookie visitor member customer client device age gender sex account profile")
_ITEM_WORDS = _words(
    """item ad ads product brand price campaign creative advertiser article sku movie video hotel listing offer
    genre"""
)
_CONTEXT_WORDS = _words("pos position rank slot site app page placement context request session os browser")
_QUANTITY_WORDS = _words(
    """price cost amount count cnt num number duration length score rate ratio distance bid size views age
    income budget quantity qty seconds minutes days hours"""
)
_ENTITY_WORDS = _words(
    """user cookie visitor member customer client buyer viewer device account profile person item ad product
    campaign creative advertiser article movie video hotel listing offer seller shop"""
)
"""A whole number under such a name is an id."""
_IDENTITY_WORDS = _words("id uuid guid key hash index idx ip code")

Role = Literal["label", "views", "weight", "timestamp", "request", "cookie", "item", "ignore", "field"]
ROLES_WITH_ONE_COLUMN: tuple[Role, ...] = (
    "label",
    "views",
    "weight",
    "timestamp",
    "request",
    "cookie",
    "item",
)

_MANY_VALUES = 100
_AN_ID = 0.3
"""At this share of different values among a column's, a category is taken for an id, which may repeat too rarely."""
_MANY_FRACTIONS = 20
_FEW_VALUES = 10
_NAMES: dict[Role, tuple[str, ...]] = {
    "weight": _WEIGHTS,
    "request": _REQUESTS,
    "cookie": _COOKIES,
    "item": _ITEMS,
}
_SIDES = {"cookie": "user", "item": "item"}


@dataclass(frozen=True)
class Guess:
    """What a column probably is, and why. `kind`, `side`, `separator` and `format` apply to fields.

    positive: of a label, the value that is a click, None if the values are 1, 0, -1, true or false. warning: what a
    person must decide, "" for nothing. optional: a server's events may lack it. doubt: why it may be no use as a field,
    "" if it is taken to be one.
    """

    profile: Profile
    role: Role
    why: str
    side: str = "context"
    kind: str = "category"
    separator: str | None = None
    format: str | None = None
    positive: str | None = None
    warning: str = ""
    optional: bool = False
    doubt: str = ""

    @property
    def name(self) -> str:
        """The column's name."""
        return self.profile.name


def guess_all(sample: LogSample, label: str | None = None) -> tuple[Guess, ...]:
    """Guess every column, in order. Raises SpecError if no column can be the label, or the one named `label` cannot."""
    profiles = sample.profiles
    counts = _counts(profiles, label)
    chosen = counts[0] if counts else _label(sample, label)
    clicked = clicked_rows(chosen)
    found = {each.name: each for each in (chosen, *counts)}
    guesses = [
        # The first rule that applies decides.
        found.get(each.name)
        or _by_format(each)
        or _not_a_feature(each, clicked)
        or _by_role_name(each)
        or _time(each)
        or guess_field(each)
        for each in profiles
    ]
    for role in ROLES_WITH_ONE_COLUMN:
        guesses = _keep_one(guesses, role)
    return tuple(guesses)


def _counts(profiles: Sequence[Profile], wanted: str | None) -> tuple[Guess, ...]:
    """The columns of clicks and of views, if their names and values say so; else none."""
    clicks = _named(profiles, _CLICKS) if wanted is None else [p for p in profiles if p.name == wanted]
    views = _named(profiles, _VIEWS)
    if not (clicks and views and clicks[0] is not views[0] and views[0].is_count):
        return ()
    least, most = (each.numbers for each in (clicks[0], views[0]))
    if least is None or most is None or not all(number >= 0 and number.is_integer() for number in least):
        return ()
    pairs = [
        (float(low), float(high)) for low, high in zip(clicks[0].texts, views[0].texts, strict=True) if low
    ]
    if len(pairs) < len(views[0].texts) or any(low > high for low, high in pairs):
        return ()
    rate = sum(low for low, _ in pairs) / (sum(high for _, high in pairs) or 1.0)
    why = f"a count, never above {views[0].name}; {100 * rate:.3g} % of the views are clicks"
    return Guess(clicks[0], "label", why), Guess(views[0], "views", f"its name; {_values(views[0])}")


def _named(profiles: Sequence[Profile], names: Sequence[str]) -> list[Profile]:
    """The columns with one of these names, the likeliest first."""
    found = [p for p in profiles if short_name(p.name) in names]
    return sorted(found, key=lambda each: names.index(short_name(each.name)))


def _label(sample: LogSample, wanted: str | None) -> Guess:
    profiles = sample.profiles
    if wanted is not None:
        profile = next((each for each in profiles if each.name == wanted), None)
        if profile is None:
            raise SpecError(f"--label: no column {wanted!r} in the log; it has {_list(profiles)}")
        if (guess := _as_label(profile, by_name=False)) is not None:
            return guess
        odd = [text for text in profile.counts if not can_be_label(text)]
        got = ", ".join(map(repr, odd[:3])) if odd else "empty cells"
        raise SpecError(
            f"column {wanted!r} cannot be the label: expected {EXPECTED_LABELS}, or two values, got {got}"
        )
    for profile in _named(profiles, LABEL_NAMES):
        if (guess := _as_label(profile, by_name=True)) is not None:
            return guess
    varied = [profile for profile in profiles if profile.is_label and profile.distinct > 1]
    if len(varied) == 1:
        return Guess(varied[0], "label", f"the only column of 0 and 1: {_click_rate(varied[0])}")
    if not sample.has_header:
        # Logs without names have the label first, as in libsvm text, or last.
        for place, name in ((0, "first"), (-1, "last")):
            if profiles[place] in varied:
                return Guess(profiles[place], "label", f"the {name} column: {_click_rate(profiles[place])}")
    spoken = [profile for profile in profiles if _spoken(profile.pair)] if not varied else []
    if len(spoken) == 1:
        return _of_two_values(spoken[0], "")
    candidates = [*varied, *spoken]
    which = (
        f"{_list(candidates)} could be it"
        if candidates
        else "no column holds only 0 and 1, -1 and 1, or true and false, or two values such as clicked and skipped"
    )
    raise SpecError(
        f"cannot tell which column is the label: {which}; name it with --label; columns: {_list(profiles)}"
    )


def _as_label(profile: Profile, *, by_name: bool) -> Guess | None:
    if profile.is_label:
        return Guess(profile, "label", f"{'its name, and ' if by_name else ''}{_click_rate(profile)}")
    if profile.pair:
        return _of_two_values(profile, "its name; " if by_name else "")
    odd = profile.odd_labels
    if not odd:
        return None
    # A few rows lack the label, or have something else in it.
    shown = ", ".join(repr(text) if text else "empty" for text, _ in odd.most_common(3))
    rows = f"{odd.total():,} of {len(profile.texts):,} rows have no label in {profile.name}: {shown}"
    warning = f"{rows}; training rejects them; [input] positive would make them no click"
    why = f"{'its name, and ' if by_name else ''}{_click_rate(profile)}; {rows}"
    return Guess(profile, "label", why, warning=warning)


def _of_two_values(profile: Profile, why: str) -> Guess:
    """The label whose values are two others than 1 and 0."""
    positive, reason = _positive(profile)
    rate = sum(profile.labels(positive)) / len(profile.texts)
    return Guess(
        profile, "label", f"{why}{reason}: {100 * rate:.3g} % are {_cut(positive)}", positive=positive
    )


def _positive(profile: Profile) -> tuple[str, str]:
    """Which of the two values is a click, and why."""
    first, second = profile.pair
    spoken = _spoken(profile.pair, _YES, _NO)
    if spoken:
        return spoken, "by its words"
    if not second:
        return first, "empty in the other rows"
    if profile.numbers is not None:
        return max(profile.pair, key=float), "the larger of two numbers"
    return first, "the rarer of two values"


def _spoken(pair: Sequence[str], yes: frozenset[str] = _CLICKED, no: frozenset[str] = _SKIPPED) -> str:
    """The value that is a click, if one of the two says so or the other says that it is no click; else ""."""
    if not pair:
        return ""
    first, second = ("".join(name_words(text)) for text in pair)
    if (first in yes) != (second in yes):
        return pair[0] if first in yes else pair[1]
    if (first in no) != (second in no):
        return pair[1] if first in no else pair[0]
    return ""


def clicked_rows(label: Guess) -> list[bool]:
    """Which rows have a click."""
    if label.profile.is_label or label.positive is not None or label.profile.odd_labels:
        return [each == 1 for each in label.profile.labels(label.positive)]
    return [float(text) > 0.0 for text in label.profile.texts]


def _click_rate(profile: Profile) -> str:
    labels = profile.labels(None)
    return f"{100 * sum(labels) / len(labels):.3g} % are 1"


def _by_format(profile: Profile) -> Guess | None:
    """A guess for a column that the log's format gives a role."""
    if profile.kind == WEIGHT:
        return Guess(profile, "weight", f"so the format has it; {_values(profile)}")
    if profile.kind is None and profile.filled and short_name(profile.name) in _REQUESTS:
        return _request_of_one_row(profile) or Guess(
            profile, "request", f"so the format has it; {_values(profile)}"
        )
    if profile.kind is None:
        return Guess(profile, "ignore", f"names a row and says nothing of it; {_values(profile)}")
    return None


def _not_a_feature(profile: Profile, clicked: Sequence[bool]) -> Guess | None:
    if profile.distinct == 0:
        return Guess(profile, "ignore", "empty in these rows")
    if profile.is_label and short_name(profile.name) in LABEL_NAMES:
        return Guess(profile, "ignore", "looks like another label, not known when ranking")
    if "propensity" in name_words(profile.name):
        return Guess(profile, "ignore", "says how the item was chosen, not whether it is clicked")
    filled = [each for each, text in zip(clicked, profile.texts, strict=True) if text]
    if len(filled) >= 10 and all(filled) and not all(clicked):
        return Guess(profile, "ignore", "only there in clicked rows: it would give the answer away")
    return None


def _by_role_name(profile: Profile) -> Guess | None:
    for role, names in _NAMES.items():
        may_weigh = profile.numbers is not None and min(profile.numbers) >= 0
        fits = not profile.lists and (role != "weight" or may_weigh)
        if fits and short_name(profile.name) in names:
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


def _time(profile: Profile) -> Guess | None:
    form = profile.time_format
    hinted = bool(TIME_WORDS & set(name_words(profile.name)))
    # A number may mean anything, unless the name suggests a time; text such as 2024-05-01 is unambiguous.
    if form is None or (profile.numbers is not None and not hinted):
        return None
    guess = Guess(profile, "timestamp", f"times like {profile.examples(1)[0]}", kind="time", format=form)
    other = profile.other_time_format
    asks = f'{profile.name}: day or month first? If the other way round, format = "{other}"'
    return guess if other is None else replace(guess, warning=asks)


def guess_field(profile: Profile) -> Guess:
    """The kind of a column that is a feature, or why it is not one."""
    side = _side(profile.name)
    guess = Guess(profile, "field", _values(profile), side)
    if profile.lists or profile.separator is not None:
        separator = None if profile.lists or profile.separator in ("[", ",") else profile.separator
        return replace(guess, kind="set", separator=separator, why=f"lists; {guess.why}")
    if _is_quantity(profile):
        return replace(guess, kind="number", why=f"numbers; {guess.why}")
    if profile.is_unique:
        why = f"another value in every row, such as {profile.examples(1)[0]}"
        if 2 * sum(" " in text.strip() for text in profile.texts) > profile.filled:
            why += '; a field of kind = "text" learns its words'
        return replace(guess, role="ignore", why=why)
    if profile.distinct == 1:
        return replace(guess, role="ignore", why=f"always {profile.examples(1)[0]} in these rows")
    if profile.distinct > max(_AN_ID * profile.filled, _MANY_VALUES):
        return replace(guess, doubt="an id")
    return guess


def may_be_quantity(profile: Profile) -> bool:
    """True if the values are numbers that may mean a size, though they were not taken for one."""
    words = {*name_words(profile.name)}
    named = bool(words & (_IDENTITY_WORDS | _ENTITY_WORDS)) and not words & _QUANTITY_WORDS
    return profile.numbers is not None and profile.distinct > _FEW_VALUES and not named


def _is_quantity(profile: Profile) -> bool:
    words = name_words(profile.name)
    if profile.numbers is None or _IDENTITY_WORDS & set(words):
        return False
    if profile.is_whole and words and words[-1] in _ENTITY_WORDS and not _QUANTITY_WORDS & set(words):
        return False
    if not profile.is_whole:
        return profile.distinct > _MANY_FRACTIONS
    named = bool(_QUANTITY_WORDS & set(name_words(profile.name)))
    counting = not profile.is_unique and profile.is_dense
    return profile.distinct > _MANY_VALUES and (named or counting)


def _side(name: str) -> str:
    found = set(name_words(name))
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
    return shown_names(profile.name for profile in profiles)


def name_words(name: str) -> list[str]:
    """The lower-case words of a column name: user_id, userId and context.userID all end in user, id."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    return re.findall(r"[a-z]+|[0-9]+", spaced.lower())


def short_name(name: str) -> str:
    """The last part of a nested column's path without case and punctuation: context.User-ID is userid."""
    return "".join(name_words(name.rpartition(".")[2]))


# --- What columns say of one another ---


POSITION_WORDS = frozenset(["pos", "position", "rank", "slot", "place", "ordinal"])
"""Words in the name of a column that may say where an item was shown."""
_FEWEST_REPEATS = 50
"""Rows whose item was seen before; with fewer, a column that never changes for an item may do so by chance."""
_MOST_POSITIONS, _FEWEST_SHOWN = 200, 50
_SIGNIFICANT = 3.0
_FEWEST_MEMBERS = 3
_CHANGES = 0.1
"""At this share of changes a column is not a user's attribute, which may change now and then."""


def guess_log(sample: LogSample, label: str | None = None) -> tuple[Guess, ...]:
    """Guess every column by itself, then by the others. Raises SpecError as `guess_all`."""
    guesses = _with_maps([*guess_all(sample, label)], sample.objects)
    clicks = clicked_rows(next(guess for guess in guesses if guess.role == "label"))
    guesses = _without_equals(guesses)
    for role, side in (("cookie", "user"), ("item", "item")):
        guesses = _with_sides(guesses, role, side)
    return tuple(_with_position(guess, clicks) for guess in guesses)


# --- Maps ---


def _with_maps(guesses: Sequence[Guess], objects: Collection[str]) -> list[Guess]:
    """One set for the members of an object of numbers, each of which most rows lack: a map, not a record."""
    for parent in sorted(objects):
        members = {each.name: each for each in guesses if each.name.rpartition(".")[0] == parent}
        profiles = [each.profile for each in members.values()]
        rows = len(profiles[0].texts)
        if (
            len(members) < _FEWEST_MEMBERS
            or any(each.numbers is None or each.filled == rows for each in profiles)
            or sum(each.filled for each in profiles) > rows * len(profiles) / 2
        ):
            continue
        names = [name.removeprefix(f"{parent}.") for name in members]
        texts = [
            json.dumps({name: float(text) for name, text in zip(names, row, strict=True) if text})
            for row in zip(*(each.texts for each in profiles), strict=True)
        ]
        profile = Profile(parent, tuple("" if text == "{}" else text for text in texts), lists=True)
        first, place = guess_field(profile), guesses.index(next(iter(members.values())))
        kept = [each for each in guesses if each.name not in members]
        guesses = [*kept[:place], replace(first, why=f"a map to numbers; {first.why}"), *kept[place:]]
    return [*guesses]


# --- Equal columns ---


_MAY_BE_EQUAL = ("field", "item", "cookie", "timestamp", "request")


def _without_equals(guesses: Sequence[Guess]) -> list[Guess]:
    """Ignore a field that is equal to an earlier column, or that has the same times as the time column."""
    kept: list[Guess] = []
    time = next((guess.profile for guess in guesses if guess.role == "timestamp"), None)
    for guess in guesses:
        if guess.role == "field":
            texts, varies = guess.profile.texts, guess.profile.distinct > 1
            others = [each for each in kept if each.role in _MAY_BE_EQUAL]
            same = next((each for each in others if varies and each.profile.texts == texts), None)
            if same is not None:
                guess = replace(guess, role="ignore", why=f"the same as {same.name} in every row")
            elif time is not None and _are_same_times(time, guess.profile):
                guess = replace(guess, role="ignore", why=f"the same times as {time.name}")
        kept.append(guess)
    return kept


def _are_same_times(first: Profile, second: Profile) -> bool:
    """True if both columns have times in each row, written differently, and the same ones."""
    if first.time_format is None or second.time_format is None or second.distinct < 2:
        return False
    known, other = moments_of(first), moments_of(second)
    return known is not None and known == other


# --- Sides ---


def _with_sides(guesses: Sequence[Guess], role: str, side: str) -> list[Guess]:
    """Give the side of a user or an item to fields whose value never changes for one; a user's keep it only then."""
    owner = next((guess.profile for guess in guesses if guess.role == role), None)
    if owner is None or len(owner.texts) - owner.distinct < _FEWEST_REPEATS or owner.distinct < 2:
        return [*guesses]
    found = list[Guess]()
    for guess in guesses:
        share = _changes(owner, guess.profile) if guess.role == "field" else None
        if share == 0.0 and guess.side != side:
            guess = replace(guess, side=side, why=f"{guess.why}; one value for each {owner.name}")
        elif side == guess.side == "user" and share is not None and share > _CHANGES:
            guess = replace(guess, side="context", why=f"{guess.why}; changes for a {owner.name}")
        found.append(guess)
    return found


def _changes(owner: Profile, profile: Profile) -> float | None:
    """The share of the rows whose owner was seen before with another value; None if too few were, or all are alike."""
    found: dict[str, str] = {}
    values: set[str] = set()
    repeats = changes = 0
    for name, text in zip(owner.texts, profile.texts, strict=True):
        if name and text:
            repeats += name in found
            changes += found.get(name, text) != text
            found[name] = text
            values.add(text)
    return changes / repeats if len(values) > 1 and repeats >= _FEWEST_REPEATS else None


# --- Position bias ---


def _with_position(guess: Guess, clicks: Sequence[bool]) -> Guess:
    """Warn of a column that says where an item was shown, if its first positions are clicked more than its last."""
    profile = guess.profile
    if guess.role != "field" or not POSITION_WORDS & set(name_words(profile.name)):
        return guess
    if profile.numbers is None or not profile.is_whole or not 2 <= profile.distinct <= _MOST_POSITIONS:
        return guess
    guess = replace(
        guess, side="context", optional=True
    )  # a server cannot know it, and its trainer must go on
    counts: dict[int, list[int]] = {}
    for text, clicked in zip(profile.texts, clicks, strict=True):
        if text:
            shown = counts.setdefault(round(float(text)), [0, 0])
            shown[0] += 1
            shown[1] += clicked
    rates = sorted((place, rows, hit) for place, (rows, hit) in counts.items() if rows >= _FEWEST_SHOWN)
    if len(rates) < 2:
        return guess
    first, last = rates[0], rates[-1]
    high, low = first[2] / first[1], last[2] / last[1]
    error = math.sqrt(high * (1 - high) / first[1] + low * (1 - low) / last[1])
    if high - low <= _SIGNIFICANT * error:
        return guess
    fall = f"{100 * high:.3g} % are clicked at {first[0]}, {100 * low:.3g} % at {last[0]}"
    return replace(
        guess,
        why=f"position bias: {fall}; learn it as a field, and send none when ranking",
        warning=f"position bias: of {profile.name}, {fall}. As a field it takes this effect off the others; leave it "
        "out of requests, and evaluate with --without, since a server does not know where an item will stand",
    )


# --- Events ---


_TIME, _COOKIE = "ts", "cookie"


def guess_events(
    profiles: Sequence[Profile], spec: ModelSpec, seen: Mapping[str, FieldSpec]
) -> tuple[Guess, ...]:
    """Guess every column of joined rows, and the position. spec: as `spec_of` makes it of the features `seen`."""
    guesses = guesses_of(profiles, spec, seen)
    places = next(each for each in profiles if each.name == POSITION)
    if "position" in seen or places.distinct < 2:
        return guesses
    place = Guess(replace(places, name="position"), "field", "items[].position, where it was shown", "item")
    return (*guesses, replace(place, optional=True, doubt="a place"))


def guesses_of(
    profiles: Sequence[Profile], spec: ModelSpec, seen: Mapping[str, FieldSpec]
) -> tuple[Guess, ...]:
    """Guess the columns of joined rows. spec: as `spec_of` makes it of the features `seen`."""
    roles = {getattr(spec.input, role): role for role in ROLES_WITH_ONE_COLUMN}
    found = list[Guess]()
    for profile in (each for each in profiles if not each.name.startswith("@")):
        role = roles.get(profile.name)
        if role == "label":
            clicked = sum(text == "1" for text in profile.texts)
            why = f"made by the join: {100 * clicked / len(profile.texts):.3g} % of the rows are clicked"
            guess = Guess(profile, role, why)
        elif role is not None:
            form = profile.time_format if role == "timestamp" else None
            kind = "time" if form else "category"
            guess = Guess(profile, role, _WHY[role], _SIDES.get(role, "context"), kind, format=form)
        elif profile.distinct == 0:
            guess = Guess(profile, "ignore", "empty in these rows", seen[profile.name].side)
        else:  # where the value is tells the side, and a list or object that it is a set
            guess = replace(guess_field(profile), side=seen[profile.name].side)
            if seen[profile.name].kind == "set":
                guess = replace(guess, kind="set", separator=None)
        found.append(guess)
    return tuple(found)


def spec_of(seen: Mapping[str, FieldSpec], columns: Sequence[str]) -> ModelSpec:
    """A spec that reads every feature; the names of label and item are free ones."""
    taken = {*seen, *columns}
    section = InputSection(
        label=_free(("click", "clicked", "is_click"), taken),
        request=REQUEST,
        timestamp=_TIME,
        cookie=_COOKIE if _COOKIE in columns else None,
        item=_free(("item", "item_id", "shown_item"), taken),
    )
    return ModelSpec(
        model=ModelSection(name="model"),
        input=section,
        fields={name: field.model_copy(update={"optional": True}) for name, field in seen.items()}
        or {_TIME: FieldSpec(optional=True)},
    )


def _free(names: Sequence[str], taken: set[str]) -> str:
    return next((name for name in names if name not in taken), names[0])


_WHY: dict[Role, str] = {
    "timestamp": "the time of the event",
    "request": "the request that showed the items together",
    "cookie": "the user",
    "item": "items[].id",
}
