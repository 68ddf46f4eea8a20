"""What the columns of a log tell of one another: the item's attributes, equal columns, position bias.

In: the guesses that each column's own name and values gave. Out: the guesses, changed where another column says more,
with a warning where a person must decide.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from trainer.inspect.guesses import Guess, clicked_rows, guess_all, guess_field, name_words
from trainer.inspect.profiles import Profile, Sample, moments_of

POSITION_WORDS = frozenset(["pos", "position", "rank", "slot", "place", "ordinal"])
"""Words in the name of a column that may say where an item was shown."""
_FEWEST_REPEATS = 50
"""Rows whose item was seen before; with fewer, a column that never changes for an item may do so by chance."""
_MOST_POSITIONS, _FEWEST_SHOWN = 200, 50
_SIGNIFICANT = 3.0
_FEWEST_MEMBERS = 3
_CHANGES = 0.1
"""At this share of changes a column is not a user's attribute, which may change now and then."""


def guess_log(sample: Sample, label: str | None = None) -> tuple[Guess, ...]:
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


def _without_equals(guesses: Sequence[Guess]) -> list[Guess]:
    """Ignore a field that is equal to an earlier column, or that has the same times as the time column."""
    kept: list[Guess] = []
    time = next((guess.profile for guess in guesses if guess.role == "timestamp"), None)
    for guess in guesses:
        if guess.role == "field":
            same = next((each for each in kept if _are_equal(each, guess)), None)
            if same is not None:
                guess = replace(guess, role="ignore", why=f"the same as {same.name} in every row")
            elif time is not None and _are_same_times(time, guess.profile):
                guess = replace(guess, role="ignore", why=f"the same times as {time.name}")
        kept.append(guess)
    return kept


def _are_equal(first: Guess, second: Guess) -> bool:
    usable = first.role in ("field", "item", "cookie", "timestamp", "request")
    return usable and second.profile.distinct > 1 and first.profile.texts == second.profile.texts


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
    return [_with_side(guess, owner, side) if guess.role == "field" else guess for guess in guesses]


def _with_side(guess: Guess, owner: Profile, side: str) -> Guess:
    share = _changes(owner, guess.profile)
    if share == 0.0 and guess.side != side:
        return replace(guess, side=side, why=f"{guess.why}; one value for each {owner.name}")
    if side == guess.side == "user" and share is not None and share > _CHANGES:
        return replace(guess, side="context", why=f"{guess.why}; changes for a {owner.name}")
    return guess


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
