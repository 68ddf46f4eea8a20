"""What the columns of a log are, by a spec or as `ftrie init` guesses; and where rows are.

In: a spec, or the profiles of the first rows. Out: `Roles`. A log whose label or times are partly wrong is what a
doctor is called for, so both are also found where most values fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from model_store.errors import SpecError, listed
from model_store.spec.spec import ModelSpec
from trainer.events.columns import POSITION, PROPENSITY
from trainer.formats.times import time_format
from trainer.inspect.guesses import (
    LABEL_NAMES,
    ROLES_WITH_ONE_COLUMN,
    TIME_WORDS,
    Guess,
    guess_all,
    name_words,
    short_name,
)
from trainer.inspect.profiles import LogSample, Profile

_PROPENSITIES = frozenset({"propensity", "propensities", "pscore"})
_POSITIONS = frozenset({"position", "pos", "slot", "rank", "place"})
_MOST = 0.8
"""The share of values that make a column the time although the others do not fit."""
_LOOKED_AT = 300


@dataclass(frozen=True)
class Roles:
    """What each column is. fields: the kind of each column that is learned from; ignored: columns that are not.

    is_given: by a spec; names_fields: it has [fields]. time_form: see `trainer.formats.times.parse_times`. missing:
    columns that the spec's fields need and the log lacks. position: of an item in its list; propensity: with which
    an item was shown.
    """

    label: str
    positive: str | tuple[str, ...] | None = None
    views: str | None = None
    weight: str | None = None
    timestamp: str | None = None
    time_form: str | None = None
    request: str | None = None
    cookie: str | None = None
    item: str | None = None
    position: str | None = None
    propensity: str | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()
    missing: tuple[str, ...] = ()
    is_given: bool = False
    names_fields: bool = False

    @property
    def named(self) -> dict[str, str]:
        """The columns with a role, by role."""
        names = (*ROLES_WITH_ONE_COLUMN, "position", "propensity")
        return {name: column for name in names if (column := getattr(self, name)) is not None}

    def without(self, *names: str) -> str:
        """What to do so that columns are no features."""
        quoted = ", ".join(f'"{name}"' for name in names)
        if self.names_fields:
            return f"take {quoted} out of [fields]"
        return f"[input] ignore = [{quoted}]" + ("" if self.is_given else ", or no entry in [fields]")

    @property
    def given(self) -> frozenset[str]:
        """The columns that say whether a row is clicked, or how much it counts."""
        return frozenset(filter(None, (self.label, self.views, self.weight)))

    @property
    def identities(self) -> frozenset[str]:
        """The columns of ids, and of times."""
        return frozenset(filter(None, (self.request, self.cookie, self.item, self.timestamp)))


def roles_by_spec(spec: ModelSpec, columns: Sequence[str], profiles: Sequence[Profile]) -> Roles:
    """The roles that a spec gives; times, positions and propensities that it does not name are guessed.

    Raises SpecError if the log lacks the label or another column of [input].
    """
    given = spec.input
    absent = [name for name in given.named_columns if name not in columns]
    if absent:
        raise SpecError(f"input: no column {absent[0]!r} in the log; it has: {listed(columns, absent[0])}")
    fields = {
        each.column or name: each.kind for name, each in spec.fields.items() if not each.is_derived
    } or {name: "category" for name in columns if name not in {*given.named_columns, *given.ignore}}
    found = {name: kind for name, kind in fields.items() if name in columns}
    roles = Roles(
        **{role: getattr(given, role) for role in ROLES_WITH_ONE_COLUMN},
        positive=given.positive,
        position=given.position,
        time_form=time_format(spec),
        fields=found,
        ignored=frozenset(columns) - found.keys() - set(given.named_columns),
        missing=tuple(
            each.column or name
            for name, each in spec.fields.items()
            if not each.is_derived and not each.optional and (each.column or name) not in columns
        ),
        is_given=True,
        names_fields=bool(spec.fields),
    )
    return _with_positions(_with_time(roles, profiles), columns)


def roles_by_guess(sample: LogSample, label: str | None) -> Roles:
    """The roles as `ftrie init` guesses them.

    A column named like a label, or `label`, is the label even if some of its values cannot be. Raises SpecError if no
    column can be told to be it.
    """
    profiles = sample.profiles
    try:
        guesses = guess_all(sample, label)
    except SpecError:
        names = [each.name for each in profiles]
        if label is not None and label not in names:
            raise
        named = [name for wanted in LABEL_NAMES for name in names if short_name(name) == wanted]
        chosen = label if label is not None else next(iter(named), None)
        if chosen is None:
            raise
        others = tuple(each for each in profiles if each.name != chosen)
        pretended = Profile(chosen, tuple("01"[i % 2] for i in range(len(profiles[0].texts))))
        guesses = (*guess_all(LogSample((pretended, *others), sample.has_header), chosen),)
    return roles_of_guesses(guesses, profiles, [each.name for each in profiles])


def roles_of_guesses(guesses: Sequence[Guess], profiles: Sequence[Profile], columns: Sequence[str]) -> Roles:
    """The roles that guesses give; columns: all that the log has."""
    by_role = {guess.role: guess for guess in guesses if guess.role not in ("field", "ignore")}
    named: dict[str, Any] = {role: guess.name for role, guess in by_role.items()}
    time = by_role.get("timestamp")
    roles = Roles(
        **named,
        positive=by_role["label"].positive,
        time_form=time.format if time is not None and time.format != "iso" else None,
        fields={guess.name: guess.kind for guess in guesses if guess.role in ("field", "item")},
        ignored=frozenset(guess.name for guess in guesses if guess.role == "ignore"),
    )
    return _with_positions(_with_time(roles, profiles), columns)


def _with_time(roles: Roles, profiles: Sequence[Profile]) -> Roles:
    """The roles with a time column, if none is named and one is named like a time and has times in most rows."""
    if roles.timestamp is not None:
        return roles
    for profile in profiles:
        usable = profile.name not in roles.given and not profile.lists and profile.filled
        if not usable or not TIME_WORDS & set(name_words(profile.name)):
            continue
        texts = list(profile.counts)[:: max(len(profile.counts) // _LOOKED_AT, 1)]
        forms = Counter(Profile(profile.name, (text,)).time_format for text in texts)
        form, count = forms.most_common(1)[0]
        # By all of them, day and month are told apart.
        form = Profile(profile.name, tuple(texts)).time_format or form
        if form is not None and count >= _MOST * len(texts) and profile.distinct > 1:
            own = {} if roles.is_given else {profile.name}
            fields = {name: kind for name, kind in roles.fields.items() if name not in own}
            time_form = None if form == "iso" else form
            return replace(roles, timestamp=profile.name, time_form=time_form, fields=fields)
    return roles


def _with_positions(roles: Roles, columns: Sequence[str]) -> Roles:
    def named(words: frozenset[str], most: int) -> str | None:
        free = (name for name in columns if name not in roles.given)
        return next(
            (name for name in free if words & set(name_words(name)) and len(name_words(name)) <= most), None
        )

    position = roles.position or (POSITION if POSITION in columns else named(_POSITIONS, 2))
    propensity = PROPENSITY if PROPENSITY in columns else named(_PROPENSITIES, 4)
    return replace(roles, position=position, propensity=propensity)
