"""What the columns of a log tell of one another: the item's attributes, equal columns, position bias.

In: the guesses that each column's own name and values gave. Out: the guesses, changed where another column says more,
with a warning where a person must decide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from trainer.guess.guesses import Guess, guess_all, name_words
from trainer.guess.profiles import Profile, Sample, moments_of

POSITION_WORDS = frozenset(["pos", "position", "rank", "slot", "place", "ordinal"])
"""Words in the name of a column that may say where an item was shown."""
_FEWEST_REPEATS = 50
"""Rows whose item was seen before; with fewer, a column that never changes for an item may do so by chance."""
_MOST_POSITIONS, _FEWEST_SHOWN = 200, 50
_SIGNIFICANT = 3.0


def guess_log(sample: Sample, label: str | None = None) -> tuple[Guess, ...]:
    """Guess every column by itself, then by the others. Raises SpecError as `guess_all`."""
    guesses = [*guess_all(sample, label)]
    clicks = _clicks(guesses)
    guesses = _without_equals(guesses)
    guesses = _with_sides(guesses)
    return tuple(_with_position(guess, clicks) for guess in guesses)


def _clicks(guesses: Sequence[Guess]) -> list[bool]:
    label = next(guess for guess in guesses if guess.role == "label")
    if label.profile.is_label or label.positive is not None:
        return [each == 1 for each in label.profile.labels(label.positive)]
    return [float(text) > 0.0 for text in label.profile.texts]


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


def _with_sides(guesses: Sequence[Guess]) -> list[Guess]:
    """Give the item's side to fields whose value never changes for an item."""
    item = next((guess.profile for guess in guesses if guess.role == "item"), None)
    if item is None or len(item.texts) - item.distinct < _FEWEST_REPEATS or item.distinct < 2:
        return [*guesses]
    return [
        replace(guess, side="item", why=f"{guess.why}; one value for each {item.name}")
        if guess.role == "field" and guess.side != "item" and _is_of(item, guess.profile)
        else guess
        for guess in guesses
    ]


def _is_of(item: Profile, profile: Profile) -> bool:
    """True if the column varies, but not for an item, in enough rows whose item was seen before."""
    found: dict[str, str] = {}
    repeats = 0
    for name, text in zip(item.texts, profile.texts, strict=True):
        if not name or not text:
            continue
        if found.setdefault(name, text) != text:
            return False
        repeats += 1
    return len(set(found.values())) > 1 and repeats - len(found) >= _FEWEST_REPEATS


# --- Position bias ---


def _with_position(guess: Guess, clicks: Sequence[bool]) -> Guess:
    """Warn of a column that says where an item was shown, if its first positions are clicked more than its last."""
    profile = guess.profile
    if guess.role != "field" or not POSITION_WORDS & set(name_words(profile.name)):
        return guess
    if profile.numbers is None or not profile.is_whole or not 2 <= profile.distinct <= _MOST_POSITIONS:
        return guess
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
        side="context",
        why=f"position bias: {fall}; learn it as a field, and send none when ranking",
        warning=f"position bias: of {profile.name}, {fall}. As a field it takes this effect off the others; leave it "
        "out of requests, and evaluate with --without, since a server does not know where an item will stand",
    )
