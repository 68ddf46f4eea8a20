"""Every key in Redis, its lifetime and its parts, who may use it, and the parsers of single values.

A key is one entry of `ModelKeys` or `RecordKeys`. From it come the key's name (`ModelKeys("ads").active`), its row in
docs/redis_keys.md, the rules in docs/operating.md (`ROLES`), and what `ftrie store check` looks for (`store_check`).
A model's keys share the hash tag `{model}`, so that one script may use them all on a cluster.

An invalid single value raises `UnreadableValue`, which names the key, the value and the command that repairs it.
Invalid members of a collection are skipped and reported to an `on_junk` callback.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

from model_store.bounded import json_object
from model_store.errors import StoreError, UnreadableValue, UsageError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MAX_ID_BYTES = 4096
MOST = 2**53 - 1
"""Lua counts in doubles and would round larger numbers."""
MOST_COUNTED = 10**12
"""The maximum of versions and epochs: a version per millisecond for thirty years, or two million steps of epochs."""
EPOCH_STEP = 2**20
"""An epoch is at most this much above the one before it. The step is random, since a replica that lacks the last writes
assigns epochs from a counter set back: with steps of 1 it would give the epoch of a living writer to a second one."""

Report = Callable[[str], None]
Metrics = Mapping[str, Mapping[str, float]]
"""A model's metrics by variant."""
T = TypeVar("T", bound="DataclassInstance")

SNAPSHOT, DELTA = "snapshot", "delta"
"""The kinds of versions. Here, so that listing versions does not import Arrow."""

_MODEL_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
# 16 digits hold 2^53 - 1; longer ones are refused before they are parsed.
_NUMBER = re.compile(r"0|[1-9][0-9]{0,15}")
_HASH = re.compile(rb"[0-9a-f]{16}")
_MODEL_KEY = re.compile(r"ftrie:\{([A-Za-z0-9._-]+)\}:")
# Later times raise in `datetime`.
_LATEST_S = 253_402_300_799  # the end of the year 9999
_SHOWN_BYTES = 60


# -- single values


def silent(text: str) -> None:
    """An `on_junk` callback that ignores reports."""


def number(value: str | bytes, least: int = 0, most: int = MOST) -> int:
    """An integer as all writers write it: decimal digits, no sign, no leading zero. Raises ValueError."""
    text = value if isinstance(value, str) else value.decode("ascii", "replace")
    if not _NUMBER.fullmatch(text) or not least <= int(text) <= most:
        raise ValueError(f"got {shown(value)}, expected a whole number from {least} to {most}")
    return int(text)


def plain_metrics(metrics: Metrics) -> dict[str, dict[str, float | None]]:
    """Metrics in JSON's types: NaN and infinity become None."""
    return {
        variant: {name: float(value) if math.isfinite(value) else None for name, value in values.items()}
        for variant, values in metrics.items()
    }


def metrics_to_json(metrics: Metrics) -> str:
    """Canonical JSON of metrics; NaN and infinity become null."""
    return json.dumps(plain_metrics(metrics), sort_keys=True, separators=(",", ":"), allow_nan=False)


def metrics_from_json(text: str) -> dict[str, dict[str, float]]:
    """Read `metrics_to_json`'s text; null becomes NaN. Raises ValueError for anything else."""
    try:
        parsed = json.loads(text)
        return {
            variant: {name: math.nan if value is None else float(value) for name, value in values.items()}
            for variant, values in parsed.items()
        }
    except (AttributeError, OverflowError, RecursionError, TypeError, ValueError):
        raise ValueError(f"metrics: got {shown(text)}, expected an object of objects of numbers") from None


def counter(key: str, value: bytes | None) -> int:
    """The value of `sequence`, `epoch` or `active_epoch`; 0 if the key is missing. Raises UnreadableValue."""
    return 0 if value is None else _counted(key, value, 0)


def version_number(key: str, value: bytes) -> int:
    """A version number, as in `active`. Raises UnreadableValue."""
    return _counted(key, value, 1)


def _counted(key: str, value: bytes, least: int) -> int:
    try:
        return number(value, least, MOST_COUNTED)
    except ValueError as error:
        raise unreadable(key, str(error)) from None


def version_numbers(key: str, values: Iterable[bytes], on_junk: Report) -> list[int]:
    """The members of `versions` or `history` in order; invalid ones are skipped and reported."""
    found = []
    for value in values:
        try:
            found.append(version_number(key, value))
        except UnreadableValue as error:
            on_junk(f"{error}; it is skipped")
    return found


def time_of(seconds: float) -> datetime | None:
    """A score of `versions`, seconds since 1970; None if it is out of range."""
    return datetime.fromtimestamp(seconds, UTC) if 0 < seconds <= _LATEST_S else None


def record(key: str, found: Mapping[bytes, bytes], defaults: T, on_junk: Report) -> T:
    """A HASH of integers and texts, such as the guard record, with the fields of the dataclass `defaults`.

    Missing and invalid fields have their default; invalid ones are reported.
    """
    values: dict[str, Any] = {}
    for each in fields(defaults):
        raw, default = found.get(each.name.encode()), getattr(defaults, each.name)
        if raw is None:
            continue
        try:
            values[each.name] = number(raw) if isinstance(default, int) else raw.decode()
        except ValueError as error:
            why = f"field {each.name}: {error}"
            on_junk(f"{unreadable(key, why)}; {default!r} is used instead")
    return replace(defaults, **values)


def online_cell(
    key: str, field: bytes, value: bytes, members: Sequence[str], buckets: int
) -> tuple[str, tuple[int, int], list[list[int]], dict[str, list[list[int]]]]:
    """A field of a HASH of outcomes: variant, first and last version, and a list of each member's sums by bucket.

    And by team, its credit for and against it, where variants are interleaved. Members added by a later ftrie are
    ignored; `unseen` may be left out. Raises UnreadableValue.
    """
    try:
        parts = json_object(value)
        sums = [parts[name] if name != "unseen" else parts.get(name, [0] * buckets) for name in members]
        first, last = parts["versions"]
        credit = parts.get("credit", {})
        lists = [*sums, *chain.from_iterable(credit.values())]
        if any(len(each) != 2 for each in credit.values()):
            raise ValueError("a team has another number of credits")
        if not all(isinstance(each, list) and len(each) == buckets for each in lists):
            raise ValueError("a sum has another number of buckets")
        numbers = [first, last, *chain.from_iterable(lists)]
        # By `type`: a JSON true is an int to isinstance.
        if set(map(type, numbers)) != {int} or max(map(abs, numbers)) > MOST:
            raise ValueError("a sum is not a whole number")
    except (AttributeError, KeyError, TypeError, ValueError):
        expected = f"expected versions and sums of {buckets} buckets as docs/redis_keys.md has them"
        why = f"field {shown(field)}: got {shown(value)}, {expected}"
        raise unreadable(key, why) from None
    return field.decode("utf-8", "surrogateescape"), (first, last), sums, credit


AUDIT_TEXTS = ("who", "tool", "action", "before", "after")
"""The fields of an entry of `audit`."""


def audit_entry(key: str, entry: bytes, found: Mapping[bytes, bytes]) -> tuple[datetime, list[str]]:
    """An entry of `audit`: its time, from its id, and its texts in the order of AUDIT_TEXTS. Raises UnreadableValue.

    Bytes that are not UTF-8 are escaped.
    """
    at = time_of(int(entry.partition(b"-")[0]) / 1000)
    missing = [name for name in AUDIT_TEXTS if name.encode() not in found]
    if at is None or missing:
        why = f"entry {shown(entry)}: " + (
            f"{missing[0]} is missing" if missing else "its time is out of range"
        )
        raise unreadable(key, why)
    return at, [found[name.encode()].decode("utf-8", "backslashreplace") for name in AUDIT_TEXTS]


def forget_entry(key: str, entry: bytes, found: Mapping[bytes, bytes]) -> tuple[int, list[int]]:
    """An entry of `forget`: the 64-bit hashes of a cookie and of requests. Raises UnreadableValue."""
    cookie, requests = (found.get(name, b"") for name in (b"cookie", b"requests"))
    if not _HASH.fullmatch(cookie) or not all(map(_HASH.fullmatch, requests.split())):
        why = f"entry {shown(entry)}: got {shown(cookie)} and {shown(requests)}, expected 64-bit hashes in hexadecimal"
        raise unreadable(key, why)
    return int(cookie, 16), [int(each, 16) for each in requests.split()]


def unreadable(key: str, why: str) -> UnreadableValue:
    """The error for a key with an invalid value; `why` names the value and what is expected."""
    return UnreadableValue(f"{key}: {why}; {cure(key)} repairs it")


def cure(key: str) -> str:
    """The command that repairs a key."""
    named = _MODEL_KEY.match(key)
    return f"`ftrie store check {named[1]} --repair`" if named else "`ftrie store check --repair`"


def shown(value: str | bytes) -> str:
    """The beginning of a value, for a message."""
    head = repr(value[:_SHOWN_BYTES]).removeprefix("b")
    return head if len(value) <= _SHOWN_BYTES else f"{head}… ({len(value):,} bytes)"


# -- the table

SERVER, TRAINER, LOADER, OPERATOR, FEEDBACK = (
    f"ftrie-{role}" for role in ("server", "trainer", "loader", "operator", "feedback")
)
"""The users that a store with ACLs needs; `ROLES` says what each is for."""

TABLE: list[AnyKey] = []
"""All keys, in the order of docs/redis_keys.md and of a check: each after what it depends on."""

_PLACES = {
    **dict.fromkeys(("I", "start", "K", "minute", "hour"), r"\d+"),
    "n": r"[1-9]\d{0,11}",
    "part": r"(?:\d+|state-\d+|model)",
}
"""The form of a place of a name; of the others it is any text."""


class AnyKey:
    """A kind of key: what docs/redis_keys.md, the ACLs and `ftrie store check` say of it.

    types: of Redis, one or several; written, read: by whom; kept: for how long. roles: who may write it under ACLs; a
    model's trainer may write all its keys. ids: of a stream whose ids are times, what becomes of it if one is ahead of
    the clock, RENUMBERED or REMOVED. repair: of a key of another type; empty if a check of the contents finds that, or
    nothing reads the key then. name: by default the attribute's, below the prefix of a model's keys; `<…>` are its
    places.
    """

    def __init__(
        self,
        types: str,
        holds: str,
        *,
        written: str,
        read: str,
        kept: str = "kept",
        roles: Sequence[str] = (TRAINER,),
        ids: str = "",
        repair: str = "removed",
        name: str = "",
    ) -> None:
        self.types, self.holds, self.written, self.read, self.kept = types.split(), holds, written, read, kept
        self.roles, self.ids, self.repair, self._name = roles, ids, repair, name

    def __set_name__(self, owner: type, attribute: str) -> None:
        # Python calls this for the attributes of a class in their order, so TABLE has the order of the classes below.
        name = self._name or attribute
        self.pattern = name if name.startswith("ftrie:") else "ftrie:{model}:" + name
        self._pieces = re.split("<.+?>", self.pattern)
        places = [_PLACES.get(place, ".+") for place in re.findall("<(.+?)>", self.pattern)]
        model = rf"\{{{_MODEL_NAME.pattern}\}}"
        whole = "".join(_between([re.escape(piece) for piece in self._pieces], places))
        self.expression = whole.replace(re.escape("{model}"), model)
        TABLE.append(self)

    def named(self, model: str, *places: object) -> str:
        """The name of one such key."""
        return "".join(_between(self._pieces, map(str, places))).replace("{model}", f"{{{model}}}", 1)

    @property
    def prefix(self) -> bytes:
        """The name up to the first place."""
        return self._pieces[0].encode()

    @property
    def glob(self) -> str:
        """The pattern as ACL SETUSER and SCAN take it."""
        return "*".join(self._pieces).replace("{model}", "{*}")


def _between(pieces: Sequence[str], places: Iterable[str]) -> Iterator[str]:
    return chain.from_iterable(zip(pieces, [*places, ""], strict=True))


class Key(AnyKey):
    """One key a model. Of an instance of `ModelKeys` it is the name: `ModelKeys("ads").active`."""

    @overload
    def __get__(self, keys: None, owner: object = None) -> Key: ...
    @overload
    def __get__(self, keys: ModelKeys, owner: object = None) -> str: ...
    def __get__(self, keys: ModelKeys | None, owner: object = None) -> Key | str:
        return self if keys is None else self.named(keys.model)


class KeyFamily(AnyKey):
    """Many keys, with places in their names. Of an instance of `ModelKeys` it makes names: `keys.manifest(7)`."""

    @overload
    def __get__(self, keys: None, owner: object = None) -> KeyFamily: ...
    @overload
    def __get__(self, keys: ModelKeys, owner: object = None) -> Callable[..., str]: ...
    def __get__(self, keys: ModelKeys | None, owner: object = None) -> KeyFamily | Callable[..., str]:
        return self if keys is None else partial(self.named, keys.model)


def check_model_name(model: str) -> str:
    """The name, if it is valid as a hash tag and as a folder's name. Raises UsageError."""
    if not _MODEL_NAME.fullmatch(model) or model in (".", ".."):
        raise UsageError(
            f"got the model name {model!r}; expected 1 to 128 letters, digits, dots, dashes or underscores, "
            "and neither '.' nor '..'"
        )
    return model


RENUMBERED, REMOVED = "renumbered", "removed"


class ModelKeys:
    """The keys of one model. Raises UsageError for a name that `check_model_name` refuses."""

    def __init__(self, model: str) -> None:
        self.model = check_model_name(model)

    versions = Key(
        "zset",
        "version → publish time, s since 1970",
        written="publish.lua, gc",
        read="lists, rollback, gc",
        repair="removed, and rebuilt from the manifests",
    )
    manifest = KeyFamily(
        "hash",
        "the manifest, below",
        written="publish.lua",
        read="servers, import, inspect",
        kept="until gc",
        repair="",
        name="version:<n>",
    )
    # Written before the manifest: a reader that sees a manifest finds all chunks. The expiry removes those of a
    # publisher that died.
    chunk = KeyFamily(
        "string",
        "≤ 8 MiB of the artefact, in order",
        written="the publisher",
        read="servers, export",
        kept="1 h, then, once visible, until gc",
        repair="",
        name="version:<n>:chunk:<i>",
    )
    history = Key(
        "list",
        "previously active versions, latest first, at most 100",
        written="activate.lua",
        read="rollback, gc",
    )
    events = Key(
        "stream",
        "notifications that the active version or the experiment changed; about 1,000 entries",
        written="activate.lua, experiment.lua",
        read="servers",
        kept="trimmed",
        ids=REMOVED,
    )
    experiment = Key("hash", "the experiment, below", written="experiment.lua", read="servers")
    impressions = Key(
        "stream",
        "impressions: `json`, or fields ([events](events.md)); about 1,000,000 entries, a day",
        written="servers, your systems",
        read="the trainer",
        kept="trimmed",
        roles=(TRAINER, SERVER, FEEDBACK),
        ids=RENUMBERED,
    )
    clicks = Key(
        "stream",
        "clicks and conversions, likewise ([feedback](events.md#feedback))",
        written="feedback.lua, your systems",
        read="the trainer",
        kept="trimmed",
        roles=(TRAINER, SERVER, FEEDBACK),
        ids=RENUMBERED,
    )
    feedback_id = KeyFamily(
        "string",
        "exists if the event with this id was reported: the call that added it, 8 bytes",
        written="feedback.lua",
        read="feedback.lua",
        kept="a day",
        roles=(TRAINER, SERVER),
        name="feedback:<digest>",
    )
    # Its ids are numbers that the trainer gives, so the clock says nothing about them.
    dead = Key(
        "stream",
        "events that could not be learned from: `source`, `place`, `reason`, `json`; the id is the trainer's number; "
        "about 10,000 entries",
        written="the trainer",
        read="`ftrie store dead`",
        kept="trimmed",
    )
    audit = Key(
        "stream",
        "what operators changed: `who`, `tool`, `action`, `before`, `after`, below; about 10,000 entries",
        written="`ftrie store`, `ftrie experiment`, `ftrie.Store`, the dashboard",
        read="`ftrie store audit`",
        kept="trimmed",
        ids=RENUMBERED,
    )
    forget = Key(
        "stream",
        "who is to be [forgotten](decide.md#forgetting-a-person): `cookie`, `requests`, as 64-bit hashes; about 10,000 "
        "entries",
        written="`ftrie store forget`",
        read="the trainer",
        kept="trimmed",
        ids=RENUMBERED,
    )
    guard = Key(
        "hash", "the guard's record, below", written="the [guard](trainer.md#the-guard)", read="the guard, gc"
    )
    trainer = Key(
        "hash",
        "the trainer's lease and the fence, below",
        written="lease.lua, activate.lua, resume.lua",
        read="lease.lua, publish.lua, activate.lua",
    )
    partition_lease = KeyFamily(
        "hash",
        "likewise, the lease of the trainer of [partition](distributed.md#one-stream-several-trainers) I, from 2",
        written="lease.lua",
        read="lease.lua, round.lua",
        name="trainer:<I>",
    )
    partitions = Key(
        "hash",
        "how the model's partitions started, below",
        written="the trainer of partition 1",
        read="all partitions",
    )
    round_part = KeyFamily(
        "hash",
        "a part of round K of the partitions, below",
        written="round.lua",
        read="all partitions",
        kept="until it is not needed; 7 days",
        repair="",
        name="round:<start>:<K>:<part>",
    )
    round_chunk = KeyFamily(
        "string",
        "≤ 8 MiB of the part, in order",
        written="a partition's trainer",
        read="all partitions",
        kept="1 h, then, once visible, as the part",
        name="round:<start>:<K>:<part>:chunk:<epoch>:<i>",
    )
    # activate.lua changes `active` together with the fence and `history`: servers and writers see all of it or nothing.
    active = Key(
        "string", "the active version; authoritative", written="activate.lua", read="servers", repair=""
    )
    # The fences. A writer takes an epoch from `epoch` when it starts; one below `active_epoch`, or below that of the
    # trainer's lease, activates nothing, however late its order arrives.
    sequence = Key(
        "string",
        "the last version number assigned",
        written="publishers (INCR)",
        read="publishers",
        repair="",
    )
    epoch = Key(
        "string",
        "the last epoch assigned; an epoch is a writer's fencing token",
        written="writers (INCRBY, random steps)",
        read="writers",
        repair="",
    )
    active_epoch = Key(
        "string",
        "the epoch of the last activation",
        written="activate.lua",
        read="activate.lua",
        repair="",
    )
    outcomes = KeyFamily(
        "hash",
        "outcomes of the answers of one minute, numbered since 1970, below",
        written="the trainer",
        read="`ftrie experiment report`, the dashboard",
        kept="3 days after the last write",
        name="outcomes:<minute>",
    )
    outcomes_of_hour = KeyFamily(
        "hash",
        "the sums of an hour's minutes, likewise",
        written="the trainer",
        read="likewise",
        kept="31 days after the last write",
        name="outcomes:hour:<hour>",
    )
    # In the slot of the keys of the script, which a cluster asks for. once.lua writes it together with what the script
    # changes, so a call that a client repeats since it lost the answer is known.
    answer = KeyFamily(
        "string",
        "the answer to one call of a script, MessagePack: a call that is repeated since its answer was lost gets it, "
        "and changes nothing",
        written="every script",
        read="the same",
        kept="a minute",
        repair="",
        name="answer:<call>",
    )

    def chunks(self, version: int, count: int) -> list[str]:
        """The keys of a version's chunks, in order."""
        return [self.chunk(version, index) for index in range(count)]

    def lease(self, partition: int) -> str:
        """The key of the lease of a partition's trainer. The first one publishes: its lease is the model's."""
        return self.trainer if partition == 1 else self.partition_lease(partition)


class RecordKeys:
    """The keys of users, items and candidate sets, which belong to no model."""

    user = KeyFamily(
        "hash",
        "field → value; a list is a JSON array",
        written="`ftrie store load users`, your systems",
        read="servers, once per request",
        roles=(LOADER,),
        name="ftrie:user:<cookie>",
    )
    # Its hash tag is the key of the user's record, so that a cluster has both in one slot and a server reads them in
    # one round trip. For a cookie with a brace the slots differ, and each is asked for.
    history = KeyFamily(
        "string",
        "the user's latest events for a model ([histories](features.md#histories)); on a cluster in the slot of "
        "`ftrie:user:<cookie>`",
        written="the trainer",
        read="servers, with the user",
        kept="the longest `within` of the model's history fields, 30 days if one has none",
        name="ftrie:{ftrie:user:<cookie>}:history:<model>",
    )
    item = KeyFamily(
        "hash",
        "field → value; a list is a JSON array",
        written="`ftrie store load items`, your systems",
        read="servers, for the catalogue",
        roles=(LOADER,),
        name="ftrie:item:<id>",
    )
    items_changes = Key(
        "stream",
        "ids of changed items: `id <id>`, one or several per entry; about 5,000 entries",
        written="`ftrie store load items`, your systems",
        read="servers",
        kept="trimmed",
        roles=(LOADER,),
        ids=REMOVED,
        name="ftrie:items:changes",
    )
    items_generation = Key(
        "string",
        "any text; when it changes, servers read all items again and drop those that the store lacks",
        written="`ftrie store load items --only`, your systems",
        read="servers",
        roles=(LOADER,),
        name="ftrie:items:generation",
    )
    items_epoch = Key(
        "string",
        "random, lost with the data: shows whether a store lost its data "
        "([features](features.md#a-store-that-lost-its-data))",
        written="servers, `ftrie store load` (SET NX)",
        read="servers",
        roles=(LOADER, SERVER),
        name="ftrie:items:epoch",
    )
    candidates = KeyFamily(
        "list set zset",
        "item ids, in the order of the list, of the bytes (set), or of the rank (zset)",
        written="`ftrie store load candidates`, your systems",
        read="servers",
        roles=(LOADER,),
        name="ftrie:candidates:<name>",
    )


USER, HISTORY_OF, ITEM, CANDIDATES, ITEMS_CHANGES, ITEMS_GENERATION, ITEMS_EPOCH = (
    each.prefix
    for each in (
        *(RecordKeys.user, RecordKeys.history, RecordKeys.item, RecordKeys.candidates),
        *(RecordKeys.items_changes, RecordKeys.items_generation, RecordKeys.items_epoch),
    )
)


def answer_key(key: str, call: str) -> str:
    """The key of the answer to one call of a script that uses `key`, a key of a model.

    It has the hash tag of `key`, since a cluster runs a script only on keys of one slot.
    """
    return ModelKeys.answer.named(key.partition("{")[2].partition("}:")[0], call)


def is_id(record_id: str) -> bool:
    """True if the text can be the id of a user, an item or a candidate set."""
    return 0 < len(record_id.encode("utf-8", "surrogateescape")) <= MAX_ID_BYTES


def record_key(prefix: bytes, record_id: str) -> bytes:
    """The key of a user, an item or a candidate set. Raises StoreError if the id is empty or too long."""
    # Ids of other systems may be any bytes; those that are not UTF-8 are surrogates in Python.
    encoded = record_id.encode("utf-8", "surrogateescape")
    if not 0 < len(encoded) <= MAX_ID_BYTES:
        raise StoreError(f"got an id of {len(encoded)} bytes; expected 1 to {MAX_ID_BYTES}")
    return prefix + encoded


def history_key(model: str, cookie: bytes) -> bytes:
    """The key of a user's history for a model. Raises StoreError as `record_key`."""
    if not 0 < len(cookie) <= MAX_ID_BYTES:
        raise StoreError(f"got an id of {len(cookie)} bytes; expected 1 to {MAX_ID_BYTES}")
    return HISTORY_OF + cookie + b"}:history:" + model.encode()


# -- who may use them

# What redis-py sends when it opens a connection, beside AUTH, which everybody may.
_OPENS = "hello ping select client|setinfo"
_READS = """get type scan exists strlen time hget hmget hgetall hlen lrange smembers zrange zrevrange zscore
xrange xrevrange xinfo|stream"""
_WRITES = """set incr incrby del unlink expire persist pexpire hset hdel hincrby lpush rpush lrem ltrim zadd zrem
xadd xdel xtrim"""
_SCRIPTS = "watch unwatch multi exec evalsha script|load"


class Role(NamedTuple):
    """A user of a store with ACLs. commands: of Redis; runs: the commands of ftrie it is for.

    all_keys: a pattern of keys that it may use, as ACL SETUSER takes it, beside those that name it in the table.
    """

    name: str
    commands: str
    runs: tuple[str, ...]
    all_keys: str = ""

    @property
    def rule(self) -> str:
        """The command that creates it, with a password to replace."""
        own = [f"%RW~{key.glob}" for key in TABLE if self.name in key.roles]
        keys = [self.all_keys] if self.all_keys.startswith("%RW") else [*self.all_keys.split(), *own]
        allowed = [f"+{command}" for command in self.commands.split()]
        return " ".join(
            # All rights are taken first: a user that exists already keeps none of them.
            [f"ACL SETUSER {self.name} on >PASSWORD resetkeys resetchannels -@all", *keys, *allowed]
        )


def _below(group: str, names: str) -> tuple[str, ...]:
    return tuple(f"{group} {name}" for name in names.split())


ROLES = (
    Role(
        SERVER,
        # `eval`: feedback.py sends its script itself where the store does not know it; `set`: in that script, and the
        # epoch of the items.
        f"{_OPENS} info set {_READS} xread xadd xtrim eval evalsha multi exec",
        ("serve", "dashboard", "simulate"),
        "%R~ftrie:*",
    ),
    Role(
        TRAINER,
        f"{_OPENS} {_READS} {_WRITES} {_SCRIPTS}",
        (
            *("train", "train-distributed", "trainer", "evaluate", "audit", "replay", "estimate"),
            *_below("experiment", "show set pin unpin shadow report stop clear"),
            *_below("store", "versions activate rollback resume audit gc inspect import export dead"),
        ),
        "%RW~ftrie:{*",
    ),
    Role(
        LOADER,
        f"{_OPENS} del set incr hset rpush xadd multi exec",
        _below("store load", "users items candidates"),
    ),
    Role(
        OPERATOR,
        # `eval`, `rename`, `xsetid`: renumber.lua, which a repair queues in a transaction.
        f"{_OPENS} info {_READS} {_WRITES} {_SCRIPTS} eval rename xsetid",
        ("store check", "store forget"),
        "%RW~ftrie:*",
    ),
    Role(FEEDBACK, f"{_OPENS} xadd", ()),
)
