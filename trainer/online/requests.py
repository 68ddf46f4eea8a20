"""From the requests whose window closed to what each adds to the sums: whole numbers, one row a request.

Vectorised: nothing here runs once a request. Knows the columns that every joined row has; knows nothing of stores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from model_store.online_metrics import CTR_UNIT, SQUARE_UNIT, SUMS
from trainer.events.wanted import CTR, VARIANT, VERSION
from trainer.joining.join import Closed

MINUTE_US = 60_000_000

_KINDS = {VERSION: pa.int64(), VARIANT: pa.binary(), CTR: pa.float64()}

Int64s = npt.NDArray[np.int64]


class Rows(Protocol):
    """Where the joined rows stand: `trainer.joining.segments.Segments`."""

    def gather(
        self, segment: npt.NDArray[np.int32], row: Int64s, names: Sequence[str] | None = None
    ) -> Iterator[tuple[int, dict[str, pa.Array]]]:
        """Columns of the rows, in runs: the place of each run's first row, and the columns over the run."""


@dataclass(frozen=True)
class ClosedRequests:
    """One element a request. minute, version: int64; variant: places in `variants`; sums: int64[n, len(SUMS)]."""

    minute: Int64s
    version: Int64s
    variant: Int64s
    variants: tuple[str, ...]
    sums: Int64s

    @classmethod
    def of(cls, closed: Closed, rows: Rows) -> ClosedRequests:
        """What was shown, predicted and clicked of each request that showed something."""
        shows = closed.rows > 0
        count = closed.rows[shows].astype(np.int64)
        first = np.cumsum(count) - count
        within = np.arange(int(count.sum())) - np.repeat(first, count)
        columns = _gathered(
            rows.gather(
                np.repeat(closed.segment[shows], count),
                np.repeat(closed.row[shows], count) + within,
                (VERSION, VARIANT, CTR),
            )
        )
        codes, variants = _codes(columns[VARIANT].take(pa.array(first)))
        version = pc.fill_null(columns[VERSION].take(pa.array(first)), 0)
        ctr = pc.fill_null(columns[CTR], np.nan).to_numpy(zero_copy_only=False)
        return cls(
            minute=closed.time_us[shows] // MINUTE_US,
            version=version.to_numpy(zero_copy_only=False).astype(np.int64),
            variant=codes,
            variants=variants,
            sums=_sums(count, closed.clicks[shows], closed.conversions[shows], ctr),
        )

    def only(self, chosen: npt.NDArray[np.bool_]) -> ClosedRequests:
        """Some of them."""
        minute, version, variant = (each[chosen] for each in (self.minute, self.version, self.variant))
        return ClosedRequests(minute, version, variant, self.variants, self.sums[chosen])


def _gathered(runs: Iterator[tuple[int, dict[str, pa.Array]]]) -> dict[str, pa.Array]:
    parts = [columns for _, columns in runs]
    return {
        name: pa.concat_arrays([columns[name].cast(kind) for columns in parts] or [pa.array([], kind)])
        for name, kind in _KINDS.items()
    }


def _codes(names: pa.Array) -> tuple[Int64s, tuple[str, ...]]:
    """Each text's place among the distinct ones; a null is the empty text."""
    encoded = pc.fill_null(names, b"").dictionary_encode()
    distinct = tuple(each.decode("utf-8", "surrogateescape") for each in encoded.dictionary.to_pylist())
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), distinct


def _sums(
    shown: Int64s,
    clicks: npt.NDArray[np.int32],
    conversions: npt.NDArray[np.int32],
    ctr: npt.NDArray[np.float64],
) -> Int64s:
    """What each request adds, in the order of SUMS. ctr: of every row, NaN where there is none."""
    ends = np.cumsum(shown)
    usable = np.isfinite(ctr) & (ctr >= 0.0) & (ctr <= 1.0)
    complete = _between(np.cumsum(~usable), ends, shown) == 0
    nano = np.rint(np.where(usable, ctr, 0.0) / CTR_UNIT).astype(np.int64)
    predicted = np.where(complete, _between(np.cumsum(nano), ends, shown), 0)
    c, y = predicted * CTR_UNIT, clicks.astype(np.int64)
    each: dict[str, Any] = {
        "requests": np.ones(shown.size),
        "shown": shown,
        "clicks": y,
        "conversions": conversions,
        "ctr_nano": predicted,
        "shown_squared": shown * shown,
        "clicks_squared": y * y,
        "shown_clicks": shown * y,
        "ctr_squared": np.rint(c * c / SQUARE_UNIT),
        "ctr_clicks": np.rint(c * y / SQUARE_UNIT),
        "without_ctr": ~complete,
    }
    return np.stack([each[name].astype(np.int64) for name in SUMS], axis=1)


def _between(running: Int64s, ends: Int64s, sizes: Int64s) -> Int64s:
    """Sums over consecutive stretches, from the running sum over all of them."""
    padded = np.concatenate([np.zeros(1, np.int64), running])
    between: Int64s = padded[ends] - padded[ends - sizes]
    return between
