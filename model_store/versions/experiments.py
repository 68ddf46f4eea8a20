"""An experiment: how a model's traffic is divided, which cookies are pinned, which variants are shadows, what explores.

`Experiment` is the record, checked whenever one is made; `StoredExperiment` reads and replaces it in Redis. The server
turns it into an assignment of variants (`server.ranking.experiments`). docs/experiments.md describes its use.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from model_store.bounded import is_finite, is_text, json_names, json_object
from model_store.errors import ExperimentChanged, ExperimentError, StoreError, listed
from model_store.keys import MAX_ID_BYTES, ModelKeys, number
from model_store.redis.connection import StoreConnection
from model_store.spec.spec import MAX_VARIANTS, SHARE_TOLERANCE
from model_store.versions.audit import PYTHON, Audit, By
from model_store.versions.manifest import now

FORMAT = 2
"""Of a record with EXTRAS, which an ftrie that reads only format 1 would not follow; else 1."""
MAX_PINS = 10_000
MAX_PINS_BYTES = 4 << 20  # of all cookies together; every server reads them and sends them to each worker
MAX_SALT_BYTES = 256
MAX_OBJECTIVE_BYTES = 4096
RUNNING, STOPPED = "running", "stopped"
TEAM, PROBABILISTIC = "team", "probabilistic"
MAX_TEAMS = 4
PIN = "pin:"
UCB, THOMPSON = "ucb", "thompson"
EXTRAS = ("explore", "apprentice", "interleave", "draft")
"""Fields of the HASH that are written only where they say something."""

Parsed = TypeVar("Parsed")


@dataclass(frozen=True)
class Explore:
    """How requests explore that do not say so themselves. docs/decide.md describes each member."""

    policy: str
    """UCB or THOMPSON."""
    width: float
    """A multiple of the score's uncertainty."""
    share: float = 1.0
    """At most this share of the requests explores, chosen by request id."""
    cost: float = 1.0
    """What exploration may cost of a request's expected clicks, on average over its draws; 1: no limit."""
    new_share: float = 0.0
    """The share of a list's places that exploring requests give to new items."""
    new_below: float = 0.0
    """An item is new while the evidence of its own key is below this, in clicks."""

    def __post_init__(self) -> None:
        if self.policy not in (UCB, THOMPSON):
            raise ExperimentError(
                f"explore: got the policy {self.policy!r}; expected {UCB!r} or {THOMPSON!r}"
            )
        for name in ("width", "new_below"):
            if not is_finite(value := getattr(self, name)) or value < 0.0:
                raise ExperimentError(f"explore: got {name} {value!r}; expected a finite number, 0 or more")
        for name in ("share", "cost", "new_share"):
            if not is_finite(value := getattr(self, name)) or not 0.0 <= value <= 1.0:
                raise ExperimentError(f"explore: got {name} {value!r}; expected a number from 0 to 1")
        if self.new_share and not self.new_below:
            raise ExperimentError(
                "explore: new_below is 0, so no item is new; expected the clicks that end it"
            )

    def __str__(self) -> str:
        of_new = f", {self.new_share:g} of the places for items below {self.new_below:g} clicks"
        return (
            f"{self.policy}:{self.width:g}, at most {self.share:g} of the requests, at most {self.cost:g} of the clicks"
            f"{of_new if self.new_share else ''}"
        )


@dataclass(frozen=True)
class Experiment:
    """One model's experiment. Immutable; making one that contradicts itself raises ExperimentError.

    `revision` counts the changes of the stored record: the one this was read at, or made from.
    """

    revision: int = 0
    state: str = RUNNING
    winner: str = ""
    """With STOPPED: the variant that answers every request; else empty."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """Variant → fraction of traffic; the sum is 1, variants not named get 0. Empty: the spec's shares."""
    salt: str = ""
    """The salt for hashing cookies; empty: the model's name."""
    pins: Mapping[str, str] = field(default_factory=dict)
    """Cookie → variant, regardless of the shares; at most MAX_PINS."""
    shadows: tuple[str, ...] = ()
    """Variants scored for each request and only logged."""
    objective: str = ""
    """The objective of requests that name none; empty: ctr."""
    explore: Explore | None = None
    """The exploration of requests that name none."""
    apprentice: bool = False
    """Whether requests are answered in the order in which their candidates came; the model's order is only logged."""
    interleave: tuple[str, ...] = ()
    """Variants that answer together, in one list, every request of a cookie without a pin; empty: one by its share."""
    draft: str = TEAM
    """How they are interleaved: TEAM or PROBABILISTIC."""
    updated: datetime | None = None
    """When the record was last written, UTC; None if never."""
    assigned: datetime | None = None
    """When cookies last got other variants, but for pins, UTC; None if unknown."""

    def __post_init__(self) -> None:
        _check_shares(self.shares)
        _check_pins(self.pins)
        _check_end(self.state, self.winner)
        _check_text("salt", self.salt, MAX_SALT_BYTES)
        _check_text("objective", self.objective, MAX_OBJECTIVE_BYTES)
        if len(set(self.shadows)) < len(self.shadows) or len(self.shadows) > MAX_VARIANTS:
            raise ExperimentError(
                f"shadows: got {_listed(self.shadows)}; expected each variant once, {MAX_VARIANTS} at most"
            )
        _check_interleaving(self.interleave, self.draft)
        if self.interleave and (self.apprentice or self.explore is not None):
            what = "apprentice mode" if self.apprentice else "exploration"
            raise ExperimentError(
                f"interleave: got variants with {what}; expected either of them, so end the other"
            )

    @property
    def running(self) -> bool:
        """True if shares and pins decide; else the winner answers."""
        return self.state == RUNNING

    @property
    def together(self) -> str:
        """What answers that interleave variants have in the place of a variant's name; empty without interleaving."""
        return "+".join(self.interleave)

    @property
    def assignment(self) -> tuple[str, Mapping[str, float], str, tuple[str, ...], str]:
        """What says which cookie gets which variant, but for pins."""
        return self.winner, self.shares, self.salt, self.interleave, self.draft

    def check_variants(self, variants: Sequence[str]) -> None:
        """Raise ExperimentError for a variant that is not among a model's `variants`."""
        named = {
            "shares": self.shares,
            "pins": self.pins.values(),
            "shadows": self.shadows,
            "interleave": self.interleave,
            "winner": [self.winner] if self.winner else [],
        }
        for part, names in named.items():
            for name in names:
                if name not in variants:
                    raise ExperimentError(
                        f"{part}: no variant {name!r} in the model; it has: {listed(variants, name)}"
                    )
        if self.together in variants:
            raise ExperimentError(
                f"interleave: answers would be counted as of {self.together!r}, which is a variant of the model; "
                "give the variants in another order"
            )

    def pinned(self, pins: Mapping[str, str]) -> Experiment:
        """With these pins added, replacing existing ones of the same cookies. Raises ExperimentError."""
        return replace(self, pins={**self.pins, **pins})

    def unpinned(self, cookies: Iterable[str]) -> Experiment:
        """Without the pins of these cookies, if any."""
        gone = set(cookies)
        return replace(self, pins={cookie: v for cookie, v in self.pins.items() if cookie not in gone})

    def stopped(self, winner: str) -> Experiment:
        """Stopped, with `winner` answering every request. Shares, pins and shadows stay in the record, unused."""
        return replace(self, state=STOPPED, winner=winner, interleave=(), draft=TEAM)

    def divided(self, shares: Mapping[str, float], salt: str | None = None) -> Experiment:
        """Running, with these shares and no interleaving, and a new salt if given. Raises ExperimentError."""
        salt = self.salt if salt is None else salt
        divided = replace(self, state=RUNNING, winner="", shares=dict(shares), salt=salt)
        return divided.interleaved(())

    def interleaved(self, variants: Sequence[str], draft: str = TEAM) -> Experiment:
        """Running, with these variants in one list; without any, the shares divide. Raises ExperimentError."""
        return replace(self, state=RUNNING, winner="", interleave=tuple(variants), draft=draft)

    # -- as JSON, for commands and other processes

    def to_json(self) -> str:
        """One line; `from_json` reads it back."""
        parts = self.plain()
        if not self.interleave:  # a server before it cannot read these
            del parts["interleave"], parts["draft"]
        return json.dumps(parts, ensure_ascii=False, separators=(",", ":"))

    def plain(self) -> dict[str, Any]:
        """The record as plain JSON values."""
        return {
            **vars(self),
            "explore": self.explore and asdict(self.explore),
            "shares": dict(self.shares),
            "pins": dict(self.pins),
            "shadows": list(self.shadows),
            "interleave": list(self.interleave),
            "updated": self.updated and self.updated.isoformat(),
            "assigned": self.assigned and self.assigned.isoformat(),
        }

    @classmethod
    def from_json(cls, text: str) -> Experiment:
        """Read what `to_json` wrote. Raises ExperimentError."""
        try:
            parts = json_object(text)
            for name in ("updated", "assigned"):
                parts[name] = datetime.fromisoformat(parts[name]) if parts[name] else None
            explore = Explore(**parts["explore"]) if parts.get("explore") else None
            named = {name: tuple(parts.get(name, ())) for name in ("shadows", "interleave")}
            return cls(**{**parts, **named, "explore": explore})
        except (KeyError, TypeError, ValueError) as error:
            raise ExperimentError(f"the experiment cannot be read: {error}") from None

    # -- as a HASH

    def to_hash(self) -> dict[str, str]:
        """The HASH's fields except the revision, which the store counts; `from_hash` reads them back."""
        pins = {PIN + cookie: variant for cookie, variant in self.pins.items()}
        explore = {"explore": json.dumps(asdict(self.explore))} if self.explore else {}
        extras = explore | ({"apprentice": "1"} if self.apprentice else {})
        if self.interleave:
            extras |= {"interleave": json.dumps(self.interleave, ensure_ascii=False), "draft": self.draft}
        return (pins | extras) | {
            "format": str(FORMAT if extras else 1),
            "state": self.state,
            "winner": self.winner,
            "shares": json.dumps(dict(self.shares), ensure_ascii=False),
            "salt": self.salt,
            "shadows": json.dumps(self.shadows, ensure_ascii=False),
            "objective": self.objective,
            "updated": (self.updated or now()).isoformat(),
            "assigned": self.assigned.isoformat() if self.assigned else "",
        }

    @classmethod
    def from_hash(cls, fields: Mapping[bytes, bytes]) -> Experiment:
        """Read a HASH. Raises ExperimentError naming what is missing or cannot be read."""
        try:
            text = {name.decode(): value.decode() for name, value in fields.items()}
        except UnicodeDecodeError as error:
            raise ExperimentError(f"got {error.object[:40]!r}; expected UTF-8") from None
        try:
            # Checked first: what a later format says in the other fields is not known.
            if (version := number(text["format"])) > FORMAT:
                raise ExperimentError(f"format: got {version}, this ftrie reads up to {FORMAT}: upgrade it")
            return cls(
                revision=number(text["revision"]),
                state=text["state"],
                winner=text["winner"],
                shares=_named("shares", json_object, text["shares"]),
                salt=text["salt"],
                pins={n.removeprefix(PIN): variant for n, variant in text.items() if n.startswith(PIN)},
                shadows=tuple(_named("shadows", json_names, text["shadows"])),
                objective=text["objective"],
                explore=Explore(**_named("explore", json_object, text["explore"]))
                if "explore" in text
                else None,
                apprentice=text.get("apprentice") == "1",
                interleave=tuple(_named("interleave", json_names, text.get("interleave", "[]"))),
                draft=text.get("draft", TEAM),
                updated=_moment("updated", text),
                assigned=_moment("assigned", text) if text["assigned"] else None,
            )
        except KeyError as error:
            raise ExperimentError(f"field {error} is missing") from None
        except (OverflowError, RecursionError, TypeError, ValueError) as error:
            raise ExperimentError(str(error)) from None


def _check_shares(shares: Mapping[str, float]) -> None:
    for name, share in shares.items():
        if not is_finite(share) or not 0.0 <= share <= 1.0:
            raise ExperimentError(f"shares: got {share!r} for {name!r}; expected a number from 0 to 1")
    # Exact, so that the order of the variants does not decide whether they sum to 1.
    total = math.fsum(shares.values())
    if shares and abs(total - 1.0) > SHARE_TOLERANCE:
        raise ExperimentError(f"shares: {_listed(shares)} sum to {total:.9g}; expected 1")


def _check_pins(pins: Mapping[str, str]) -> None:
    if len(pins) > MAX_PINS:
        raise ExperimentError(f"pins: got {len(pins):,}; expected at most {MAX_PINS:,}; unpin some")
    for cookie, variant in pins.items():
        if not is_text(cookie) or not is_text(variant):
            raise ExperimentError(f"pins: got {variant!r} for {cookie!r}; expected a cookie and a variant")
        if not cookie:
            raise ExperimentError("pins: got an empty cookie; a request without a cookie cannot be pinned")
        _check_text("pins", cookie, MAX_ID_BYTES)
    if (size := sum(len(cookie.encode()) for cookie in pins)) > MAX_PINS_BYTES:
        raise ExperimentError(f"pins: got cookies of {size:,} bytes; expected at most {MAX_PINS_BYTES:,}")


def _check_end(state: str, winner: str) -> None:
    if state not in (RUNNING, STOPPED):
        raise ExperimentError(f"state: got {state!r}; expected {RUNNING!r} or {STOPPED!r}")
    if (state == STOPPED) != bool(winner):
        raise ExperimentError(f"winner: got {winner!r} while {state}; expected one if and only if stopped")


def _check_interleaving(variants: Sequence[str], draft: str) -> None:
    if variants and (not 2 <= len(variants) <= MAX_TEAMS or len(set(variants)) < len(variants)):
        raise ExperimentError(
            f"interleave: got {_listed(variants)}; expected 2 to {MAX_TEAMS} variants, each once"
        )
    if draft not in (TEAM, PROBABILISTIC):
        raise ExperimentError(f"draft: got {draft!r}; expected {TEAM!r} or {PROBABILISTIC!r}")


def _check_text(part: str, text: str, most: int) -> None:
    try:
        size = len(text.encode())
    except (UnicodeEncodeError, AttributeError):
        raise ExperimentError(f"{part}: got {text!r}; expected Unicode text") from None
    if size > most:
        raise ExperimentError(f"{part}: got {size:,} bytes; expected at most {most:,}")


def _moment(name: str, text: Mapping[str, str]) -> datetime:
    moment = datetime.fromisoformat(text[name])
    if moment.tzinfo is None:
        raise ExperimentError(f"{name}: got {text[name]!r}; expected a time with a time zone")
    return moment


def _named(part: str, read: Callable[[str], Parsed], text: str) -> Parsed:
    try:
        return read(text)
    except ValueError as error:
        raise ExperimentError(f"{part}: {error}") from None


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(str, names)) or "none"


ANY = "any"
ATTEMPTS = 5
FIXED = ("revision", *Experiment().to_hash(), *EXTRAS)
"""The fields of the HASH but the pins."""


class StoredExperiment:
    """One model's experiment in Redis, read whole and replaced whole by experiment.lua.

    A change names the revision it was made from, and fails if another operator was faster. Servers learn of it through
    the model's event stream. Every method raises StoreUnavailable if the store does not answer.
    """

    def __init__(self, connection: StoreConnection, keys: ModelKeys, model: str, audit: Audit) -> None:
        self._store = connection
        self._keys = keys
        self._model = model
        self._audit = audit
        self._replace = connection.script("experiment")
        self._last: tuple[tuple[Any, ...], Experiment] | None = None

    def read(self) -> Experiment | None:
        """The record, or None. Raises StoreError naming what is wrong with it and the remedy.

        Pins are read again only if the revision, another field or their number changed: a server asks every second, and
        there may be 10,000 pins.
        """
        with (
            self._store.answers(self._keys.experiment),
            self._store.at(self._keys.experiment).pipeline(transaction=True) as pipe,
        ):
            # In one transaction, so that the number of fields is that of the same revision.
            pipe.hmget(self._keys.experiment, *FIXED)
            pipe.hlen(self._keys.experiment)
            fixed, size = pipe.execute()
        if not size:
            return None
        seen = (*fixed, size)
        # Replaced whole, with what it was read for. If the record changes between the two reads, `seen` is the older
        # one, so that the next call reads again.
        if self._last is None or self._last[0] != seen:
            self._last = seen, self._whole(size)
        return self._last[1]

    def write(self, changed: Experiment) -> Experiment:
        """Replace the record that has `changed.revision`; returns the stored record with its new revision.

        Raises ExperimentChanged if the record has another revision; then nothing has changed.
        """
        return self._put(changed, str(changed.revision))

    def change(
        self, edit: Callable[[Experiment], Experiment], revision: int | None = None, by: By = PYTHON
    ) -> Experiment:
        """Read, edit and write, again if another operator was faster, and record it. Returns the stored record.

        `revision`: change only that one, else raise ExperimentChanged. `edit` gets an empty Experiment if there is no
        record, and may raise ExperimentError.
        """
        for attempt in range(ATTEMPTS):
            before = self.read() or Experiment()
            if revision is not None and revision != before.revision:
                raise self._changed(revision, before.revision)
            try:
                # Both are the record's own: an edit may return a new Experiment, which has neither.
                after = replace(edit(before), revision=before.revision, assigned=before.assigned)
                if after.assignment != before.assignment:
                    after = replace(after, assigned=self._now())
                after = self.write(after)
            except ExperimentChanged:
                if attempt == ATTEMPTS - 1:
                    raise
            else:
                self._record(by, before, after)
                return after
        raise AssertionError("the loop returns or raises")

    def clear(self, by: By = PYTHON) -> Experiment:
        """Write an empty record, so that the spec applies, whether or not the present record is readable."""
        before = None
        with suppress(StoreError):  # an unreadable one
            before = self.read()
        after = self._put(Experiment(assigned=self._now()), ANY)
        self._record(by, before or Experiment(), after, "clear")
        return after

    def _now(self) -> datetime:
        # Compared with the minutes of answers, which are dated by the store's clock: an operator's machine that is an
        # hour behind would count an hour of the former division as the new one's.
        return datetime.fromtimestamp(self._store.now_us(self._keys.experiment) // 1_000_000, UTC)

    def _put(self, experiment: Experiment, revision: str) -> Experiment:
        # The time of this machine: the revision decides what is later. To the microsecond, since revisions begin again
        # in a store that lost its data: `read` must tell a record from the lost one with as many pins.
        fresh = replace(experiment, updated=datetime.fromtimestamp(self._store.clock.time(), UTC))
        words = [word for pair in fresh.to_hash().items() for word in pair]
        answer = self._replace([self._keys.experiment, self._keys.events], [revision, *words])
        if answer[0] == b"changed":
            raise self._changed(experiment.revision, answer[1].decode())
        return replace(fresh, revision=int(answer[1]))

    def _record(self, by: By, before: Experiment, after: Experiment, action: str = "") -> None:
        """Write a change to the audit. action: by default `start`, `stop`, or what differs."""
        if not action and before.running != after.running:
            action = "start" if after.running else "stop"
        action = action or _action(before, after)
        self._audit.write(by, action, _differing(before, after), _differing(after, before))

    def _whole(self, size: int) -> Experiment:
        try:
            # Before HGETALL: millions of pins, written by hand, must not be fetched each second.
            if size > MAX_PINS + len(FIXED):
                raise ExperimentError(f"pins: got about {size - len(FIXED):,}; expected at most {MAX_PINS:,}")
            with self._store.answers():
                fields = self._store.at(self._keys.experiment).hgetall(self._keys.experiment)
            return Experiment.from_hash(fields)
        except ExperimentError as error:
            raise StoreError(
                f"{self._keys.experiment}: {error}; `ftrie experiment clear {self._model}` resets it"
            ) from None

    def _changed(self, expected: int, there: int | str) -> ExperimentChanged:
        return ExperimentChanged(
            f"the experiment of {self._model} has changed: expected revision {expected}, found {there}; "
            f"check `ftrie experiment show {self._model}` and try again"
        )


_AUDITED = ("state", "winner", "shares", "salt", "shadows", "objective", *EXTRAS)


def _differing(of: Experiment, other: Experiment) -> str:
    """JSON of the parts in which an experiment differs from another. Pins only by number: cookies are personal data."""
    mine, others = of.plain(), other.plain()
    parts = {name: mine[name] for name in _AUDITED if mine[name] != others[name]}
    parts |= {"pins": len(of.pins)} if of.pins != other.pins else {}
    return json.dumps(parts, ensure_ascii=False, separators=(",", ":"))


def _action(before: Experiment, after: Experiment) -> str:
    if before.shares != after.shares:
        return "shares"
    if (before.interleave, before.draft) != (after.interleave, after.draft):
        return "interleave"
    if before.pins != after.pins:
        return "unpin" if before.pins.items() >= after.pins.items() else "pin"
    return "shadow" if before.shadows != after.shadows else "settings"
