"""The manifest of a published version: what its bytes must be, where they come from, and the figures it was judged by.

A manifest is a HASH of text (docs/redis_keys.md); `to_hash` and `from_hash` convert it, with every field checked.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from model_store.bounded import is_finite, is_integer, json_object
from model_store.errors import ArtefactError
from model_store.keys import DELTA, SNAPSHOT, Metrics, metrics_from_json, metrics_to_json, number, shown

CHUNK_BYTES = 8 << 20
MOST_CHUNK_BYTES = 512 << 20  # what a Redis string may hold
MOST_CHUNKS = 65_536


@dataclass(frozen=True)
class Manifest:
    """One version's manifest. `sha256` covers all chunks, concatenated.

    A snapshot is complete; a delta holds the changes since its `parent`, and `rows` counts only those. `content` is
    the digest of the whole model either way, empty if an older ftrie published it. through_us: for a model learned
    from streams, microseconds since 1970 by the store's clock; all earlier entries are learned. recent: JSON of the
    `RecentFigures` that a guard judged it by, or empty. refused: why it must not be served, or empty. forced: an
    operator wants it served even if all candidates get the same score.
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
            text = {name: fields[name.encode()].decode() for name in _FIELDS if name.encode() in fields}
            numbers = {name: _number(name, text[name], least) for name, least in _NUMBERS.items()}
            _check_chunks(numbers)
            return cls(
                **numbers,
                sha256=_sha256(text["sha256"]),
                spec=text["spec"],
                spec_sha256=text["spec_sha256"],
                metrics=metrics_from_json(text["metrics"]),
                parent=_number("parent", text["parent"], 1) if text["parent"] else None,
                created=_created(text["created"]),
                kind=_kind(text),
                content=text.get("content", ""),
                through_us=_number("through_us", text["through_us"]) if text.get("through_us") else None,
                recent=text.get("recent", ""),
                refused=text.get("refused", ""),
                forced=text.get("forced") == "1",
            )
        except KeyError as error:
            raise ArtefactError(f"the manifest has no field {error}; publish the version again") from None
        except ValueError as error:
            raise ArtefactError(
                f"the manifest cannot be read ({error}); publish the version again"
            ) from error

    @property
    def is_delta(self) -> bool:
        """True if this version holds only the changes since its parent."""
        return self.kind == DELTA

    def chunk_sizes(self) -> list[int]:
        """Bytes of each chunk, in order."""
        full, rest = divmod(self.size, self.chunk_bytes)
        return [self.chunk_bytes] * full + ([rest] if rest else [])


_FIELDS = tuple(each.name for each in dataclasses.fields(Manifest))
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NUMBERS = {"version": 1, "format": 1, "rows": 0, "size": 0, "chunks": 0, "chunk_bytes": 1, "epoch": 0}
"""The fields that are whole numbers, with the minimum of each."""


def _number(name: str, text: str, least: int = 0) -> int:
    try:
        return number(text, least)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _check_chunks(numbers: Mapping[str, int]) -> None:
    """Raise ValueError unless the number of chunks follows from the size and is within its limit."""
    size, chunks, chunk_bytes = (numbers[name] for name in ("size", "chunks", "chunk_bytes"))
    if chunk_bytes > MOST_CHUNK_BYTES:
        raise ValueError(f"chunk_bytes: got {chunk_bytes}, expected at most {MOST_CHUNK_BYTES}")
    if chunks != -(-size // chunk_bytes):
        raise ValueError(
            f"chunks: got {chunks}, expected {-(-size // chunk_bytes)} of {chunk_bytes} bytes for size {size}"
        )
    if chunks > MOST_CHUNKS:
        raise ValueError(f"chunks: got {chunks}, expected at most {MOST_CHUNKS}")


def _sha256(text: str) -> str:
    if not _SHA256.fullmatch(text):
        raise ValueError(f"sha256: got {shown(text)}, expected 64 hexadecimal digits")
    return text


def _created(text: str) -> datetime:
    created = datetime.fromisoformat(text)
    if created.tzinfo is None or not 1970 <= created.year < 9999:
        raise ValueError(
            f"created: got {shown(text)}, expected a time with its zone, such as 2024-05-01T08:00:00+00:00"
        )
    return created


def _kind(fields: Mapping[str, str]) -> str:
    """The kind; a version published by an older ftrie is a snapshot. Raises ValueError."""
    kind = fields.get("kind", SNAPSHOT)
    if kind not in (SNAPSHOT, DELTA):
        raise ValueError(f"kind: got {kind!r}, expected {SNAPSHOT} or {DELTA}")
    if kind == DELTA and not fields["parent"]:
        raise ValueError("parent: got none, expected one for a delta")
    return kind


def now() -> datetime:
    """The present, to the second, UTC."""
    return datetime.now(UTC).replace(microsecond=0)


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

    Stored in the manifest, so that a guard compares the next version with the served one, whoever published that.
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
                raise ValueError("expected numbers")
            return cls(examples, float(weight), float(clicks), keys, variants)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ArtefactError(
                f"the manifest's recent figures cannot be read ({error}); publish again"
            ) from None
