"""The manifest of a published version: what its bytes must be, where they come from, and the figures it was judged by.

A manifest is a HASH of text (docs/redis_keys.md); `to_hash` and `from_hash` convert it, with every field checked. The
bytes are in chunks, as parts of rounds are, which `write_chunks` and `read_chunks` write and read. A version is a
snapshot or a delta, the changes since its parent; a delta needs its parent, and so on back to a snapshot: its chain.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from model_store.bounded import is_finite, is_integer, json_object
from model_store.clock import SYSTEM, Clock
from model_store.errors import ArtefactError, StoreUnavailable, UnreadableValue
from model_store.keys import (
    DELTA,
    SNAPSHOT,
    Metrics,
    ModelKeys,
    metrics_from_json,
    metrics_to_json,
    number,
    shown,
)
from model_store.redis.connection import StoreConnection

# A store runs one command at a time: one of hundreds of MB would hold up the reads of all users.
CHUNK_BYTES = 8 << 20
MOST_CHUNK_BYTES = 512 << 20  # what a Redis string may hold
MOST_CHUNKS = 65_536


@dataclass(frozen=True)
class Manifest:
    """One version's manifest. `sha256` covers all chunks, concatenated.

    A snapshot is complete; a delta holds the changes since its `parent`, and `rows` counts only those. `content` is
    the digest of the whole model either way. through_us: for a model learned from streams, microseconds since 1970 by
    the store's clock; all earlier entries are learned. recent: JSON of the `RecentFigures` that a guard judged it by,
    or empty. refused: why it must not be served, or empty. forced: an operator wants it served even if all candidates
    get the same score.
    """

    version: int
    format: int
    rows: int
    size: int  # bytes in total
    chunks: int
    chunk_bytes: int
    sha256: str
    spec: str  # canonical JSON
    spec_sha256: str
    metrics: Metrics  # per variant; NaN where a metric is not defined
    parent: int | None
    epoch: int
    created: datetime  # UTC
    kind: str = SNAPSHOT
    content: str = ""
    through_us: int | None = None
    recent: str = ""
    refused: str = ""
    forced: bool = False

    def to_hash(self) -> dict[str, str]:
        """The HASH's fields; `from_hash` reads them back."""
        fields = {name: str(value) for name, value in vars(self).items()}
        return fields | {
            "metrics": metrics_to_json(self.metrics),
            "parent": "" if self.parent is None else str(self.parent),
            "through_us": "" if self.through_us is None else str(self.through_us),
            "created": self.created.isoformat(),
            "forced": "1" if self.forced else "",
        }

    @classmethod
    def from_hash(cls, fields: Mapping[bytes, bytes]) -> Manifest:
        """Read a HASH. Raises ArtefactError naming a field that is missing or cannot be read."""
        try:
            # Other fields are ignored: those that a later ftrie adds.
            text = {name: fields[name.encode()].decode() for name in _FIELDS if name.encode() in fields}
            numbers = {name: _number(name, text[name], least) for name, least in _NUMBERS.items()}
            _check(text, numbers)
            texts: dict[str, Any] = {name: text[name] for name in _TEXTS}
            return cls(
                **(texts | numbers),
                metrics=metrics_from_json(text["metrics"]),
                parent=_number("parent", text["parent"], 1) if text["parent"] else None,
                created=_created(text["created"]),
                through_us=_number("through_us", text["through_us"]) if text["through_us"] else None,
                forced=text["forced"] == "1",
            )
        except KeyError as error:
            raise ArtefactError(f"the manifest has no field {error}; publish the version again") from None
        except ValueError as error:
            raise ArtefactError(
                f"the manifest cannot be read ({error}); publish the version again"
            ) from error

    @property
    def needs(self) -> int | None:
        """The version without which this one cannot be loaded; None for a snapshot."""
        return self.parent if self.is_delta else None

    @property
    def is_delta(self) -> bool:
        """True if this version holds only the changes since its parent."""
        return self.kind == DELTA

    def chunk_sizes(self) -> list[int]:
        """Bytes of each chunk, in order."""
        return chunk_sizes(self.size, self.chunk_bytes)


@dataclass(frozen=True)
class VersionInfo:
    """One published version, for a list. `published` is UTC; `rows` of a delta counts the keys that changed.

    refused: why it must not be served, or empty. damaged: its manifest cannot be read, and `refused` says why; rows,
    size and parent are then unknown.
    """

    version: int
    published: datetime
    rows: int
    size: int  # bytes
    sha256: str
    active: bool
    kind: str
    parent: int | None
    content: str
    refused: str = ""
    damaged: bool = False

    @property
    def needs(self) -> int | None:
        """The version without which this one cannot be loaded; None for a snapshot."""
        return self.parent if self.kind == DELTA else None


_FIELDS = tuple(each.name for each in dataclasses.fields(Manifest))
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NUMBERS = {"version": 1, "format": 1, "rows": 0, "size": 0, "chunks": 0, "chunk_bytes": 1, "epoch": 0}
"""The fields that are whole numbers, with the minimum of each."""
_TEXTS = ("sha256", "spec", "spec_sha256", "kind", "content", "recent", "refused")


def _number(name: str, text: str, least: int = 0) -> int:
    try:
        return number(text, least)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _check(text: Mapping[str, str], numbers: Mapping[str, int]) -> None:
    """Raise ValueError unless digest and kind are valid, and the chunks are those of the size, within their limits."""
    size, chunks, chunk_bytes = (numbers[name] for name in ("size", "chunks", "chunk_bytes"))
    if chunk_bytes > MOST_CHUNK_BYTES:
        raise ValueError(f"chunk_bytes: got {chunk_bytes}, expected at most {MOST_CHUNK_BYTES}")
    if chunks != -(-size // chunk_bytes):
        raise ValueError(
            f"chunks: got {chunks}, expected {-(-size // chunk_bytes)} of {chunk_bytes} bytes for size {size}"
        )
    if chunks > MOST_CHUNKS:
        raise ValueError(f"chunks: got {chunks}, expected at most {MOST_CHUNKS}")
    if not _SHA256.fullmatch(text["sha256"]):
        raise ValueError(f"sha256: got {shown(text['sha256'])}, expected 64 hexadecimal digits")
    if text["kind"] not in (SNAPSHOT, DELTA):
        raise ValueError(f"kind: got {text['kind']!r}, expected {SNAPSHOT} or {DELTA}")
    if text["kind"] == DELTA and not text["parent"]:
        raise ValueError("parent: got none, expected one for a delta")


def _created(text: str) -> datetime:
    created = datetime.fromisoformat(text)
    # Below 9999, whose last day may overflow when it is converted to UTC.
    if created.tzinfo is None or not 1970 <= created.year < 9999:
        raise ValueError(
            f"created: got {shown(text)}, expected a time with its zone, such as 2024-05-01T08:00:00+00:00"
        )
    return created


@dataclass(frozen=True)
class RecentVariant:
    """One variant's metrics over the recent examples, each predicted before it was learned.

    logloss: weighted mean; logloss_error: its standard error; predicted: weighted sum of p, the expected clicks;
    predicted_variance: their variance, the sum of the squared weight times p.
    """

    logloss: float
    logloss_error: float
    predicted: float
    predicted_variance: float


@dataclass(frozen=True)
class RecentFigures:
    """Metrics over the examples learned last before a version, their number and weights, and the model's keys.

    Stored in the manifest, so that a guard compares the next version with the served one, by any publisher.
    """

    examples: int
    weight: float
    clicks: float
    keys: int
    variants: Mapping[str, RecentVariant]

    @property
    def click_rate(self) -> float:
        """The clicked fraction of the weight; 0 without examples."""
        return self.clicks / self.weight if self.weight else 0.0

    def to_json(self) -> str:
        """One line; `from_json` reads it back."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> RecentFigures:
        """Read what `to_json` wrote. Raises ArtefactError."""
        try:
            found = json_object(text)
            variants = {name: RecentVariant(**figures) for name, figures in found["variants"].items()}
            examples, weight, clicks, keys = (
                found[name] for name in ("examples", "weight", "clicks", "keys")
            )
            numbers = (
                weight,
                clicks,
                *(each for variant in variants.values() for each in vars(variant).values()),
            )
            if not (is_integer(examples) and is_integer(keys) and all(map(is_finite, numbers))):
                # JSON has true and NaN for Python, and a guard would compare with them.
                raise ValueError("expected numbers")
            return cls(examples, float(weight), float(clicks), keys, variants)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ArtefactError(
                f"the manifest's recent figures cannot be read ({error}); publish again"
            ) from None


def now(clock: Clock = SYSTEM) -> datetime:
    """The present, to the second, UTC."""
    return datetime.fromtimestamp(int(clock.time()), UTC)


# -- chains

Parents = Mapping[int, int | None]
"""Each existing version with the parent it needs; None for a snapshot."""


def parents_of(versions: Iterable[VersionInfo | Manifest]) -> dict[int, int | None]:
    """The parents that these versions need. Damaged versions are left out."""
    return {each.version: each.needs for each in versions if not getattr(each, "damaged", False)}


def chain_of(version: int, parents: Parents) -> list[int]:
    """The versions needed to load `version`: its snapshot first, itself last.

    Raises ArtefactError naming the version that is missing or out of order.
    """
    chain = [version]
    # Ends for any parents: each must be older, so there are no circles.
    while (parent := parents[chain[-1]]) is not None:
        check_parent(chain[-1], parent)
        if parent not in parents:
            raise ArtefactError(
                f"version {version} is a delta and cannot be loaded: version {parent}, the parent of "
                f"{chain[-1]}, is gone; publish a snapshot, or roll back to a complete version"
            )
        chain.append(parent)
    return chain[::-1]


def check_parent(version: int, parent: int) -> None:
    """Raise ArtefactError for a delta whose parent is not an older version."""
    if parent >= version:
        raise ArtefactError(
            f"version {version} is a delta and names version {parent} as its parent; expected an older one"
        )


def is_whole(version: int, parents: Parents) -> bool:
    """True if the version and all that it needs exist."""
    try:
        return version in parents and bool(chain_of(version, parents))
    except ArtefactError:
        return False


def needed_by(versions: Iterable[int], parents: Parents) -> set[int]:
    """The versions and everything they need that still exists."""
    needed: set[int] = set()
    for version in versions:
        at: int | None = version
        # Chains share their older part, which is walked once.
        while at is not None and at in parents and at not in needed:
            needed.add(at)
            at = parents[at]
    return needed


# -- chunks

# One round trip for so many; the search ends at the first such group without a chunk, so a smaller gap is bridged.
_PROBED = 256
UPLOAD_EXPIRY_S = 3600
"""Removes the chunks of a writer that dies before they are visible."""

Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in total."""


def chunk_sizes(size: int, chunk_bytes: int) -> list[int]:
    """Bytes of each chunk, in order."""
    full, rest = divmod(size, chunk_bytes)
    return [chunk_bytes] * full + ([rest] if rest else [])


def write_chunks(
    store: StoreConnection,
    keys: Sequence[str],
    sizes: Sequence[int],
    data: bytes,
    on_progress: Progress | None = None,
) -> None:
    """Write `data` to these keys in chunks of these sizes; they expire unless a script makes them visible."""
    view, done = memoryview(data), 0
    for key, size in zip(keys, sizes, strict=True):
        try:
            with store.answers(key):
                # One chunk is copied at a time, not the model.
                store.at(key).set(key, bytes(view[done : done + size]), ex=UPLOAD_EXPIRY_S)
        except StoreUnavailable as error:
            # A value above its limit makes the store close the connection, and what it says of that is lost.
            raise StoreUnavailable(f"{error} Does its proto-max-bulk-len allow {size:,} bytes?") from error
        done += size
        if on_progress is not None:
            on_progress(done, len(data))


def read_chunks(store: StoreConnection, keys: Sequence[str]) -> Iterator[bytes]:
    """The chunks at these keys, empty where there is none. Raises UnreadableValue for a key of another type."""
    for key in keys:
        with store.answers(key):
            chunk = store.at(key).get(key) or b""
        yield chunk


def download(store: StoreConnection, keys: ModelKeys, manifest: Manifest) -> bytes:
    """The artefact's bytes, sizes and SHA-256 checked against the manifest. Raises ArtefactError."""
    parts, sizes = [], manifest.chunk_sizes()
    try:
        for index, part in enumerate(read_chunks(store, keys.chunks(manifest.version, len(sizes)))):
            if len(part) != sizes[index]:
                # Before the digest, which could not say which chunk it is.
                raise incomplete(manifest.version, index, sizes[index], len(part))
            parts.append(part)
    except UnreadableValue as error:
        raise ArtefactError(f"version {manifest.version} is damaged: {error}") from None
    data = b"".join(parts)
    found = hashlib.sha256(data).hexdigest()
    if found != manifest.sha256:
        raise ArtefactError(
            f"version {manifest.version} is damaged: its manifest says SHA-256 {manifest.sha256}, "
            f"its chunks have {found}; publish it again"
        )
    return data


def chunks_there(store: StoreConnection, keys: ModelKeys, version: int) -> int:
    """How many chunks of a version are in the store: one more than the highest index found."""
    count = 0
    for begin in range(0, MOST_CHUNKS, _PROBED):
        probed = keys.chunks(version, begin + _PROBED)[begin:]
        with store.answers(), store.at(keys.versions).pipeline(transaction=False) as pipe:
            for key in probed:
                pipe.exists(key)
            there = [index for index, found in enumerate(pipe.execute()) if found]
        if not there:
            break
        count = begin + there[-1] + 1
    return count


def incomplete(version: int, chunk: int, expected: int, there: int) -> ArtefactError:
    """The error for a chunk that is missing or has the wrong size."""
    return ArtefactError(
        f"version {version} is incomplete: chunk {chunk} should have {expected:,} bytes and has {there:,}; "
        "publish it again"
    )
