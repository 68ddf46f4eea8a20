"""The online metrics of a model as its trainer keeps them: cells of minute, version and variant, and what is unwritten.

Its arrays are in the checkpoint, at the same moment as the places in the sources: so a request is counted once, through
crashes too. The store gets absolute numbers, every few seconds those of the cells that changed. A version a second
would fill it: once a minute can change no more, its versions are one cell there for each variant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from model_store.versions.online_metrics import CTR_UNIT, SQUARE_UNIT, SUMS, Cell, OnlineMetrics, OnlineSums
from trainer.events.columns import CTR, VARIANT, VERSION
from trainer.join.join import Closed, Joined
from trainer.publish.rollback import Evidence

REMEMBERED_MINUTES = 120
MOST_VERSIONS = 10_000

_CTR, _CLICKS = SUMS.index("ctr_nano"), SUMS.index("clicks")
_WITHOUT = SUMS.index("without_ctr")

Int64s = npt.NDArray[np.int64]


class Online:
    """Online metrics of one model. For one thread.

    too_late: requests of minutes that were forgotten, REMEMBERED_MINUTES before the latest one; they are not counted.
    """

    def __init__(self) -> None:
        self.too_late = 0
        self._cells: dict[Cell, Int64s] = {}
        self._unwritten: set[Cell] = set()
        self._is_restored = False
        self._versions: dict[int, Int64s] = {}
        """Of each version the predicted clicks, in CTR_UNIT, and the clicks, of requests with a ctr for every item."""
        self._latest = 0

    def add(self, joined: Joined, rows: Rows) -> None:
        """Count the requests that closed. O(rows) in numpy, and a step of Python for each cell that changes."""
        if not len(joined.closed):
            return
        requests = ClosedRequests.of(joined.closed, rows)
        self._add_evidence(requests)
        cells, sums = _by_cell(requests.only(self._in_time(requests.minute)))
        for cell, added in zip(cells, sums, strict=True):
            self._add(cell, added)

    def flush(self, store: OnlineMetrics) -> int:
        """Write the cells that changed since the last time; returns how many. StoreUnavailable loses none."""
        changed = {cell: _record(self._cells[cell]) for cell in sorted(self._unwritten)}
        store.write(changed, whole=self._is_restored)
        self._unwritten.clear()
        self._is_restored = False
        self._forget(store)
        return len(changed)

    def evidence(self) -> dict[int, Evidence]:
        """Expected clicks and clicks of each version; of the newest MOST_VERSIONS."""
        return {
            version: Evidence(float(sums[0]) * CTR_UNIT, float(sums[1]))
            for version, sums in self._versions.items()
        }

    def totals(self) -> dict[str, OnlineSums]:
        """By variant, of the minutes that are remembered."""
        totals: dict[str, OnlineSums] = {}
        for (_, _, variant), sums in self._cells.items():
            totals[variant] = totals.get(variant, OnlineSums()) + _record(sums)
        return totals

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """All of it as arrays, for a checkpoint."""
        cells = sorted(self._cells)
        names = [variant.encode("utf-8", "surrogateescape") for _, _, variant in cells]
        versions = sorted(self._versions)
        return {
            "places": np.array([cell[:2] for cell in cells], np.int64).reshape(-1, 2),
            "names": np.frombuffer(b"".join(names), np.uint8).copy(),
            "lengths": np.array([len(name) for name in names], np.int64),
            "sums": np.array([self._cells[cell] for cell in cells], np.int64).reshape(-1, len(SUMS)),
            "versions": np.array(versions, np.int64),
            "evidence": np.array([self._versions[each] for each in versions], np.int64).reshape(-1, 2),
            "head": np.array([self._latest, self.too_late], np.int64),
        }

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on from what `state` gave. All minutes are written again: what came after the state is taken back."""
        ends = np.cumsum(state["lengths"])
        names = state["names"].tobytes()
        variants = [names[end - size : end] for end, size in zip(ends, state["lengths"], strict=True)]
        places = zip(state["places"].tolist(), variants, strict=True)
        cells = [(m, v, name.decode("utf-8", "surrogateescape")) for (m, v), name in places]
        self._cells = dict(zip(cells, state["sums"].copy(), strict=True))
        self._unwritten = set(cells)
        self._is_restored = True
        self._versions = dict(zip(state["versions"].tolist(), state["evidence"].copy(), strict=True))
        self._latest, self.too_late = state["head"].tolist()

    def _in_time(self, minutes: Int64s) -> npt.NDArray[np.bool_]:
        """Which requests are counted: a function of those before alone, not of when cells were written."""
        latest = np.maximum.accumulate(np.maximum(minutes, self._latest))
        in_time: npt.NDArray[np.bool_] = minutes > latest - REMEMBERED_MINUTES
        self._latest = int(latest.max(initial=self._latest))
        self.too_late += int(np.count_nonzero(~in_time))
        return in_time

    def _add(self, cell: Cell, added: Int64s) -> None:
        before = self._cells.get(cell)
        self._cells[cell] = added if before is None else before + added
        self._unwritten.add(cell)

    def _add_evidence(self, requests: ClosedRequests) -> None:
        """Only requests whose clicks were predicted say anything of the predictions."""
        told = requests.sums[:, _WITHOUT] == 0
        versions, places = np.unique(requests.version[told], return_inverse=True)
        sums = np.zeros((versions.size, 2), np.int64)
        np.add.at(sums, places.reshape(-1), requests.sums[told][:, [_CTR, _CLICKS]])
        for version, added in zip(versions.tolist(), sums, strict=True):
            self._versions[version] = self._versions.get(version, 0) + added
        if len(self._versions) > MOST_VERSIONS:
            for version in sorted(self._versions)[:-MOST_VERSIONS]:
                del self._versions[version]

    def _forget(self, store: OnlineMetrics) -> None:
        """Drop minutes that can change no more, and let the store add up their versions. O(cells).

        All of them have been written, whole: `restore` brings no part of a minute.
        """
        oldest = self._latest - REMEMBERED_MINUTES
        gone = sorted(cell for cell in self._cells if cell[0] <= oldest)
        store.write(_without_versions({cell: _record(self._cells[cell]) for cell in gone}), whole=True)
        for cell in gone:
            del self._cells[cell]


def _without_versions(cells: Mapping[Cell, OnlineSums]) -> dict[Cell, OnlineSums]:
    """The cells of each minute and variant added up, as if they were of the last version. cells: in their order."""
    last = {(minute, variant): version for minute, version, variant in cells}
    added: dict[Cell, OnlineSums] = {}
    for (minute, _, variant), sums in cells.items():
        cell = (minute, last[minute, variant], variant)
        added[cell] = added.get(cell, OnlineSums()) + sums
    return added


def _by_cell(requests: ClosedRequests) -> tuple[list[Cell], Int64s]:
    """The cells that occur, and the sums of each: int64[cells, len(SUMS)]."""
    minutes, of_minute = np.unique(requests.minute, return_inverse=True)
    versions, of_version = np.unique(requests.version, return_inverse=True)
    kinds = len(requests.variants)
    codes = (of_minute.reshape(-1) * versions.size + of_version.reshape(-1)) * kinds + requests.variant
    distinct, places = np.unique(codes, return_inverse=True)
    sums = np.zeros((distinct.size, len(SUMS)), np.int64)
    np.add.at(sums, places.reshape(-1), requests.sums)
    above, variant = np.divmod(distinct, kinds)
    minute, version = np.divmod(above, versions.size)
    found = zip(minutes[minute].tolist(), versions[version].tolist(), variant.tolist(), strict=True)
    return [(m, v, requests.variants[name]) for m, v, name in found], sums


def _record(sums: Int64s) -> OnlineSums:
    return OnlineSums(*sums.tolist())


# --- From the requests whose window closed to what each adds to the sums: whole numbers, one row a request
# ---
#
# Vectorised: nothing here runs once a request. Knows the columns that every joined row has; knows nothing of
# stores.


MINUTE_US = 60_000_000

_KINDS = {VERSION: pa.int64(), VARIANT: pa.binary(), CTR: pa.float64()}


class Rows(Protocol):
    """Where the joined rows stand: `trainer.join.rows.Segments`."""

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
