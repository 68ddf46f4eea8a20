"""The manifest of a published version: what its bytes must be and where they come from. No Redis here."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from model_store.errors import ArtefactError

CHUNK_BYTES = 8 << 20
SNAPSHOT, DELTA = "snapshot", "delta"
Metrics = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Manifest:
    """One version's manifest, stored as a HASH of text. `sha256` is that of all chunks end to end.

    A snapshot is whole; a delta is what changed since its `parent`, and `rows` counts that alone. `content` is the
    digest of the whole model either way, empty where an older ftrie has published it. through_us: of a model that is
    learned from streams, microseconds since 1970 by their clock: all that came to them before is learned from.
    recent: what a guard judged it by, `guard_figures`' JSON, empty where there is none. refused: why it is not to be
    served, empty if it may be. forced: an operator wants it served although all candidates may score the same.
    """

    version: int
    format: int
    rows: int
    size: int  # bytes in all
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
        text = {name.decode(): value.decode() for name, value in fields.items()}
        try:
            return cls(
                version=int(text["version"]),
                format=int(text["format"]),
                rows=int(text["rows"]),
                size=int(text["size"]),
                chunks=int(text["chunks"]),
                chunk_bytes=int(text["chunk_bytes"]),
                epoch=int(text["epoch"]),
                sha256=text["sha256"],
                spec=text["spec"],
                spec_sha256=text["spec_sha256"],
                metrics=metrics_from_json(text["metrics"]),
                parent=int(text["parent"]) if text["parent"] else None,
                created=datetime.fromisoformat(text["created"]),
                kind=_kind(text),
                content=text.get("content", ""),
                through_us=int(text["through_us"]) if text.get("through_us") else None,
                recent=text.get("recent", ""),
                refused=text.get("refused", ""),
                forced=bool(text.get("forced")),
            )
        except KeyError as error:
            raise ArtefactError(f"the manifest has no field {error}; publish the version again") from None
        except ValueError as error:
            raise ArtefactError(
                f"the manifest cannot be read ({error}); publish the version again"
            ) from error

    @property
    def is_delta(self) -> bool:
        """True if this version says only what changed since its parent."""
        return self.kind == DELTA

    def chunk_sizes(self) -> list[int]:
        """Bytes of each chunk, in order."""
        full, rest = divmod(self.size, self.chunk_bytes)
        return [self.chunk_bytes] * full + ([rest] if rest else [])


def _kind(fields: Mapping[str, str]) -> str:
    """What the version is; one that an older ftrie has published is a snapshot. Raises ValueError."""
    kind = fields.get("kind", SNAPSHOT)
    if kind not in (SNAPSHOT, DELTA):
        raise ValueError(f"kind: got {kind!r}, expected {SNAPSHOT} or {DELTA}")
    if kind == DELTA and not fields["parent"]:
        raise ValueError("a delta has a parent, and none is named")
    return kind


def now() -> datetime:
    """The present, to the second, UTC."""
    return datetime.now(UTC).replace(microsecond=0)


def plain_metrics(metrics: Metrics) -> dict[str, dict[str, float | None]]:
    """Metrics as JSON can say them: what is not finite becomes None."""
    return {
        variant: {name: float(value) if math.isfinite(value) else None for name, value in values.items()}
        for variant, values in metrics.items()
    }


def metrics_to_json(metrics: Metrics) -> str:
    """Canonical JSON of metrics; NaN becomes null."""
    return json.dumps(plain_metrics(metrics), sort_keys=True, separators=(",", ":"), allow_nan=False)


def metrics_from_json(text: str) -> dict[str, dict[str, float]]:
    """Read `metrics_to_json`'s text; null becomes NaN. Raises ValueError for anything else."""
    parsed = json.loads(text)
    if not isinstance(parsed, dict) or not all(isinstance(values, dict) for values in parsed.values()):
        raise ValueError("metrics are not an object of objects")
    return {
        variant: {name: math.nan if value is None else float(value) for name, value in values.items()}
        for variant, values in parsed.items()
    }
