"""Guesses a spec from a log of events: sides from where a value stands, kinds from the values of the joined rows.

In: impressions and their feedback. Out: guesses as `guesses.guess_all` makes them of labelled rows. What an event's
members mean is fixed (docs/events.md), so only fields are guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from model_store.errors import InputError
from model_store.spec.sections import FieldSpec, InputSection, ModelSection
from model_store.spec.spec import ModelSpec
from trainer.events.columns import POSITION
from trainer.examples.event_log import REQUEST, EventLog
from trainer.inspect.guesses import Guess, Role, guess_field
from trainer.inspect.profiles import SAMPLE_ROWS, Profile, profile_of

_TIME, _COOKIE = "ts", "cookie"


def guess_events(
    inputs: Sequence[str], rows: int = SAMPLE_ROWS, on_note: Callable[[str], None] = lambda text: None
) -> tuple[Guess, ...]:
    """Guess every column of the first requests that close. Raises InputError if no impression shows an item."""
    with closing(EventLog(inputs, on_note)) as log:
        seen = log.features_seen()
        spec = spec_of(seen, log.columns())
        log.resolve(spec, {})
        *profiles, places = _profiles(log, [*columns_of(spec, seen), POSITION], rows)
    guesses = guesses_of(profiles, spec, seen)
    if "position" in seen or places.distinct < 2:
        return guesses
    place = Guess(replace(places, name="position"), "field", "items[].position, where it was shown", "item")
    return (*guesses, replace(place, optional=True, doubt="a place"))


def columns_of(spec: ModelSpec, seen: Mapping[str, FieldSpec]) -> list[str]:
    """The columns to guess: those with a role, then the features."""
    roles = _roles_of(spec)
    return [*roles, *(name for name in seen if name not in roles)]


def guesses_of(
    profiles: Sequence[Profile], spec: ModelSpec, seen: Mapping[str, FieldSpec]
) -> tuple[Guess, ...]:
    """Guess the columns of joined rows. spec: as `spec_of` makes it of the features `seen`."""
    roles = _roles_of(spec)
    guesses = [_of_role(roles[each.name], each) for each in profiles if each.name in roles]
    return (
        *guesses,
        *(_of_field(each, seen[each.name]) for each in profiles if each.name not in roles),
    )


def _roles_of(spec: ModelSpec) -> dict[str, Role]:
    given = spec.input
    named: dict[Role, str | None] = {
        "label": given.label,
        "timestamp": given.timestamp,
        "request": given.request,
        "cookie": given.cookie,
        "item": given.item,
    }
    return {name: role for role, name in named.items() if name is not None}


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


def _profiles(log: EventLog, columns: Sequence[str], rows: int) -> list[Profile]:
    values: dict[str, list[Any]] = {name: [] for name in columns}
    for batch in log.batches(columns):
        taken = len(values[columns[0]])
        for name in columns if batch.rows else ():
            values[name] += batch.columns[name].slice(0, rows - taken).to_pylist()
        if taken + batch.rows >= rows:
            break
    if not values[columns[0]]:
        raise InputError(f"{', '.join(log.names)}: no impression shows an item")
    return [profile_of_rows(name, found) for name, found in values.items()]


def profile_of_rows(name: str, values: Sequence[Any]) -> Profile:
    """The profile of a column of joined rows."""
    return profile_of(name, [_readable(value) for value in values], "category")


def _readable(value: Any) -> Any:
    """Members of sets as text; the rest of a joined row's values are readable."""
    if not isinstance(value, list):
        return value
    return [
        (member[0].decode(errors="replace"), member[1])
        if isinstance(member, tuple)
        else member.decode(errors="replace")
        for member in value
    ]


_WHY: dict[Role, str] = {
    "timestamp": "the time of the event",
    "request": "the request that showed the items together",
    "cookie": "the user",
    "item": "items[].id",
}


def _of_role(role: Role, profile: Profile) -> Guess:
    if role == "label":
        clicked = sum(text == "1" for text in profile.texts)
        why = f"made by the join: {100 * clicked / len(profile.texts):.3g} % of the rows are clicked"
        return Guess(profile, "label", why)
    side = {"cookie": "user", "item": "item"}.get(role, "context")
    form = profile.time_format if role == "timestamp" else None
    return Guess(profile, role, _WHY[role], side, kind="time" if form else "category", format=form)


def _of_field(profile: Profile, seen: FieldSpec) -> Guess:
    """Where the value stands tells the side, and a list or object that it is a set."""
    if profile.distinct == 0:
        return Guess(profile, "ignore", "empty in these rows", seen.side)
    guess = replace(guess_field(profile), side=seen.side)
    return replace(guess, kind="set", separator=None) if seen.kind == "set" else guess
